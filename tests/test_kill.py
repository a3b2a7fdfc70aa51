"""Every stage of the quickstart is killed at any moment, run again, and ends as if nothing was."""

import contextlib
import json
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from artifacts.weights import sha256_of_content
from tests.commands.test_pipeline import small_pipeline
from tests.conftest import REPOSITORY, quiet
from tests.pipeline_server import PipelineServer

KILLS = 10
QUICKSTART = REPOSITORY / "configs/quickstart"
# A checkpoint at every epoch, so that there is much to be killed at.
OFTEN = {
    "trainer.callbacks+": {
        "class_path": "callbacks.LastCheckpoint",
        "init_args": {"interval": 0},
    }
}


def still() -> dict[str, Any]:
    return dict(word.removeprefix("--").split("=") for word in quiet(Path("x"))[1:])


def mae_pipeline(run: Path) -> Path:
    """The quickstart of masked autoencoders as one pipeline, at a size that takes seconds."""
    of_probe = {"data.num_train": 200, "data.num_test": 100, **still()}
    encoder = {"model.encoder": "mae/encoder.safetensors"}
    stages = {
        "mae": {
            "command": "fit",
            "config": [str(QUICKSTART / "mae.yaml")],
            "options": {
                "data.images.num_test": 40,
                "model.warmup_epochs": 2,
                "trainer.max_epochs": 12,
                "trainer.check_val_every_n_epoch": 4,
                **still(),
                **OFTEN,
            },
            "outputs": ["checkpoints/last.ckpt", "encoder.safetensors"],
        },
        "probe": {
            "command": "fit",
            "config": [str(QUICKSTART / "mae_probe.yaml")],
            "inputs": encoder,
            "options": {**of_probe, "trainer.max_epochs": 6, **OFTEN},
            "outputs": ["checkpoints/last.ckpt"],
        },
        "test": {
            "command": "test",
            "config": [str(QUICKSTART / "mae_probe.yaml")],
            "inputs": {**encoder, "ckpt_path": "probe/checkpoints/last.ckpt"},
            "options": of_probe,
        },
    }
    return written({"run": str(run), "stages": stages}, run)


def membership_pipeline(run: Path) -> Path:
    """The quickstart of membership, at a size that takes seconds."""
    content = yaml.safe_load((QUICKSTART / "membership.yaml").read_text(encoding="utf-8"))
    content["run"] = str(run)
    for name, stage in content["stages"].items():
        if stage["command"] == "report":
            continue
        stage["options"] |= still()
        if stage["command"] == "test":
            stage["options"] |= {"model.num_masks": 4, "model.bootstrap": 100}
            continue
        passes = {} if "decoder" in name else {"data.passes_per_epoch": 2}
        stage["options"] |= {
            "trainer.max_epochs": 6,
            "trainer.check_val_every_n_epoch": 3,
            **passes,
            **OFTEN,
        }
    return written(content, run)


def reconstruction_pipeline(run: Path) -> Path:
    """The quickstart of reconstruction, at a size that takes seconds."""
    return small_pipeline(run, probe=OFTEN, reconstruct=OFTEN)


def written(content: dict[str, Any], run: Path) -> Path:
    path = run.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def results(run: Path) -> dict[str, str]:
    """All that a run leaves, by name: values of checkpoints, bytes of all other files.

    Logs apart, and what a killed process was writing, which has a name of its own.
    """
    return {
        str(path.relative_to(run)): sha256_of_content(path)
        for path in sorted(run.rglob("*"))
        if path.is_file() and not path.name.startswith((".", "events."))
    }


def is_complete(stage: Path) -> bool:
    marker = stage / "stage.json"
    return marker.exists() and json.loads(marker.read_text())["status"] == "complete"


class Clock:
    """Notes how long stages compute for, while they run undisturbed."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.at_end: dict[str, float] = {}
        self.spent = 0.0

    def __call__(self, spent: float) -> bool:
        self.spent = spent
        for stage in self.run.glob("*"):
            if stage.name not in self.at_end and is_complete(stage):
                self.at_end[stage.name] = spent
        return False


def at(seconds: float, stage: Path, *, while_writing: bool) -> Callable[[float], bool]:
    """Says when ``seconds`` are spent, and then when a file of the stage is half written."""

    def due(spent: float) -> bool:
        return spent >= seconds and (not while_writing or any(stage.rglob(".*")))

    return due


def kill_every_stage(pipeline: Callable[[Path], Path], where: Path, seed: int) -> dict[str, int]:
    """Kills each stage of a pipeline, and compares what is there in the end.

    Args:
        pipeline: Writes its config.
        where: An empty folder.
        seed: Of the moments.

    Returns:
        How often each stage was killed, by pipeline and name.
    """
    where.mkdir()
    run = where / "run"
    config = pipeline(run)
    chance = random.Random(seed)
    killed: Counter[str] = Counter()
    with contextlib.closing(PipelineServer(where / "log.txt")) as server:
        clock = Clock(run)
        assert server.run(config, clock) == 0, (where / "log.txt").read_text()[-3000:]
        expected = results(run)
        skipping = Clock(run)
        assert server.run(config, skipping) == 0
        earlier = 0.0
        stages = sorted(clock.at_end.items(), key=lambda item: item[1])
        for number, (name, end) in enumerate(stages, start=1):
            stage, usual, earlier = run / name, end - earlier, end
            # What is complete is skipped first.
            begins = skipping.spent * number / len(stages)
            for attempt in range(5 * KILLS):
                if killed[name] == KILLS:
                    break
                if is_complete(stage):
                    assert results(run) == expected, name
                    shutil.rmtree(stage)
                for path in stage.rglob(".*"):  # Else the next kill comes at once.
                    path.unlink()
                seconds = chance.uniform(0.7 * begins, begins + usual)
                moment = at(seconds, stage, while_writing=attempt % 2 == 1)
                code = server.run(config, moment)
                assert code in (0, -signal.SIGKILL), (where / "log.txt").read_text()[-3000:]
                in_stage = stage.exists() and not is_complete(stage)
                killed[name] += code == -signal.SIGKILL and in_stage
            assert server.run(config) == 0, (where / "log.txt").read_text()[-3000:]
            assert results(run) == expected, name
    return {f"{where.name}/{name}": times for name, times in killed.items()}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_any_moment_every_stage_ends_with_the_same_results(tmp_path: Path) -> None:
    def small_chains() -> dict[str, int]:
        first = kill_every_stage(reconstruction_pipeline, tmp_path / "reconstruction", 1)
        return first | kill_every_stage(mae_pipeline, tmp_path / "mae", 2)

    with ThreadPoolExecutor() as pool:
        membership = pool.submit(kill_every_stage, membership_pipeline, tmp_path / "membership", 3)
        killed = pool.submit(small_chains).result() | membership.result()
    assert len(killed) == 5 + 3 + 11
    assert set(killed.values()) == {KILLS}
