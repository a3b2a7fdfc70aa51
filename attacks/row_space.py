"""The space that weight decay leaves in a probe's first layer: the span of its training data.

Gradient steps add multiples of training inputs to the rows of the first weight matrix, and weight
decay shrinks what the initialisation left elsewhere. That rest is noise, whose singular values end
at an edge that random matrix theory gives (Marchenko and Pastur, 1967); what is above the edge was
written by training. The weights alone tell all this.
"""

import math

import torch
from torch import Tensor

# Singular values of noise scatter a little above the edge of infinitely large matrices.
SLACK = 1.05
# If more of the weights' norm than this is noise, the initialisation has not decayed.
LARGEST_REST = 0.05


def signal_rank(singular_values: Tensor, rows: int, columns: int) -> tuple[int, float]:
    """How many singular values of a weight matrix stand out of its noise.

    Args:
        singular_values: All of them, in descending order (min(rows, columns),).
        rows: Rows of the matrix.
        columns: Columns of the matrix.

    Returns:
        Their number k, and the share of the matrix's norm that is not theirs.
    """
    # Squared norm of what is left without the first k, for each k.
    rest = singular_values.square().flip(0).cumsum(0).flip(0)
    for k, value in enumerate(singular_values.tolist()):
        noise = math.sqrt(float(rest[k]) / (rows * (columns - k)))
        if value <= SLACK * noise * (math.sqrt(rows) + math.sqrt(columns - k)):
            return k, math.sqrt(float(rest[k] / rest[0].clamp_min(torch.finfo(rest.dtype).tiny)))
    return len(singular_values), 0.0


def row_space(weight: Tensor) -> Tensor | None:
    """An orthonormal basis of the span of the training data.

    Args:
        weight: First layer's weight matrix (W, D).

    Returns:
        Basis (k, D) of the dtype of ``weight``; None if the weights do not show that span: without
        weight decay, after too short a training, or with as many samples as dimensions.
    """
    _, singular_values, basis = torch.linalg.svd(weight.double(), full_matrices=False)
    rank, rest = signal_rank(singular_values, *weight.shape)
    if not 0 < rank < weight.shape[1] or rest > LARGEST_REST:
        return None
    chosen: Tensor = basis[:rank].to(weight)
    return chosen
