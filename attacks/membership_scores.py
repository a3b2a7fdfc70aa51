"""Membership attacks as functions of signals: fitted on shadow models, then applied to the target.

Every attack has one interface: ``fit`` on rounds in which a shadow model, whose members are known,
plays the target; ``score`` on images as the target shows them. No argument can carry a member of
the target. A score is lower for a likelier member.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attacks.membership import best_threshold, membership_metrics
from attacks.membership_signals import Signals

ThresholdRule = Literal["paper", "matched", "population"]


@dataclass(frozen=True)
class Observation:
    """Images as seen by the model under attack and by models that were not trained on them.

    Attributes:
        attacked: Signals of the attacked encoder with a decoder fine-tuned on the pool.
        references: Signals of other encoders, each with a decoder fine-tuned on the same pool.
        simulated: Signals of the attacked encoder with the decoder of the paper, fine-tuned on
            the shadow's training set; in a shadow's round those with the decoder that it was
            trained with.
        posteriors: Class probabilities of a downstream classifier on the attacked encoder (N, C),
            for baseline A.
    """

    attacked: Signals
    references: tuple[Signals, ...] = ()
    simulated: Signals | None = None
    posteriors: Tensor | None = None


@dataclass(frozen=True)
class ShadowRound:
    """A shadow model in the role of the attacked one, the others and the target as references.

    Attributes:
        members: Its training images.
        non_members: Images that no model was trained on.
        population: Further images that no model was trained on.
    """

    members: Observation
    non_members: Observation
    population: Observation


class MembershipAttack(ABC):
    """One way to tell members from non-members.

    Attributes:
        name: Under which it is reported.
        threshold: Images that score below are called members; set by :meth:`fit`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.threshold = float("nan")

    @abstractmethod
    def fit(self, rounds: Sequence[ShadowRound], population: Observation) -> None:
        """Learns from shadow models alone.

        Args:
            rounds: One for each shadow model.
            population: Images that no model was trained on, as seen with the target attacked.
        """

    @abstractmethod
    def score(self, images: Observation) -> Tensor:
        """Scores (N,) of images, float64; lower is likelier a member.

        Args:
            images: As seen with the target attacked.
        """


class SignalAttack(MembershipAttack):
    """A single number per image, with a threshold from the shadow models.

    Args:
        name: Under which it is reported.
        signal: The number (N,).
        rule: How the shadows' threshold is carried over to the target. ``matched`` takes it as it
            is. ``population`` takes it relative to the median of population images, which each
            model has its own. ``paper`` does as ``matched``, and says that the signal is one of
            ``simulated``: the threshold then comes from the shadow with its own decoder.
        choose_direction: Let the shadows decide whether members have low or high values.
    """

    def __init__(
        self,
        name: str,
        signal: Callable[[Observation], Tensor],
        rule: ThresholdRule = "population",
        choose_direction: bool = False,
    ) -> None:
        super().__init__(name)
        self.signal = signal
        self.rule = rule
        self.choose_direction = choose_direction
        self.sign = 1.0
        self.centre = 0.0

    def fit(self, rounds: Sequence[ShadowRound], population: Observation) -> None:
        """Finds direction and threshold."""
        members, non_members = [], []
        for shadow in rounds:
            centre = self._median(shadow.population)
            members.append(self._value(shadow.members) - centre)
            non_members.append(self._value(shadow.non_members) - centre)
        low, high = torch.cat(members), torch.cat(non_members)
        if self.choose_direction and membership_metrics(low, high, 0.0)["auc"] < 0.5:
            self.sign = -1.0
        self.threshold = best_threshold(self.sign * low, self.sign * high)
        self.centre = self._median(population)

    def score(self, images: Observation) -> Tensor:
        """The signal, relative to the population if the rule says so."""
        return self.sign * (self._value(images) - self.centre)

    def _value(self, images: Observation) -> Tensor:
        return self.signal(images).double().cpu()

    def _median(self, images: Observation) -> float:
        return float(self._value(images).median()) if self.rule == "population" else 0.0


