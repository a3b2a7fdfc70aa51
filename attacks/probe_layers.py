"""A probe as plain tensors, which is all that an attack on it sees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Layers = Sequence[tuple[Tensor, Tensor | None]]
"""Weight ``(out, in)`` and bias ``(out,)`` or None of each layer, first to last."""


def probe_outputs(layers: Layers, inputs: Tensor) -> Tensor:
    """Outputs of the probe with its ordinary ReLU.

    Args:
        layers: The probe, first layer to last.
        inputs: Inputs of the probe, ``(..., D)``.

    Returns:
        Outputs before any sigmoid or softmax, ``(..., C)``.
    """
    *hidden, last = layers
    for weight, bias in hidden:
        inputs = torch.nn.functional.linear(inputs, weight, bias).relu()
    outputs: Tensor = torch.nn.functional.linear(inputs, *last)
    return outputs


def parameter_norm(layers: Layers) -> Tensor:
    """Euclidean norm of all parameters together, biases included.

    Args:
        layers: The probe, first layer to last.

    Returns:
        ``||theta||``, a scalar tensor.
    """
    parameters = [p.detach().flatten() for layer in layers for p in layer if p is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.cat(parameters))
    return norm
