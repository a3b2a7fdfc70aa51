"""The config of a stage, beside its results."""

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.cli import SaveConfigCallback

from artifacts.files import atomic_path


class ConfigWriter(SaveConfigCallback):
    """Writes the whole config into the run directory as the stage starts.

    Not before: a stage that is refused leaves the config that the results there were made with.

    A stage that is run again, by hand or by a scheduler, writes it again. It is replaced at once: a
    kill in between leaves no half of it, which would look like another run's settings.
    """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Waits: the module may refuse what it is given."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes the file."""
        super().setup(trainer, pl_module, "fit")

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes the file."""
        super().setup(trainer, pl_module, "validate")

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes the file."""
        super().setup(trainer, pl_module, "test")

    def on_predict_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: Any,  # noqa: ANN401 - as the base class
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Writes the file, once other callbacks have not refused the first batch."""
        # No process waits for another here: one may have no batch.
        if batch_idx == 0 and dataloader_idx == 0 and trainer.is_global_zero:
            self.save_config(trainer, pl_module, "predict")

    def save_config(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Writes the file; called on the first process only."""
        with atomic_path(Path(trainer.default_root_dir) / self.config_filename) as temporary:
            temporary.write_text(self.parser.dump(self.config, skip_none=False), encoding="utf-8")
