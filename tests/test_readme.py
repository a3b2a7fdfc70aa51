"""Every command of the README works as written, at a size that takes seconds."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import nn

from tests.commands.test_pipeline import small_pipeline
from tests.conftest import REPOSITORY, SMALL_ATTACK, SMALL_PROBE, quiet, run_cli
from tests.embedding_configs import EMBEDDING_PIPELINES
from tests.experiment_configs import EXPERIMENTS
from tests.membership_configs import MEMBERSHIP_CONFIGS

# What makes a command small, by its config; the README's own options come before.
REDUCTIONS = {
    "configs/quickstart/probe.yaml": SMALL_PROBE,
    "configs/quickstart/reconstruct.yaml": SMALL_ATTACK,
    "configs/quickstart/select.yaml": [],
    "configs/quickstart/evaluate.yaml": ["--data.num_train=20"],
}
# Pipelines that tests of their own run small.
ELSEWHERE = {*MEMBERSHIP_CONFIGS, *EMBEDDING_PIPELINES, *EXPERIMENTS}


def commands() -> list[list[str]]:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    return [shlex.split(line, comments=True) for line in lines]


def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    mine = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 1))
    save_file(mine.state_dict(), "my_probe.safetensors")
    ci = (REPOSITORY / ".ci/run").read_text(encoding="utf-8")
    for words in commands():
        if words[0] == "make":
            assert " ".join(words) in ci
        elif words[:2] == ["python", "main.py"]:
            _run_small(words[2:], tmp_path)
        elif words[0] == "tensorboard":
            # Reads the logs and ends, where the command as written would serve them for ever.
            program = Path(sys.executable).with_name("tensorboard")
            subprocess.run([program, *words[1:], "--inspect"], check=True, capture_output=True)
        else:
            assert words == ["source", ".venv/bin/activate"], words
            assert shlex.join(words) in ci
    assert (tmp_path / "runs/quickstart/evaluate/report.html").is_file()
    assert (tmp_path / "runs/mine/select/representatives.safetensors").is_file()


def _run_small(words: list[str], root: Path) -> None:
    config = words[2].removeprefix("configs/")
    if words[0] == "pipeline" and config in ELSEWHERE:
        assert all((REPOSITORY / word).is_file() for word in words[2::2])
        return
    if words[0] == "pipeline":
        assert words == ["pipeline", "--config", "configs/quickstart/pipeline.yaml"]
        words = ["pipeline", "--config", str(small_pipeline(root / "runs" / "pipeline"))]
    elif words[0] != "report":
        words = [*words, *REDUCTIONS[words[words.index("--config") + 1]], *quiet(root)[1:]]
    assert run_cli(*words) == 0, words


def test_links_to_files_exist() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
            assert (REPOSITORY / target).exists(), target
