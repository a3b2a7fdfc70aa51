"""Random views of images, and how rough they are: what keeps an inversion from fooling a network.

A picture that reaches its target under every small shift and crop cannot rest on patterns that fit
one pixel grid.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def random_views(
    images: Tensor,
    generators: Sequence[torch.Generator],
    views: int = 1,
    *,
    jitter: int = 0,
    crop: float = 1.0,
) -> Tensor:
    """Randomly cropped and shifted copies of images.

    Args:
        images: (B, C, S, S).
        generators: Source of randomness of each image (B,).
        views: Copies V of each.
        jitter: Largest shift in pixels; what comes in is mirrored.
        crop: A copy shows a square of random side between this share of S and S.

    Returns:
        Copies (B·V, C, S, S), those of an image together.
    """
    if jitter == 0 and crop == 1:
        return images.repeat_interleave(views, dim=0)
    size = images.shape[-1]
    device, dtype = images.device, images.dtype
    draws = torch.stack(
        [torch.rand(views, 5, generator=own, device=device, dtype=dtype) for own in generators]
    ).flatten(0, 1)
    scale = crop + (1 - crop) * draws[:, 0]
    # A whole number of pixels, so that a shift alone does not blur.
    shift = (draws[:, 3:] * (2 * jitter + 1)).floor() - jitter
    centre = (1 - scale)[:, None] * (2 * draws[:, 1:3] - 1) + 2 * shift / size
    zero = torch.zeros_like(scale)
    rows = [
        torch.stack([scale, zero, centre[:, 0]], 1),
        torch.stack([zero, scale, centre[:, 1]], 1),
    ]
    copies = images.repeat_interleave(views, dim=0)
    grid = F.affine_grid(torch.stack(rows, 1), list(copies.shape), align_corners=False)
    return F.grid_sample(copies, grid, padding_mode="reflection", align_corners=False)


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, down and across.

    Args:
        images: (B, C, H, W).

    Returns:
        (B,).
    """
    down = images.diff(dim=-2).abs().flatten(1).mean(1)
    across = images.diff(dim=-1).abs().flatten(1).mean(1)
    return down + across
