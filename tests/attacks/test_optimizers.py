"""Per-draw optimisers against torch.optim, one instance a draw."""

from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from attacks.optimizers import DrawwiseAdam, DrawwiseSGD

RATES = torch.tensor([0.3, 0.01, 0.1, 1.0], dtype=torch.float64)


def gradients(parameter: Tensor, seed: int) -> Tensor:
    """A different non-linear gradient at every step."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return torch.sin(parameter) + 0.3 * noise


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (DrawwiseSGD, partial(SGD, momentum=0.9)),
        (DrawwiseAdam, Adam),
        (partial(DrawwiseAdam, eps=1e-12), partial(Adam, eps=1e-12)),
    ],
)
def test_each_draw_moves_as_with_an_optimiser_of_its_own(
    ours: Callable[..., Optimizer], theirs: Callable[[Iterable[Tensor], float], Optimizer]
) -> None:
    start = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    joint = start.clone().requires_grad_()
    together = ours([{"params": [joint], "lr": RATES}])
    single = [row.clone().requires_grad_() for row in start]
    alone = [theirs([row], float(rate)) for row, rate in zip(single, RATES, strict=True)]
    for step in range(50):
        joint.grad = gradients(joint.detach(), step)
        for row, gradient in zip(single, joint.grad.clone(), strict=True):
            row.grad = gradient
        together.step()
        for optimizer in alone:
            optimizer.step()
    torch.testing.assert_close(joint.detach(), torch.stack(single).detach(), rtol=1e-12, atol=0)


def test_reset_draws_stay_where_they_are() -> None:
    parameter = torch.ones(4, 2, dtype=torch.float64, requires_grad=True)
    optimizer = DrawwiseAdam([{"params": [parameter], "lr": RATES}])
    frozen = torch.tensor([False, True, False, False])
    parameter.grad = torch.full_like(parameter, torch.nan)
    optimizer.step()
    with torch.no_grad():
        parameter.fill_(1.0)
    optimizer.reset_draws(frozen)
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(parameter[1], torch.ones(2, dtype=torch.float64))
    assert bool(parameter[0].isnan().all())


def test_wrong_number_of_rates_is_refused() -> None:
    with pytest.raises(ValueError, match="4 learning rates for 3 draws"):
        DrawwiseSGD([{"params": [torch.zeros(3, 2, requires_grad=True)], "lr": RATES}])


def test_vectors_move_alike_in_every_basis_and_the_other_draws_as_with_adam() -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(4, 5, 3, generator=generator, dtype=torch.float64)
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))
    vector = torch.tensor([True, False, True, False])
    plain, turned = start.clone().requires_grad_(), (start @ rotation).requires_grad_()
    optimizers: list[Optimizer] = [
        DrawwiseAdam([{"params": [parameter], "lr": RATES, "vector": vector}])
        for parameter in (plain, turned)
    ]
    single = {r: start[r].clone().requires_grad_() for r in (1, 3)}
    optimizers += [Adam([row], float(RATES[r])) for r, row in single.items()]
    for step in range(30):
        gradient = gradients(plain.detach(), step)
        plain.grad, turned.grad = gradient.clone(), gradient @ rotation
        for r, row in single.items():
            row.grad = gradient[r].clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close((plain @ rotation)[vector], turned[vector], rtol=1e-9, atol=1e-11)
    assert not torch.allclose((plain @ rotation)[~vector], turned[~vector], rtol=1e-3)
    for r, row in single.items():
        torch.testing.assert_close(plain[r], row, rtol=1e-12, atol=0)


def test_the_first_step_of_a_vector_has_the_length_of_the_rate_a_coordinate() -> None:
    parameter = torch.zeros(2, 1, 9, dtype=torch.float64, requires_grad=True)
    rates, vector = torch.tensor([0.1, 0.2]), torch.tensor([True, True])
    optimizer = DrawwiseAdam([{"params": [parameter], "lr": rates, "vector": vector}])
    parameter.grad = torch.arange(18.0, dtype=torch.float64).view(2, 1, 9)
    optimizer.step()
    torch.testing.assert_close(parameter.detach().norm(dim=2)[:, 0], 3 * rates.double())
