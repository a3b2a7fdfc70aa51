"""A pipeline's grid: stages repeated for every combination of values."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from artifacts.errors import InputError
from commands.pipeline import Stage, expand_grid
from tests.conftest import run_cli


def test_stages_are_repeated_in_order_and_shared_ones_are_not() -> None:
    stages = {
        "probe_{n}": Stage("fit", ["probe.yaml"], options={"data.num_train": "{n}"}),
        "shared": Stage("report"),
        "attack_{n}_{w}": Stage(
            "fit",
            ["{w}.yaml"],
            inputs={"model.probe": "probe_{n}/last.ckpt"},
            outputs=["{n}.json"],
            options={"model.hidden": ["{w}", 7], "deep": {"x": "{w}"}, "text": "w={w} {run}"},
        ),
        "table": Stage("table"),
    }
    grid: dict[str, list[Any]] = {"n": [20, 50], "w": [3, 0.5]}
    expanded = expand_grid(stages, grid)
    assert list(expanded) == [
        *("probe_20", "shared", "attack_20_3", "attack_20_0.5"),
        *("probe_50", "attack_50_3", "attack_50_0.5"),
        "table",
    ]
    # A whole string is replaced by the value itself, so that numbers stay numbers.
    assert expanded["probe_20"].options == {"data.num_train": 20}
    assert expanded["attack_50_0.5"] == Stage(
        "fit",
        ["0.5.yaml"],
        inputs={"model.probe": "probe_50/last.ckpt"},
        outputs=["50.json"],
        options={"model.hidden": [0.5, 7], "deep": {"x": 0.5}, "text": "w=0.5 {run}"},
    )


def test_without_a_grid_nothing_changes() -> None:
    stages = {"a": Stage("fit", options={"x": "{run}/{stage}/{other}"})}
    assert expand_grid(stages, {}) == stages


@pytest.mark.parametrize(
    ("name", "grid", "message"),
    [
        ("a", {"n": [1, 2]}, "different stages named 'a'"),
        ("a_{n}", {"n": []}, "'n' has no values"),
        ("a_{run}", {"run": [1]}, "other than 'run' and 'stage'"),
    ],
)
def test_grids_that_cannot_be_are_refused(
    name: str, grid: dict[str, list[Any]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        expand_grid({name: Stage("fit", options={"x": "{n}"})}, grid)


def test_a_grid_from_a_file_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "run": str(tmp_path / "run"),
        "grid": {"n": [1, 2]},
        "stages": {"page_{n}": {"command": "report", "options": {"metrics": "missing_{n}.json"}}},
    }
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump(config))
    assert run_cli("pipeline", f"--config={path}") == 1
    captured = capsys.readouterr()
    assert "[1/2] page_1: starts" in captured.out
    assert "missing_1.json" in captured.err
