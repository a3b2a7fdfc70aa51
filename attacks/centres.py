"""One vector for a cluster of candidates: each kind of average, by name."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

# Share of a cluster that the trimmed mean keeps.
TRIM = 0.5
# Rounds of an iterated mean, which settles in far fewer, and what is left to rounding, both of the
# angle between two rounds and of similarities.
ROUNDS = 100
SETTLED = 1e-12


def mean(candidates: Tensor) -> Tensor:
    """Arithmetic mean of a cluster's candidates: the paper's representative (section 5).

    Args:
        candidates: (n, D).

    Returns:
        Representative (D,).
    """
    return candidates.mean(dim=0)


def nearest_to_mean(candidates: Tensor) -> Tensor:
    """The candidate most similar in cosine to the arithmetic mean (section 5, Fig. 7).

    Args:
        candidates: (n, D).

    Returns:
        Representative (D,), one of the candidates.
    """
    similarity = unit_vectors(candidates) @ unit_vectors(mean(candidates.double()))
    # Two candidates are equally near to their mean, except by rounding: the first is taken.
    return candidates[(similarity >= similarity.max() - SETTLED).nonzero()[0, 0]]


def frechet_mean(candidates: Tensor) -> Tensor:
    """The direction with the least sum of squared angles to the candidates (A.7, left open there).

    The candidates are mapped to the sphere's tangent space at the mean so far, averaged there, and
    the average is mapped back. Zero vectors have no direction and do not count.

    Args:
        candidates: (n, D).

    Returns:
        Representative (D,), with the mean norm of the candidates.
    """
    unit = _directions(candidates)
    centre = _mean_direction(unit)
    for _ in range(ROUNDS):
        cosine = unit @ centre
        tangent = unit - cosine[:, None] * centre
        sine = torch.linalg.vector_norm(tangent, dim=1)
        # Logarithmic map: as long as the angle, in the direction of the tangent component.
        logarithm = (torch.atan2(sine, cosine)[:, None] * unit_vectors(tangent)).mean(dim=0)
        angle = torch.linalg.vector_norm(logarithm)
        centre = unit_vectors(
            torch.cos(angle) * centre + torch.sin(angle) * unit_vectors(logarithm)
        )
        if angle < SETTLED:
            break
    return _with_norm_of(candidates, centre)


def trimmed_mean(candidates: Tensor) -> Tensor:
    """Mean direction of the half of the candidates that are most similar to the mean direction.

    Candidates that do not belong into the cluster bend its mean; few of them get into that half.

    Args:
        candidates: (n, D).

    Returns:
        Representative (D,), with the mean norm of that half.
    """
    unit = unit_vectors(candidates)
    similarity = unit @ _mean_direction(unit)
    least = similarity.topk(math.ceil(TRIM * len(unit))).values[-1]
    # Equally similar ones are kept, as both of two candidates always are, except by rounding.
    kept = similarity >= least - SETTLED
    return _with_norm_of(candidates[kept], unit[kept].mean(dim=0))


def weighted_mean(candidates: Tensor) -> Tensor:
    """Mean direction, each candidate weighted with its squared cosine similarity to that mean.

    Opposite directions get no weight. As the weights follow from the mean that they give, the mean
    is taken again until it stays.

    Args:
        candidates: (n, D).

    Returns:
        Representative (D,), with the mean norm of the candidates.
    """
    unit = _directions(candidates)
    centre = _mean_direction(unit)
    for _ in range(ROUNDS):
        weight = (unit @ centre).clamp_min(0.0).square()
        before, centre = centre, unit_vectors(weight @ unit)
        if torch.dist(before, centre) < SETTLED:
            break
    return _with_norm_of(candidates, centre)


def unit_vectors(vectors: Tensor) -> Tensor:
    """Vectors (..., D) scaled to norm 1 in float64; zero vectors stay zero."""
    return F.normalize(vectors.double(), dim=-1, eps=torch.finfo(torch.float64).tiny)


def _directions(candidates: Tensor) -> Tensor:
    """Directions (m, D) of the candidates that have one; of none, a single zero vector."""
    unit = unit_vectors(candidates)
    nonzero = unit.any(dim=1)
    return unit[nonzero] if nonzero.any() else unit[:1]


def _mean_direction(unit: Tensor) -> Tensor:
    """Direction (D,) of the mean of unit vectors (n, D), or the first one if they cancel out."""
    centre = unit_vectors(unit.mean(dim=0))
    return centre if bool(centre.any()) else unit[0]


def _with_norm_of(candidates: Tensor, direction: Tensor) -> Tensor:
    """A direction (D,) with the mean norm of candidates (n, D), and of their dtype."""
    norms = torch.linalg.vector_norm(candidates, dim=1, dtype=torch.float64)
    return torch.mul(unit_vectors(direction), norms.mean()).to(candidates)


RepresentativeName = Literal["mean", "nearest", "frechet", "trimmed", "weighted"]

REPRESENTATIVES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": mean,
    "nearest": nearest_to_mean,
    "frechet": frechet_mean,
    "trimmed": trimmed_mean,
    "weighted": weighted_mean,
}
