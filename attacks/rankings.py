"""Which clusters of candidates are likely training samples: each score, by name."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from attacks.centres import unit_vectors

# Candidates that are worked on at a time.
CHUNK = 8192


def size(candidates: Tensor, multipliers: Tensor, draw: Tensor, cluster: Tensor) -> Tensor:
    """The number of candidates in each cluster: the paper's ranking (section 5).

    Args:
        candidates: (N, D).
        multipliers: Multiplier λ of each (N,).
        draw: The draw that each comes from (N,).
        cluster: Its cluster (N,), numbered from 0 without gaps to k - 1.

    Returns:
        Score of each cluster (k,), float64.
    """
    return cluster.bincount().double()


def neff_tightness(
    candidates: Tensor, multipliers: Tensor, draw: Tensor, cluster: Tensor
) -> Tensor:
    """Effective number of draws in each cluster, times its squared mean pairwise cosine.

    Candidates of one draw repeat its mistakes; agreement of different draws is evidence. A single
    candidate agrees with nothing and scores 0, as do clusters of opposite candidates.

    Args:
        candidates: (N, D).
        multipliers: (N,), not used.
        draw: (N,).
        cluster: (N,).

    Returns:
        Score of each cluster (k,), float64.
    """
    count = cluster.bincount().double()
    total = candidates.new_zeros(len(count), candidates.shape[1], dtype=torch.float64)
    nonzero = torch.zeros_like(count)
    for part in torch.split(torch.arange(len(cluster), device=cluster.device), CHUNK):
        unit = unit_vectors(candidates[part])
        total.index_add_(0, cluster[part], unit)
        nonzero.index_add_(0, cluster[part], unit.any(dim=1).double())
    # Sum over pairs of different candidates: all pairs without those of a candidate with itself.
    cosines = total.square().sum(dim=1) - nonzero
    tightness = cosines / (count * (count - 1)).clamp_min(1.0)
    return effective_draws(draw, cluster) * tightness.clamp_min(0.0).square()


def multiplier_mass(
    candidates: Tensor, multipliers: Tensor, draw: Tensor, cluster: Tensor
) -> Tensor:
    """Sum of λ‖x‖ over each cluster.

    The KKT conditions leave the scales of λ and x open against each other where the model has no
    biases; their product is what the candidate contributes to the weights.

    Args:
        candidates: (N, D).
        multipliers: (N,).
        draw: (N,), not used.
        cluster: (N,).

    Returns:
        Score of each cluster (k,), float64.
    """
    mass = multipliers.double() * torch.linalg.vector_norm(candidates, dim=1, dtype=torch.float64)
    return _sums(mass, cluster)


def effective_draws(draw: Tensor, cluster: Tensor) -> Tensor:
    """The number of draws that a cluster's candidates come from, if all gave equally many.

    That is size² / Σ count², with the counts of each draw: unlike a plain count of draws it hardly
    changes when single candidates of other draws stray into a cluster.

    Args:
        draw: The draw that each candidate comes from (N,).
        cluster: Its cluster (N,), numbered from 0 without gaps to k - 1.

    Returns:
        Effective number of draws of each cluster (k,), float64.
    """
    owner, count = draw_counts(draw, cluster)
    squares = _sums(count.double().square(), owner)
    return cluster.bincount().double().square() / squares


def _sums(values: Tensor, cluster: Tensor) -> Tensor:
    """Sum of values (N,) over each cluster (k,)."""
    # Not a weighted bincount, which has no deterministic form on a GPU.
    return values.new_zeros(int(cluster.max()) + 1).index_add_(0, cluster, values)


def draw_counts(draw: Tensor, cluster: Tensor) -> tuple[Tensor, Tensor]:
    """Cluster (p,) and number of candidates (p,) of each pair of cluster and draw that occurs."""
    pairs, count = torch.unique(torch.stack([cluster, draw.to(cluster)]), dim=1, return_counts=True)
    return pairs[0], count


RankingName = Literal["size", "neff_tightness", "multiplier_mass"]

RANKINGS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "size": size,
    "neff_tightness": neff_tightness,
    "multiplier_mass": multiplier_mass,
}
