"""Images of a dataset, decoded when asked for: whole collections, and the sets drawn from them."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from datamodules.image_files import MAX_PIXELS, read_image, require_pixels

if TYPE_CHECKING:
    from PIL import Image

# Seconds before progress is shown.
_PATIENCE = 3.0

T = TypeVar("T")


@dataclass(frozen=True)
class ImageCollection(ABC):
    """Every image that a dataset has, at its own size.

    Attributes:
        identifiers: One for each image: its file name relative to the root, or such as ``test/7``.
        targets: Index of each image's class (N,), int64.
        classes: Names of the classes.
        held_out: Whether the dataset's authors put an image into the test set (N,); None if they
            made no test set.
    """

    identifiers: Sequence[str]
    targets: Tensor
    classes: Sequence[str]
    held_out: Tensor | None

    def __len__(self) -> int:
        return len(self.identifiers)

    @abstractmethod
    def picture(self, index: int, mode: str, max_pixels: int) -> "Image.Image":
        """The image at ``index``, decoded.

        Raises:
            InputError: It cannot be decoded, or has more than ``max_pixels``.
        """

    @abstractmethod
    def digest(self, index: int) -> bytes:
        """SHA-256 of the stored content of the image at ``index``."""


@dataclass(frozen=True)
class ImageFiles(ImageCollection):
    """Images in files below ``root``."""

    root: Path

    def picture(self, index: int, mode: str, max_pixels: int) -> "Image.Image":
        """Reads and decodes the file."""
        return read_image(self.root / self.identifiers[index], mode=mode, max_pixels=max_pixels)

    def digest(self, index: int) -> bytes:
        """SHA-256 of the file's bytes."""
        with (self.root / self.identifiers[index]).open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()


@dataclass(frozen=True)
class ImageArray(ImageCollection):
    """Small images of one size in memory.

    Attributes:
        pixels: Grey (N, H, W) or coloured (N, H, W, 3), uint8.
    """

    pixels: Tensor

    @classmethod
    def of_parts(
        cls, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], *, classes: Sequence[str]
    ) -> "ImageArray":
        """Joins training and test images.

        Args:
            train: Pixels (N, H, W) or (N, H, W, 3), and index of each class (N,).
            test: The same of the test set.
            classes: Names of the classes.
        """
        parts = {"train": train, "test": test}
        names = [f"{part}/{at}" for part, (_, of) in parts.items() for at in range(len(of))]
        held_out = torch.arange(len(names)) >= len(train[1])
        targets = torch.cat([train[1], test[1]])
        return cls(names, targets, classes, held_out, torch.cat([train[0], test[0]]))

    def picture(self, index: int, mode: str, max_pixels: int) -> "Image.Image":
        """The image at ``index``."""
        from PIL import Image

        return Image.fromarray(self.pixels[index].numpy()).convert(mode)

    def digest(self, index: int) -> bytes:
        """SHA-256 of the pixels."""
        return hashlib.sha256(self.pixels[index].numpy().tobytes()).digest()


