"""Draws disjoint parts of one or several datasets."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from artifacts.errors import InputError
from artifacts.membership_splits import Part
from datamodules.image_sets import ImageSet

_MAY_BE_EMPTY = ("pool", "population", "downstream")


@dataclass(frozen=True)
class PartSizes:
    """Number of images of each part; a value below 1 is a share of its source's images.

    Shares are rounded down, but a part that must not be empty gets one image at least.

    Attributes:
        target_train: Members: the target is pre-trained on them.
        target_test: Non-members to judge the attack on.
        shadow_train: Pre-training images of each shadow model.
        shadow_test: Images that no shadow model is trained on; thresholds come from both.
        pool: The attacker's further images, on which decoders are fine-tuned; may be 0.
        population: The attacker's further images, to see how a model scores any image; may be 0.
        downstream: Labelled images of baseline A's downstream task; may be 0.
    """

    target_train: float = 0.15
    target_test: float = 0.15
    shadow_train: float = 0.15
    shadow_test: float = 0.15
    pool: float = 0.25
    population: float = 0.15
    downstream: float = 0


DEFAULT_SIZES = PartSizes()


def draw_parts(
    wanted: Mapping[str, tuple[str, float]],
    images: Mapping[str, ImageSet],
    datasets: Mapping[str, str],
    seed: int,
) -> dict[str, Part]:
    """Draws parts that share no image, not even by content.

    Args:
        wanted: Source and size of each part, in the order in which they are drawn; a size below 1
            is a share of the source's distinct images.
        images: All images of each source.
        datasets: Name of each source's dataset.
        seed: Chooses the images.

    Returns:
        The parts by name; those of size 0 are left out.

    Raises:
        InputError: There are too few images, or two sources share one.
    """
    seen: dict[bytes, str] = {}
    left: dict[str, Iterator[int]] = {}
    totals: dict[str, int] = {}
    for source, available in images.items():
        distinct = _distinct(source, available, seen)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(distinct), generator=generator).tolist()
        left[source] = iter([distinct[index] for index in order])
        totals[source] = len(distinct)
    parts = {}
    for name, (source, size) in wanted.items():
        number = int(size * totals[source]) if size < 1 else int(size)
        if 0 < size < 1 and name not in _MAY_BE_EMPTY:
            number = max(1, number)
        chosen = list(itertools.islice(left[source], number))
        if len(chosen) < number or (number == 0 and name not in _MAY_BE_EMPTY):
            raise InputError(
                f"'{name}' needs {max(1, number)} images, and {len(chosen)} of the "
                f"{totals[source]} distinct ones of data.{source} are left; change data.sizes"
            )
        if number:
            taken = images[source].subset(chosen)
            labels = taken.labels.tolist()
            parts[name] = Part(datasets[source], source, taken.identifiers, labels)
    return parts


def _distinct(source: str, images: ImageSet, seen: dict[bytes, str]) -> list[int]:
    """Indices of a source's images, each content once.

    Raises:
        InputError: An image of another source has the same content.
    """
    distinct = []
    for index, (name, digest) in enumerate(zip(images.identifiers, images.digests(), strict=True)):
        first = seen.setdefault(digest, f"data.{source}: {name}")
        if first == f"data.{source}: {name}":
            distinct.append(index)
        elif not first.startswith(f"data.{source}: "):
            raise InputError(
                f"the image '{name}' of data.{source} is also in {first}; an image must have "
                "one part only, or the attack would be judged on what it knows"
            )
    return distinct
