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


def test_vectors_move_alike_in_every_basis_and_as_adam_moves_a_number() -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(4, 5, 3, generator=generator, dtype=torch.float64)
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))
    # One coordinate of a group with ``vector`` is a number, and moves as with Adam.
    starts = {"plain": start, "turned": start @ rotation, "numbers": start[..., :1]}
    joint = {name: value.clone().requires_grad_() for name, value in starts.items()}
    optimizers = {
        name: DrawwiseAdam([{"params": [value], "lr": RATES, "vector": True}])
        for name, value in joint.items()
    }
    single = [row.clone().requires_grad_() for row in starts["numbers"]]
    alone = [Adam([row], float(rate)) for row, rate in zip(single, RATES, strict=True)]
    for step in range(30):
        gradient = gradients(joint["plain"].detach(), step)
        joint["plain"].grad, joint["turned"].grad = gradient.clone(), gradient @ rotation
        joint["numbers"].grad = gradient[..., :1].clone()
        for row, part in zip(single, gradient[..., :1], strict=True):
            row.grad = part.clone()
        for optimizer in (*optimizers.values(), *alone):
            optimizer.step()
    torch.testing.assert_close(joint["plain"] @ rotation, joint["turned"], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(joint["numbers"].detach(), torch.stack(single).detach())
    moved = (joint["plain"].detach() - start).norm(dim=2)
    assert bool((moved > 0).all())
