"""Numbers of many runs, gathered by the values in their paths."""

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
        digits = 3 if abs(self.mean) < 1 else 1 if abs(self.mean) < 1000 else 0
        text = f"{self.mean:.{digits}f}"
        return text if self.count == 1 else f"{text} ± {self.half_width:.{digits}f}"


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


def gather(
    runs: Mapping[tuple[tuple[str, str], ...], Any], columns: Mapping[str, str], over: Sequence[str]
) -> dict[tuple[tuple[str, str], ...], dict[str, Estimate]]:
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
    groups: dict[tuple[tuple[str, str], ...], list[Any]] = {}
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


def _natural(values: tuple[tuple[str, str], ...]) -> list[tuple[int, float, str]]:
    """Sorts numbers as numbers and words as words."""
    keys = []
    for _, value in values:
        try:
            keys.append((0, float(value), ""))
        except ValueError:
            keys.append((1, 0.0, value))
    return keys
