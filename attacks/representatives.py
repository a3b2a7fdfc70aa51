"""Good reconstructions among many candidates, chosen without the training data.

Candidates of different draws that resemble a training sample resemble each other, so they gather in
clusters, while failed ones scatter. Section 5 of the transfer-learning paper therefore clusters the
candidates, takes the largest clusters, and averages each to one representative. Here the cut of the
tree, the ranking of the clusters and the kind of average are each chosen by name.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.clustering import Linkage, Progress, average_linkage

# Share of a cluster that the trimmed mean keeps.
TRIM = 0.5
# Rounds of an iterated mean, which settles in far fewer, and what is left to rounding, both of the
# angle between two rounds and of similarities.
ROUNDS = 100
SETTLED = 1e-12
# Candidates that are worked on at a time.
CHUNK = 8192


@dataclass(frozen=True)
class Cut:
    """Where to cut a tree of clusters: exactly one of the two is given.

    Attributes:
        maxclust: Largest number of clusters: 1,000 for 25,000 candidates in section 5.
        height: Largest mean cosine distance at which clusters still merge.
    """

    maxclust: int | None = None
    height: float | None = None

    def __post_init__(self) -> None:
        if (self.maxclust is None) == (self.height is None):
            raise ValueError("give either maxclust or height, to cut the tree there")
        if self.maxclust is not None and self.maxclust < 1:
            raise ValueError(f"maxclust must be at least 1, not {self.maxclust}")
        if self.height is not None and not 0 <= self.height <= 2:
            raise ValueError(f"height is a cosine distance, from 0 to 2, not {self.height}")


@dataclass(frozen=True)
class LabelTree:
    """The tree of all candidates with one label.

    Attributes:
        label: The label (scalar).
        members: Indices of those candidates (n,).
        linkage: Their tree (n - 1, 4), see :func:`attacks.clustering.average_linkage`.
    """

    label: Tensor
    members: Tensor
    linkage: Linkage


@dataclass(frozen=True)
class Representatives:
    """The best clusters, in descending order of score.

    Attributes:
        vectors: A representative of each (k, D).
        score: What they were ranked by (k,), float64.
        label: Their labels (k,).
        members: Indices of each one's candidates, ascending: k tensors.
    """

    vectors: Tensor
    score: Tensor
    label: Tensor
    members: list[Tensor]


def cut_tree(
    linkage: Linkage, *, maxclust: int | None = None, height: float | None = None
) -> Tensor:
    """Flat clusters of a tree, by a number of clusters or by a distance.

    Args:
        linkage: Tree of average linkage (n - 1, 4).
        maxclust: See :class:`Cut`. Merges at equal distances stay together, so there may be fewer.
        height: See :class:`Cut`.

    Returns:
        Cluster of each vector (n,), from 0 in the order of their first vectors.
    """
    cut = Cut(maxclust, height)
    return _flat_clusters(linkage, _cut_height([linkage], cut))


def _cut_height(linkages: list[Linkage], cut: Cut) -> float:
    """The distance at which several trees together fall into the clusters of a cut."""
    if cut.height is not None:
        return cut.height
    assert cut.maxclust is not None
    heights = np.sort(np.concatenate([linkage[:, 2] for linkage in linkages]))
    merges = len(heights) + len(linkages) - cut.maxclust
    # Below 0 nothing merges; and beyond the last merge there is nothing left to merge.
    return float(heights[min(merges, len(heights)) - 1]) if merges > 0 and len(heights) else -1.0


def _flat_clusters(linkage: Linkage, height: float) -> Tensor:
    """Cluster of each vector (n,) when all merges up to a distance are made."""
    from scipy.cluster.hierarchy import fcluster

    if len(linkage) == 0:
        return torch.zeros(1, dtype=torch.int64)
    flat = fcluster(linkage, height, criterion="distance")
    _, first, index = np.unique(flat, return_index=True, return_inverse=True)
    rank = np.empty_like(first)
    rank[np.argsort(first)] = np.arange(len(first))
    return torch.from_numpy(rank[index])


def label_trees(
    candidates: Tensor, labels: Tensor, progress: Progress | None = None
) -> list[LabelTree]:
    """Clusters the candidates of each label on their own.

    One tree serves every cut, ranking and representative.

    Args:
        candidates: (N, D), finite.
        labels: Label of each (N,).
        progress: Called with the steps done and the steps in all, over all labels.

    Returns:
        A tree for each label that occurs, in ascending order of labels.
    """
    trees: list[LabelTree] = []
    values, counts = torch.unique(labels, return_counts=True)
    total = int((2 * counts - 1).sum())
    done = 0
    for label in values:
        members = torch.nonzero(labels == label)[:, 0]
        start = done

        def report(steps: int, _: int, start: int = start) -> None:
            if progress is not None:
                progress(start + steps, total)

        linkage = average_linkage(candidates[members.to(candidates.device)], report)
        trees.append(LabelTree(label, members, linkage))
        done += 2 * len(members) - 1
    return trees


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
    similarity = _unit(candidates) @ _unit(mean(candidates.double()))
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
        logarithm = (torch.atan2(sine, cosine)[:, None] * _unit(tangent)).mean(dim=0)
        angle = torch.linalg.vector_norm(logarithm)
        centre = _unit(torch.cos(angle) * centre + torch.sin(angle) * _unit(logarithm))
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
    unit = _unit(candidates)
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
        before, centre = centre, _unit(weight @ unit)
        if torch.dist(before, centre) < SETTLED:
            break
    return _with_norm_of(candidates, centre)


def _unit(vectors: Tensor) -> Tensor:
    """Vectors (..., D) scaled to norm 1 in float64; zero vectors stay zero."""
    return F.normalize(vectors.double(), dim=-1, eps=torch.finfo(torch.float64).tiny)


def _directions(candidates: Tensor) -> Tensor:
    """Directions (m, D) of the candidates that have one; of none, a single zero vector."""
    unit = _unit(candidates)
    nonzero = unit.any(dim=1)
    return unit[nonzero] if nonzero.any() else unit[:1]


def _mean_direction(unit: Tensor) -> Tensor:
    """Direction (D,) of the mean of unit vectors (n, D), or the first one if they cancel out."""
    centre = _unit(unit.mean(dim=0))
    return centre if bool(centre.any()) else unit[0]


def _with_norm_of(candidates: Tensor, direction: Tensor) -> Tensor:
    """A direction (D,) with the mean norm of candidates (n, D), and of their dtype."""
    norms = torch.linalg.vector_norm(candidates, dim=1, dtype=torch.float64)
    return torch.mul(_unit(direction), norms.mean()).to(candidates)


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
        unit = _unit(candidates[part])
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
    owner, count = _draw_counts(draw, cluster)
    squares = _sums(count.double().square(), owner)
    return cluster.bincount().double().square() / squares


def _sums(values: Tensor, cluster: Tensor) -> Tensor:
    """Sum of values (N,) over each cluster (k,)."""
    # Not a weighted bincount, which has no deterministic form on a GPU.
    return values.new_zeros(int(cluster.max()) + 1).index_add_(0, cluster, values)


def _draw_counts(draw: Tensor, cluster: Tensor) -> tuple[Tensor, Tensor]:
    """Cluster (p,) and number of candidates (p,) of each pair of cluster and draw that occurs."""
    pairs, count = torch.unique(torch.stack([cluster, draw.to(cluster)]), dim=1, return_counts=True)
    return pairs[0], count


RepresentativeName = Literal["mean", "nearest", "frechet", "trimmed", "weighted"]
RankingName = Literal["size", "neff_tightness", "multiplier_mass"]

REPRESENTATIVES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": mean,
    "nearest": nearest_to_mean,
    "frechet": frechet_mean,
    "trimmed": trimmed_mean,
    "weighted": weighted_mean,
}
RANKINGS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "size": size,
    "neff_tightness": neff_tightness,
    "multiplier_mass": multiplier_mass,
}


def select_representatives(
    candidates: Tensor,
    multipliers: Tensor,
    draw: Tensor,
    labels: Tensor,
    *,
    cut: Cut,
    representative: RepresentativeName,
    ranking: RankingName,
    top: int,
    min_draws: int = 1,
    trees: Sequence[LabelTree] | None = None,
    progress: Progress | None = None,
) -> Representatives:
    """Clusters the candidates of each label, ranks all clusters, and represents the best.

    Candidates of different labels never share a cluster. ``cut.maxclust`` counts the clusters of
    all labels together, as if different labels were too far apart to merge.

    Args:
        candidates: Reconstructed vectors of all draws (N, D), finite.
        multipliers: Multiplier λ of each (N,).
        draw: The draw that each comes from (N,), integer.
        labels: Label of each (N,).
        cut: Where to cut the trees.
        representative: Name of the average, see ``REPRESENTATIVES``.
        ranking: Name of the score, see ``RANKINGS``.
        top: How many clusters to return; fewer if there are fewer.
        min_draws: Clusters with candidates of fewer draws are left out.
        trees: What :func:`label_trees` gave for these candidates, if they are cut more than once.
        progress: See :func:`label_trees`.

    Returns:
        The best clusters; of equal ones first that of the smaller label, then that with the earlier
        candidate.

    Raises:
        ValueError: Lengths differ, a name is unknown, or candidates are not finite.
    """
    for name, values in (("multipliers", multipliers), ("draw", draw), ("labels", labels)):
        if values.shape != candidates.shape[:1]:
            raise ValueError(
                f"{name} must have shape ({len(candidates)},), not {tuple(values.shape)}"
            )
    if representative not in REPRESENTATIVES:
        raise ValueError(f"representative must be one of {', '.join(REPRESENTATIVES)}")
    if ranking not in RANKINGS:
        raise ValueError(f"ranking must be one of {', '.join(RANKINGS)}")
    device = candidates.device
    if trees is None:
        trees = label_trees(candidates, labels, progress)
    cluster, label = _cut_trees(trees, cut)
    cluster = cluster.to(device)
    score = RANKINGS[ranking](candidates, multipliers.to(device), draw.to(device), cluster)
    owner, _ = _draw_counts(draw.to(device), cluster)
    allowed = torch.nonzero(owner.bincount() >= min_draws)[:, 0]
    best = allowed[score[allowed].argsort(descending=True, stable=True)[:top]]
    members = [torch.nonzero(cluster == index)[:, 0] for index in best]
    average = REPRESENTATIVES[representative]
    vectors = [average(candidates[indices]) for indices in members]
    return Representatives(
        vectors=torch.stack(vectors) if vectors else candidates[:0],
        score=score[best],
        label=label.to(device)[best],
        members=members,
    )


def _cut_trees(trees: Sequence[LabelTree], cut: Cut) -> tuple[Tensor, Tensor]:
    """Cluster of each candidate (N,), numbered through all labels; label of each cluster (k,)."""
    height = _cut_height([tree.linkage for tree in trees], cut)
    cluster = torch.empty(sum(len(tree.members) for tree in trees), dtype=torch.int64)
    label: list[Tensor] = []
    for tree in trees:
        flat = _flat_clusters(tree.linkage, height)
        cluster[tree.members.cpu()] = flat + len(label)
        label += [tree.label.cpu()] * (int(flat.max()) + 1)
    return cluster, torch.stack(label)
