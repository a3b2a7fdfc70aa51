"""Tables of many runs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats

from tests.conftest import run_cli

VALUES = {("0.08", 0): 10, ("0.08", 1): 14, ("0.08", 2): 15, ("0.3", 0): 4}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for (decay, seed), count in VALUES.items():
        for directory in (
            f"evaluate_wd{decay}_seed{seed}",
            f"evaluate_wd{decay}_seed{seed}.previous",
        ):
            path = tmp_path / "run" / directory / "metrics.json"
            path.parent.mkdir(parents=True)
            wrong = 1000 if "previous" in directory else 0
            path.write_text(json.dumps({"found": {"0.75": [count + wrong]}, "name": "x"}))
    return tmp_path / "run"


def words(runs: Path, **changes: object) -> list[str]:
    options: dict[str, object] = {
        "metrics": runs / "evaluate_wd<wd>_seed<seed>/metrics.json",
        "columns": json.dumps({"recovered": "found/0.75/0"}),
        "output": runs / "table.md",
        **changes,
    }
    return ["table", *(f"--{name}={value}" for name, value in options.items())]


def test_means_and_intervals_are_those_of_scipy(runs: Path, tmp_path: Path) -> None:
    published = tmp_path / "published.yaml"
    entry = {"values": {"wd": 0.3}, "columns": {"recovered": 7.5}}
    published.write_text(yaml.safe_dump([entry]))
    assert run_cli(*words(runs, published=published)) == 0
    rows = json.loads((runs / "table.json").read_text())
    assert [row["values"] for row in rows] == [{"wd": "0.08"}, {"wd": "0.3"}]
    repeated, single = (row["columns"]["recovered"] for row in rows)
    interval = stats.t.interval(0.95, 2, 13, stats.sem([10, 14, 15]))
    np.testing.assert_allclose(repeated["half_width"], (interval[1] - interval[0]) / 2)
    assert (repeated["mean"], repeated["count"]) == (13, 3)
    assert (single["mean"], single["half_width"], single["count"]) == (4, None, 1)
    text = (runs / "table.md").read_text()
    assert "| wd | recovered | recovered (paper) |" in text
    assert "| 0.3 | 4.0 | 7.5 |" in text
    assert "| 0.08 | 13.0 ± 6.6 | - |" in text


def test_only_seeds_of_one_experiment_are_averaged(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, size in ((0, 40), (1, 40), (2, 20)):
        stage = runs / f"evaluate_wd0.08_seed{seed}"
        command = [
            "test",
            f"--data.seed={seed}",
            f"--model.probe={runs}/probe-seed{seed}/last.ckpt",
        ]
        marker = {"status": "complete", "command": [*command, f"--data.num_train={size}"]}
        (stage / "stage.json").write_text(json.dumps(marker))
    assert run_cli(*words(runs)) == 1
    message = capsys.readouterr().err
    assert "evaluate_wd0.08_seed2 would be averaged, but are of different experiments" in message
    assert "--data.num_train=20" in message
    assert not (runs / "table.md").exists()
    shutil.rmtree(runs / "evaluate_wd0.08_seed2")
    assert run_cli(*words(runs)) == 0


def test_a_stage_that_is_not_finished_is_no_run(runs: Path) -> None:
    (runs / "evaluate_wd0.08_seed0/stage.json").write_text('{"status": "running"}')
    (runs / "evaluate_wd0.08_seed1/stage.json").write_text('{"status": "complete"}')
    assert run_cli(*words(runs)) == 0
    rows = json.loads((runs / "table.json").read_text())
    number = rows[0]["columns"]["recovered"]
    assert (number["mean"], number["count"]) == (14.5, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": "nowhere/a<wd>/metrics.json"}, "no file matches nowhere/a<wd>"),
        ({"metrics": "nowhere/metrics.json"}, "--metrics needs <name>"),
        ({"columns": '{"x": "found/0.9/0"}'}, "has no number at 'found/0.9/0'"),
        ({"columns": '{"x": "name"}'}, "has no number at 'name'"),
        ({"published": "pyproject.toml"}, "pyproject.toml is not a list of"),
        ({"published": "absent.yaml"}, "no file of published figures at absent.yaml"),
    ],
)
def test_what_cannot_be_gathered_is_said(
    runs: Path, changes: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(*words(runs, **changes)) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (runs / "table.md").exists()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (" ", "output ' ' names no file"),
        ("t.json", "t.json is the Markdown file"),
        ("evaluate_wd0.3_seed0/metrics.md", "metrics.json is a file that is read"),
        ("p.yaml", "p.yaml is a file that is read"),
    ],
)
def test_a_table_is_not_written_over_what_is_read(
    runs: Path, output: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    published = runs / "p.yaml"
    published.write_text("[]")
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    target = runs / output if output.strip() else output
    assert run_cli(*words(runs, output=target, published=published)) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()} == before


def test_a_pipeline_makes_the_table_again_when_a_run_changes(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = {
        "command": "table",
        "inputs": {"metrics": "evaluate_wd<wd>_seed<seed>/metrics.json"},
        "options": {"columns": {"recovered": "found/0.75/0"}, "output": "{stage}/table.md"},
        "outputs": ["table.md", "table.json"],
    }
    config = tmp_path / "pipeline.yaml"
    config.write_text(yaml.safe_dump({"run": str(runs), "stages": {"table": stage}}))
    assert run_cli("pipeline", f"--config={config}") == 0
    assert "| 0.3 | 4.0 |" in (runs / "table/table.md").read_text()
    capsys.readouterr()
    assert run_cli("pipeline", f"--config={config}") == 0
    assert "skipped" in capsys.readouterr().out
    (runs / "evaluate_wd0.3_seed0/metrics.json").write_text('{"found": {"0.75": [8]}}')
    assert run_cli("pipeline", f"--config={config}") == 0
    assert "| 0.3 | 8.0 |" in (runs / "table/table.md").read_text()
