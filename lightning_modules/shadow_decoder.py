"""A decoder for an encoder that was released without one."""

import copy
from dataclasses import replace
from typing import Any, Literal

import torch

from artifacts.errors import InputError
from artifacts.training_record import TrainingRecord
from lightning_modules.mae_pretraining import MAEPretraining
from lightning_modules.membership_roles import (
    SIZES_OF_DECODER,
    require_attackers_decoder,
    require_same_split,
)
from lightning_modules.victim import load_autoencoder
from models.mae_weights import DecoderSize, PretrainedAutoencoder


class ShadowDecoder(MAEPretraining):
    """Fine-tunes the shadow's decoder on a frozen encoder, to stand for the decoder it lacks.

    Membership Inference Attack Against Masked Image Modeling, "Target Encoder-Decoder Simulation".
    Only the decoder is trained; weights and statistics of the encoder stay as they were released.

    Args:
        encoder: File of the attacked encoder. If it holds a decoder, that is left unread.
        decoder: File of the shadow autoencoder whose decoder is the start; without one, a fresh
            decoder of the sizes below.
        num_heads: Attention heads of the encoder, if its file does not tell.
        decoder_embed_dim: Dimension of a fresh decoder's tokens.
        decoder_depth: Blocks of a fresh decoder.
        decoder_num_heads: Attention heads of a fresh decoder.
        image_size: Side of the images; by default that of the encoder.
        norm_pix_loss: Whether a fresh decoder predicts standardised patches.
        mask_ratio: Share of patches that are removed: that of the attacked encoder's training.
        base_learning_rate: Peak for an effective batch of 256; it grows in proportion.
        weight_decay: AdamW's, on matrices only.
        warmup_epochs: Linear warm-up, before half a cosine to zero.
        augmentation: ``"random_resized_crop"`` (with flips) or ``"none"``.
        seed: Of a fresh decoder's weights and of everything random in a step.

    Raises:
        InputError: A value is out of range.
    """

    def __init__(
        self,
        encoder: str,
        decoder: str | None = None,
        num_heads: int | None = None,
        decoder_embed_dim: int = 512,
        decoder_depth: int = 8,
        decoder_num_heads: int = 16,
        image_size: int | None = None,
        norm_pix_loss: bool = False,
        mask_ratio: float = 0.75,
        base_learning_rate: float = 1.5e-4,
        weight_decay: float = 0.05,
        warmup_epochs: float = 5,
        augmentation: Literal["random_resized_crop", "none"] = "none",
        seed: int = 0,
    ) -> None:
        super().__init__(
            mask_ratio=mask_ratio,
            base_learning_rate=base_learning_rate,
            weight_decay=weight_decay,
            warmup_epochs=warmup_epochs,
            augmentation=augmentation,
            seed=seed,
        )
        self.encoder_path = encoder
        self.decoder_path = decoder
        self.num_heads = num_heads
        self.fresh = DecoderSize(decoder_embed_dim, decoder_depth, decoder_num_heads)
        self.norm_pix_loss = norm_pix_loss
        self.asked_image_size = image_size

    def configure_model(self) -> None:
        """Joins encoder and decoder.

        Raises:
            InputError: A file is of no use, or the two do not fit each other.
        """
        if self.model is not None:
            return
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            attacked = self._with_fresh_decoder()
        simulated = attacked.model
        self._records = {self.encoder_path: attacked.training}
        if self.decoder_path is not None:
            self._give_decoder(attacked, self.decoder_path)
        simulated.encoder.requires_grad_(False)
        self.model = simulated
        self.require_mask_ratio()
        self.image_size, self.in_chans = simulated.image_size, simulated.in_chans
        self._removed_errors = simulated.removed_errors

    def _with_fresh_decoder(self) -> PretrainedAutoencoder:
        return load_autoencoder(
            self.encoder_path,
            image_size=self.asked_image_size,
            num_heads=self.num_heads,
            norm_pix_loss=self.norm_pix_loss,
            decoder=self.fresh,
        )

    def _give_decoder(self, attacked: PretrainedAutoencoder, path: str) -> None:
        shadow, simulated = load_autoencoder(path), attacked.model
        if not shadow.has_decoder:
            raise InputError(f"{path} holds an encoder without a decoder; give a whole autoencoder")
        model = shadow.model
        for name in SIZES_OF_DECODER:
            ours, theirs = getattr(simulated, name), getattr(model, name)
            if ours != theirs:
                raise InputError(
                    f"the decoder of {path} does not fit {self.encoder_path}: their {name} are "
                    f"{theirs} and {ours}; train the shadow at the sizes of the attacked encoder"
                )
        require_attackers_decoder(path, shadow, attacked)
        self._records[path] = shadow.training
        simulated.decoder = copy.deepcopy(model.decoder)
        simulated.norm_pix_loss = model.norm_pix_loss
        simulated.record[1:] = model.record[1:]

    def setup(self, stage: str) -> None:
        """Checks the data against the encoder, and what the files say against the split.

        Raises:
            InputError: They do not fit, or members of the target would be trained on.
        """
        self.configure_model()
        super().setup(stage)
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        if stage == "fit" and data.trained_on[0] == "target":
            raise InputError(
                "data.part is 'target': the decoder would be trained on the members that the "
                "attack is to find; set data.part to 'pool' or 'shadow_1'"
            )
        digests = getattr(data, "training_digests", {})
        for path, record in self._records.items():
            require_same_split(path, record, digests)

    def record_of_training(self) -> TrainingRecord:
        """What checkpoints say about this training, and about the encoder's."""
        encoder = self._records[self.encoder_path]
        return replace(
            super().record_of_training(),
            kind="decoder",
            encoder=None if encoder is None else encoder.of_encoder,
        )

    def train(self, mode: bool = True) -> "ShadowDecoder":
        """The encoder stays in evaluation mode."""
        super().train(mode)
        if self.model is not None:
            self.model.encoder.eval()
        return self
