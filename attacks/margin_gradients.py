"""Loss and margin of given inputs, and the margin's gradients in the probe's parameters.

Here the inputs are given and the ReLU is the ordinary one, with derivative 0 or 1: this is what the
probe's own training sees. `attacks.kkt` is for candidates that are still searched for.

The gradient of an input's margin in layer ``l`` is an outer product ``q_l a_{l-1}'``, so that a sum
over inputs is one matrix product and a matrix of inner products costs ``n^2``, whatever the number
of parameters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.probe_layers import Layers, probe_outputs

Factors = Sequence[tuple[Tensor, Tensor]]
"""``(q_l (..., n, out), a_{l-1} (..., n, in))`` of each layer, first to last."""


def sample_losses(layers: Layers, inputs: Tensor, labels: Tensor) -> Tensor:
    """The loss that a probe is trained with, sample by sample.

    Args:
        layers: The probe, first layer to last.
        inputs: Inputs of the layers, ``(..., n, D)``.
        labels: ``(n,)``; -1 and +1 for one output, class indices for several.

    Returns:
        Logistic loss for one output, cross-entropy for several, ``(..., n)``.
    """
    outputs = probe_outputs(layers, inputs)
    if outputs.shape[-1] == 1:
        return F.softplus(-labels * outputs.squeeze(-1))
    own = labels.expand(outputs.shape[:-1])[..., None]
    return -outputs.log_softmax(-1).gather(-1, own).squeeze(-1)


def log_loss_weights(outputs: Tensor, labels: Tensor) -> Tensor:
    """Logarithm of how strongly the loss of a sample still pulls at the probe.

    The pull is minus the derivative of the loss in the margin: ``sigmoid(-y phi)`` for one output,
    and for several the probability that is not on the label, ``1 - p_y``. In a probe trained with
    weight decay wd to a stationary point the multiplier of a sample is its pull over ``n wd``.

    Args:
        outputs: Outputs of the probe, ``(..., n, C)``.
        labels: ``(n,)``; -1 and +1 for one output, class indices for several.

    Returns:
        Logarithms, ``(..., n)``: they neither underflow nor lose digits for confident outputs.
    """
    if outputs.shape[-1] == 1:
        return F.logsigmoid(-labels * outputs.squeeze(-1))
    others = outputs.scatter(-1, labels.expand(outputs.shape[:-1])[..., None], -torch.inf)
    return others.logsumexp(-1) - outputs.logsumexp(-1)


def margins(outputs: Tensor, labels: Tensor) -> Tensor:
    """Distance of the outputs from the decision boundary (B.5).

    Args:
        outputs: Outputs of the probe, ``(..., n, C)``.
        labels: ``(n,)``; -1 and +1 for one output, class indices for several.

    Returns:
        ``y phi`` for one output, ``phi_y - max_{j != y} phi_j`` for several, ``(..., n)``.
    """
    return (outputs * margin_directions(outputs, labels)).sum(-1)


def margin_directions(outputs: Tensor, labels: Tensor) -> Tensor:
    """Derivative of the margin in the outputs (B.5).

    Args:
        outputs: Outputs of the probe, ``(..., n, C)``.
        labels: ``(n,)``; -1 and +1 for one output, class indices for several.

    Returns:
        ``y`` for one output; for several +1 at the label and -1 at its strongest rival,
        ``(..., n, C)``.
    """
    if outputs.shape[-1] == 1:
        return labels[:, None].to(outputs).expand(outputs.shape)
    own = labels.expand(outputs.shape[:-1])[..., None]
    rival = outputs.scatter(-1, own, -torch.inf).argmax(-1, keepdim=True)
    return torch.zeros_like(outputs).scatter(-1, rival, -1.0).scatter(-1, own, 1.0)


def loss_directions(outputs: Tensor, labels: Tensor) -> Tensor:
    """Direction in the outputs along which the loss itself decreases, scaled as a margin.

    For one output this is the margin's own. For several the loss weighs the rivals by their
    probability where B.5 takes the strongest alone: ``e_y - sum_{j != y} p_j / (1 - p_y) e_j``.

    Args:
        outputs: Outputs of the probe, ``(..., n, C)``.
        labels: ``(n,)``; -1 and +1 for one output, class indices for several.

    Returns:
        Directions, ``(..., n, C)``.
    """
    if outputs.shape[-1] == 1:
        return margin_directions(outputs, labels)
    own = labels.expand(outputs.shape[:-1])[..., None]
    rivals = outputs.scatter(-1, own, -torch.inf).softmax(-1)
    return -rivals.scatter(-1, own, -1.0)


def gradient_factors(layers: Layers, inputs: Tensor, directions: Tensor) -> Factors:
    """Gradients of ``directions . phi(x_i)`` in the weights, as outer products.

    Args:
        layers: The probe, first layer to last.
        inputs: Inputs of the layers, ``(..., n, D)``.
        directions: One direction in the outputs for each input, ``(..., n, C)``.

    Returns:
        For each layer ``q_l`` and ``a_{l-1}``: the gradient in ``W_l`` is ``q_l a_{l-1}'``, in the
        bias ``q_l``.
    """
    activations = [inputs]
    for weight, bias in layers[:-1]:
        activations.append(F.linear(activations[-1], weight, bias).relu())
    qs = [directions]
    for (weight, _), activation in zip(layers[:0:-1], reversed(activations), strict=False):
        qs.append((qs[-1] @ weight) * (activation > 0))
    return list(zip(reversed(qs), activations, strict=True))


def weighted_gradient(layers: Layers, factors: Factors, multipliers: Tensor) -> list[Tensor]:
    """Sum of the gradients, each times its multiplier.

    Args:
        layers: The probe, first layer to last; says which layers have a bias.
        factors: From `gradient_factors`.
        multipliers: ``(..., n)``.

    Returns:
        A tensor like each parameter, weight before bias, layer by layer; ``(..., out, in)`` and
        ``(..., out)``.
    """
    sums = []
    for (_, bias), (q, activation) in zip(layers, factors, strict=True):
        weighted = q * multipliers[..., None]
        sums.append(weighted.mT @ activation)
        if bias is not None:
            sums.append(weighted.sum(-2))
    return sums


def parameter_list(layers: Layers) -> list[Tensor]:
    """The parameters in the order of `weighted_gradient`."""
    return [p for layer in layers for p in layer if p is not None]


def gram_matrix(layers: Layers, factors: Factors) -> tuple[Tensor, Tensor]:
    """Inner products of the gradients with each other and with the parameters.

    Args:
        layers: The probe, first layer to last.
        factors: From `gradient_factors`, for inputs ``(n, D)``.

    Returns:
        ``(n, n)`` and ``(n,)``.
    """
    size = len(factors[0][0])
    gram = factors[0][0].new_zeros(size, size)
    projection = factors[0][0].new_zeros(size)
    for (weight, bias), (q, activation) in zip(layers, factors, strict=True):
        outer = q @ q.T
        gram += outer * (activation @ activation.T)
        projection += (q * (activation @ weight.T)).sum(1)
        if bias is not None:
            gram += outer
            projection += q @ bias
    return gram, projection
