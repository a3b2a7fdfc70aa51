"""MNIST and Fashion-MNIST: 70,000 grey images of 28 by 28 pixels each, as IDX files."""

import gzip
import math
import zlib
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from artifacts.errors import InputError
from datamodules.image_data import ImageDataModule
from datamodules.image_sets import ImageArray
from datamodules.listing import downloading

_FILES = {"train": "train", "test": "t10k"}
# More than any file of the kind has: a broken header must not fill the memory.
_MAX_BYTES = 2**30


class MNISTDataModule(ImageDataModule):
    """Handwritten digits (LeCun et al., 1998): 60,000 training and 10,000 test images.

    The task ``parity`` is even and odd digits.
    """

    name = "mnist"
    layout = "{train,t10k}-{images-idx3,labels-idx1}-ubyte, each also as .gz"
    reader: ClassVar[Literal["MNIST", "FashionMNIST"]] = "MNIST"
    classes: ClassVar[list[str]] = [str(digit) for digit in range(10)]

    def read(self, classes: list[str] | None) -> ImageArray:
        """Reads the four files."""
        folder = self._folder()
        if folder is None:
            raise InputError(
                f"no '{self.name}' at {self.root}, expected {self.layout}; give its folder as "
                "root, or download it (--data.download=true)"
            )
        parts = []
        for prefix in _FILES.values():
            images = read_idx(_file(folder, f"{prefix}-images-idx3-ubyte"), dimensions=3)
            labels = read_idx(_file(folder, f"{prefix}-labels-idx1-ubyte"), dimensions=1)
            if len(images) != len(labels):
                raise InputError(
                    f"{folder} has {len(images)} {prefix} images and {len(labels)} labels"
                )
            if len(labels) and int(labels.max()) >= len(self.classes):
                raise InputError(f"{folder} has the {prefix} label {int(labels.max())}")
            parts.append((images, labels.long()))
        train, test = (images.shape[1:] for images, _ in parts)
        if train != test:
            raise InputError(
                f"{folder} has train images of {train[0]} by {train[1]} pixels and t10k images of "
                f"{test[0]} by {test[1]}: they are of two datasets; get them again"
            )
        return ImageArray.of_parts(*parts, classes=self.classes)

    def _folder(self) -> Path | None:
        for folder in (self.root, self.root / self.reader / "raw", self.root / "raw"):
            if any(folder.glob("train-images-idx3-ubyte*")):
                return folder
        return None

    def fetch(self) -> None:
        """Downloads up to 30 MB through torchvision, which knows one of the layouts only."""
        from torchvision import datasets

        if self._folder() is not None:
            return
        with downloading(self.name, self.root):
            getattr(datasets, self.reader)(self.root, download=True)


class FashionMNISTDataModule(MNISTDataModule):
    """Articles of clothing (Xiao et al., 2017); otherwise as MNIST.

    Debian's package ``dataset-fashion-mnist`` installs the files to
    ``/usr/share/datasets/fashion-mnist``.
    """

    name = "fashion_mnist"
    reader = "FashionMNIST"
    classes: ClassVar[list[str]] = [
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ]


def _file(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise InputError(f"{folder} lacks {name} or {name}.gz")


def read_idx(path: Path, *, dimensions: int) -> Tensor:
    """Reads an IDX file of bytes, gzipped or not.

    Args:
        path: The file; gzipped if its name ends in ``.gz``.
        dimensions: How many its array must have.

    Returns:
        The array, uint8.

    Raises:
        InputError: It is no such file, or shorter or longer than its header says.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * dimensions)
            # Two zero bytes, 8 for unsigned bytes, the number of dimensions; then big-endian sizes.
            if len(header) < 4 + 4 * dimensions or header[:4] != bytes([0, 0, 8, dimensions]):
                raise InputError(f"{path} is not an IDX file of bytes in {dimensions} dimensions")
            shape = [int.from_bytes(header[at : at + 4], "big") for at in range(4, len(header), 4)]
            size = math.prod(shape)
            if size > _MAX_BYTES:
                raise InputError(f"{path} says that it holds {size} bytes, more than any such file")
            content = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {error}; get it again") from error
    if len(content) != size or size == 0:
        raise InputError(
            f"{path} is damaged: {len(content)} bytes or more where its header says {size}; "
            "get it again"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(shape)
