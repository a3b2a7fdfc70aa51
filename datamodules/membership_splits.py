"""Members, non-members and the attacker's own images: the parts of a membership attack."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from artifacts.errors import InputError
from artifacts.membership_splits import (
    Part,
    read_membership_splits,
    write_membership_splits,
)
from artifacts.training_record import digest_of_images
from datamodules.image_data import ImageDataModule
from datamodules.image_sets import ImageSet
from datamodules.membership_parts import DEFAULT_SIZES, PartSizes, draw_parts
from datamodules.pixel_batches import ResumableLoader
from datamodules.pretraining import MEMBERSHIP, PretrainingDataModule

SPLITS_FILE = "membership_splits.json"


@dataclass(frozen=True)
class AttackerLoaders:
    """All data that an attack learns from; none of it trained the target.

    Attributes:
        shadows: Training images of each shadow model.
        shadow_test: Images that no model was trained on.
        population: Further such images.
        downstream: Labelled images, for baseline A; None if there are none.
    """

    shadows: list[ResumableLoader]
    shadow_test: ResumableLoader
    population: ResumableLoader
    downstream: ResumableLoader | None


@dataclass(frozen=True)
class Stream:
    """Batches of a loader that Lightning leaves as it is.

    It would make a plain loader anew, with a sampler that remembers the index of every image.
    """

    loader: DataLoader[tuple[Tensor, Tensor]]

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.loader)


class MembershipSplits(PretrainingDataModule):
    """Disjoint parts of a dataset: target and shadows, each with training and test images.

    The parts are drawn by ``seed`` and written as ``membership_splits.json`` into the run
    directory; later stages take them from there. Images of equal content count as one, so no part
    shares an image with another. ``fit`` gets the training images of one part, and as validation
    the held-out ones that go with it; ``test`` gets the target's members, then its non-members.

    Args:
        source: All images to draw from, of both its training and its test set.
        part: Whose images ``fit`` gets: ``target``, ``shadow_1``, ``shadow_2``, …, or ``pool``.
        sizes: Number of images of each part.
        num_shadows: Shadow models, each with training images of its own.
        shadow_source: Another dataset for everything the attacker has (Fig. 4). The same as
            ``source``, by name and folder, counts as none.
        members: Another dataset whose images are the target's training images: then ``source``
            holds images that the target surely never saw.
        downstream_source: Another labelled dataset for baseline A (CINIC-10 in the paper).
        questioned: Images of which ``predict`` asks whether the target was trained on them;
            nothing is learned from them. By default the target's test images.
        passes_per_epoch: How often an epoch of the trainer goes through the training images: on
            small sets, what an epoch costs beside its steps then weighs less.
        splits: A ``membership_splits.json`` of an earlier stage: the same parts. Then sizes and
            seed do not choose images.
        batch_size: Images in a batch.
        num_val: How many training and as many held-out images validation compares; None for all.
        in_memory: ``"auto"`` holds a part in memory if it takes at most ``memory_limit``.
        memory_limit: In GiB.
        drop_last: Leave out an incomplete last batch in training.
        seed: Chooses the images, and their order in training.

    Raises:
        InputError: A number makes no sense, or there is no such part.
    """

    def __init__(
        self,
        source: ImageDataModule,
        part: str = "target",
        sizes: PartSizes = DEFAULT_SIZES,
        num_shadows: int = 1,
        shadow_source: ImageDataModule | None = None,
        members: ImageDataModule | None = None,
        downstream_source: ImageDataModule | None = None,
        questioned: ImageDataModule | None = None,
        passes_per_epoch: int = 1,
        splits: str | None = None,
        batch_size: int = 64,
        num_val: int | None = 1000,
        in_memory: Literal["auto", "always", "never"] = "auto",
        memory_limit: float = 4.0,
        drop_last: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(source, batch_size, num_val, in_memory, memory_limit, drop_last, seed)
        if min(num_shadows, passes_per_epoch) < 1:
            raise InputError("num_shadows and passes_per_epoch must be at least 1")
        self.shadow_names = [f"shadow_{number}" for number in range(1, num_shadows + 1)]
        if part not in (allowed := ["target", *self.shadow_names, "pool"]):
            raise InputError(f"part must be one of {', '.join(allowed)}, got '{part}'")
        if shadow_source is not None and (shadow_source.name, shadow_source.root) == (
            source.name,
            source.root,
        ):
            shadow_source = None
        given = {
            "source": source,
            "shadow_source": shadow_source,
            "members": members,
            "downstream_source": downstream_source,
            "questioned": questioned,
        }
        self.sources = {name: module for name, module in given.items() if module is not None}
        self.part = part
        self.sizes = sizes
        self.passes_per_epoch = passes_per_epoch
        self.splits = splits
        self._parts: dict[str, Part] | None = None
        self._everything: dict[str, ImageSet] = {}
        self._attackers_images: dict[bytes, str] | None = None

    def prepare_data(self) -> None:
        """Downloads what the sources may download."""
        for source in self.sources.values():
            source.prepare_data()

    def setup(self, stage: str = "fit") -> None:
        """Chooses the parts once.

        Raises:
            InputError: There are too few images, or two parts share one.
        """
        if self._parts is None:
            self._parts = read_membership_splits(self.splits) if self.splits else self._draw()
        # Decoded images are kept by name, and the names may now stand for others.
        self._pixels.clear()
        if stage == "predict":
            asked = "questioned" in self.sources
            self._sets["questioned"] = (
                self._all_images("questioned") if asked else self.images_of("target_test")
            )
            return
        if stage in ("fit", "validate"):
            train = self._training_part(self.part)
            held_out = "target_test" if self.part == "target" else "shadow_test"
        else:
            train, held_out = "target_train", "target_test"
        for name, part in zip(MEMBERSHIP, (train, held_out), strict=True):
            self._sets[name] = images = self.images_of(part)
            self._sets[f"sampled {name}"] = self._sample(images)
        if stage == "fit":
            members = self._sets["members"]
            self._sets["members"] = members.subset([*range(len(members))] * self.passes_per_epoch)

    def _write(self) -> None:
        """Writes the parts into the run directory.

        Loaders are made once module and callbacks have agreed to what they are given. Before that,
        the file would be replaced beside the results of an earlier run that used another.
        """
        trainer = self.trainer
        if trainer is not None and trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            path = Path(trainer.default_root_dir) / SPLITS_FILE
            write_membership_splits(path, self.parts, self.seed)

    @property
    def parts(self) -> dict[str, Part]:
        """The images of each part by name, after ``setup``."""
        assert self._parts is not None, "setup comes first"
        return self._parts

    @property
    def trained_on(self) -> tuple[str, str]:
        """The part that ``fit`` trains on, and its digest."""
        return self.part, self._digest(self._training_part(self.part))

    @property
    def training_digests(self) -> dict[str, str]:
        """Digest of the training images of each part that the split claims to be trained on.

        Reads every one of these images.

        The target's are not among them if they lie in ``members``: then it is the question whether
        it was trained on those; nor is a part with images that are gone.
        """
        return {
            name.removesuffix("_train"): self._digest(name)
            for name, part in self.parts.items()
            if (name == "pool" or name.endswith("_train"))
            and part.source != "members"
            and not self._missing(part)
        }

    @staticmethod
    def _training_part(part: str) -> str:
        return "pool" if part == "pool" else f"{part}_train"

    def _digest(self, name: str) -> str:
        return digest_of_images(self.images_of(name).digests())

    def images_of(self, name: str) -> ImageSet:
        """The images of a part, in the order of the split.

        Raises:
            InputError: There is no such part, or an image of it is gone.
        """
        if name not in self.parts:
            raise InputError(f"there are no images for '{name}'; raise data.sizes")
        part = self.parts[name]
        missing = self._missing(part)
        if missing:
            raise InputError(
                f"{len(missing)} images of '{name}' are not in '{part.dataset}' any more, such as "
                f"'{missing[0]}'"
            )
        everything = self._all_images(part.source)
        index = {identifier: at for at, identifier in enumerate(everything.identifiers)}
        return everything.subset([index[identifier] for identifier in part.identifiers])

    def train_dataloader(self) -> ResumableLoader:
        """The training images of the part; writes the parts into the run directory."""
        self._write()
        return super().train_dataloader()

    def test_dataloader(self) -> list[ResumableLoader]:
        """The target's members, then its non-members; writes the parts too."""
        self._write()
        return super().test_dataloader()

    def _missing(self, part: Part) -> list[str]:
        there = set(self._all_images(part.source).identifiers)
        return [identifier for identifier in part.identifiers if identifier not in there]

    def predict_dataloader(self) -> "Stream":
        """The questioned images, in order; writes the parts too."""
        self._write()
        workers = self.sources.get("questioned", self.images).num_workers
        return Stream(
            DataLoader(self._sets["questioned"], batch_size=self.batch_size, num_workers=workers)
        )

    @property
    def questioned_identifiers(self) -> list[str]:
        """Name of each questioned image, in order."""
        return self._sets["questioned"].identifiers

    def attackers_part(self, number: int) -> str:
        """The part of the attacker that holds a questioned image, if one does, by stored content.

        Args:
            number: Of the questioned image.

        Returns:
            The part's name; empty if no attack has learned from the image.
        """
        if "questioned" not in self.sources:
            return ""
        if self._attackers_images is None:
            self._attackers_images = {
                digest: name
                for name in self.parts
                if name not in ("target_train", "target_test")
                for digest in self.images_of(name).digests()
            }
        questioned = self._sets["questioned"]
        digest = questioned.collection.digest(int(questioned.indices[number]))
        return self._attackers_images.get(digest, "")

    def attacker_loaders(self) -> AttackerLoaders:
        """What the attack learns from."""

        def loader(name: str) -> ResumableLoader:
            self._sets[name] = self.images_of(name)
            return self._loader(name)

        return AttackerLoaders(
            [loader(f"{name}_train") for name in self.shadow_names],
            loader("shadow_test"),
            loader("population" if "population" in self.parts else "shadow_test"),
            loader("downstream") if "downstream" in self.parts else None,
        )

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
            **{f"{name}_train": (attacker, sizes.shadow_train) for name in self.shadow_names},
        }

    def _draw(self) -> dict[str, Part]:
        wanted = self._sources_of_parts()
        names = dict.fromkeys(source for source, _ in wanted.values())
        images = {source: self._all_images(source) for source in names}
        datasets = {source: self.sources[source].name for source in names}
        return draw_parts(wanted, images, datasets, self.seed)

    def _all_images(self, source: str) -> ImageSet:
        """Training and test images of a source as one set."""
        if source not in self._everything:
            if source not in self.sources:
                raise InputError(f"{self.splits} needs data.{source}, which is not given")
            module = self.sources[source]
            module.setup()
            train, test = module.train_set, module.test_set
            indices, order = torch.cat([train.indices, test.indices]).sort()
            self._everything[source] = ImageSet(
                train.collection,
                indices,
                torch.cat([train.labels, test.labels])[order],
                image_size=train.image_size,
                in_chans=train.in_chans,
                max_pixels=train.max_pixels,
            )
        return self._everything[source]
