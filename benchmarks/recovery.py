"""How many training samples each recipe recovers, beside both nulls.

Trains probes D-500-1 on digits (always there), and on photos and clip art behind a frozen ViT-S/14
(with ``--shared FOLDER`` that holds them and its weights), attacks them, and compares with the
truth. Embeddings and probes are kept in ``--cache``.

    python -m benchmarks.recovery --data digits --size 20 50
"""

import argparse
import logging
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from attacks.recovery import measure_recovery
from attacks.row_space import row_space
from benchmarks.variants import VARIANTS
from benchmarks.victims import DATA, Victim, dataset, victim
from lightning_modules import KKTReconstruction

# Settings that differ from the default: the paper's, and the default with one of its parts off.
RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "learning_rate": (1e-6, 1.0),
        "init_std": (1e-6, 1.0),
        "lambda_min": (0.01, 0.5),
        "relu_alpha": (10.0, 500.0),
        "multiplier_init": (0.0, 1.0),
        "frozen_multipliers": "none",
        "alpha_annealing": 1.0,
        "equalise": False,
        "rivals": "strongest",
        "optimizer": "sgd",
        "multiplier_learning_rate": 1e-4,
        "multiplier_rate_is_absolute": True,
        "space": "full",
    },
    "Adam only": {"vector_steps": "none"},
    "vector Adam only": {"vector_steps": "all"},
    "full space": {"space": "full"},
    # The neurons' own scale asks for a larger alpha: the paper's range.
    "not equalised": {"equalise": False, "relu_alpha": (10.0, 500.0)},
    # One rate for candidates and multipliers.
    "SGD": {"optimizer": "sgd", "learning_rate": (0.01, 1.0), "multiplier_learning_rate": 1.0},
    # With several classes only.
    "all rivals": {"rivals": "all"},
    "no annealing": {"alpha_annealing": 1.0},
    "λ from U(0, 1)": {"multiplier_init": (0.0, 1.0)},
    "no frozen λ": {"frozen_multipliers": "none"},
    "+ least-squares λ": {"frozen_multipliers": "none"},
    "+ fixed gauge": {"frozen_multipliers": "none"},
    "+ L-BFGS finish": {},
}
# Training samples: draws, candidates per sample, iterations.
EFFORT = {20: (6, 4, 800), 50: (8, 5, 1000), 100: (8, 3, 1000)}


def attack(
    recipe: str, probe: Path, iterations: int, seed: int, **settings: object
) -> tuple[KKTReconstruction, float]:
    """Runs an attack quietly; returns it, and its CPU-seconds."""
    attacker = VARIANTS.get(recipe, KKTReconstruction)
    module = attacker(
        str(probe), iterations=iterations, seed=seed, **{**settings, **RECIPES[recipe]}
    )
    with tempfile.TemporaryDirectory() as root:
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
        trainer.fit(module)
        return module, time.process_time() - start


def counts(target: Victim, candidates: Tensor, seed: int) -> dict[str, dict[str, int]]:
    """Recovered samples and both nulls, by threshold."""
    basis = row_space(target.weights)
    if basis is None:
        basis = torch.eye(target.train.shape[1])
    recovery = measure_recovery(target.train, target.held_out, candidates, basis, seed)
    return recovery.counts()


def silence() -> None:
    """Leaves out what Lightning says about every run."""
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, help="folder with photos/, food_nature/, the ViT")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "afterimage")
    parser.add_argument("--data", nargs="+", default=["digits"], choices=DATA)
    parser.add_argument("--size", nargs="+", type=int, default=[20, 50], choices=list(EFFORT))
    parser.add_argument("--seeds", nargs="+", type=int, default=[20, 21, 22])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--draws", type=int, help="instead of the usual number of draws")
    parser.add_argument("--iterations", type=int, help="instead of the usual number")
    parser.add_argument("--weight-decay", type=float, default=0.08)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    silence()
    torch.set_num_threads(1)
    print(
        "data       n recipe            seed  >0.75 (held out, random)  >0.9 (held out) "
        "iterations diverged CPU-s"
    )
    for name in options.data:
        data = dataset(name, options.shared, options.cache)
        for size in options.size:
            for seed in options.seeds:
                target = victim(name, data, size, seed, options.cache, options.weight_decay)
                for recipe in options.recipes:
                    draws, per_sample, iterations = EFFORT[size]
                    draws = options.draws or draws
                    iterations = options.iterations or iterations
                    head = f"{name:8} {size:3} {recipe:17} {seed:4}"
                    try:
                        module, seconds = attack(
                            recipe,
                            target.probe,
                            iterations,
                            seed,
                            num_draws=draws,
                            num_candidates=per_sample * size,
                        )
                    except ValueError as error:
                        print(f"{head}  {error}", flush=True)
                        continue
                    found = module.result()["candidates"].flatten(0, 1)
                    low, high = counts(target, found, seed).values()
                    print(
                        f"{head}  {low['recovered']:5} ({low['null_held_out']:3}, "
                        f"{low['null_random']:3}) {high['recovered']:10} "
                        f"({high['null_held_out']:3}) {iterations:12} "
                        f"{int(module.diverged.sum()):5} {seconds:10.1f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
