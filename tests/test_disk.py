"""Runs that have no disk to write to or lose a file: what is there stays."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, SMALL_ATTACK, quiet, run_cli

RECONSTRUCT = f"--config={REPOSITORY}/configs/quickstart/reconstruct.yaml"
SELECT = f"--config={REPOSITORY}/configs/quickstart/select.yaml"


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
