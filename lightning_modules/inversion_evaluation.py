"""Comparison of inverted images with the training images."""

from typing import Any

import lightning as L
import torch
from torch import Tensor

from artifacts.errors import InputError
from artifacts.tensors import INVERSIONS, read_tensors
from attacks.image_quality import Resemblance, lpips, resemblance
from attacks.similarity import nearest_by_cosine, ssim
from lightning_modules.inverted_images import load_standardisation, require_width
from models.backbones import Features, load_backbone


class InversionEvaluation(L.LightningModule):
    """Measures how much inverted images resemble training images; ``test`` only.

    Each image is compared with the training image whose embedding its target is nearest to, or its
    own embedding if it was made without a target. The attacked backbone alone would be fooled by an
    adversarial picture, so a second network can judge as well. This is evaluation, not attack: it
    alone reads the training images.

    Args:
        inversions: The ``inversions.safetensors`` of an inversion.
        original_inversions: The same for the true embeddings of the training images that the
            targets are nearest to (:class:`~lightning_modules.TrueEmbeddings`): what the inversion
            gives at best.
        backbone: The attacked backbone.
        probe: The attacked probe, if targets are in its standardised space.
        weights: The backbone's weights, a local file; by default those of the library.
        features: The backbone's features.
        second_backbone: Another network, which the inversion did not see.
        second_weights: Its weights, a local file; by default those of the library.
        perceptual: Also LPIPS, whose network torchvision has to download once.

    Attributes:
        metrics: Numbers, after the test.
        tensors: What is drawn, after the test.
    """

    def __init__(
        self,
        inversions: str,
        backbone: str,
        probe: str | None = None,
        original_inversions: str | None = None,
        weights: str | None = None,
        features: Features = "cls",
        second_backbone: str | None = None,
        second_weights: str | None = None,
        perceptual: bool = False,
    ) -> None:
        super().__init__()
        self.inversions_path = inversions
        self.original_inversions_path = original_inversions
        self.probe_path = probe
        self.attacked = (backbone, weights, features)
        self.second = None if second_backbone is None else (second_backbone, second_weights, "cls")
        self.perceptual = perceptual
        self.metrics: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}

    def setup(self, stage: str) -> None:
        """Reads what is compared.

        Raises:
            InputError: A file is missing or broken, or the data module has no images.
        """
        self.found, _ = read_tensors(self.inversions_path, INVERSIONS)
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        if not hasattr(data, "images"):
            raise InputError(
                "the comparison needs images: give --data=datamodules.EmbeddingsDataModule"
            )
        self.image_size: int = data.images.image_size
        self.sets = {"": self.found["images"]}
        if self.original_inversions_path is not None:
            originals, _ = read_tensors(self.original_inversions_path, INVERSIONS)
            self.sets["original_"] = originals["images"]
            if originals["images"].shape != self.found["images"].shape:
                raise InputError(
                    f"{self.original_inversions_path} and {self.inversions_path} differ in number "
                    "or size of their images"
                )

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Compares; the batch of held-out samples is not needed."""
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        embeddings = data.train_tensors[0].to(self.device)
        # Decoded by several threads, which are not in the trainer's inference mode.
        with torch.inference_mode(False):
            photos = data.images.train_set.all_pixels().to(self.device) / 255
        images = self.found["images"].to(self.device)
        if len(photos) < 2:
            raise InputError("the comparison needs at least 2 training images")
        mine = self._embed(self.attacked, images)
        require_width(mine, embeddings.shape[1], "the data module gives")
        probe = load_standardisation(self.probe_path, mine.shape[1], "the backbone").to(self.device)
        vectors = probe.standardise(embeddings)
        target = self.found.get("target")
        queries = probe.standardise(mine) if target is None else target.to(vectors)
        target_similarity, own = nearest_by_cosine(queries, vectors)
        columns: dict[str, Tensor] = {"target_similarity": target_similarity}
        for prefix, pictures in self.sets.items():
            quality = self._quality(pictures.to(self.device), photos, embeddings, own)
            columns |= {prefix + name: value for name, value in quality.items()}
        self.metrics = {
            "num_images": len(images),
            "num_train": len(photos),
            "by_target": target is not None,
            "second_backbone": None if self.second is None else self.second[0],
            "mean": {name: float(value.float().mean()) for name, value in columns.items()},
            "images": [
                {
                    "train_image": data.images.train_set.identifiers[int(own[i])],
                    **{name: value[i].item() for name, value in columns.items()},
                }
                for i in range(len(images))
            ],
        }
        self.tensors = {
            **{f"{prefix}images": pictures for prefix, pictures in self.sets.items()},
            "train_images": _resized(photos[own], images.shape[-1]),
            "label": self.found["label"],
            **{name: value.float() for name, value in columns.items()},
        }
        self.log_dict({f"inversion/{n}": v for n, v in self.metrics["mean"].items()})

    def _quality(
        self, images: Tensor, photos: Tensor, embeddings: Tensor, own: Tensor
    ) -> dict[str, Tensor]:
        """How images (k, 3, S, S) compare with their own among the photos, by name (k,)."""
        pairs = _resized(photos[own], images.shape[-1])
        attacked = resemblance(self._embed(self.attacked, images), embeddings, own)
        quality = {"ssim": ssim(images, pairs), **_columns("attacked", attacked)}
        if self.second is not None:
            found, true = (self._embed(self.second, x) for x in (images, photos))
            quality |= _columns("second", resemblance(found, true, own))
        if self.perceptual:
            quality["lpips"] = self._lpips(images, pairs)
        return quality

    def _embed(self, source: tuple[str, str | None, Any], images: Tensor) -> Tensor:
        """Embeddings (N, D) by a network, the attacked one at the size of the data module's."""
        name, weights, features = source
        size = self.image_size if source is self.attacked else None
        try:
            backbone = load_backbone(name, weights, image_size=size, features=features)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(str(error)) from error
        backbone = backbone.to(self.device)
        with torch.no_grad():
            parts = [backbone(_resized(x, backbone.image_size)) for x in torch.split(images, 32)]
        return torch.cat(parts)

    def _lpips(self, first: Tensor, second: Tensor) -> Tensor:
        try:
            return lpips(first, second)
        except OSError as error:
            raise InputError(
                f"model.perceptual needs a network that could not be downloaded ({error}); leave "
                "it out"
            ) from error


def _columns(name: str, result: Resemblance) -> dict[str, Tensor]:
    return {
        f"{name}_similarity": result.similarity,
        f"{name}_others": result.others,
        f"{name}_rank": result.rank,
    }


def _resized(images: Tensor, size: int) -> Tensor:
    """Images (N, 3, H, W) at side ``size``."""
    if images.shape[-1] == size:
        return images
    from torchvision.transforms.v2.functional import resize

    resized: Tensor = resize(images, [size, size], antialias=True).clamp(0, 1)
    return resized
