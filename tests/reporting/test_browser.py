"""The page in a real browser: phone and desk, light and dark."""

import io
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reporting.figures import data_uri
from reporting.page import Page, Picture, Section, Table, render

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

# A colour that nothing else on the page has.
MARK = (230, 20, 120)


def browse(page: Path, *options: str) -> str:
    assert CHROMIUM is not None
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *(f"--user-data-dir={page.parent}/profile", "--force-device-scale-factor=1"),
        *(*options, page.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with all that one can hold: a wide table, wide and small figures, a long config."""
    picture = io.BytesIO()
    Image.new("RGB", (2000, 300), MARK).save(picture, format="png")
    numbers = [f"{0.1234 * k:.4f}" for k in range(14)]
    path = tmp_path_factory.mktemp("page") / "report.html"
    section = Section(
        title="Training images recovered from a probe's weights",
        threat_model="The attacker holds the weights. " * 6,
        headline="34 of 40 training images recovered (cosine > 0.75); null 2 of 40",
        tables=[Table("A wide table", [f"column {k}" for k in range(14)], [numbers] * 5, "note")],
        figures=[Picture(data_uri(picture.getvalue()), "a wide picture")],
        caveats=["A count means little without its null."],
    )
    content = Page(
        title="What trained models give away",
        sections=[section, replace(section, figures=())],
        versions="afterimage 0",
        configs=[("config.yaml", "x: " + "y" * 500)],
    )
    path.write_text(render(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [500, 1280])
def test_page_is_readable(page: Path, width: int, scheme: str, tmp_path: Path) -> None:
    shot = tmp_path / "shot.png"
    browse(
        page,
        f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
        f"--screenshot={shot}",
        f"--window-size={width},1600",
    )
    pixels = np.asarray(Image.open(shot).convert("RGB")).astype(int)
    corner = pixels[2, 2].mean()
    assert corner > 240 if scheme == "light" else corner < 60
    # Text stands out of the background.
    assert abs(pixels[:400] - pixels[2, 2]).max() > 150
    # The picture is there, whole, and not wider than the page.
    rows, columns = np.nonzero((abs(pixels - MARK) < 8).all(2))
    assert len(rows) > 1000
    shown = np.array([columns.max() - columns.min() + 1, rows.max() - rows.min() + 1])
    assert shown[0] < pixels.shape[1] - 16
    np.testing.assert_allclose(shown[0] / shown[1], 2000 / 300, rtol=0.05)


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_is_wider_than_the_screen(page: Path, width: int, tmp_path: Path) -> None:
    measure = (
        "<script>addEventListener('load', () => document.body.dataset.width = "
        "document.documentElement.scrollWidth)</script></body>"
    )
    framed = page.read_text(encoding="utf-8").replace("</body>", measure)
    outer = tmp_path / "outer.html"
    outer.write_text(
        f"<iframe id=f style='width:{width}px;height:800px;border:0' srcdoc=\""
        + framed.replace("&", "&amp;").replace('"', "&quot;")
        + '"></iframe><script>onload = () => document.body.append("width:" + '
        "document.getElementById('f').contentDocument.documentElement.scrollWidth)</script>"
    )
    found = re.findall(r"width:(\d+)<", browse(outer, "--dump-dom", "--virtual-time-budget=3000"))
    assert found
    assert int(found[-1]) <= width
