"""A training step of the masked autoencoder against transformers' ``ViTMAEForPreTraining``.

Forward, backward and optimiser, the same size and batch, in turn in one process. On a CPU, ratios
of processor time on one thread, and the share of the machine's float32 matmul rate that the
counted operations reach; on a GPU (``--device cuda``) images per second in bf16, with and without
compilation, and the share of the measured bf16 matmul rate.

    python -m benchmarks.mae_step --size encoder_i --image-size 224 --batch 8
    python -m benchmarks.mae_step --size tiny --image-size 32 --batch 32 --repeats 50
    python -m benchmarks.mae_step --resizing
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lightning_modules.schedules import parameter_groups
from models.augmentation import random_resized_crop, resize
from models.mae_sizes import SIZES, masked_autoencoder

RATIO = 0.75
Step = Callable[[], object]


def peer(size: str, image_size: int) -> nn.Module:
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    sizes = SIZES[size]
    return ViTMAEForPreTraining(
        ViTMAEConfig(
            image_size=image_size,
            patch_size=sizes["patch_size"],
            hidden_size=sizes["embed_dim"],
            intermediate_size=4 * sizes["embed_dim"],
            num_hidden_layers=sizes["depth"],
            num_attention_heads=sizes["num_heads"],
            decoder_hidden_size=sizes["decoder_embed_dim"],
            decoder_intermediate_size=4 * sizes["decoder_embed_dim"],
            decoder_num_hidden_layers=sizes["decoder_depth"],
            decoder_num_attention_heads=sizes["decoder_num_heads"],
            mask_ratio=RATIO,
        )
    )


def training_step(
    model: nn.Module, loss: Callable[[Tensor], Tensor], images: Tensor, fused: bool
) -> Step:
    """One step of what trains ``model``."""
    groups = parameter_groups(model.named_parameters(), 0.05)
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=fused)
    on_gpu = images.device.type == "cuda"

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(images.device.type, torch.bfloat16, enabled=on_gpu):
            value = loss(images)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def counted_flops(size: str, image_size: int, batch: int) -> float:
    """Operations of forward and backward, counted by torch without doing them."""
    with torch.device("meta"):
        model = masked_autoencoder(size, image_size)
        images = torch.rand(batch, 3, image_size, image_size)
    counter = FlopCounterMode(display=False)
    # The fused kernels of attention are not all known to the counter; plain products are.
    with counter, sdpa_kernel(SDPBackend.MATH):
        model.removed_errors(images, RATIO).mean().backward()  # type: ignore[no-untyped-call]
    return counter.get_total_flops()


def seconds(step: Step, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        return time.perf_counter() - start
    start = time.process_time()
    step()
    return time.process_time() - start


def in_turn(steps: dict[str, Step], repeats: int, device: str) -> dict[str, list[float]]:
    """Seconds of each step, run in turn; the first rounds are warm-up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(-2, repeats):
        for name, step in steps.items():
            took = seconds(step, device)
            if repeat >= 0:
                times[name].append(took)
    return times


def matmul_step(device: str) -> tuple[Step, float]:
    """A large matrix product and its operations."""
    side, dtype = (8192, torch.bfloat16) if device == "cuda" else (1536, torch.float32)
    left, right = (torch.rand(side, side, device=device).to(dtype) for _ in range(2))
    return lambda: torch.mm(left, right), 2.0 * side**3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="encoder_i", choices=sorted(SIZES))
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--resizing", action="store_true", help="cost of resizing 32 to 224")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{options.size}, {options.image_size} px, batch {options.batch}, mask {RATIO}, ", end="")
    print(f"{options.device}, {options.repeats} rounds in turn")
    shape = (options.batch, 3, options.image_size, options.image_size)
    images = torch.rand(shape, device=options.device)
    ours = masked_autoencoder(options.size, options.image_size).to(options.device)

    def our_loss(batch: Tensor) -> Tensor:
        return ours.removed_errors(batch, RATIO).mean()

    product, product_flops = matmul_step(options.device)
    steps: dict[str, Step] = {
        "ours": training_step(ours, our_loss, images, fused=True),
        "matmul": product,
    }
    if options.resizing:
        stored = (255 * torch.rand(options.batch, 3, 32, 32)).to(torch.uint8).to(options.device)
        steps["resizing"] = lambda: resize(stored, options.image_size)
        steps["crops"] = lambda: random_resized_crop(stored, options.image_size)
    else:
        theirs: Any = peer(options.size, options.image_size).to(options.device).train()

        def their_loss(batch: Tensor) -> Tensor:
            loss: Tensor = theirs(batch).loss
            return loss

        steps["peer"] = training_step(theirs, their_loss, images, fused=True)
        if options.device == "cpu":
            steps["peer, plain AdamW"] = training_step(theirs, their_loss, images, fused=False)
        else:
            compiled = torch.compile(our_loss)
            steps["ours, compiled"] = training_step(ours, compiled, images, fused=True)
            peer_compiled = torch.compile(their_loss)
            steps["peer, compiled"] = training_step(theirs, peer_compiled, images, fused=True)
    times = in_turn(steps, options.repeats, options.device)
    median = {name: statistics.median(column) for name, column in times.items()}
    flops = counted_flops(options.size, options.image_size, options.batch)
    rate = product_flops / median["matmul"]
    print(f"matmul: {rate / 1e9:.0f} GFLOP/s; a step: {flops / 1e9:.1f} GFLOP")
    for name, value in median.items():
        if name in ("resizing", "crops"):
            print(
                f"{name} 32 to {options.image_size}: {100 * value / median['ours']:.2f}% of a step"
            )
        elif name != "matmul":
            ratios = [a / b for a, b in zip(times[name], times["ours"], strict=True)]
            print(
                f"{name}: {value:.4f} s, {options.batch / value:.1f} images/s, "
                f"{100 * flops / value / rate:.0f}% of the matmul rate, "
                f"{statistics.median(ratios):.3f} of ours"
            )


if __name__ == "__main__":
    main()
