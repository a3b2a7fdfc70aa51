"""Batches of 8-bit images whose order depends on nothing but seed and epoch, from any batch on."""

from collections.abc import Callable, Iterator
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
        drop_last: Leave out a last batch that is incomplete over all ranks, unless it is the only
            one.
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
        # By what all ranks take together, so that the length does not depend on how many they are.
        whole, rest = divmod(len(data), batch_size * world_size)
        self.length = whole + (rest > 0 and (whole == 0 or not drop_last))

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[list[int]]:
        # A generator: Lightning makes the iterator before it tells the epoch.
        indices = list(super().__iter__())
        for batch in range(self.first, self.length):
            yield indices[batch * self.batch_size : (batch + 1) * self.batch_size]


class ResumableLoader(DataLoader[PixelBatch]):
    """A loader whose epoch starts where the trainer's progress says.

    That progress is part of every checkpoint. Lightning also offers loaders to keep a state of
    their own, but loads it only into loaders made after the checkpoint was read, which a schedule
    that asks for the number of steps prevents.

    Args:
        data: The images.
        sampler: Their order.
        num_workers: Processes that decode; 0 where they are in memory.
        progress: How many batches of the epoch are done when an epoch, or the rest of it, starts.
    """

    def __init__(
        self,
        data: PixelBatches,
        sampler: EpochBatches,
        num_workers: int = 0,
        progress: Callable[[], int] = lambda: 0,
    ) -> None:
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
        self._progress = progress

    def __iter__(self) -> Iterator[PixelBatch]:  # type: ignore[override]
        # A generator: this runs when the first batch is asked for.
        self._batches.first = self._progress()
        yield from super().__iter__()

    def state_dict(self) -> dict[str, int]:
        """Nothing; that it exists tells Lightning that epochs can be continued."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing to load."""
