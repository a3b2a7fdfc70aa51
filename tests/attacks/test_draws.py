"""Hyper-parameter draws."""

import pytest
import torch
from scipy import stats

from attacks.draws import DrawRanges, balanced_labels, sample_draws

RANGES = DrawRanges((1e-6, 1.0), (1e-6, 1.0), (0.01, 0.5), (10.0, 500.0), (0.0, 1.0))


def test_a_draw_depends_on_seed_and_index_alone() -> None:
    whole = sample_draws(RANGES, 3, range(6), 10, 4)
    part = sample_draws(RANGES, 3, [4, 1], 10, 4)
    for name, tensor in vars(whole).items():
        assert torch.equal(getattr(part, name), tensor[[4, 1]]), name
    other = sample_draws(RANGES, 4, range(6), 10, 4)
    assert not torch.equal(other.candidates, whole.candidates)


def test_distributions_are_those_of_the_paper() -> None:
    draws = sample_draws(RANGES, 0, range(400), 2, 2)
    uniform = stats.uniform(0, 1)
    scaled = {
        "learning_rate": draws.learning_rate.log10() / 6 + 1,
        "lambda_min": (draws.lambda_min - 0.01) / 0.49,
        "relu_alpha": (draws.relu_alpha - 10) / 490,
        "multipliers": draws.multipliers.flatten(),
    }
    for name, values in scaled.items():
        assert stats.kstest(values.numpy(), uniform.cdf).pvalue > 0.01, name
    std = draws.candidates.flatten(1).norm(dim=1) / 2
    # Log-uniform over six decades: half of the draws start below 1e-3.
    assert 160 < int((std < 1e-3).sum()) < 240


@pytest.mark.parametrize(
    "change",
    [{"learning_rate": (0.0, 1.0)}, {"relu_alpha": (5.0, 1.0)}, {"lambda_min": (-1.0, 1.0)}],
)
def test_senseless_ranges_are_refused(change: dict[str, tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(change))} must be a range"):
        DrawRanges(**{**vars(RANGES), **change})


def test_labels_are_balanced() -> None:
    assert balanced_labels(6, 1).tolist() == [1, 1, 1, -1, -1, -1]
    assert balanced_labels(6, 3).tolist() == [0, 0, 1, 1, 2, 2]
    for size, outputs in ((5, 1), (0, 1), (7, 3)):
        with pytest.raises(ValueError, match="positive multiple"):
            balanced_labels(size, outputs)
