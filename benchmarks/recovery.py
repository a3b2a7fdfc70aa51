"""How many training samples each recipe recovers, beside both nulls.

Trains probes D-500-1 on digits (always there), and on photos and clip art behind a frozen ViT-S/14
with ``--shared FOLDER`` that holds them and its weights), attacks them, and compares with the
truth.

    python benchmarks/recovery.py --data digits --size 20 50
"""

import argparse
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
from datamodules.in_memory import Batch, InMemoryDataModule, balanced_sample
from lightning_modules import KKTReconstruction, ProbeMLP

# Settings that differ from the default, and draws × candidates per training sample × iterations.
PUBLISHED_RANGES: dict[str, Any] = {
    "learning_rate": (1e-6, 1.0),
    "init_std": (1e-6, 1.0),
    "lambda_min": (0.01, 0.5),
    "relu_alpha": (10.0, 500.0),
    "multiplier_init": (0.0, 1.0),
    "frozen_multipliers": "none",
    "alpha_annealing": 1.0,
    "equalise": False,
}
RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "full space": {"space": "full"},
    "not equalised": {
        "equalise": False,
        "relu_alpha": (10.0, 500.0),
        "alpha_annealing": 1.0,
        "learning_rate": (0.03, 0.3),
        "multiplier_learning_rate": 0.03,
        "frozen_multipliers": "none",
    },
    "paper (SGD)": {
        **PUBLISHED_RANGES,
        "optimizer": "sgd",
        "multiplier_learning_rate": 1e-4,
        "multiplier_rate_is_absolute": True,
        "space": "full",
    },
}
# Training samples: draws, candidates per sample, iterations.
EFFORT = {20: (6, 4, 800), 50: (8, 5, 1000), 100: (8, 3, 1000)}


class Sample(InMemoryDataModule):
    """A balanced sample of given vectors; the others are held out."""

    def __init__(self, vectors: Tensor, labels: Tensor, size: int, seed: int) -> None:
        super().__init__()
        self.vectors, self.labels, self.size, self.seed = vectors, labels, size, seed

    def load(self) -> tuple[Batch, Batch]:
        """Splits by seed."""
        generator = torch.Generator().manual_seed(self.seed)
        chosen = balanced_sample(self.labels, self.size, generator)
        rest = torch.ones(len(self.labels), dtype=torch.bool)
        rest[chosen] = False
        pairs = [(self.vectors[i], self.labels[i]) for i in (chosen, rest)]
        return pairs[0], pairs[1]


def digits() -> Batch:
    """Pixels of scikit-learn's digits, even against odd."""
    from sklearn.datasets import load_digits

    source = load_digits()
    labels = 1 - 2 * (torch.from_numpy(source.target) % 2)
    return torch.from_numpy(source.data).float() / 16, labels


def embeddings(shared: Path, folders: dict[str, int]) -> Batch:
    """[CLS] of the local ViT-S/14 for every image in some folders, with their labels."""
    import timm
    from PIL import Image
    from torchvision.transforms import v2

    weights = shared / "data/vit_small_patch14_dinov2.safetensors"
    model = timm.create_model(
        "vit_small_patch14_dinov2.lvd142m",
        pretrained=True,
        num_classes=0,
        img_size=224,
        pretrained_cfg_overlay={"file": str(weights)},
    ).eval()
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.Resize(224),
            v2.CenterCrop(224),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    vectors, labels = [], []
    for folder, label in folders.items():
        for path in sorted((shared / "data" / folder).iterdir()):
            image = Image.open(path).convert("RGB")
            with torch.no_grad():
                vectors.append(model(transform(image)[None])[0])
            labels.append(label)
    return torch.stack(vectors), torch.tensor(labels)


def fit(module: L.LightningModule, data: L.LightningDataModule | None, epochs: int) -> float:
    """Trains quietly and returns the seconds."""
    with tempfile.TemporaryDirectory() as root:
        trainer = L.Trainer(
            default_root_dir=root,
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            limit_val_batches=0,
        )
        start = time.perf_counter()
        trainer.fit(module, datamodule=data)
        return time.perf_counter() - start


def attack(probe: Path, recipe: dict[str, Any], size: int, seed: int) -> tuple[Tensor, float]:
    """Candidates (k, D) of the draws that did not diverge, and the seconds it took."""
    draws, per_sample, iterations = EFFORT[size]
    settings = {"num_draws": draws, "num_candidates": per_sample * size, **recipe}
    module = KKTReconstruction(str(probe), iterations=iterations, seed=seed, **settings)
    seconds = fit(module, None, -1)
    return module.result()["candidates"].flatten(0, 1), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--data", nargs="+", default=["digits"])
    parser.add_argument("--size", nargs="+", type=int, default=[20, 50], choices=list(EFFORT))
    parser.add_argument("--seeds", nargs="+", type=int, default=[10, 11, 12])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--draws", type=int, help="instead of the usual number of draws")
    parser.add_argument("--weight-decay", type=float, default=0.08)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    import logging

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print("data       n recipe          seed  >0.75 (held out, random)  >0.9 (held out)  seconds")
    for name in options.data:
        if name == "digits":
            vectors, labels = digits()
        else:
            folders = {
                "photos": {"photos/animals": 1, "photos/food": -1, "photos/plants": -1},
                "clipart": {"food_nature/train/food": 1, "food_nature/train/nature": -1},
            }[name]
            vectors, labels = embeddings(options.shared, folders)
        for size in options.size:
            for seed in options.seeds:
                data = Sample(vectors, labels, size, seed)
                L.seed_everything(seed, verbose=False)
                probe = ProbeMLP(vectors.shape[1], weight_decay=options.weight_decay)
                fit(probe, data, 100)
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "probe.pt"
                    torch.save(probe.probe.state_dict(), path)
                    for recipe in options.recipes:
                        settings = dict(RECIPES[recipe])
                        if options.draws is not None:
                            settings["num_draws"] = options.draws
                        report((name, size, seed, recipe), settings, probe, data, path)


def report(
    case: tuple[str, int, int, str],
    settings: dict[str, Any],
    probe: ProbeMLP,
    data: Sample,
    path: Path,
) -> None:
    """Attacks one probe with one recipe and prints a line."""
    name, size, seed, recipe = case
    try:
        candidates, seconds = attack(path, settings, size, seed)
    except ValueError as error:
        print(f"{name:8} {size:3} {recipe:15} {seed:4}  {error}", flush=True)
        return
    with torch.no_grad():
        train, held_out = (
            probe.probe.standardise(x) for x in (data.train_tensors[0], data.test_tensors[0])
        )
        basis = row_space(probe.probe.weights_and_biases()[0][0])
        full = torch.eye(train.shape[1]) if basis is None else basis
        counts = measure_recovery(train, held_out, candidates, full, seed).counts()
    at = [counts[threshold] for threshold in ("0.75", "0.9")]
    print(
        f"{name:8} {size:3} {recipe:15} {seed:4}  {at[0]['recovered']:5} "
        f"({at[0]['null_held_out']:3}, {at[0]['null_random']:3}) {at[1]['recovered']:10} "
        f"({at[1]['null_held_out']:3}) {seconds:12.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
