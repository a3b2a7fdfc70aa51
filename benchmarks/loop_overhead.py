"""What the trainer's loop costs on top of the attack's iterations, at a small size.

Both are measured in the same run: the iterations of a step of the trainer, from the first line of
the first to the end of the last one's update, and what passes until the next step's first line.
Starting and ending a run, whose cost does not grow with its length, is printed beside it. CPU time
of one thread, so that other work on the machine matters little; medians over steps.

    python -m benchmarks.loop_overhead
    python -m benchmarks.loop_overhead --iterations-per-step 10 20 50 100
"""

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import lightning as L
import torch
from safetensors.torch import save_file
from torch import Tensor

from lightning_modules import KKTReconstruction
from models.probe import Probe

DRAWS, CANDIDATES, FEATURES, WIDTH = 8, 100, 64, 128


class Timed(KKTReconstruction):
    """Notes the CPU time at which each iteration begins and ends."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Listens to the end of steps."""
        self.begins: list[float] = []
        self.ends: list[float] = []
        optimizer = super().configure_optimizers()
        optimizer.register_step_post_hook(lambda *_: self.ends.append(time.process_time()))
        return optimizer

    def set_gradients(self, iteration: int) -> Tensor:
        """Notes the beginning."""
        self.begins.append(time.process_time())
        return super().set_gradients(iteration)


def measure(probe: Path, root: str, iterations: int, per_step: int | None) -> None:
    """Prints the medians of one run."""
    search = Timed(
        str(probe),
        num_draws=DRAWS,
        num_candidates=CANDIDATES,
        iterations=iterations,
        iterations_per_step=per_step,
    )
    trainer = L.Trainer(
        default_root_dir=root,
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    start = time.process_time()
    trainer.fit(search)
    whole = time.process_time() - start
    steps = search.iterations_per_step
    # Whole steps, without the first.
    begins, ends = search.begins[steps::steps], search.ends[2 * steps - 1 :: steps]
    alone = statistics.median(e - b for b, e in zip(begins, ends, strict=True))
    gap = statistics.median(b - e for e, b in zip(ends, begins[1:], strict=False))
    print(
        f"{steps:4} iterations a step: {1 + gap / alone:.3f} of the iterations' own time"
        f" ({1e3 * alone / steps:.3f} ms an iteration, {1e3 * gap:.1f} ms between steps;"
        f" {whole - (ends[-1] - begins[0]):.2f} s for start, end and first step)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--iterations-per-step", type=int, nargs="+", help="default: the module's")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        f"D={FEATURES}, W={WIDTH}, m={CANDIDATES}, {DRAWS} draws, {options.iterations} iterations"
    )
    with tempfile.TemporaryDirectory() as root:
        probe = Path(root) / "probe.safetensors"
        save_file(Probe(FEATURES, [WIDTH]).state_dict(), str(probe))
        for per_step in options.iterations_per_step or [None]:
            measure(probe, root, options.iterations, per_step)


if __name__ == "__main__":
    main()
