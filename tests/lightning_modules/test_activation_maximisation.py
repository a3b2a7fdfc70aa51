"""The baseline attack: it lowers the probe's loss, and ends in the same artifact as the attack."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from artifacts.tensors import CANDIDATES, read_tensors
from attacks.margin_gradients import sample_losses
from lightning_modules import ActivationMaximisation, KKTReconstruction
from lightning_modules.victim import load_probe
from tests.conftest import REPOSITORY, SMALL_ATTACK, quiet, run_cli

MAXIMISE = f"--config={REPOSITORY}/configs/transfer_reconstruction/activation_maximisation.yaml"


def maximise(root: Path, probe: Path, *options: str) -> dict[str, torch.Tensor]:
    words = ["fit", MAXIMISE, *quiet(root), *SMALL_ATTACK, f"--model.probe={probe}", *options]
    assert run_cli(*words) == 0
    return read_tensors(root / "candidates.safetensors", CANDIDATES)[0]


@pytest.fixture(scope="module")
def maximised(small_probe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("maximise")
    maximise(root, small_probe)
    return root / "candidates.safetensors"


def test_candidates_are_what_the_probe_is_sure_about(maximised: Path, small_probe: Path) -> None:
    run, metadata = read_tensors(maximised, CANDIDATES)
    assert run["candidates"].shape == (3, 40, 64)
    assert metadata["diverged_draws"] == "[]"
    layers = load_probe(small_probe).weights_and_biases()
    start = ActivationMaximisation(str(small_probe), num_draws=3, num_candidates=40)
    start.configure_model()
    before = sample_losses(layers, start.candidates, run["labels"])
    after = sample_losses(layers, run["candidates"], run["labels"])
    assert bool((after.mean(1) < 0.5 * before.mean(1)).all())
    # The multipliers are those of the loss: the surer the probe, the smaller.
    weights = -torch.expm1(-after)
    ratio = run["multipliers"] / weights
    torch.testing.assert_close(
        ratio, ratio.mean(1, keepdim=True).expand_as(ratio), rtol=0.05, atol=0
    )
    assert bool((run["residual"] <= 1).all())
    assert run["history"].shape == (10, 3)
    torch.testing.assert_close(run["history"][-1], run["residual"])


def test_same_seed_same_bits_and_other_seed_other_candidates(
    maximised: Path, small_probe: Path, tmp_path: Path
) -> None:
    first, _ = read_tensors(maximised, CANDIDATES)
    again = maximise(tmp_path / "again", small_probe)
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = maximise(tmp_path / "other", small_probe, "--model.seed=1")
    assert not torch.equal(first["candidates"], other["candidates"])


@pytest.mark.parametrize("space", ["auto", "full"])
def test_it_starts_where_the_attack_starts(space: str, small_probe: Path) -> None:
    baseline = ActivationMaximisation(str(small_probe), space=space, init_std=(0.01, 0.5))  # type: ignore[arg-type]
    attack = KKTReconstruction(str(small_probe), space=space, init_std=(0.01, 0.5))  # type: ignore[arg-type]
    baseline.configure_model()
    attack.configure_model()
    assert torch.equal(baseline.candidates, attack.candidates)
    assert torch.equal(baseline.labels, attack.labels)


def test_the_row_space_is_searched_when_asked(small_probe: Path, tmp_path: Path) -> None:
    """Whatever that space is, the loss does not depend on the rest."""
    run = maximise(tmp_path, small_probe, "--model.space=auto")
    weight = load_probe(small_probe).weights_and_biases()[0][0]
    module = ActivationMaximisation(str(small_probe), space="auto")
    module.configure_model()
    if module.basis is not None:
        inside = run["candidates"] @ module.basis.T @ module.basis
        torch.testing.assert_close(inside, run["candidates"], rtol=1e-3, atol=1e-3)
        assert module.solved_layers()[0][0].shape == (len(weight), len(module.basis))


def test_linear_and_multiclass_probes_are_fine(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_file(nn.Linear(6, 1).state_dict(), str(tmp_path / "linear.safetensors"))
    weight = load_probe(tmp_path / "linear.safetensors").weights_and_biases()[0][0]
    run = maximise(tmp_path / "a", tmp_path / "linear.safetensors", "--model.init_std=[1e-4, 1e-3]")
    # In a linear probe there is one direction to go.
    cosine = torch.cosine_similarity(run["candidates"], weight * run["labels"][:, None], dim=-1)
    assert float(cosine.min()) > 0.5
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    save_file(model.state_dict(), str(tmp_path / "three.safetensors"))
    options = ["--model.num_candidates=12", "--model.learning_rate=[0.05, 0.1]"]
    run = maximise(tmp_path / "b", tmp_path / "three.safetensors", *options)
    assert run["labels"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    predicted = model(run["candidates"]).argmax(-1)
    assert float((predicted == run["labels"]).float().mean()) > 0.9


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--data=datamodules.DigitsDataModule", "takes no data"),
        ("--model.num_candidates=41", "multiple of 2"),
        ("--model.learning_rate=[1, 0.1]", "learning_rate must be a range"),
    ],
)
def test_mistakes_are_one_line(
    option: str,
    message: str,
    small_probe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["fit", MAXIMISE, *quiet(tmp_path), *SMALL_ATTACK, f"--model.probe={small_probe}"]
    assert run_cli(*words, option) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.safetensors"))


def test_continuing_with_other_settings_is_refused(
    maximised: Path, small_probe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = maximised.read_bytes()
    words = ["fit", MAXIMISE, *quiet(maximised.parent), *SMALL_ATTACK]
    assert run_cli(*words, f"--model.probe={small_probe}", "--model.optimizer=sgd") == 1
    assert "optimizer=adam" in capsys.readouterr().err
    assert maximised.read_bytes() == before
