"""Every experiment of the papers runs at the small scale, by one command, and is not done twice."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import quiet, run_cli
from tests.experiment_configs import EXPERIMENTS, REDUCTIONS
from tests.reductions import CONFIGS


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment(experiment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = EXPERIMENTS[experiment]
    content = yaml.safe_load((CONFIGS / experiment).read_text(encoding="utf-8"))
    scale = yaml.safe_load((CONFIGS / "scale/small.yaml").read_text(encoding="utf-8"))["scale"]
    content["run"] = str(tmp_path / "run")
    # On top of the small scale, a size that takes seconds.
    scale["grid"] |= {"seed": [0], **case.grid}
    still = dict(word.removeprefix("--").split("=") for word in quiet(tmp_path)[1:])
    for name, stage in content["stages"].items():
        if stage["command"] in ("report", "table"):
            continue
        options = stage.setdefault("options", {})
        small: dict[str, Any] = {**still, **REDUCTIONS[name.split("_")[0]]}
        small |= case.options.get(name, {})
        options |= {key: value for key, value in small.items() if "{" not in str(options.get(key))}
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump({**content, "scale": scale}, sort_keys=False), encoding="utf-8")
    assert run_cli("pipeline", f"--config={path}") == 0
    assert "stages are complete" in capsys.readouterr().out
    if "table" in content["stages"]:
        lines = (tmp_path / "run_small/table/table.md").read_text(encoding="utf-8").splitlines()
        rows = [line for line in lines if line.startswith("|")][2:]
        assert len(rows) == case.rows
    assert run_cli("pipeline", f"--config={path}") == 0
    assert "starts" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["small", "paper_recipe"])
def test_stand_ins_are_files(name: str) -> None:
    scale = yaml.safe_load((CONFIGS / f"scale/{name}.yaml").read_text(encoding="utf-8"))["scale"]
    for old, new in scale["replace"].items():
        assert (CONFIGS.parent / old).is_file() or old == "configs/backbones/none.yaml"
        assert all((CONFIGS.parent / path).is_file() for path in new)


def test_the_list_of_experiments_is_whole() -> None:
    text = (CONFIGS.parent / "docs/experiments.md").read_text(encoding="utf-8")
    folders = (CONFIGS / "transfer_reconstruction", CONFIGS / "mim_membership")
    names = [path.name for folder in folders for path in folder.glob("*.yaml")]
    experiments = [name for name in names if name.startswith(("fig", "table"))]
    assert len(experiments) > 20
    assert [name for name in experiments if f"`{name}`" not in text] == []
