"""Charts of recovery over many runs."""

import math

import numpy as np

from reporting.sweep import Estimate
from reporting.table_charts import recovery_bars, recovery_curves, recovery_matrix

RECOVERED = [Estimate(1.0, 3.0, 3), Estimate(20.0, 5.0, 3), Estimate(30.0, math.nan, 1)]
ACCURACY = [Estimate(value, 0.01, 3) for value in (0.85, 0.86, 0.8)]


def test_accuracy_and_counts_have_an_axis_each() -> None:
    figure = recovery_curves(
        [0, 0.1, 0.4],
        ACCURACY,
        RECOVERED,
        ACCURACY,
        label="x",
        marks=([0.1], "m"),
        logarithmic=True,
    )
    left, right = figure.axes
    drawn = {str(line.get_label()): line for axis in (left, right) for line in axis.get_lines()}
    assert drawn["test accuracy"].axes is left
    recovered = drawn["training images recovered"]
    assert recovered.axes is right
    np.testing.assert_array_equal(recovered.get_xydata(), [[0, 1], [0.1, 20], [0.4, 30]])
    # A count is not below 0, and a single run has no interval.
    (band, _) = right.collections
    (path,) = band.get_paths()
    corners = {tuple(point) for point in np.asarray(path.vertices).round(6).tolist()}
    assert {(0.0, 0.0), (0.0, 4.0), (0.1, 15.0), (0.1, 25.0), (0.4, 30.0)} == corners
    figure.canvas.draw()
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["0", "0.1", "0.4"]


def test_each_row_has_two_bars() -> None:
    figure = recovery_bars(["a", "b", "c"], RECOVERED, ACCURACY)
    (axis,) = figure.axes
    widths = [bar.get_width() for bar in axis.patches]  # type: ignore[attr-defined]
    assert widths == [1, 20, 30, 0.85, 0.86, 0.8]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["a", "b", "c"]


def test_the_matrix_has_counts_and_shares() -> None:
    cells = {(100.0, 20.0): RECOVERED[1], (40.0, 500.0): RECOVERED[2]}
    axis = recovery_matrix(cells, names=("n", "w")).axes[0]
    texts = {text.get_position(): text.get_text() for text in axis.texts}
    assert texts == {(1, 1): "20\n20%", (0, 0): "30\n75%"}
    np.testing.assert_array_equal(axis.get_images()[0].get_array(), [[75, np.nan], [np.nan, 20]])
