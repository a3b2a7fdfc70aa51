"""Numbers of many runs, gathered by the values in their paths."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

PLACEHOLDER = re.compile(r"<(\w+)>")


@dataclass(frozen=True)
class Estimate:
    """A number over repeated runs.

    Attributes:
        mean: Arithmetic mean.
        half_width: Half of the 95% confidence interval (Student's t); NaN for a single run.
        count: How many runs.
    """

    mean: float
    half_width: float
    count: int

    def __str__(self) -> str:
        """The mean, and the interval where there is one."""
        return self.rounded(_digits(self.mean))

    def rounded(self, digits: int) -> str:
        """The same, with as many digits after the point as asked for."""
        text = f"{self.mean:.{digits}f}"
        return text if self.count == 1 else f"{text} ± {self.half_width:.{digits}f}"


def column_texts(column: Sequence[Estimate]) -> list[str]:
    """Estimates of one quantity, with equally many digits."""
    digits = _digits(max((number.mean for number in column), key=abs))
    return [number.rounded(digits) for number in column]


def _digits(mean: float) -> int:
    """Digits after the point for numbers up to ``mean``; shares, up to 1, have three."""
    return 3 if abs(mean) <= 1 else 1 if abs(mean) < 1000 else 0


# What tells rows apart: ((name, value), …).
Key = tuple[tuple[str, str], ...]
# Estimates by column title, for each row.
Rows = dict[Key, dict[str, Estimate]]


def cells_beside(
    rows: Rows, words: Sequence[Sequence[str]], printed: Sequence[Mapping[str, str]]
) -> tuple[list[str], list[list[str]]]:
    """Cells of a table, with published figures beside our own where there are some.

    Args:
        rows: Our numbers.
        words: What each row begins with.
        printed: Published figures of each row, by column title.

    Returns:
        Titles of the columns after the words, and whole rows.
    """
    columns = list(next(iter(rows.values())))
    texts = {column: column_texts([row[column] for row in rows.values()]) for column in columns}
    shown = {column for theirs in printed for column in theirs}
    header = []
    for column in columns:
        header += [column, f"{column} (paper)"] if column in shown else [column]
    lines = []
    for index, (first, theirs) in enumerate(zip(words, printed, strict=True)):
        cells = list(first)
        for column in columns:
            cells += [texts[column][index]]
            cells += [theirs.get(column, "-")] if column in shown else []
        lines.append(cells)
    return header, lines


def runs_of(rows: Rows) -> str:
    """How the numbers were averaged, as a sentence or two."""
    counts = sorted({number.count for row in rows.values() for number in row.values()})
    runs = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    note = " ± is half of the 95% interval of the mean (Student's t)." if counts[-1] > 1 else ""
    return f"Runs a row: {runs}.{note}"


def values_in(path: str, pattern: str) -> dict[str, str] | None:
    """The values of a pattern's placeholders in a path.

    Args:
        path: ``runs/x/evaluate_wd0.08_seed1/metrics.json``.
        pattern: ``runs/x/evaluate_wd<wd>_seed<seed>/metrics.json``.

    Returns:
        ``{"wd": "0.08", "seed": "1"}``, or None where the path is no such path.
    """
    parts = PLACEHOLDER.split(pattern)
    expression = "".join(
        f"(?P<{part}>[^/]+?)" if index % 2 else re.escape(part) for index, part in enumerate(parts)
    )
    match = re.fullmatch(expression, path)
    return match.groupdict() if match else None


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and 95% interval of repeated runs (k,).

    Raises:
        ValueError: There are none.
    """
    from scipy.stats import t

    if len(values) == 0:
        raise ValueError("no runs to average")
    numbers = np.asarray(values, dtype=float)
    count = len(numbers)
    if count == 1:
        return Estimate(float(numbers[0]), float("nan"), 1)
    error = numbers.std(ddof=1) / count**0.5
    return Estimate(float(numbers.mean()), float(t.ppf(0.975, count - 1) * error), count)


def look_up(content: Any, path: str) -> float:  # noqa: ANN401 - any JSON value
    """A number in nested mappings and lists.

    Args:
        content: Content of a JSON file.
        path: Keys and indices, as ``candidates/cosine/0.75/recovered``.

    Raises:
        KeyError: There is no such number.
    """
    for key in path.split("/"):
        if isinstance(content, Mapping) and key in content:
            content = content[key]
        elif isinstance(content, list) and key.isdigit() and int(key) < len(content):
            content = content[int(key)]
        else:
            raise KeyError(path)
    if isinstance(content, bool) or not isinstance(content, int | float):
        raise KeyError(path)
    return float(content)


def gather(runs: Mapping[Key, Any], columns: Mapping[str, str], over: Sequence[str]) -> Rows:
    """Estimates by the values that tell runs apart, in their natural order.

    Args:
        runs: Content of each run's metrics by its ((name, value), …).
        columns: Title by path of a number, see :func:`look_up`.
        over: Names that are averaged over, such as ``seed``.

    Returns:
        Title to estimate, by ((name, value), …) without the names in ``over``.

    Raises:
        KeyError: A run lacks a number.
    """
    groups: dict[Key, list[Any]] = {}
    for values, content in runs.items():
        kept = tuple((name, value) for name, value in values if name not in over)
        groups.setdefault(kept, []).append(content)
    return {
        values: {
            title: estimate([look_up(content, path) for content in groups[values]])
            for title, path in columns.items()
        }
        for values in sorted(groups, key=_natural)
    }


def _natural(values: Key) -> list[tuple[int, float, str]]:
    """Sorts numbers as numbers and words as words."""
    numbers = [as_number(value) for _, value in values]
    return [
        (1, 0.0, value) if number is None else (0, number, "")
        for number, (_, value) in zip(numbers, values, strict=True)
    ]


def as_number(text: str) -> float | None:
    """The finite number that a text is, if it is one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
