"""Signals that tell good draws from bad ones without the truth."""

import pytest
import torch

from attacks.draw_trust import agreement, multiplier_spread, rank_correlation


def test_agreement_counts_repeated_candidates_of_the_same_label() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([1, 1, 1, -1, -1, -1])
    draws = torch.randn(3, 6, 200, generator=generator)
    draws[1, 2] = 4 * draws[0, 0]
    draws[2, 5] = draws[0, 3] + 0.1 * draws[0, 4]
    # The same vector under the other label is no repetition.
    draws[2, 4] = draws[0, 1]
    expected = torch.tensor([2.0, 1.0, 1.0]) / 6
    torch.testing.assert_close(agreement(draws, labels), expected)
    assert agreement(draws[:1], labels).tolist() == [0.0]


def test_spread_and_correlation() -> None:
    spread = multiplier_spread(torch.tensor([[1.0, 1, 1], [0, 1, 2]]))
    torch.testing.assert_close(spread, torch.tensor([0.0, 1.0]))
    values = torch.tensor([1.0, 5, 2, 8])
    assert rank_correlation(values, values.square()) == pytest.approx(1)
    assert rank_correlation(values, -values) == pytest.approx(-1)
    assert rank_correlation(values, torch.ones(4)) == 0
