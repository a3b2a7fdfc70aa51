"""Resizing and crops on the device, against torchvision and interpolation of torch."""

import pytest
import torch
from torch.nn.functional import interpolate

from models.augmentation import (
    CROP_NOISE,
    crop_and_resize,
    random_boxes,
    random_resized_crop,
    resize,
)


def test_resize_equals_torchvision() -> None:
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2.functional import resize as expected_resize

    torch.manual_seed(0)
    images = (255 * torch.rand(3, 3, 32, 32)).to(torch.uint8)
    expected = expected_resize(images.float() / 255, [56, 56], InterpolationMode.BICUBIC)
    assert torch.allclose(resize(images, 56), expected.clamp(0, 1), atol=1e-6)
    assert torch.equal(resize(images, 32), images.float() / 255)
    assert torch.equal(resize(images.float() / 255, 32), images.float() / 255)


def test_a_crop_is_cut_and_interpolated() -> None:
    torch.manual_seed(0)
    images = torch.rand(2, 3, 32, 32)
    # Columns 8 to 24, rows 4 to 20 of the first; the second mirrored.
    boxes = torch.tensor([[8, 4, 16, 16], [8, 4, 16, 16]]) / 32
    cut = crop_and_resize(images, boxes, 64, flip=torch.tensor([False, True]))
    expected = interpolate(images[:, :, 4:20, 8:24], size=64, mode="bicubic").clamp(0, 1)
    # At the edges of a box the neighbours beyond it are seen; inside it is the same.
    inside = slice(12, 52)
    assert torch.allclose(cut[0, :, inside, inside], expected[0, :, inside, inside], atol=1e-5)
    mirrored = expected[1].flip(-1)
    assert torch.allclose(cut[1, :, inside, inside], mirrored[:, inside, inside], atol=1e-5)


def test_the_whole_image_as_a_box_changes_nothing() -> None:
    images = torch.rand(2, 1, 16, 16)
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(2, 4)
    assert torch.allclose(crop_and_resize(images, boxes, 16), images, atol=1e-6)


def test_boxes_are_distributed_as_torchvisions() -> None:
    from torchvision.transforms import RandomResizedCrop

    torch.manual_seed(0)
    ours = random_boxes(torch.rand(4000, 40), (0.2, 1.0))
    assert bool((ours >= 0).all())
    assert bool((ours[:, :2] + ours[:, 2:] <= 1 + 1e-6).all())
    image = torch.empty(1, 1000, 1000)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(image, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)]
    )
    top, left, height, width = (theirs / 1000).T
    for column, expected in zip(ours.T, (left, top, width, height), strict=True):
        quantiles = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])
        difference = column.quantile(quantiles) - expected.quantile(quantiles)
        assert float(difference.abs().max()) < 0.035


def test_augmentation_is_seeded_and_differs_between_images() -> None:
    images = torch.rand(1, 3, 16, 16).expand(8, 3, 16, 16)
    torch.manual_seed(3)
    first = random_resized_crop(images, 24)
    torch.manual_seed(3)
    assert torch.equal(random_resized_crop(images, 24), first)
    assert first.shape == (8, 3, 24, 24)
    assert len(torch.unique(first.mean(dim=(1, 2, 3)))) == 8


@pytest.mark.parametrize("seed", [0, 1])
def test_boxes_of_the_full_scale(seed: int) -> None:
    torch.manual_seed(seed)
    boxes = random_boxes(torch.rand(100, 40), (1.0, 1.0))
    # Only a square has the whole area; otherwise the whole image is taken.
    assert torch.allclose(boxes[:, 2:], torch.ones(100, 2), atol=0.01)


def test_half_of_the_crops_are_mirrored() -> None:
    images = torch.rand(2, 3, 16, 16)
    noise = torch.rand(2, CROP_NOISE)
    noise[:, 0] = torch.tensor([0.49, 0.51])
    mirrored, plain = random_resized_crop(images, 16, (0.3, 0.5), noise)
    boxes = random_boxes(noise[:, 1:], (0.3, 0.5))
    expected = crop_and_resize(images, boxes, 16)
    assert torch.allclose(mirrored, expected[0].flip(-1), atol=1e-5)
    assert torch.equal(plain, expected[1])
    share = boxes[:, 2] * boxes[:, 3]
    assert bool(((share >= 0.3) & (share <= 0.5)).all())
