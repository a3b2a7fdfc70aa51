"""Random samples that a seed repeats."""

from collections.abc import Mapping

import torch
from torch import Tensor

from artifacts.errors import InputError
from datamodules.in_memory import balanced_sample


def draw(labels: Tensor, size: int, generator: torch.Generator, *, balanced: bool = True) -> Tensor:
    """Draws ``size`` samples without replacement.

    Args:
        labels: Label of every sample (N,).
        size: How many to draw.
        generator: Source of randomness.
        balanced: Equally many of each label.

    Returns:
        Sorted indices (size,).

    Raises:
        InputError: There are not so many, or they cannot be balanced.
    """
    if balanced:
        return balanced_sample(labels, size, generator)
    if not 1 <= size <= len(labels):
        raise InputError(f"cannot draw {size} of {len(labels)} samples")
    return torch.randperm(len(labels), generator=generator)[:size].sort().values


def draw_disjoint(
    labels: Tensor, sizes: Mapping[str, int], seed: int, *, balanced: bool = True
) -> dict[str, Tensor]:
    """Draws several samples that share no image.

    Args:
        labels: Label of every sample (N,).
        sizes: Number of samples by name; drawn in this order, so that a later entry does not
            change an earlier one's samples.
        seed: Chooses them.
        balanced: Equally many of each label, in each sample.

    Returns:
        Sorted indices by name.

    Raises:
        InputError: There are not enough samples, or they cannot be balanced.
    """
    generator = torch.Generator().manual_seed(seed)
    left = torch.arange(len(labels))
    chosen = {}
    for name, size in sizes.items():
        try:
            positions = draw(labels[left], size, generator, balanced=balanced)
        except InputError as error:
            raise InputError(f"'{name}': {error}") from error
        chosen[name] = left[positions]
        remains = torch.ones(len(left), dtype=torch.bool)
        remains[positions] = False
        left = left[remains]
    return chosen
