"""Encoders from timm."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from models.backbones import Encoder, Features
from models.hub import hub, no_weights


class ClsAndMeanTokens(nn.Module):
    """The [CLS] token and the mean of the patch tokens, side by side (A.5).

    Args:
        model: A timm vision transformer that pools its [CLS] token.
    """

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - timm has no common class
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (N, 3, S, S) to features (N, 2D)."""
        tokens = self.model.forward_features(images)
        cls = self.model.forward_head(tokens, pre_logits=True)
        # Prefix tokens are [CLS] and registers; neither is a patch.
        patches = tokens[:, self.model.num_prefix_tokens :]
        return torch.cat([cls, patches.mean(dim=1)], dim=1)


def timm_encoder(
    name: str,
    weights: str | None,
    state_dict: dict[str, Tensor] | None,
    image_size: int | None,
    features: Features,
) -> Encoder:
    """Builds a timm model without its classifier.

    Args:
        name: timm's name, ``architecture[.tag]``.
        weights: Where the state dict is from, for messages.
        state_dict: Weights; by default timm's own.
        image_size: Height and width of the images; by default timm's value for the name.
        features: Which.

    Returns:
        The encoder.

    Raises:
        ValueError: See :func:`~models.backbones.load_backbone`.
    """
    import timm

    if not timm.is_model(name):
        raise ValueError(f"timm {timm.__version__} has no model '{name}'")
    try:
        settings: Any = timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError as error:
        raise ValueError(f"timm/{name}: {error}") from error
    size = image_size or int(settings.input_size[-1])
    arguments: dict[str, Any] = {"num_classes": 0}
    if settings.fixed_input_size:
        # Of a convolutional network the input size is no argument: it takes any.
        arguments["img_size"] = size
    if state_dict is None:
        model = _from_hub(name, settings, arguments)
    else:
        try:
            model = _from_state_dict(name, settings, arguments, state_dict)
        except RuntimeError as error:
            # Positions cannot be resampled to some sizes, which the library does not say.
            _require_whole_patches(name, timm.create_model(name, num_classes=0), size)
            reason = " ".join(str(error).split())[:300]
            raise ValueError(f"{weights} is not of timm/{name}: {reason}") from error
    _require_whole_patches(name, model, size)
    module: nn.Module = model
    if features == "cls_mean":
        pools_cls = getattr(model, "global_pool", None) == "token"
        if not pools_cls or not getattr(model, "num_prefix_tokens", 0):
            raise ValueError(
                f"features 'cls_mean' need a [CLS] token and patch tokens, which timm/{name} does "
                "not have; use 'cls', which is what the model itself pools"
            )
        module = ClsAndMeanTokens(model)
    return Encoder(module, size, settings.mean, settings.std)


def _require_whole_patches(name: str, model: Any, size: int) -> None:  # noqa: ANN401
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    if patch is not None and (size % patch[0] or size % patch[1]):
        raise ValueError(
            f"image_size {size} is no multiple of the patch size {patch[0]} of timm/{name}"
        )


def _from_hub(name: str, settings: Any, arguments: dict[str, Any]) -> Any:  # noqa: ANN401
    import timm

    file = settings.hf_hub_id or settings.url or "no known file"
    with hub() as obstacle:
        try:
            return timm.create_model(name, pretrained=True, **arguments)
        except (OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "img_size" in arguments:
                _require_whole_patches(
                    name, timm.create_model(name, num_classes=0), arguments["img_size"]
                )
            raise ValueError(no_weights(f"timm/{name}", file, obstacle or error)) from error


def _from_state_dict(
    name: str,
    settings: Any,  # noqa: ANN401
    arguments: dict[str, Any],
    state_dict: dict[str, Tensor],
) -> Any:  # noqa: ANN401
    import timm

    heads = settings.classifier or ()
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    kept = {
        key: value
        for key, value in state_dict.items()
        if not key.startswith(tuple(f"{head}." for head in heads))
    }
    # With a pretrained configuration that says "no classes" timm loads strictly; otherwise it would
    # leave layers that the file lacks at their random initialisation, without a word.
    overlay: dict[str, Any] = {"state_dict": kept, "num_classes": 0, "custom_load": False}
    try:
        return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **arguments)
    except RuntimeError as error:
        if not _only_heads_are_left(str(error), heads):
            raise
    # The file's own names for the classifier became timm's while it was converted.
    overlay |= {"state_dict": dict(state_dict), "num_classes": -1}
    return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **arguments)


def _only_heads_are_left(message: str, heads: tuple[str, ...]) -> bool:
    """Whether torch complains of a classifier too many, and of nothing else."""
    found = re.search(r"Unexpected key\(s\) in state_dict: ([^\n]*)", message)
    if found is None or "Missing key" in message or "size mismatch" in message:
        return False
    names = re.findall(r'"([^"]+)"', found[1])
    return all(key.startswith(tuple(f"{head}." for head in heads)) for key in names)
