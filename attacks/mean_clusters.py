"""Average linkage from mean vectors: memory proportional to n·D instead of n²."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks.linkage import Linkage, Merges, Progress

# Similarities of some clusters to all others that are held at a time.
SCORE_BYTES = 1 << 27
# Vectors that are gathered at a time for dot products: what a processor's cache holds, or a GPU
# fills itself with.
GATHER_BYTES = {"cpu": 1 << 21}
GATHER_BYTES_GPU = 1 << 28
# Clusters whose lists are worked on at a time.
LISTS = 4096
# Neighbours a cluster remembers: more of them save searches, and cost work at every merge.
NEIGHBOURS = 16
# A search among all clusters reads every mean, so it serves this many clusters if it can.
SEARCHED = 64
# Clusters that are looked up in lists at a time, at least, and how many of them for a merge is
# still worth looking up more.
LOOKED_UP = 16
YIELD = 16
# Slots are numbered anew once so many of them are left in use.
COMPACT = 0.75
# Vectors at a smaller cosine distance count as one direction: rounding in float32 makes more.
SAME = 1e-12


@contextmanager
def _exact_products(device: torch.device) -> Iterator[None]:
    """Keeps products of float32 matrices at float32 precision: an error bound rests on it."""
    mkldnn: Any = torch.backends.mkldnn
    # Before torch 2.9 there is one setting for all backends, which later ones refuse to mix.
    backends = [torch.backends.cuda.matmul, mkldnn.matmul] if hasattr(mkldnn, "matmul") else []
    before = [backend.fp32_precision for backend in backends]
    before_all = "highest" if backends else torch.get_float32_matmul_precision()
    for backend in backends:
        backend.fp32_precision = "ieee"
    if not backends:
        torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
        if not backends:
            torch.set_float32_matmul_precision(before_all)


class _Clusters:
    """Clusters that are not merged yet: their means, and the neighbours that each remembers.

    A cluster lives in a slot. When two merge, the result takes the slot of the first, and the slot
    of the second leads there. The similarity of two clusters is the dot product of their means, so
    the similarity to a merged cluster is a weighted mean of those to its parts. Therefore, whatever
    merges elsewhere,

    - a cluster's nearest neighbour stays so until it is merged itself, and two clusters that are
      each other's nearest can be merged at any time: the tree is the same in any order;
    - an upper bound of the similarity to all clusters outside a list outlives every merge.

    So each cluster keeps a list of neighbours, with upper bounds of their similarity that are made
    exact only when they decide something, and searches all others only when the list is used up.

    Attributes:
        mean: Mean unit vector of each slot (m, D), float64.
        rough: The same in float32, for searches.
        count: Vectors in each (m,), float64.
        node: Its node of the tree (m,).
        leads: The slot that holds each slot's vectors (m,); itself while in use.
        version: How often each slot changed (m,).
        near: Neighbours, as slots (m, k); a slot itself where there is no neighbour.
        upper: Upper bounds of the similarity to each of them (m, k).
        seen: Version of the neighbour for which ``upper`` is exact (m, k), or -1 if it is not.
        bound: No cluster outside the list is more similar than this (m,).
        nearest: Slot of the nearest neighbour (m,), or -1 while unknown.
        closeness: Similarity to it (m,).
        used: Number of clusters.
    """

    def __init__(self, unit: Tensor, count: Tensor, node: Tensor) -> None:
        size = len(unit)
        self.mean = unit
        self.rough = unit.float()
        self.count = count
        self.node = node
        self.leads = torch.arange(size, device=unit.device)
        self.version = torch.zeros_like(self.leads)
        self.near = self.leads[:, None].repeat(1, NEIGHBOURS)
        self.upper = unit.new_full((size, NEIGHBOURS), -torch.inf)
        self.seen = torch.full_like(self.near, -1)
        self.bound = unit.new_full((size,), torch.inf)
        self.nearest = torch.full_like(self.leads, -1)
        self.closeness = unit.new_full((size,), -torch.inf)
        self.used = size
        # Most that rounding can do in float32 to a dot product of vectors in the unit ball: that of
        # their entries, of D products and of the sum, each by a relative 2^-24.
        self.slack = (unit.shape[1] + 4) * 2.0**-24
        gather = GATHER_BYTES.get(unit.device.type, GATHER_BYTES_GPU)
        self.gather = max(1, gather // (8 * unit.shape[1]))

    def slots(self) -> Tensor:
        """The slots in use, in ascending order."""
        return torch.nonzero(self.in_use())[:, 0]

    def in_use(self) -> Tensor:
        """Which slots hold a cluster (m,)."""
        return self.leads == torch.arange(len(self.leads), device=self.leads.device)

    def similarity(self, first: Tensor, second: Tensor) -> Tensor:
        """Exact similarity of pairs of slots (p,)."""
        values = self.mean.new_empty(len(first))
        for start in range(0, len(first), self.gather):
            part = slice(start, start + self.gather)
            values[part] = (self.mean[first[part]] * self.mean[second[part]]).sum(dim=1)
        return values

    def scan(self, rows: Tensor, means: Tensor, slack: float) -> None:
        """Makes new lists by comparing clusters with all others.

        Args:
            rows: Slots (b,).
            means: ``mean``, or ``rough`` with the ``slack`` that its rounding needs.
            slack: What is added to similarities to make them upper bounds.
        """
        size = len(means)
        width = min(NEIGHBOURS + 1, size)
        unused = means.new_zeros(size).masked_fill_(~self.in_use(), -torch.inf)
        for part in torch.split(rows, max(1, SCORE_BYTES // (means.element_size() * size))):
            scores = torch.addmm(unused, means[part], means.T)
            scores[torch.arange(len(part), device=part.device), part] = -torch.inf
            top = scores.topk(width, dim=1)
            upper = self.mean.new_full((len(part), NEIGHBOURS + 1), -torch.inf)
            upper[:, :width] = top.values.double() + slack
            near = part[:, None].repeat(1, NEIGHBOURS + 1)
            near[:, :width] = torch.where(top.values.isinf(), near[:, :width], top.indices)
            self.near[part] = near[:, :-1]
            self.upper[part] = upper[:, :-1]
            self.seen[part] = -1
            self.bound[part] = upper[:, -1]

    def search(self, rows: Tensor) -> None:
        """Finds the nearest neighbours of clusters (b,) among all others."""
        self.scan(rows, self.rough, self.slack)
        rows = self.recall(rows)
        if len(rows) == 0:
            return
        # More neighbours than a list holds are equally near as far as float32 can tell.
        self.scan(rows, self.mean, 0.0)
        self.seen[rows] = self.version[self.near[rows]]
        self.nearest[rows] = self.near[rows, 0]
        self.closeness[rows] = self.upper[rows, 0]

    def lists(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is remembered of clusters' neighbours, as things are now.

        Args:
            rows: Slots (b,).

        Returns:
            Neighbours, the upper bounds of their similarity, and whether those are exact (b, k).
        """
        remembered = self.near[rows]
        near = self.leads[remembered]
        exact = (near == remembered) & (self.seen[rows] == self.version[near])
        near, most = _without_repeats(near, self.upper[rows], rows)
        # Parts of a merged cluster that were not in the list are bounded like all outside it.
        inexact = torch.maximum(most, self.bound[rows, None])
        inexact.masked_fill_(near == rows[:, None], -torch.inf)
        return near, torch.where(exact & (near != rows[:, None]), most, inexact), exact

    def recall(self, rows: Tensor) -> Tensor:
        """Finds the nearest neighbours of clusters (b,) from their lists; those left unknown."""
        for part in torch.split(rows, LISTS):
            near, upper, exact = self.lists(part)
            bound = self.bound[part]
            waiting = torch.arange(len(part), device=part.device)
            while True:
                top = upper[waiting].max(dim=1)
                undecided = (top.values >= bound[waiting]) & (top.values > -torch.inf)
                undecided &= ~exact[waiting, top.indices]
                waiting = waiting[undecided]
                if len(waiting) == 0:
                    break
                # Few clusters cost the same whatever is asked of them, so ask it all at once.
                # Otherwise only what float32 cannot tell from the best.
                few = len(waiting) <= SEARCHED
                least = bound[waiting] if few else top.values[undecided] - 2 * self.slack
                ask = ~exact[waiting] & (upper[waiting] >= least[:, None])
                ask &= near[waiting] != part[waiting, None]
                index, column = torch.nonzero(ask, as_tuple=True)
                index = waiting[index]
                upper[index, column] = self.similarity(part[index], near[index, column])
                exact[index, column] = True
            best = upper.max(dim=1)
            known = (best.values >= bound) & (best.values > -torch.inf)
            nearest = near.gather(1, best.indices[:, None])[:, 0]
            self.near[part] = near
            self.upper[part] = upper
            self.seen[part] = torch.where(exact, self.version[near], -1)
            self.nearest[part] = torch.where(known, nearest, -1)
            self.closeness[part] = best.values
        return rows[self.nearest[rows] < 0]

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Clusters that are each other's nearest neighbours: slots (p,) and (p,)."""
        slot = torch.arange(len(self.leads), device=self.leads.device)
        back = self.nearest[self.nearest.clamp_min(0)]
        first = torch.nonzero((self.nearest > slot) & (back == slot))[:, 0]
        return first, self.nearest[first]

    def awaited(self) -> Tensor:
        """Clusters that are a nearest neighbour while their own is unknown (b,)."""
        awaited = torch.zeros_like(self.nearest, dtype=torch.bool)
        awaited[self.nearest[self.nearest >= 0]] = True
        return torch.nonzero(awaited & (self.nearest < 0))[:, 0]

    def unknown(self) -> Tensor:
        """Clusters whose nearest neighbour is not known (b,)."""
        return torch.nonzero(self.in_use() & (self.nearest < 0))[:, 0]

    def promising(self, rows: Tensor, most: int) -> Tensor:
        """Those of some clusters (b,) that may have the closest neighbours, at most so many."""
        if len(rows) <= most:
            return rows
        upper = torch.maximum(self.bound[rows], self.upper[rows].amax(dim=1))
        return rows[upper.topk(most).indices]

    def merge(self, first: Tensor, second: Tensor, merges: Merges) -> None:
        """Merges pairs of clusters, (p,) and (p,), and records it."""
        for one, two in zip(torch.split(first, LISTS), torch.split(second, LISTS), strict=True):
            near, upper, bound = self._merged_lists(one, two)
            distance = (1.0 - self.closeness[one]).tolist()
            node = merges.add(self.node[one].tolist(), self.node[two].tolist(), distance)
            count = self.count[one] + self.count[two]
            share = (self.count[one] / count)[:, None]
            self.mean[one] = share * self.mean[one] + (1 - share) * self.mean[two]
            self.rough[one] = self.mean[one].float()
            self.count[one] = count
            self.node[one] = torch.tensor(node, device=one.device)
            self._lead(two, one)
            # Other pairs were merged at the same time.
            near, upper = _without_repeats(self.leads[near], upper, one)
            upper = torch.maximum(upper, bound[:, None])
            upper.masked_fill_(near == one[:, None], -torch.inf)
            top = upper.topk(NEIGHBOURS + 1, dim=1)
            self.near[one] = near.gather(1, top.indices[:, :-1])
            self.upper[one] = top.values[:, :-1]
            self.seen[one] = -1
            self.bound[one] = torch.maximum(bound, top.values[:, -1])
            self.recall(one)

    def _merged_lists(self, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lists of clusters to come (p, 2k), upper bounds (p, 2k), and for all outside (p,)."""
        share = self.count[one] / (self.count[one] + self.count[two])
        bound = share * self.bound[one] + (1 - share) * self.bound[two]
        near_one, upper_one, _ = self.lists(one)
        near_two, upper_two, _ = self.lists(two)
        same = near_one[:, :, None] == near_two[:, None, :]
        # What the other list says of each neighbour, or its bound if it says nothing.
        by_two = torch.where(same, upper_two[:, None, :], -torch.inf).amax(dim=2)
        by_two = torch.where(same.any(dim=2), by_two, self.bound[two, None])
        by_one = torch.where(same, upper_one[:, :, None], -torch.inf).amax(dim=1)
        by_one = torch.where(same.any(dim=1), by_one, self.bound[one, None])
        weight = share[:, None]
        upper_one = weight * upper_one + (1 - weight) * by_two
        upper_two = weight * by_one + (1 - weight) * upper_two
        return torch.cat([near_one, near_two], 1), torch.cat([upper_one, upper_two], 1), bound

    def _lead(self, gone: Tensor, into: Tensor) -> None:
        """Lets slots (p,) lead to others (p,), whose content has changed."""
        self.version[into] += 1
        self.leads[gone] = into
        self.leads = self.leads[self.leads]
        changed = torch.zeros_like(self.leads, dtype=torch.bool)
        changed[gone] = True
        changed[into] = True
        changed |= changed[self.nearest.clamp_min(0)] & (self.nearest >= 0)
        self.nearest[changed] = -1
        self.used -= len(gone)

    def merge_same(self, merges: Merges) -> None:
        """Merges vectors of one direction, after the first scan.

        Many equal vectors would use up each other's lists again and again.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        size = len(self.leads)
        first, column = torch.nonzero(self.upper >= 1 - SAME, as_tuple=True)
        second = self.near[first, column]
        same = self.similarity(first, second) >= 1 - SAME
        edges = (first[same].cpu().numpy(), second[same].cpu().numpy())
        if len(edges[0]) == 0:
            return
        graph = coo_array((np.ones(len(edges[0]), dtype=bool), edges), shape=(size, size))
        _, component = connected_components(graph, directed=False)
        # Chains of neighbours can lead away, so only those near the first of each count.
        _, leader = np.unique(component, return_index=True)
        into = torch.from_numpy(leader[component]).to(first.device)
        gone = torch.nonzero(into != torch.arange(size, device=into.device))[:, 0]
        gone = gone[self.similarity(gone, into[gone]) >= 1 - SAME]
        into = into[gone]
        groups: dict[int, list[int]] = {}
        for slot, target in zip(gone.tolist(), into.tolist(), strict=True):
            groups.setdefault(target, [target]).append(slot)
        kept = torch.tensor(list(groups), device=first.device)
        self.mean.index_add_(0, into, self.mean[gone])
        self.count.index_add_(0, into, self.count[gone])
        self.mean[kept] /= self.count[kept, None]
        self.rough[kept] = self.mean[kept].float()
        for slot, group in groups.items():
            self.node[slot] = merges.add_chain(self.node[group].tolist(), 0.0)
        self._lead(gone, into)
        # Their lists were filled by each other.
        self.scan(kept, self.rough, self.slack)

    def compact(self) -> None:
        """Frees the slots that are no longer in use; all slots are numbered anew."""
        keep = self.slots()
        number = torch.zeros_like(self.leads)
        number[keep] = torch.arange(len(keep), device=keep.device)
        near = self.leads[self.near]
        self.seen.masked_fill_((near != self.near) | (self.seen != self.version[near]), -1)
        self.near = number[near]
        self.nearest = torch.where(self.nearest >= 0, number[self.nearest.clamp_min(0)], -1)
        clusters = ("mean", "rough", "count", "node", "version")
        neighbours = ("near", "upper", "seen", "bound", "nearest", "closeness")
        for name in clusters + neighbours:
            setattr(self, name, getattr(self, name)[keep])
        self.leads = torch.arange(len(keep), device=keep.device)


def _without_repeats(near: Tensor, upper: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Lists in which no neighbour occurs twice.

    Args:
        near: Neighbours (b, k).
        upper: Upper bounds of their similarity (b, k).
        rows: The clusters whose lists these are (b,).

    Returns:
        Neighbours, with repeats replaced by the cluster itself, and for each entry the largest of
        the bounds for its neighbour (b, k).
    """
    same = near[:, :, None] == near[:, None, :]
    repeated = torch.tril(same, diagonal=-1).any(dim=2)
    most = torch.where(same, upper[:, None, :], -torch.inf).amax(dim=2)
    return torch.where(repeated, rows[:, None], near), most


def _first_clusters(unit: Tensor, merges: Merges) -> _Clusters:
    """A cluster for each vector, and one for all zero vectors.

    Zero vectors are at distance 1 from everything, so they may merge with each other first.
    """
    node = torch.arange(len(unit), device=unit.device)
    zero = ~unit.any(dim=1)
    if not zero.any():
        return _Clusters(unit, unit.new_ones(len(unit)), node)
    joined = merges.add_chain(node[zero].tolist(), 1.0)
    unit = torch.cat([unit[~zero], unit[zero][:1]])
    node = torch.cat([node[~zero], node.new_tensor([joined])])
    count = unit.new_ones(len(unit))
    count[-1] = zero.sum()
    return _Clusters(unit, count, node)


def linkage_of_means(unit: Tensor, report: Progress) -> Linkage:
    """Average linkage from the clusters' mean vectors.

    Args:
        unit: Unit or zero rows (n, D), float64; overwritten.
        report: See :func:`attacks.clustering.average_linkage`.

    Returns:
        Linkage matrix (n - 1, 4).
    """
    with _exact_products(unit.device):
        return _merge_all(unit, report)


def _merge_all(unit: Tensor, report: Progress) -> Linkage:
    size = len(unit)
    merges = Merges(size)
    clusters = _first_clusters(unit, merges)
    for rows in torch.split(clusters.slots(), LISTS):
        clusters.scan(rows, clusters.rough, clusters.slack)
        report(int(rows[-1]) + 1, 2 * size - 1)
    clusters.merge_same(merges)
    clusters.recall(clusters.slots())
    # Looking up many at a time pays while many of them merge. Where one large cluster swallows the
    # others one by one, it is the nearest of most, and they would be looked up in vain.
    width, before = size, 0
    while clusters.used > 1:
        first, second = clusters.pairs()
        if len(first) > 0:
            clusters.merge(first, second, merges)
            if clusters.used < COMPACT * len(clusters.leads):
                clusters.compact()
        else:
            merged, before = len(merges) - before, len(merges)
            if merged > 0:
                width = 2 * width if YIELD * merged >= width else max(LOOKED_UP, width // 2)
            _find_pairs(clusters, width, merges)
        report(size + len(merges), 2 * size - 1)
    return merges.linkage()


def _find_pairs(clusters: _Clusters, width: int, merges: Merges) -> None:
    """Makes more nearest neighbours known, when no two known ones are each other's.

    Args:
        clusters: At least two, no pair of them each other's known nearest neighbour.
        width: How many to look up at most.
        merges: Takes the merge of two that are equally near to others.
    """
    rows = clusters.awaited()
    if len(rows) == 0:
        rows = clusters.unknown()
    if len(rows) == 0:
        # Each one's nearest has a nearer or equally near one, so the closest of all are tied.
        slots = clusters.slots()
        best = slots[clusters.closeness[slots].argmax(dim=0, keepdim=True)]
        clusters.merge(best, clusters.nearest[best], merges)
        return
    rows = clusters.recall(clusters.promising(rows, width))
    if len(rows) == 0 or len(clusters.pairs()[0]) > 0:
        return
    if len(rows) < SEARCHED:
        others = clusters.recall(clusters.promising(clusters.unknown(), SEARCHED))
        rows = torch.unique(torch.cat([rows, others]))
    clusters.search(rows)
