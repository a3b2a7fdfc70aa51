"""The reconstruction: repeatable, resumable, blind to data, and robust to single draws."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from artifacts.tensors import CANDIDATES, read_tensors
from attacks.equalisation import equalised
from attacks.kkt import kkt_loss
from lightning_modules import KKTReconstruction
from lightning_modules.victim import load_probe
from tests.conftest import REPOSITORY, SMALL_ATTACK, quiet, run_cli

RECONSTRUCT = f"--config={REPOSITORY}/configs/quickstart/reconstruct.yaml"


def attack(root: Path, probe: Path, *options: str) -> dict[str, torch.Tensor]:
    words = ["fit", RECONSTRUCT, *quiet(root), *SMALL_ATTACK, f"--model.probe={probe}", *options]
    assert run_cli(*words) == 0
    return read_tensors(root / "candidates.safetensors", CANDIDATES)[0]


def test_same_seed_same_bits(small_probe: Path, small_candidates: Path, tmp_path: Path) -> None:
    again = attack(tmp_path / "again", small_probe)
    first, _ = read_tensors(small_candidates, CANDIDATES)
    assert set(first) == set(again)
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = attack(tmp_path / "other", small_probe, "--model.seed=1")
    assert not torch.equal(first["candidates"], other["candidates"])


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_batched_draws_are_single_runs(optimizer: str, small_probe: Path, tmp_path: Path) -> None:
    # In double precision: rounding differs with the batch, and Adam magnifies it.
    options = [f"--model.optimizer={optimizer}", "--trainer.precision=64-true"]
    if optimizer == "sgd":
        options.append("--model.learning_rate=[1e-5, 1e-4]")
    together = attack(tmp_path / "all", small_probe, *options, "--model.num_draws=4")
    for draw in range(4):
        one = [*options, "--model.num_draws=1", f"--model.first_draw={draw}"]
        alone = attack(tmp_path / str(draw), small_probe, *one)
        assert alone["draw"].tolist() == [draw]
        for name in ("candidates", "multipliers", "residual"):
            torch.testing.assert_close(alone[name][0], together[name][draw], rtol=1e-7, atol=1e-9)


def test_a_run_does_not_continue_with_another_probe(
    small_probe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = tmp_path / "probe.ckpt"
    shutil.copy(small_probe, probe)
    attack(tmp_path / "run", probe)
    state = torch.load(small_probe, weights_only=True)["state_dict"]
    torch.save({name: 2 * value for name, value in state.items()}, probe)
    words = ["fit", RECONSTRUCT, *quiet(tmp_path / "run"), *SMALL_ATTACK]
    assert run_cli(*words, f"--model.probe={probe}") == 1
    assert "attacked another probe" in capsys.readouterr().err


def test_artifact_says_what_it_holds(small_probe: Path, small_candidates: Path) -> None:
    tensors, metadata = read_tensors(small_candidates, CANDIDATES)
    assert tensors["candidates"].shape == (3, 40, 64)
    assert tensors["labels"].tolist() == [1] * 20 + [-1] * 20
    assert metadata["seed"] == "0"
    assert len(metadata["config_sha256"]) == 64
    assert bool((tensors["residual"] < 1).all())
    # The residual is that of the artifact's own candidates in the probe's own equations.
    probe = load_probe(small_probe)
    layers = [(weight.double(), bias) for weight, bias in probe.weights_and_biases()]
    run = {name: value.double() for name, value in tensors.items() if name != "labels"}
    loss = kkt_loss(
        layers, run["candidates"], run["multipliers"], tensors["labels"], run["relu_alpha"]
    )
    norm = torch.stack([weight.square().sum() for weight, _ in layers]).sum()
    torch.testing.assert_close(run["residual"], (loss / norm).sqrt(), rtol=1e-4, atol=0)


def test_the_attack_sees_no_data(
    small_probe: Path,
    small_candidates: Path,
    copy_of: Callable[[Path], Path],
    tmp_path: Path,
) -> None:
    """With the data unreachable and only the probe's file at hand, not a bit changes."""
    probe = copy_of(small_probe)
    script = (
        "import sys; sys.modules['sklearn.datasets'] = None; sys.modules['sklearn'] = None\n"
        "import main; sys.exit(main.main(sys.argv[1:]))"
    )
    words = ["fit", RECONSTRUCT, *quiet(tmp_path / "blind"), *SMALL_ATTACK]
    subprocess.run(
        [sys.executable, "-c", script, *words, f"--model.probe={probe}"],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    blind, _ = read_tensors(tmp_path / "blind" / "candidates.safetensors", CANDIDATES)
    seeing, _ = read_tensors(small_candidates, CANDIDATES)
    assert all(torch.equal(blind[name], seeing[name]) for name in seeing)


# Long enough to be stopped in the middle.
LONG = [
    "--model.iterations=1000",
    "--model.iterations_per_step=10",
    "--model.num_candidates=400",
    "--trainer.callbacks+=callbacks.LastCheckpoint",
    "--trainer.callbacks.interval=0",
]


@pytest.fixture(scope="module")
def long_run(small_probe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Candidates of an undisturbed run of that length."""
    root = tmp_path_factory.mktemp("long")
    attack(root, small_probe, *LONG)
    return root / "candidates.safetensors"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_continues_to_the_same_candidates(
    stop: signal.Signals, small_probe: Path, long_run: Path, tmp_path: Path
) -> None:
    undisturbed, _ = read_tensors(long_run, CANDIDATES)
    root = tmp_path / "stopped"
    words = ["fit", RECONSTRUCT, *quiet(root), *SMALL_ATTACK, f"--model.probe={small_probe}"]
    checkpoint = root / "checkpoints" / "last.ckpt"
    # On a busy machine this process may sleep until the run is over: then once more.
    for _ in range(3):
        shutil.rmtree(root, ignore_errors=True)
        process = subprocess.Popen(
            [sys.executable, REPOSITORY / "main.py", *words, *LONG],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        while not checkpoint.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(stop)
        if process.wait(timeout=120) != 0:
            break
    assert process.returncode != 0
    assert not (root / "candidates.safetensors").exists()
    done = torch.load(checkpoint, weights_only=True)["global_step"]
    assert 0 < done < 100

    resumed = attack(root, small_probe, *LONG)
    for name, tensor in undisturbed.items():
        assert torch.equal(resumed[name], tensor), name


def test_a_diverged_draw_spoils_no_other(small_probe: Path, tmp_path: Path) -> None:
    # Plain gradient descent; the range of rates reaches from harmless to hopeless.
    options = ["--model.optimizer=sgd", "--model.num_draws=8", "--model.init_std=[0.1, 0.2]"]
    wide = attack(tmp_path / "wide", small_probe, *options, "--model.learning_rate=[1e-4, 1e8]")
    _, metadata = read_tensors(tmp_path / "wide" / "candidates.safetensors", CANDIDATES)
    kept = wide["draw"].tolist()
    assert 0 < len(kept) < 8
    assert metadata["diverged_draws"] == str([i for i in range(8) if i not in kept])
    # Alone, the first surviving draw gives the same vectors.
    upto = [f"--model.num_draws={kept[0] + 1}", "--model.learning_rate=[1e-4, 1e8]"]
    alone = attack(tmp_path / "alone", small_probe, *options, *upto)
    torch.testing.assert_close(alone["candidates"][-1], wide["candidates"][0])


@pytest.mark.parametrize("bias", [False, True])
def test_attacks_any_state_dict_of_linear_layers(bias: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8, bias=bias), nn.ReLU(), nn.Linear(8, 3, bias=bias))
    save_file(model.state_dict(), str(tmp_path / "p.safetensors"))
    torch.save(model.state_dict(), tmp_path / "p.pt")
    options = ["--model.num_candidates=12"]
    first = attack(tmp_path / "a", tmp_path / "p.safetensors", *options)
    second = attack(tmp_path / "b", tmp_path / "p.pt", *options)
    assert first["labels"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert torch.equal(first["candidates"], second["candidates"])


def test_a_linear_probe_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file(nn.Linear(6, 1).state_dict(), str(tmp_path / "p.safetensors"))
    words = ["fit", RECONSTRUCT, *quiet(tmp_path), *SMALL_ATTACK]
    assert run_cli(*words, f"--model.probe={tmp_path}/p.safetensors") == 1
    assert "needs a hidden layer" in capsys.readouterr().err


def test_the_search_follows_the_gradient_of_what_it_says(small_probe: Path) -> None:
    """Equalised equations, risen α, penalty on small multipliers: against autograd."""
    search = KKTReconstruction(
        str(small_probe), num_draws=2, num_candidates=6, iterations=10, lambda_min=(0.3, 0.3)
    )
    search.configure_model()
    search.on_train_start()
    assert search.solved_layers()[1][0].abs().tolist() == [[pytest.approx(1.0)] * 100]
    with torch.no_grad():
        search.set_gradients(5)
    # Halfway on a logarithmic scale from 1% of 10 to 10.
    alpha = torch.full((2,), 10 * 0.01**0.5)
    unknowns = [x.detach().clone().requires_grad_() for x in search.unknowns()]
    layers = equalised(search.probe_layers())
    loss = kkt_loss(layers, unknowns[0], unknowns[1], search.labels, alpha)
    penalty = 5 * (0.3 - unknowns[1]).clamp_min(0).square().sum(1)
    gradients = torch.autograd.grad((loss + penalty).sum(), unknowns)
    for ours, theirs in zip(search.unknowns(), gradients, strict=True):
        torch.testing.assert_close(ours.grad, theirs, rtol=1e-4, atol=1e-6)
    rates = search.learning_rates()
    torch.testing.assert_close(rates[1], rates[0] * torch.tensor([0.003, 0.0]))
