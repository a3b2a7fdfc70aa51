"""The probe's test says whether it is attackable, in a file, in TensorBoard and in words."""

import json
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attacks.attackability import measure_attackability
from datamodules import DigitsDataModule
from lightning_modules.victim import load_probe
from tests.conftest import REPOSITORY, quiet, run_cli

CHECK = f"--config={REPOSITORY}/configs/quickstart/probe_check.yaml"
SMALL = ["--data.num_train=20", "--model.hidden=[100]"]


def test_what_is_measured_is_written_and_logged(
    small_probe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["test", CHECK, *quiet(tmp_path), *SMALL, f"--ckpt_path={small_probe}"]
    assert run_cli(*words) == 0
    written = json.loads((tmp_path / "attackability.json").read_text())
    probe = load_probe(small_probe)
    inputs, labels = DigitsDataModule(20, 0).train_tensors
    facts = measure_attackability(
        probe.weights_and_biases(), probe.standardise(inputs), labels, weight_decay=0.08
    )
    assert written == {**vars(facts), "obstacles": facts.obstacles()}
    events = EventAccumulator(str(tmp_path)).Reload()
    logged = {tag.split("/")[1] for tag in events.Tags()["scalars"] if "attackability" in tag}
    assert logged == {name for name, value in vars(facts).items() if value is not None}
    (norm,) = events.Scalars("attackability/gradient_norm")
    assert norm.value == pytest.approx(facts.gradient_norm, rel=1e-6)
    # A thousand steps are not enough: the check says so.
    output = capsys.readouterr().out
    assert f"leave {facts.residual_best:.2f} of the weights unexplained" in output
    assert ("in the way of an attack" in output) == bool(facts.obstacles())


def test_another_weight_decay_than_the_probes_is_refused(
    small_probe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["test", CHECK, *quiet(tmp_path), *SMALL, f"--ckpt_path={small_probe}"]
    assert run_cli(*words, "--model.weight_decay=0.16") == 1
    assert "set model.weight_decay to 0.08" in capsys.readouterr().err
    assert not (tmp_path / "attackability.json").exists()


def test_the_check_changes_no_bit_of_the_probe(small_probe: Path, tmp_path: Path) -> None:
    before = torch.load(small_probe, weights_only=True)["state_dict"]
    words = ["test", CHECK, *quiet(tmp_path), *SMALL, f"--ckpt_path={small_probe}"]
    assert run_cli(*words) == 0
    after = torch.load(small_probe, weights_only=True)["state_dict"]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_checkpoint_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("test", CHECK, *quiet(tmp_path), f"--ckpt_path={tmp_path}/none.ckpt") == 1
    assert "no checkpoint of a run at" in capsys.readouterr().err
