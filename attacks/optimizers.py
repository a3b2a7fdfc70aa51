"""SGD and Adam whose every draw has its own learning rate.

Draws live in the first dimension of a parameter (R, …). Each behaves exactly as if an optimiser of
``torch.optim`` with its own rate held it alone.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class _DrawwiseOptimizer(Optimizer):
    """Shared: per-draw rates, and draws that are frozen because they diverged."""

    def __init__(self, groups: Iterable[dict[str, Any]], defaults: dict[str, Any]) -> None:
        super().__init__(groups, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                if len(group["lr"]) != len(parameter):
                    raise ValueError(
                        f"{len(group['lr'])} learning rates for {len(parameter)} draws"
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of every draw, from the gradients in ``.grad``, which it may overwrite."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    # Rates may live on another device after a checkpoint was loaded.
                    rate = group["lr"].to(parameter)
                    rate = rate.view(-1, *[1] * (parameter.dim() - 1))
                    self._update(parameter, parameter.grad, rate * group["scale"], group)
        return loss

    def _update(self, parameter: Tensor, grad: Tensor, rate: Tensor, group: dict[str, Any]) -> None:
        raise AssertionError("subclasses update one parameter")

    @torch.no_grad()
    def reset_draws(self, draws: Tensor) -> None:
        """Zeroes the state of some draws, so that a zero gradient leaves them where they are.

        Args:
            draws: Mask (R,) of the draws.
        """
        for state in self.state.values():
            for value in state.values():
                if isinstance(value, Tensor) and value.dim() > 0:
                    value[draws] = 0

    def set_scale(self, scale: float) -> None:
        """Sets a common factor on all rates: a learning-rate schedule."""
        for group in self.param_groups:
            group["scale"] = scale


class DrawwiseSGD(_DrawwiseOptimizer):
    """Gradient descent with momentum, one learning rate a draw.

    Args:
        groups: Parameter groups with ``params`` (each (R, …)) and ``lr`` (R,).
        momentum: As in :class:`torch.optim.SGD`.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], momentum: float = 0.9) -> None:
        super().__init__(groups, {"momentum": momentum, "scale": 1.0})

    def _update(self, parameter: Tensor, grad: Tensor, rate: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = state["momentum_buffer"].mul_(group["momentum"]).add_(grad)
        parameter.addcmul_(buffer, rate, value=-1)


class DrawwiseAdam(_DrawwiseOptimizer):
    """Adam, one learning rate a draw.

    In a group with ``vector``, the draws of that mask have one second moment for each vector along
    the last dimension, of the gradient's mean square (Ling et al., VectorAdam for Rotation
    Equivariant Geometry Optimization, 2022). Their steps do not depend on the basis in which
    vectors are written; Adam's are as long along the axes of little gradient as along the others.

    Args:
        groups: Parameter groups with ``params`` (each (R, …)), ``lr`` (R,), optionally ``vector``
            (R,), bool.
        betas: As in :class:`torch.optim.Adam`.
        eps: As in :class:`torch.optim.Adam`.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(groups, {"betas": betas, "eps": eps, "scale": 1.0, "vector": None})

    def _update(self, parameter: Tensor, grad: Tensor, rate: Tensor, group: dict[str, Any]) -> None:
        state, vector = self.state[parameter], group["vector"]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.int64)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        step = int(state["step"])
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].lerp_(grad, 1 - beta1)
        # The gradient is used up, and its memory free for the rest.
        if vector is not None:
            size = torch.linalg.vector_norm(grad, dim=-1, keepdim=True).div_(grad.shape[-1] ** 0.5)
            chosen = vector.to(grad.device).view(-1, *[1] * (grad.dim() - 1))
            torch.where(chosen, size, grad, out=grad)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        torch.sqrt(square, out=grad).div_((1 - beta2**step) ** 0.5).add_(group["eps"])
        torch.div(mean, grad, out=grad)
        parameter.addcmul_(grad, rate, value=-1 / (1 - beta1**step))
