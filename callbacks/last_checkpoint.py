"""The checkpoint that a stopped run continues from."""

import time

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint


class LastCheckpoint(ModelCheckpoint):
    """Keeps ``checkpoints/last.ckpt`` in the run directory, at ends of epochs only.

    State in the middle of a step is never saved, so a run that is stopped at any moment continues
    from a whole step and ends as if it had not been stopped.

    Args:
        interval: Least number of seconds between two saves; the last epoch is always saved.
    """

    def __init__(self, interval: float = 20.0) -> None:
        super().__init__(
            filename="last",
            save_top_k=1,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )
        self.interval = interval
        self._saved_at = float("-inf")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves if the last save is long enough ago."""
        if time.monotonic() - self._saved_at >= self.interval:
            super().on_train_epoch_end(trainer, pl_module)
            self._saved_at = time.monotonic()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves the final state."""
        super().on_train_epoch_end(trainer, pl_module)
