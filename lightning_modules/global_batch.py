"""What a process has of a batch that all processes of a data-parallel run make up together."""

from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor


class Share(NamedTuple):
    """One process's samples of a batch.

    Attributes:
        positions: Place of each sample in the order of the epoch, or of the evaluated set (N,).
        counted: False for those that are repeated so that all processes have equally many (N,).
        total: Samples that count in the whole batch.
        world_size: Number of processes.
    """

    positions: Tensor
    counted: Tensor
    total: int
    world_size: int

    def mean(self, values: Tensor) -> Tensor:
        """This process's term of the batch's mean: averaged over processes it is that mean.

        Args:
            values: One number per sample (N,).
        """
        counted = self.counted.to(values)
        return (values * counted).sum() * (self.world_size / self.total)


def share_of_batch(
    trainer: L.Trainer, batch_idx: int, number: int, dataloader_idx: int = 0
) -> Share:
    """Which samples those of the current step are, as torch's ``DistributedSampler`` deals them.

    Process r of w has the samples r, r + w, … of the epoch's order, ``batch_size`` in a batch; at
    the end of the order some are repeated.

    Args:
        trainer: Whose data module tells its ``batch_size``, that of one process.
        batch_idx: The batch's number in the epoch.
        number: Samples N that this process has of it.
        dataloader_idx: Which loader of an evaluation it is from.
    """
    loaders: Any
    if trainer.training:
        loaders = trainer.train_dataloader
    else:
        loaders = trainer.test_dataloaders if trainer.testing else trainer.val_dataloaders
    loader = loaders[dataloader_idx] if isinstance(loaders, list) else loaders
    world, size = trainer.world_size, len(loader.dataset)
    batch_size: int = trainer.datamodule.batch_size  # type: ignore[attr-defined]
    first = batch_idx * batch_size * world
    positions = first + torch.arange(number) * world + trainer.global_rank
    total = min(number * world, size - first)
    return Share(positions, positions < size, total, world)
