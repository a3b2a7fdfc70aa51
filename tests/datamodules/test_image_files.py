"""Files that claim to be images: good ones of every kind are converted, bad ones are named."""

import io
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from artifacts.errors import InputError
from datamodules.image_files import read_image
from tests.datamodules.layouts import photo, save, tile


def refused(path: Path, message: str, **options: int) -> None:
    with pytest.raises(InputError, match=message) as error:
        read_image(path, **options)  # type: ignore[arg-type]
    assert path.name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "suffix",
    [*(".png", ".bmp", ".tif", ".ppm", ".webp", ".gif", ".jpg"), *(".avif", ".jp2", ".jfif")],
)
def test_formats_give_the_picture(tmp_path: Path, suffix: str) -> None:
    path = save(
        tmp_path / f"x{suffix}",
        photo()[:64, :80],
        **({"lossless": True} if suffix == ".webp" else {}),
    )
    image = read_image(path)
    assert image.mode == "RGB"
    difference = np.abs(np.asarray(image).astype(int) - photo()[:64, :80]).mean()
    assert difference < {".jpg": 6, ".jfif": 6, ".avif": 6, ".gif": 12}.get(suffix, 1e-9)


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    deep = (np.arange(65536, dtype=np.uint32).reshape(256, 256)).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    for mode in ("L", "RGB"):
        values = np.asarray(read_image(tmp_path / "deep.png", mode=mode))
        values = values if mode == "L" else values[..., 1]
        assert np.array_equal(values, np.round(deep / 257).astype(np.uint8))


def test_transparent_parts_are_white_and_do_not_show_hidden_colours(tmp_path: Path) -> None:
    pixels = np.dstack([tile(1), np.full((32, 32), 255, np.uint8)])
    pixels[:16, :, 3] = 0
    save(tmp_path / "alpha.png", pixels)
    values = np.asarray(read_image(tmp_path / "alpha.png"))
    assert (values[:16] == 255).all()
    assert np.array_equal(values[16:], tile(1)[16:])
    # A palette with one transparent colour, as in clip art.
    palette = Image.fromarray(tile(1)).quantize(4)
    palette.save(tmp_path / "palette.png", transparency=0)
    values = np.asarray(read_image(tmp_path / "palette.png"))
    assert (values[np.asarray(palette) == 0] == 255).all()


def test_cmyk_is_converted(tmp_path: Path) -> None:
    Image.fromarray(photo()[:64, :64]).convert("CMYK").save(tmp_path / "print.jpg", quality=95)
    values = np.asarray(read_image(tmp_path / "print.jpg")).astype(int)
    assert np.abs(values - photo()[:64, :64]).mean() < 6


@pytest.mark.parametrize("orientation", range(1, 9))
def test_cameras_orientation_is_undone(tmp_path: Path, orientation: int) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(photo()[:40, :64])
    image.save(tmp_path / "camera.png", exif=exif)
    with Image.open(tmp_path / "camera.png") as stored:
        expected = ImageOps.exif_transpose(stored)
    assert np.array_equal(np.asarray(read_image(tmp_path / "camera.png")), np.asarray(expected))


def test_broken_side_information_does_not_matter(tmp_path: Path) -> None:
    Image.fromarray(tile(2)).save(tmp_path / "exif.jpg", exif=b"Exif\x00\x00II*\x00\xff\xff\xff")
    assert read_image(tmp_path / "exif.jpg").size == (32, 32)


def test_photo_with_second_picture_is_the_first(tmp_path: Path) -> None:
    first, second = Image.fromarray(tile(1)), Image.fromarray(tile(9))
    first.save(tmp_path / "phone.jpg", format="MPO", save_all=True, append_images=[second])
    first.save(tmp_path / "plain.jpg", format="JPEG")
    values, expected = (
        np.asarray(read_image(tmp_path / f"{name}.jpg")).astype(int) for name in ("phone", "plain")
    )
    assert np.abs(values - expected).max() == 0


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".png", ".tif"])
def test_animations_and_pages_are_refused(tmp_path: Path, suffix: str) -> None:
    frames = [Image.fromarray(tile(n)) for n in range(3)]
    frames[0].save(tmp_path / f"moving{suffix}", save_all=True, append_images=frames[1:])
    refused(tmp_path / f"moving{suffix}", "animation")


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".gif", ".tif", ".bmp", ".ppm"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_truncated_files_are_refused(tmp_path: Path, suffix: str, share: float) -> None:
    path = save(tmp_path / f"half{suffix}", photo()[:64, :64])
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(path, "broken|not an image")


@pytest.mark.parametrize("seed", range(40))
def test_no_damage_gives_another_error(tmp_path: Path, seed: int) -> None:
    """Bytes at random places are replaced: a picture, or one clear line."""
    generator = np.random.default_rng(seed)
    suffix = (".jpg", ".png", ".gif", ".webp", ".tif")[seed % 5]
    path = save(tmp_path / f"damaged{suffix}", tile(3))
    content = bytearray(path.read_bytes())
    for place in generator.integers(0, len(content), 8):
        content[place] = generator.integers(256)
    path.write_bytes(content)
    # Anything else than an InputError fails the test.
    with suppress(InputError):
        assert read_image(path, max_pixels=10**6).mode == "RGB"


@pytest.mark.parametrize(
    "content",
    [b"", b"no image", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"<svg></svg>"],
    ids=["empty", "text", "postscript", "svg"],
)
def test_what_is_no_image_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "text.jpg").write_bytes(content)
    refused(tmp_path / "text.jpg", "not an image")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    refused(tmp_path / "missing.jpg", "no image at")
    (tmp_path / "folder.jpg").mkdir()
    refused(tmp_path / "folder.jpg", "folder.jpg")


def test_bombs_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    # The header of a PNG file says that there are 900 million pixels.
    content = bytearray(save(tmp_path / "bomb.png", tile(1)).read_bytes())
    content[16:24] = (30_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    (tmp_path / "bomb.png").write_bytes(content)
    refused(tmp_path / "bomb.png", "far more pixels")
    Image.new("L", (1000, 1000)).save(tmp_path / "large.png")
    refused(tmp_path / "large.png", "1000 x 1000", max_pixels=999_999)
    assert read_image(tmp_path / "large.png", max_pixels=1_000_000).size == (1000, 1000)


def test_floating_point_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "float.tif")
    refused(tmp_path / "float.tif", "floating-point")
    Image.fromarray(np.ones((4, 4), np.int32)).save(tmp_path / "integer.tif")
    refused(tmp_path / "integer.tif", "32 bits")


def test_colour_profile_is_no_obstacle(tmp_path: Path) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    buffer = io.BytesIO()
    Image.fromarray(tile(4)).save(buffer, "PNG", icc_profile=profile)
    (tmp_path / "profile.png").write_bytes(buffer.getvalue())
    assert np.array_equal(np.asarray(read_image(tmp_path / "profile.png")), tile(4))
