"""One data module per dataset, one per set derived from a run."""

from datamodules.candidates import CandidatesDataModule
from datamodules.digits import DigitsDataModule

__all__ = ["CandidatesDataModule", "DigitsDataModule"]
