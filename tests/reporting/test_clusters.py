"""What a report says about numbers of clusters."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from reporting.clusters import cluster_count_curves, run_curves
from tests.conftest import run_cli

COUNTS = [[1, 80, 60], [3, 90, 90], [2, 70, 96]]


def run(counts: list[int], **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    curve = {"cosine": counts, "cosine_null_held_out": [0, 4, 7], "distinct": [1, 20, 12]}
    ssim = {"ssim": [5, 6, 2], "ssim_null_held_out": [5, 5, 5]}
    return {
        "candidates": 400,
        "num_train": 40,
        "top": 150,
        "ranking": "size",
        "threshold": {"cosine": 0.75, "ssim": 0.4},
        "maxclust": [2, 100, 1000],
        "curves": {"mean": {**curve, **ssim}, "nearest": {**curve, "cosine": [0, 1, 2]}},
        **changes,
    }


def write(root: Path, contents: list[Any]) -> str:
    for seed, content in enumerate(contents):
        (root / f"clusters_seed{seed}").mkdir()
        (root / f"clusters_seed{seed}" / "metrics.json").write_text(json.dumps(content))
    return f"--metrics={root}/clusters_seed<seed>/metrics.json"


def test_seeds_are_averaged_in_one_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = write(tmp_path, [run(counts) for counts in COUNTS])
    assert run_cli("report", words, f"--output={tmp_path}/page.html") == 0
    best = [counts[2] for counts in COUNTS]
    low, high = stats.t.interval(0.95, 2, np.mean(best), stats.sem(best))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == (
        f"With 1,000 clusters {np.mean(best):.1f} ± {(high - low) / 2:.1f} of 150 representatives "
        "are near a training image (cosine > 0.75), and 7.0 ± 0.0 near a held-out one"
    )
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<img") == 1
    assert "3,294 clusters" in page
    cells = "<td>SSIM &gt; 0.4</td><td>100</td><td>6.0 ± 0.0</td><td>5.0 ± 0.0</td>"
    assert cells in page
    # Alone, one is no mean.
    assert run_cli("report", words.replace("<seed>", "0")) == 0
    assert "With 100 clusters 80.0 of 150" in capsys.readouterr().out


def test_curves_are_drawn_as_in_the_paper() -> None:
    figure = cluster_count_curves([2, 100, 1000], run_curves(run(COUNTS[0])))
    (axis,) = figure.axes
    drawn = {
        (line.get_color(), line.get_linestyle(), tuple(np.asarray(line.get_ydata()).tolist()))
        for line in axis.get_lines()
    }
    assert drawn == {
        ("tab:red", "--", (1, 80, 60)),
        ("tab:red", "-", (5, 6, 2)),
        ("tab:blue", "--", (0, 1, 2)),
        ("gray", "--", (0, 4, 7)),
        ("gray", "-", (5, 5, 5)),
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (run([1, 2, 3], top=45), "cannot be averaged with 1 more (ValueError('the runs differ in"),
        (run([1, 2]), "cannot be averaged with 1 more"),
        (run([1, 2, "x"]), "cannot be averaged with 1 more"),  # type: ignore[list-item]
        ({"curves": {}, "maxclust": [2]}, "(ValueError('the runs differ in maxclust'))"),
    ],
)
def test_other_runs_are_not_averaged(
    changed: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = write(tmp_path, [run(COUNTS[0]), changed])
    assert run_cli("report", words, f"--output={tmp_path}/page.html") == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "content",
    [
        run([1, 2]),
        {**run([1, 2, 3]), "curves": {}},
        {**run([1, 2, 3]), "curves": {"mean": {"distinct": [1, 2, 3]}}},
        [],
        [{"width": 3, "height": 4}],
        [{"width": 3, "height": 4, "images": 0}],
        [{"width": 3, "height": 4, "images": 1}] * 2,
        [3],
    ],
)
def test_what_is_no_result_is_refused_in_one_line(
    content: Any,  # noqa: ANN401
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_cli("report", write(tmp_path, [content])) == 1
    error = capsys.readouterr().err
    assert "clusters_seed0/metrics.json is not the metrics file of an evaluation" in error
    assert error.count("\n") == 1
