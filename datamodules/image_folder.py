"""Any folder of images, one subfolder a class."""

from pathlib import Path
from typing import ClassVar

import torch

from artifacts.errors import InputError
from datamodules.image_data import ImageDataModule
from datamodules.image_files import EXTENSIONS
from datamodules.image_sets import ImageFiles


class ImageFolderDataModule(ImageDataModule):
    """``root/{train,test}/CLASS/*.jpg``, or ``root/CLASS/*.jpg``.

    ``val`` or ``valid`` do for ``test``. Without such a folder, ``test_fraction`` of each label is
    held out by ``seed``.
    """

    name = "image_folder"
    layout: ClassVar[str] = "{train,test}/CLASS/*.jpg or CLASS/*.jpg (also .png, .webp, …)"

    def read(self, classes: list[str] | None) -> ImageFiles:
        """Lists the folders."""
        train = self.root / "train"
        if not train.is_dir():
            return list_images(self.root, {"": False}, classes)
        for name in ("test", "val", "valid"):
            if (self.root / name).is_dir():
                return list_images(self.root, {"train": False, name: True}, classes)
        return list_images(self.root, {"train": False}, classes)


def list_images(
    root: Path, folders: dict[str, bool], classes: list[str] | None = None
) -> ImageFiles:
    """Lists folders that have one subfolder a class.

    Args:
        root: What file names are relative to.
        folders: By folder below ``root``, whether its images are held out.
        classes: Only images of these are listed; None for all.

    Returns:
        Images in sorted order; every class's name, in sorted order.

    Raises:
        InputError: A folder is missing, or cannot be listed.
    """
    from torchvision.datasets.folder import make_dataset

    try:
        names = sorted(
            {
                entry.name
                for folder in folders
                for entry in (root / folder).iterdir()
                if entry.is_dir() and not entry.name.startswith(".")
            }
        )
        index = {name: at for at, name in enumerate(names)}
        wanted = index if classes is None else {n: index[n] for n in classes if n in index}
        identifiers, targets, held_out = [], [], []
        for folder, is_held_out in folders.items():
            if not wanted:
                continue
            for file, target in make_dataset(
                str(root / folder), wanted, extensions=EXTENSIONS, allow_empty=True
            ):
                # Such as macOS's ._IMG_0001.jpg, which is no image.
                if not Path(file).name.startswith("."):
                    identifiers.append(Path(file).relative_to(root).as_posix())
                    targets.append(target)
                    held_out.append(is_held_out)
    except OSError as error:
        raise InputError(f"cannot list the images at {error.filename}: {error.strerror}") from error
    return ImageFiles(
        identifiers=identifiers,
        targets=torch.tensor(targets, dtype=torch.int64),
        classes=names,
        held_out=torch.tensor(held_out, dtype=torch.bool) if any(folders.values()) else None,
        root=root,
    )
