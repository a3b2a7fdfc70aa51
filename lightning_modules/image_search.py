"""What inversions share: batches of images, each searched for through a generator of its own."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from artifacts.errors import InputError
from attacks.image_search import ImageSearch, SearchSettings, image_seeds
from lightning_modules.inverted_images import Batch, InvertedImages
from models.backbones import Backbone, Features, load_backbone
from models.deep_image_prior import PriorSettings, build_priors, largest_num_scales

DEFAULT_SEARCH = SearchSettings()


class SearchCallback(L.Callback):
    """A callback that also sees a search from inside; it may restore a search, but not steer it."""

    def on_search_start(
        self, trainer: L.Trainer, pl_module: "GeneratedImages", search: ImageSearch, batch: Batch
    ) -> None:
        """The images of ``batch`` are about to be searched for."""

    def on_search_step(
        self, trainer: L.Trainer, pl_module: "GeneratedImages", search: ImageSearch, batch: Batch
    ) -> None:
        """An iteration was made; images may have been finished by it."""


class GeneratedImages(InvertedImages):
    """Searches for images whose embedding minimises a loss, each through a generator of its own.

    A subclass says what the loss is (:meth:`objective`).

    Args:
        backbone: Name of the frozen network, see :func:`~models.backbones.load_backbone`.
        weights: Its weights, a local file; by default those of the library.
        image_size: Side S of images, by default the backbone's.
        features: The backbone's features.
        search: How images are searched for.
        generator: What the generators are like.
        seed: Seed of generators, noise and views.

    Raises:
        InputError: The seed is negative.
    """

    backbone: Backbone

    def __init__(
        self,
        backbone: str,
        *,
        weights: str | None,
        image_size: int | None,
        features: Features,
        search: SearchSettings,
        generator: PriorSettings,
        seed: int,
    ) -> None:
        super().__init__(seed)
        self.load = partial(
            load_backbone, backbone, weights, image_size=image_size, features=features
        )
        self.search = search
        self.generator = generator

    @abstractmethod
    def objective(self, batch: Batch, embeddings: Tensor, shown: Tensor) -> tuple[Tensor, Tensor]:
        """What is minimised and what is reported.

        Args:
            batch: The images that are searched for, prepared.
            embeddings: Of images (N, D).
            shown: Which image of the batch each embedding is of (N,).

        Returns:
            Loss (N,) and similarity (N,).
        """

    def configure_model(self) -> None:
        """Loads the backbone.

        Raises:
            InputError: That cannot be done, or its images are too small for the generator.
        """
        if hasattr(self, "backbone"):
            return
        try:
            self.backbone = self.load()
            largest_num_scales(self.backbone.image_size)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(str(error)) from error

    def setup(self, stage: str) -> None:
        """Checks the trainer.

        Raises:
            InputError: Its precision would spoil the search.
        """
        if self.trainer.precision not in ("32-true", "64-true", "bf16-mixed"):
            raise InputError(
                f"trainer.precision {self.trainer.precision} is too coarse for a search, or not "
                "scaled for it; take 32-true or bf16-mixed"
            )

    def start(self, batch: Batch) -> ImageSearch:
        """The search for the images of a batch, at its beginning."""
        size = self.backbone.image_size
        seeds = image_seeds(self.seed, batch["index"].tolist())
        priors = build_priors(seeds, size, self.generator)
        priors.to(device=self.device, dtype=self.dtype)  # type: ignore[arg-type]

        def objective(images: Tensor, shown: Tensor) -> tuple[Tensor, Tensor]:
            embeddings = self.backbone(images)
            # Mixed precision ends here: a cosine near 1 has no digits left in bfloat16.
            with torch.autocast(self.device.type, enabled=False):
                return self.objective(batch, embeddings.to(self.dtype), shown)

        shape = (self.generator.noise_channels, size, size)
        apart = not self.generator.grouped
        return ImageSearch(priors, objective, seeds, shape, self.search, apart=apart)

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Searches for those images of a batch that are not finished yet.

        Returns:
            The prepared batch of these, ``images`` (A, 3, S, S) in [0, 1] and ``similarity`` (A,).

        Raises:
            InputError: The search diverged.
            SIGTERMException: The process was asked to end.
        """
        # The trainer predicts in inference mode, whose tensors take no gradient.
        with torch.inference_mode(False), torch.enable_grad():
            batch = self.prepare(self.unfinished(batch))
            if len(batch["index"]) == 0:
                return batch
            search = self.start(batch)
            self._tell("on_search_start", search, batch)
            while not search.done:
                try:
                    search.advance()
                except ValueError as error:
                    raise InputError(f"{error} (model.search.learning_rate)") from error
                self._tell("on_search_step", search, batch)
                # The trainer only looks for it between the steps of a training.
                if self.trainer.received_sigterm:
                    raise SIGTERMException
        return {**batch, "images": search.images, "similarity": search.similarity}

    def _tell(self, hook: str, *what: Any) -> None:  # noqa: ANN401 - arguments of the hook
        callbacks: Sequence[L.Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if isinstance(callback, SearchCallback):
                getattr(callback, hook)(self.trainer, self, *what)
