"""The HTML report about a finished reconstruction."""

import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor

from artifacts.errors import InputError
from artifacts.files import atomic_path, read_json
from artifacts.tensors import EVALUATION, package_version, read_tensors
from reporting import figures
from reporting.page import Page, Picture, Table, render
from reporting.summary import summary_lines

THREAT_MODEL = (
    "The attacker holds the probe's weights and no training data: candidates come from the "
    "stationarity equations of the trained weights, and the attacker's own choice among them from "
    "clustering. The training set enters below only, to count what was found."
)
COUNTED = ("recovered", "null_held_out", "null_random")
CAVEATS = (
    "A count means little without its null: similar images that were never trained on, and random "
    "directions of the space that the weights span, also come near training samples.",
    "Few recovered images do not make a model safe: a stronger attack or more draws may find more.",
    "The counts hold for this training set, architecture and weight decay.",
)


def report(metrics: str, output: str | None = None) -> None:
    """Writes one self-contained HTML page about a finished evaluation.

    Args:
        metrics: The ``metrics.json`` of an evaluation stage, in its run directory.
        output: The page to write; by default ``report.html`` beside it.

    Raises:
        InputError: The evaluation is not finished or broken, or the page cannot be written.
    """
    root = Path(metrics).parent
    counted = read_json(metrics, what="metrics file", made_by=EVALUATION.made_by)
    tensors, _ = read_tensors(root / "evaluation.safetensors", EVALUATION)
    if not isinstance(counted, dict) or not {"num_train", "candidates"} <= counted.keys():
        raise InputError(
            f"{metrics} is not the metrics file of an evaluation; {EVALUATION.made_by}"
        )
    target = Path(output) if output is not None else root / "report.html"
    try:
        lines = summary_lines(counted)
        tables = [_recovery_table(counted), _facts_table(counted)]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{metrics} is not the metrics file of an evaluation ({error!r}); {EVALUATION.made_by}"
        ) from error
    page = Page(
        title="Training images recovered from a probe's weights",
        threat_model=THREAT_MODEL,
        headline=lines[0],
        tables=tables,
        figures=_pictures(tensors),
        caveats=CAVEATS,
        versions=f"afterimage {package_version()}, torch {torch.__version__}, "
        f"lightning {lightning.__version__}",
        configs=[
            (str(path.relative_to(root.parent)), path.read_text(encoding="utf-8"))
            for path in sorted(root.parent.glob("*/config*.yaml"))
            if ".previous" not in path.parent.name
        ],
    )
    with atomic_path(target) as temporary:
        temporary.write_text(render(page), encoding="utf-8")
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.write(f"the report is {target}\n")


def _recovery_table(metrics: dict[str, Any]) -> Table:
    rows = [
        [
            "all candidates" if name == "candidates" else "the attacker's own choice",
            str(metrics[name]["count"]),
            threshold,
            *(str(counts[key]) for key in COUNTED),
        ]
        for name in ("candidates", "representatives")
        if name in metrics
        for threshold, counts in metrics[name]["cosine"].items()
    ]
    return Table(
        title="Recovered training images",
        header=["vectors", "number", "cosine >", "recovered", "null: held out", "null: random"],
        rows=rows,
        note=f"Of {metrics['num_train']} training samples. Both nulls count the same way: as many "
        "held-out samples in place of the training samples, and random directions of the first "
        "layer's row space in place of the candidates.",
    )


def _facts_table(metrics: dict[str, Any]) -> Table:
    test = f"{metrics['test_accuracy']:.3f} ({metrics['num_test']} samples)"
    rows = [
        ["probe's training accuracy", f"{metrics['train_accuracy']:.3f}"],
        ["probe's test accuracy", test],
        ["draws", f"{metrics['draws']}, diverged: {metrics['diverged_draws']}"],
        ["lowest relative KKT residual", f"{metrics['best_residual']:.4f}"],
    ]
    for name, row in metrics.get("ssim", {}).items():
        count = f"{row['above_0.4']} of {metrics['num_train']}"
        rows.append([f"SSIM of the pairs, {name}", f"mean {row['mean']:.3f}; above 0.4: {count}"])
    for threshold, share in metrics.get("representatives", {}).get("precision", {}).items():
        name = f"share of the attacker's choice within {threshold} of a training sample"
        rows.append([name, f"{share:.2f}"])
    note = "Where SSIM's nulls are as high as its own count, it tells nothing."
    return Table(title="The run", header=["what", "value"], rows=rows, note=note)


def _pictures(tensors: dict[str, Tensor]) -> list[Picture]:
    drawn = []
    if "train_images" in tensors:
        grid = figures.reconstruction_grid(
            tensors["train_images"], tensors["recovered_images"], tensors["similarity"]
        )
        drawn.append((grid, "Each training image above its nearest candidate, most similar first."))
    scatter = figures.margin_scatter(tensors["similarity"], tensors["margin"], tensors["labels"])
    drawn.append((scatter, "Samples near the decision boundary shape the weights most."))
    histogram = figures.similarity_histogram(tensors["similarity"], tensors["held_out_similarity"])
    drawn.append((histogram, "Similarity to the nearest candidate: training and held-out samples."))
    if "residual_history" in tensors:
        curves = figures.residual_curves(tensors["residual_history"])
        drawn.append((curves, "How far each draw is from solving the stationarity equations."))
    return [
        Picture(figures.data_uri(figures.png_bytes(figure)), caption) for figure, caption in drawn
    ]
