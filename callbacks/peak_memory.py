"""How much memory a stage took."""

import contextlib
import resource
import sys
from pathlib import Path

import lightning as L
import torch


class PeakMemory(L.Callback):
    """Prints the peak memory of a stage at its end: of the first process, and of its GPU."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Forgets the peak of what ran before in this process, where the system can."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(trainer.strategy.root_device)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Prints the peak."""
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        gpu = ""
        if trainer.strategy.root_device.type == "cuda":
            allocated = torch.cuda.max_memory_allocated(trainer.strategy.root_device)
            gpu = f", {allocated / 2**30:.2f} GiB of the GPU"
        pl_module.print(f"peak memory: {peak / 2**30:.2f} GiB{gpu}")
