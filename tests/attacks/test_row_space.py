"""Reading the span of the training data from weights."""

import torch

from attacks.row_space import row_space, signal_rank


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


def test_noise_alone_has_no_row_space() -> None:
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(200, 60, generator=generator)
    assert row_space(noise) is None
    assert signal_rank(torch.linalg.svdvals(noise), 200, 60)[0] == 0
    # As much noise as signal: an initialisation that has not decayed.
    assert row_space(planted(19, noise=1.0)[0]) is None
    assert row_space(torch.zeros(200, 60)) is None


def test_a_span_that_fades_into_the_noise_is_cut_there() -> None:
    generator = torch.Generator().manual_seed(2)
    rows, columns = 500, 64
    left = torch.linalg.qr(torch.randn(rows, 40, generator=generator)).Q
    right = torch.linalg.qr(torch.randn(columns, 40, generator=generator)).Q
    noise = 1e-3 * torch.randn(rows, columns, generator=generator)
    edge = 1e-3 * (rows**0.5 + columns**0.5)
    # Thirty directions clearly above the edge of the noise, ten far below it.
    values = torch.cat([torch.linspace(50, 2, 30), torch.full((10,), 0.1)]) * edge
    weight = left * values @ right.T + noise
    assert signal_rank(torch.linalg.svdvals(weight), rows, columns)[0] == 30
