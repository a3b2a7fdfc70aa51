"""The baseline attack on images: pictures that a probe behind its backbone is confident about."""

from torch import Tensor
from torch.utils.data import DataLoader

from artifacts.errors import InputError
from attacks.draws import balanced_labels
from attacks.image_loss import class_loss
from attacks.image_search import SearchSettings
from lightning_modules.image_search import DEFAULT_SEARCH, GeneratedImages
from lightning_modules.inverted_images import Batch, load_standardisation
from models.backbones import Features
from models.deep_image_prior import DEFAULT_PRIOR, PriorSettings
from models.probe import Probe


class ImageActivationMaximisation(GeneratedImages):
    """Minimises the probe's loss over images, argmin_g L(φ(F(g(z))), y); ``predict`` only.

    Reconstructing Training Data From Real-World Models Trained with Transfer Learning, A.8, second
    variant: the same generator and search as :class:`~lightning_modules.DIPInversion`, and the same
    files, with the probe's loss in the place of the distance to an embedding. What is reported as
    similarity is the probability that the probe gives to the label.

    Args:
        backbone: Name of the frozen backbone, see :func:`~models.backbones.load_backbone`.
        probe: The attacked probe.
        num_images: How many images, equally many of each label.
        first: Index of the first one, for shares of a job array.
        stride: Take every ``stride``-th.
        batch_size: How many are searched for at once.
        weights: The backbone's weights, a local file; by default those of the library.
        image_size: Side S of images, by default the backbone's.
        features: The backbone's features.
        search: How images are searched for.
        generator: What the generators of images are like.
        seed: Seed of generators, noise and views.

    Raises:
        InputError: A number makes no sense.
    """

    probe: Probe

    def __init__(
        self,
        backbone: str,
        probe: str,
        num_images: int = 40,
        first: int = 0,
        stride: int = 1,
        batch_size: int = 8,
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
        if min(num_images, first + 1, stride, batch_size) < 1 or first >= num_images:
            raise InputError(
                "num_images, stride and batch_size must be at least 1, and first below num_images"
            )
        # Which share this is, and how it is cut into batches, does not change an image.
        self.save_hyperparameters(ignore=["first", "stride", "batch_size"], logger=False)
        self.probe_path = probe
        self.total = num_images
        self.indices = range(first, num_images, stride)
        self.batch_size = batch_size

    def configure_model(self) -> None:
        """Loads backbone and probe.

        Raises:
            InputError: A file is missing or broken, or they do not belong together.
        """
        super().configure_model()
        self.probe = load_standardisation(
            self.probe_path, self.backbone.embedding_dim, "the backbone"
        )
        try:
            self.labels = balanced_labels(self.total, self.probe.out_features)
        except ValueError as error:
            raise InputError(str(error).replace("num_candidates", "num_images")) from error

    def setup(self, stage: str) -> None:
        """Checks the trainer.

        Raises:
            InputError: There are data, which the attack has none of, or more processes than images.
        """
        super().setup(stage)
        if getattr(self.trainer, "datamodule", None) is not None:
            raise InputError("the attack takes no data: leave out --data")
        if self.trainer.world_size > len(self.indices):
            raise InputError(
                f"{len(self.indices)} images cannot be shared by {self.trainer.world_size} "
                "processes; lower trainer.devices"
            )

    def predict_dataloader(self) -> DataLoader[dict[str, Tensor | int]]:
        """Batches of ``index`` (B,) and ``label`` (B,)."""
        items = [{"index": index, "label": self.labels[index]} for index in self.indices]
        return DataLoader(items, batch_size=self.batch_size)  # type: ignore[arg-type]

    def prepare(self, batch: Batch) -> Batch:
        """The batch as it is."""
        return batch

    def objective(self, batch: Batch, embeddings: Tensor, shown: Tensor) -> tuple[Tensor, Tensor]:
        """The probe's loss, and the probability it gives to the label of each image."""
        return class_loss(self.probe(embeddings), batch["label"][shown])
