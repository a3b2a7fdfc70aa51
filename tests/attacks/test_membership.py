"""Membership metrics against scikit-learn, scipy and counting by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics
from torch import Tensor

from attacks.membership import (
    best_threshold,
    bootstrap_intervals,
    membership_metrics,
    roc_curve,
    unresolvable_rates,
)


def scores(seed: int, members: int, non_members: int, ties: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    low = torch.randn(members, generator=generator, dtype=torch.float64) - 0.7
    high = torch.randn(non_members, generator=generator, dtype=torch.float64)
    return (low.round(decimals=1), high.round(decimals=1)) if ties else (low, high)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("members", "non_members"), [(1500, 2000), (700, 3000), (40, 60), (3, 1)])
def test_metrics_are_those_of_scikit_learn(members: int, non_members: int, ties: bool) -> None:
    low, high = scores(members, members, non_members, ties)
    threshold = -0.35
    truth = np.r_[np.ones(members), np.zeros(non_members)]
    both = torch.cat([low, high]).numpy()
    fpr, tpr, _ = metrics.roc_curve(truth, -both, drop_intermediate=False)
    called = both < threshold
    ours = membership_metrics(low, high, threshold)
    assert ours == pytest.approx(
        {
            "asr": metrics.accuracy_score(truth, called),
            "balanced_accuracy": metrics.balanced_accuracy_score(truth, called),
            "auc": metrics.roc_auc_score(truth, -both),
            "tpr_at_1_fpr": tpr[fpr <= 0.01].max(),
            "tpr_at_01_fpr": tpr[fpr <= 0.001].max(),
            "fpr": called[members:].mean(),
            "tpr": called[:members].mean(),
        },
        abs=1e-12,
    )
    our_fpr, our_tpr = roc_curve(low, high)
    np.testing.assert_allclose(our_fpr, fpr, atol=1e-12)
    np.testing.assert_allclose(our_tpr, tpr, atol=1e-12)


def test_lower_scores_mean_members_and_the_threshold_itself_does_not() -> None:
    found = membership_metrics(torch.tensor([0.1, 0.5]), torch.tensor([0.5, 0.9, 0.9]), 0.5)
    assert (found["tpr"], found["fpr"], found["asr"]) == (0.5, 0.0, 0.8)
    assert found["auc"] == pytest.approx(5.5 / 6)


@pytest.mark.parametrize("seed", range(5))
def test_best_threshold_is_the_best_of_all(seed: int) -> None:
    low, high = scores(seed, 50, 80, ties=seed % 2 == 1)
    threshold = best_threshold(low, high)
    both = torch.unique(torch.cat([low, high]))
    tried = [*(both - 1e-6).tolist(), *(both + 1e-6).tolist()]
    best = max(membership_metrics(low, high, t)["balanced_accuracy"] for t in tried)
    assert membership_metrics(low, high, threshold)["balanced_accuracy"] == pytest.approx(best)


def test_best_threshold_of_a_clean_gap_lies_in_its_middle() -> None:
    assert best_threshold(torch.tensor([0.0, 1.0]), torch.tensor([3.0, 4.0])) == 2.0


def test_intervals_of_the_auc_agree_with_scipy() -> None:
    low, high = scores(3, 150, 200, ties=False)

    def auc(a: np.ndarray, b: np.ndarray) -> float:
        return float(stats.mannwhitneyu(b, a).statistic / (len(a) * len(b)))

    expected = stats.bootstrap(
        (low.numpy(), high.numpy()), auc, method="percentile", vectorized=False, n_resamples=2000
    ).confidence_interval
    ours = bootstrap_intervals(low, high, -0.3, resamples=2000)["auc"]
    assert ours == pytest.approx((expected.low, expected.high), abs=0.006)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    # The probability that N(-0.7, 1) is below N(0, 1).
    truth = stats.norm.cdf(0.7 / np.sqrt(2))
    held = 0
    for seed in range(200):
        low, high = scores(seed, 80, 80, ties=False)
        bottom, top = bootstrap_intervals(low, high, 0.0, resamples=200, seed=seed)["auc"]
        held += bottom <= truth <= top
    assert 0.89 <= held / 200 <= 0.99


def test_intervals_repeat() -> None:
    low, high = scores(0, 30, 30, ties=False)
    assert bootstrap_intervals(low, high, 0.0) == bootstrap_intervals(low, high, 0.0)


@pytest.mark.parametrize(
    ("low", "high", "threshold", "message"),
    [
        (torch.empty(0), torch.ones(2), 0.0, "member scores must be a non-empty vector"),
        (torch.ones(2), torch.ones(2, 2), 0.0, "non-member scores must be"),
        (torch.tensor([float("nan")]), torch.ones(2), 0.0, "hold NaN"),
        (torch.ones(2), torch.tensor([1.0, -torch.inf]), 0.0, "hold NaN or infinity"),
        (torch.ones(2), torch.ones(2), float("nan"), "threshold is NaN"),
    ],
)
def test_scores_that_cannot_be_judged(
    low: Tensor, high: Tensor, threshold: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        membership_metrics(low, high, threshold)


FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(low=st.lists(FINITE, min_size=1, max_size=6), high=st.lists(FINITE, min_size=1, max_size=6))
def test_any_finite_scores_have_their_best_threshold(low: list[float], high: list[float]) -> None:
    """One image, equal scores, the smallest and the largest numbers: against all thresholds."""
    members, non_members = torch.tensor(low).double(), torch.tensor(high).double()
    metrics = membership_metrics(members, non_members, best_threshold(members, non_members))
    assert all(0 <= value <= 1 for value in metrics.values())
    expected = max(
        (sum(x < t for x in low) / len(low) + sum(x >= t for x in high) / len(high)) / 2
        for t in [*low, *high, float("inf")]
    )
    assert metrics["balanced_accuracy"] == pytest.approx(expected)
    pairs = [(a < b) + 0.5 * (a == b) for a in low for b in high]
    assert metrics["auc"] == pytest.approx(sum(pairs) / len(pairs))


def test_low_rates_need_many_non_members() -> None:
    assert unresolvable_rates(1000) == {}
    assert unresolvable_rates(999) == {"tpr_at_01_fpr": "not resolvable with 999 non-members"}
    assert list(unresolvable_rates(100)) == ["tpr_at_01_fpr"]
    assert list(unresolvable_rates(99)) == ["tpr_at_1_fpr", "tpr_at_01_fpr"]
