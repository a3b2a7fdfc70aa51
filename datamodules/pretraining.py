"""Images to pre-train an encoder on, beside held-out ones that show what it memorises."""

import logging
from collections.abc import Callable
from typing import Literal

import lightning as L
import torch
from torch import Tensor

from artifacts.errors import InputError, require_seed
from datamodules.image_data import ImageDataModule
from datamodules.image_sets import ImageSet
from datamodules.pixel_batches import EpochBatches, PixelBatches, ResumableLoader

_GIBIBYTE = 2**30
_log = logging.getLogger(__name__)

MEMBERSHIP = ("members", "non-members")


class PretrainingDataModule(L.LightningDataModule):
    """Batches of 8-bit images (B, C, S, S) with labels, in an order that a resumed run continues.

    Images are resized to the model's size, augmented and normalised on the device, by the model's
    training. Where they fit in memory at the size that ``images`` gives, they are decoded once and
    moved to the device once; otherwise workers decode them batch by batch.

    Args:
        images: The dataset: its training set is what the encoder is trained on (members), its test
            set what validation compares them with (non-members).
        batch_size: Images in a batch, on each device.
        num_val: How many members and as many non-members validation compares; None for all.
        in_memory: ``"auto"`` holds the images in memory if they take at most ``memory_limit``.
        memory_limit: In GiB.
        drop_last: Leave out a last batch that all devices together cannot fill, as the reference
            does.
        seed: Chooses the order of training images and those of validation.

    Raises:
        InputError: A number is out of range.
    """

    def __init__(
        self,
        images: ImageDataModule,
        batch_size: int = 64,
        num_val: int | None = 1000,
        in_memory: Literal["auto", "always", "never"] = "auto",
        memory_limit: float = 4.0,
        drop_last: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 1 or (num_val is not None and num_val < 1):
            raise InputError(
                f"batch_size and num_val must be at least 1, got {batch_size} and {num_val}"
            )
        if not memory_limit >= 0:  # NaN, too
            raise InputError(f"memory_limit must not be negative, got {memory_limit}")
        require_seed(seed)
        self.images = images
        self.batch_size = batch_size
        self.num_val = num_val
        self.in_memory = in_memory
        self.memory_limit = memory_limit
        self.drop_last = drop_last
        self.seed = seed
        self._sets: dict[str, ImageSet] = {}
        self._pixels: dict[str, Tensor] = {}

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, S, S) of an image as it is stored."""
        return (self.images.in_chans, self.images.image_size, self.images.image_size)

    def prepare_data(self) -> None:
        """Downloads the dataset if that was asked for."""
        self.images.prepare_data()

    def setup(self, stage: str = "fit") -> None:
        """Chooses the images; the split is written into the run directory.

        Raises:
            InputError: Files are missing, or there is nothing to train on or to compare with.
        """
        self.images.trainer = self.trainer
        self.images.setup(stage)
        self._sets = {"members": self.images.train_set, "non-members": self.images.test_set}
        for part, images in self._sets.items():
            if len(images) == 0:
                raise InputError(f"'{self.images.name}' leaves no {part}")
        for part in MEMBERSHIP:
            self._sets[f"sampled {part}"] = self._sample(self._sets[part])

    @property
    def trained_on(self) -> tuple[str, str]:
        """What ``fit`` trains on: the part of a membership split and its digest, here none."""
        return "", ""

    def first_images(self, number: int) -> list[Tensor]:
        """The first members and the first non-members, each (number, C, S, S) in uint8."""
        return [
            torch.stack([images.pixels(at) for at in range(min(number, len(images)))])
            for images in (self._sets[part] for part in MEMBERSHIP)
        ]

    def train_dataloader(self) -> ResumableLoader:
        """Training images, in another order each epoch."""
        loop = None if self.trainer is None else self.trainer.fit_loop.epoch_loop
        return self._loader(
            "members",
            shuffle=True,
            drop_last=self.drop_last,
            progress=lambda: 0 if loop is None else loop.batch_progress.current.ready,
        )

    def val_dataloader(self) -> list[ResumableLoader]:
        """Members, then non-members, ``num_val`` of each."""
        return [self._loader(f"sampled {part}") for part in MEMBERSHIP]

    def test_dataloader(self) -> list[ResumableLoader]:
        """All members, then all non-members."""
        return [self._loader(part) for part in MEMBERSHIP]

    def _sample(self, images: ImageSet) -> ImageSet:
        if self.num_val is None or self.num_val >= len(images):
            return images
        generator = torch.Generator().manual_seed(self.seed)
        chosen = torch.randperm(len(images), generator=generator)[: self.num_val]
        return images.subset(chosen.sort().values)

    def _loader(
        self,
        part: str,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        progress: Callable[[], int] = lambda: 0,
    ) -> ResumableLoader:
        data = PixelBatches(self._sets[part], self._in_memory(part))
        trainer = self.trainer
        sampler = EpochBatches(
            data,
            self.batch_size,
            shuffle=shuffle,
            seed=self.seed,
            drop_last=drop_last,
            world_size=1 if trainer is None else trainer.world_size,
            rank=0 if trainer is None else trainer.global_rank,
        )
        return ResumableLoader(data, sampler, self.images.num_workers, progress)

    def _in_memory(self, part: str) -> Tensor | None:
        """The images on the device, decoded once, or None if they take too much memory."""
        images = self._sets[part]
        channels, side, _ = self.image_shape
        size = len(images) * channels * side**2 / _GIBIBYTE
        if self.in_memory == "never" or (self.in_memory == "auto" and size > self.memory_limit):
            return None
        if part not in self._pixels:
            device = "cpu" if self.trainer is None else self.trainer.strategy.root_device
            _log.info("decoding %d %s, %.2f GiB, onto %s", len(images), part, size, device)
            # Validation asks for them in inference mode, training then uses the same.
            quiet = self.trainer is not None and self.trainer.progress_bar_callback is None
            with torch.inference_mode(False):
                self._pixels[part] = images.all_pixels(quiet=quiet).to(device)
        return self._pixels[part]
