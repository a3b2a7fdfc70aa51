"""The KKT residual of a multi-layer probe and its gradient, for many draws at once.

A homogeneous classifier phi trained to separation ends near a KKT point of the maximum-margin
problem: its parameters are a weighted sum of the gradients of its own training samples,
``theta = sum_i lambda_i y_i grad_theta phi(x_i)``. Reconstruction looks for candidates ``x_i``
and multipliers ``lambda_i`` that make both sides equal (Oz et al., Reconstructing Training Data
From Real World Models Trained with Transfer Learning, Sec. 3.1 Eq. 2; several classes: B.5).

Conventions, throughout:

* ``R`` independent draws of ``m`` candidates with ``D`` features; layer ``l`` is
  ``(weight (out, in), bias (out,) or None)`` and the last layer has ``C`` outputs.
* Hidden activations are ``max(z, 0)`` going forward, but *every* backward pass through one
  multiplies by ``sigmoid(alpha z)`` (B.2, item 4): once in ``grad_theta phi`` and again when the
  loss is differentiated through the activations.
* The loss is the plain squared norm over all parameters, biases included where there are any.
  There is no factor ``1/m``: it only rescales the multipliers.
* Gradients are with respect to candidates and multipliers; the probe is constant.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attacks.kkt_arguments import check_arguments
from attacks.kkt_derivatives import Rivals, loss_and_gradients
from attacks.probe_layers import Layers, parameter_norm
from attacks.scratch import Scratch


def kkt_loss(
    layers: Layers,
    candidates: Tensor,
    multipliers: Tensor,
    labels: Tensor,
    relu_alpha: Tensor,
    *,
    rivals: Rivals = "strongest",
    allow_linear: bool = False,
) -> Tensor:
    """Squared distance of each draw from the KKT point, differentiable once.

    The value is ``||theta - sum_i lambda_i grad_theta f_i||^2`` with ``f_i = y_i phi(x_i)`` for
    one output (Sec. 3.1, Eq. 2) and ``f_i = phi(x_i)_{y_i} - max_{j != y_i} phi(x_i)_j`` for
    several (B.5). Among tied classes the maximum is the one with the lowest index, for the value
    and the derivative alike; that is what ``torch.max(dim=...)`` does under double backward,
    whereas ``torch.amax`` would split the derivative between them.

    With ``rivals="all"`` it is ``f_i = phi(x_i)_{y_i} - sum_{j != y_i} r_j phi(x_i)_j`` with the
    probe's own probabilities of the other classes, ``r_j = p_j / (1 - p_{y_i})``. The weights of a
    probe trained with cross-entropy and weight decay are exactly a sum of those gradients. The
    r_j are taken as constants, in the value's gradient too.

    Where a gradient is needed it is computed together with the value, so that the two cost five
    products with the first layer and seven with every further hidden layer. ``backward`` hands
    that gradient out once: it cannot be repeated with ``retain_graph``.

    Args:
        layers: The probe, first layer to last.
        candidates: Candidates of every draw, ``(R, m, D)``.
        multipliers: Their multipliers lambda, ``(R, m)``.
        labels: ``(m,)`` or ``(R, m)``; -1 and +1 for one output, class indices for several.
        relu_alpha: Sharpness of the softened ReLU derivative in every draw, ``(R,)``.
        rivals: What a label is set against, where there are several outputs.
        allow_linear: Accept a probe without a hidden layer.

    Returns:
        The loss of every draw, ``(R,)``.

    Raises:
        ValueError: If shapes, types or labels do not fit, or the probe has no hidden layer.
    """
    check_arguments(layers, candidates, multipliers, labels, relu_alpha, allow_linear)
    loss: Tensor = _KKTLoss.apply(candidates, multipliers, layers, labels, relu_alpha, rivals)
    return loss


def kkt_loss_and_grad(
    layers: Layers,
    candidates: Tensor,
    multipliers: Tensor,
    labels: Tensor,
    relu_alpha: Tensor,
    *,
    rivals: Rivals = "strongest",
    allow_linear: bool = False,
    scratch: Scratch | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The value of `kkt_loss` and its gradients, without autograd: what a loop should call.

    Args:
        layers: The probe, first layer to last.
        candidates: Candidates of every draw, ``(R, m, D)``.
        multipliers: Their multipliers lambda, ``(R, m)``.
        labels: ``(m,)`` or ``(R, m)``; -1 and +1 for one output, class indices for several.
        relu_alpha: Sharpness of the softened ReLU derivative in every draw, ``(R,)``.
        rivals: What a label is set against, where there are several outputs.
        allow_linear: Accept a probe without a hidden layer.
        scratch: Memory to work in. The gradients lie in it too, until the next call with it.

    Returns:
        The loss ``(R,)`` and, for each draw's own loss, the gradients with respect to candidates
        ``(R, m, D)`` and multipliers ``(R, m)``.

    Raises:
        ValueError: If shapes, types or labels do not fit, or the probe has no hidden layer.
    """
    check_arguments(layers, candidates, multipliers, labels, relu_alpha, allow_linear)
    scratch = scratch or Scratch()
    scratch.rewind()
    grads = tuple(scratch.take(t, *t.shape) for t in (candidates, multipliers))
    loss = loss_and_gradients(
        layers, candidates, multipliers, labels, relu_alpha, rivals, grads, scratch
    )
    return loss, grads[0], grads[1]


def relative_residual(loss: Tensor, layers: Layers) -> Tensor:
    """Share of the parameters that a draw leaves unexplained: 0 is exact, 1 is no better than 0.

    Args:
        loss: Values of `kkt_loss`, ``(R,)``.
        layers: The probe, first layer to last.

    Returns:
        ``sqrt(loss) / ||theta||``, ``(R,)``.
    """
    return loss.sqrt() / parameter_norm(layers)


def multiplier_penalty(multipliers: Tensor, lambda_min: Tensor, weight: float = 5.0) -> Tensor:
    """Pulls multipliers up to the least value that a draw allows (B.2, item 3).

    Args:
        multipliers: Multipliers of every draw, ``(R, m)``.
        lambda_min: Least multiplier of every draw, ``(R,)``.
        weight: Weight of this term beside the KKT loss; 5 in the published code.

    Returns:
        ``weight * sum_i relu(lambda_min - lambda_i)^2``, ``(R,)``.
    """
    return weight * (lambda_min[:, None] - multipliers).relu().square().sum(1)


class _KKTLoss(torch.autograd.Function):
    """Ties the gradient into autograd: it is made going forward and scaled backward."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch gives its context no public type
        candidates: Tensor,
        multipliers: Tensor,
        layers: Layers,
        labels: Tensor,
        relu_alpha: Tensor,
        rivals: Rivals,
    ) -> Tensor:
        """See `kkt_loss`."""
        ctx.grads = None
        if any(ctx.needs_input_grad[:2]):
            ctx.grads = tuple(t.new_empty(t.shape) for t in (candidates, multipliers))
        arguments = (layers, candidates, multipliers, labels, relu_alpha, rivals)
        return loss_and_gradients(*arguments, ctx.grads, Scratch())

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401
        grad_loss: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Chain rule with the gradients of the forward pass."""
        if ctx.grads is None:
            raise RuntimeError("kkt_loss can be differentiated only once; evaluate it again")
        grad_candidates, grad_multipliers = ctx.grads
        # Scaled in place and let go, because a second copy of all candidates is what costs memory.
        ctx.grads = None
        grad_candidates.mul_(grad_loss[:, None, None])
        grad_multipliers.mul_(grad_loss[:, None])
        return grad_candidates, grad_multipliers, None, None, None, None
