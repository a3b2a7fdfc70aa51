"""Hyper-parameter draws of the reconstruction, and where each starts.

Everything about draw r is a pure function of (seed, r): draws can be split over processes, or a
single one repeated, without changing any.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Range = tuple[float, float]


@dataclass(frozen=True)
class DrawRanges:
    """What draws are sampled from (appendix B.2).

    Attributes:
        learning_rate: Log-uniform range of the candidates' learning rate.
        init_std: Log-uniform range of σ: candidates start at σ·N(0, I).
        lambda_min: Uniform range of the least multiplier that is not penalised.
        relu_alpha: Uniform range of α, the sharpness of the softened ReLU derivative.
        multiplier_init: Multipliers start uniform in this range, each candidate its own.
    """

    learning_rate: Range
    init_std: Range
    lambda_min: Range
    relu_alpha: Range
    multiplier_init: Range

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            ValueError: A range is empty, or one that must be positive is not.
        """
        for name, (low, high) in vars(self).items():
            floor_is_zero = name in ("lambda_min", "multiplier_init")
            if not (0 <= low <= high < float("inf")) or (low == 0 and not floor_is_zero):
                raise ValueError(
                    f"{name} must be a range [low, high] of "
                    f"{'non-negative' if floor_is_zero else 'positive'} numbers, got {[low, high]}"
                )


@dataclass(frozen=True)
class Draws:
    """Hyper-parameters and starting points of R draws.

    Attributes:
        learning_rate: (R,).
        init_std: (R,).
        lambda_min: (R,).
        relu_alpha: (R,).
        candidates: Starting candidates (R, m, D).
        multipliers: Starting multipliers (R, m).
    """

    learning_rate: Tensor
    init_std: Tensor
    lambda_min: Tensor
    relu_alpha: Tensor
    candidates: Tensor
    multipliers: Tensor


def sample_draws(
    ranges: DrawRanges, seed: int, indices: Sequence[int], num_candidates: int, dimension: int
) -> Draws:
    """Samples the draws with the given indices.

    Args:
        ranges: What to sample from.
        seed: Seed of the whole sweep.
        indices: Which draws of the sweep.
        num_candidates: Candidates m of a draw.
        dimension: Dimension D of a candidate.

    Returns:
        The draws, in the order of ``indices``, in float32.
    """
    rows = [_sample_draw(ranges, seed, index, num_candidates, dimension) for index in indices]
    return Draws(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _sample_draw(
    ranges: DrawRanges, seed: int, index: int, num_candidates: int, dimension: int
) -> tuple[Tensor, ...]:
    state = int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0] >> 1)
    generator = torch.Generator().manual_seed(state)

    def uniform(low: float, high: float, size: tuple[int, ...] = ()) -> Tensor:
        return low + (high - low) * torch.rand(size, generator=generator, dtype=torch.float32)

    def log_uniform(low: float, high: float) -> Tensor:
        return uniform(float(np.log(low)), float(np.log(high))).exp()

    learning_rate = log_uniform(*ranges.learning_rate)
    init_std = log_uniform(*ranges.init_std)
    lambda_min = uniform(*ranges.lambda_min)
    relu_alpha = uniform(*ranges.relu_alpha)
    start = torch.randn(num_candidates, dimension, generator=generator, dtype=torch.float32)
    candidates = init_std * start
    multipliers = uniform(*ranges.multiplier_init, size=(num_candidates,))
    return learning_rate, init_std, lambda_min, relu_alpha, candidates, multipliers


def balanced_labels(num_candidates: int, num_outputs: int) -> Tensor:
    """Labels of candidates, equally many of each (section 3.1).

    Args:
        num_candidates: Candidates m of a draw.
        num_outputs: 1 for labels ±1, else the number of classes.

    Returns:
        Labels (m,), int64.

    Raises:
        ValueError: m is not a positive multiple of the number of labels.
    """
    num_labels = max(num_outputs, 2)
    if num_candidates < 1 or num_candidates % num_labels != 0:
        raise ValueError(
            f"num_candidates must be a positive multiple of {num_labels}, the number of labels, "
            f"to assign them evenly; got {num_candidates}"
        )
    labels = torch.arange(num_labels).repeat_interleave(num_candidates // num_labels)
    return 1 - 2 * labels if num_outputs == 1 else labels
