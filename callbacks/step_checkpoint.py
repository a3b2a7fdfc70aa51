"""The checkpoint that a training with long epochs continues from."""

from pathlib import Path
from typing import Any

import lightning as L

from artifacts.errors import InputError
from callbacks.last_checkpoint import LastCheckpoint


class StepCheckpoint(LastCheckpoint):
    """Keeps ``checkpoints/last.ckpt`` within epochs too, for modules and data that continue there.

    It is saved right behind a step of the optimiser, so no accumulated gradient is lost.

    Args:
        every_n_steps: Steps of the optimiser between two saves within an epoch.
        interval: Least number of seconds between two saves at ends of epochs.

    Raises:
        InputError: ``every_n_steps`` is not positive.
    """

    def __init__(self, every_n_steps: int = 500, interval: float = 20.0) -> None:
        super().__init__(interval=interval)
        if every_n_steps < 1:
            raise InputError(f"every_n_steps must be at least 1, got {every_n_steps}")
        self.every_n_steps = every_n_steps
        self._last_step = 0

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401 - as the base class
        batch: Any,  # noqa: ANN401 - as the base class
        batch_idx: int,
    ) -> None:
        """Saves if this batch made a step that is to be saved."""
        step = trainer.global_step
        if step != self._last_step and step % self.every_n_steps == 0:
            assert self.dirpath is not None
            trainer.save_checkpoint(Path(self.dirpath) / "last.ckpt")
        self._last_step = step
