"""Batches of 8-bit images whose order depends on nothing but seed and epoch, from any batch on."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from datamodules.image_sets import ImageSet

PixelBatch = tuple[Tensor, Tensor]


class PixelBatches(Dataset[PixelBatch]):
    """Whole batches of images, from memory or decoded when asked for.

    Args:
        images: The images.
        pixels: The same, decoded (n, C, S, S) in uint8, on any device; None to decode them anew
            each time.
    """

    def __init__(self, images: ImageSet, pixels: Tensor | None = None) -> None:
        self.images = images
        self.pixels = pixels
        self.labels = images.labels if pixels is None else images.labels.to(pixels.device)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, indices: list[int]) -> PixelBatch:
        """Images (B, C, S, S), uint8, and labels (B,) at ``indices``."""
        chosen = torch.tensor(indices)
        if self.pixels is None:
            pixels = torch.stack([self.images.pixels(index) for index in indices])
            return pixels, self.labels[chosen]
        chosen = chosen.to(self.pixels.device)
        return self.pixels[chosen], self.labels[chosen]


class EpochBatches(DistributedSampler[Any]):
    """Indices of this rank's batches; with ``shuffle`` a permutation of (seed, epoch).

    Args:
        data: What is sampled.
        batch_size: Images in a batch, of one rank.
        shuffle: Whether each epoch has an order of its own.
        seed: Chooses the orders.
        drop_last: Leave out an incomplete last batch, unless it is the only one.
        world_size: Number of ranks.
        rank: This one.

    Attributes:
        first: The batch that the next epoch starts with.
    """

    def __init__(
        self,
        data: PixelBatches,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        world_size: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(data, num_replicas=world_size, rank=rank, shuffle=shuffle, seed=seed)
        self.batch_size = batch_size
        self.first = 0
        whole, rest = divmod(self.num_samples, batch_size)
        self.length = whole + (rest > 0 and (whole == 0 or not drop_last))

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[list[int]]:
        # A generator: Lightning makes the iterator before it tells the epoch.
        indices = list(super().__iter__())
        for batch in range(self.first, self.length):
            yield indices[batch * self.batch_size : (batch + 1) * self.batch_size]


class ResumableLoader(DataLoader[PixelBatch]):
    """A loader whose position in the epoch is part of a checkpoint.

    Args:
        data: The images.
        sampler: Their order.
        num_workers: Processes that decode; 0 where they are in memory.
    """

    def __init__(self, data: PixelBatches, sampler: EpochBatches, num_workers: int = 0) -> None:
        num_workers = 0 if data.pixels is not None else num_workers
        super().__init__(
            data,
            sampler=sampler,
            batch_size=None,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=data.pixels is None and torch.cuda.is_available(),
        )
        self._batches = sampler
        self._first = 0
        self._position = 0

    def __iter__(self) -> Iterator[PixelBatch]:  # type: ignore[override]
        self._batches.first = self._position = self._first
        self._first = 0
        for batch in super().__iter__():
            self._position += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """How many batches of the epoch have been given."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next epoch starts behind those batches; after a whole epoch, with the first."""
        self._first = state["position"] % len(self._batches)
