"""Equal weight for every hidden neuron of a probe in its stationarity equations."""

import torch
from torch import Tensor

# Neurons with almost no output weight would be blown up to noise.
SMALLEST_SHARE = 0.01


def neuron_scales(output_weight: Tensor) -> Tensor:
    """Size of each hidden neuron's output weight.

    Args:
        output_weight: Second layer's weight (C, W).

    Returns:
        Positive scales (W,), at least 1% of the largest.
    """
    scale: Tensor = torch.linalg.vector_norm(output_weight, dim=0)
    return scale.clamp_min(SMALLEST_SHARE * scale.max())


def equalised(
    layers: list[tuple[Tensor, Tensor | None]],
) -> list[tuple[Tensor, Tensor | None]]:
    """The same stationarity equations, each neuron's divided by its scale.

    In a network w₂·relu(W₁x) with one output, training vectors and multipliers solve
    W₁ⱼ = Σ λy w₂ⱼ·1[W₁ⱼx > 0]·x and w₂ⱼ = Σ λy relu(W₁ⱼx). Both keep their solutions when W₁ⱼ and
    w₂ⱼ are divided by the same positive number. With |w₂ⱼ| every neuron counts the same in the
    squared residual, where large ones would drown the others.

    Args:
        layers: (weight, bias or None) of both layers, the second with one output.

    Returns:
        The layers whose equations are solved instead. An output bias keeps its own.

    Raises:
        ValueError: There are not two layers with one output.
    """
    if len(layers) != 2 or len(layers[1][0]) != 1:
        raise ValueError("equalisation is exact for one hidden layer and one output only")
    (weight, bias), (output_weight, output_bias) = layers
    scale = neuron_scales(output_weight)
    return [
        (weight / scale[:, None], None if bias is None else bias / scale),
        (output_weight / scale, output_bias),
    ]
