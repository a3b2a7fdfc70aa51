"""Which patches of an image a masked autoencoder sees."""

from typing import NamedTuple

import torch
from torch import Tensor


class Masking(NamedTuple):
    """Which patches an image keeps.

    Attributes:
        visible: Indices (N, K) of the patches that the encoder sees, in the order of their noise.
        removed: Indices (N, L - K) of the others.
    """

    visible: Tensor
    removed: Tensor

    @property
    def order(self) -> Tensor:
        """All indices (N, L), visible ones first."""
        return torch.cat([self.visible, self.removed], dim=1)

    @property
    def mask(self) -> Tensor:
        """Per patch (N, L): 1 = removed, 0 = visible."""
        ones = torch.ones_like(self.order, dtype=torch.get_default_dtype())
        return ones.scatter(1, self.visible, 0.0)


def count_visible(num_patches: int, mask_ratio: float) -> int:
    """How many patches stay: ⌊L·(1 - ratio)⌋, as in the reference.

    Args:
        num_patches: Patches per image L.
        mask_ratio: Share of patches to remove, in (0, 1).

    Raises:
        ValueError: The ratio is out of range, or leaves none or all of them.
    """
    if not 0 < mask_ratio < 1:
        raise ValueError(f"the mask ratio must be in (0, 1), got {mask_ratio}")
    num_visible = int(num_patches * (1 - mask_ratio))
    if num_visible == num_patches:
        raise ValueError(f"mask ratio {mask_ratio} removes none of {num_patches} patches")
    if num_visible == 0:
        raise ValueError(
            f"mask ratio {mask_ratio} leaves none of {num_patches} patches visible; take one "
            f"below {1 - 1 / num_patches:.4g}, or smaller patches"
        )
    return num_visible


def masking_from_noise(noise: Tensor, mask_ratio: float) -> Masking:
    """Keeps the patches of the lowest noise.

    Args:
        noise: One number per patch (N, L).
        mask_ratio: Share of patches to remove, in (0, 1).

    Raises:
        ValueError: As :func:`count_visible`.
    """
    num_visible = count_visible(noise.shape[1], mask_ratio)
    order = noise.argsort(dim=1)
    return Masking(order[:, :num_visible], order[:, num_visible:])


def take(tokens: Tensor, indices: Tensor) -> Tensor:
    """Tokens (N, L, D) at indices (N, K)."""
    return tokens.gather(1, indices[:, :, None].expand(-1, -1, tokens.shape[2]))