class ImageSet(Dataset[tuple[Tensor, Tensor]]):
    """Images of a collection with labels, resized and cropped.

    The shorter side is resized to ``image_size`` (bicubic with antialiasing), then the centre is
    cropped (appendix B.1), in 8 bits as Pillow does.

    Args:
        collection: Where the images come from.
        indices: Which ones, and in which order (n,).
        labels: One for each of them (n,), int64.
        image_size: Side S of the square that is left.
        in_chans: 3 (RGB) or 1 (grey).
        max_pixels: Limit of an image's size, as stored and as resized.
    """

    def __init__(
        self,
        collection: ImageCollection,
        indices: Tensor,
        labels: Tensor,
        *,
        image_size: int,
        in_chans: int = 3,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.collection = collection
        self.indices = indices
        self.labels = labels
        self.image_size = image_size
        self.in_chans = in_chans
        self.max_pixels = max_pixels

    @cached_property
    def identifiers(self) -> list[str]:
        """Name of each image: its file relative to the root, or such as ``test/7``."""
        return [self.collection.identifiers[index] for index in self.indices.tolist()]

    def __len__(self) -> int:
        return len(self.indices)

    def pixels(self, index: int) -> Tensor:
        """One image (C, S, S), uint8.

        Raises:
            InputError: It cannot be decoded.
        """
        from torchvision.transforms.functional import pil_to_tensor

        name = int(self.indices[index])
        stored = self._stored()
        if stored is not None:
            return stored[name].contiguous()
        mode = "RGB" if self.in_chans == 3 else "L"
        picture = self.collection.picture(name, mode, self.max_pixels)
        pixels: Tensor = pil_to_tensor(self._cropped(picture, self.collection.identifiers[name]))
        return pixels

    def _stored(self) -> Tensor | None:
        """All images of the collection (N, C, S, S), if they lie in memory as they are needed."""
        if not isinstance(self.collection, ImageArray):
            return None
        pixels = self.collection.pixels
        if pixels.shape[1:3] != (self.image_size, self.image_size):
            return None
        if pixels.dim() == 3:
            return pixels.unsqueeze(1).expand(-1, self.in_chans, -1, -1)
        return pixels.permute(0, 3, 1, 2) if self.in_chans == 3 else None

    def _cropped(self, picture: "Image.Image", name: str) -> "Image.Image":
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.functional import center_crop, resize

        size = self.image_size
        if picture.size == (size, size):
            return picture
        # A strip of one pixel's height would grow to gigabytes.
        width, height = picture.size
        scale = size / min(width, height)
        require_pixels(name, (round(width * scale), round(height * scale)), self.max_pixels)
        resized = resize(picture, [size], InterpolationMode.BICUBIC)
        cropped: Image.Image = center_crop(resized, [size, size])
        return cropped

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Image (C, S, S), float32 in [0, 1], and its label."""
        return self.pixels(index).float() / 255, self.labels[index]

    def all_pixels(self, *, quiet: bool = False) -> Tensor:
        """Every image (n, C, S, S), uint8, decoded once: for sets that fit in memory.

        Args:
            quiet: Show no progress.
        """
        stored = self._stored()
        if stored is not None:
            return stored[self.indices].contiguous()
        shape = (len(self), self.in_chans, self.image_size, self.image_size)
        # Decoding threads do not share the inference mode of a test.
        with torch.inference_mode(False):
            images = torch.empty(shape, dtype=torch.uint8)

        def decode(index: int) -> None:
            images[index] = self.pixels(index)

        for _ in _in_threads(decode, range(len(self)), "decoding images", quiet=quiet):
            pass
        return images

    def digests(self, *, quiet: bool = False) -> list[bytes]:
        """SHA-256 of the stored content of each image.

        Args:
            quiet: Show no progress.
        """
        if isinstance(self.collection, ImageArray):
            return [self.collection.digest(index) for index in self.indices.tolist()]
        # Most of the time is waiting for the disk.
        digest, indices = self.collection.digest, self.indices.tolist()
        return list(_in_threads(digest, indices, "reading images", quiet=quiet, threads=8))

    def stored_sizes(self) -> list[tuple[int, int]]:
        """Width and height of each image before it is resized."""
        mode = "RGB" if self.in_chans == 3 else "L"

        def size(index: int) -> tuple[int, int]:
            return self.collection.picture(index, mode, self.max_pixels).size

        return list(_in_threads(size, self.indices.tolist(), "measuring images"))

    def subset(self, indices: Iterable[int] | Tensor) -> "ImageSet":
        """The images at ``indices`` of this set, in that order."""
        chosen = torch.as_tensor(
            indices if isinstance(indices, Tensor) else list(indices), dtype=torch.int64
        )
        return ImageSet(
            self.collection,
            self.indices[chosen],
            self.labels[chosen],
            image_size=self.image_size,
            in_chans=self.in_chans,
            max_pixels=self.max_pixels,
        )


def _in_threads(
    function: Callable[[int], T],
    indices: Sequence[int],
    title: str,
    *,
    quiet: bool = False,
    threads: int | None = None,
) -> Iterator[T]:
    """The function's results in order; decoders and hashing let other threads run.

    Whoever waits longer than a few seconds sees how far it is. An interruption ends it once the
    images that are being worked on are done.
    """
    quiet = quiet or getattr(rank_zero_only, "rank", 0) != 0
    with ThreadPoolExecutor(threads) as pool:
        try:
            results = pool.map(function, indices)
            yield from tqdm(
                results, title, len(indices), unit="image", delay=_PATIENCE, disable=quiet
            )
        finally:
            pool.shutdown(cancel_futures=True)
