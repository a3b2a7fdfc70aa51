"""Scoring images for membership: K masks × N images in batches against one image and mask a time.

Both give the same errors (checked), take turns in one process, and are compared by processor time
on one thread. The batched way also measures what the other attacks need. ``--stream`` scores that
many images batch by batch and prints the peak memory at the start and at the end.

    python -m benchmarks.membership_scoring
    python -m benchmarks.membership_scoring --size encoder_i --image-size 224 --images 2 --masks 4
    python -m benchmarks.membership_scoring --stream 20000 --masks 4
"""

import argparse
import resource
import statistics
import time

import torch
from torch import Tensor

from attacks.membership_masks import mask_noise
from attacks.membership_signals import measure_signals
from models.mae_sizes import masked_autoencoder
from models.masked_autoencoder import MaskedAutoencoder

RATIO = 0.75


@torch.no_grad()
def one_by_one(model: MaskedAutoencoder, images: Tensor, noise: Tensor) -> Tensor:
    """Errors (N, K), one forward pass each."""
    return torch.stack(
        [
            torch.cat([model.per_image_error(image, RATIO, row) for row in noise[:, None]])
            for image in images[:, None]
        ]
    )


def megabytes() -> float:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def compare(model: MaskedAutoencoder, images: Tensor, noise: Tensor, repeats: int) -> None:
    """Prints the ratio of both ways' processor times."""
    times: dict[str, list[float]] = {"batched": [], "one by one": []}
    for _ in range(repeats + 1):
        start = time.process_time()
        batched = measure_signals(model, images, noise, RATIO).masked_error
        middle = time.process_time()
        single = one_by_one(model, images, noise)
        times["batched"].append(middle - start)
        times["one by one"].append(time.process_time() - middle)
    torch.testing.assert_close(batched, single, rtol=1e-3, atol=1e-5)
    fast, slow = (statistics.median(values[1:]) for values in times.values())
    rate = len(images) * len(noise) / fast
    print(
        f"{len(images)} images, {len(noise)} masks, medians of {repeats}: batched is "
        f"{slow / fast:.1f} times as fast as one by one ({rate:.0f} masked images a CPU second)"
    )


def stream(model: MaskedAutoencoder, noise: Tensor, number: int, batch: int) -> None:
    """Prints the peak memory over a stream of images, of which scores alone are kept."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch, model.in_chans, model.image_size, model.image_size)
    scores, first = [], 0.0
    for done in range(0, number, batch):
        images = torch.rand(shape, generator=generator)
        scores.append(measure_signals(model, images, noise, RATIO).masked_error.mean(1))
        if done == 2 * batch:
            first = megabytes()
    kept = sum(value.numel() * value.element_size() for value in scores) / 2**20
    print(
        f"{number} images: peak memory {first:.0f} MB after 3 batches, {megabytes():.0f} MB at the "
        f"end, {kept:.1f} MB of it scores"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--masks", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--stream", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = masked_autoencoder(options.size, options.image_size).eval()
    noise = mask_noise(options.masks, model.num_patches, RATIO)
    if options.stream:
        stream(model, noise, options.stream, 256)
    else:
        shape = (options.images, model.in_chans, model.image_size, model.image_size)
        compare(model, torch.rand(shape), noise, options.repeats)


if __name__ == "__main__":
    main()
