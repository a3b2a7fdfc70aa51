"""Images an hour: many embeddings inverted at once against the same method one by one.

Both run a number of iterations of the whole search in turn in one process, on a backbone of random
weights (they do not change the time). Also what bounds it: the floating-point operations of an
iteration against the rate of a large matrix product.

    python -m benchmarks.inversion                       # 224 px, DINOv2-S/14, float32
    python -m benchmarks.inversion --device cuda --precision bf16 --batch 16 --grouped
"""

import argparse
import statistics
import time
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attacks.image_loss import embedding_loss
from attacks.image_search import ImageSearch, SearchSettings, image_seeds
from models.backbones import Backbone, Encoder
from models.deep_image_prior import PriorSettings, build_priors

CHANNELS = 32


def random_backbone(name: str, size: int) -> Backbone:
    import timm

    module = timm.create_model(name, pretrained=False, num_classes=0, img_size=size)
    return Backbone(name, Encoder(module, size, (0.5,) * 3, (0.5,) * 3))


def new_search(
    backbone: Backbone, indices: list[int], grouped: bool, iterations: int
) -> ImageSearch:
    device = backbone.mean.device
    size = backbone.image_size
    seeds = image_seeds(0, indices)
    generator = torch.Generator().manual_seed(0)
    targets = torch.randn(max(indices) + 1, backbone.embedding_dim, generator=generator)[indices]
    targets = targets.to(device)

    def objective(images: Tensor, shown: Tensor) -> tuple[Tensor, Tensor]:
        return embedding_loss(backbone(images).float(), targets[shown], "cosine")

    priors = build_priors(seeds, size, PriorSettings(CHANNELS, grouped=grouped)).to(device)
    settings = SearchSettings(iterations=iterations, judge_every=iterations + 1)
    shape = (CHANNELS, size, size)
    return ImageSearch(priors, objective, seeds, shape, settings, apart=not grouped)


def seconds(search: ImageSearch, iterations: int) -> float:
    """Wall time of so many iterations, without the last, which also looks at the images."""
    if search.device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(iterations):
        search.advance()
    if search.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def matmul_rate(device: torch.device, dtype: torch.dtype, size: int = 4096) -> float:
    """FLOP/s of a square product."""
    size = size if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device, dtype=dtype)
    times = []
    for _ in range(8):
        start = time.perf_counter()
        b = a @ a
        b[0, 0].item()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="vit_small_patch14_dinov2.lvd142m")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=2, help="of each image, a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--grouped", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32")
    options = parser.parse_args()
    device = torch.device(options.device)
    half = options.precision == "bf16"
    autocast = torch.autocast(device.type, torch.bfloat16) if half else nullcontext()
    backbone = random_backbone(options.backbone, options.size).to(device)
    total = options.iterations * (options.rounds + 1) + 1
    together = new_search(backbone, list(range(options.batch)), options.grouped, total)
    alone = [new_search(backbone, [i], False, total) for i in range(options.batch)]
    rows = []
    with autocast:
        with FlopCounterMode(display=False) as counter:
            alone[0].advance()
        flops = counter.get_total_flops()
        for _ in range(options.rounds + 1):
            one_by_one = sum(seconds(search, options.iterations) for search in alone)
            rows.append((seconds(together, options.iterations), one_by_one))
    batched, looped = (statistics.median(column) for column in zip(*rows[1:], strict=True))
    made = options.batch * options.iterations
    rate = matmul_rate(device, torch.bfloat16 if half else torch.float32)
    form = "grouped convolutions" if options.grouped else "images shared out among threads"
    print(
        f"{options.backbone}, {options.size} px, batch {options.batch} ({form}), "
        f"{options.precision}, {torch.get_num_threads()} threads, medians of {options.rounds}"
    )
    for name, value in (("at once", batched), ("one by one", looped)):
        per_hour = 3600 * made / value / 600
        print(
            f"{name}: {value / made:.3f} s an iteration of an image, {per_hour:.1f} images/hour of "
            f"600 iterations, {flops * made / value / 1e9:.0f} GFLOP/s "
            f"({100 * flops * made / value / rate:.0f}% of a matrix product's)"
        )
    print(f"images/hour at once / one by one: {looped / batched:.2f}")
    print(f"{flops / 1e9:.1f} GFLOP an iteration, forward and backward")


if __name__ == "__main__":
    main()
