"""Any folder of images, one subfolder a class."""

from typing import Any

from datamodules.image_data import ImageDataModule
from datamodules.image_sets import ImageFiles
from datamodules.listing import list_images


class ImageFolderDataModule(ImageDataModule):
    """``root/{train,test}/CLASS/*.jpg``, or ``root/CLASS/*.jpg``.

    ``val`` or ``valid`` do for ``test``. Without such a folder, ``test_fraction`` of each label is
    held out by ``seed``. Images that are in no class's folder have the label 0.

    Args:
        root: Folder of the dataset.
        name: What a split calls this dataset.
        kwargs: As :class:`~datamodules.image_data.ImageDataModule`.
    """

    layout = "{train,test}/CLASS/*.jpg or CLASS/*.jpg (also .png, .webp, …)"

    def __init__(self, root: str, *, name: str = "image_folder", **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(root, **kwargs)
        self.name = name

    def read(self, classes: list[str] | None) -> ImageFiles:
        """Lists the folders."""
        if not (self.root / "train").is_dir():
            return list_images(self.root, {"": False}, classes)
        for name in ("test", "val", "valid"):
            if (self.root / name).is_dir():
                return list_images(self.root, {"train": False, name: True}, classes)
        return list_images(self.root, {"train": False}, classes)
