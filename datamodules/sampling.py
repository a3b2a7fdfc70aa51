"""Random samples that a seed repeats."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from artifacts.errors import InputError, require_seed
from datamodules.in_memory import balanced_sample


@dataclass(frozen=True)
class Drawing:
    """How training and test images are chosen.

    Attributes:
        num_train: Number of training images; None for all.
        num_test: Number of test images; None for all.
        balanced: Equally many images of each label.
        test_from: ``"test"`` holds out the dataset's own test images, ``"train"`` the training
            images that were not drawn.
        test_fraction: Share of each label that is held out where there is no test set.
        seed: Chooses them.

    Raises:
        InputError: ``test_fraction``, ``test_from`` or ``seed`` is out of range.
    """

    num_train: int | None = None
    num_test: int | None = None
    balanced: bool = True
    test_from: Literal["test", "train"] = "test"
    test_fraction: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            raise InputError(f"test_fraction must be in [0, 1), got {self.test_fraction}")
        if self.test_from not in ("test", "train"):
            raise InputError(f"test_from must be 'test' or 'train', got '{self.test_from}'")
        require_seed(self.seed)

    def draw(
        self, labels: Tensor, has_label: Tensor, held_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Draws both sets.

        Args:
            labels: Label of every image (N,).
            has_label: Whether an image takes part (N,).
            held_out: Whether it is in the dataset's own test set (N,); None if there is no such.

        Returns:
            Sorted indices of training and test images; no image is in both.

        Raises:
            InputError: There are not so many images, or they cannot be balanced.
        """
        generator = torch.Generator().manual_seed(self.seed)
        if held_out is None:
            held_out = torch.zeros_like(has_label)
            if self.test_from == "test":
                held_out = self._divide(labels, has_label, generator)
        train = pool = torch.nonzero(has_label & ~held_out).squeeze(1)
        test = torch.nonzero(has_label & held_out).squeeze(1)
        if self.num_train is not None:
            train = self._sample("training", pool, labels, self.num_train, generator)
        if self.test_from == "train":
            test = pool[~torch.isin(pool, train)]
        if self.num_test is not None:
            test = self._sample("test", test, labels, self.num_test, generator)
        return train, test

    def _divide(self, labels: Tensor, has_label: Tensor, generator: torch.Generator) -> Tensor:
        """Marks ``test_fraction`` of each label (N,)."""
        held_out = torch.zeros_like(has_label)
        for label in torch.unique(labels[has_label]):
            members = torch.nonzero(has_label & (labels == label)).squeeze(1)
            order = members[torch.randperm(len(members), generator=generator)]
            held_out[order[: round(self.test_fraction * len(order))]] = True
        return held_out

    def _sample(
        self, what: str, pool: Tensor, labels: Tensor, size: int, generator: torch.Generator
    ) -> Tensor:
        try:
            return pool[draw(labels[pool], size, generator, balanced=self.balanced)]
        except InputError as error:
            raise InputError(f"{what} images: {error}") from error


def draw(labels: Tensor, size: int, generator: torch.Generator, *, balanced: bool = True) -> Tensor:
    """Draws ``size`` samples without replacement.

    Args:
        labels: Label of every sample (N,).
        size: How many to draw.
        generator: Source of randomness.
        balanced: Equally many of each label.

    Returns:
        Sorted indices (size,).

    Raises:
        InputError: There are not so many, or they cannot be balanced.
    """
    if balanced:
        return balanced_sample(labels, size, generator)
    if not 1 <= size <= len(labels):
        raise InputError(f"cannot draw {size} of {len(labels)} samples")
    return torch.randperm(len(labels), generator=generator)[:size].sort().values


def draw_disjoint(
    labels: Tensor, sizes: Mapping[str, int], seed: int, *, balanced: bool = True
) -> dict[str, Tensor]:
    """Draws several samples that share no image.

    Args:
        labels: Label of every sample (N,).
        sizes: Number of samples by name; drawn in this order, so that a later entry does not
            change an earlier one's samples.
        seed: Chooses them.
        balanced: Equally many of each label, in each sample.

    Returns:
        Sorted indices by name.

    Raises:
        InputError: There are not enough samples, or they cannot be balanced.
    """
    generator = torch.Generator().manual_seed(seed)
    left = torch.arange(len(labels))
    chosen = {}
    for name, size in sizes.items():
        try:
            positions = draw(labels[left], size, generator, balanced=balanced)
        except InputError as error:
            raise InputError(f"'{name}': {error}") from error
        chosen[name] = left[positions]
        remains = torch.ones(len(left), dtype=torch.bool)
        remains[positions] = False
        left = left[remains]
    return chosen
