"""Trees of merges in the format of :mod:`scipy.cluster.hierarchy`."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# Takes the steps done and the steps in all.
Progress = Callable[[int, int], None]
# (n - 1, 4): the two clusters merged, their distance, the number of vectors in them.
Linkage = NDArray[np.float64]


class Merges:
    """The merges so far, in the order in which they were found."""

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self.first: list[int] = []
        self.second: list[int] = []
        self.distance: list[float] = []

    def __len__(self) -> int:
        return len(self.distance)

    def add(self, first: list[int], second: list[int], distance: list[float]) -> list[int]:
        """Adds merges of two nodes each; the nodes that result."""
        start = self.leaves + len(self)
        self.first += first
        self.second += second
        self.distance += distance
        return list(range(start, start + len(first)))

    def add_chain(self, nodes: list[int], distance: float) -> int:
        """Merges nodes one after the other, all at one distance; the node that results."""
        joined = nodes[0]
        for node in nodes[1:]:
            (joined,) = self.add([joined], [node], [distance])
        return joined

    def linkage(self) -> Linkage:
        """The merges as scipy's linkage matrix: by distance, and nodes numbered in that order."""
        count = len(self)
        distance = [max(value, 0.0) for value in self.distance]
        members = [1] * self.leaves + [0] * count
        for row, pair in enumerate(zip(self.first, self.second, strict=True)):
            for node in pair:
                members[self.leaves + row] += members[node]
                if node >= self.leaves:
                    # A merge is never closer than those it builds on, except by rounding.
                    distance[row] = max(distance[row], distance[node - self.leaves])
        order = np.argsort(distance, kind="stable")
        number = np.arange(self.leaves + count)
        number[self.leaves + order] = np.arange(self.leaves, self.leaves + count)
        pairs = number[np.stack([self.first, self.second], axis=1)]
        tree = np.empty((count, 4))
        tree[:, :2] = np.sort(pairs[order], axis=1)
        tree[:, 2] = np.asarray(distance)[order]
        tree[:, 3] = np.asarray(members[self.leaves :])[order]
        return tree
