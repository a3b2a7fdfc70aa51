"""Random numbers that belong to a sample, whatever batch and whatever process it is in."""

import numpy as np
import torch
from torch import Tensor


def sample_noise(seed: int, place: tuple[int, ...], positions: Tensor, width: int) -> Tensor:
    """Uniform numbers in [0, 1], a row for each sample.

    Row p of the table that ``seed`` and ``place`` name is always the same, however many rows are
    asked for: a counter-based generator starts anywhere.

    Args:
        seed: Not negative.
        place: Which table, such as the epoch.
        positions: Which rows (N,), on the CPU; best close together, for what lies between the
            lowest and the highest is drawn too.
        width: Numbers in a row.

    Returns:
        (N, width) in float32, on the CPU.
    """
    first, end = int(positions.min()), int(positions.max()) + 1
    # A count of the generator makes four numbers.
    counts = -(-width // 4)
    bits = np.random.Philox(np.random.SeedSequence(seed, spawn_key=place))
    bits.advance(first * counts)
    rows = np.random.Generator(bits).random((end - first, 4 * counts))
    return torch.from_numpy(rows)[positions - first, :width].float()
