"""Charts of recovery over many runs, as matplotlib objects that no global state holds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from reporting.sweep import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RECOVERED = "training images recovered"
_HELD_OUT = "held-out images (null)"


def recovery_curves(
    x: Sequence[float],
    accuracy: Sequence[Estimate],
    recovered: Sequence[Estimate],
    held_out: Sequence[Estimate],
    *,
    label: str,
    marks: tuple[Sequence[float], str] = ((), ""),
    logarithmic: bool = False,
) -> "Figure":
    """Test accuracy on one axis, and recovery with its null on the other (Fig. 12 of the paper).

    Args:
        x: What was varied (k,), ascending.
        accuracy: (k,).
        recovered: Training samples near a candidate (k,).
        held_out: The same count for held-out samples (k,).
        label: Of the horizontal axis.
        marks: Places on that axis, and what they are.
        logarithmic: Whether the axis is, from its least positive value on.

    Returns:
        The figure; bands are 95% intervals.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    left = figure.subplots()
    right = left.twinx()
    for axis, numbers, name, colour, line in (
        (left, accuracy, "test accuracy", "tab:red", "o-"),
        (right, recovered, _RECOVERED, "tab:blue", "s-"),
        (right, held_out, _HELD_OUT, "tab:gray", "^--"),
    ):
        mean = np.array([number.mean for number in numbers])
        down, up = _bars(numbers)
        axis.plot(x, mean, line, color=colour, label=name)
        axis.fill_between(x, mean - down, mean + up, color=colour, alpha=0.15, linewidth=0)
    for position in marks[0]:
        left.axvline(position, color="gray", linewidth=1, linestyle=":")
    if marks[0]:
        left.plot([], [], ":", color="gray", label=marks[1])
    if logarithmic:
        left.set_xscale("symlog", linthresh=min((v for v in x if v > 0), default=1.0))
        left.set_xticks(x, [f"{value:g}" for value in x], minor=False)
        left.minorticks_off()
    left.set_xlabel(label)
    left.set_ylabel("test accuracy", color="tab:red")
    right.set_ylabel("samples above 0.75", color="tab:blue")
    right.set_ylim(bottom=0)
    figure.legend(loc="outside upper center", frameon=False, ncols=2, fontsize=9)
    return figure


def recovery_bars(
    rows: Sequence[str], recovered: Sequence[Estimate], held_out: Sequence[Estimate]
) -> "Figure":
    """Recovery beside its null, a pair of bars a row.

    Args:
        rows: What each row is called (k,).
        recovered: Training samples near a candidate (k,).
        held_out: The same count for held-out samples (k,).

    Returns:
        The figure; error bars are 95% intervals.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 1.4 + 0.6 * len(rows)), layout="constrained")
    axis = figure.subplots()
    places = np.arange(len(rows), dtype=float)
    for numbers, name, colour, shift in (
        (recovered, _RECOVERED, "tab:blue", -0.2),
        (held_out, _HELD_OUT, "tab:gray", 0.2),
    ):
        mean = [number.mean for number in numbers]
        axis.barh(
            places + shift, mean, 0.4, xerr=_bars(numbers), capsize=3, color=colour, label=name
        )
    axis.set_yticks(places, list(rows))
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_xlabel("samples above 0.75")
    figure.legend(loc="outside upper center", frameon=False, ncols=2, fontsize=9)
    return figure


def matrix_sides(cells: Mapping[tuple[float, float], Estimate]) -> tuple[list[float], list[float]]:
    """Columns with few samples first, and rows with the most of the other number first."""
    samples, others = (sorted(set(side)) for side in zip(*cells, strict=True))
    return samples, others[::-1]


def recovery_matrix(
    cells: Mapping[tuple[float, float], Estimate], *, names: tuple[str, str]
) -> "Figure":
    """Counts and their share of the samples as a coloured matrix (Fig. 13 of the paper).

    Args:
        cells: Recovered samples by number of training samples and another number.
        names: What the two numbers are.

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    samples, others = matrix_sides(cells)
    size = (2 + 0.95 * len(samples), 1.3 + 0.75 * len(others))
    figure = Figure(figsize=size, layout="constrained")
    axis = figure.subplots()
    shares = np.full((len(others), len(samples)), np.nan)
    for (n, other), count in cells.items():
        column, row = samples.index(n), others.index(other)
        share = shares[row, column] = count.mean / n
        text = f"{count.mean:.0f}\n{share:.0%}"
        colour = "white" if share > 0.6 else "black"
        axis.text(column, row, text, ha="center", va="center", color=colour)
    shown = axis.imshow(100 * shares, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    axis.set_xticks(range(len(samples)), [f"{n:,g}" for n in samples])
    axis.set_yticks(range(len(others)), [f"{other:,g}" for other in others])
    axis.set_xlabel(names[0])
    axis.set_ylabel(names[1])
    figure.colorbar(shown, label="recovered, %")
    return figure


def _bars(numbers: Sequence[Estimate]) -> np.ndarray:
    """Intervals down and up (2, k): a share or count is not below 0, and single runs have none."""
    up = np.array([0.0 if number.count == 1 else number.half_width for number in numbers])
    mean = np.array([number.mean for number in numbers])
    return np.stack([np.minimum(up, mean.clip(0)), up])
