"""Image encoders of CLIP models from open_clip."""

import logging
import os
from contextlib import nullcontext
from typing import Any

from models.backbones import Encoder, Features
from models.hub import hub, no_weights


def open_clip_encoder(
    name: str, weights: str | None, image_size: int | None, features: Features
) -> Encoder:
    """Builds the image tower of a CLIP model, its projection included.

    Args:
        name: ``ARCHITECTURE[:TAG]`` in open_clip's words.
        weights: A local state dict of the whole CLIP model; by default the tag's weights.
        image_size: Height and width of the images; by default the architecture's.
        features: Which; only ``"cls"`` here.

    Returns:
        The encoder; its features are not normalised to length 1.

    Raises:
        ValueError: See :func:`~models.backbones.load_backbone`.
    """
    import open_clip
    from open_clip.pretrained import get_pretrained_cfg

    architecture, _, tag = name.partition(":")
    if features != "cls":
        raise ValueError(
            "features 'cls_mean' are not defined for CLIP: its embedding is projected, its patch "
            "tokens are not; use 'cls'"
        )
    config = open_clip.get_model_config(architecture)
    if config is None:
        raise ValueError(f"open_clip {open_clip.__version__} has no model '{architecture}'")
    settings = get_pretrained_cfg(architecture, tag) if tag else {}
    if tag and not settings:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
        raise ValueError(f"open_clip/{architecture} has no tag '{tag}'; it has: {tags}")
    if not tag and weights is None:
        raise ValueError(f"name the weights, open_clip/{architecture}:TAG, or give a local file")
    patch = config["vision_cfg"].get("patch_size")
    if patch and image_size is not None and image_size % patch:
        # The library would leave out what is right of the last whole patch, and below it.
        raise ValueError(
            f"image_size {image_size} is no multiple of the patch size {patch} of open_clip/{name}"
        )
    quick = bool(config.get("quick_gelu", False))
    if tag and bool(settings.get("quick_gelu", False)) != quick:
        # The library only warns, and gives features that the weights were not trained for.
        other = architecture.removesuffix("-quickgelu") if quick else f"{architecture}-quickgelu"
        raise ValueError(
            f"the weights '{tag}' have another activation; use open_clip/{other}:{tag}"
        )
    # Errors come as exceptions; the library would print them as well.
    logging.disable(logging.ERROR)
    obstacle = ""
    try:
        with hub() if weights is None else nullcontext("") as obstacle:
            # The library takes a name such as "openai" for its own tag, also where a file has it.
            source = tag if weights is None else os.path.abspath(weights)  # noqa: PTH100
            model = open_clip.create_model(
                architecture, pretrained=source, force_image_size=image_size
            )
    except (OSError, RuntimeError) as error:
        if weights is None:
            file = settings.get("hf_hub") or settings.get("url") or "no known file"
            raise ValueError(no_weights(f"open_clip/{name}", file, obstacle or error)) from error
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{weights} is not of open_clip/{name}: {reason}") from error
    finally:
        logging.disable(logging.NOTSET)
    visual: Any = model.visual
    size = visual.image_size
    mean = settings.get("mean") or visual.image_mean
    std = settings.get("std") or visual.image_std
    return Encoder(visual, size[0] if isinstance(size, tuple) else int(size), mean, std)
