"""One data module per dataset, one per set derived from a run."""

from datamodules.candidates import CandidatesDataModule
from datamodules.cifar import CIFAR10DataModule, CIFAR100DataModule
from datamodules.cinic10 import CINIC10DataModule
from datamodules.digit_images import DigitImagesDataModule
from datamodules.digits import DigitsDataModule
from datamodules.embeddings import EmbeddingsDataModule
from datamodules.food101 import Food101DataModule
from datamodules.image_data import ImageDataModule
from datamodules.image_folder import ImageFolderDataModule
from datamodules.inaturalist import INaturalistDataModule
from datamodules.membership_splits import MembershipSplits
from datamodules.mnist import FashionMNISTDataModule, MNISTDataModule
from datamodules.pretraining import PretrainingDataModule
from datamodules.representatives import RepresentativesDataModule
from datamodules.tiny_imagenet import TinyImageNetDataModule

__all__ = [
    "CIFAR10DataModule",
    "CIFAR100DataModule",
    "CINIC10DataModule",
    "CandidatesDataModule",
    "DigitImagesDataModule",
    "DigitsDataModule",
    "EmbeddingsDataModule",
    "FashionMNISTDataModule",
    "Food101DataModule",
    "INaturalistDataModule",
    "ImageDataModule",
    "ImageFolderDataModule",
    "MNISTDataModule",
    "MembershipSplits",
    "PretrainingDataModule",
    "RepresentativesDataModule",
    "TinyImageNetDataModule",
]
