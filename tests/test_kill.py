"""Runs that are killed, run out of disk or lose a file: what is there stays, the rest resumes."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.commands.test_pipeline import contents, small_pipeline
from tests.conftest import REPOSITORY, SMALL_ATTACK, quiet, run_cli

RECONSTRUCT = f"--config={REPOSITORY}/configs/quickstart/reconstruct.yaml"
SELECT = f"--config={REPOSITORY}/configs/quickstart/select.yaml"
KILLS = 4

# A chain in a process of its own that stays: a fork of it is a start without the imports.
SERVER = """
import os, sys
sys.path.insert(0, {repository!r})
import main, callbacks, datamodules, lightning_modules, commands.cli, commands.pipeline
import commands.report, reporting.figures, sklearn.datasets, tensorboard, torch
torch.set_num_threads(1)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os._exit(main.main(["pipeline", "--config", line.strip()]))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Server:
    """Starts pipelines that can be killed, without the seconds that imports take."""

    def __init__(self, log: Path) -> None:
        self.log = log.open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER.format(repository=str(REPOSITORY))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def _say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def _number(self) -> int:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip().lstrip("-").isdecimal():
                return int(line)
        raise AssertionError("the server ended")

    def run(self, config: Path, kill_when: Callable[[], bool] | None = None) -> int:
        """Runs a pipeline, kills it when told to, and returns its exit code."""
        self._say(str(config))
        pid = self._number()
        if kill_when is not None:
            while not kill_when():
                time.sleep(0.002)
            with contextlib.suppress(ProcessLookupError):  # It was faster.
                os.kill(pid, signal.SIGKILL)
        return self._number()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "log.txt")
    yield server
    server.close()


def results(run: Path) -> dict[str, bytes]:
    """The artifacts of a run; the report's page names versions and paths."""
    kept = (".safetensors", "metrics.json")
    return {name: value for name, value in contents(run).items() if name.endswith(kept)}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_any_moment_a_chain_ends_with_the_same_results(
    server: Server, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    config = small_pipeline(run)
    assert server.run(config) == 0
    expected = results(run)
    assert len(expected) == 4
    probe = weights(run)
    stages = ["probe", "reconstruct", "select", "evaluate", "report"]
    # How long each took, from its files.
    times = {stage: [p.stat().st_mtime for p in (run / stage).rglob("*")] for stage in stages}
    chance = random.Random(0)
    killed = 0
    for stage in stages:
        length = max(times[stage]) - min(times[stage]) + 0.3
        for _ in range(KILLS):
            if not (run / stage).exists() or _is_complete(run / stage):
                _set_aside(run / stage, tmp_path)
            code = server.run(config, _after(run / stage / "stage.json", chance.random() * length))
            killed += code == -signal.SIGKILL
            assert code in (0, -signal.SIGKILL)
        assert server.run(config) == 0, stage
        assert results(run) == expected, stage
        assert weights(run) == probe
    assert killed > len(stages)


def weights(run: Path) -> dict[str, Any]:
    """The probe's weights: a resumed run writes the same values, but not the same bytes."""
    state = torch.load(run / "probe/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    return {name: value.tolist() for name, value in state.items()}


def _is_complete(stage: Path) -> bool:
    marker = stage / "stage.json"
    return marker.exists() and json.loads(marker.read_text())["status"] == "complete"


def _set_aside(stage: Path, where: Path) -> None:
    if stage.exists():
        stage.rename(where / f"{stage.name}.{time.monotonic_ns()}")


def _after(marker: Path, seconds: float) -> Callable[[], bool]:
    """Says when ``seconds`` have gone since the stage started, or too many in any case."""
    start = time.monotonic()
    seen: list[float] = []

    def due() -> bool:
        now = time.monotonic()
        if not seen and marker.exists():
            seen.append(now)
        return (bool(seen) and now - seen[0] > seconds) or now - start > 120

    return due


def attack(root: Path, probe: Path) -> list[str]:
    return ["fit", RECONSTRUCT, *quiet(root), *SMALL_ATTACK, f"--model.probe={probe}"]


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    return lines[0]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_leaves_the_earlier_checkpoint(
    small_disk: Path, small_probe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = attack(small_disk / "run", small_probe)
    assert run_cli(*words, "--trainer.max_epochs=2") == 1
    last = small_disk / "run/checkpoints/last.ckpt"
    before = last.read_bytes()
    capsys.readouterr()
    with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))
    assert run_cli(*words) == 1
    assert "No space left on device" in (line := error_of(capsys)) or "disk full" in line
    assert last.read_bytes() == before
    (small_disk / "filler").unlink()
    assert run_cli(*words) == 0


def test_a_truncated_input_leaves_the_earlier_artifact(
    small_candidates: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "candidates.safetensors"
    mine.write_bytes(small_candidates.read_bytes())
    words = ["predict", SELECT, *quiet(tmp_path / "run"), f"--data.candidates={mine}"]
    assert run_cli(*words) == 0
    made = tmp_path / "run/representatives.safetensors"
    before = made.read_bytes()
    mine.write_bytes(mine.read_bytes()[:-100])
    capsys.readouterr()
    assert run_cli(*words) == 1
    assert f"{mine} is not a readable safetensors file" in error_of(capsys)
    mine.unlink()
    assert run_cli(*words) == 1
    assert f"no candidates file at {mine}" in error_of(capsys)
    assert made.read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_refused(
    small_probe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o500)
    assert run_cli(*attack(tmp_path / "run", small_probe)) == 1
    assert "cannot write to the directory" in error_of(capsys)


def test_a_read_only_file_system_is_refused(
    small_disk: Path, small_probe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = attack(small_disk / "run", small_probe)
    assert run_cli(*words) == 0
    made = small_disk / "run/candidates.safetensors"
    before = made.read_bytes()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    capsys.readouterr()
    assert run_cli(*words) == 1
    assert "cannot write to the directory" in (line := error_of(capsys))
    assert "Read-only file system" in line
    assert made.read_bytes() == before
