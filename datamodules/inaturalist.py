"""iNaturalist 2021: photographs of 10,000 species (Van Horn et al.)."""

from typing import Any, Literal

from artifacts.errors import InputError
from datamodules.image_data import ImageDataModule
from datamodules.image_sets import ImageFiles
from datamodules.listing import downloading, list_images


class INaturalistDataModule(ImageDataModule):
    """One folder a species; the official validation images are held out.

    The tasks ``binary`` (fauna and flora) and ``multiclass`` are those of appendix C.3. Only the
    folders of a task's species need to be there. Without validation images, ``test_fraction`` of
    each label is held out.

    Args:
        root: Folder of the dataset.
        version: ``train_mini`` has 50 images a species (42 GB), ``train`` up to 300 (224 GB).
        kwargs: As :class:`~datamodules.image_data.ImageDataModule`.
    """

    name = "inaturalist"
    layout = "2021_{train,train_mini,valid}/SPECIES/*.jpg, or {train,train_mini,val}/SPECIES/*.jpg"

    def __init__(
        self,
        root: str,
        *,
        version: Literal["train", "train_mini"] = "train",
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(root, **kwargs)
        if version not in ("train", "train_mini"):
            raise InputError(f"version must be 'train' or 'train_mini', got '{version}'")
        self.version = version

    def read(self, classes: list[str] | None) -> ImageFiles:
        """Lists the folders of the species."""
        folders = {}
        for names, is_held_out in (
            ((f"2021_{self.version}", self.version), False),
            (("2021_valid", "val"), True),
        ):
            found = [name for name in names if (self.root / name).is_dir()]
            if found:
                folders[found[0]] = is_held_out
        if False not in folders.values():
            raise InputError(
                f"no '{self.name}' version '{self.version}' at {self.root}, expected "
                f"{self.layout}; give its folder as root, or download it (--data.download=true)"
            )
        return list_images(self.root, folders, classes)

    def fetch(self) -> None:
        """Downloads through torchvision."""
        from torchvision.datasets import INaturalist

        with downloading(self.name, self.root):
            for version in (f"2021_{self.version}", "2021_valid"):
                INaturalist(self.root, version=version, download=True)
