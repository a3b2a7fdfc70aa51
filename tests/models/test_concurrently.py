"""Modules on a thread each give what a plain loop gives."""

import pytest
import torch
from torch import Tensor, nn

from models.concurrently import run_each, thread_pool


def networks() -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 1, 3)).double() for _ in range(5)
    ]


def gradients(modules: list[nn.Module], output: Tensor) -> list[Tensor]:
    torch.autograd.backward(output.square().sum())
    return [p.grad for module in modules for p in module.parameters() if p.grad is not None]


def test_values_and_gradients_are_those_of_a_loop() -> None:
    inputs = list(torch.randn(5, 1, 2, 9, 9, dtype=torch.float64))
    plain, threaded = networks(), networks()
    pool, threads = thread_pool(2), torch.get_num_threads()
    expected = torch.cat([module(x) for module, x in zip(plain, inputs, strict=True)])
    found = run_each(threaded, inputs, pool)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    wanted = gradients(plain, expected)
    assert len(wanted) == 5 * 4
    torch.testing.assert_close(gradients(threaded, found), wanted, rtol=0, atol=1e-12)
    assert torch.get_num_threads() == threads
    # Twice, as a search does: gradients add up, nothing is kept from the first time.
    again = gradients(threaded, run_each(threaded, inputs, pool))
    torch.testing.assert_close(again, [2 * g for g in wanted], rtol=0, atol=1e-12)


def test_no_graph_is_made_where_none_is_wanted() -> None:
    with torch.no_grad():
        found = run_each(networks(), [torch.randn(1, 2, 9, 9).double()] * 5, thread_pool(2))
    assert not found.requires_grad


def test_what_one_raises_is_raised() -> None:
    with pytest.raises(RuntimeError, match="channels"):
        run_each(networks(), [torch.randn(1, 4, 9, 9).double()] * 5, thread_pool(2))
