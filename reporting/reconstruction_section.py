"""What a report says about a reconstruction."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from reporting import figures
from reporting.page import Picture, Section, Table
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


def reconstruction_section(metrics: dict[str, Any], tensors: Mapping[str, Tensor]) -> Section:
    """The section about a finished evaluation.

    Args:
        metrics: Content of its ``metrics.json``.
        tensors: Content of its ``evaluation.safetensors``.

    Raises:
        KeyError: The metrics are not those of an evaluation.
    """
    lines = summary_lines(metrics)
    return Section(
        title="Training images recovered from a probe's weights",
        threat_model=THREAT_MODEL,
        headline=lines[0],
        tables=[_recovery_table(metrics), _facts_table(metrics)],
        figures=_pictures(tensors),
        caveats=CAVEATS,
        lines=lines,
    )


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


def _pictures(tensors: Mapping[str, Tensor]) -> list[Picture]:
    drawn, photos = [], []
    if "train_images" in tensors:
        grid = figures.reconstruction_grid(
            tensors["train_images"], tensors["recovered_images"], tensors["similarity"]
        )
        drawn.append((grid, "Each training image above its nearest candidate, most similar first."))
    if "closest_photo" in tensors:
        grid = figures.photo_grid(tensors["closest_photo"], tensors["closest_similarity"])
        caption = (
            "Originals of the training images whose embeddings the attack came closest to, and "
            "how close. They are not recovered images: those take an inversion."
        )
        photos.append(Picture.of(grid, caption, photos=True))
    scatter = figures.margin_scatter(tensors["similarity"], tensors["margin"], tensors["labels"])
    drawn.append((scatter, "Samples near the decision boundary shape the weights most."))
    histogram = figures.similarity_histogram(tensors["similarity"], tensors["held_out_similarity"])
    drawn.append((histogram, "Similarity to the nearest candidate: training and held-out samples."))
    if "sample_norm" in tensors:
        norms = figures.norm_comparison(
            tensors["similarity"], tensors["sample_norm"], tensors["candidate_norm"]
        )
        drawn.append((norms, "A candidate's norm is arbitrary; only its direction is recovered."))
    if "ssim" in tensors:
        pairs = figures.ssim_scatter(tensors["similarity"], tensors["ssim"])
        drawn.append((pairs, "Does cosine similarity tell which images look alike?"))
    if "residual_history" in tensors:
        curves = figures.residual_curves(tensors["residual_history"])
        drawn.append((curves, "How far each draw is from solving the stationarity equations."))
    return [*photos, *(Picture.of(figure, caption) for figure, caption in drawn)]
