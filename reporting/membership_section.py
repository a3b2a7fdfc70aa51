"""What a report says about membership inference."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from reporting.membership import (
    COLUMNS,
    LABELS,
    attack_rows,
    ordered,
    roc_figure,
    score_histogram,
)
from reporting.page import Picture, Section, Table

THREAT_MODEL = (
    "The attacker holds the pre-trained encoder and images of its own, not the encoder's decoder "
    "nor its training images: decoders, thresholds and classifiers come from shadow models trained "
    "on the attacker's images. Members and non-members enter below only, to count what was told."
)
CAVEATS = (
    "An accuracy near 0.5 does not make an encoder safe: a stronger attack may tell more, and an "
    "average hides the few images that are told apart with near certainty; see the rates at low "
    "false positive rates.",
    "The intervals are over images, for these models: other training runs differ by more.",
    "Members and non-members came from one distribution. Where yours do not, an attack may tell "
    "the distributions apart and not membership.",
)
# The attack a headline is about: the strongest that learns from shadow data alone.
HEADLINE_ATTACKS = ("combined", "calibrated", "paper")


def membership_section(
    metrics: Mapping[str, Any],
    scores: Mapping[str, tuple[Tensor, Tensor]],
    curves: Mapping[str, tuple[Tensor, Tensor]],
) -> Section:
    """The section about finished membership attacks.

    Args:
        metrics: Content of their ``metrics.json``.
        scores: Scores of members (m,) and non-members (n,) by attack.
        curves: False and true positive rates by attack.

    Raises:
        KeyError: The metrics are not those of membership attacks.
    """
    attacks = metrics["attacks"]
    chosen = next((name for name in HEADLINE_ATTACKS if name in attacks), next(iter(attacks)))
    figures = [
        Picture.of(
            roc_figure(curves, metrics["num_non_members"]),
            "How many members each attack finds, by how many non-members it calls members.",
        )
    ]
    figures += [
        Picture.of(
            score_histogram(name, *scores[name], attacks[name]["threshold"]),
            f"Scores of members and non-members: {LABELS.get(name, name)}.",
        )
        for name in ordered(attacks)
        if name in (chosen, "paper")
    ]
    return Section(
        title="Membership of images in an encoder's pre-training set",
        threat_model=THREAT_MODEL,
        headline=f"{_headline(attacks[chosen])} ({LABELS.get(chosen, chosen)})",
        tables=[
            Table(
                title="Attacks",
                header=["attack", *COLUMNS.values()],
                rows=attack_rows(metrics),
                note=f"{metrics['num_members']} members, {metrics['num_non_members']} "
                f"non-members, {metrics['num_masks']} masks; in brackets 95% intervals over "
                "images. ASR 0.5 is a coin's. A dash: too few non-members for the rate.",
            )
        ],
        figures=figures,
        caveats=CAVEATS,
    )


def _headline(values: Mapping[str, Any]) -> str:
    words = []
    for key, label in (("asr", "ASR"), ("auc", "AUC")):
        low, high = values["intervals"][key]
        words.append(f"{label} {values[key]:.2f} [{low:.2f}, {high:.2f}]")
    return ", ".join(words)
