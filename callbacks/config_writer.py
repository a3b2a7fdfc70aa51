"""The config of a stage, beside its results."""

from pathlib import Path

import lightning as L
from lightning.pytorch.cli import SaveConfigCallback

from artifacts.files import atomic_path


class ConfigWriter(SaveConfigCallback):
    """Writes the whole config into the run directory before the stage starts.

    A stage that is run again, by hand or by a scheduler, writes it again. It is replaced at once: a
    kill in between leaves no half of it, which would look like another run's settings.
    """

    def save_config(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Writes the file; called on the first process only."""
        with atomic_path(Path(trainer.default_root_dir) / self.config_filename) as temporary:
            temporary.write_text(self.parser.dump(self.config, skip_none=False), encoding="utf-8")
