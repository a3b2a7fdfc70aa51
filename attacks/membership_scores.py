"""Membership attacks as functions of signals: fitted on shadow models, then applied to the target.

Every attack has one interface: ``fit`` on rounds in which a shadow model, whose members are known,
plays the target; ``score`` on images as the target shows them. No argument can carry a member of
the target. A score is lower for a likelier member.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
        shadow_scores: What the shadows' members and non-members score, (m,) and (n,): how well
            the threshold did where it comes from.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.threshold = float("nan")
        self.shadow_scores = (torch.empty(0), torch.empty(0))

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
            self._meet(shadow.population)
            members.append(self._relative(shadow.members))
            non_members.append(self._relative(shadow.non_members))
        low, high = torch.cat(members), torch.cat(non_members)
        if self.choose_direction and membership_metrics(low, high, 0.0)["auc"] < 0.5:
            self.sign = -1.0
        self.threshold = best_threshold(self.sign * low, self.sign * high)
        self.shadow_scores = (self.sign * low, self.sign * high)
        self._meet(population)

    def score(self, images: Observation) -> Tensor:
        """The signal, relative to the population if the rule says so."""
        return self.sign * self._relative(images)

    def _meet(self, population: Observation) -> None:
        """Takes what depends on the model under attack from population images."""
        self.centre = 0.0
        if self.rule == "population":
            self.centre = float(self._value(population).median())

    def _value(self, images: Observation) -> Tensor:
        return self.signal(images).double().cpu()

    def _relative(self, images: Observation) -> Tensor:
        return self._value(images) - self.centre


class LikelihoodRatioAttack(SignalAttack):
    """How unlikely an image's error is under models that were not trained on it.

    The offline form of the likelihood-ratio attack (LiRA) over several shadow models: the
    references' mean log errors of an image are taken as normal, and the score is the attacked
    model's distance from their mean in standard deviations. Few references say little about one
    image's deviation, so its variance is drawn towards that of population images.

    Args:
        name: Under which it is reported.
        prior: As many references as this weigh as much as the population's variance.
    """

    def __init__(self, name: str, prior: float = 4.0) -> None:
        super().__init__(name, calibrated_error, "population")
        self.prior = prior

    def _meet(self, population: Observation) -> None:
        variance, _ = self._variance(population)
        self._typical = float(variance.mean().clamp_min(1e-12))
        super()._meet(population)

    def _value(self, images: Observation) -> Tensor:
        variance, freedom = self._variance(images)
        shrunk = (freedom * variance + self.prior * self._typical) / (freedom + self.prior)
        return super()._value(images) / shrunk.sqrt()

    def _variance(self, images: Observation) -> tuple[Tensor, int]:
        """Variance of each image's mean log error over the references, and degrees of freedom."""
        references = _references(images)
        if len(references) < 2:
            raise ValueError("a likelihood ratio needs two shadow models or more")
        logs = torch.stack([r.masked_error.double().log().mean(1) for r in references])
        return logs.var(0).cpu(), len(references) - 1


class LearnedAttack(MembershipAttack):
    """A classifier on several numbers per image, trained on the shadow models.

    Args:
        name: Under which it is reported.
        features: The numbers (N, F).
        classifier: Makes an untrained scikit-learn classifier; its ``decision_function`` is the
            log odds, if it has one.
        centred: Give each feature relative to the median of population images and in units of
            their spread, under the same model: what differs between models by training alone then
            does not enter.
    """

    def __init__(
        self,
        name: str,
        features: Callable[[Observation], Tensor],
        classifier: Callable[[], Any],
        centred: bool = False,
    ) -> None:
        super().__init__(name)
        self.features = features
        self.classifier = classifier
        self.centred = centred

    def fit(self, rounds: Sequence[ShadowRound], population: Observation) -> None:
        """Trains the classifier."""
        members, non_members = [], []
        for shadow in rounds:
            self._meet(shadow.population)
            members.append(self._relative(shadow.members))
            non_members.append(self._relative(shadow.non_members))
        low, high = torch.cat(members), torch.cat(non_members)
        labels = [0] * len(low) + [1] * len(high)
        with warnings.catch_warnings():
            # A network that is stopped early is an attack like any other.
            warnings.filterwarnings("ignore", message=".*hasn't converged yet.*")
            self._model = self.classifier().fit(torch.cat([low, high]).numpy(), labels)
        self.threshold = 0.0
        self.shadow_scores = (self._log_odds(low), self._log_odds(high))
        self._meet(population)

    def score(self, images: Observation) -> Tensor:
        """Log odds of being a non-member."""
        return self._log_odds(self._relative(images))

    def _meet(self, population: Observation) -> None:
        """Takes what depends on the model under attack from population images."""
        values = self._values(population)
        self._centre = torch.zeros(values.shape[1], dtype=torch.float64)
        self._scale = torch.ones(values.shape[1], dtype=torch.float64)
        if self.centred:
            self._centre, self._scale = values.median(0).values, values.std(0).clamp_min(1e-12)

    def _values(self, images: Observation) -> Tensor:
        return self.features(images).double().cpu()

    def _relative(self, images: Observation) -> Tensor:
        return (self._values(images) - self._centre) / self._scale

    def _log_odds(self, values: Tensor) -> Tensor:
        if hasattr(self._model, "decision_function"):
            return torch.from_numpy(self._model.decision_function(values.numpy())).double()
        probability = torch.from_numpy(self._model.predict_proba(values.numpy())[:, 1])
        return probability.double().clamp(1e-12, 1 - 1e-12).logit()


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


def combined_signals(images: Observation) -> Tensor:
    """What the default attack learns from (N, 3).

    The calibrated error; the dispersion of embeddings under the masks that the error is taken
    under (baseline D's signal, of more masks, which may be complementary); and that dispersion
    relative to the references, as an image that looks simple is consistent for every model.
    """
    own = _log_dispersion(images.attacked)
    others = torch.stack([_log_dispersion(reference) for reference in _references(images)]).mean(0)
    return torch.stack([calibrated_error(images), own, own - others], 1)


def _log_dispersion(signals: Signals) -> Tensor:
    return signals.dispersion.double().clamp_min(1e-12).log()


def _references(images: Observation) -> tuple[Signals, ...]:
    if not images.references:
        raise ValueError("this attack needs a reference model")
    return images.references
