"""Which draws of a reconstruction to trust, from what an attacker sees.

A draw that found training samples found some that other draws found too: chance does not repeat
itself. The KKT residual alone does not tell, since equations can be solved by vectors that were
never trained on.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

# Candidates of two draws that are more alike than this repeat each other.
REPEATS = 0.8


def agreement(candidates: Tensor, labels: Tensor, threshold: float = REPEATS) -> Tensor:
    """Share of each draw's candidates that some other draw repeats.

    Args:
        candidates: (R, m, D).
        labels: (m,); only candidates of one label are compared.
        threshold: Cosine similarity above which a candidate repeats another.

    Returns:
        Shares (R,); zeros for a single draw.
    """
    unit = F.normalize(candidates, dim=2)
    num_draws = len(unit)
    repeated = torch.zeros(unit.shape[:2], dtype=torch.bool, device=unit.device)
    for label in torch.unique(labels):
        chosen = torch.nonzero(labels == label).squeeze(1)
        for draw in range(num_draws):
            for other in range(draw):
                near = unit[draw, chosen] @ unit[other, chosen].T > threshold
                repeated[draw, chosen] |= near.any(dim=1)
                repeated[other, chosen] |= near.any(dim=0)
    return repeated.float().mean(dim=1)


def multiplier_spread(multipliers: Tensor) -> Tensor:
    """Coefficient of variation of each draw's multipliers.

    Args:
        multipliers: (R, m).

    Returns:
        Standard deviation over mean (R,).
    """
    return multipliers.std(dim=1) / multipliers.mean(dim=1).clamp_min(1e-12)


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Spearman's rank correlation, 0 where one of the two does not vary.

    Args:
        first: (R,).
        second: (R,).
    """
    from scipy.stats import spearmanr

    if len(first) < 3 or bool((first == first[0]).all()) or bool((second == second[0]).all()):
        return 0.0
    return float(spearmanr(first.cpu().numpy(), second.cpu().numpy()).statistic)
