"""TinyImageNet: 64 by 64 pixel images of 200 ImageNet classes (Le and Yang, 2015)."""

import torch

from artifacts.errors import InputError
from datamodules.image_data import ImageDataModule
from datamodules.image_sets import ImageFiles
from datamodules.listing import download_archive, find_folder, list_images

_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"


class TinyImageNetDataModule(ImageDataModule):
    """500 training and 50 validation images a class; the test images have no published labels.

    Classes are WordNet identifiers in sorted order; ``num_classes: 100`` takes the first 100.
    ``root`` has the folder ``tiny-imagenet-200`` or is it.
    """

    name = "tiny_imagenet"
    layout = (
        "tiny-imagenet-200/{train/WNID/images/*.JPEG,val/images/*.JPEG,val/val_annotations.txt}"
    )

    def read(self, classes: list[str] | None) -> ImageFiles:
        """Lists the training folders and reads ``val/val_annotations.txt``."""
        folder = find_folder(self.root, "tiny-imagenet-200", "train")
        if not (folder / "train").is_dir():
            raise InputError(
                f"no '{self.name}' at {self.root}, expected {self.layout}; give its folder as "
                "root, or download it (--data.download=true)"
            )
        annotations = folder / "val" / "val_annotations.txt"
        if not annotations.is_file():
            # As many people sort the validation images: one folder a class.
            return list_images(folder, {"train": False, "val": True}, classes)
        train = list_images(folder, {"train": False}, classes)
        wanted = set(train.classes if classes is None else classes)
        index = {name: at for at, name in enumerate(train.classes)}
        there = {path.name for path in (folder / "val" / "images").glob("*")}
        identifiers, targets = [], []
        try:
            lines = annotations.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{annotations} is no text ({error}); unpack tiny-imagenet-200.zip once more"
            ) from error
        for number, line in enumerate(lines, 1):
            fields = line.split("\t")
            if len(fields) < 2 or fields[0] not in there or fields[1] not in index:
                raise InputError(
                    f"{annotations}, line {number}: expected the name of an image in val/images "
                    f"and a class of train, got '{line[:80]}'"
                )
            if fields[1] in wanted:
                identifiers.append(f"val/images/{fields[0]}")
                targets.append(index[fields[1]])
        held_out = torch.zeros(len(train) + len(identifiers), dtype=torch.bool)
        held_out[len(train) :] = True
        return ImageFiles(
            identifiers=[*train.identifiers, *identifiers],
            targets=torch.cat([train.targets, torch.tensor(targets, dtype=torch.int64)]),
            classes=train.classes,
            held_out=held_out,
            root=folder,
        )

    def fetch(self) -> None:
        """Downloads 240 MB."""
        if not find_folder(self.root, "tiny-imagenet-200", "train").is_dir():
            download_archive(self.name, self.root, _URL, _MD5, self.root)
