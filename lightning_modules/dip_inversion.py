"""From embeddings back to images."""

from typing import Literal

from torch import Tensor

from artifacts.errors import InputError
from attacks.image_loss import LossName, embedding_loss
from attacks.image_search import SearchSettings
from attacks.recovery import rescaled
from lightning_modules.image_search import DEFAULT_SEARCH, GeneratedImages
from lightning_modules.inverted_images import Batch, load_standardisation, require_width
from models.backbones import Features
from models.deep_image_prior import DEFAULT_PRIOR, PriorSettings
from models.probe import Probe


class DIPInversion(GeneratedImages):
    """Finds images whose embedding points where a recovered vector does; ``predict`` only.

    Reconstructing Training Data From Real-World Models Trained with Transfer Learning, section 3.2,
    eq. 3 and B.3: the image is a Deep Image Prior's output, and the prior's weights are all that is
    searched for. Targets are in the probe's standardised space, as reconstructions are; the probe
    stores the mean and standard deviation that lead back to the backbone's space.

    Args:
        backbone: Name of the attacked backbone, see :func:`~models.backbones.load_backbone`.
        probe: The attacked probe, for its mean and standard deviation. Without one targets are
            embeddings of the backbone as they are.
        space: Compare in the ``"standardised"`` space, where a target's norm does not matter to a
            cosine, or in the ``"backbone"``'s, where it does.
        loss: ``"cosine"`` (eq. 3), or ``"mse"`` (A.1).
        norm: Bring targets to the norm √D that standardised training vectors have
            (``"sqrt_dim"``), or take them ``"as_given"``. Needs a probe to matter.
        scale: Factor on the targets (A.1).
        weights: The backbone's weights, a local file; by default those of the library.
        image_size: Side S of images, by default the backbone's.
        features: The backbone's features.
        search: How images are searched for.
        generator: What the generators of images are like.
        seed: Seed of generators, noise and views.

    Raises:
        InputError: A number makes no sense.
    """

    standardisation: Probe

    def __init__(
        self,
        backbone: str,
        probe: str | None = None,
        space: Literal["standardised", "backbone"] = "standardised",
        loss: LossName = "cosine",
        norm: Literal["sqrt_dim", "as_given"] = "sqrt_dim",
        scale: float = 1.0,
        weights: str | None = None,
        image_size: int | None = None,
        features: Features = "cls",
        search: SearchSettings = DEFAULT_SEARCH,
        generator: PriorSettings = DEFAULT_PRIOR,
        seed: int = 0,
    ) -> None:
        super().__init__(
            backbone,
            weights=weights,
            image_size=image_size,
            features=features,
            search=search,
            generator=generator,
            seed=seed,
        )
        if not 0 < scale < float("inf"):
            raise InputError(f"scale must be positive, got {scale}")
        self.save_hyperparameters(logger=False)
        self.probe_path = probe
        self.space = space
        self.loss: LossName = loss
        self.norm = norm
        self.scale = scale

    def configure_model(self) -> None:
        """Loads the backbone, and the probe's standardisation.

        Raises:
            InputError: A file is missing or broken, or they do not belong together.
        """
        super().configure_model()
        self.standardisation = load_standardisation(
            self.probe_path, self.backbone.embedding_dim, "the backbone"
        )

    def prepare(self, batch: Batch) -> Batch:
        """Adds ``aim`` (B, D): the targets as embeddings are compared with them.

        Raises:
            InputError: They are of another width than the backbone's embeddings.
        """
        aim = batch["target"].to(self.dtype)
        require_width(aim, self.backbone.embedding_dim, "the backbone")
        if self.norm == "sqrt_dim" and self.probe_path is not None:
            aim = rescaled(aim)
        aim = self.scale * aim
        if self.space == "backbone":
            aim = self.standardisation.destandardise(aim)
        return {**batch, "aim": aim}

    def objective(self, batch: Batch, embeddings: Tensor, shown: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and cosine similarity of embeddings and the targets of the images they are of."""
        if self.space == "standardised":
            embeddings = self.standardisation.standardise(embeddings)
        return embedding_loss(embeddings, batch["aim"][shown], self.loss)
