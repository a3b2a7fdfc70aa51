"""Embeddings of images by a frozen backbone, as the data of a probe."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset
from tqdm.auto import tqdm

from artifacts.errors import InputError
from artifacts.files import require_file, require_writable_directory, sha256_of_file
from artifacts.tensors import sha256_of_tensors
from datamodules.embedding_cache import EmbeddingCache
from datamodules.image_data import ImageDataModule
from datamodules.in_memory import Batch, InMemoryDataModule
from models.backbones import Backbone, Features, load_backbone

Images = Dataset[tuple[Tensor, Tensor]]

# Another version of one of them may decode, resize or compute differently.
LIBRARIES = ("timm", "open_clip_torch", "torch", "pillow")


class EmbeddingsDataModule(InMemoryDataModule):
    """Training and test images of any image data module, as embeddings.

    Each image is embedded once and kept on disk, under a key of everything that its embedding
    depends on: the images' content and order, backbone, its weights, the libraries' versions, image
    size, features and precision. Chunks that a stopped run had finished are not computed again.
    Where several processes train together, each embeds its share.

    Reconstructing Training Data From Real-World Models Trained with Transfer Learning, sections 3,
    4 and B.1.

    Args:
        images: The images. Its ``num_workers`` processes decode them.
        backbone: Name of the frozen backbone (see :func:`~models.backbones.load_backbone`).
        weights: A local file with its weights; by default from the library's cache or hub.
        features: ``"cls"`` or ``"cls_mean"`` (A.5).
        num_train: That of ``images``, so that it has the same name for every kind of data.
        seed: The same.
        cache_dir: Folder for embeddings; several machines need a common one.
        batch_size: Images that the backbone takes at once.
        precision: ``"bfloat16"`` is faster on GPUs that have it, and much slower on CPUs.
        device: Where the backbone runs; by default where the trainer does.

    Raises:
        InputError: A setting is out of range, or given twice.
    """

    def __init__(
        self,
        images: ImageDataModule,
        backbone: str = "dinov2_vit_b14",
        weights: str | None = None,
        features: Features = "cls",
        num_train: int | None = None,
        seed: int | None = None,
        cache_dir: str = "runs/embeddings",
        batch_size: int = 64,
        precision: Literal["float32", "bfloat16"] = "float32",
        device: str = "auto",
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        if precision not in ("float32", "bfloat16"):
            raise InputError(f"precision must be 'float32' or 'bfloat16', got '{precision}'")
        if not cache_dir.strip() or (Path(cache_dir).exists() and not Path(cache_dir).is_dir()):
            raise InputError(f"data.cache_dir must be a folder for embeddings, got '{cache_dir}'")
        if device != "auto":
            try:
                kind = torch.device(device).type
            except RuntimeError as error:
                raise InputError(f"data.device is no device: '{device}'") from error
            if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
                raise InputError(f"data.device '{device}' is not there; take cpu, cuda or auto")
        if images.in_chans != 3:
            raise InputError("a backbone takes images of 3 channels; set data.images.in_chans to 3")
        self.images = images
        _override(images, num_train, seed)
        self.backbone = backbone
        self.weights = weights
        self.features = features
        self.cache_dir = cache_dir
        self.batch_size = batch_size
        self.precision = precision
        self.device = device
        if backbone == "identity":
            # The embedding is the image, so candidates can be looked at.
            self.image_shape = (3, images.image_size, images.image_size)
        self._loaded: Backbone | None = None

    def prepare_data(self) -> None:
        """Downloads the images if that was asked for."""
        self.images.prepare_data()

    def setup(self, stage: str) -> None:
        """Chooses the images and embeds those that no earlier run did.

        Raises:
            InputError: Images or weights are missing or unusable.
        """
        if self._sets is None:
            self.images.trainer = self.trainer
            self.images.setup(stage)
            super().setup(stage)

    def load(self) -> tuple[Batch, Batch]:
        """Embeds both sets, or reads their embeddings."""
        # Building a network draws random numbers; training must not depend on whether it was built.
        with torch.random.fork_rng(devices=[]):
            train, test = self._embedded("train"), self._embedded("test")
        self._loaded = None
        return train, test

    def train_thumbnails(self, indices: Tensor, size: int = 96) -> Tensor:
        """Some training images, small, for the eye of whoever evaluates.

        Args:
            indices: Which training samples (k,).
            size: Largest side s.

        Returns:
            (k, 3, s, s) in [0, 1].
        """
        from torchvision.transforms.functional import resize

        self.setup("fit")
        side = min(size, self.images.image_size)
        # The threads that decode would not be allowed to fill a tensor of inference mode.
        with torch.inference_mode(False):
            pixels = self.images.train_set.subset(indices.clone()).all_pixels()
        thumbnails: Tensor = resize(pixels, [side, side], antialias=True)
        return thumbnails.float() / 255

    def _embedded(self, part: Literal["train", "test"]) -> Batch:
        images = self.images.train_set if part == "train" else self.images.test_set
        if len(images) == 0:
            raise InputError(f"there are no {part} images; {self.images.name} needs some of both")
        facts = {
            "images": self.images.content_key(part),
            "backbone": self.backbone,
            "weights": self._weights_hash(),
            **{library: version(library) for library in LIBRARIES},
            "image_size": str(self.images.image_size),
            "features": self.features,
            "precision": self.precision,
        }
        cache = EmbeddingCache(self.cache_dir, facts, len(images))
        self._fill(cache, images, f"embedding {len(images)} {part} images")
        return cache.read(), images.labels

    def _fill(self, cache: EmbeddingCache, images: Images, title: str) -> None:
        """Computes this process's share of the chunks that are missing."""
        rank, world, quiet = 0, 1, False
        if self.trainer is not None:
            rank, world = self.trainer.global_rank, self.trainer.world_size
            quiet = rank > 0 or self.trainer.progress_bar_callback is None
        # By number, not by place among the missing: a faster process may have begun.
        numbered = enumerate(cache.chunks())
        mine = [chunk for number, chunk in numbered if number % world == rank]
        share = [chunk for chunk in mine if not cache.has(chunk)]
        if share:
            require_writable_directory(self.cache_dir, option="data.cache_dir")
            total = sum(len(chunk) for chunk in share)
            with tqdm(total=total, desc=title, unit="image", disable=quiet) as progress:
                for chunk in share:
                    parts = []
                    for part in self._embed(Subset(images, chunk)):
                        parts.append(part)
                        progress.update(len(part))
                    cache.write(chunk, torch.cat(parts))
        if self.trainer is not None:
            self.trainer.strategy.barrier("embeddings")
        if not all(map(cache.has, cache.chunks())):
            raise InputError(
                f"other processes' embeddings are not in {cache.directory}; with several machines "
                "data.cache_dir must be a folder that all of them see"
            )

    @torch.inference_mode()
    def _embed(self, images: Images) -> Iterator[Tensor]:
        """Embeddings of each batch (b, D), float32 on the CPU."""
        device = self._device()
        backbone = self._backbone().to(device)
        loader = DataLoader(
            images,
            batch_size=self.batch_size,
            num_workers=self.images.num_workers,
            pin_memory=device.type == "cuda",
        )
        half = self.precision == "bfloat16"
        for batch, _ in loader:
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                embeddings: Tensor = backbone(batch.to(device, non_blocking=True))
            if not bool(torch.isfinite(embeddings).all()):
                raise InputError(
                    f"{self.backbone} gives NaN or infinity for some images; are the weights and "
                    f"precision {self.precision} right?"
                )
            yield embeddings.float().cpu()

    def _device(self) -> torch.device:
        if self.device != "auto":
            return torch.device(self.device)
        if self.trainer is not None:
            return self.trainer.strategy.root_device
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def _backbone(self) -> Backbone:
        if self._loaded is None:
            try:
                self._loaded = load_backbone(
                    self.backbone,
                    self.weights,
                    image_size=self.images.image_size,
                    features=self.features,
                )
            except InputError:
                raise
            except ValueError as error:
                raise InputError(str(error)) from error
        return self._loaded

    def _weights_hash(self) -> str:
        """Of the file that was given, which need not be loaded for it, or of what the hub gave."""
        if self.weights is None:
            return sha256_of_tensors(self._backbone().state_dict())
        what = f"weights file of {self.backbone}"
        made_by = "give another one as data.weights"
        if self.backbone != "mae":
            made_by += ", or none for the library's own"
        return sha256_of_file(require_file(self.weights, what=what, made_by=made_by))


def _override(images: ImageDataModule, num_train: int | None, seed: int | None) -> None:
    """Sets the size and seed of the training set where they are given.

    Raises:
        InputError: They are given twice. A config that replaces another one's data inherits its
            ``num_train`` and ``seed``, which must not win over what was meant.
    """
    drawing = images.drawing
    for name, value, given in (
        ("num_train", num_train, drawing.num_train is not None),
        ("seed", seed, drawing.seed != 0),
    ):
        other = getattr(drawing, name)
        if given and value not in (None, other):
            raise InputError(
                f"{name} is given twice: data.{name}={value} and data.images.{name}={other}; an "
                f"earlier config may have set the first; give data.{name} alone"
            )
    if num_train is not None:
        images.drawing = replace(images.drawing, num_train=num_train)
    if seed is not None:
        images.seed = seed
        images.drawing = replace(images.drawing, seed=seed)
