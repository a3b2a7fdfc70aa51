"""Image files as 8-bit pictures: what is no image, or would fill the memory, is refused."""

import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from artifacts.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

# Formats of photographs. Others that Pillow knows start programs (EPS) or hold no single picture.
FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "JPEG2000", "BMP", "GIF", "TIFF", "PPM")
EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".jp2", ".bmp", ".gif"),
    *(".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"),
)
# Pillow warns above this; 256 MiB as RGB.
MAX_PIXELS = 89_478_485

# What Pillow's decoders raise on broken files.
_DECODER_ERRORS = (
    ArithmeticError,
    EOFError,
    LookupError,
    OSError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
_ORIENTATION = 0x0112


def read_image(
    path: str | Path, *, mode: str = "RGB", max_pixels: int = MAX_PIXELS
) -> "Image.Image":
    """Decodes a file to 8 bits a channel, upright, transparent parts on white.

    Grey, palette, CMYK and 16-bit images are converted.

    Args:
        path: The file.
        mode: ``"RGB"`` or ``"L"`` (grey).
        max_pixels: Larger images are refused before they are decoded.

    Returns:
        The picture in ``mode``.

    Raises:
        InputError: The file is missing, no image, broken, an animation or of several pages, or
            has more than ``max_pixels``.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=FORMATS) as image:
            require_pixels(path, image.size, max_pixels)
            # MPO, which the JPEG reader opens too, has a second picture behind the photograph.
            if image.format != "MPO" and getattr(image, "is_animated", False):
                raise InputError(
                    f"{path} is an animation or has several pages; save one picture of it"
                )
            image.load()
            return _upright(_eight_bits(path, image, mode), _orientation(image))
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"no image at {path}") from error
    except PermissionError as error:
        raise InputError(f"cannot read the image {path}: {error.strerror}") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"{path} has far more pixels than an image should: {error}") from error
    except UnidentifiedImageError as error:
        raise InputError(
            f"{path} is not an image that can be read ({', '.join(FORMATS)}); remove it"
        ) from error
    except _DECODER_ERRORS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} is a broken image ({reason}); remove or replace it") from error


def require_pixels(path: str | Path, size: tuple[int, int], max_pixels: int) -> None:
    """Checks an image's size.

    Raises:
        InputError: It has more than ``max_pixels`` pixels.
    """
    if size[0] * size[1] > max_pixels:
        raise InputError(
            f"{path} would have {size[0]} x {size[1]} pixels, more than the limit of {max_pixels}; "
            "make it smaller, or raise max_pixels"
        )


def _eight_bits(path: str | Path, image: "Image.Image", mode: str) -> "Image.Image":
    """Converts where Pillow alone would clip 16 bits or unveil colours under transparent parts."""
    import numpy as np
    from PIL import Image

    if image.mode.startswith("I"):
        # Older versions of Pillow give 16-bit PNG files the mode "I", of 32 bits, too.
        if image.mode == "I" and image.format not in ("PNG", "PPM"):
            raise InputError(f"{path} has 32 bits a channel; save it with 8")
        values = np.asarray(image).astype(np.int64)
        image = Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    elif image.mode == "F":
        raise InputError(f"{path} has floating-point pixels; save it with 8 bits a channel")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert(mode)


def _orientation(image: "Image.Image") -> int:
    """How a camera was held (EXIF); 1, upright, where nothing readable says so."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except _DECODER_ERRORS:
        return 1


def _upright(image: "Image.Image", orientation: int) -> "Image.Image":
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(turns[orientation]) if orientation in turns else image
