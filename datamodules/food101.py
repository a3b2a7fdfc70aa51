"""Food-101: 101,000 photographs of 101 dishes (Bossard et al., 2014)."""

from pathlib import Path

import torch

from artifacts.errors import InputError
from datamodules.image_data import ImageDataModule
from datamodules.image_sets import ImageFiles
from datamodules.listing import downloading, find_folder, reading


class Food101DataModule(ImageDataModule):
    """750 training and 250 test images a dish.

    The tasks ``binary`` and ``multiclass`` are those of appendix C.2. ``root`` has the folder
    ``food-101`` or is it.
    """

    name = "food101"
    layout = "food-101/{images,meta}"

    def read(self, classes: list[str] | None) -> ImageFiles:
        """Reads ``meta/train.json`` and ``meta/test.json``."""
        from torchvision.datasets import Food101

        folder = find_folder(self.root, "food-101", "meta").absolute()
        if (folder / "meta").exists() and folder.name != "food-101":
            raise InputError(
                f"{folder} has to be called food-101, as it is when unpacked: rename it, or give "
                "as root a folder with a link of that name to it"
            )
        identifiers, targets, held_out, names = [], [], [], []
        with reading(self.name, self.root, self.layout):
            for split in ("train", "test"):
                # Without decoding, the set is a list of file names.
                listed = Food101(folder.parent, split=split, loader=Path)
                names = listed.classes
                wanted = {listed.class_to_idx.get(name) for name in classes or names}
                for file, target in (listed[index] for index in range(len(listed))):
                    if target in wanted:
                        identifiers.append(file.relative_to(folder).as_posix())
                        targets.append(target)
                        held_out.append(split == "test")
        self._require_files(folder, identifiers)
        return ImageFiles(
            identifiers=identifiers,
            targets=torch.tensor(targets, dtype=torch.int64),
            classes=names,
            held_out=torch.tensor(held_out, dtype=torch.bool),
            root=folder,
        )

    def _require_files(self, folder: Path, identifiers: list[str]) -> None:
        there = {
            file.relative_to(folder).as_posix()
            for dish in {(folder / name).parent for name in identifiers}
            for file in dish.glob("*.jpg")
        }
        missing = [name for name in identifiers if name not in there]
        if missing:
            raise InputError(
                f"{folder} lacks {len(missing)} of the images that meta/*.json name, such as "
                f"{missing[0]}; unpack food-101.tar.gz once more"
            )

    def fetch(self) -> None:
        """Downloads 5 GB through torchvision."""
        from torchvision.datasets import Food101

        with downloading(self.name, self.root):
            Food101(self.root, download=True)
