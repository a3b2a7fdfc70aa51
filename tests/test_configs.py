"""Every shipped config runs through ``main``, at a size that takes seconds.

A config without an entry here fails a test: none can be forgotten.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.callbacks.test_resolution_writer import RESOLUTION_CONFIGS
from tests.conftest import quiet, run_cli
from tests.embedding_configs import EMBEDDING_CONFIGS
from tests.experiment_configs import EXPERIMENT_CONFIGS
from tests.inversion_configs import INVERSION_CONFIGS
from tests.mae_configs import MAE_CONFIGS
from tests.membership_configs import MEMBERSHIP_CONFIGS
from tests.reductions import ATTACK, CHECK, CONFIGS, EVALUATE, PROBE, SELECT


@dataclass(frozen=True)
class StageCase:
    """How the config of one stage is run.

    Attributes:
        command: Subcommand of ``main.py``.
        options: Reductions.
        after: Configs that it composes with.
        inputs: Option by what an earlier stage made, ``"probe"`` or ``"candidates"``.
        output: A file that it makes.
    """

    command: str
    options: dict[str, Any]
    output: str
    after: tuple[str, ...] = ()
    inputs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineCase:
    """How a pipeline is reduced, beside what all are (``REDUCTIONS``).

    Attributes:
        grid: Fewer values.
        options: Reductions by stage.
    """

    grid: dict[str, list[Any]] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


SAME_PROBE = {"data.num_train": 20, "model.hidden": [100]}
EVALUATE_SMALL = {"data.num_train": 20, "model.representatives": "null"}
OF_PROBE = {"model.probe": "probe"}
OF_BOTH = {"model.probe": "probe", "model.candidates": "candidates"}

STAGES = {
    "quickstart/probe.yaml": StageCase("fit", PROBE, "checkpoints/last.ckpt"),
    "quickstart/probe_check.yaml": StageCase(
        "test", SAME_PROBE, "attackability.json", inputs={"ckpt_path": "probe"}
    ),
    "quickstart/reconstruct.yaml": StageCase(
        "fit", ATTACK, "candidates.safetensors", inputs=OF_PROBE
    ),
    "quickstart/select.yaml": StageCase(
        "predict", SELECT, "representatives.safetensors", inputs={"data.candidates": "candidates"}
    ),
    "quickstart/evaluate.yaml": StageCase("test", EVALUATE_SMALL, "metrics.json", inputs=OF_BOTH),
    "transfer_reconstruction/probe_binary.yaml": StageCase("fit", PROBE, "checkpoints/last.ckpt"),
    "transfer_reconstruction/probe_multiclass.yaml": StageCase(
        "fit", PROBE, "checkpoints/last.ckpt"
    ),
    "transfer_reconstruction/probe_trajectory.yaml": StageCase(
        "fit",
        {**PROBE, "trainer.max_epochs": 10},
        "checkpoints/epoch=4.ckpt",
        after=("transfer_reconstruction/probe_binary.yaml",),
    ),
    "transfer_reconstruction/kkt_paper.yaml": StageCase(
        "fit", ATTACK, "candidates.safetensors", inputs=OF_PROBE
    ),
    "transfer_reconstruction/activation_maximisation.yaml": StageCase(
        "fit", ATTACK, "candidates.safetensors", inputs=OF_PROBE
    ),
    "transfer_reconstruction/evaluate.yaml": StageCase(
        "test", EVALUATE_SMALL, "metrics.json", inputs=OF_BOTH
    ),
    "transfer_reconstruction/cluster_count.yaml": StageCase(
        "test", EVALUATE, "cluster_count.png", inputs=OF_BOTH
    ),
}
PIPELINES = {
    "quickstart/pipeline.yaml": PipelineCase(),
}
# By the first word of a stage's name.
REDUCTIONS: dict[str, dict[str, Any]] = {
    "probe": PROBE,
    "check": CHECK,
    "reconstruct": ATTACK,
    "select": SELECT,
    "evaluate": EVALUATE,
    "report": {},
    "table": {},
}


def test_every_config_is_run_by_a_test() -> None:
    shipped = {str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml")}
    assert not set(STAGES) & set(PIPELINES)
    elsewhere = {*EMBEDDING_CONFIGS, *EXPERIMENT_CONFIGS, *MAE_CONFIGS, *MEMBERSHIP_CONFIGS}
    elsewhere |= {*INVERSION_CONFIGS, *RESOLUTION_CONFIGS}
    assert shipped == {*STAGES, *PIPELINES, *elsewhere}


@pytest.mark.parametrize("config", STAGES)
def test_stage(config: str, small_probe: Path, small_candidates: Path, tmp_path: Path) -> None:
    case = STAGES[config]
    made = {"probe": small_probe, "candidates": small_candidates}
    words = [
        case.command,
        *(f"--config={CONFIGS / name}" for name in (*case.after, config)),
        *quiet(tmp_path),
        *(f"--{name}={value}" for name, value in case.options.items()),
        *(f"--{name}={made[what]}" for name, what in case.inputs.items()),
    ]
    assert run_cli(*words) == 0
    assert (tmp_path / case.output).is_file()


@pytest.mark.parametrize("config", PIPELINES)
def test_pipeline(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_small(config, PIPELINES[config], tmp_path, capsys)


def run_small(
    config: str, case: PipelineCase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs a pipeline at reduced size, twice."""
    content = yaml.safe_load((CONFIGS / config).read_text(encoding="utf-8"))
    content["run"] = str(tmp_path / "run")
    grid = content.get("grid", {})
    assert set(case.grid) <= set(grid)
    content["grid"] = {**grid, **case.grid}
    still = dict(word.removeprefix("--").split("=") for word in quiet(tmp_path)[1:])
    for name, stage in content["stages"].items():
        if stage["command"] in ("report", "table"):
            continue
        options = stage.setdefault("options", {})
        small = {**still, **REDUCTIONS[name.split("_")[0]], **case.options.get(name, {})}
        # What the grid sets is small already.
        options |= {key: value for key, value in small.items() if "{" not in str(options.get(key))}
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    assert run_cli("pipeline", f"--config={path}") == 0
    assert "stages are complete" in capsys.readouterr().out
    # Once more, and nothing is left to do.
    assert run_cli("pipeline", f"--config={path}") == 0
    assert "starts" not in capsys.readouterr().out
