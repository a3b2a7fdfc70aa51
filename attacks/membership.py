"""How well scores tell members from non-members, and where to put the threshold.

Membership Inference Attack Against Masked Image Modeling: an image is called a member if its score
is *below* a threshold that shadow data gave. All scores here are lower for likelier members.
"""

import math

import torch
from torch import Tensor

# What is measured beyond the attack success rate, by the name under which it is reported.
METRICS = ("asr", "balanced_accuracy", "auc", "tpr_at_1_fpr", "tpr_at_01_fpr", "fpr", "tpr")
LOW_FPR = {"tpr_at_1_fpr": 0.01, "tpr_at_01_fpr": 0.001}


def membership_metrics(
    member_scores: Tensor, non_member_scores: Tensor, threshold: float
) -> dict[str, float]:
    """Success of an attack whose scores are lower for likelier members.

    Args:
        member_scores: Scores of images that the model was trained on (m,).
        non_member_scores: Scores of images that it was not trained on (n,).
        threshold: An image is called a member if its score is below.

    Returns:
        ``asr``: share of all images judged rightly (the paper's attack success rate);
        ``balanced_accuracy``: the same with members and non-members weighing equally; ``auc``:
        probability that a random member scores below a random non-member, ties counting half;
        ``tpr_at_1_fpr`` and ``tpr_at_01_fpr``: the highest share of members found by a threshold
        that calls at most 1 % or 0.1 % of the non-members members; ``fpr`` and ``tpr`` at
        ``threshold``.

    Raises:
        ValueError: Scores are empty, of more than one dimension, or hold NaN or infinity; or the
            threshold is NaN.
    """
    members, non_members = _checked(member_scores, non_member_scores)
    if math.isnan(threshold):
        raise ValueError("the threshold is NaN")
    measured = _measure(members, non_members, threshold)
    return {name: float(measured[name]) for name in METRICS}


def bootstrap_intervals(
    member_scores: Tensor,
    non_member_scores: Tensor,
    threshold: float,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of every metric over images drawn anew.

    Members and non-members are resampled apart, with replacement, so that their numbers stay. The
    interval is about *which images* were judged: that another model would have been trained is
    not in it.

    Args:
        member_scores: (m,).
        non_member_scores: (n,).
        threshold: As in :func:`membership_metrics`.
        level: Probability that the interval should hold.
        resamples: Number of resampled sets.
        seed: Of the resampling.

    Returns:
        Lowest and highest value of each metric.

    Raises:
        ValueError: As :func:`membership_metrics`.
    """
    members, non_members = _checked(member_scores, non_member_scores)
    generator = torch.Generator().manual_seed(seed)
    drawn: dict[str, list[Tensor]] = {name: [] for name in METRICS}
    # A few at a time: thousands of images a thousand times over would not fit in memory.
    step = max(1, min(resamples, 10_000_000 // (len(members) + len(non_members))))
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        picked = [
            scores[torch.randint(len(scores), (count, len(scores)), generator=generator)]
            for scores in (members, non_members)
        ]
        for name, value in _measure(picked[0], picked[1], threshold).items():
            drawn[name].append(value)
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    intervals = {name: torch.cat(values).quantile(tails) for name, values in drawn.items()}
    return {name: (float(low), float(high)) for name, (low, high) in intervals.items()}


def best_threshold(member_scores: Tensor, non_member_scores: Tensor) -> float:
    """The threshold of the highest balanced accuracy: the ROC's point furthest from chance.

    This is the paper's "optimal threshold at which the shadow encoder can distinguish members from
    non-members". It lies half-way between two neighbouring scores; of several, the lowest is taken.

    Args:
        member_scores: Scores of the shadow's training images (m,).
        non_member_scores: Scores of its held-out images (n,).

    Returns:
        The threshold.

    Raises:
        ValueError: As :func:`membership_metrics`.
    """
    members, non_members = _checked(member_scores, non_member_scores)
    values = torch.unique(torch.cat([members, non_members]))
    between = (values[:-1] + values[1:]) / 2
    # Below all scores nobody is called a member, above all everybody.
    candidates = torch.cat([values[:1] - 1, between, values[-1:] + 1])
    tpr = torch.searchsorted(members.sort().values, candidates) / len(members)
    fpr = torch.searchsorted(non_members.sort().values, candidates) / len(non_members)
    return float(candidates[int((tpr - fpr).argmax())])


def roc_curve(member_scores: Tensor, non_member_scores: Tensor) -> tuple[Tensor, Tensor]:
    """False and true positive rate at every threshold, from (0, 0) to (1, 1).

    Args:
        member_scores: (m,).
        non_member_scores: (n,).

    Returns:
        ``fpr`` and ``tpr`` (t,), both ascending, float64.

    Raises:
        ValueError: As :func:`membership_metrics`.
    """
    members, non_members = _checked(member_scores, non_member_scores)
    values = torch.unique(torch.cat([members, non_members]))
    rates = [
        torch.searchsorted(scores.sort().values, values, right=True) / len(scores)
        for scores in (non_members, members)
    ]
    start = torch.zeros(1, dtype=torch.float64)
    return torch.cat([start, rates[0].double()]), torch.cat([start, rates[1].double()])


def unresolvable_rates(num_non_members: int) -> dict[str, str]:
    """Metrics at a false positive rate that so few non-members cannot show, with the reason.

    Not one false positive is allowed there, so what is measured is the rate at FPR 0, and depends
    on a single non-member.

    Args:
        num_non_members: How many were judged.

    Returns:
        Of ``tpr_at_1_fpr`` (below 100 non-members) and ``tpr_at_01_fpr`` (below 1,000) those that
        cannot be told, by name.
    """
    return {
        name: f"not resolvable with {num_non_members} non-members"
        for name, rate in LOW_FPR.items()
        if num_non_members < round(1 / rate)
    }


def _checked(member_scores: Tensor, non_member_scores: Tensor) -> tuple[Tensor, Tensor]:
    for name, scores in (("member", member_scores), ("non-member", non_member_scores)):
        if scores.dim() != 1 or len(scores) == 0:
            raise ValueError(f"{name} scores must be a non-empty vector, got {list(scores.shape)}")
        if not bool(torch.isfinite(scores).all()):
            raise ValueError(f"{name} scores hold NaN or infinity")
    return member_scores.detach().double().cpu(), non_member_scores.detach().double().cpu()


def _measure(members: Tensor, non_members: Tensor, threshold: float) -> dict[str, Tensor]:
    """Metrics of each row of scores (…, m) and (…, n)."""
    num_members, num_non_members = members.shape[-1], non_members.shape[-1]
    ordered = non_members.sort(-1).values
    below = torch.searchsorted(ordered, members.contiguous())
    not_above = torch.searchsorted(ordered, members.contiguous(), right=True)
    tpr = (members < threshold).double().mean(-1)
    fpr = (non_members < threshold).double().mean(-1)
    right = tpr * num_members + (1 - fpr) * num_non_members
    measured = {
        "asr": right / (num_members + num_non_members),
        "balanced_accuracy": (tpr + 1 - fpr) / 2,
        "auc": 1 - (below + not_above).double().mean(-1) / (2 * num_non_members),
    }
    for name, rate in LOW_FPR.items():
        # The lowest score at which one non-member too many would be called a member.
        allowed = math.floor(rate * num_non_members + 1e-9)
        measured[name] = (members < ordered[..., allowed, None]).double().mean(-1)
    return {**measured, "fpr": fpr, "tpr": tpr}
