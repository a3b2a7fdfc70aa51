"""Which patches are masked when an image is scored."""

import torch
from torch import Tensor


def mask_noise(
    num_masks: int,
    num_patches: int,
    mask_ratio: float,
    *,
    seed: int = 0,
    complementary: bool = True,
) -> Tensor:
    """Noise for K masks that every image and every model is scored under.

    The same masks for all make scores of different models comparable mask by mask, and keep an
    image's score from depending on the images beside it.

    Args:
        num_masks: K.
        num_patches: Patches per image L.
        mask_ratio: Share of patches to remove, in (0, 1).
        seed: Of the masks.
        complementary: Let successive masks show different patches until all have been shown, so
            that each patch is masked equally often, up to one; else masks are independent.

    Returns:
        Noise (K, L): the patches of the lowest noise stay visible.

    Raises:
        ValueError: There is no mask, or the ratio leaves no patch visible or none masked.
    """
    visible = int(num_patches * (1 - mask_ratio))
    if not 0 < visible < num_patches:
        raise ValueError(
            f"a mask ratio of {mask_ratio} does not leave some of {num_patches} patches visible "
            "and others masked"
        )
    if num_masks < 1:
        raise ValueError(f"the number of masks must be at least 1, got {num_masks}")
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(num_masks, num_patches, generator=generator)
    if not complementary:
        return noise
    # Deal the patches out like cards: when too few are left for a hand, the next deck begins,
    # without those that this hand has already.
    deck: list[int] = []
    for row in noise:
        hand = deck[:visible]
        deck = deck[visible:]
        if len(hand) < visible:
            fresh = torch.randperm(num_patches, generator=generator).tolist()
            missing = [patch for patch in fresh if patch not in hand][: visible - len(hand)]
            deck = [patch for patch in fresh if patch not in missing]
            hand = hand + missing
        row[hand] -= 1
    return noise
