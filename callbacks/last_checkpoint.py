"""The checkpoint that a stopped run continues from."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

# What the shell shows for a process that SIGUSR1 ended, and what this one ends itself with.
STOPPED = 128 + signal.SIGUSR1


class LastCheckpoint(ModelCheckpoint):
    """Keeps ``checkpoints/last.ckpt`` in the run directory, at ends of epochs only.

    State in the middle of a step is never saved, so a run that is stopped at any moment continues
    from a whole step and ends as if it had not been stopped.

    On SIGUSR1, which schedulers send ahead of a time limit, it saves at the end of the epoch and
    ends the process with exit code 138; the job is then to be run again. If the epoch does not end
    within ``grace``, it ends all the same, and the epoch is repeated.

    Args:
        interval: Least number of seconds between two saves; the last epoch is always saved.
        grace: Seconds from SIGUSR1 to the end.
    """

    def __init__(self, interval: float = 20.0, grace: float = 60.0) -> None:
        super().__init__(
            filename="last",
            save_top_k=1,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )
        self.interval = interval
        self.grace = grace
        self._saved_at = float("-inf")
        self._asked_to_stop = False
        self._timer: threading.Timer | None = None
        self._previous_handler: Any = None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Listens to SIGUSR1."""
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGUSR1, self._stop_soon)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Gives SIGUSR1 back."""
        self._stop_listening()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Gives SIGUSR1 back."""
        super().on_exception(trainer, pl_module, exception)
        self._stop_listening()

    def _stop_listening(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._previous_handler is not None:
            signal.signal(signal.SIGUSR1, self._previous_handler)
            self._previous_handler = None

    def _stop_soon(self, signum: int, frame: FrameType | None) -> None:
        if not self._asked_to_stop:
            self._asked_to_stop = True
            # Files are renamed into place when whole, so an end at any moment harms none.
            self._timer = threading.Timer(self.grace, os._exit, [STOPPED])
            self._timer.daemon = True
            self._timer.start()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves if the last save is long enough ago, or the run is to stop.

        Raises:
            SystemExit: The run was asked to stop.
        """
        due = self._asked_to_stop or time.monotonic() - self._saved_at >= self.interval
        # Saving takes all processes: the first one decides for them.
        stop, due = trainer.strategy.broadcast((self._asked_to_stop, due))
        if due:
            super().on_train_epoch_end(trainer, pl_module)
            self._saved_at = time.monotonic()
        if stop:
            pl_module.print(f"stopped by SIGUSR1 after epoch {trainer.current_epoch}; run it again")
            if trainer.world_size > 1:
                # srun terminates the others once one has ended: all are to end with this code.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                trainer.strategy.barrier("stop")
            raise SystemExit(STOPPED)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves the final state."""
        super().on_train_epoch_end(trainer, pl_module)
