"""Embedding vectors that wait to be turned into images."""

import lightning as L
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from artifacts.errors import InputError
from artifacts.tensors import REPRESENTATIVES, read_tensors

Item = dict[str, Tensor | int]


class RepresentativesDataModule(L.LightningDataModule):
    """The representatives of a run, best first, in batches or a share of them.

    Task i of k takes ``first=i`` and ``stride=k``: shares of equal difficulty, as representatives
    are sorted. An image does not depend on the batch or share that it is made in.

    Args:
        representatives: A ``representatives.safetensors`` file.
        top: Use only so many of them, the best. By default all.
        first: Index of the first one.
        stride: Take every ``stride``-th.
        batch_size: How many are inverted at once.

    Raises:
        InputError: A number makes no sense.
    """

    def __init__(
        self,
        representatives: str,
        top: int | None = None,
        first: int = 0,
        stride: int = 1,
        batch_size: int = 8,
    ) -> None:
        super().__init__()
        if min(first + 1, stride, batch_size, 1 if top is None else top) < 1:
            raise InputError("top, stride and batch_size must be at least 1, and first at least 0")
        self.representatives = representatives
        self.top = top
        self.first = first
        self.stride = stride
        self.batch_size = batch_size
        self._items: _Items | None = None

    @property
    def total(self) -> int:
        """Number of representatives in all shares together."""
        assert self._items is not None, "setup comes first"
        return self._items.total

    def setup(self, stage: str) -> None:
        """Reads and checks the file.

        Raises:
            InputError: It is missing or broken, or this share of it is empty, or smaller than the
                number of processes.
        """
        tensors, _ = read_tensors(self.representatives, REPRESENTATIVES)
        total = min(len(tensors["score"]), self.top or len(tensors["score"]))
        if self.first >= total:
            raise InputError(
                f"data.first={self.first}, but {self.representatives} has {total} representatives"
            )
        share = range(self.first, total, self.stride)
        world = 1 if self.trainer is None else self.trainer.world_size
        if world > len(share):
            raise InputError(
                f"{len(share)} representatives cannot be shared by {world} processes; lower "
                "trainer.devices"
            )
        self._items = _Items(tensors, share, total)

    def predict_dataloader(self) -> DataLoader[Item]:
        """Batches of ``index`` (B,), ``target`` (B, D), ``label`` (B,) and ``score`` (B,)."""
        assert self._items is not None
        return DataLoader(self._items, batch_size=self.batch_size)


class _Items(Dataset[Item]):
    """Some representatives as items."""

    def __init__(self, tensors: dict[str, Tensor], indices: range, total: int) -> None:
        self.tensors = tensors
        self.indices = indices
        self.total = total

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Item:
        index = self.indices[position]
        return {
            "index": index,
            "target": self.tensors["representatives"][index],
            "label": self.tensors["label"][index],
            "score": self.tensors["score"][index],
        }
