"""Sizes of masked autoencoders by name."""

from models.masked_autoencoder import MaskedAutoencoder

# The decoder of He et al.: 8 blocks of width 512 (the paper's Table 1 counts 8 layers).
_DECODER = {"decoder_embed_dim": 512, "decoder_depth": 8, "decoder_num_heads": 16}
_BASE = {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12, **_DECODER}
_LARGE = {"patch_size": 16, "embed_dim": 1024, "depth": 24, "num_heads": 16, **_DECODER}
_HUGE = {"patch_size": 14, "embed_dim": 1280, "depth": 32, "num_heads": 16, **_DECODER}
_TINY = {"patch_size": 8, "embed_dim": 128, "depth": 6, "num_heads": 4}
_TINY |= {"decoder_embed_dim": 32, "decoder_depth": 1, "decoder_num_heads": 2}

# Membership Inference Attack Against Masked Image Modeling, Table 1, and one for small images.
SIZES: dict[str, dict[str, int]] = {
    "encoder_i": _BASE,
    "encoder_ii": _LARGE,
    "encoder_iii": _HUGE,
    "vit_base": _BASE,
    "vit_large": _LARGE,
    "vit_huge": _HUGE,
    "tiny": _TINY,
}


def masked_autoencoder(
    size: str, image_size: int = 224, in_chans: int = 3, **overrides: float
) -> MaskedAutoencoder:
    """Builds an autoencoder of a named size.

    Args:
        size: One of ``SIZES``: the paper's Encoder-I, II, III are ViT-Base, Large and Huge; tiny
            suits images of 32 pixels.
        image_size: Side of the images.
        in_chans: Channels of an image.
        overrides: Other arguments of :class:`~models.masked_autoencoder.MaskedAutoencoder`, which
            replace those of the size.

    Raises:
        ValueError: There is no such size, or an override does not fit.
    """
    if size not in SIZES:
        raise ValueError(f"there is no size '{size}'; choose one of {', '.join(SIZES)}")
    return MaskedAutoencoder(image_size, in_chans=in_chans, **(SIZES[size] | overrides))  # type: ignore[arg-type]
