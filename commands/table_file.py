"""The JSON file of the tool ``table``: written, and read again with its numbers checked."""

import math
from pathlib import Path
from typing import Any

from artifacts.errors import InputError
from artifacts.files import read_json, write_json
from reporting.sweep import Estimate, Key, Rows

_MADE_BY = "the tool `table` writes one beside its Markdown file"


def write_table_file(path: Path, rows: Rows) -> None:
    """Writes estimates by column title, for each row."""
    write_json(path, [_as_json(key, row) for key, row in rows.items()])


def read_table_file(path: Path) -> Rows:
    """Reads what :func:`write_table_file` wrote.

    Returns:
        At least one row; all differ in the same names and have the same columns.

    Raises:
        InputError: It is missing, or no such file.
    """
    content = read_json(path, what="table file", made_by=_MADE_BY)
    if not isinstance(content, list) or not content:
        raise InputError(f"{path} is no list of rows with 'values' and 'columns'; {_MADE_BY}")
    rows: Rows = {}
    for number, entry in enumerate(content, start=1):
        try:
            key = tuple((str(name), str(value)) for name, value in entry["values"].items())
            row = {str(t): _estimate(number) for t, number in entry["columns"].items()}
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise InputError(f"{path}: row {number} cannot be ({error!r}); {_MADE_BY}") from error
        if not row or key in rows or (rows and _form(key, row) != _form(*next(iter(rows.items())))):
            raise InputError(
                f"{path}: row {number} is there twice or has other names or columns than the "
                f"first; {_MADE_BY}"
            )
        rows[key] = row
    return rows


def _form(key: Key, row: dict[str, Estimate]) -> tuple[list[str], list[str]]:
    return [name for name, _ in key], list(row)


def _as_json(key: Key, row: dict[str, Estimate]) -> dict[str, Any]:
    numbers = {
        title: {
            "mean": number.mean,
            # JSON has no NaN.
            "half_width": number.half_width if number.count > 1 else None,
            "count": number.count,
        }
        for title, number in row.items()
    }
    return {"values": dict(key), "columns": numbers}


def _estimate(number: dict[str, Any]) -> Estimate:
    """A number of the file.

    Raises:
        ValueError: It cannot be an estimate; or another error, where it is no mapping.
    """
    mean, half_width, count = number["mean"], number["half_width"], number["count"]
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count is {str(count)[:40]}")
    single = count == 1
    if single != (half_width is None):
        raise ValueError(f"half_width is {str(half_width)[:40]} with a count of {count}")
    parts = [mean, 0.0 if single else half_width]
    if any(isinstance(part, bool) or not math.isfinite(part) for part in parts) or parts[1] < 0:
        raise ValueError(f"mean and half_width are {str(parts)[:80]}")
    return Estimate(float(mean), math.nan if single else float(half_width), count)
