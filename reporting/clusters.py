"""How many representatives are good, by number of clusters."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reporting.page import Picture, Section, Table, table_lines
from reporting.reconstruction_section import THREAT_MODEL
from reporting.sweep import Estimate, estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# By name of the representatives: estimates (K,) by measure.
Curves = Mapping[str, Mapping[str, Sequence[Estimate]]]

_NULL = "_null_held_out"
_MEASURES = {"ssim": ("SSIM", "-"), "cosine": ("cosine", "--")}
_COLOURS = {"mean": "tab:red", "nearest": "tab:blue"}
_MEANING = {"mean": "average of the cluster", "nearest": "candidate nearest to it"}
_PAPER = (
    "For a CIFAR-10 model of 500 images, 50,000 candidates are clustered and the 150 largest "
    "clusters represented (section 5). Beyond a small number of clusters any number gives many "
    "good representatives.",
    "By SSIM the most are good at 3,294 clusters (A.7); with many more the largest clusters are "
    "ever less those of training images, and the count falls.",
    "Averages of clusters are better than the candidates nearest to them (A.7). The counts "
    "themselves are curves without printed numbers.",
)
_CAVEATS = (
    "Which number of clusters is best is read off the training set. An attacker does not see it, "
    "and with the number chosen here the count is the best case.",
    "Several representatives may be of one training image: the distinct ones say how many images "
    "are found.",
    "A count means little without its null, the same count for images that were never trained on; "
    "where SSIM's is as high, SSIM tells nothing.",
    "The paper's counts are for its data and sizes; with other ones only the curves' course can be "
    "compared.",
)


def clusters_section(runs: Sequence[Mapping[str, Any]]) -> Section:
    """The section about one or more evaluations of cluster numbers (Fig. 7 and 16 of the paper).

    Args:
        runs: Contents of their ``metrics.json``, which differ in the seed only.

    Raises:
        ValueError: They are of other numbers of clusters, samples or representatives, or a curve
            is not of these; likewise KeyError, TypeError.
    """
    first = runs[0]
    for name in ("maxclust", "top", "num_train", "threshold", "ranking"):
        if any(run[name] != first[name] for run in runs):
            raise ValueError(f"the runs differ in {name}")
    maxclust, top = [int(count) for count in first["maxclust"]], int(first["top"])
    curves = _over_runs(runs, len(maxclust))
    threshold = {name: float(value) for name, value in first["threshold"].items()}
    table = _peaks(maxclust, curves, threshold)
    headline = _headline(maxclust, top, curves, threshold["cosine"])
    caption = (
        f"Good representatives among the {top} best clusters by {first['ranking']}, for "
        f"{first['num_train']} training images; {len(runs)} runs"
        + (", bands are 95% intervals." if len(runs) > 1 else ".")
    )
    return Section(
        title="Figs. 7 and 16: the number of clusters",
        threat_model=THREAT_MODEL,
        headline=headline,
        tables=[table],
        figures=[Picture.of(cluster_count_curves(maxclust, curves), caption)],
        paper=_PAPER,
        caveats=_CAVEATS,
        lines=[headline, *table_lines(table)],
    )


def run_curves(run: Mapping[str, Any]) -> Curves:
    """The curves of one run."""
    return _over_runs([run], len(run["maxclust"]))


def _over_runs(runs: Sequence[Mapping[str, Any]], length: int) -> Curves:
    curves: dict[str, dict[str, list[Estimate]]] = {}
    for name, measures in runs[0]["curves"].items():
        curves[name] = {}
        for measure in measures:
            values = np.array([run["curves"][name][measure] for run in runs], dtype=float)
            if values.shape != (len(runs), length) or not np.isfinite(values).all():
                raise ValueError(f"curve {name}/{measure} is not of {length} numbers")
            curves[name][measure] = [estimate(counts) for counts in values.T.tolist()]
    if not curves:
        raise ValueError("no curves")
    return curves


def _best(curve: Mapping[str, Sequence[Estimate]], measure: str) -> int:
    """Where most are good by a measure."""
    return max(range(len(curve[measure])), key=lambda place: curve[measure][place].mean)


def _headline(maxclust: Sequence[int], top: int, curves: Curves, threshold: float) -> str:
    name = max(curves, key=lambda n: curves[n]["cosine"][_best(curves[n], "cosine")].mean)
    curve = curves[name]
    best = _best(curve, "cosine")
    count, null = (curve[measure][best].rounded(1) for measure in ("cosine", "cosine" + _NULL))
    return (
        f"With {maxclust[best]:,} clusters {count} of {top} representatives are near a training "
        f"image (cosine > {threshold:g}), and {null} near a held-out one"
    )


def _peaks(maxclust: Sequence[int], curves: Curves, threshold: Mapping[str, float]) -> Table:
    rows = []
    for name, curve in curves.items():
        for measure, (title, _) in _MEASURES.items():
            if measure in curve:
                best = _best(curve, measure)
                numbers = [curve[m][best] for m in (measure, measure + _NULL, "distinct")]
                rows.append(
                    [
                        _MEANING.get(name, name),
                        f"{title} > {threshold[measure]:g}",
                        f"{maxclust[best]:,}",
                        *(number.rounded(1) for number in numbers),
                    ]
                )
    return Table(
        "Where most representatives are good",
        ["kind", "good is", "clusters", "good", "held out (null)", "distinct"],
        rows,
        "Kinds of representatives of a cluster. Distinct: training images with a representative "
        "near in cosine similarity. ± is half of the 95% interval of the mean over runs "
        "(Student's t).",
    )


def cluster_count_curves(maxclust: Sequence[int], curves: Curves) -> "Figure":
    """Good representatives by number of clusters (the paper's Fig. 7 and 16).

    Args:
        maxclust: Numbers of clusters (K,).
        curves: For each kind of representative, by measure (``cosine``, ``ssim``; with
            ``_null_held_out`` the same for held-out samples), the numbers of good ones (K,).

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    for name, curve in curves.items():
        for measure, (title, style) in _MEASURES.items():
            for suffix, colour in (("", _COLOURS.get(name, "tab:green")), (_NULL, "gray")):
                if measure + suffix not in curve:
                    continue
                numbers = curve[measure + suffix]
                mean = np.array([number.mean for number in numbers])
                half = np.array([n.half_width if n.count > 1 else 0.0 for n in numbers])
                label = f"{name}, {title}" if not suffix else f"held out, {title}"
                known = label in axis.get_legend_handles_labels()[1]
                axis.plot(maxclust, mean, style, color=colour, label=None if known else label)
                axis.fill_between(maxclust, mean - half, mean + half, color=colour, alpha=0.15)
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("number of clusters")
    axis.set_ylabel("good representatives")
    axis.legend(frameon=False, fontsize=9)
    return figure
