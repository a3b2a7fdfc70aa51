"""What a report says about membership attacks on one target."""

import json
import math
from pathlib import Path
from typing import Any

from torch import Tensor

from artifacts.errors import InputError
from artifacts.membership_metrics import ALL_OF_AN_ATTACK, read_membership_metrics
from artifacts.tensors import MEMBERSHIP_SCORES, read_tensors
from attacks.membership import best_threshold, membership_metrics, roc_curve
from attacks.membership_suite import DEFAULT, UPPER_BOUND
from reporting import membership
from reporting.page import Picture, Section, Table

THREAT_MODEL = (
    "The attacker holds the released encoder, knows its mask ratio, and has images of the same "
    "kind that the encoder was not trained on. Shadow models are trained on those; every threshold "
    "and every classifier comes from them. Members of the target enter below only, to count."
)
CAVEATS = (
    "An attack that fails does not show that an image was not used: other attacks may succeed.",
    "An image that is called a member is not proven to be one: the false positive rate says how "
    "often the same is said of images that were not used, and only if these are of the same kind.",
    "Intervals are about which images were judged. Another training of target and shadows gives "
    "other numbers; repeat with several seeds before comparing attacks.",
    "If members and non-members differ otherwise (source, time, compression), any attack can look "
    "good without telling membership.",
)


def membership_section(path: Path) -> Section:
    """The section about finished membership attacks.

    Args:
        path: The ``metrics.json``.

    Raises:
        InputError: Something is missing or does not belong together.
    """
    metrics = read_membership_metrics(path, ALL_OF_AN_ATTACK)
    if "num_masks" not in metrics:
        raise InputError(f"{path} lacks num_masks; {MEMBERSHIP_SCORES.made_by}")
    return Section(
        title="Was an image in the encoder's pre-training set?",
        threat_model=THREAT_MODEL,
        headline=_headline(metrics),
        tables=_tables(metrics),
        figures=_pictures(path.parent, metrics),
        caveats=CAVEATS,
        lines=membership.membership_lines(metrics),
    )


def _headline(metrics: dict[str, Any]) -> str:
    """The main number: the default attack's, or the best one's of those that were run."""
    attacks = {name: value for name, value in metrics["attacks"].items() if name != UPPER_BOUND}
    name = DEFAULT if DEFAULT in attacks else max(attacks, key=lambda n: attacks[n]["asr"])
    values = attacks[name]
    low, high = values["intervals"]["asr"]
    return (
        f"{100 * values['asr']:.0f}% of the images judged rightly [{100 * low:.0f}, "
        f"{100 * high:.0f}], AUC {values['auc']:.2f} ({membership.LABELS.get(name, name)}); "
        "guessing gives 50% if members and non-members are as many"
    )


def _tables(metrics: dict[str, Any]) -> list[Table]:
    """All attacks, and where their thresholds come from."""
    attacks = metrics["attacks"]
    shadow = [
        [
            membership.LABELS.get(name, name),
            *(f"{attacks[name]['shadow'][key]:.3f}" for key in ("tpr", "fpr", "auc")),
            *(f"{attacks[name][key]:.3f}" for key in ("tpr", "fpr", "auc")),
        ]
        for name in membership.ordered(attacks)
    ]
    return [
        Table(
            "Attacks",
            ["attack", *membership.columns(metrics).values()],
            membership.attack_rows(metrics),
            f"{metrics['num_members']} members, {metrics['num_non_members']} non-members, "
            f"{metrics['num_masks']} masks; 95% intervals over images in brackets. "
            + " ".join(f"{note}." for note in membership.notes(metrics)),
        ),
        Table(
            "Does the shadow's threshold fit the target?",
            ["attack", "TPR, shadow", "FPR, shadow", "AUC, shadow", "TPR", "FPR", "AUC"],
            shadow,
            "Where the rates differ much, the threshold was carried over badly, and the ASR lies "
            "below what the AUC promises. Learned attacks have seen the shadow's images.",
        ),
    ]


def _scores(root: Path, metrics: dict[str, Any]) -> dict[str, tuple[Tensor, Tensor]]:
    """Scores of members (m,) and non-members (n,) by attack: those that the metrics were made of.

    Raises:
        InputError: What the scores give is not what the metrics say.
    """
    path = root / "scores.safetensors"
    tensors, metadata = read_tensors(path, MEMBERSHIP_SCORES)
    other_run = f"{path} is not of the run that {root / 'metrics.json'} is of, or one was edited"
    names = json.loads(metadata.get("attacks", "[]"))
    if set(names) != set(metrics["attacks"]) or len(names) != len(tensors["thresholds"]):
        raise InputError(f"{other_run}: they have other attacks")
    for key, scored in (("num_members", "members"), ("num_non_members", "non_members")):
        if tensors[scored].shape[1] != metrics[key]:
            raise InputError(
                f"{other_run}: it has scores of {tensors[scored].shape[1]} {scored}, not "
                f"{metrics[key]}"
            )
    scores = {}
    for index, name in enumerate(names):
        scores[name] = both = tensors["members"][index], tensors["non_members"][index]
        said = metrics["attacks"][name]
        given = {
            "threshold": float(tensors["thresholds"][index]),  # Of single precision.
            # At the exact threshold, which may lie very near a score.
            **membership_metrics(*both, said["threshold"]),
            "asr_best_threshold": membership_metrics(*both, best_threshold(*both))["asr"],
        }
        for key, value in given.items():
            if not math.isclose(said[key], value, rel_tol=1e-6, abs_tol=1e-9):
                raise InputError(
                    f"{other_run}: {key} of the attack '{name}' is {value:.6g} by the scores, "
                    f"{said[key]:.6g} by the metrics"
                )
    return scores


def _pictures(root: Path, metrics: dict[str, Any]) -> list[Picture]:
    """All attacks on one ROC figure, and the histograms of their scores."""
    scores = _scores(root, metrics)
    curves = {name: roc_curve(*both) for name, both in scores.items()}
    roc = membership.roc_figure(curves, metrics["num_non_members"])
    pictures = [Picture.of(roc, "All attacks, both axes in logs.")]
    for name in membership.ordered(scores):
        threshold = metrics["attacks"][name]["threshold"]
        drawn = membership.score_histogram(name, *scores[name], threshold)
        caption = f"Scores by {membership.LABELS.get(name, name)}: lower is likelier a member."
        pictures.append(Picture.of(drawn, caption, dpi=70))
    return pictures
