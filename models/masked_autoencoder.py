"""Masked autoencoder: a ViT that encodes the visible patches and a small one that fills the rest.

Masked Autoencoders Are Scalable Vision Learners (He et al., 2021), the target of Membership
Inference Attack Against Masked Image Modeling (Table 1).
"""

from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.mae_decoder import MaskedDecoder, sincos_positions
from models.patch_masking import Masking, masking_from_noise, take
from models.shared_dropout import SharedDropout


class MaskedAutoencoder(nn.Module):
    """The autoencoder of He et al. with its encoder and decoder as parts of their own.

    ``encoder`` is timm's ``VisionTransformer`` (so its state dict is one that timm loads),
    ``decoder`` a :class:`MaskedDecoder`; either can be exchanged for that of another model with
    the same shapes. Images come in [0, 1] and are normalised inside with the buffers ``mean`` and
    ``std`` (c,), which are part of the model; at first they change nothing.

    Args:
        image_size: Side of the square images S.
        patch_size: Side of a patch p; divides S.
        in_chans: Channels of an image c.
        embed_dim: Dimension D of the encoder's tokens.
        depth: Blocks of the encoder.
        num_heads: Attention heads of the encoder.
        decoder_embed_dim: Dimension of the decoder's tokens.
        decoder_depth: Blocks of the decoder.
        decoder_num_heads: Attention heads of the decoder.
        mlp_ratio: Hidden width of the blocks' MLPs over their dimension.
        norm_pix_loss: Whether the target is each patch standardised by its own mean and variance.
        encoder_dropout: Dropout rate in the encoder (a defence, Table 6).
        decoder_dropout: Dropout rate in the decoder (a defence, Table 6).

    Raises:
        ValueError: Sizes do not fit each other.
    """

    mean: Tensor
    std: Tensor
    record: Tensor

    def __init__(
        self,
        image_size: int,
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        decoder_embed_dim: int,
        decoder_depth: int,
        decoder_num_heads: int,
        mlp_ratio: float = 4.0,
        norm_pix_loss: bool = False,
        encoder_dropout: float = 0.0,
        decoder_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check_sizes(image_size, patch_size, embed_dim, num_heads)
        _check_sizes(image_size, patch_size, decoder_embed_dim, decoder_num_heads)
        if min(in_chans, depth, decoder_depth) < 1:
            raise ValueError("channels and depths must be at least 1")
        from timm.models.vision_transformer import VisionTransformer

        self.image_size, self.patch_size, self.in_chans = image_size, patch_size, in_chans
        self.norm_pix_loss = norm_pix_loss
        grid = image_size // patch_size
        self.encoder: nn.Module = VisionTransformer(
            img_size=image_size,
            patch_size=patch_size,
            in_chans=in_chans,
            num_classes=0,
            global_pool="",
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            mlp_ratio=mlp_ratio,
            norm_layer=partial(nn.LayerNorm, eps=1e-6),
            weight_init="skip",
        )
        self.encoder.pos_embed = nn.Parameter(
            sincos_positions(embed_dim, grid), requires_grad=False
        )
        self.decoder = MaskedDecoder(
            embed_dim,
            grid,
            patch_size**2 * in_chans,
            decoder_embed_dim,
            decoder_depth,
            decoder_num_heads,
            mlp_ratio,
        )
        self.set_dropout(encoder_dropout, decoder_dropout)
        self.register_buffer("mean", torch.zeros(in_chans))
        self.register_buffer("std", torch.ones(in_chans))
        # What shapes do not tell, so that a state dict alone says what model it is of.
        self.register_buffer(
            "record", torch.tensor([num_heads, decoder_num_heads, int(norm_pix_loss)])
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws fresh weights: Xavier-uniform matrices, normal(0, 0.02) tokens, zero biases."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
        with torch.no_grad():
            projection = self.encoder.get_submodule("patch_embed.proj")
            assert isinstance(projection, nn.Conv2d)
            assert projection.bias is not None
            nn.init.xavier_uniform_(projection.weight.flatten(1))
            nn.init.zeros_(projection.bias)
            nn.init.normal_(self.encoder.get_parameter("cls_token"), std=0.02)
            nn.init.normal_(self.decoder.mask_token, std=0.02)

    def set_dropout(self, encoder: float, decoder: float) -> None:
        """Sets the rates of dropout behind attention and inside and behind the MLPs.

        Args:
            encoder: Rate in the encoder.
            decoder: Rate in the decoder.

        Raises:
            ValueError: A rate is out of range.
        """
        if not (0 <= encoder < 1 and 0 <= decoder < 1):
            raise ValueError("dropout rates must be in [0, 1)")
        for part, rate in ((self.encoder, encoder), (self.decoder, decoder)):
            for name, _ in list(part.named_modules()):
                # As timm's proj_drop_rate; not in the attention's weights.
                if name.endswith(("proj_drop", "mlp.drop1", "mlp.drop2")):
                    part.set_submodule(name, SharedDropout(rate))

    @property
    def num_patches(self) -> int:
        """Patches per image L."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def embed_dim(self) -> int:
        """Dimension D of the encoder's tokens."""
        return self.encoder.get_parameter("cls_token").shape[2]

    def patchify(self, images: Tensor) -> Tensor:
        """Images (N, c, S, S) to patches (N, L, p²·c): row, column, channel inside a patch.

        Raises:
            ValueError: The images have another shape.
        """
        expected = (self.in_chans, self.image_size, self.image_size)
        if tuple(images.shape[1:]) != expected:
            raise ValueError(
                f"images have shape {tuple(images.shape[1:])}, the model takes {expected}"
            )
        side, grid = self.patch_size, self.image_size // self.patch_size
        tiles = images.reshape(len(images), self.in_chans, grid, side, grid, side)
        return tiles.permute(0, 2, 4, 3, 5, 1).reshape(len(images), grid * grid, -1)

    def unpatchify(self, patches: Tensor) -> Tensor:
        """Patches (N, L, p²·c) to images (N, c, S, S)."""
        side, grid = self.patch_size, self.image_size // self.patch_size
        tiles = patches.reshape(len(patches), grid, grid, side, side, self.in_chans)
        return tiles.permute(0, 5, 1, 3, 2, 4).reshape(
            len(patches), self.in_chans, self.image_size, self.image_size
        )

    def normalise(self, images: Tensor) -> Tensor:
        """Images (N, c, S, S) in [0, 1] to the scale that the layers see.

        Raises:
            ValueError: They have other channels than the model.
        """
        if images.shape[1] != self.in_chans:
            raise ValueError(f"images have {images.shape[1]} channels, the model {self.in_chans}")
        return (images - self.mean[:, None, None]) / self.std[:, None, None]

    def denormalise(self, images: Tensor) -> Tensor:
        """The inverse of :meth:`normalise`."""
        return images * self.std[:, None, None] + self.mean[:, None, None]

    def target(self, patches: Tensor) -> Tensor:
        """What the decoder is to predict for patches (N, L, p²·c) of normalised images."""
        if not self.norm_pix_loss:
            return patches
        variance, mean = torch.var_mean(patches, dim=2, keepdim=True)
        return (patches - mean) / (variance + 1e-6).sqrt()

    def masking(self, images: Tensor, mask_ratio: float, noise: Tensor | None = None) -> Masking:
        """Chooses the patches to remove.

        Args:
            images: The images (N, c, S, S).
            mask_ratio: Share of patches to remove, in (0, 1).
            noise: One number per patch (N, L), the lowest stay; by default random.

        Raises:
            ValueError: The ratio or the shape of the noise is wrong.
        """
        shape = (len(images), self.num_patches)
        if noise is None:
            noise = torch.rand(shape, device=images.device)
        if tuple(noise.shape) != shape:
            raise ValueError(f"the noise has shape {tuple(noise.shape)}, expected {shape}")
        return masking_from_noise(noise, mask_ratio)

    def embed(self, patches: Tensor, visible: Tensor | None = None) -> Tensor:
        """The encoder's input: class token and patches with their positions.

        Args:
            patches: Patches (N, L, p²·c) of normalised images.
            visible: Indices (N, K) of those to embed; by default all.

        Returns:
            Tokens (N, 1 + K, D).
        """
        positions = self.encoder.get_parameter("pos_embed").expand(len(patches), -1, -1)
        cls_token = self.encoder.get_parameter("cls_token") + positions[:, :1]
        positions = positions[:, 1:]
        if visible is not None:
            # Only these are multiplied: at ratio 0.75 a quarter of the work.
            patches = take(patches, visible)
            positions = take(positions, visible)
        projection = self.encoder.get_submodule("patch_embed.proj")
        assert isinstance(projection, nn.Conv2d)
        kernel = projection.weight.permute(0, 2, 3, 1).flatten(1)
        tokens = F.linear(patches, kernel, projection.bias) + positions
        return torch.cat([cls_token.to(tokens.dtype), tokens], dim=1)

    def encode_patches(self, patches: Tensor, visible: Tensor | None = None) -> Tensor:
        """Latent tokens (N, 1 + K, D), after the final norm; arguments as for :meth:`embed`."""
        tokens = self.encoder.get_submodule("blocks")(self.embed(patches, visible))
        latent: Tensor = self.encoder.get_submodule("norm")(tokens)
        return latent

    def encode(self, images: Tensor) -> Tensor:
        """Latent tokens (N, 1 + L, D) of whole images, class token first, after the final norm."""
        return self.encode_patches(self.patchify(self.normalise(images)))

    def encode_visible(
        self, images: Tensor, mask_ratio: float, noise: Tensor | None = None
    ) -> tuple[Tensor, Masking]:
        """Latent tokens (N, 1 + K, D) of the visible patches, and which patches these are."""
        masking = self.masking(images, mask_ratio, noise)
        return self.encode_patches(self.patchify(self.normalise(images)), masking.visible), masking

    def block_features(self, images: Tensor) -> list[Tensor]:
        """The tokens (N, 1 + L, D) of whole images behind each block, before the final norm."""
        tokens = self.embed(self.patchify(self.normalise(images)))
        features = []
        for block in self.encoder.get_submodule("blocks").children():
            tokens = block(tokens)
            features.append(tokens)
        return features

    def forward(
        self, images: Tensor, mask_ratio: float, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Masks and reconstructs.

        Args:
            images: Images (N, c, S, S) in [0, 1].
            mask_ratio: Share of patches to remove, in (0, 1).
            noise: One number per patch (N, L), the lowest stay visible; by default random.

        Returns:
            The mean squared error of the removed patches, the prediction of every patch
            (N, L, p²·c), and the mask (N, L), 1 = removed.

        Raises:
            ValueError: A shape or the ratio is wrong.
        """
        patches = self.patchify(self.normalise(images))
        masking = self.masking(images, mask_ratio, noise)
        prediction = self.decoder(self.encode_patches(patches, masking.visible), masking)
        mask = masking.mask.to(prediction.dtype)
        error = (prediction - self.target(patches)).square().mean(dim=2)
        return (error * mask).sum() / mask.sum(), prediction, mask

    def removed_errors(
        self, images: Tensor, mask_ratio: float, noise: Tensor | None = None
    ) -> Tensor:
        """Squared error per removed patch (N, L - K); the mean is the training loss.

        The same as from :meth:`forward`, without the work for visible patches.
        """
        patches = self.patchify(self.normalise(images))
        masking = self.masking(images, mask_ratio, noise)
        latent = self.encode_patches(patches, masking.visible)
        prediction = self.decoder.predict_removed(latent, masking)
        target = self.target(take(patches, masking.removed))
        return F.mse_loss(prediction, target, reduction="none").mean(dim=2)

    def per_image_error(
        self,
        images: Tensor,
        mask_ratio: float,
        noise: Tensor | None = None,
        patches: Literal["masked", "all"] = "masked",
    ) -> Tensor:
        """Mean squared error (N,) of each image's reconstruction: the membership signal.

        Args:
            images: Images (N, c, S, S) in [0, 1].
            mask_ratio: Share of patches to remove, in (0, 1).
            noise: One number per patch (N, L); by default random.
            patches: Over the removed patches, or over all.
        """
        if patches == "masked":
            return self.removed_errors(images, mask_ratio, noise).mean(dim=1)
        _, prediction, _ = self(images, mask_ratio, noise)
        target = self.target(self.patchify(self.normalise(images)))
        return F.mse_loss(prediction, target, reduction="none").mean(dim=(1, 2))

    def reconstruct(
        self, images: Tensor, mask_ratio: float, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Images with their removed patches filled in, for the eye.

        Predicted normalised pixels get the mean and variance of the true patch, which no attacker
        has, as is usual for pictures.

        Args:
            images: Images (N, c, S, S) in [0, 1].
            mask_ratio: Share of patches to remove, in (0, 1).
            noise: One number per patch (N, L); by default random.

        Returns:
            Which pixels (N, c, S, S) were removed, and the images with those pixels predicted.
        """
        patches = self.patchify(self.normalise(images))
        _, prediction, mask = self(images, mask_ratio, noise)
        if self.norm_pix_loss:
            variance, mean = torch.var_mean(patches, dim=2, keepdim=True)
            prediction = prediction * (variance + 1e-6).sqrt() + mean
        removed = self.unpatchify(mask[:, :, None].expand_as(patches)) > 0
        return removed, torch.where(removed, self.denormalise(self.unpatchify(prediction)), images)

    def load_reference_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Loads weights under the published names, in which the decoder's start with ``decoder_``.

        Args:
            state_dict: Encoder alone, or encoder and decoder.

        Raises:
            ValueError: A name is missing or unknown, or a shape differs.
        """
        parts = {"encoder": dict[str, Tensor](), "decoder": dict[str, Tensor]()}
        for name, value in state_dict.items():
            of_decoder = name == "mask_token" or name.startswith("decoder_")
            part = parts["decoder" if of_decoder else "encoder"]
            part[name.removeprefix("decoder_")] = value
        try:
            self.encoder.load_state_dict(parts["encoder"])
            if parts["decoder"]:
                self.decoder.load_state_dict(parts["decoder"])
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"not the weights of this autoencoder: {reason}") from error

    def reference_state_dict(self) -> dict[str, Tensor]:
        """The weights under the published names; those of the encoder are timm's names too."""
        names = dict(self.encoder.state_dict())
        for name, value in self.decoder.state_dict().items():
            names[name if name == "mask_token" else f"decoder_{name}"] = value
        return names


def _check_sizes(image_size: int, patch_size: int, embed_dim: int, num_heads: int) -> None:
    if min(image_size, patch_size, embed_dim, num_heads) < 1 or image_size % patch_size:
        raise ValueError(
            f"sizes must be positive and patches of {patch_size} tile the image of {image_size}"
        )
    if embed_dim % num_heads or embed_dim % 4:
        raise ValueError(
            f"the dimension {embed_dim} must be a multiple of its {num_heads} heads and of 4"
        )
