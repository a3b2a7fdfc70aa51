"""What the training loop costs on top of the attack's iterations, at a small size.

The same draws are improved by the trainer, and by a bare loop over the same functions, in turn in
one process; the medians' ratio is the overhead.

    python -m benchmarks.loop_overhead
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

from lightning_modules import KKTReconstruction
from models.probe import Probe


def module(probe: Path, iterations: int) -> KKTReconstruction:
    return KKTReconstruction(str(probe), num_draws=8, num_candidates=100, iterations=iterations)


def with_trainer(probe: Path, iterations: int, root: str) -> float:
    """Seconds of the trainer's loop: fit, without reading the probe and drawing the start."""
    search = module(probe, iterations)
    search.configure_model()
    trainer = L.Trainer(
        default_root_dir=root,
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    start = time.perf_counter()
    trainer.fit(search)
    return time.perf_counter() - start


def bare(probe: Path, iterations: int) -> float:
    """Seconds of the iterations alone."""
    search = module(probe, iterations)
    search.configure_model()
    search.on_train_start()
    optimizer = search.configure_optimizers()
    start = time.perf_counter()
    with torch.no_grad():
        for iteration in range(iterations):
            search.set_gradients(iteration)
            optimizer.step()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as root:
        probe = Path(root) / "probe.safetensors"
        save_file(Probe(64, [128]).state_dict(), str(probe))
        rows = []
        for _ in range(options.repeats + 1):
            rows.append(
                (with_trainer(probe, options.iterations, root), bare(probe, options.iterations))
            )
    trained, alone = (statistics.median(column) for column in zip(*rows[1:], strict=True))
    print(
        f"D=64, W=128, m=100, 8 draws, {options.iterations} iterations, medians of the runs in turn"
    )
    print(f"trainer / bare loop: {trained / alone:.3f} ({trained:.2f} s / {alone:.2f} s)")


if __name__ == "__main__":
    main()
