"""Resizing and cropping, against torchvision's transforms and against Pillow itself."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Resize, ToTensor

from artifacts.errors import InputError
from datamodules import ImageFolderDataModule, image_sets
from datamodules.image_sets import ImageArray, ImageFiles, ImageSet
from datamodules.listing import list_images
from tests.datamodules import layouts

SIZES = [(427, 640), (640, 427), (224, 224), (100, 131), (225, 301), (31, 32), (1, 2)]


def image_set(root: Path, pixels: np.ndarray, size: int, in_chans: int = 3) -> ImageSet:
    layouts.save(root / "a" / "x.png", pixels)
    data = ImageFolderDataModule(str(root), image_size=size, in_chans=in_chans, test_fraction=0)
    data.setup()
    return data.train_set


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("size", [224, 37])
@pytest.mark.parametrize("in_chans", [3, 1])
def test_pixels_are_those_of_torchvisions_transforms(
    tmp_path: Path, shape: tuple[int, int], size: int, in_chans: int
) -> None:
    pixels = np.resize(layouts.photo(), (*shape, 3))
    image, label = image_set(tmp_path, pixels, size, in_chans)[0]
    transform = Compose([Resize(size, InterpolationMode.BICUBIC), CenterCrop(size), ToTensor()])
    expected = transform(Image.fromarray(pixels).convert("RGB" if in_chans == 3 else "L"))
    assert image.dtype == torch.float32
    assert torch.equal(image, expected)
    assert (label.dtype, int(label)) == (torch.int64, 0)


@pytest.mark.parametrize("shape", [(427, 640), (640, 427), (48, 64)])
def test_crop_is_from_the_centre_and_resizing_is_pillows(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    pixels = np.resize(layouts.photo(), (*shape, 3))
    height, width = (int(32 * side / min(shape)) for side in shape)
    resized = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))
    top, left = round((height - 32) / 2), round((width - 32) / 2)
    expected = resized[top : top + 32, left : left + 32]
    found = image_set(tmp_path, pixels, 32).pixels(0)
    assert np.array_equal(found.permute(1, 2, 0), expected)


def test_strips_that_would_grow_to_gigabytes_are_refused(tmp_path: Path) -> None:
    images = image_set(tmp_path, np.zeros((1, 60_000, 3), np.uint8), 224)
    with pytest.raises(InputError, match=r"a/x.png would have 13440000 x 224 pixels"):
        images.pixels(0)


def test_subset_and_all_pixels() -> None:
    pixels = torch.from_numpy(np.stack([layouts.tile(n) for n in range(12)]))
    labels = torch.arange(12) % 3
    collection = ImageArray.of_parts(
        (pixels[:8], labels[:8]), (pixels[8:], labels[8:]), classes=["a", "b", "c"]
    )
    images = ImageSet(collection, torch.arange(11, -1, -1), labels.flip(0), image_size=32)
    assert images.identifiers[:5] == ["test/3", "test/2", "test/1", "test/0", "train/7"]
    part = images.subset(torch.tensor([11, 4, 4]))
    assert part.identifiers == ["train/0", "train/7", "train/7"]
    assert part.labels.tolist() == [0, 1, 1]
    expected = pixels[[0, 7, 7]].permute(0, 3, 1, 2)
    assert torch.equal(part.all_pixels(), expected)
    assert torch.equal(part[1][0], expected[1].float() / 255)
    # Subsets of subsets count within the smaller one.
    assert part.subset([1]).subset(range(1)).identifiers == ["train/7"]
    with pytest.raises(IndexError):
        images.subset([12])


@pytest.mark.parametrize("in_chans", [1, 3])
@pytest.mark.parametrize("grey", [True, False])
def test_images_in_memory_are_as_if_decoded(grey: bool, in_chans: int) -> None:
    pixels = torch.from_numpy(np.stack([layouts.tile(n) for n in range(6)]))
    pixels = pixels[..., 0] if grey else pixels
    labels = torch.zeros(3, dtype=torch.int64)
    collection = ImageArray.of_parts((pixels[:3], labels), (pixels[3:], labels), classes=["a"])
    chosen = torch.tensor([4, 0, 5])
    images = ImageSet(collection, chosen, labels, image_size=32, in_chans=in_chans)
    mode = "L" if in_chans == 1 else "RGB"
    expected = np.stack(
        [np.asarray(Image.fromarray(pixels[at].numpy()).convert(mode)) for at in chosen]
    )
    expected = expected[:, None] if in_chans == 1 else expected.transpose(0, 3, 1, 2)
    assert np.array_equal(images.all_pixels(), expected)
    assert np.array_equal(torch.stack([images.pixels(at) for at in range(3)]), expected)


def test_reading_many_files_shows_progress_and_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(300):
        layouts.save(tmp_path / f"{n:03d}.png", layouts.tile(n))
    collection = list_images(tmp_path, {"": False})
    images = ImageSet(collection, torch.arange(300), torch.zeros(300).long(), image_size=8)
    images.digests()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(image_sets, "_PATIENCE", 0.0)
    for read, title in ((images.digests, "reading"), (images.all_pixels, "decoding")):
        assert len(read(quiet=True)) == 300
        assert capsys.readouterr().err == ""
        assert len(read()) == 300
        assert f"{title} images: 100%" in capsys.readouterr().err

    read_files: list[int] = []

    def digest(self: ImageFiles, index: int) -> bytes:
        read_files.append(index)
        time.sleep(0.01)
        return b""

    def interrupt(*_: object, **__: object) -> Iterator[bytes]:
        raise KeyboardInterrupt

    monkeypatch.setattr(ImageFiles, "digest", digest)
    monkeypatch.setattr(image_sets, "tqdm", interrupt)
    with pytest.raises(KeyboardInterrupt):
        images.digests()
    assert len(read_files) < 100
