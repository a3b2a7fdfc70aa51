"""Activation maximisation on the probe's input: the baseline attack of A.8, first variant.

It looks for inputs that the probe classifies with confidence, ``argmin_x L(phi(x), y)``. Nothing in
it knows about training samples; what it finds is what a class looks like to the probe.
"""

import torch
from torch import Tensor

from attacks.margin_gradients import (
    gradient_factors,
    log_loss_weights,
    margin_directions,
    parameter_list,
    sample_losses,
    weighted_gradient,
)
from attacks.probe_layers import Layers, probe_outputs


def activation_loss_and_grad(
    layers: Layers, candidates: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss of every candidate and its gradient (A.8).

    Args:
        layers: The probe, first layer to last.
        candidates: Candidates of every draw, ``(R, m, D)``.
        labels: ``(m,)``; -1 and +1 for one output, class indices for several.

    Returns:
        Sum of the losses of a draw's candidates ``(R,)``, and its gradient ``(R, m, D)``.
        Candidates do not influence each other.
    """
    with torch.enable_grad():
        variable = candidates.detach().requires_grad_()
        losses = sample_losses(layers, variable, labels)
        (gradient,) = torch.autograd.grad(losses.sum(), variable)
    return losses.detach().sum(1), gradient


def implied_multipliers(
    layers: Layers, candidates: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """The multipliers that candidates would have if they were the training set.

    In a trained probe multipliers are proportional to the derivative of the loss (see
    `log_loss_weights`); the unknown factor ``1 / (n wd)`` is taken as the non-negative one that
    leaves the least of the parameters unexplained. With it the candidates of this attack and those
    of the KKT attack are judged by the same residual.

    Args:
        layers: The probe, first layer to last.
        candidates: Candidates of every draw, ``(R, m, D)``.
        labels: ``(m,)``; -1 and +1 for one output, class indices for several.

    Returns:
        Multipliers ``(R, m)`` and the relative KKT residual they leave ``(R,)``: finite, and never
        above 1, because the factor may be 0.
    """
    parameters = parameter_list(layers)
    theta = torch.cat([p.flatten() for p in parameters])
    found = [_implied(layers, draw, labels, theta) for draw in candidates]
    multipliers, residuals = zip(*found, strict=True)
    return torch.stack(multipliers), torch.stack(residuals)


def _implied(
    layers: Layers, candidates: Tensor, labels: Tensor, theta: Tensor
) -> tuple[Tensor, Tensor]:
    """Multipliers (m,) and residual () of one draw: all draws at once would need R·p numbers."""
    outputs = probe_outputs(layers, candidates)
    logs = log_loss_weights(outputs, labels)
    # Only ratios matter, so that the largest can be 1 however confident the probe is.
    weights = (logs - logs.max()).exp()
    factors = gradient_factors(layers, candidates, margin_directions(outputs, labels))
    sums = weighted_gradient(layers, factors, weights)
    total = torch.cat([s.flatten() for s in sums])
    tiny = torch.finfo(total.dtype).tiny
    scale = ((theta @ total) / (total @ total).clamp_min(tiny)).clamp_min(0)
    residual = torch.linalg.vector_norm(theta - scale * total) / torch.linalg.vector_norm(theta)
    return scale * weights, residual
