"""Any folder of images, one subfolder a class."""

from typing import Any

from artifacts.errors import InputError
from datamodules.image_data import ImageDataModule
from datamodules.image_sets import ImageFiles
from datamodules.listing import list_images, tell_left_out


class ImageFolderDataModule(ImageDataModule):
    """``root/{train,test}/CLASS/*.jpg``, or ``root/CLASS/*.jpg``.

    ``val`` or ``valid`` do for ``test``. Without such a folder, ``test_fraction`` of each label is
    held out by ``seed``. Without folders of classes all images have the label 0. Files that are
    not taken, as images beside the folders of classes, are counted in a warning.

    Args:
        root: Folder of the dataset.
        name: What a split calls this dataset.
        kwargs: As :class:`~datamodules.image_data.ImageDataModule`.
    """

    layout = "{train,test}/CLASS/*.jpg or CLASS/*.jpg (also .png, .webp, …)"

    def __init__(self, root: str, *, name: str = "image_folder", **kwargs: Any) -> None:  # noqa: ANN401
        if not root.strip():
            raise InputError("root is blank; give the folder of the images")
        super().__init__(root, **kwargs)
        self.name = name

    def read(self, classes: list[str] | None) -> ImageFiles:
        """Lists the folders."""
        folders = {"": False}
        if (self.root / "train").is_dir():
            held_out = [n for n in ("test", "val", "valid") if (self.root / n).is_dir()]
            folders = {"train": False} | dict.fromkeys(held_out[:1], True)
        images = list_images(self.root, folders, classes)
        tell_left_out(images, list(folders), classes)
        return images
