"""CINIC-10: CIFAR-10's classes with images of ImageNet added (Darlow et al., 2018)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from artifacts.errors import InputError
from datamodules.image_data import ImageDataModule
from datamodules.image_sets import ImageFiles
from datamodules.listing import download_archive, find_folder, list_images

_URL = "https://datashare.is.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz"
_MD5 = "6ee4d0c996905fe93221de577967a372"


class CINIC10DataModule(ImageDataModule):
    """90,000 images of 32 by 32 pixels in each of training, validation and test set.

    ``root`` has the folders ``train``, ``valid`` and ``test``, or the folder ``CINIC-10`` with
    them. The task ``binary`` is vehicles and animals.

    Args:
        root: Folder of the dataset.
        with_valid: Validation images count as training images.
        with_cifar10: Keep CIFAR-10's images, all of which are in CINIC-10. Without them, a
            classifier trained on CINIC-10 has seen no member of an encoder trained on CIFAR-10.
        kwargs: As :class:`~datamodules.image_data.ImageDataModule`.
    """

    name = "cinic10"
    layout = "{train,valid,test}/CLASS/*.png"

    def __init__(
        self,
        root: str,
        *,
        with_valid: bool = False,
        with_cifar10: bool = True,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(root, **kwargs)
        self.with_valid = with_valid
        self.with_cifar10 = with_cifar10

    def read(self, classes: list[str] | None) -> ImageFiles:
        """Lists the folders."""
        folder = find_folder(self.root, "CINIC-10", "train")
        if not (folder / "train").is_dir():
            raise InputError(
                f"no '{self.name}' at {self.root}, expected {self.layout}; give its folder as "
                "root, or download it (--data.download=true)"
            )
        folders = {"train": False, **({"valid": False} if self.with_valid else {}), "test": True}
        images = list_images(folder, folders, classes)
        return images if self.with_cifar10 else _without_cifar10(images)

    def fetch(self) -> None:
        """Downloads 690 MB."""
        if not find_folder(self.root, "CINIC-10", "train").is_dir():
            download_archive(self.name, self.root, _URL, _MD5, self.root / "CINIC-10")


def _without_cifar10(images: ImageFiles) -> ImageFiles:
    """CIFAR-10's images are named such as ``cifar10-train-123.png``."""
    kept = [
        at
        for at, name in enumerate(images.identifiers)
        if not Path(name).name.startswith("cifar10-")
    ]
    chosen = torch.tensor(kept, dtype=torch.int64)
    assert images.held_out is not None
    return replace(
        images,
        identifiers=[images.identifiers[at] for at in kept],
        targets=images.targets[chosen],
        held_out=images.held_out[chosen],
    )
