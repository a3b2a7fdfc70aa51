"""The shipped demo keeps its promise."""

import json
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY, quiet, run_cli


@pytest.mark.slow
def test_half_of_the_digits_and_twice_the_null(tmp_path: Path) -> None:
    config = yaml.safe_load((REPOSITORY / "configs/quickstart/pipeline.yaml").read_text())
    config["run"] = str(tmp_path / "run")
    still = dict(word.removeprefix("--").split("=") for word in quiet(tmp_path)[1:])
    for stage in config["stages"].values():
        if stage["command"] != "report":
            stage["options"] = still
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    assert run_cli("pipeline", f"--config={path}") == 0
    metrics = json.loads((tmp_path / "run/evaluate/metrics.json").read_text())
    counts = metrics["candidates"]["cosine"]["0.75"]
    assert counts["recovered"] >= metrics["num_train"] / 2
    assert counts["recovered"] >= 2 * max(counts["null_held_out"], counts["null_random"])
    assert metrics["test_accuracy"] > 0.8
    assert metrics["train_accuracy"] == 1
