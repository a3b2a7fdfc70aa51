"""What each experiment of the papers costs at their size: operations, and hours of a GPU.

Counts the floating-point operations of what an experiment trains and searches for, from its config;
nothing is run. A training that experiments share counts in each. Hours are of a device whose large
matrix products reach ``--rate``, at the share of that rate that benchmarks measured on two cores:
80% (``benchmarks.kkt_engine``), 73% (``benchmarks.inversion``), 79% (``benchmarks.mae_step``).
Embedding, evaluation, probes and UnCLIP are not counted: small beside the rest, or bound by
other things than operations, as probes are.

    python -m benchmarks.experiment_cost
"""

import argparse
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

from commands.pipeline import Stage, expand_grid
from models.deep_image_prior import DeepImagePrior, PriorSettings
from models.mae_sizes import masked_autoencoder

CONFIGS = Path(__file__).parents[1] / "configs"
SHARE = {"reconstruct": 0.80, "maximise": 0.80, "invert": 0.73, "train": 0.79}
FEATURES, WIDTH = 768, 500
TRAINING_IMAGES = 15_000
IMAGE_SIZE = 224


def settings(stage: Stage) -> dict[str, Any]:
    """What a stage's configs and options say, by dotted name without ``init_args``."""
    found: dict[str, Any] = {}

    def add(content: dict[str, Any], prefix: str = "") -> None:
        for name, value in content.items():
            inner = prefix if name == "init_args" else f"{prefix}{name}."
            if isinstance(value, dict):
                add(value, inner)
            else:
                found[inner[:-1]] = value

    for path in stage.config:
        add(yaml.safe_load((CONFIGS.parent / path).read_text(encoding="utf-8")))
    return found | stage.options


@cache
def training_step(size: str, ratio: float, depth: int, frozen_encoder: bool) -> int:
    """Operations of an autoencoder's step on one image, forward and backward."""
    with torch.device("meta"):
        model = masked_autoencoder(size, decoder_depth=depth)
        model.encoder.requires_grad_(not frozen_encoder)
        image = torch.empty(1, 3, IMAGE_SIZE, IMAGE_SIZE)
        patches = (IMAGE_SIZE // model.patch_size) ** 2
        with FlopCounterMode(display=False) as counter:
            loss, *_ = model(image, ratio, torch.empty(1, patches))
            loss.backward()
    return int(counter.get_total_flops())


@cache
def inversion_step(backbone_name: str) -> int:
    """Operations of an iteration on one picture: generator and backbone, forward and backward."""
    import timm

    with torch.device("meta"):
        prior = DeepImagePrior(IMAGE_SIZE, PriorSettings(noise_channels=3))
        backbone = timm.create_model(backbone_name, num_classes=0).requires_grad_(False)
        with FlopCounterMode(display=False) as counter:
            backbone(prior(torch.empty(1, 3, IMAGE_SIZE, IMAGE_SIZE))).sum().backward()
    return int(counter.get_total_flops())


def cost(name: str, stage: Stage, encoder: str) -> tuple[str, float] | None:
    """The kind of a stage's work and its operations, if it is counted."""
    known = settings(stage)
    kind = str(known.get("model.class_path", "")).removeprefix("lightning_modules.")
    if stage.command == "fit" and kind in ("KKTReconstruction", "ActivationMaximisation"):
        steps = known["model.num_draws"] * known["model.iterations"]
        features = FEATURES * (2 if "cls_mean" in name else 1)
        width = int(name.split("_w")[1].split("_")[0]) if "_w" in name else WIDTH
        products = 5 if kind == "KKTReconstruction" else 3
        return "reconstruct", products * 2 * steps * known[
            "model.num_candidates"
        ] * features * width
    if stage.command == "fit" and kind in ("MAEPretraining", "ShadowDecoder"):
        frozen = kind == "ShadowDecoder"
        step = training_step(
            encoder,
            float(known["model.mask_ratio"]),
            int(known.get("model.decoder_depth") or 8),
            frozen,
        )
        return "train", float(step) * TRAINING_IMAGES * known["trainer.max_epochs"]
    if stage.command == "predict" and kind in ("DIPInversion", "ImageActivationMaximisation"):
        pictures = known.get("model.num_images", 8 if "model.scale" in known else 45)
        backbone = "vit_large_patch14_clip_224" if "-clip-" in name else "vit_base_patch16_224"
        return "invert", float(inversion_step(backbone)) * pictures * known[
            "model.search.iterations"
        ]
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=100, help="TFLOP/s of a matrix product")
    options = parser.parse_args()
    print(f"experiment: pieces, EFLOP, hours at {options.rate:g} TFLOP/s")
    for path in sorted(CONFIGS.glob("*/fig*.yaml")) + sorted(CONFIGS.glob("*/table*.yaml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        stages = {name: Stage(**stage) for name, stage in content["stages"].items()}
        work: dict[str, list[float]] = {}
        for name, stage in expand_grid(stages, content.get("grid", {})).items():
            sizes = [size for size in ("encoder_iii", "encoder_ii", "encoder_i") if size in name]
            counted = cost(name, stage, sizes[0] if sizes else "encoder_i")
            if counted is not None:
                work.setdefault(counted[0], []).append(counted[1])
        for kind, flops in work.items():
            hours = sum(flops) / (options.rate * 1e12 * SHARE[kind]) / 3600
            print(
                f"{path.parent.name}/{path.stem}: {kind} {len(flops)}, {sum(flops) / 1e18:.3g}, "
                f"{hours:.2g}"
            )


if __name__ == "__main__":
    main()
