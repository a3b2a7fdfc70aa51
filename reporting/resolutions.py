"""Which resolutions the images of a data set have."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reporting.page import Picture, Section, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The side of what the paper's backbones take (B.1).
_SIDE = 224
_SHOWN = 10
_PAPER = (
    "Images vary in size, from 250 to 500 pixels a side; all are resized to a shorter side of 224 "
    "and cropped to the middle 224 x 224 (section 4, B.1).",
    "Its Fig. 29 is a picture of the same kind for iNaturalist (a) and Food-101 (b), without "
    "numbers.",
)
_CAVEATS = (
    "The counts are of the images that this run used, training and test; the whole data set may "
    "hold others.",
)


def resolutions_section(rows: Sequence[Mapping[str, Any]]) -> Section:
    """The section about a ``resolutions.json`` (the paper's Fig. 29).

    Args:
        rows: ``width``, ``height`` and number of ``images``, each resolution once.

    Raises:
        ValueError: A number is no positive count, or there is none; likewise KeyError, TypeError.
    """
    counts = {(_count(row, "width"), _count(row, "height")): _count(row, "images") for row in rows}
    if not counts or len(counts) != len(rows):
        raise ValueError("no resolution, or one twice")
    total = sum(counts.values())
    (width, height), most = max(counts.items(), key=lambda item: item[1])
    small = sum(number for size, number in counts.items() if min(size) < _SIDE)
    frequent = sorted(counts.items(), key=lambda item: -item[1])[:_SHOWN]
    table = Table(
        "The most frequent resolutions",
        ["width x height", "images", "share"],
        [[f"{w} x {h}", f"{number:,}", f"{number / total:.1%}"] for (w, h), number in frequent],
        f"{len(counts):,} resolutions in all. {small:,} images are smaller than {_SIDE} pixels on "
        "a side: a backbone of that size sees them enlarged.",
    )
    return Section(
        title="Fig. 29: resolutions of the images",
        threat_model="No attack: it is counted in which sizes the images are stored.",
        headline=f"{total:,} images; {most / total:.0%} of them are {width} x {height}",
        tables=[table],
        figures=[Picture.of(resolution_scatter(counts), "How often images have which size.")],
        paper=_PAPER,
        caveats=_CAVEATS,
    )


def _count(row: Mapping[str, Any], name: str) -> int:
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**53:
        raise ValueError(f"{name} is {str(value)[:40]}")
    return value


def resolution_scatter(counts: Mapping[tuple[int, int], int]) -> "Figure":
    """How often images have which resolution (the paper's Fig. 29).

    Args:
        counts: Number of images by (width, height).

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axis = figure.subplots()
    widths, heights = zip(*counts, strict=True)
    points = axis.scatter(widths, heights, c=list(counts.values()), s=18, cmap="viridis")
    figure.colorbar(points, label="images")
    axis.set_xlabel("width")
    axis.set_ylabel("height")
    return figure