class LearnedAttack(MembershipAttack):
    """A classifier on several numbers per image, trained on the shadow models.

    Args:
        name: Under which it is reported.
        features: The numbers (N, F).
        classifier: Makes an untrained scikit-learn classifier.
        centred: Give each feature relative to the median of population images and in units of
            their spread, under the same model: what differs between models by training alone then
            does not enter.
    """

    def __init__(
        self,
        name: str,
        features: Callable[[Observation], Tensor],
        classifier: "Callable[[], object]",
        centred: bool = False,
    ) -> None:
        super().__init__(name)
        self.features = features
        self.classifier = classifier
        self.centred = centred

    def fit(self, rounds: Sequence[ShadowRound], population: Observation) -> None:
        """Trains the classifier."""
        rows, labels = [], []
        for shadow in rounds:
            scale = self._scale(shadow.population)
            for label, images in ((0, shadow.members), (1, shadow.non_members)):
                values = self._scaled(images, scale)
                rows.append(values)
                labels.append(torch.full((len(values),), label))
        self._model = self.classifier()
        self._model.fit(torch.cat(rows).numpy(), torch.cat(labels).numpy())  # type: ignore[attr-defined]
        self._target_scale = self._scale(population)
        self.threshold = 0.0

    def score(self, images: Observation) -> Tensor:
        """Log odds of being a non-member."""
        values = self._scaled(images, self._target_scale).numpy()
        probability = self._model.predict_proba(values)[:, 1]  # type: ignore[attr-defined]
        return torch.from_numpy(probability).double().clamp(1e-12, 1 - 1e-12).logit()

    def _scaled(self, images: Observation, scale: tuple[Tensor, Tensor]) -> Tensor:
        return (self.features(images).double().cpu() - scale[0]) / scale[1]

    def _scale(self, population: Observation) -> tuple[Tensor, Tensor]:
        values = self.features(population).double().cpu()
        if not self.centred:
            return torch.zeros(values.shape[1]), torch.ones(values.shape[1])
        return values.median(0).values, values.std(0).clamp_min(1e-12)


def reconstruction_error(
    num_masks: int | None = None,
    patches: Literal["masked", "all"] = "masked",
    decoder: Literal["simulated", "pool"] = "simulated",
) -> Callable[[Observation], Tensor]:
    """The paper's signal: mean squared error of the reconstruction, over the first masks.

    Args:
        num_masks: Average over so many; by default all. The paper takes one.
        patches: Of the removed patches, or of all.
        decoder: The paper's, fine-tuned on the shadow's training set, or that of the pool.
    """

    def signal(images: Observation) -> Tensor:
        signals = images.simulated if decoder == "simulated" else images.attacked
        if signals is None:
            raise ValueError("this attack needs the simulated decoder of the paper")
        errors = signals.masked_error if patches == "masked" else signals.all_error
        return errors[:, :num_masks].mean(1)

    return signal


def calibrated_error(images: Observation) -> Tensor:
    """How much lower the error is than under models that were not trained on the image.

    An image that is easy for every model has a low error without being a member. The mean over
    masks of log error minus the references' mean log error under the same mask removes that.
    """
    own = images.attacked.masked_error.double().log()
    others = [reference.masked_error.double().log() for reference in _references(images)]
    return (own - torch.stack(others).mean(0)).mean(1)


def likelihood_ratio(images: Observation) -> Tensor:
    """How unlikely the image's mean log error is under models that were not trained on it.

    The offline form of the likelihood-ratio attack: the references' values are taken as normal,
    and the score is the value's distance from their mean in standard deviations. Few references
    say little about one image's variance, so it is drawn towards that of all images.

    Raises:
        ValueError: There are fewer than two references.
    """
    references = _references(images)
    if len(references) < 2:
        raise ValueError(f"a likelihood ratio needs 2 references or more, got {len(references)}")
    own = images.attacked.masked_error.double().log().mean(1)
    others = torch.stack([r.masked_error.double().log().mean(1) for r in references])
    return (own - others.mean(0)) / _shrunk_deviation(others)


# As many references as this count as one image's own variance as much as that of all images.
_PRIOR_REFERENCES = 8.0


def _shrunk_deviation(values: Tensor) -> Tensor:
    """Standard deviation of each column of (R, N), drawn towards that of all."""
    variance, freedom = values.var(0), len(values) - 1
    pooled = _typical_variance(variance)
    shrunk = (freedom * variance + _PRIOR_REFERENCES * pooled) / (freedom + _PRIOR_REFERENCES)
    return shrunk.sqrt()


def _typical_variance(variance: Tensor) -> Tensor:
    return variance.mean().clamp_min(1e-12)


def combined_signals(images: Observation) -> Tensor:
    """What the default attack learns from (N, 3).

    The calibrated error; the dispersion of embeddings under different masks (baseline D); and that
    dispersion relative to the references, as an image that looks simple is consistent for every
    model.
    """
    own = _log_dispersion(images.attacked)
    others = torch.stack([_log_dispersion(reference) for reference in _references(images)]).mean(0)
    return torch.stack([calibrated_error(images), own, own - others], 1)


def _log_dispersion(signals: Signals) -> Tensor:
    return signals.dispersion[:, -1].double().clamp_min(1e-12).log()


def _references(images: Observation) -> tuple[Signals, ...]:
    if not images.references:
        raise ValueError("this attack needs a reference model")
    return images.references
