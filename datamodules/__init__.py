"""One data module per dataset, one per set derived from a run."""

from datamodules.candidates import CandidatesDataModule
from datamodules.digits import DigitsDataModule
from datamodules.image_data import ImageDataModule
from datamodules.image_folder import ImageFolderDataModule
from datamodules.representatives import RepresentativesDataModule

__all__ = [
    "CandidatesDataModule",
    "DigitsDataModule",
    "ImageDataModule",
    "ImageFolderDataModule",
    "RepresentativesDataModule",
]
