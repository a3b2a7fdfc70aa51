"""How alike two sets of vectors or images are, and how alike chance would make them."""

import torch
from torch import Tensor
from torch.nn import functional as F


def nearest_by_cosine(queries: Tensor, vectors: Tensor, chunk: int = 8192) -> tuple[Tensor, Tensor]:
    """For each query the most similar vector.

    Args:
        queries: (n, D).
        vectors: (N, D).
        chunk: How many vectors to compare at a time, which bounds the memory to n·chunk.

    Returns:
        Cosine similarity (n,) and index into ``vectors`` (n,). Zero vectors have similarity 0.
    """
    unit_queries = F.normalize(queries, dim=1)
    best = queries.new_full((len(queries),), -torch.inf)
    index = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
    for start in range(0, len(vectors), chunk):
        block = F.normalize(vectors[start : start + chunk], dim=1)
        values, positions = (unit_queries @ block.T).max(dim=1)
        better = values > best
        best = torch.where(better, values, best)
        index = torch.where(better, positions + start, index)
    return best, index


def random_directions(basis: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Random vectors of the space that ``basis`` spans: what an attack finds without a signal.

    Args:
        basis: Orthonormal rows (k, D).
        size: How many vectors.
        generator: Source of randomness.

    Returns:
        Vectors (size, D), uniform in direction within the space.
    """
    coordinates = torch.randn(size, len(basis), generator=generator, dtype=basis.dtype)
    return coordinates.to(basis.device) @ basis


def ssim(first: Tensor, second: Tensor) -> Tensor:
    """Structural similarity of image pairs in [0, 1].

    The window is 7×7 and uniform, as images here may be as small as 8×8.

    Args:
        first: Images (N, C, H, W).
        second: Images of the same shape.

    Returns:
        SSIM of each pair (N,).
    """
    from torchmetrics.functional.image import structural_similarity_index_measure

    value = structural_similarity_index_measure(
        first, second, gaussian_kernel=False, kernel_size=7, data_range=1.0, reduction="none"
    )
    assert isinstance(value, Tensor)
    return value
