"""Modules that share nothing, one thread each, forward and backward.

Convolutions of one image scale badly over the threads of a processor; an image a thread does not.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


class _Joined(torch.autograd.Function):
    """Outputs with graphs of their own as one tensor; its gradient goes back on a thread each."""

    @staticmethod
    def forward(ctx: Any, outputs: list[Tensor], pool: ThreadPoolExecutor, _: Tensor) -> Tensor:  # noqa: ANN401
        ctx.outputs, ctx.pool = outputs, pool
        return torch.cat([output.detach() for output in outputs])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:  # noqa: ANN401
        parts = torch.split(gradient, [len(output) for output in ctx.outputs])
        list(ctx.pool.map(torch.autograd.backward, ctx.outputs, parts))
        return None, None, None


def thread_pool(threads: int) -> ThreadPoolExecutor:
    """Threads that each compute on one core."""
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))


def run_each(
    functions: Sequence[Callable[[Tensor], Tensor]],
    inputs: Sequence[Tensor],
    pool: ThreadPoolExecutor,
) -> Tensor:
    """Outputs of functions of parameters that they do not share, one after another in dimension 0.

    Args:
        functions: Each is called with its own input.
        inputs: One for each function; they get no gradient.
        pool: See :func:`thread_pool`.

    Returns:
        The outputs, joined. Gradients reach the parameters of the functions.
    """
    # Of a thread, not of the process: threads of the pool do not have it from here.
    training = torch.is_grad_enabled()

    def call(function: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
        with torch.set_grad_enabled(training):
            return function(value)

    outputs = list(pool.map(call, functions, inputs))
    if not training:
        return torch.cat(outputs)
    joined: Tensor = _Joined.apply(outputs, pool, torch.empty(0, requires_grad=True))
    return joined
