"""The paper's baselines A to D: attacks on classifiers and contrastive encoders, carried over.

All have the interface of :class:`~attacks.membership_scores.MembershipAttack`: ``fit`` on shadow
models, ``score`` on images.
"""

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.membership_scores import LearnedAttack, Observation, SignalAttack

if TYPE_CHECKING:
    from sklearn.base import ClassifierMixin

# Of baseline D, in the paper.
CONSISTENCY_MASKS = 10


def baseline_a(seed: int = 0) -> LearnedAttack:
    """A: a classifier of members by the sorted posteriors of a downstream classifier."""
    return LearnedAttack("baseline_a", _sorted_posteriors, lambda: _small_mlp(seed))


def baseline_b(
    seed: int = 0, features: Literal["internals", "statistics"] = "internals"
) -> LearnedAttack:
    """B: a white-box classifier of members by the embedding and internal features.

    Args:
        seed: Of the classifier.
        features: Class and mean token of each block with the embedding; or norm, standard
            deviation and maximum of each block, which mean the same in every model.
    """
    if features == "statistics":
        name = "baseline_b_statistics"
        return LearnedAttack(name, lambda images: images.attacked.statistics, linear_classifier)
    return LearnedAttack("baseline_b", _white_box, lambda: _small_mlp(seed))


def baseline_c() -> SignalAttack:
    """C: entropy of the embedding's softmax, with threshold and direction from the shadow."""
    return SignalAttack("baseline_c", embedding_entropy, "matched", choose_direction=True)


def baseline_d() -> SignalAttack:
    """D: mean pairwise distance of embeddings under 10 independent random masks, after EncoderMI.

    "We feed it into a pre-trained encoder 10 times. Each time we apply randomly scrambled masked
    patches" (the paper on Baseline-D): each mask is drawn by itself, whatever masks the errors are
    taken under, and however many. An embedding is the mean of the visible patches' tokens.
    """
    return SignalAttack(
        "baseline_d", lambda seen: seen.attacked.consistency, "matched", choose_direction=True
    )


def embedding_entropy(images: Observation) -> Tensor:
    """Entropy (N,) of the softmax over the embedding's dimensions, in nats."""
    logs = F.log_softmax(images.attacked.embedding.double(), 1)
    return -(logs.exp() * logs).sum(1)


class DownstreamClassifier:
    """A linear probe on frozen embeddings: what baseline A attacks in an encoder's place.

    Args:
        embeddings: Of labelled images (N, D).
        labels: Their classes (N,).

    Raises:
        ValueError: There is only one class.
    """

    def __init__(self, embeddings: Tensor, labels: Tensor) -> None:
        if len(torch.unique(labels)) < 2:
            raise ValueError("the downstream task needs two classes or more")
        self._model = linear_classifier().fit(
            embeddings.double().cpu().numpy(), labels.cpu().numpy()
        )

    def __call__(self, embeddings: Tensor) -> Tensor:
        """Class probabilities (N, C), float64."""
        return torch.from_numpy(self._model.predict_proba(embeddings.double().cpu().numpy()))


def _sorted_posteriors(images: Observation) -> Tensor:
    if images.posteriors is None:
        raise ValueError("baseline A needs a downstream task: labelled images")
    return images.posteriors.sort(1, descending=True).values


def _white_box(images: Observation) -> Tensor:
    return torch.cat([images.attacked.embedding, images.attacked.internals], 1)


def linear_classifier() -> "ClassifierMixin":
    """Logistic regression on standardised features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


def _small_mlp(seed: int) -> "ClassifierMixin":
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(
        StandardScaler(), MLPClassifier((64,), alpha=1e-2, max_iter=300, random_state=seed)
    )
