"""The traps of the Lightning CLI, each closed."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from artifacts.tensors import CANDIDATES, read_tensors
from lightning_modules import ProbeMLP
from tests.conftest import REPOSITORY, SMALL_ATTACK, SMALL_PROBE, quiet, run_cli

PROBE = f"--config={REPOSITORY}/configs/quickstart/probe.yaml"
RECONSTRUCT = f"--config={REPOSITORY}/configs/quickstart/reconstruct.yaml"


def test_checkpoint_hyperparameters_do_not_override_the_command_line(
    small_probe: Path, tmp_path: Path
) -> None:
    words = ["validate", PROBE, *quiet(tmp_path), "--data.num_train=20", "--model.hidden=[100]"]
    options = ["--model.weight_decay=0.5", f"--ckpt_path={small_probe}"]
    assert run_cli(*words, *options) == 0
    saved = yaml.safe_load((tmp_path / "config_validate.yaml").read_text())
    assert saved["model"]["init_args"]["weight_decay"] == 0.5


def test_module_keeps_its_own_hyperparameters(small_candidates: Path, small_probe: Path) -> None:
    checkpoint = small_candidates.parent / "checkpoints" / "last.ckpt"
    saved = torch.load(checkpoint, weights_only=True)["hyper_parameters"]
    assert saved["probe"] == str(small_probe)
    assert saved["num_draws"] == 3
    assert "hidden" not in saved


def test_checkpoints_hold_only_plain_values(small_probe: Path, small_candidates: Path) -> None:
    module = ProbeMLP.load_from_checkpoint(small_probe, weights_only=True)
    assert module.probe.weights_and_biases()[0][0].shape == (100, 64)
    assert float(module.probe.std.min()) < 0.5
    for path in (small_probe, small_candidates.parent / "checkpoints" / "last.ckpt"):
        saved = torch.load(path, weights_only=True)["hyper_parameters"]
        # An entry of this name would name a function to call when the checkpoint is loaded.
        assert "_instantiator" not in saved


def test_steps_of_the_trainer_count_once(small_probe: Path, small_candidates: Path) -> None:
    assert torch.load(small_probe, weights_only=True)["global_step"] == 10
    attack = small_candidates.parent / "checkpoints" / "last.ckpt"
    assert torch.load(attack, weights_only=True)["global_step"] == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trainer.max_e=3"], "trainer.max_e"),
        (["--model.num_candidatez=3"], "num_candidatez"),
        (["--model.num_candidates=abc"], "Expected a <class 'int'>. Got value: abc"),
        (["--model.alpha_annealing=3"], "alpha_annealing must be in (0, 1], got 3.0"),
        (["--model.learning_rate=[1, 0.1]"], "learning_rate must be a range"),
        (["--model.num_candidates=41"], "multiple of 2"),
        (["--model.num_candidates=0"], "multiple of 2"),
        (["--model.probe=missing.ckpt"], "no probe checkpoint at missing.ckpt"),
        (["--data=datamodules.DigitsDataModule"], "takes no data"),
        (["--trainer.max_epochs=1"], "stopped after 10 of 100 iterations"),
        (["--trainer.limit_train_batches=0"], "stopped after 0 of 100 iterations"),
        (["--trainer.precision=bf16-mixed"], "trainer.precision bf16-mixed"),
        (["--trainer.devices=0"], "devices"),
        (["--trainer.accelerator=nonsense"], "nonsense"),
        (["--seed_everything=-1"], "seed_everything"),
        (["--model.seed=-1"], "seed"),
        (["--ckpt_path=pyproject.toml"], "pyproject.toml is not a checkpoint of a run that can"),
        (["--ckpt_path=missing.ckpt"], "missing.ckpt"),
        (["--trainer.default_root_dir=/proc/nowhere"], "cannot write to the directory"),
    ],
)
def test_mistakes_are_one_line(
    options: list[str],
    message: str,
    small_probe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["fit", RECONSTRUCT, *quiet(tmp_path), *SMALL_ATTACK, f"--model.probe={small_probe}"]
    assert run_cli(*words, *options) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line.lower()]
    assert len(lines) == 1
    assert message in lines[0]
    assert not list(tmp_path.rglob("*.safetensors"))
    if "stopped" not in message:
        assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit"], "fit.model"),
        (["fit", "--config=missing.yaml"], "missing.yaml"),
        (["fit", "--model=lightning_modules.NoSuch"], "NoSuch"),
        (["predict", RECONSTRUCT, "--model.probe=x", "--ckpt_path=null"], "requires `forward`"),
        (["predict", RECONSTRUCT, "--model.probe=x"], "there is no checkpoint at"),
        (["frobnicate"], "unknown command 'frobnicate'"),
        (["pipeline"], "run"),
        (["report", "--metrics=missing/m.json"], "missing/m.json"),
    ],
)
def test_wrong_commands_are_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "predict":
        words = [*words, *quiet(tmp_path)]
    assert run_cli(*words) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line.lower()]
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--model.learning_rate=1e10", "the training diverged"),
        ("--model.learning_rate=-1", "learning_rate must be positive"),
        ("--ckpt_path={attack}", "of another model"),
    ],
)
def test_a_training_that_fails_leaves_no_probe(
    option: str,
    message: str,
    small_candidates: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    option = option.format(attack=small_candidates.parent / "checkpoints/last.ckpt")
    assert run_cli("fit", PROBE, *quiet(tmp_path), *SMALL_PROBE, option) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_damaged_checkpoint_is_named(
    small_probe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = tmp_path / "checkpoints" / "last.ckpt"
    last.parent.mkdir()
    last.write_bytes(small_probe.read_bytes()[:1000])
    assert run_cli("fit", PROBE, *quiet(tmp_path), *SMALL_PROBE) == 1
    error = capsys.readouterr().err
    assert str(last) in error
    assert "delete it to start afresh" in error


def test_evaluation_on_other_data_is_refused(
    small_probe: Path,
    small_candidates: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["test", f"--config={REPOSITORY}/configs/quickstart/evaluate.yaml", *quiet(tmp_path)]
    files = [f"--model.probe={small_probe}", f"--model.candidates={small_candidates}"]
    options = ["--model.representatives=null", "--data.num_train=20", "--data.seed=7"]
    assert run_cli(*words, *files, *options) == 1
    assert "was trained on other data" in capsys.readouterr().err
    assert not (tmp_path / "metrics.json").exists()


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(ValueError, match="frobnicate"):
        run_cli("frobnicate", "--debug")


def test_print_config_composes_files_and_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = tmp_path / "later.yaml"
    later.write_text("model: {init_args: {num_draws: 5}}\ntrainer: {log_every_n_steps: 7}\n")
    words = ["fit", RECONSTRUCT, f"--config={later}", "--model.iterations=11", "--print_config"]
    with pytest.raises(SystemExit) as stop:
        run_cli(*words)
    assert stop.value.code == 0
    printed: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    arguments = printed["model"]["init_args"]
    assert (arguments["num_draws"], arguments["iterations"]) == (5, 11)
    assert arguments["num_candidates"] == 160
    assert printed["trainer"]["log_every_n_steps"] == 7
    # A later file that adds callbacks keeps the earlier ones only when it says `callbacks+`.
    monitor = "lightning.pytorch.callbacks.LearningRateMonitor"
    later.write_text(f"trainer:\n  callbacks+:\n    - class_path: {monitor}\n")
    with pytest.raises(SystemExit):
        run_cli("fit", RECONSTRUCT, f"--config={later}", "--print_config")
    callbacks = yaml.safe_load(capsys.readouterr().out)["trainer"]["callbacks"]
    assert [entry["class_path"] for entry in callbacks] == [
        "callbacks.CandidateWriter",
        "callbacks.DrawHyperparameters",
        monitor,
    ]


def test_everything_of_a_stage_is_in_its_directory_and_can_be_made_again(tmp_path: Path) -> None:
    words = ["fit", PROBE, *quiet(tmp_path), *SMALL_PROBE]
    # The second run writes its config over the first's, and continues the finished run: no change.
    assert run_cli(*words) == 0
    first = (tmp_path / "checkpoints" / "last.ckpt").read_bytes()
    assert run_cli(*words) == 0
    assert (tmp_path / "checkpoints" / "last.ckpt").read_bytes() == first
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"last.ckpt"}
    assert (tmp_path / "config.yaml").is_file()
    assert list(tmp_path.glob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    "option", ["--model.weight_decay=0.5", "--data.seed=3", "--seed_everything=1"]
)
def test_continuing_a_training_with_other_settings_is_refused(
    option: str, small_probe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = small_probe.read_bytes()
    words = ["fit", PROBE, *quiet(small_probe.parents[1]), *SMALL_PROBE]
    assert run_cli(*words, option) == 1
    assert f"this one has {option.removeprefix('--')}" in capsys.readouterr().err
    assert small_probe.read_bytes() == before
    # Evaluating with other settings is fine, and leaves the training's config as it was.
    words = ["test", PROBE, *quiet(small_probe.parents[1]), *SMALL_PROBE, "--ckpt_path=last"]
    assert run_cli(*words, "--data.seed=3") == 0
    assert run_cli("fit", PROBE, *quiet(small_probe.parents[1]), *SMALL_PROBE) == 0


def test_continuing_an_attack_with_other_settings_is_refused(
    small_candidates: Path,
    small_probe: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = small_candidates.read_bytes()
    words = ["fit", RECONSTRUCT, *quiet(small_candidates.parent), *SMALL_ATTACK]
    assert run_cli(*words, f"--model.probe={small_probe}", "--model.seed=1") == 1
    assert "model.seed=0, this one has model.seed=1" in capsys.readouterr().err
    assert small_candidates.read_bytes() == before


def test_all_draws_diverged_is_an_error_and_writes_nothing(
    small_probe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", RECONSTRUCT, *quiet(tmp_path), *SMALL_ATTACK, f"--model.probe={small_probe}"]
    assert run_cli(*words, "--model.optimizer=sgd", "--model.learning_rate=[1e20, 1e30]") == 1
    assert "all 3 draws diverged" in capsys.readouterr().err
    assert not (tmp_path / "candidates.safetensors").exists()


def test_draws_that_diverge_in_the_last_iteration_are_told_too(
    small_probe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", RECONSTRUCT, *quiet(tmp_path), *SMALL_ATTACK, f"--model.probe={small_probe}"]
    words += ["--model.iterations=1", "--model.init_std=[0.1, 0.1]"]
    assert run_cli(*words, "--model.learning_rate=[1e18, 1e19]") == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert errors == [
        "error: all 3 draws diverged by iteration 1: no residual is a finite number; "
        "lower the range of model.learning_rate, model.init_std or model.relu_alpha"
    ]
    # Nothing is left to continue from, so that the advice can be followed in the same place.
    assert not list(tmp_path.rglob("*.ckpt"))
    assert not (tmp_path / "candidates.safetensors").exists()
    # Where only some do, the others count.
    assert run_cli(*words, "--model.learning_rate=[1e-10, 1e40]", "--model.num_draws=8") == 0
    tensors, metadata = read_tensors(tmp_path / "candidates.safetensors", CANDIDATES)
    assert 0 < len(tensors["draw"]) < 8
    assert metadata["diverged_draws"] != "[]"
