"""CIFAR-10 and CIFAR-100: 60,000 images of 32 by 32 pixels each (Krizhevsky, 2009)."""

from typing import ClassVar, Literal

import torch

from datamodules.image_data import ImageDataModule
from datamodules.image_sets import ImageArray
from datamodules.listing import downloading, reading


class CIFAR10DataModule(ImageDataModule):
    """50,000 training and 10,000 test images of 10 classes.

    The files are pickles. torchvision unpickles only files with the MD5 sums of the published
    ones, so no other pickle is ever executed. The task ``binary`` is vehicles and animals.
    """

    name = "cifar10"
    layout = "cifar-10-batches-py/{data_batch_1…5,test_batch,batches.meta}"
    reader: ClassVar[Literal["CIFAR10", "CIFAR100"]] = "CIFAR10"

    def read(self, classes: list[str] | None) -> ImageArray:
        """Reads the batches."""
        from torchvision import datasets

        with reading(self.name, self.root, self.layout):
            parts = [getattr(datasets, self.reader)(self.root, train=t) for t in (True, False)]
        return ImageArray.of_parts(
            *((torch.from_numpy(part.data), torch.tensor(part.targets)) for part in parts),
            classes=parts[0].classes,
        )

    def fetch(self) -> None:
        """Downloads 170 MB through torchvision."""
        from torchvision import datasets

        with downloading(self.name, self.root):
            getattr(datasets, self.reader)(self.root, download=True)


class CIFAR100DataModule(CIFAR10DataModule):
    """50,000 training and 10,000 test images of 100 classes; otherwise as CIFAR-10."""

    name = "cifar100"
    layout = "cifar-100-python/{train,test,meta}"
    reader = "CIFAR100"
