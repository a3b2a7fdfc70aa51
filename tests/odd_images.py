"""Image files of every kind that a folder may hold, and what becomes of each."""

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from tests.datamodules.layouts import photo, tile

Expected = Callable[[Path], Image.Image]


@dataclass(frozen=True)
class ImageCase:
    """One file.

    Attributes:
        what: In words.
        name: Its name; it goes beside images of its class.
        make: Writes it.
        expected: The picture in RGB that it is read as, by Pillow alone; None if it is refused.
        becomes: How it is converted, in words.
        says: Part of the one line that refuses it.
    """

    what: str
    name: str
    make: Callable[[Path], object]
    expected: Expected | None = None
    becomes: str = ""
    says: str = ""


def as_rgb(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


def on_white(path: Path) -> Image.Image:
    with Image.open(path) as image:
        picture = image.convert("RGBA")
    white = Image.new("RGB", picture.size, "white")
    white.paste(picture, mask=picture)
    return white


def upright(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def of_16_bits(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return Image.fromarray(np.round(np.asarray(image) / 257).astype(np.uint8)).convert("RGB")


def picture(mode: str = "RGB") -> Image.Image:
    return Image.fromarray(photo()[:48, :64]).convert(mode)


def transparent(mode: str) -> Image.Image:
    image = picture(mode)
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


def palette(path: Path) -> None:
    picture().quantize(16).save(path, transparency=3)


def deep(path: Path) -> None:
    values = np.linspace(0, 65535, 48 * 64).astype(np.uint16).reshape(48, 64)
    Image.fromarray(values).save(path)


def deep_colours(path: Path) -> None:
    """A PNG file of 16 bits a channel, which Pillow cannot write."""
    values = np.repeat(np.linspace(0, 65535, 48 * 64).astype(">u2").reshape(48, 64, 1), 3, axis=2)
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    header = struct.pack(">IIBBBBB", 64, 48, 16, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*c) for c in chunks))


def chunk(name: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + check


def png_of_size(width: int, height: int) -> Callable[[Path], object]:
    """A PNG file of a few bytes that says it is that large."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(99))), (b"IEND", b""))
    content = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*c) for c in chunks)
    return lambda path: path.write_bytes(content)


def text_bomb(path: Path) -> None:
    info = PngInfo()
    info.add_text("comment", "x" * 10_000_000, zip=True)
    picture().save(path, pnginfo=info)


def turned(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture().save(path, exif=exif, quality=95)


def moving(path: Path) -> None:
    frames = [Image.fromarray(tile(number)) for number in range(3)]
    frames[0].save(path, save_all=True, append_images=frames[1:])


def truncated(path: Path) -> None:
    picture().save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])


def plain(path: Path) -> None:
    picture().save(path)


_COPY = "as it is"
IMAGES = [
    ImageCase("grey", "x.png", lambda p: picture("L").save(p), as_rgb, "three equal channels"),
    ImageCase("black and white, 1 bit", "x.png", lambda p: picture("1").save(p), as_rgb, "0 and 1"),
    ImageCase("CMYK", "x.jpg", lambda p: picture("CMYK").save(p), as_rgb, "RGB"),
    ImageCase("CMYK", "x.tif", lambda p: picture("CMYK").save(p), as_rgb, "RGB"),
    ImageCase("16 bits, grey", "x.png", deep, of_16_bits, "scaled to 8 bits, not clipped"),
    ImageCase("16 bits, grey", "x.tif", deep, of_16_bits, "scaled to 8 bits, not clipped"),
    ImageCase("16 bits, colour", "x.png", deep_colours, as_rgb, "the upper 8 bits"),
    ImageCase(
        "partly transparent", "x.png", lambda p: transparent("RGB").save(p), on_white, "on white"
    ),
    ImageCase(
        "partly transparent, grey",
        "x.png",
        lambda p: transparent("L").save(p),
        on_white,
        "on white",
    ),
    ImageCase(
        "partly transparent", "x.webp", lambda p: transparent("RGB").save(p), on_white, "on white"
    ),
    ImageCase("palette", "x.gif", plain, as_rgb, "RGB"),
    ImageCase("palette with a transparent colour", "x.png", palette, on_white, "on white"),
    ImageCase("palette with a transparent colour", "x.gif", palette, on_white, "on white"),
    ImageCase("turned camera (EXIF)", "x.jpg", turned, upright, "upright"),
    ImageCase("JPEG named PNG", "x.png", lambda p: picture().save(p, "JPEG"), as_rgb, _COPY),
    ImageCase(
        "10⁶ pixels",
        "x.png",
        lambda p: Image.new("RGB", (1000, 1000), "red").save(p),
        as_rgb,
        "resized",
    ),
    ImageCase(
        "one pixel", "x.png", lambda p: Image.new("RGB", (1, 1), "red").save(p), as_rgb, "resized"
    ),
    ImageCase(
        "10⁶ pixels wide, 40 high",
        "x.png",
        lambda p: Image.new("L", (10**6, 40), 9).save(p),
        as_rgb,
        "resized",
    ),
    ImageCase("a blank in its name", " a b .png", plain, as_rgb, _COPY),
    ImageCase("a name of other letters", "ünï-图-🙂.png", plain, as_rgb, _COPY),
    ImageCase("a line break in its name", "a\nb.png", plain, as_rgb, _COPY),
    ImageCase("capital letters", "X.PNG", plain, as_rgb, _COPY),
    ImageCase(
        "10⁶ pixels wide, 1 high",
        "x.png",
        lambda p: Image.new("L", (10**6, 1)).save(p),
        says="would have 32000000 x 32 pixels",
    ),
    ImageCase(
        "10⁶ by 100 pixels said",
        "x.png",
        png_of_size(10**6, 100),
        says="would have 1000000 x 100 pixels",
    ),
    ImageCase(
        "bomb: 30,000² pixels said", "x.png", png_of_size(30_000, 30_000), says="far more pixels"
    ),
    ImageCase("bomb: 10 MB of text inside", "x.png", text_bomb, says="is a broken image"),
    ImageCase("animation", "x.gif", moving, says="is an animation"),
    ImageCase("animation", "x.webp", moving, says="is an animation"),
    ImageCase("animation", "x.png", moving, says="is an animation"),
    ImageCase("several pages", "x.tif", moving, says="is an animation"),
    ImageCase("truncated", "x.jpg", truncated, says="is a broken image"),
    ImageCase("truncated", "x.png", truncated, says="is a broken image"),
    ImageCase("truncated", "x.webp", truncated, says="is a broken image"),
    ImageCase("zero bytes", "x.png", lambda p: p.touch(), says="is not an image"),
    ImageCase("text", "x.jpg", lambda p: p.write_text("no image"), says="is not an image"),
    ImageCase("SVG", "x.png", lambda p: p.write_text("<svg/>"), says="is not an image"),
    ImageCase(
        "PostScript, which Pillow would run",
        "x.png",
        lambda p: p.write_text("%!PS-Adobe-3.0 EPSF-3.0\n"),
        says="is not an image",
    ),
    ImageCase(
        "floating point",
        "x.tif",
        lambda p: Image.fromarray(np.ones((9, 9), np.float32)).save(p),
        says="has floating-point pixels",
    ),
    ImageCase(
        "a link to nothing",
        "x.png",
        lambda p: p.symlink_to("nowhere.png"),
        says="is no regular file",
    ),
    ImageCase(
        "a link to another image of the folder",
        "x.png",
        lambda p: p.symlink_to("../good/1.png"),
        says="is there twice",
    ),
    ImageCase("a pipe", "x.png", lambda p: os.mkfifo(p), says="is no regular file"),
]
