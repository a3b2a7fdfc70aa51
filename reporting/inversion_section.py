"""What a report says about pictures of recovered vectors."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from reporting.figures import inversion_grid
from reporting.page import Picture, Section, Table
from reporting.sweep import estimate

THREAT_MODEL = (
    "The attacker holds the probe and the public backbone: a picture is sought whose embedding is "
    "the recovered vector. Training images enter below only, to be shown beside it."
)
THREAT_MODEL_OF_THE_BASELINE = (
    "The attacker holds the probe and the public backbone: a picture is sought that the probe is "
    "sure of. Training images enter below only, to be shown beside it."
)
THREAT_MODEL_OF_TRUE_EMBEDDINGS = (
    "No attack: a picture is sought whose embedding is a training image's own. It shows what an "
    "inversion gives at best."
)
# Rounding aside, only a training image's own embedding is as near to it.
_OWN = 1 - 1e-5
CAVEATS = (
    "A picture whose embedding fits need not look like the training image: networks are easily "
    "fooled. Look at the pictures, and at the score of a network that the inversion did not see.",
)


def inversion_section(metrics: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Section:
    """The section about an evaluation of inverted images.

    Args:
        metrics: Content of its ``inversion_metrics.json``.
        tensors: Content of its ``inversion_evaluation.safetensors``.

    Raises:
        KeyError: The metrics are not those of such an evaluation.
    """
    names = [name for name in metrics["mean"] if not name.startswith("original_")]
    images = sorted(metrics["images"], key=lambda image: -image["target_similarity"])
    table = Table(
        title="Each picture",
        header=["nearest training image", *(name.replace("_", " ") for name in names)],
        rows=[
            [image["train_image"], *(f"{image[name]:.4g}" for name in names)] for image in images
        ],
        note="Similarity: cosine of the picture's embedding and the training image's, in the "
        "attacked network and in one that the inversion did not see, if one was given; others: "
        "mean over the other training images; rank: place of the nearest training image among all "
        f"{metrics['num_train']} by that network. Only a second network tells a likeness from a "
        "picture that fools the first.",
    )
    by_target = metrics.get("by_target", True)
    caption = "Training images and what was recovered of them, most similar vectors first."
    title, headline = "Pictures of recovered vectors", "vectors turned into pictures"
    threat_model = THREAT_MODEL
    if by_target and images[-1]["target_similarity"] > _OWN:
        caption = "Training images and inversions of their embeddings."
        title, threat_model = "Pictures of training images", THREAT_MODEL_OF_TRUE_EMBEDDINGS
    if not by_target:
        caption = "Pictures, each below the training image that it is nearest to."
        title, headline = "Pictures that the probe is sure of", "pictures that the probe is sure of"
        threat_model = THREAT_MODEL_OF_THE_BASELINE
    return Section(
        title=title,
        threat_model=threat_model,
        headline=f"{len(images)} {headline}{_likeness(images)}",
        tables=[table],
        figures=[Picture.of(inversion_grid(tensors, by_target=by_target), caption, photos=True)],
        caveats=CAVEATS,
    )


def _likeness(images: Sequence[Mapping[str, Any]]) -> str:
    """How near pictures come to their training images, mean and interval over the pictures."""
    judges = {"attacked": "in the attacked network", "second": "in a second one"}
    parts = [
        f"{estimate([image[f'{judge}_similarity'] for image in images])} {where}"
        for judge, where in judges.items()
        if f"{judge}_similarity" in images[0]
    ]
    return f"; similarity to the training image {', '.join(parts)}" if parts else ""
