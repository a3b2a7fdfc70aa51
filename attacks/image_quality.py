"""How much inverted images resemble the true ones. Evaluation only: no attack calls this.

A high similarity in the attacked backbone is no resemblance: an inversion can fool one network.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Resemblance:
    """How near images come to their own true image, among all true images.

    Attributes:
        similarity: Cosine similarity of each image to its own (k,).
        others: Its mean cosine similarity to all other true images (k,): what chance gives.
        rank: The place of its own among all by similarity, 1 for the nearest (k,).
    """

    similarity: Tensor
    others: Tensor
    rank: Tensor


def resemblance(images: Tensor, truth: Tensor, own: Tensor) -> Resemblance:
    """Compares embeddings of images with those of true images, in one network's space.

    Embeddings of any two photos point much the same way, so the true images' mean is subtracted
    and each dimension divided by its standard deviation first.

    Args:
        images: Embeddings of inverted images (k, D).
        truth: Embeddings of true images (n, D), n ≥ 2.
        own: Index of each image's own true image (k,).

    Returns:
        The comparison.
    """
    mean, std = truth.mean(0), truth.std(0)
    std = torch.where(std > 0, std, torch.ones_like(std))
    unit_images, unit_truth = (F.normalize((x - mean) / std, dim=1) for x in (images, truth))
    similarity = unit_images @ unit_truth.T
    mine = similarity.gather(1, own[:, None])
    return Resemblance(
        similarity=mine.squeeze(1),
        others=(similarity.sum(1) - mine.squeeze(1)) / (len(truth) - 1),
        rank=1 + (similarity > mine).sum(1),
    )


def lpips(first: Tensor, second: Tensor) -> Tensor:
    """Learned perceptual distance of image pairs in [0, 1] (Zhang et al., 2018), with SqueezeNet.

    Args:
        first: Images (N, 3, H, W).
        second: Images of the same shape.

    Returns:
        (N,), 0 for equal images.

    Raises:
        OSError: The network's weights are not in torch's cache and cannot be downloaded.
    """
    from torchmetrics.functional.image import learned_perceptual_image_patch_similarity

    pairs = zip(torch.split(first, 1), torch.split(second, 1), strict=True)
    return torch.stack(
        [
            learned_perceptual_image_patch_similarity(a, b, net_type="squeeze", normalize=True)
            for a, b in pairs
        ]
    )
