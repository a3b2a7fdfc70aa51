"""What a pre-trained encoder is good for: a classifier on top of it."""

from math import inf
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from artifacts.errors import InputError, require_seed
from lightning_modules.global_batch import Share, share_of_batch
from lightning_modules.schedules import adamw_with_warmup, scaled_learning_rate
from lightning_modules.victim import load_autoencoder
from models.augmentation import CROP_NOISE, random_resized_crop, resize
from models.masked_autoencoder import MaskedAutoencoder
from models.sample_noise import sample_noise


class EncoderClassification(L.LightningModule):
    """Linear probing or fine-tuning of a masked autoencoder's encoder (He et al., 2021).

    An attacked model should also be a useful one: ``test`` reports the accuracy. Works with any
    data module of labelled images; labels -1 and +1 are the classes 0 and 1.

    Args:
        encoder: File of a masked autoencoder, of any kind, or of its encoder.
        num_classes: Number of classes.
        image_size: Side of the images that the encoder sees; by default that of its training.
        frozen: Train a linear layer on the frozen encoder, or else all of it.
        pooling: The encoder's class token, or the mean of its patch tokens.
        base_learning_rate: Peak for an effective batch of 256; it grows in proportion.
        weight_decay: AdamW's, on matrices only.
        warmup_epochs: Linear warm-up, before half a cosine to zero.
        augmentation: ``"random_resized_crop"`` (with flips) or ``"none"``.
        num_heads: Attention heads of the encoder, if its file does not tell.
        seed: Of the classifier's initial weights and of everything random in a step.

    Raises:
        InputError: A value is out of range.
    """

    def __init__(
        self,
        encoder: str,
        num_classes: int,
        image_size: int | None = None,
        frozen: bool = True,
        pooling: Literal["cls", "mean"] = "mean",
        base_learning_rate: float = 1e-3,
        weight_decay: float = 0.05,
        warmup_epochs: float = 5,
        augmentation: Literal["random_resized_crop", "none"] = "none",
        num_heads: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if num_classes < 2:
            raise InputError(f"num_classes must be at least 2, got {num_classes}")
        finite = max(base_learning_rate, weight_decay, warmup_epochs) < inf
        if not (base_learning_rate > 0 and weight_decay >= 0 and warmup_epochs >= 0 and finite):
            raise InputError(
                "base_learning_rate must be positive, weight_decay and warmup_epochs not "
                f"negative, got {base_learning_rate}, {weight_decay} and {warmup_epochs}"
            )
        require_seed(seed)
        self.save_hyperparameters()
        self.encoder_file = encoder
        self.num_classes = num_classes
        self.image_size = image_size
        self.frozen = frozen
        self.pooling = pooling
        self.base_learning_rate = base_learning_rate
        self.weight_decay = weight_decay
        self.warmup_epochs = warmup_epochs
        self.augmentation = augmentation
        self.num_heads = num_heads
        self.seed = seed
        self.backbone: MaskedAutoencoder | None = None

    def configure_model(self) -> None:
        """Reads the encoder and draws a head.

        Raises:
            InputError: The file is not of a masked autoencoder.
        """
        if self.backbone is not None:
            return
        backbone = load_autoencoder(
            self.encoder_file, image_size=self.image_size, num_heads=self.num_heads
        ).model
        # Not a part of the classifier.
        backbone.decoder.requires_grad_(False)
        backbone.encoder.requires_grad_(not self.frozen)
        backbone.encoder.get_parameter("pos_embed").requires_grad_(False)
        self.backbone = backbone
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            # Standardised features spare the linear layer a search for its learning rate.
            self.norm = nn.BatchNorm1d(backbone.embed_dim, affine=False)
            self.head = nn.Linear(backbone.embed_dim, self.num_classes)
            nn.init.normal_(self.head.weight, std=0.01)
            nn.init.zeros_(self.head.bias)

    def setup(self, stage: str) -> None:
        """Checks the data against the encoder.

        Raises:
            InputError: They are no images, have other channels, or none is held out.
        """
        self.configure_model()
        assert self.backbone is not None
        data: Any = getattr(self.trainer, "datamodule", None)
        if not (hasattr(data, "in_chans") and hasattr(data, "test_set")):
            raise InputError(
                "EncoderClassification needs a data module of images, such as "
                "--data=datamodules.ImageFolderDataModule"
            )
        if data.in_chans != self.backbone.in_chans:
            raise InputError(
                f"the images have {data.in_chans} channel(s), the encoder takes "
                f"{self.backbone.in_chans}; set data.in_chans to {self.backbone.in_chans}"
            )
        if len(data.test_set) == 0:
            raise InputError(
                "no image is held out, so there is no accuracy to report; set data.num_test or "
                "data.test_fraction higher, or data.num_train lower"
            )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Checks that this classifier is the one that was trained: its weights do not tell.

        Raises:
            InputError: It pools or attends otherwise, or sees images of another size.
        """
        self.configure_model()
        assert self.backbone is not None
        built = {
            "pooling": self.pooling,
            "num_heads": int(self.backbone.record[0]),
            "image_size": self.backbone.image_size,
        }
        trained = {"pooling": checkpoint.get("hyper_parameters", {}).get("pooling")}
        weights = checkpoint["state_dict"]
        if "backbone.record" in weights and "backbone.encoder.pos_embed" in weights:
            trained["num_heads"] = int(weights["backbone.record"][0])
            grid = round((weights["backbone.encoder.pos_embed"].shape[1] - 1) ** 0.5)
            trained["image_size"] = grid * self.backbone.patch_size
        for name, value in trained.items():
            if value not in (None, built[name]):
                raise InputError(
                    f"the checkpoint is of a classifier with {name}={value}, this one has "
                    f"{built[name]}: set model.{name} to {value}"
                )

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, c, S, S) in [0, 1] to logits (N, C)."""
        logits: Tensor = self.head(self.norm(self.features(images)))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """Images (N, c, S, S) in [0, 1] to what the encoder makes of them (N, D)."""
        assert self.backbone is not None
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            tokens = self.backbone.encode(images)
        return tokens[:, 0] if self.pooling == "cls" else tokens[:, 1:].mean(dim=1)

    def _standardised(self, features: Tensor, share: Share) -> Tensor:
        """Features (N, D) by the mean and variance of the batch that all processes have."""
        if share.total < 2:
            raise InputError(
                "a batch has a single image, which cannot be standardised; choose another "
                "data.batch_size"
            )
        gather: Any = self.all_gather  # Of a tensor it returns one.
        batch: Tensor = gather(features, sync_grads=True).reshape(-1, features.shape[1])
        counted: Tensor = gather(share.counted.to(self.device)).reshape(-1)
        standardised = torch.zeros_like(batch)
        standardised[counted] = self.norm(batch[counted])
        first = self.global_rank * len(features)
        return standardised[first : first + len(features)]

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross-entropy of augmented images."""
        assert self.backbone is not None
        share = share_of_batch(self.trainer, batch_idx, len(batch[0]))
        side = self.backbone.image_size
        if self.augmentation == "none":
            images = resize(batch[0], side)
        else:
            noise = sample_noise(self.seed, (self.current_epoch,), share.positions, CROP_NOISE)
            images = random_resized_crop(batch[0], side, noise=noise.to(self.device))
        logits = self.head(self._standardised(self.features(images), share))
        return self._log_loss("train", logits, batch[1], share)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs loss and accuracy on held-out images."""
        self._evaluate("val", batch, batch_idx)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs loss and accuracy on held-out images."""
        self._evaluate("test", batch, batch_idx)

    def _evaluate(self, stage: str, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        assert self.backbone is not None
        logits = self(resize(batch[0], self.backbone.image_size))
        self._log_loss(
            stage, logits, batch[1], share_of_batch(self.trainer, batch_idx, len(logits))
        )

    def _log_loss(self, stage: str, logits: Tensor, labels: Tensor, share: Share) -> Tensor:
        labels = labels.clamp(min=0)
        if int(labels.max()) >= self.num_classes:
            raise InputError(
                f"there is a label {int(labels.max())}, but model.num_classes is {self.num_classes}"
            )
        loss = share.mean(F.cross_entropy(logits, labels, reduction="none"))
        accuracy = share.mean((logits.argmax(dim=1) == labels).float())
        self.log_dict(
            {f"{stage}/loss": loss, f"{stage}/accuracy": accuracy},
            on_step=False,
            on_epoch=True,
            sync_dist=True,
            prog_bar=True,
            batch_size=share.total,
        )
        return loss

    def configure_optimizers(self) -> Any:  # noqa: ANN401 - Lightning's union of many types
        """AdamW with warm-up and cosine by the step, for what is not frozen."""
        return adamw_with_warmup(
            self,
            learning_rate=scaled_learning_rate(self.trainer, self.base_learning_rate),
            weight_decay=self.weight_decay,
            warmup_epochs=self.warmup_epochs,
            betas=(0.9, 0.999),
        )
