"""The space that weight decay leaves in a probe's first layer: the span of its training data.

Gradient steps add multiples of training inputs to the rows of the first weight matrix, and weight
decay removes what the initialisation left elsewhere. A cliff in the singular values tells the
dimension of that span from the weights alone.
"""

import torch
from torch import Tensor

# A cliff separates what training wrote from what is left of the initialisation. Spectra of
# embeddings fall smoothly, by far less than this from one singular value to the next.
CLIFF = 8.0


def numerical_rank(singular_values: Tensor, cliff: float = CLIFF) -> int | None:
    """The dimension of the span of the training data, if the spectrum shows it.

    Args:
        singular_values: In descending order (k,).
        cliff: Ratio of neighbouring singular values that counts as a cliff.

    Returns:
        The number of singular values above the steepest cliff, or None without one: no weight
        decay, too short a training, or as many samples as dimensions.
    """
    tiny = torch.finfo(singular_values.dtype).tiny
    ratios = singular_values[:-1] / singular_values[1:].clamp_min(tiny)
    if len(ratios) == 0 or float(ratios.max()) < cliff:
        return None
    return int(ratios.argmax()) + 1


def row_space(weight: Tensor, cliff: float = CLIFF) -> Tensor | None:
    """An orthonormal basis of the span of the training data.

    Args:
        weight: First layer's weight matrix (W, D).
        cliff: See :func:`numerical_rank`.

    Returns:
        Basis (k, D) in float64 arithmetic, of the dtype of ``weight``; None if there is no cliff.
    """
    _, singular_values, basis = torch.linalg.svd(weight.double(), full_matrices=False)
    rank = numerical_rank(singular_values, cliff)
    return None if rank is None else basis[:rank].to(weight)
