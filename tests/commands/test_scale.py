"""A scale's file, after any experiment's, makes it small."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from artifacts.errors import InputError
from commands.pipeline import Stage, pipeline
from commands.scale import Scale
from tests.conftest import run_cli


def test_stand_ins_take_the_place_of_files_and_grid_values(tmp_path: Path) -> None:
    for name in ("model.yaml", "large.yaml", "tiny.yaml", "other.yaml"):
        (tmp_path / name).touch()
    words: list[list[str]] = []
    stages = {
        "fit_{size}_{n}": Stage(
            "fit",
            [f"{tmp_path}/model.yaml", f"{tmp_path}/{{size}}.yaml", f"{tmp_path}/absent.yaml"],
            options={"data.n": "{n}"},
        )
    }
    scale = Scale(
        "small",
        replace={
            f"{tmp_path}/large.yaml": [f"{tmp_path}/tiny.yaml", f"{tmp_path}/other.yaml"],
            f"{tmp_path}/absent.yaml": [],
        },
        grid={"n": [2], "unknown": [1]},
    )
    grid: dict[str, list[Any]] = {"size": ["large"], "n": [50, 100]}
    pipeline(f"{tmp_path}/run", stages, grid, scale, dispatch=words.append)
    files = [f"{tmp_path}/{name}.yaml" for name in ("model", "tiny", "other")]
    options = [f"--trainer.default_root_dir={tmp_path}/run_small/fit_large_2", "--data.n=2"]
    assert words == [["fit", *(w for file in files for w in ("--config", file)), *options]]


def test_a_scale_composes_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = {
        "run": str(tmp_path / "run"),
        "stages": {"page": {"command": "report", "options": {"metrics": "missing.json"}}},
    }
    paths = [tmp_path / "experiment.yaml", tmp_path / "small.yaml"]
    paths[0].write_text(yaml.safe_dump(experiment))
    paths[1].write_text(yaml.safe_dump({"scale": {"name": "small"}}))
    assert run_cli("pipeline", *(f"--config={path}" for path in paths)) == 1
    assert "missing.json" in capsys.readouterr().err
    assert (tmp_path / "run_small/page/stage.json").is_file()


def test_a_name_that_is_no_word_is_refused() -> None:
    with pytest.raises(InputError, match="must be a word"):
        Scale("../evil")
