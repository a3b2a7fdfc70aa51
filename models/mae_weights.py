"""Masked autoencoders from the state dicts that people have, whoever named their entries."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from artifacts.training_record import TrainingRecord
from models.masked_autoencoder import MaskedAutoencoder

# What the published weights were trained with, under every name.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class DecoderSize(NamedTuple):
    """Size of a decoder; by default that of He et al."""

    embed_dim: int = 512
    depth: int = 8
    num_heads: int = 16


@dataclass(frozen=True)
class PretrainedAutoencoder:
    """An autoencoder with weights from a state dict.

    Attributes:
        model: The autoencoder, with the normalisation it was trained with.
        origin: Whose names the entries had: ``"afterimage"``, ``"official"`` (timm's are the same)
            or ``"transformers"``.
        has_decoder: Whether the decoder's weights are trained; otherwise they are fresh.
        training: What its file says about its training, if anything.
    """

    model: MaskedAutoencoder
    origin: str
    has_decoder: bool
    training: TrainingRecord | None = None


# From transformers' names to the published ones, after the query, key and value are joined.
_TRANSFORMERS = (
    (r"^(vit\.)?embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^(vit\.)?embeddings\.position_embeddings$", "pos_embed"),
    (r"^(vit\.)?embeddings\.cls_token$", "cls_token"),
    (r"^decoder\.decoder_encoder\.layer\.|^decoder\.decoder_layers\.", "decoder_blocks."),
    (r"^decoder\.", ""),
    (r"^(vit\.)?(encoder\.layer|layers)\.", "blocks."),
    (r"^(vit\.)?layernorm\.", "norm."),
    (r"\.attention\.(output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.attention\.(attention\.)?(query|q_proj)\.", ".attn.q."),
    (r"\.attention\.(attention\.)?(key|k_proj)\.", ".attn.k."),
    (r"\.attention\.(attention\.)?(value|v_proj)\.", ".attn.v."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
)


def from_transformers(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Entries of a ``ViTMAEModel`` or ``ViTMAEForPreTraining`` under the published names."""
    renamed = {}
    for name, value in state_dict.items():
        for pattern, replacement in _TRANSFORMERS:
            name = re.sub(pattern, replacement, name)
        renamed[name] = value
    for name in [name for name in renamed if ".attn.q." in name]:
        parts = [renamed.pop(name.replace(".attn.q.", f".attn.{part}."), None) for part in "qkv"]
        present = [part for part in parts if part is not None]
        if len(present) < 3:
            raise ValueError(f"query, key and value of '{name}' are not all there")
        if len({part.shape for part in present}) > 1 or not present[0].dim():
            raise ValueError(f"query, key and value of '{name}' differ in shape")
        renamed[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat(present)
    return renamed


def autoencoder_from_state_dict(
    state_dict: Mapping[str, Tensor],
    *,
    image_size: int | None = None,
    num_heads: int | None = None,
    norm_pix_loss: bool | None = None,
    decoder: DecoderSize | None = None,
) -> PretrainedAutoencoder:
    """Builds the autoencoder that a state dict is of, sizes included.

    Known are the published files (encoder alone, or with its decoder), timm's ``vit_*.mae``,
    transformers' ``ViTMAE``, and this project's own.

    Args:
        state_dict: Name to tensor.
        image_size: Side of the images; by default that of the positions in the file. For another
            one the positions are resampled.
        num_heads: Attention heads of the encoder, where the file does not say it; by default as
            convention has it.
        norm_pix_loss: Whether the decoder predicts normalised pixels; only this project's own
            files say it. By default, for others, it does not.
        decoder: Replace the decoder by a fresh one of this size. A file without a decoder gets a
            fresh one in any case.

    Raises:
        ValueError: It is of something else, or says another ``num_heads``.
    """
    prefixes = ("_forward_module.", "module.", "_orig_mod.", "model.", "autoencoder.")
    weights = dict(state_dict)
    for prefix in (*prefixes, *prefixes):
        # A classifier's other entries (its head) stay, and are refused below.
        if weights and all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    buffers = ("record", "mean", "std")
    known: dict[str, Tensor] = {name: weights.pop(name) for name in buffers if name in weights}
    for name, value in weights.items():
        if not value.is_floating_point() or not value.numel():
            kind = str(value.dtype).removeprefix("torch.")
            raise ValueError(f"'{name}' is {kind} of shape {tuple(value.shape)}, no weights")
    if "record" in known:
        origin = "afterimage"
        weights = _from_own(weights)
    elif any(name.endswith("embeddings.position_embeddings") for name in weights):
        origin, weights = "transformers", from_transformers(weights)
    else:
        origin = "official"
    _require_autoencoder(weights)
    shapes = _Shapes.of(weights, "")
    has_decoder = "decoder_pred.weight" in weights and decoder is None
    heads, decoder_heads, normalised = _record(known)
    if num_heads is not None and (num_heads < 1 or heads not in (0, num_heads)):
        told = f"the file says {heads}: leave it out" if heads else "it must be at least 1"
        raise ValueError(f"num_heads is {num_heads}, but {told}")
    if decoder is not None or not has_decoder:
        decoder = decoder or DecoderSize()
        weights = {
            name: value
            for name, value in weights.items()
            if name != "mask_token" and not name.startswith("decoder_")
        }
    else:
        decoder_shapes = _Shapes.of(weights, "decoder_")
        decoder = DecoderSize(
            decoder_shapes.dim,
            decoder_shapes.depth,
            decoder_heads or _heads(decoder_shapes.dim, {512: 16, 128: 4}, "decoder"),
        )
    old_size = shapes.grid * shapes.patch_size
    if image_size is not None and (image_size < 1 or image_size % shapes.patch_size):
        raise ValueError(
            f"image_size {image_size} is no multiple of the patch size {shapes.patch_size}"
        )
    model = MaskedAutoencoder(
        image_size or old_size,
        shapes.patch_size,
        shapes.in_chans,
        shapes.dim,
        shapes.depth,
        num_heads or heads or _heads(shapes.dim, {1280: 16}, "encoder"),
        decoder.embed_dim,
        decoder.depth,
        decoder.num_heads,
        mlp_ratio=shapes.mlp_ratio,
        norm_pix_loss=bool(normalised) if norm_pix_loss is None else norm_pix_loss,
    )
    for name in ("pos_embed", "decoder_pos_embed"):
        if name in weights:
            weights[name] = _resample(weights[name], model.image_size // model.patch_size)
    model.load_reference_state_dict(weights)
    _set_normalisation(model, known)
    return PretrainedAutoencoder(model, origin, has_decoder)


@dataclass(frozen=True)
class _Shapes:
    """What the shapes of an encoder's or decoder's entries tell."""

    dim: int
    depth: int
    mlp_ratio: float
    grid: int
    patch_size: int
    in_chans: int

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], prefix: str) -> "_Shapes":
        numbers = {
            int(match[1])
            for name in weights
            if (match := re.match(rf"{prefix}blocks\.(\d+)\.", name))
        }
        entries = {"pos_embed": 3, "blocks.0.mlp.fc1.weight": 2}
        for name in (f"{prefix}{entry}" for entry in entries):
            if name not in weights:
                raise ValueError(f"there is no '{name}' in it")
        for name, dimensions in (
            *((f"{prefix}{entry}", dimensions) for entry, dimensions in entries.items()),
            ("patch_embed.proj.weight", 4),
        ):
            if weights[name].dim() != dimensions:
                raise ValueError(
                    f"its '{name}' has shape {tuple(weights[name].shape)}, not {dimensions} "
                    "dimensions"
                )
        positions, hidden = (weights[f"{prefix}{entry}"] for entry in entries)
        kernel = weights["patch_embed.proj.weight"]
        grid = round((positions.shape[1] - 1) ** 0.5)
        if grid < 1 or grid**2 != positions.shape[1] - 1 or kernel.shape[2] != kernel.shape[3]:
            raise ValueError(
                f"its {positions.shape[1]} positions are not those of a square and a class token"
            )
        dim = positions.shape[2]
        return cls(dim, len(numbers), len(hidden) / dim, grid, kernel.shape[2], kernel.shape[1])


def _from_own(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """This project's names to the published ones."""
    published = {}
    for name, value in weights.items():
        name = name.removeprefix("encoder.").replace("decoder.", "decoder_")
        published["mask_token" if name == "decoder_mask_token" else name] = value
    return published


def _require_autoencoder(weights: Mapping[str, Tensor]) -> None:
    classifier = [name for name in weights if name.startswith(("head.", "fc_norm."))]
    if "patch_embed.proj.weight" in weights and classifier:
        raise ValueError(
            f"it is of a classifier ('{classifier[0]}'): fine-tuning changed its encoder"
        )
    for name in ("cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight"):
        if name not in weights:
            example = next(iter(weights), "nothing")
            raise ValueError(f"there is no '{name}' in it, but '{example}'")


def _heads(dim: int, conventions: Mapping[int, int], part: str) -> int:
    """The usual number of heads: 64 dimensions each, but for some sizes."""
    if dim not in conventions and dim % 64:
        raise ValueError(
            f"the file does not tell the number of attention heads of its {part} of width {dim}; "
            "set num_heads (or give the file that was trained here, which tells it)"
        )
    return conventions.get(dim, dim // 64)


def _resample(positions: Tensor, grid: int) -> Tensor:
    """Positions (1, 1 + G², D) for another number of patches per side."""
    from timm.layers.pos_embed import resample_abs_pos_embed

    resampled: Tensor = resample_abs_pos_embed(positions, [grid, grid], num_prefix_tokens=1)
    return resampled


def _record(known: Mapping[str, Tensor]) -> tuple[int, int, int]:
    """Heads of encoder and decoder and whether pixels were normalised; 0 where nothing says it."""
    record = known.get("record", torch.zeros(3, dtype=torch.int64))
    if record.shape != (3,) or record.is_floating_point() or record.is_complex():
        raise ValueError(f"its 'record' is not three whole numbers, but of {tuple(record.shape)}")
    heads, decoder_heads, normalised = record.tolist()
    return heads, decoder_heads, normalised


def _set_normalisation(model: MaskedAutoencoder, known: Mapping[str, Tensor]) -> None:
    """That of the file, else ImageNet's, which all published weights were trained with."""
    if "mean" in known or "std" in known:
        for name in ("mean", "std"):
            value = known.get(name, torch.empty(0))
            shape_fits = value.is_floating_point() and value.shape == (model.in_chans,)
            if not shape_fits or not bool(torch.isfinite(value).all()):
                raise ValueError(
                    f"its '{name}' is not one finite number for each of {model.in_chans} channels"
                )
        if not bool((known["std"] > 0).all()):
            raise ValueError(f"its 'std' must be positive, got {known['std'].tolist()}")
        model.mean.copy_(known["mean"])
        model.std.copy_(known["std"])
    elif model.in_chans == len(IMAGENET_MEAN):
        model.mean.copy_(torch.tensor(IMAGENET_MEAN))
        model.std.copy_(torch.tensor(IMAGENET_STD))
