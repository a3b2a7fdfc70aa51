"""The base of data modules of images: which images, with which labels, at which size."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from artifacts.errors import InputError
from artifacts.splits import Part, Split, read_split, write_split
from datamodules.image_files import MAX_PIXELS
from datamodules.image_sets import ImageCollection, ImageSet
from datamodules.listing import require_distinct
from datamodules.sampling import Drawing
from datamodules.tasks import make_task, resolve_task

# Part of the key of what is computed from images: change it when their pixels change.
PREPROCESSING = "shorter side bicubic antialiased, centre crop, 8 bits, version 1"

Batch = tuple[Tensor, Tensor]


class EpochLoader(DataLoader[Batch]):
    """A loader whose workers begin when the first batch of an epoch is asked for.

    Otherwise they begin when the iterator is made: a resumed training makes it before it tells the
    sampler its epoch, and would see the order of epoch 0 once more.
    """

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        yield from super().__iter__()


class ImageDataModule(L.LightningDataModule):
    """Images (C, S, S), float32 in [0, 1], with labels: -1 and +1, or 0 … C-1.

    Subclasses implement :meth:`read`, and :meth:`fetch` if they can download. The split that a run
    uses is written as ``split.json`` into its directory.

    Args:
        root: Folder of the dataset.
        image_size: Side S: the shorter side is resized to it, then the centre is cropped.
        in_chans: 3 (RGB) or 1 (grey).
        task: A named task of the dataset (see ``datamodules/tasks``), a list of classes, or named
            groups of classes that share a label. Two labels are +1 (the first) and -1, more of
            them 0, 1, 2, … By default every class has its own label.
        num_classes: Only the first so many labels of the task, or classes of the dataset.
        num_train: Number of training images, drawn at random. By default all.
        num_test: Number of test images, drawn at random. By default all.
        balanced: Draw equally many images of each label.
        test_from: ``"test"`` holds out the dataset's own test images, ``"train"`` the training
            images that were not drawn.
        test_fraction: Share of each label that is held out where a dataset has no test images of
            its own.
        seed: Chooses the images, and their order in training.
        split: A ``split.json`` of an earlier run: the same images with the same labels. Then
            ``task``, ``num_*``, ``balanced`` and ``test_*`` do not matter.
        batch_size: Images in a batch.
        num_workers: Processes that decode images.
        max_pixels: Larger images are refused.
        download: Fetch the dataset into ``root`` if it is not there.

    Attributes:
        name: The dataset's name.
        train_set: Training images, after ``setup``.
        test_set: Held-out images, after ``setup``.
    """

    name: str
    layout: ClassVar[str]

    train_set: ImageSet
    test_set: ImageSet

    def __init__(
        self,
        root: str,
        image_size: int = 224,
        in_chans: int = 3,
        task: list[str | int] | dict[str, list[str | int]] | str | None = None,
        num_classes: int | None = None,
        num_train: int | None = None,
        num_test: int | None = None,
        balanced: bool = True,
        test_from: Literal["test", "train"] = "test",
        test_fraction: float = 0.2,
        seed: int = 0,
        split: str | None = None,
        batch_size: int = 32,
        num_workers: int = 0,
        max_pixels: int = MAX_PIXELS,
        download: bool = False,
    ) -> None:
        super().__init__()
        if image_size < 1:
            raise InputError(f"image_size must be at least 1, got {image_size}")
        if in_chans not in (1, 3):
            raise InputError(f"in_chans must be 3 (RGB) or 1 (grey), got {in_chans}")
        if batch_size < 1 or num_workers < 0:
            raise InputError(
                f"batch_size must be at least 1 and num_workers at least 0, got {batch_size} and "
                f"{num_workers}"
            )
        self.root = Path(root)
        self.image_size = image_size
        self.in_chans = in_chans
        self.task = task
        self.num_classes = num_classes
        self.seed = seed
        self.drawing = Drawing(num_train, num_test, balanced, test_from, test_fraction, seed)
        self.split = split
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.max_pixels = max_pixels
        self.download = download
        self._classes: dict[int, list[str]] | None = None

    @abstractmethod
    def read(self, classes: list[str] | None) -> ImageCollection:
        """Lists the dataset's images.

        Args:
            classes: Images of other classes are not needed; None for all. The names may be unknown.

        Raises:
            InputError: The files are not there.
        """

    def fetch(self) -> None:
        """Downloads the dataset into ``root``.

        Raises:
            InputError: That cannot be done.
        """
        raise InputError(
            f"'{self.name}' cannot be downloaded by this package; expected {self.layout}"
        )

    def prepare_data(self) -> None:
        """Downloads the dataset if that was asked for."""
        if self.download:
            self.fetch()

    def setup(self, stage: str = "fit") -> None:
        """Chooses the images once, and writes the split into the run directory.

        Raises:
            InputError: Files, classes or images are missing, or the split is of something else.
        """
        if self._classes is None:
            if self.split is not None:
                self._take(read_split(self.split, dataset=self.name))
            else:
                self._draw()
        trainer = self.trainer
        if trainer is not None and trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            # Evaluating a run must not replace the split that it was trained with.
            name = "split.json" if stage == "fit" else f"split_{TrainerFn(stage).value}.json"
            self.write_split(Path(trainer.default_root_dir) / name)

    def _draw(self) -> None:
        """Draws training and test images by ``seed``."""
        task = None
        if self.task is not None:
            task = resolve_task(self.name, self.task, self.num_classes)
        collection = self._read(task.names if task else None)
        if task is None:
            task = make_task(collection.classes, self.num_classes)
        try:
            labels, has_label = task.labels(collection.classes, collection.targets)
            train, test = self.drawing.draw(labels, has_label, collection.held_out)
            for label, names in task.classes.items():
                if not bool((labels[train] == label).any()):
                    raise InputError(f"there is no training image of {', '.join(names)}")
        except InputError as error:
            raise InputError(f"'{self.name}' at {self.root}: {error}") from error
        self._classes = task.classes
        self.train_set = self._image_set(collection, train, labels[train])
        self.test_set = self._image_set(collection, test, labels[test])

    def _read(self, classes: list[str] | None) -> ImageCollection:
        collection = self.read(classes)
        # Without the classes that are asked for, their names are wrong, not the root.
        known = set(classes or collection.classes) & set(collection.classes)
        if len(collection) == 0 and (known or collection.classes in ([], ["."])):
            raise InputError(f"there are no images at {self.root}; expected {self.layout}")
        require_distinct(collection, f"'{self.name}' at {self.root}")
        return collection

    def _take(self, split: Split) -> None:
        """Takes the images of a split.

        Raises:
            InputError: One is not there, or of a class that has another label.
        """
        label_of = {name: label for label, names in split.classes.items() for name in names}
        collection = self._read(list(label_of))
        index = {identifier: at for at, identifier in enumerate(collection.identifiers)}

        def images(part: Part) -> ImageSet:
            missing = [name for name in part.identifiers if name not in index]
            if missing:
                raise InputError(
                    f"{len(missing)} images of {self.split} are not in '{self.name}' at "
                    f"{self.root}, such as '{missing[0]}'"
                )
            for name, label in zip(part.identifiers, part.labels, strict=True):
                of_class = collection.classes[int(collection.targets[index[name]])]
                if label_of.get(of_class) != label:
                    raise InputError(
                        f"{self.split} gives '{name}' the label {label}, but by its 'classes' an "
                        f"image of '{of_class}' has {label_of.get(of_class, 'none')}"
                    )
            indices = torch.tensor([index[name] for name in part.identifiers], dtype=torch.int64)
            return self._image_set(
                collection, indices, torch.tensor(part.labels, dtype=torch.int64)
            )

        self.train_set, self.test_set = images(split.train), images(split.test)
        self._classes = split.classes

    def _image_set(self, collection: ImageCollection, indices: Tensor, labels: Tensor) -> ImageSet:
        return ImageSet(
            collection,
            indices,
            labels,
            image_size=self.image_size,
            in_chans=self.in_chans,
            max_pixels=self.max_pixels,
        )

    def write_split(self, path: str | Path) -> None:
        """Writes which images are trained and tested on, as JSON.

        Raises:
            InputError: The file cannot be written.
        """
        assert self._classes is not None, "setup comes first"
        parts = {
            name: Part(images.identifiers, images.labels.tolist())
            for name, images in (("train", self.train_set), ("test", self.test_set))
        }
        write_split(path, Split(self.name, self.seed, self._classes, **parts))

    def content_key(self, part: Literal["train", "test"]) -> str:
        """A hash of everything that the images of one side depend on.

        Names, labels, order, stored bytes and preprocessing. The bytes themselves are read rather
        than sizes and times: a copy of the dataset on a node's own disk has the same key, an image
        replaced by another of equal size has not.

        Args:
            part: ``"train"`` or ``"test"``.

        Returns:
            64 hex digits.
        """
        images: ImageSet = self.train_set if part == "train" else self.test_set
        quiet = self.trainer is not None and self.trainer.progress_bar_callback is None
        digest = hashlib.sha256()
        digest.update(
            f"{self.name}\n{PREPROCESSING}\n{self.image_size}\n{self.in_chans}\n".encode()
        )
        for name, label, content in zip(
            images.identifiers, images.labels.tolist(), images.digests(quiet=quiet), strict=True
        ):
            digest.update(f"{name}\n{label}\n{content.hex()}\n".encode())
        return digest.hexdigest()

    def train_dataloader(self) -> EpochLoader:
        """Training images in an order that depends on seed and epoch only."""
        world, rank = 1, 0
        if self.trainer is not None:
            world, rank = self.trainer.world_size, self.trainer.global_rank
        # Lightning tells it the epoch, so a resumed run sees the same order.
        sampler: DistributedSampler[Batch] = DistributedSampler(
            self.train_set, num_replicas=world, rank=rank, shuffle=True, seed=self.seed
        )
        return self._loader(self.train_set, sampler=sampler)

    def val_dataloader(self) -> EpochLoader:
        """Held-out images in order."""
        return self._loader(self.test_set)

    def test_dataloader(self) -> EpochLoader:
        """Held-out images in order."""
        return self._loader(self.test_set)

    def predict_dataloader(self) -> EpochLoader:
        """Held-out images in order."""
        return self._loader(self.test_set)

    def _loader(self, images: ImageSet, **options: Any) -> EpochLoader:  # noqa: ANN401
        return EpochLoader(
            images,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            **options,
        )
