"""Pre-training of a masked autoencoder: the target, and the shadow, of a membership attack."""

from collections.abc import Sequence
from math import inf
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryAUROC

from artifacts.errors import InputError, require_seed
from artifacts.training_record import ENTRY, TrainingRecord
from lightning_modules.global_batch import share_of_batch
from lightning_modules.membership_roles import require_shadow_of
from lightning_modules.schedules import adamw_with_warmup, scaled_learning_rate
from lightning_modules.victim import load_autoencoder
from models.augmentation import CROP_NOISE, random_resized_crop, resize
from models.mae_sizes import masked_autoencoder
from models.mae_weights import IMAGENET_MEAN, IMAGENET_STD
from models.masked_autoencoder import MaskedAutoencoder
from models.patch_masking import count_visible
from models.sample_noise import sample_noise

# What random numbers are for; those of the two have nothing in common.
_TRAINING, _EVALUATION = range(2)
# Label of an image that is evaluated twice so that all processes have equally many.
_REPEATED = -1


class MAEPretraining(L.LightningModule):
    """Trains a masked autoencoder as He et al. (2021) do, and measures what it memorises.

    Validation compares members with non-members under fixed masks, without augmentation: the mean
    error of each, their gap, and the AUC of a guess of membership by the error. With the true
    decoder at hand that is the most a one-mask attack by error can reach.

    Crop and mask of an image come from the seed, the epoch and the image's place in it: a run that
    was stopped anywhere continues as if it had not been, and several processes, or accumulated
    batches, make the same steps as one. Dropout comes from the seed, the epoch and the batch, of
    which each process takes its part.

    Args:
        size: ``encoder_i``, ``encoder_ii`` or ``encoder_iii`` (Table 1: ViT-Base, Large, Huge), or
            ``tiny``; the numbers below replace parts of it.
        image_size: Side of the images that the model sees; others are resized to it.
        in_chans: Channels of an image.
        patch_size: Side of a patch.
        embed_dim: Dimension of the encoder's tokens.
        depth: Blocks of the encoder.
        num_heads: Attention heads of the encoder.
        decoder_embed_dim: Dimension of the decoder's tokens.
        decoder_depth: Blocks of the decoder.
        decoder_num_heads: Attention heads of the decoder.
        norm_pix_loss: Whether the target is each patch standardised by its own mean and variance.
        mask_ratio: Share of patches that are removed.
        encoder_dropout: Dropout rate in the encoder, a defence (Table 6).
        decoder_dropout: Dropout rate in the decoder, a defence (Table 6).
        base_learning_rate: Peak for an effective batch of 256; it grows in proportion.
        weight_decay: AdamW's, on matrices only; larger values are a defence (Table 6, "L2").
        warmup_epochs: Linear warm-up, before half a cosine to zero.
        betas: AdamW's.
        augmentation: ``"random_resized_crop"`` (with flips) or ``"none"``.
        crop_scale: Range of a crop's share of the area.
        normalisation: ``"imagenet"`` subtracts and divides by that dataset's mean and standard
            deviation, ``"none"`` leaves images in [0, 1].
        weights: A file of a masked autoencoder to start from; sizes, normalisation and target come
            from it.
        attacked: The file of the encoder that this model is to be a shadow of: another size (or
            mask ratio, if the file tells it) is refused before anything is trained. Nothing else
            is taken from it.
        compile: Compile the model (worth it on a GPU).
        seed: Of the initial weights and of everything random in a step.

    Raises:
        InputError: A value is out of range.
    """

    def __init__(
        self,
        size: str = "tiny",
        image_size: int = 224,
        in_chans: int = 3,
        patch_size: int | None = None,
        embed_dim: int | None = None,
        depth: int | None = None,
        num_heads: int | None = None,
        decoder_embed_dim: int | None = None,
        decoder_depth: int | None = None,
        decoder_num_heads: int | None = None,
        norm_pix_loss: bool = False,
        mask_ratio: float = 0.75,
        encoder_dropout: float = 0.0,
        decoder_dropout: float = 0.0,
        base_learning_rate: float = 1.5e-4,
        weight_decay: float = 0.05,
        warmup_epochs: float = 40,
        betas: tuple[float, float] = (0.9, 0.95),
        augmentation: Literal["random_resized_crop", "none"] = "random_resized_crop",
        crop_scale: Sequence[float] = (0.2, 1.0),
        normalisation: Literal["imagenet", "none"] = "imagenet",
        weights: str | None = None,
        attacked: str | None = None,
        compile: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 0 < mask_ratio < 1:
            raise InputError(f"mask_ratio must be in (0, 1), got {mask_ratio}")
        if not (0 < base_learning_rate < inf and 0 <= weight_decay < inf):
            raise InputError(
                "base_learning_rate must be positive and weight_decay not negative, got "
                f"{base_learning_rate} and {weight_decay}"
            )
        if not (0 <= warmup_epochs < inf and all(0 <= beta < 1 for beta in betas)):
            raise InputError(
                "warmup_epochs must not be negative and betas be in [0, 1), got "
                f"{warmup_epochs} and {list(betas)}"
            )
        if not (0 <= encoder_dropout < 1 and 0 <= decoder_dropout < 1):
            raise InputError(
                "encoder_dropout and decoder_dropout must be in [0, 1), got "
                f"{encoder_dropout} and {decoder_dropout}"
            )
        require_seed(seed)
        if len(crop_scale) != 2 or not 0 < crop_scale[0] <= crop_scale[1] <= 1:
            raise InputError(f"crop_scale must be a range in (0, 1], got {crop_scale}")
        if normalisation == "imagenet" and in_chans != len(IMAGENET_MEAN):
            raise InputError("normalisation 'imagenet' is for 3 channels; set it to 'none'")
        self.save_hyperparameters()
        self.mask_ratio = mask_ratio
        self.base_learning_rate = base_learning_rate
        self.weight_decay = weight_decay
        self.warmup_epochs = warmup_epochs
        self.betas = betas
        self.augmentation = augmentation
        self.crop_scale = crop_scale
        self.normalisation = normalisation
        self.weights = weights
        self.attacked = attacked
        self.compile_model = compile
        self.seed = seed
        self.size, self.image_size, self.in_chans = size, image_size, in_chans
        sizes = {
            "patch_size": patch_size,
            "embed_dim": embed_dim,
            "depth": depth,
            "num_heads": num_heads,
            "decoder_embed_dim": decoder_embed_dim,
            "decoder_depth": decoder_depth,
            "decoder_num_heads": decoder_num_heads,
        }
        self._options: dict[str, float] = {k: v for k, v in sizes.items() if v is not None}
        self._options |= {
            "norm_pix_loss": norm_pix_loss,
            "encoder_dropout": encoder_dropout,
            "decoder_dropout": decoder_dropout,
        }
        self.model: MaskedAutoencoder | None = None
        self.training_record: TrainingRecord | None = None
        self._starts_from_owners_decoder = False
        self.train_error, self.test_error = MeanMetric(), MeanMetric()
        self.membership = BinaryAUROC(ignore_index=_REPEATED)

    @property
    def autoencoder(self) -> MaskedAutoencoder:
        """The model, once :meth:`configure_model` has built it."""
        assert self.model is not None
        return self.model

    def configure_model(self) -> None:
        """Builds the model, with weights that depend on the seed alone.

        Raises:
            InputError: Sizes do not fit each other or the mask ratio, or a file is of no use.
        """
        if self.model is not None:
            return
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            if self.weights is not None:
                self.model = self._loaded(self.weights)
            else:
                try:
                    self.model = masked_autoencoder(
                        self.size, self.image_size, self.in_chans, **self._options
                    )
                except ValueError as error:
                    raise InputError(f"model: {error}") from error
                if self.normalisation == "imagenet":
                    self.model.mean.copy_(torch.tensor(IMAGENET_MEAN))
                    self.model.std.copy_(torch.tensor(IMAGENET_STD))
        self.require_mask_ratio()
        if self.attacked is not None:
            require_shadow_of(self.attacked, self.model, self.mask_ratio)
        self._removed_errors: Any = self.model.removed_errors
        if self.compile_model:
            self._removed_errors = torch.compile(self.model.removed_errors)

    def require_mask_ratio(self) -> None:
        """Checks that some patches are masked and others are visible.

        Raises:
            InputError: They are not.
        """
        try:
            count_visible(self.autoencoder.num_patches, self.mask_ratio)
        except ValueError as error:
            raise InputError(f"model.mask_ratio: {error}") from error

    def _loaded(self, path: str) -> MaskedAutoencoder:
        """The autoencoder in a file, with the options that a file does not hold."""
        heads = self._options.get("num_heads")
        loaded = load_autoencoder(
            path,
            image_size=self.image_size,
            num_heads=None if heads is None else int(heads),
            # Where it is not asked for, the file's own, if it says.
            norm_pix_loss=True if self._options["norm_pix_loss"] else None,
        )
        record, model = loaded.training, loaded.model
        self._starts_from_owners_decoder = (
            loaded.has_decoder and record is not None and record.part == "target"
        )
        blocks = model.encoder.get_submodule("blocks")
        assert isinstance(blocks, nn.Sequential)
        found = {
            "patch_size": model.patch_size,
            "embed_dim": model.embed_dim,
            "depth": len(blocks),
            "decoder_embed_dim": model.decoder.embed.out_features,
            "decoder_depth": len(list(model.decoder.blocks)),
            "decoder_num_heads": int(model.record[1]),
        }
        for name, value in found.items():
            if self._options.get(name, value) != value:
                asked = self._options[name]
                fresh = name.startswith("decoder_") and not loaded.has_decoder
                raise InputError(
                    f"{'a fresh decoder for ' * fresh}{path} has {name}={value}, model.{name} is "
                    f"{asked}: leave it out"
                )
        model.set_dropout(self._options["encoder_dropout"], self._options["decoder_dropout"])
        return model

    def setup(self, stage: str) -> None:
        """Checks the data against the model.

        Raises:
            InputError: There are no members and non-members, or they have other channels.
        """
        data: Any = getattr(self.trainer, "datamodule", None)
        if not hasattr(data, "first_images"):
            raise InputError("MAEPretraining needs --data=datamodules.PretrainingDataModule")
        channels = data.image_shape[0]
        if channels != self.in_chans:
            raise InputError(
                f"the images have {channels} channel(s), the model takes {self.in_chans}; "
                f"set model.in_chans to {channels}, or the images' in_chans to {self.in_chans}"
            )

    def on_fit_start(self) -> None:
        """Notes for checkpoints what the model is trained on."""
        self.training_record = self.record_of_training()

    def record_of_training(self) -> TrainingRecord:
        """What checkpoints say about this training.

        Raises:
            InputError: A shadow would start from the decoder that the target's owner keeps.
        """
        part, images = self.trainer.datamodule.trained_on  # type: ignore[attr-defined]
        if self._starts_from_owners_decoder and part not in ("", "target"):
            raise InputError(
                f"{self.weights} holds the target's own decoder, which no attacker has: start "
                f"'{part}' from the encoder.safetensors of that run"
            )
        return TrainingRecord("autoencoder", self.mask_ratio, part, images)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Says in the checkpoint what the model was trained on."""
        if self.training_record is not None:
            checkpoint[ENTRY] = self.training_record.as_dict()

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, c, S, S) in [0, 1] to the encoder's tokens (N, 1 + L, D), nothing masked."""
        return self.autoencoder.encode(images)

    def on_train_batch_start(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Seeds the dropout of this step, in all processes alike."""
        place = np.random.SeedSequence(self.seed, spawn_key=(self.current_epoch, batch_idx))
        torch.manual_seed(int(place.generate_state(1)[0]))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Mean squared error of the removed patches of augmented images."""
        share = share_of_batch(self.trainer, batch_idx, len(batch[0]))
        place, width = (_TRAINING, self.current_epoch), CROP_NOISE + self.autoencoder.num_patches
        noise = sample_noise(self.seed, place, share.positions, width).to(self.device)
        crops, masks = noise[:, :CROP_NOISE], noise[:, CROP_NOISE:]
        if self.augmentation == "none":
            images = resize(batch[0], self.image_size)
        else:
            images = random_resized_crop(batch[0], self.image_size, self.crop_scale, crops)
        loss = share.mean(self._removed_errors(images, self.mask_ratio, masks).mean(dim=1))
        self.log(
            "train/loss",
            loss,
            on_step=False,
            on_epoch=True,
            sync_dist=True,
            prog_bar=True,
            batch_size=share.total,
        )
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.log("train/learning_rate", rate, batch_size=share.total)
        return loss

    def on_train_epoch_end(self) -> None:
        """Stops a training that diverged.

        Raises:
            InputError: The epoch's loss is not finite.
        """
        loss = self.trainer.callback_metrics.get("train/loss")
        if loss is not None and not bool(torch.isfinite(loss)):
            raise InputError(
                f"the training diverged (loss {float(loss)}); lower model.base_learning_rate or "
                "set trainer.gradient_clip_val"
            )

    def validation_step(
        self, batch: tuple[Tensor, Tensor], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Errors of members (first loader) or non-members (second), under fixed masks."""
        self._compare(batch, batch_idx, dataloader_idx)

    def test_step(
        self, batch: tuple[Tensor, Tensor], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """As in validation, for all images."""
        self._compare(batch, batch_idx, dataloader_idx)

    def fixed_noise(self, positions: Tensor) -> Tensor:
        """Masking noise (N, L) of images that are evaluated, by their places (N,) in the set."""
        noise = sample_noise(self.seed, (_EVALUATION,), positions, self.autoencoder.num_patches)
        return noise.to(self.device)

    def _compare(self, batch: tuple[Tensor, Tensor], batch_idx: int, dataloader_idx: int) -> None:
        share = share_of_batch(self.trainer, batch_idx, len(batch[0]), dataloader_idx)
        images = resize(batch[0], self.image_size)
        noise = self.fixed_noise(share.positions)
        errors = self.autoencoder.per_image_error(images, self.mask_ratio, noise)
        counted = share.counted.to(self.device)
        (self.test_error if dataloader_idx else self.train_error).update(errors, counted)
        members = torch.full_like(errors, 1 - dataloader_idx).long()
        self.membership.update(-errors, torch.where(counted, members, _REPEATED))

    def on_validation_epoch_end(self) -> None:
        """Logs the gap between members and non-members."""
        self._log_gap("val")

    def on_test_epoch_end(self) -> None:
        """Logs the gap between members and non-members."""
        self._log_gap("test")

    def _log_gap(self, stage: str) -> None:
        train, test = self.train_error.compute(), self.test_error.compute()
        gap = {"train_loss": train, "test_loss": test, "gap": test - train}
        gap["membership_auc"] = self.membership.compute()
        self.log_dict({f"{stage}/{name}": value for name, value in gap.items()}, prog_bar=True)
        for metric in (self.train_error, self.test_error, self.membership):
            metric.reset()

    def configure_optimizers(self) -> Any:  # noqa: ANN401 - Lightning's union of many types
        """AdamW with warm-up and cosine by the step; the rate grows with the effective batch."""
        return adamw_with_warmup(
            self,
            learning_rate=scaled_learning_rate(self.trainer, self.base_learning_rate),
            weight_decay=self.weight_decay,
            warmup_epochs=self.warmup_epochs,
            betas=self.betas,
        )
