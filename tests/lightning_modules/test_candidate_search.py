"""Options of the search: linear probes, learning rates, precision."""

from pathlib import Path

import lightning as L
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from artifacts.errors import InputError
from artifacts.tensors import CANDIDATES, read_tensors
from lightning_modules import KKTReconstruction
from lightning_modules.resources import matmul_precision
from tests.conftest import REPOSITORY, SMALL_ATTACK, quiet, run_cli

RECONSTRUCT = f"--config={REPOSITORY}/configs/quickstart/reconstruct.yaml"


def attack(root: Path, probe: Path, *options: str) -> dict[str, torch.Tensor]:
    words = ["fit", RECONSTRUCT, *quiet(root), *SMALL_ATTACK, f"--model.probe={probe}", *options]
    assert run_cli(*words) == 0
    return read_tensors(root / "candidates.safetensors", CANDIDATES)[0]


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_linear_probe_is_refused_and_runs_when_asked(
    outputs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    probe = tmp_path / "linear.safetensors"
    state = nn.Linear(6, outputs).state_dict()
    if outputs > 1:
        # Differences of classes explain nothing that all classes have in common.
        state = {name: value - value.mean(0) for name, value in state.items()}
    save_file(state, str(probe))
    words = ["fit", RECONSTRUCT, *quiet(tmp_path), f"--model.probe={probe}"]
    options = ["--model.num_candidates=12", "--model.iterations=400"]
    assert run_cli(*words, *options) == 1
    assert "model.allow_linear=true" in capsys.readouterr().err
    run = attack(tmp_path / "asked", probe, *options, "--model.allow_linear=true")
    # One vector a class is all there is to explain, so that the fit comes close.
    assert float(run["residual"].min()) < 0.5
    assert run["candidates"].shape == (3, 12, 6)


def test_multipliers_have_a_rate_relative_to_the_draw_or_their_own(small_probe: Path) -> None:
    def rates(*, absolute: bool) -> tuple[torch.Tensor, torch.Tensor]:
        module = KKTReconstruction(
            str(small_probe),
            num_draws=4,
            learning_rate=(1e-6, 1.0),
            multiplier_learning_rate=1e-4,
            multiplier_rate_is_absolute=absolute,
            frozen_multipliers="none",
        )
        module.configure_model()
        candidates, multipliers = module.configure_optimizers().param_groups
        return candidates["lr"], multipliers["lr"]

    candidates, multipliers = rates(absolute=False)
    torch.testing.assert_close(multipliers, 1e-4 * candidates)
    same, multipliers = rates(absolute=True)
    assert torch.equal(same, candidates)
    torch.testing.assert_close(multipliers, torch.full((4,), 1e-4))


def test_precision_of_products_is_set_for_the_search_and_put_back() -> None:
    before = torch.get_float32_matmul_precision()
    with matmul_precision("medium"):
        assert torch.get_float32_matmul_precision() == "medium"
    assert torch.get_float32_matmul_precision() == before
    with pytest.raises(InputError), matmul_precision("high"):
        raise InputError("as a search in which all draws diverged")
    assert torch.get_float32_matmul_precision() == before


def test_the_search_uses_the_precision_asked_for(
    small_probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    set_gradients = KKTReconstruction.set_gradients

    def watched(self: KKTReconstruction, iteration: int) -> torch.Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return set_gradients(self, iteration)

    monkeypatch.setattr(KKTReconstruction, "set_gradients", watched)
    before = torch.get_float32_matmul_precision()
    attack(tmp_path / "a", small_probe, "--model.iterations=2")
    attack(tmp_path / "b", small_probe, "--model.iterations=2", "--model.matmul_precision=high")
    assert seen == ["highest", "highest", "high", "high"]
    assert torch.get_float32_matmul_precision() == before


def test_a_search_in_bfloat16_leaves_float32(small_probe: Path, tmp_path: Path) -> None:
    run = attack(tmp_path, small_probe, "--model.iterations=2", "--trainer.precision=bf16-true")
    assert all(t.dtype in (torch.float32, torch.int64) for t in run.values())


def test_double_precision_is_the_trainers_option(small_probe: Path, tmp_path: Path) -> None:
    few = ["--model.iterations=20", "--model.iterations_per_step=10"]
    single = attack(tmp_path / "single", small_probe, *few)
    double = attack(tmp_path / "double", small_probe, *few, "--trainer.precision=64-true")
    assert double["candidates"].dtype == torch.float64
    torch.testing.assert_close(single["residual"].double(), double["residual"], rtol=1e-3, atol=0)


def test_steps_of_the_trainer_grow_with_small_problems_and_change_no_result(
    small_probe: Path, tmp_path: Path
) -> None:
    few = KKTReconstruction(str(small_probe), num_draws=2, num_candidates=20, iterations=500)
    few.configure_model()
    # 2 draws x 20 candidates x 5 products of 2 operations each with 100 x (64 + 1) weights.
    assert few.iterations_per_step == 500 // 10
    assert few.num_steps == 10
    many = KKTReconstruction(str(small_probe), num_draws=1000, num_candidates=1000, iterations=500)
    assert many._iterations_in_a_step([(64, 100), (1, 100)]) == 1
    few_iterations = "--model.iterations=20"
    options = ("--model.iterations_per_step=null", "--model.iterations_per_step=1")
    chosen, single = (
        attack(tmp_path / str(i), small_probe, few_iterations, option)
        for i, option in enumerate(options)
    )
    for name in ("candidates", "multipliers", "residual"):
        assert torch.equal(chosen[name], single[name])


def test_a_run_keeps_its_steps_when_it_continues_where_others_would_be_chosen(
    small_probe: Path,
) -> None:
    begun, continued = (
        KKTReconstruction(str(small_probe), num_draws=2, num_candidates=20, iterations=100)
        for _ in range(2)
    )
    for module in (begun, continued):
        module.configure_model()
        module.trainer = L.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    begun.iterations_per_step = 30
    begun.history = torch.zeros(begun.num_steps, 2)
    checkpoint = {"state_dict": begun.state_dict(), "optimizer_states": []}
    begun.on_save_checkpoint(checkpoint)
    continued.on_load_checkpoint(checkpoint)
    assert continued.num_steps == 4
    assert continued.history.shape == (4, 2)


def test_half_of_the_draws_move_candidates_as_vectors(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(50, 4, generator=generator) @ torch.randn(4, 64, generator=generator)
    weight += 1e-3 * torch.randn(50, 64, generator=generator)
    state = {"0.weight": weight, "1.weight": torch.randn(1, 50, generator=generator)}
    save_file(state, str(tmp_path / "probe.safetensors"))
    module = KKTReconstruction(str(tmp_path / "probe.safetensors"), num_draws=6, first_draw=1)
    module.configure_model()
    vector = torch.tensor([False, True, True, False, False, True])
    candidates, _ = module.configure_optimizers().param_groups
    assert torch.equal(candidates["vector"], vector)
    # 4 of 64 dimensions: steps four times as long a coordinate, as long on the whole.
    expected = torch.where(vector, 4.0, 1.0)
    torch.testing.assert_close(candidates["lr"] / module.rates, expected)
