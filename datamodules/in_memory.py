"""The base of data modules whose sets fit in memory as tensors."""

from abc import abstractmethod
from collections.abc import Iterator

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, TensorDataset

from artifacts.errors import InputError

Batch = tuple[Tensor, Tensor]


class FullBatchSampler(Sampler[list[int]]):
    """Yields the indices of the whole set once an epoch, as one batch.

    Args:
        size: Number of samples.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[list[int]]:
        yield list(range(self.size))


class InMemoryDataModule(L.LightningDataModule):
    """Training and test set as tensors; training is full-batch.

    Subclasses implement :meth:`load`.

    Attributes:
        image_shape: (channels, height, width) if an input is a flattened image, else None.
    """

    image_shape: tuple[int, int, int] | None = None

    def __init__(self) -> None:
        super().__init__()
        self._sets: tuple[Batch, Batch] | None = None

    @abstractmethod
    def load(self) -> tuple[Batch, Batch]:
        """Returns ``((train inputs (n, D), labels (n,)), (test inputs, labels))``."""

    def setup(self, stage: str) -> None:
        """Loads both sets once."""
        if self._sets is None:
            self._sets = self.load()

    @property
    def train_tensors(self) -> Batch:
        """Training inputs (n, D) and labels (n,)."""
        self.setup("fit")
        assert self._sets is not None
        return self._sets[0]

    @property
    def test_tensors(self) -> Batch:
        """Held-out inputs (N, D) and labels (N,)."""
        self.setup("test")
        assert self._sets is not None
        return self._sets[1]

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """The training set as one batch."""
        return _full_batch_loader(self.train_tensors)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """The held-out set as one batch."""
        return _full_batch_loader(self.test_tensors)

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """The held-out set as one batch."""
        return _full_batch_loader(self.test_tensors)

    def predict_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """The held-out set as one batch."""
        return _full_batch_loader(self.test_tensors)


def _full_batch_loader(tensors: Batch) -> DataLoader[tuple[Tensor, ...]]:
    dataset = TensorDataset(*tensors)
    # The sampler yields an index list, so the dataset indexes the whole batch at once.
    return DataLoader(dataset, sampler=FullBatchSampler(len(dataset)), batch_size=None)


def balanced_sample(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Draws ``size`` samples, equally many of each label (appendix C.2).

    Args:
        labels: Label of every sample (N,).
        size: How many to draw; a multiple of the number of distinct labels.
        generator: Source of randomness.

    Returns:
        Sorted indices (size,).

    Raises:
        InputError: ``size`` cannot be split evenly, or a label has too few samples.
    """
    classes = torch.unique(labels)
    if size < 1 or size % len(classes) != 0:
        raise InputError(
            f"{size} samples cannot be balanced over {len(classes)} labels; "
            f"choose a positive multiple of {len(classes)}"
        )
    per_class = size // len(classes)
    chosen = []
    for label in classes:
        members = torch.nonzero(labels == label).squeeze(1)
        if len(members) < per_class:
            raise InputError(
                f"label {int(label)} has {len(members)} samples, {per_class} are asked for"
            )
        chosen.append(members[torch.randperm(len(members), generator=generator)[:per_class]])
    return torch.cat(chosen).sort().values
