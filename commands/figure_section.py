"""A section about a file of the tool ``table``, after a look at whether it is what is said."""

from pathlib import Path

from artifacts.errors import InputError
from commands.table_file import read_table_file
from reporting.figure_section import figure_section, plain_section
from reporting.page import Section
from reporting.paper_figures import FIGURES, PaperFigure
from reporting.sweep import Rows, as_number


def numbers_section(path: Path, figure: str | None) -> Section:
    """The section about the means of many runs.

    Args:
        path: The JSON file.
        figure: A key of ``FIGURES``; without one, the numbers have a plain title.

    Raises:
        InputError: The file is missing, broken, or not what the figure shows; or there is no such
            figure.
    """
    if figure is not None and figure not in FIGURES:
        raise InputError(f"there is no figure '{figure}'; choose one of {', '.join(FIGURES)}")
    rows = read_table_file(path)
    if figure is None:
        return plain_section(rows)
    _require_the_figures(path, figure, FIGURES[figure], rows)
    return figure_section(FIGURES[figure], rows)


def _require_the_figures(path: Path, figure: str, layout: PaperFigure, rows: Rows) -> None:
    """Refuses a table of something else than the figure shows."""
    key, row = next(iter(rows.items()))
    names = [name for name, _ in key]
    if set(names) != set(layout.names):
        found, needed = (", ".join(n) or "nothing" for n in (names, layout.names))
        raise InputError(
            f"{path}: its rows differ in {found}, those of {figure} in {needed}; give the table "
            "of that experiment"
        )
    for column in layout.columns:
        if column not in row:
            raise InputError(
                f"{path} has no column '{column}', which {figure} shows; it has {', '.join(row)}"
            )
    for name, value in (pair for key in rows for pair in key):
        number = as_number(value)
        if layout.number is not None and (number is None or number < 0):
            raise InputError(f"{path}: {name} is '{value}'; {figure} needs a number from 0 on")
        if layout.chart == "matrix" and number == 0:
            raise InputError(f"{path}: {name} is 0; {figure} needs a number above 0")
