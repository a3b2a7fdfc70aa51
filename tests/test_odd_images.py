"""Every kind of image file in a folder: converted as Pillow does, or refused in one line."""

import contextlib
import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from artifacts.errors import InputError
from datamodules import ImageFolderDataModule, PretrainingDataModule
from tests.conftest import REPOSITORY, quiet, run_cli
from tests.datamodules.layouts import save, tile
from tests.odd_images import IMAGES, ImageCase
from tests.test_mae_configs import SMALL

SIDE = 32
CONVERTED = [case for case in IMAGES if case.expected is not None]
REFUSED = [case for case in IMAGES if case.expected is None]


def folder(root: Path, case: ImageCase) -> ImageFolderDataModule:
    """A class with the file, and another one with good ones."""
    (root / "odd").mkdir(parents=True)
    case.make(root / "odd" / case.name)
    for number in range(2):
        save(root / "good" / f"{number}.png", tile(number))
    return ImageFolderDataModule(str(root), image_size=SIDE, balanced=False, test_fraction=0)


def name_of(case: ImageCase) -> str:
    return f"{case.what}{Path(case.name).suffix}"


@pytest.mark.parametrize("case", CONVERTED, ids=name_of)
def test_converted_as_pillow_does(case: ImageCase, tmp_path: Path) -> None:
    data = folder(tmp_path, case)
    data.setup()
    at = data.train_set.identifiers.index(f"odd/{case.name}")
    assert case.expected is not None
    image = case.expected(tmp_path / "odd" / case.name)
    width, height = (int(SIDE * side / min(image.size)) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = round((width - SIDE) / 2), round((height - SIDE) / 2)
    expected = np.asarray(image.crop((left, top, left + SIDE, top + SIDE)))
    pixels = data.train_set.pixels(at)
    # Two ways to put a pixel on white differ by rounding.
    tolerance = 1 if case.becomes == "on white" else 0
    np.testing.assert_allclose(pixels.movedim(0, 2).numpy(), expected, atol=tolerance)
    assert expected.std() > 0 or min(image.size) < 48 or case.name == "x.png"


@pytest.mark.parametrize("case", REFUSED, ids=name_of)
def test_refused_by_name(case: ImageCase, tmp_path: Path) -> None:
    def read_one_by_one() -> None:
        data = folder(tmp_path, case)
        data.setup()
        list(data.train_dataloader())

    def decode_by_threads() -> None:
        data = PretrainingDataModule(folder(tmp_path / "again", case), batch_size=1)
        data.images.setup()
        data.images.train_set.all_pixels()

    with pytest.raises(InputError, match=case.says) as raised:
        read_one_by_one()
    assert f"odd/{case.name}" in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match=case.says):
        decode_by_threads()


@pytest.mark.parametrize(
    ("what", "workers"), [("truncated", 1), ("bomb: 30,000² pixels said", 0), ("a pipe", 0)]
)
def test_a_stage_says_one_line(what: str, workers: int, tmp_path: Path) -> None:
    case = next(case for case in REFUSED if case.what == what)
    folder(tmp_path / "images", case)
    words = [
        *("fit", f"--config={REPOSITORY}/configs/mim_membership/pretraining.yaml"),
        *("--data=PretrainingDataModule", "--data.images=ImageFolderDataModule"),
        *(f"--data.images.root={tmp_path}/images", "--data.images.image_size=32"),
        *(f"--data.images.num_workers={workers}", "--data.images.test_fraction=0.5"),
        *(*SMALL, "--data.batch_size=1", "--data.in_memory=never", *quiet(tmp_path / "run")),
    ]
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
        assert run_cli(*words) == 1
    lines = [line for line in stderr.getvalue().splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert case.says in lines[0]
    assert case.name in lines[0]
    assert "Traceback" not in stderr.getvalue()
    assert not list((tmp_path / "run").rglob("*.ckpt"))


def test_a_folder_may_be_named_like_an_image(tmp_path: Path) -> None:
    save(tmp_path / "a.png" / "b.jpg" / "c.png", tile(1))
    (tmp_path / "a.png" / "empty.png").mkdir()
    data = ImageFolderDataModule(str(tmp_path), image_size=SIDE, test_fraction=0)
    data.setup()
    assert data.train_set.identifiers == ["a.png/b.jpg/c.png"]


def test_a_name_that_is_no_text_is_refused_when_listed(tmp_path: Path) -> None:
    """Tables and pages in UTF-8 could not hold it, after everything was computed."""
    (tmp_path / "odd").mkdir()
    path = tmp_path / "odd" / os.fsdecode(b"caf\xe9.png")
    try:
        Image.fromarray(tile(1)).save(path)
    except OSError:
        pytest.skip("this file system takes names in UTF-8 only")
    with pytest.raises(InputError, match=r"caf\\udce9.png' is not UTF-8; rename it"):
        ImageFolderDataModule(str(tmp_path), image_size=8).setup("fit")
