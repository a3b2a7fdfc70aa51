"""A self-contained HTML page: figures are inside it, and nothing is fetched to show it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        title: Heading.
        header: Column titles.
        rows: Cells, as text.
        note: How to read it.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def table_lines(table: Table) -> list[str]:
    """A table as lines of text, its columns aligned."""
    rows = [table.header, *table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [table.title, *aligned, table.note]


@dataclass(frozen=True)
class Picture:
    """A figure of the page.

    Attributes:
        source: ``data:`` address of the picture.
        caption: What it shows.
    """

    source: str
    caption: str

    @classmethod
    def of(
        cls, figure: "Figure", caption: str, dpi: int = 110, *, photos: bool = False
    ) -> "Picture":
        """A matplotlib figure, of photographs or not, as a picture that the page holds itself."""
        from reporting.figures import data_uri, jpeg_bytes, png_bytes

        return cls(data_uri((jpeg_bytes if photos else png_bytes)(figure, dpi)), caption)


@dataclass(frozen=True)
class Section:
    """What the page says about one finished run.

    Attributes:
        title: Heading.
        threat_model: What the attacker has, in a sentence or two.
        headline: The main number.
        tables: Tables.
        figures: Figures.
        paper: What the paper says to it.
        caveats: What may not be concluded.
        lines: The results in words, for a terminal; by default the headline.
    """

    title: str
    threat_model: str
    headline: str
    tables: Sequence[Table] = ()
    figures: Sequence[Picture] = ()
    paper: Sequence[str] = ()
    caveats: Sequence[str] = ()
    lines: Sequence[str] = ()


# How every page begins.
DOCTYPE = "<!doctype html>\n"


@dataclass(frozen=True)
class Page:
    """What the page says.

    Attributes:
        title: Heading.
        sections: One for each run.
        versions: The versions that made the results.
        configs: Name and text of each stage's config.
    """

    title: str
    sections: Sequence[Section]
    versions: str = ""
    configs: Sequence[tuple[str, str]] = field(default_factory=list)


def render(page: Page) -> str:
    """The page as HTML; every text is escaped."""
    from jinja2 import Environment

    template = files("reporting").joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return DOCTYPE + environment.from_string(template).render(**vars(page))
