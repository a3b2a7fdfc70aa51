"""Reading the span of the training data from weights."""

import torch

from attacks.row_space import numerical_rank, row_space


def planted(rank: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(rank, 60, generator=generator)
    weight = torch.randn(200, rank, generator=generator) @ data
    return weight + noise * torch.randn(200, 60, generator=generator), data


def test_planted_span_is_found() -> None:
    weight, data = planted(19, noise=1e-3)
    basis = row_space(weight)
    assert basis is not None
    assert basis.shape == (19, 60)
    torch.testing.assert_close(basis @ basis.T, torch.eye(19), rtol=0, atol=1e-5)
    outside = data - data @ basis.T @ basis
    assert float(outside.norm() / data.norm()) < 1e-3


def test_no_cliff_means_no_row_space() -> None:
    generator = torch.Generator().manual_seed(1)
    assert row_space(torch.randn(200, 60, generator=generator)) is None
    assert numerical_rank(torch.tensor([3.0])) is None
    assert numerical_rank(torch.tensor([3.0, 2.0, 0.0])) == 2
