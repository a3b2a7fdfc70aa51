"""Resizing and augmentation of whole batches on the device they are on."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

# How often a box is drawn before the whole image is taken.
_ATTEMPTS = 10
# Random numbers that a crop takes: area, aspect, left and top of each attempt, and the flip.
CROP_NOISE = 4 * _ATTEMPTS + 1


def to_unit_range(images: Tensor) -> Tensor:
    """Images in uint8 to float32 in [0, 1]; floating-point images stay as they are."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


def resize(images: Tensor, size: int) -> Tensor:
    """Resizes square images (N, C, S, S) to ``size``, bicubic with antialiasing, in [0, 1]."""
    if images.shape[-1] == size:
        return to_unit_range(images)
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2.functional import resize as torchvision_resize

    resized: Tensor = torchvision_resize(
        to_unit_range(images), [size, size], InterpolationMode.BICUBIC
    )
    return resized.clamp(0, 1)


def random_boxes(
    noise: Tensor, scale: Sequence[float] = (0.2, 1.0), ratio: Sequence[float] = (3 / 4, 4 / 3)
) -> Tensor:
    """Boxes in the unit square, distributed as torchvision's ``RandomResizedCrop`` draws them.

    Args:
        noise: Uniform numbers (N, 40) in [0, 1].
        scale: Range of a box's share of the area.
        ratio: Range of width over height, whose logarithm is uniform.

    Returns:
        Left, top, width and height (N, 4).
    """
    drawn = noise.reshape(len(noise), 4, _ATTEMPTS).transpose(0, 1)
    area = scale[0] + (scale[1] - scale[0]) * drawn[0]
    low, high = torch.tensor(ratio, device=noise.device).log()
    aspect = (low + (high - low) * drawn[1]).exp()
    width, height = (area * aspect).sqrt(), (area / aspect).sqrt()
    fits = (width <= 1) & (height <= 1)
    # The first box that fits, or the whole image.
    attempt = fits.float().argmax(dim=1, keepdim=True)
    none = ~fits.any(dim=1)
    width, height = (side.gather(1, attempt).squeeze(1) for side in (width, height))
    width, height = (side.masked_fill(none, 1.0) for side in (width, height))
    return torch.stack(
        [(1 - width) * drawn[2, :, 0], (1 - height) * drawn[3, :, 0], width, height], dim=1
    )


def crop_and_resize(images: Tensor, boxes: Tensor, size: int, flip: Tensor | None = None) -> Tensor:
    """Cuts a box out of each image and resizes it, bicubic.

    torchvision's v2 transforms cut the same box out of every image of a batch; on a GPU a loop
    over images would take longer than the training step.

    Args:
        images: Images (N, C, S, S), uint8 or in [0, 1].
        boxes: Left, top, width and height (N, 4), in the unit square.
        size: Side of the result.
        flip: Which images to mirror (N,).

    Returns:
        Images (N, C, size, size) in [0, 1].
    """
    images = to_unit_range(images)
    left, top, width, height = boxes.to(images.dtype).unbind(dim=1)
    direction = torch.ones_like(width) if flip is None else 1 - 2 * flip.to(width.dtype)
    zero = torch.zeros_like(width)
    # From the result's coordinates in [-1, 1] to the image's.
    affine = torch.stack(
        [
            torch.stack([direction * width, zero, 2 * left + width - 1], dim=1),
            torch.stack([zero, height, 2 * top + height - 1], dim=1),
        ],
        dim=1,
    )
    shape = [len(images), images.shape[1], size, size]
    grid = F.affine_grid(affine, shape, align_corners=False)
    cut = F.grid_sample(
        images, grid, mode="bicubic", padding_mode="reflection", align_corners=False
    )
    return cut.clamp(0, 1)


def random_resized_crop(
    images: Tensor, size: int, scale: Sequence[float] = (0.2, 1.0), noise: Tensor | None = None
) -> Tensor:
    """Random boxes of the images, resized, half of them mirrored.

    Args:
        images: Images (N, C, S, S), uint8 or in [0, 1].
        size: Side of the result.
        scale: Range of a box's share of the area.
        noise: Uniform numbers (N, ``CROP_NOISE``) in [0, 1]; by default random.

    Returns:
        Images (N, C, size, size) in [0, 1].
    """
    if noise is None:
        noise = torch.rand(len(images), CROP_NOISE, device=images.device)
    boxes = random_boxes(noise[:, 1:], scale)
    return crop_and_resize(images, boxes, size, flip=noise[:, 0] < 0.5)
