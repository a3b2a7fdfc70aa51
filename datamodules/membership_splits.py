"""Members, non-members and the attacker's own images: the parts of a membership attack."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset

from artifacts.errors import InputError
from artifacts.membership_splits import (
    Part,
    read_membership_splits,
    require_disjoint,
    write_membership_splits,
)
from datamodules.image_data import ImageDataModule
from datamodules.image_sets import ImageSet

Loader = DataLoader[tuple[Tensor, Tensor]]
SPLITS_FILE = "membership_splits.json"


@dataclass(frozen=True)
class PartSizes:
    """Number of images of each part; a value below 1 is a share of its source's images.

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


@dataclass(frozen=True)
class AttackerLoaders:
    """All data that an attack learns from; none of it trained the target.

    Attributes:
        shadows: Training images of each shadow model.
        shadow_test: Images that no model was trained on.
        population: Further such images.
        downstream: Labelled images, for baseline A; None if there are none.
    """

    shadows: list[Loader]
    shadow_test: Loader
    population: Loader
    downstream: Loader | None


class MembershipSplits(L.LightningDataModule):
    """Disjoint parts of a dataset: target and shadows, each with training and test images.

    The parts are drawn by ``seed`` and written as ``membership_splits.json`` into the run
    directory; later stages take them from there. Images of equal content count as one, so no part
    shares an image with another.

    Args:
        source: All images to draw from, of both its training and its test set.
        part: Whose training and validation images ``fit`` gets: ``target``, ``shadow_1``,
            ``shadow_2``, …, or ``pool``.
        sizes: Number of images of each part.
        num_shadows: Shadow models, each with training images of its own.
        shadow_source: Another dataset for everything the attacker has (Fig. 4).
        members: Another dataset whose images are the target's training images: then ``source``
            holds images that the target surely never saw.
        downstream_source: Another labelled dataset for baseline A (CINIC-10 in the paper).
        splits: A ``membership_splits.json`` of an earlier stage: the same parts. Then sizes and
            seed do not matter.
        seed: Chooses the images.
        batch_size: Images in a batch.
        num_workers: Processes that decode images.
        in_memory: Decode each part once and keep it as bytes.

    Raises:
        InputError: A number makes no sense.
    """

    def __init__(
        self,
        source: ImageDataModule,
        part: str = "target",
        sizes: PartSizes = PartSizes(),
        num_shadows: int = 1,
        shadow_source: ImageDataModule | None = None,
        members: ImageDataModule | None = None,
        downstream_source: ImageDataModule | None = None,
        splits: str | None = None,
        seed: int = 0,
        batch_size: int = 32,
        num_workers: int = 0,
        in_memory: bool = True,
    ) -> None:
        super().__init__()
        if num_shadows < 1 or batch_size < 1:
            raise InputError("num_shadows and batch_size must be at least 1")
        if part not in (allowed := ["target", *self._shadow_names(num_shadows), "pool"]):
            raise InputError(f"part must be one of {', '.join(allowed)}, got '{part}'")
        self.sources = {
            name: given
            for name, given in (
                ("source", source),
                ("shadow_source", shadow_source),
                ("members", members),
                ("downstream_source", downstream_source),
            )
            if given is not None
        }
        self.part = part
        self.sizes = sizes
        self.num_shadows = num_shadows
        self.splits = splits
        self.seed = seed
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.in_memory = in_memory
        self._parts: dict[str, Part] | None = None
        self._images: dict[str, dict[str, tuple[ImageSet, int]]] = {}
        self._cached: dict[str, Dataset[tuple[Tensor, Tensor]]] = {}

    @staticmethod
    def _shadow_names(num_shadows: int) -> list[str]:
        return [f"shadow_{number}" for number in range(1, num_shadows + 1)]

    def prepare_data(self) -> None:
        """Downloads what the sources may download."""
        for source in self.sources.values():
            source.prepare_data()

    def setup(self, stage: str = "fit") -> None:
        """Chooses the parts once, and writes them into the run directory.

        Raises:
            InputError: There are too few images, or two parts share one.
        """
        if self._parts is None:
            drawn = self.splits is None
            self._parts = self._draw() if drawn else read_membership_splits(str(self.splits))
            require_disjoint(self.splits or "the splits", self._parts)
        trainer = self.trainer
        if trainer is not None and trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            path = Path(trainer.default_root_dir) / SPLITS_FILE
            write_membership_splits(path, self._parts, self.seed)

    @property
    def parts(self) -> dict[str, Part]:
        """The images of each part by name, after ``setup``."""
        assert self._parts is not None, "setup comes first"
        return self._parts

    def _sources_of_parts(self) -> dict[str, tuple[str, float]]:
        """Source and size of each part, in the order in which they are drawn."""
        members = "members" if "members" in self.sources else "source"
        attacker = "shadow_source" if "shadow_source" in self.sources else "source"
        downstream = "downstream_source" if "downstream_source" in self.sources else attacker
        sizes = self.sizes
        return {
            "target_train": (members, sizes.target_train),
            "target_test": ("source", sizes.target_test),
            "shadow_test": (attacker, sizes.shadow_test),
            "population": (attacker, sizes.population),
            "downstream": (downstream, sizes.downstream),
            "pool": (attacker, sizes.pool),
            # Last, so that another number of shadows leaves all other parts as they are.
            **{
                f"{name}_train": (attacker, sizes.shadow_train)
                for name in self._shadow_names(self.num_shadows)
            },
        }

    def _draw(self) -> dict[str, Part]:
        wanted = self._sources_of_parts()
        orders: dict[str, Iterator[str]] = {}
        totals: dict[str, int] = {}
        seen: dict[bytes, str] = {}
        for source in dict.fromkeys(source for source, _ in wanted.values()):
            names = self._distinct(source, seen)
            generator = torch.Generator().manual_seed(self.seed)
            order = torch.randperm(len(names), generator=generator).tolist()
            orders[source] = iter([names[index] for index in order])
            totals[source] = len(names)
        parts = {}
        for name, (source, size) in wanted.items():
            number = int(size * totals[source]) if size < 1 else int(size)
            identifiers = [found for found, _ in zip(orders[source], range(number), strict=False)]
            if len(identifiers) < number:
                raise InputError(
                    f"'{name}' needs {number} images, but only {len(identifiers)} of the "
                    f"{totals[source]} distinct ones of {source} are left; lower data.sizes"
                )
            if number == 0 and not name.startswith(("pool", "population", "downstream")):
                raise InputError(f"'{name}' has no images; raise data.sizes")
            images = self._available(source)
            labels = [int(images[i][0].labels[images[i][1]]) for i in identifiers]
            if number:
                parts[name] = Part(self.sources[source].name, source, identifiers, labels)
        return parts

    def _distinct(self, source: str, seen: dict[bytes, str]) -> list[str]:
        """Identifiers of the images of a source, each content once.

        Raises:
            InputError: An image of another source has the same content.
        """
        available = self._available(source)
        digests: dict[str, bytes] = {}
        for images in dict.fromkeys(image_set for image_set, _ in available.values()):
            digests |= dict(zip(images.identifiers, images.digests(), strict=True))
        distinct = []
        for identifier in available:
            where = f"{source} {identifier}"
            first = seen.setdefault(digests[identifier], where)
            if first == where:
                distinct.append(identifier)
            elif not first.startswith(f"{source} "):
                raise InputError(
                    f"'{identifier}' of data.{source} is the same image as "
                    f"'{first.split(' ', 1)[1]}' of data.{first.split(' ', 1)[0]}; an image must "
                    "have one part only"
                )
        return distinct

    def _available(self, source: str) -> dict[str, tuple[ImageSet, int]]:
        """Where each image of a source is, by identifier."""
        if source not in self._images:
            if source not in self.sources:
                raise InputError(f"{self.splits} needs data.{source}, which is not given")
            module = self.sources[source]
            module.setup("fit")
            self._images[source] = {
                identifier: (images, index)
                for images in (module.train_set, module.test_set)
                for index, identifier in enumerate(images.identifiers)
            }
        return self._images[source]

    def images(self, name: str) -> Dataset[tuple[Tensor, Tensor]]:
        """The images of a part with their labels, in the order of the split.

        Raises:
            InputError: There is no such part, or an image of it is gone.
        """
        if name not in self._cached:
            if name not in self.parts:
                raise InputError(f"there are no images for '{name}'; raise data.sizes.{name}")
            part = self.parts[name]
            available = self._available(part.source)
            missing = [i for i in part.identifiers if i not in available]
            if missing:
                raise InputError(
                    f"{len(missing)} images of '{name}' are not in '{part.dataset}' any more, "
                    f"such as '{missing[0]}'"
                )
            self._cached[name] = self._gather([available[i] for i in part.identifiers])
        return self._cached[name]

    def _gather(self, places: list[tuple[ImageSet, int]]) -> Dataset[tuple[Tensor, Tensor]]:
        if not self.in_memory:
            return ConcatDataset([images.subset([index]) for images, index in places])
        pixels = torch.stack([images.pixels(index) for images, index in places])
        labels = torch.stack([images.labels[index] for images, index in places])
        return _Bytes(pixels, labels)

    def train_dataloader(self) -> Loader:
        """Training images of the chosen part, shuffled."""
        name = "pool" if self.part == "pool" else f"{self.part}_train"
        generator = torch.Generator().manual_seed(self.seed)
        return self._loader(self.images(name), shuffle=True, generator=generator)

    def val_dataloader(self) -> Loader:
        """Held-out images that go with them."""
        return self._loader(self.images("target_test" if self.part == "target" else "shadow_test"))

    def test_dataloader(self) -> Loader:
        """Images to judge the attack on, each with 1 for a member and 0 for a non-member."""
        judged = [
            _Relabelled(self.images(name), label)
            for name, label in (("target_train", 1), ("target_test", 0))
        ]
        return self._loader(ConcatDataset(judged))

    def predict_dataloader(self) -> Loader:
        """As for ``test``; an attack reads the images alone."""
        return self.test_dataloader()

    def attacker_loaders(self) -> AttackerLoaders:
        """What the attack learns from."""
        population = "population" if "population" in self.parts else "shadow_test"
        downstream = None
        if "downstream" in self.parts:
            downstream = self._loader(self.images("downstream"))
        return AttackerLoaders(
            shadows=[
                self._loader(self.images(f"{name}_train"))
                for name in self._shadow_names(self.num_shadows)
            ],
            shadow_test=self._loader(self.images("shadow_test")),
            population=self._loader(self.images(population)),
            downstream=downstream,
        )

    def _loader(self, images: Dataset[Any], **options: Any) -> Loader:  # noqa: ANN401
        return DataLoader(
            images,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            **options,
        )


class _Bytes(TensorDataset):
    """Images kept as bytes, given as floats in [0, 1]."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        pixels, label = super().__getitem__(index)
        return pixels.float() / 255, label


class _Relabelled(Dataset[tuple[Tensor, Tensor]]):
    """Images with one label for all."""

    def __init__(self, images: Dataset[tuple[Tensor, Tensor]], label: int) -> None:
        self.images = images
        self.label = torch.tensor(label)

    def __len__(self) -> int:
        return len(self.images)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index][0], self.label
