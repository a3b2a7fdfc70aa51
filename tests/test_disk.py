"""Runs that have no disk to write to or lose a file: what is there stays."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.weights import read_state_dict
from tests.commands.test_pipeline import small_pipeline
from tests.conftest import REPOSITORY, SMALL_ATTACK, quiet, run_cli

RECONSTRUCT = f"--config={REPOSITORY}/configs/quickstart/reconstruct.yaml"
SELECT = f"--config={REPOSITORY}/configs/quickstart/select.yaml"


STAGES = ["probe", "reconstruct", "select", "evaluate", "report"]


def command_of(stage: Path) -> list[str]:
    """The command line that made a stage."""
    words: list[str] = json.loads((stage / "stage.json").read_text())["command"]
    return words


def artifacts(run: Path) -> dict[str, bytes]:
    """Results of every kind: checkpoints, tensors, numbers, pages and pictures."""
    kinds = (".ckpt", ".safetensors", ".json", ".html", ".png")
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.suffix in kinds and not path.name.startswith(".")
    }


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


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished run, and a copy of it to put it back."""
    os.chdir(REPOSITORY)
    where = tmp_path_factory.mktemp("finished")
    assert run_cli("pipeline", "--config", small_pipeline(where / "run")) == 0
    shutil.copytree(where / "run", where / "copy")
    return where / "run", where / "copy"


@pytest.fixture
def finished(pristine: tuple[Path, Path]) -> Path:
    run, copy = pristine
    shutil.rmtree(run)
    shutil.copytree(copy, run)
    return run


def test_a_run_has_artifacts_of_every_kind(finished: Path) -> None:
    assert {Path(name).suffix for name in artifacts(finished)} == {
        *(".ckpt", ".safetensors", ".json", ".html", ".png"),
    }


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("room", [6_000, 60_000])
def test_a_limit_at_any_file_leaves_every_earlier_artifact(
    stage: str, room: int, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file may grow to ``room`` bytes, as on a disk that fills up while it is written."""
    before = artifacts(finished)
    words = command_of(finished / stage)
    if stage in ("probe", "reconstruct"):
        shutil.rmtree(finished / stage / "checkpoints")  # Else there is nothing left to do.
    largest = max(len(v) for k, v in before.items() if k.startswith(stage))
    capsys.readouterr()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        code = run_cli(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    if code == 1:
        line = error_of(capsys)
        assert "File too large" in line or "disk full" in line
    assert code == 1 or room > largest
    after = artifacts(finished)
    last = f"{stage}/checkpoints/last.ckpt"
    assert {k: v for k, v in after.items() if k != last} == {
        k: v for k, v in before.items() if k != last
    }
    # Nothing half-written is left.
    assert [path.name for path in finished.rglob(".*")] == [".locks"]
    if code == 1 and stage in ("probe", "reconstruct"):
        assert last not in after or read_state_dict(finished / last, what="x", made_by="")


DAMAGES = [
    ("probe/checkpoints/last.ckpt", "probe"),
    ("probe/checkpoints/last.ckpt", "reconstruct"),
    ("probe/checkpoints/last.ckpt", "evaluate"),
    ("reconstruct/checkpoints/last.ckpt", "reconstruct"),
    ("reconstruct/candidates.safetensors", "select"),
    ("reconstruct/candidates.safetensors", "evaluate"),
    ("select/representatives.safetensors", "evaluate"),
    ("evaluate/metrics.json", "report"),
    ("evaluate/evaluation.safetensors", "report"),
    ("probe/config.yaml", "probe"),
]


@pytest.mark.parametrize(("file", "stage"), DAMAGES)
def test_a_truncated_file_is_named_and_nothing_else_changes(
    file: str, stage: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = finished / file
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size * 9 // 10])
    before = artifacts(finished)
    words = command_of(finished / stage)
    capsys.readouterr()
    assert run_cli(*words) == 1
    line = error_of(capsys)
    assert str(damaged) in line or (file == "probe/config.yaml" and "holds a run with" in line)
    assert artifacts(finished) == before


@pytest.mark.parametrize(("file", "stage"), [d for d in DAMAGES if d[0].split("/")[0] != d[1]])
def test_a_deleted_input_is_named(
    file: str, stage: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished / file).unlink()
    before = artifacts(finished)
    capsys.readouterr()
    assert run_cli(*command_of(finished / stage)) == 1
    assert str(finished / file) in error_of(capsys)
    assert artifacts(finished) == before


def test_a_truncated_marker_is_named(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marker = finished / "select/stage.json"
    marker.write_bytes(marker.read_bytes()[:-3])
    before = artifacts(finished)
    capsys.readouterr()
    assert run_cli("pipeline", "--config", finished.with_suffix(".yaml")) == 1
    assert f"{marker} is not a stage marker" in error_of(capsys)
    assert artifacts(finished) == before


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
