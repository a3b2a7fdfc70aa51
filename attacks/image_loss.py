"""What an inverted image is compared by.

Reconstructing Training Data From Real-World Models Trained with Transfer Learning, eq. 3, A.1, A.8.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

LossName = Literal["cosine", "mse"]


def embedding_loss(embeddings: Tensor, targets: Tensor, loss: LossName) -> tuple[Tensor, Tensor]:
    """How far embeddings are from their targets.

    Args:
        embeddings: (N, D).
        targets: (N, D).
        loss: ``"cosine"``, 1 - cos as in eq. 3, which does not depend on the targets' norms, or
            ``"mse"``, the mean square difference that A.1 compares it with.

    Returns:
        Loss (N,) and cosine similarity (N,).
    """
    similarity = F.cosine_similarity(embeddings, targets, dim=1)
    if loss == "cosine":
        return 1 - similarity, similarity
    return (embeddings - targets).square().mean(1), similarity


def class_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """How sure a probe is of the wrong thing (A.8).

    Args:
        logits: (N, C).
        labels: -1 and +1 where C is 1, else 0 … C-1 (N,).

    Returns:
        The probe's loss (N,), and the probability that it gives to the label (N,).
    """
    if logits.shape[1] == 1:
        margin = labels * logits.squeeze(1)
        return F.softplus(-margin), torch.sigmoid(margin)
    loss = F.cross_entropy(logits, labels, reduction="none")
    return loss, torch.exp(-loss)
