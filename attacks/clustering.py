"""The tree of average linkage under cosine distance, by which candidates are grouped.

Section 5 of the transfer-learning paper groups tens of thousands of reconstructed candidates by
agglomerative clustering, with cosine distance and average linkage. The tree here is that tree
exactly, not an approximation, in the format of :mod:`scipy.cluster.hierarchy`.

Distances between unit vectors make average linkage cheap: the mean cosine distance between the
members of two clusters is one minus the dot product of the clusters' mean unit vectors. A cluster
is thus summed up by one vector, and no matrix of distances needs to be kept.
"""

import numpy as np
import torch
from torch import Tensor

from attacks.linkage import Linkage, Progress
from attacks.mean_clusters import SCORE_BYTES, linkage_of_means

# Largest distance matrix, scipy's own copy of it included: about 19,000 vectors.
MATRIX_BYTES = 3_000_000_000


def average_linkage(
    vectors: Tensor, progress: Progress | None = None, *, matrix_bytes: int = MATRIX_BYTES
) -> Linkage:
    """The exact average-linkage tree under cosine distance (transfer-learning paper, section 5).

    While the matrix of distances fits into ``matrix_bytes``, scipy builds the tree from it. Beyond,
    clusters are kept as mean vectors in memory proportional to n·D, on the device of ``vectors``.
    Both ways compute in float64 and give the same tree if no two distances are equal; otherwise
    average linkage is not unique, and each way returns one of the trees that are possible.

    A zero vector has no direction: its distance is 1 to every vector, other zero vectors included.
    Vectors closer than 1e-12 are equal as far as the tree's shape goes: rounding hides what they
    differ by, and without the matrix they merge first, at distance 0.

    Args:
        vectors: (n, D), of any real dtype.
        progress: Called with the steps done and the steps in all, 2n - 1: each vector's search for
            neighbours is a step, and each merge.
        matrix_bytes: Most memory for the matrix of distances; 0 never builds it.

    Returns:
        Linkage matrix (n - 1, 4) as scipy defines it: the two clusters merged, their distance, and
        the number of vectors they hold together. Distances never decrease from row to row.

    Raises:
        ValueError: ``vectors`` is not a non-empty matrix of finite numbers.
    """
    unit = _unit_rows(vectors)
    size = len(unit)
    report = progress if progress is not None else _no_progress
    if size == 1:
        tree: Linkage = np.empty((0, 4))
    elif 8 * size * size <= matrix_bytes:
        tree = _linkage_of_matrix(unit, report)
    else:
        tree = linkage_of_means(unit, report)
    report(2 * size - 1, 2 * size - 1)
    return tree


def _no_progress(done: int, total: int) -> None:
    """Takes progress reports that nobody asked for."""


def _unit_rows(vectors: Tensor) -> Tensor:
    """Rows scaled to norm 1 in float64 (n, D); zero rows stay zero."""
    if vectors.ndim != 2 or vectors.numel() == 0:
        raise ValueError(f"vectors must be a non-empty matrix, not of shape {tuple(vectors.shape)}")
    rows = vectors.detach().to(torch.float64, copy=True)
    # Scaling by the largest entry first keeps the norm of huge and of tiny rows from overflowing.
    largest = torch.maximum(rows.amax(dim=1), -rows.amin(dim=1))
    finite = torch.isfinite(largest)
    if not finite.all():
        bad = int((~finite).sum())
        raise ValueError(
            f"{bad} of {len(rows)} vectors are not finite: drop them before clustering"
        )
    rows /= torch.where(largest > 0, largest, 1.0)[:, None]
    rows /= torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(0.5)
    return rows


def _linkage_of_matrix(unit: Tensor, report: Progress) -> Linkage:
    """Average linkage from the matrix of distances.

    Args:
        unit: Unit or zero rows (n, D), float64.
        report: See :func:`average_linkage`.

    Returns:
        Linkage matrix (n - 1, 4).
    """
    from scipy.cluster.hierarchy import linkage

    size = len(unit)
    condensed = np.empty(size * (size - 1) // 2)
    filled = 0
    block = max(1, SCORE_BYTES // (8 * size))
    for start in range(0, size, block):
        # Only the columns right of the diagonal: scipy wants the upper triangle, row by row.
        products = (unit[start : start + block] @ unit[start:].T).cpu().numpy()
        for row, values in enumerate(products):
            stop = filled + size - start - row - 1
            np.subtract(1.0, values[row + 1 :], out=condensed[filled:stop])
            filled = stop
        report(min(start + block, size), 2 * size - 1)
    np.maximum(condensed, 0.0, out=condensed)
    tree: Linkage = linkage(condensed, method="average")
    return tree
