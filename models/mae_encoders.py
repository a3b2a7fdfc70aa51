"""Encoders of masked autoencoders."""

import torch
from torch import Tensor, nn

from models.backbones import Encoder, Features
from models.mae_weights import autoencoder_from_state_dict
from models.masked_autoencoder import MaskedAutoencoder


class MAEFeatures(nn.Module):
    """The [CLS] token of whole images, or it and the mean of the patch tokens.

    Args:
        model: The autoencoder.
        features: Which.
    """

    def __init__(self, model: MaskedAutoencoder, features: Features) -> None:
        super().__init__()
        self.model = model
        self.features = features

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (N, 3, S, S) to features (N, D) or (N, 2D)."""
        tokens = self.model.encode_patches(self.model.patchify(images))
        if self.features == "cls":
            return tokens[:, 0]
        return torch.cat([tokens[:, 0], tokens[:, 1:].mean(dim=1)], dim=1)


def mae_encoder(
    weights: str, state_dict: dict[str, Tensor], image_size: int | None, features: Features
) -> Encoder:
    """Builds the encoder of a masked autoencoder; sizes and normalisation are its file's.

    Args:
        weights: Where the state dict is from, for messages.
        state_dict: An autoencoder or encoder of this project, or a published one.
        image_size: Height and width of the images; by default what it was trained with.
        features: Which.

    Returns:
        The encoder.

    Raises:
        ValueError: The weights are of something else, or of grey images.
    """
    try:
        model = autoencoder_from_state_dict(state_dict, image_size=image_size).model
    except ValueError as error:
        raise ValueError(f"{weights} cannot be taken as a masked autoencoder: {error}") from error
    if model.in_chans != 3:
        raise ValueError(f"{weights} is of images with {model.in_chans} channels, not 3")
    # Without the decoder, which is no part of the features, nor of their hash.
    model.decoder = nn.Identity()  # type: ignore[assignment]
    return Encoder(
        MAEFeatures(model, features), model.image_size, model.mean.tolist(), model.std.tolist()
    )
