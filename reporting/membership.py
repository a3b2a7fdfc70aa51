"""Tables and figures about membership inference."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What each attack is called in tables and figures, in the order of the rows.
LABELS = {
    "paper": "the paper's: reconstruction error, one mask",
    "many_masks": "error, mean of all masks",
    "all_patches": "error of all patches, mean of all masks",
    "matched": "error with the pool's decoder, threshold from matched shadows",
    "population": "the same, relative to population images",
    "calibrated": "calibrated by the shadow's error",
    "likelihood_ratio": "likelihood ratio over the shadows",
    "combined": "combined: calibrated error and mask consistency",
    "baseline_a": "baseline A: downstream posteriors",
    "baseline_b": "baseline B: embedding and internal features",
    "baseline_b_statistics": "baseline B, statistics of each block",
    "baseline_c": "baseline C: entropy of the embedding",
    "baseline_d": "baseline D: distance between embeddings under 10 random masks",
    "true_decoder": "upper bound of errors: the target's own decoder (no attack)",
}
COLUMNS = {
    "asr": "ASR",
    "auc": "AUC",
    "balanced_accuracy": "balanced accuracy",
    "tpr_at_1_fpr": "TPR at 1% FPR",
    "tpr_at_01_fpr": "TPR at 0.1% FPR",
    "tpr": "TPR",
    "fpr": "FPR",
    "asr_best_threshold": "ASR, best threshold in hindsight",
}
_WITH_INTERVAL = ("asr", "auc", "tpr_at_1_fpr", "tpr_at_01_fpr")


def ordered(names: Mapping[str, Any]) -> list[str]:
    """Names of attacks in the order of the tables."""
    return sorted(names, key=lambda name: list(LABELS).index(name) if name in LABELS else 99)


def columns(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Headings of the metrics that the number of non-members lets tell, by key."""
    return {key: title for key, title in COLUMNS.items() if key not in metrics.get("notes", {})}


def notes(metrics: Mapping[str, Any]) -> list[str]:
    """Why the other metrics are not shown."""
    return [f"{COLUMNS[key]}: {reason}" for key, reason in metrics.get("notes", {}).items()]


def attack_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    """A row of text for each attack.

    Args:
        metrics: Content of a membership ``metrics.json``.

    Returns:
        The attack's label and a cell for each of :func:`columns`.
    """
    rows = []
    for name in ordered(metrics["attacks"]):
        values = metrics["attacks"][name]
        cells = [LABELS.get(name, name)]
        for key in columns(metrics):
            cell = f"{values[key]:.3f}"
            if key in _WITH_INTERVAL:
                low, high = values["intervals"][key]
                cell += f" [{low:.2f}, {high:.2f}]"
            cells.append(cell)
        rows.append(cells)
    return rows


def membership_lines(metrics: Mapping[str, Any]) -> list[str]:
    """What the attacks reached, a line each."""
    lines = [
        f"{metrics['num_members']} members, {metrics['num_non_members']} non-members, "
        f"{metrics['num_masks']} masks; 95% intervals over images"
    ]
    for name in ordered(metrics["attacks"]):
        values = metrics["attacks"][name]
        intervals = {
            key: values["intervals"][key] for key in _WITH_INTERVAL if key in columns(metrics)
        }
        numbers = "  ".join(
            f"{COLUMNS[key]} {values[key]:.3f} [{low:.2f}, {high:.2f}]"
            for key, (low, high) in intervals.items()
        )
        lines.append(f"{LABELS.get(name, name):66s} {numbers}")
    return lines + notes(metrics)


def roc_figure(curves: Mapping[str, tuple[Tensor, Tensor]], num_non_members: int) -> "Figure":
    """ROC curves of all attacks on logarithmic axes, which show low false positive rates.

    Args:
        curves: False and true positive rates by attack.
        num_non_members: Tells the lowest rate that can be seen.

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 4.8), layout="constrained")
    axis = figure.subplots()
    low = min(0.5, 1 / num_non_members)
    axis.plot([low, 1], [low, 1], color="gray", linestyle="--", linewidth=1, label="chance")
    for number, name in enumerate(ordered(curves)):
        fpr, tpr = (rates.numpy() for rates in curves[name])
        style = "solid" if number < 10 else "dotted"
        # What is left of the lowest visible rate is drawn at it.
        axis.plot(
            np.maximum(fpr, low), np.maximum(tpr, low), linewidth=1.5, linestyle=style,
            label=LABELS.get(name, name), drawstyle="steps-post",
        )  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(low, 1)
    axis.set_ylim(low, 1.05)
    axis.set_xlabel("false positive rate")
    axis.set_ylabel("true positive rate")
    figure.legend(frameon=False, fontsize=7, loc="outside right center")
    return figure


def score_histogram(name: str, members: Tensor, non_members: Tensor, threshold: float) -> "Figure":
    """Scores of members beside those of non-members (the paper's Fig. 3).

    Args:
        name: Of the attack.
        members: Scores (m,).
        non_members: Scores (n,).
        threshold: Below which an image is called a member.

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axis = figure.subplots()
    both = np.concatenate([members.numpy(), non_members.numpy()])
    low, high = np.quantile(both, [0.005, 0.995])
    bins = np.linspace(low, max(high, low + 1e-9), 41).tolist()
    for scores, colour, label in (
        (non_members, "gray", "non-members"),
        (members, "tab:red", "members"),
    ):
        weights = np.full(len(scores), 1 / len(scores))
        clipped = scores.numpy().clip(bins[0], bins[-1])
        axis.hist(clipped, bins, weights=weights, alpha=0.6, color=colour, label=label)
    if bins[0] <= threshold <= bins[-1]:
        axis.axvline(threshold, color="black", linewidth=1, linestyle="--", label="threshold")
    axis.set_xlabel(f"score, {LABELS.get(name, name)}", fontsize=8)
    axis.set_ylabel("share of the images")
    axis.legend(frameon=False)
    return figure
