"""The page in a real browser: phone and desk, light and dark."""

import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    numbers = [f"{0.1234 * k:.3f} ± {0.01 * k:.3f}" for k in range(13)]
    path = tmp_path_factory.mktemp("page") / "report.html"
    section = Section(
        title="Training images recovered from a probe's weights",
        threat_model="The attacker holds the weights. " * 6,
        headline="34 of 40 training images recovered (cosine > 0.75); null 2 of 40",
        tables=[
            Table(
                "A wide table",
                ["nearest training image", *(f"column {k}" for k in range(13))],
                [["animals/birds__albino_peahen_seen_from_afar.jpg", *numbers]] * 5,
                "note",
            )
        ],
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


def framed(page: Path, width: int, outer: Path, expression: str = "0") -> Path:
    """A page that shows another one as wide as a phone, and what JavaScript finds in it."""
    content = page.read_text(encoding="utf-8").replace("&", "&amp;").replace('"', "&quot;")
    outer.write_text(
        f"<body style='margin:0'><iframe id=f style='width:{width}px;height:1400px;border:0' "
        f'srcdoc="{content}"></iframe><script>onload = () => {{ '
        "const page = document.getElementById('f').contentDocument;"
        f"document.body.append('found:' + JSON.stringify({expression})) }}</script>",
        encoding="utf-8",
    )
    return outer


def measured(page: Path, width: int, outer: Path, expression: str) -> Any:  # noqa: ANN401
    framed(page, width, outer, expression)
    (found,) = re.findall(
        r"</script>found:(.+)</body>", browse(outer, "--dump-dom", "--virtual-time-budget=3000")
    )
    return json.loads(found)


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_is_wider_than_the_screen(page: Path, width: int, tmp_path: Path) -> None:
    found = measured(page, width, tmp_path / "outer.html", "page.documentElement.scrollWidth")
    assert found <= width


BOX = """(() => {
  const box = page.querySelector('.scroll'), cells = box.querySelectorAll('tr:last-child td');
  const edge = box.getBoundingClientRect(), first = cells[1].getBoundingClientRect().right;
  box.scrollLeft = 1e6;
  const last = cells[cells.length - 1].getBoundingClientRect().right;
  return [edge.left, edge.right, first, last, edge.top, edge.bottom];
})()"""


@pytest.mark.parametrize("width", [320, 390])
def test_a_wide_table_scrolls_in_its_box_and_is_seen_to(
    page: Path, width: int, tmp_path: Path
) -> None:
    left, right, first, last, top, bottom = measured(page, width, tmp_path / "outer.html", BOX)
    # The first number is seen at once, however long the name before it; the last after a swipe.
    assert left < first < right <= width
    assert last <= right + 1
    # A shade at the right edge, as there is more, and none at the left.
    shot = tmp_path / "shot.png"
    outer = framed(page, width, tmp_path / "outer.html")
    browse(outer, f"--screenshot={shot}", "--window-size=500,1400")
    lines = np.asarray(Image.open(shot).convert("L"))[int(top) : int(bottom)]
    assert np.median(lines[:, int(right) - 2]) < 230
    assert np.median(lines[:, int(left) + 1]) > 250
