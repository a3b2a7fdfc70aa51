"""Figures about a reconstruction, as matplotlib objects that no global state holds."""

import base64
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def reconstruction_grid(
    train: Tensor, recovered: Tensor, similarity: Tensor, columns: int = 10
) -> "Figure":
    """Training images above their reconstructions, most similar first.

    Args:
        train: Training images (n, C, H, W) in [0, 1].
        recovered: The nearest candidate of each, as an image of the same shape.
        similarity: Cosine similarity of each pair (n,), in embedding space.
        columns: Pairs in a row.

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    order = similarity.argsort(descending=True).tolist()
    columns = min(columns, len(order))
    rows = -(-len(order) // columns)
    figure = Figure(figsize=(columns * 0.85, rows * 1.95), layout="constrained")
    axes = figure.subplots(2 * rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for position, index in enumerate(order):
        row, column = divmod(position, columns)
        pair = (train[index], recovered[index])
        for axis, image in zip(axes[2 * row : 2 * row + 2, column], pair, strict=True):
            pixels = image.permute(1, 2, 0).cpu().numpy()
            axis.imshow(pixels.squeeze(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes[2 * row, column].set_title(f"{similarity[index]:.2f}", fontsize=8, pad=2)
    figure.suptitle("training image above its reconstruction; cosine similarity", fontsize=9)
    return figure


def photo_grid(photos: Tensor, similarity: Tensor, columns: int = 10) -> "Figure":
    """Training photographs with how near the attack's vectors came to their embeddings.

    Args:
        photos: (k, 3, s, s) in [0, 1].
        similarity: Cosine similarity of the nearest candidate to each one's embedding (k,).
        columns: Photographs in a row.

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    columns = min(columns, len(photos))
    rows = -(-len(photos) // columns)
    figure = Figure(figsize=(max(columns, 4) * 0.95, rows * 1.15 + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, photo, value in zip(axes.flat, photos, similarity.tolist(), strict=False):
        axis.imshow(photo.permute(1, 2, 0).clamp(0, 1).cpu().numpy())
        axis.set_title(f"{value:.2f}", fontsize=8, pad=2)
    figure.suptitle("training images (originals); similarity of their embeddings", fontsize=9)
    return figure


def inversion_grid(
    evaluation: Mapping[str, Tensor], columns: int = 8, *, by_target: bool = True
) -> "Figure":
    """Training images above what was recovered of them, the nearest targets first (Fig. 8).

    Args:
        evaluation: ``train_images`` and ``images`` (k, 3, S, S) in [0, 1], and perhaps
            ``original_images``, inversions of the true embeddings; (k,) each:
            ``target_similarity`` of the recovered vector to the training image's embedding, and
            ``attacked_similarity`` and perhaps ``second_similarity`` of a picture's own, with
            ``original_`` before it for the originals.
        columns: Training images in a row.
        by_target: Whether pictures are inversions of vectors, or what the probe is sure of.

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    sets = {"train_images": "training image"}
    if "original_images" in evaluation:
        sets["original_images"] = "inversion of its embedding"
    sets["images"] = "inversion of the target" if by_target else "picture"
    networks = [n for n in ("attacked", "second") if f"{n}_similarity" in evaluation]
    order = evaluation["target_similarity"].argsort(descending=True).tolist()
    columns = min(columns, len(order))
    rows = -(-len(order) // columns)
    height = rows * len(sets) * 1.4 + 0.8
    figure = Figure(figsize=(max(columns, 4) * 1.2, height), layout="constrained")
    axes = figure.subplots(len(sets) * rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for position, index in enumerate(order):
        row, column = divmod(position, columns)
        for at, name in enumerate(sets):
            axis = axes[len(sets) * row + at, column]
            pixels = evaluation[name][index].permute(1, 2, 0).clamp(0, 1)
            axis.imshow(pixels.float().cpu().numpy())
            prefix = "original_" if name == "original_images" else ""
            keys = [f"{prefix}{network}_similarity" for network in networks]
            if name == "train_images":
                keys = ["target_similarity"]
            numbers = [f"{evaluation[key][index]:.2f}" for key in keys]
            axis.set_title(" · ".join(numbers), fontsize=8, pad=2)
    figure.suptitle(
        "\n".join(sets.values())
        + f"\nnumbers: similarity of the {'target' if by_target else 'picture'}, and of"
        + "\nthe pictures by the "
        + " · ".join(f"{network} network" for network in networks),
        fontsize=7,
    )
    return figure


def norm_comparison(similarity: Tensor, sample_norm: Tensor, candidate_norm: Tensor) -> "Figure":
    """Norms of training samples and of their nearest candidates (the paper's Fig. 10).

    Args:
        similarity: Cosine similarity of each pair (n,).
        sample_norm: (n,).
        candidate_norm: (n,).

    Returns:
        The figure: the norms beside each other, and their ratio.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    norms, ratios = figure.subplots(1, 2)
    x = similarity.cpu()
    norms.scatter(x, sample_norm.cpu(), s=14, color="tab:red", label="training sample")
    norms.scatter(x, candidate_norm.cpu(), s=14, color="tab:blue", label="nearest candidate")
    norms.set_ylabel("norm")
    norms.legend(frameon=False)
    ratios.scatter(x, (candidate_norm / sample_norm).cpu(), s=14, color="tab:gray")
    ratios.axhline(1, color="gray", linewidth=1, linestyle="--")
    ratios.set_ylabel("norm of the candidate / of the sample")
    for axis in (norms, ratios):
        axis.set_yscale("log")
        axis.set_xlabel("cosine similarity")
    return figure


def ssim_scatter(similarity: Tensor, ssim: Tensor) -> "Figure":
    """SSIM of each image and its reconstruction against their cosine similarity (Fig. 11).

    Args:
        similarity: Cosine similarity (n,).
        ssim: Structural similarity (n,).

    Returns:
        The figure, with the thresholds of A.2.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axis = figure.subplots()
    axis.scatter(similarity.cpu(), ssim.cpu(), s=14)
    axis.axvline(0.75, color="gray", linewidth=1, linestyle="--")
    axis.axhline(0.4, color="gray", linewidth=1, linestyle="--")
    axis.set_xlabel("cosine similarity")
    axis.set_ylabel("SSIM")
    return figure


def margin_scatter(similarity: Tensor, margin: Tensor, labels: Tensor) -> "Figure":
    """Similarity of each training sample's reconstruction against its margin (the paper's Fig. 5).

    Args:
        similarity: (n,).
        margin: Distance of the probe's output from the decision boundary (n,).
        labels: (n,).

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axis = figure.subplots()
    for label in sorted(set(labels.tolist())):
        chosen = labels == label
        axis.scatter(margin[chosen].cpu(), similarity[chosen].cpu(), s=18, label=f"class {label}")
    axis.axhline(0.75, color="gray", linewidth=1, linestyle="--")
    axis.set_xlabel("margin of the training sample")
    axis.set_ylabel("cosine similarity of its reconstruction")
    axis.legend(frameon=False)
    return figure


def similarity_histogram(similarity: Tensor, held_out: Tensor) -> "Figure":
    """Similarities of training samples beside those of samples that were not trained on.

    Args:
        similarity: Of training samples (n,).
        held_out: Of held-out samples (h,).

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axis = figure.subplots()
    low = min(float(similarity.min()), float(held_out.min()), 0.0)
    bins = np.linspace(low, 1.0, 31).tolist()
    axis.hist(held_out.cpu().numpy(), bins=bins, alpha=0.6, color="gray", label="held out (null)")
    axis.hist(similarity.cpu().numpy(), bins=bins, alpha=0.7, color="tab:red", label="training")
    axis.axvline(0.75, color="gray", linewidth=1, linestyle="--")
    axis.set_xlabel("cosine similarity to the nearest candidate")
    axis.set_ylabel("samples")
    axis.legend(frameon=False)
    return figure


def residual_curves(history: Tensor) -> "Figure":
    """Relative KKT residual of every draw along the iterations.

    Args:
        history: (T, R), evenly spaced over the run.

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axis = figure.subplots()
    axis.plot(np.linspace(0, 100, len(history) + 1)[1:], history.cpu().numpy(), linewidth=1)
    axis.set_yscale("log")
    axis.set_xlabel("percent of the iterations")
    axis.set_ylabel("relative KKT residual, one line a draw")
    return figure


def png_bytes(figure: "Figure", dpi: int = 110) -> bytes:
    """The figure as a PNG file's content."""
    return _bytes(figure, dpi, "png")


def jpeg_bytes(figure: "Figure", dpi: int = 110) -> bytes:
    """The figure as a JPEG file's content, where photographs make a PNG several times as large."""
    return _bytes(figure, dpi, "jpeg")


def _bytes(figure: "Figure", dpi: int, kind: str) -> bytes:
    buffer = io.BytesIO()
    options = {"quality": 90} if kind == "jpeg" else None
    figure.savefig(buffer, format=kind, dpi=dpi, pil_kwargs=options)
    return buffer.getvalue()


def data_uri(picture: bytes) -> str:
    """A PNG or JPEG as a ``data:`` address that a page can hold itself."""
    kind = "jpeg" if picture.startswith(b"\xff\xd8") else "png"
    return f"data:image/{kind};base64," + base64.b64encode(picture).decode("ascii")
