"""Frozen feature extractors F: images in [0, 1] to embeddings.

Reconstructing Training Data From Real-World Models Trained with Transfer Learning, sections 4, A.5,
B.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor, nn

from artifacts.encoders import read_autoencoder
from artifacts.weights import read_state_dict

Features = Literal["cls", "cls_mean"]

# The paper's four. It names models, not weights, so the tags are pinned here; for its ViT the tag
# is a guess (timm has several), for CLIP the activation has to be QuickGELU as OpenAI trained it.
PAPER_BACKBONES = {
    "vit_b16": "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k",
    "dino_vit_b16": "timm/vit_base_patch16_224.dino",
    "dinov2_vit_b14": "timm/vit_base_patch14_reg4_dinov2.lvd142m",
    "clip_vit_l14": "open_clip/ViT-L-14-quickgelu:openai",
}
# Of all four (B.1); the library would run DINOv2 at 518 pixels.
PAPER_IMAGE_SIZE = 224


@dataclass(frozen=True)
class Encoder:
    """What a library gives: normalised images to features, and how to normalise.

    Attributes:
        module: Images (N, 3, S, S) to features (N, D).
        image_size: S.
        mean: Of each channel, subtracted from images in [0, 1].
        std: Of each channel, by which the difference is divided.
    """

    module: nn.Module
    image_size: int
    mean: Sequence[float]
    std: Sequence[float]


class Backbone(nn.Module):
    """A frozen encoder with its normalisation inside.

    Weights take no gradient and the module stays in evaluation mode whatever is asked of it, also
    as a part of a module in training. Gradients do flow to the images.

    Args:
        name: How it was asked for.
        encoder: The network and its normalisation.

    Attributes:
        embedding_dim: Dimension D of an embedding.
        image_size: Height and width S of an image.
        mean: (3,), subtracted from images in [0, 1].
        std: (3,), by which the difference is divided.

    Raises:
        ValueError: The encoder does not take images of its size, or its output is no vector.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, name: str, encoder: Encoder) -> None:
        super().__init__()
        self.name = name
        self.image_size = encoder.image_size
        self.encoder = encoder.module
        self.register_buffer("mean", torch.tensor(encoder.mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(encoder.std, dtype=torch.float32))
        self.requires_grad_(False)
        self.train(False)
        self.embedding_dim = self._measure_embedding()

    @torch.no_grad()
    def _measure_embedding(self) -> int:
        """D, from one empty image: the only number that every network agrees with."""
        size = self.image_size
        try:
            output = self(torch.zeros(1, 3, size, size))
        except (AssertionError, IndexError, RuntimeError, TypeError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
            raise ValueError(
                f"{self.name} does not take images of {size} by {size} pixels: {reason}"
            ) from error
        if not isinstance(output, Tensor) or output.dim() != 2:
            raise ValueError(f"{self.name} does not give one vector an image")
        return output.shape[1]

    def train(self, mode: bool = True) -> Self:
        """Stays in evaluation mode: dropout and batch statistics would change the features."""
        return super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, 3, S, S) in [0, 1] to embeddings (N, D).

        Raises:
            ValueError: The images have another shape.
        """
        expected = (3, self.image_size, self.image_size)
        if images.dim() != 4 or tuple(images.shape[1:]) != expected:
            raise ValueError(
                f"{self.name} takes images of shape (N, {', '.join(map(str, expected))}), got "
                f"{tuple(images.shape)}"
            )
        normalised = (images - self.mean[:, None, None]) / self.std[:, None, None]
        embeddings: Tensor = self.encoder(normalised)
        return embeddings


def load_backbone(
    name: str,
    weights: str | None = None,
    *,
    image_size: int | None = None,
    features: Features = "cls",
) -> Backbone:
    """Builds a frozen backbone by name.

    Args:
        name: One of ``PAPER_BACKBONES``; ``timm/NAME`` or ``open_clip/ARCHITECTURE[:TAG]`` for any
            model of these libraries; ``mae`` for a masked autoencoder that was trained here or
            published; ``identity`` for raw pixels (Haim et al., 2022).
        weights: A local state dict (safetensors, or a torch file, which is never unpickled); by
            default the library's own weights, from its cache or its hub.
        image_size: Height and width of the images; by default 224 for the paper's four and the
            library's value, or that of the file, for others. ``identity`` needs it.
        features: ``"cls"``: what the model itself pools, the [CLS] token where it has one and the
            projected embedding for CLIP. ``"cls_mean"``: the [CLS] token and beside it the mean of
            the patch tokens, registers left out (A.5); twice the dimension.

    Returns:
        The backbone.

    Raises:
        InputError: The weights' file is missing or unreadable.
        ValueError: The name is unknown, the weights could not be got or are of another model, or
            the model has no such features or does not take that image size.
    """
    if features not in ("cls", "cls_mean"):
        raise ValueError(f"features must be 'cls' or 'cls_mean', got '{features}'")
    if image_size is not None and image_size < 1:
        raise ValueError(f"image_size must be positive, got {image_size}")
    source = PAPER_BACKBONES.get(name, name)
    if image_size is None and name in PAPER_BACKBONES:
        image_size = PAPER_IMAGE_SIZE
    library, _, model = source.partition("/")
    if library == "timm" and model:
        from models.timm_encoders import timm_encoder

        state_dict = None if weights is None else _read(name, weights)
        encoder = timm_encoder(model, weights, state_dict, image_size, features)
    elif library == "open_clip" and model:
        from models.open_clip_encoders import open_clip_encoder

        if weights is not None:
            _read(name, weights)  # For its checks: the library reads the file once more.
        encoder = open_clip_encoder(model, weights, image_size, features)
    elif source == "mae":
        from models.mae_encoders import mae_encoder

        if weights is None:
            raise ValueError(
                "no library has weights for the backbone mae: give a masked autoencoder's file "
                "as `weights`"
            )
        encoder = mae_encoder(weights, read_autoencoder(weights)[0], image_size, features)
    elif source == "identity":
        if image_size is None or weights is not None or features != "cls":
            raise ValueError("identity has no weights or tokens, and needs an image_size")
        encoder = Encoder(nn.Flatten(), image_size, (0.0,) * 3, (1.0,) * 3)
    else:
        raise ValueError(
            f"there is no backbone '{name}'; choose {', '.join(PAPER_BACKBONES)}, timm/NAME, "
            "open_clip/ARCHITECTURE[:TAG], mae or identity"
        )
    return Backbone(name, encoder)


def _read(name: str, weights: str) -> dict[str, Tensor]:
    return read_state_dict(
        weights,
        what=f"weights file of {name}",
        made_by="give a state dict of that model, as safetensors or a torch file",
    )
