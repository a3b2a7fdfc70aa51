"""The attacker's own choice, on candidates whose truth is planted."""

import warnings
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from artifacts.errors import InputError
from lightning_modules import RepresentativeSelection
from tests.conftest import REPOSITORY


def planted_run(found: int = 6, seed: int = 0) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Five draws that find the same vectors at any scale, among candidates nobody repeats."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(6, 80, generator=generator)
    labels = torch.tensor([1] * 10 + [-1] * 10)
    candidates = torch.randn(5, 20, 80, generator=generator)
    for draw in range(5):
        scale = 0.5 + draw
        noise = 0.2 * torch.randn(6, 80, generator=generator)
        order = torch.randperm(10, generator=generator)[:3]
        for label in (0, 1):
            rows = order + 10 * label
            mine = torch.arange(3) + 3 * label
            candidates[draw, rows[:found]] = scale * (truth[mine] + noise[mine])[:found]
    run = {
        "candidates": candidates,
        "multipliers": torch.rand(5, 20, generator=generator) * 0.01 + 0.02,
        "labels": labels,
        "residual": torch.tensor([0.05, 0.04, 0.06, 0.03, 0.02]),
    }
    return run, truth


@pytest.mark.parametrize("ranking", ["size", "neff_tightness", "multiplier_mass"])
@pytest.mark.parametrize("representative", ["mean", "nearest", "frechet", "trimmed", "weighted"])
def test_planted_vectors_are_chosen(ranking: Any, representative: Any) -> None:  # noqa: ANN401
    run, truth = planted_run()
    chosen = RepresentativeSelection(6, representative, ranking)(run)
    similarity = F.normalize(chosen["representatives"], dim=1) @ F.normalize(truth, dim=1).T
    assert sorted(similarity.argmax(1).tolist()) == list(range(6))
    # A mean of five is nearer than a candidate, whose noise makes its cosine about 0.98.
    assert float(similarity.amax(1).min()) > (0.97 if representative == "nearest" else 0.985)
    expected = torch.where(similarity.argmax(1) < 3, 1, -1)
    assert torch.equal(chosen["label"], expected)
    assert bool((chosen["score"].diff() <= 0).all())


def test_draws_that_agree_are_used_first() -> None:
    run, truth = planted_run()
    # A draw of the lowest residual that found nothing.
    run["candidates"][4] = torch.randn(20, 80, generator=torch.Generator().manual_seed(9))
    chosen = RepresentativeSelection(50, draws=4)(run)
    stray = F.normalize(run["candidates"][4], dim=1)
    similarity = F.normalize(chosen["representatives"], dim=1) @ stray.T
    assert float(similarity.max()) < 0.9
    assert len(truth) == 6


def test_a_failed_attack_is_called_so() -> None:
    run, _ = planted_run(found=0)
    with pytest.warns(UserWarning, match="looks failed"):
        RepresentativeSelection(6)(run)
    run, _ = planted_run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RepresentativeSelection(6)(run)


def test_impossible_settings_are_refused() -> None:
    for settings in ({"top": 0}, {"height": None}, {"maxclust": 0}, {"draws": 0}):
        with pytest.raises(InputError):
            RepresentativeSelection(**settings)
    run, _ = planted_run(found=0)
    with pytest.raises(InputError, match="no cluster has candidates of 5 draws"):
        RepresentativeSelection(min_draws=5)(run)


def test_defaults_are_what_the_documented_measurement_says() -> None:
    page = (REPOSITORY / "docs" / "choosing_candidates.md").read_text(encoding="utf-8")
    defaults = RepresentativeSelection().hparams
    height = defaults["height"]
    chosen = (f"height: {height}", defaults["ranking"], defaults["representative"])
    assert "The default is {}.".format(", ".join(f"`{value}`" for value in chosen)) in page
    # Precision of the top 45 above 0.75, mean of both data sets, by height.
    precision: dict[float, list[float]] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 8 and cells[1].startswith("height") and cells[2:4] == list(chosen[1:]):
            precision.setdefault(float(cells[1].split()[1]), []).append(float(cells[4].split()[0]))
    means = {cut: sum(values) / 2 for cut, values in precision.items() if len(values) == 2}
    assert len(means) >= 3
    assert max(means, key=means.__getitem__) == height
