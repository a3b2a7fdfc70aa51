"""Trees of the candidates of each label, and flat clusters from cutting them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attacks.clustering import average_linkage
from attacks.linkage import Linkage, Progress


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


def cut_trees(trees: Sequence[LabelTree], cut: Cut) -> tuple[Tensor, Tensor]:
    """Cluster of each candidate (N,), numbered through all labels; label of each cluster (k,)."""
    height = _cut_height([tree.linkage for tree in trees], cut)
    cluster = torch.empty(sum(len(tree.members) for tree in trees), dtype=torch.int64)
    label: list[Tensor] = []
    for tree in trees:
        flat = _flat_clusters(tree.linkage, height)
        cluster[tree.members.cpu()] = flat + len(label)
        label += [tree.label.cpu()] * (int(flat.max()) + 1)
    return cluster, torch.stack(label)
