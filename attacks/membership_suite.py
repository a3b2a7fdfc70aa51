"""Every membership attack by name, and what they all observe."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from attacks.membership_baselines import (
    CONSISTENCY_MASKS,
    DownstreamClassifier,
    baseline_a,
    baseline_b,
    baseline_c,
    baseline_d,
    linear_classifier,
)
from attacks.membership_masks import mask_noise
from attacks.membership_scores import (
    LearnedAttack,
    LikelihoodRatioAttack,
    MembershipAttack,
    Observation,
    ShadowRound,
    SignalAttack,
    calibrated_error,
    combined_signals,
    reconstruction_error,
)
from attacks.membership_signals import Autoencoder, Signals, measure_signals

ATTACKS: dict[str, Callable[[], MembershipAttack]] = {
    "paper": lambda: SignalAttack("paper", reconstruction_error(1), "paper"),
    "many_masks": lambda: SignalAttack("many_masks", reconstruction_error(), "paper"),
    "all_patches": lambda: SignalAttack("all_patches", reconstruction_error(None, "all"), "paper"),
    "matched": lambda: SignalAttack(
        "matched", reconstruction_error(None, "masked", "pool"), "matched"
    ),
    "population": lambda: SignalAttack(
        "population", reconstruction_error(None, "masked", "pool"), "population"
    ),
    "calibrated": lambda: SignalAttack("calibrated", calibrated_error),
    "likelihood_ratio": lambda: LikelihoodRatioAttack("likelihood_ratio"),
    "combined": lambda: LearnedAttack("combined", combined_signals, linear_classifier, True),
    "baseline_a": baseline_a,
    "baseline_b": baseline_b,
    "baseline_b_statistics": lambda: baseline_b(features="statistics"),
    "baseline_c": baseline_c,
    "baseline_d": baseline_d,
}
DEFAULT = "combined"
UPPER_BOUND = "true_decoder"


def upper_bound() -> MembershipAttack:
    """Error under the target's own decoder, which no attacker has: for comparison only."""
    return SignalAttack(UPPER_BOUND, reconstruction_error(), "paper")


@dataclass(frozen=True)
class ObservedModel:
    """An encoder in an attacker's hands.

    Attributes:
        pool: With the decoder that was fine-tuned on the pool.
        simulated: With the decoder of the paper: fine-tuned on the shadow's training set for the
            target, the one it was trained with for a shadow.
        classifier: A downstream classifier on its embeddings, for baseline A.
    """

    pool: Autoencoder
    simulated: Autoencoder
    classifier: DownstreamClassifier | None = None


@dataclass(frozen=True)
class Viewer:
    """Shows images to models under the same masks.

    Attributes:
        noise: Of the masks (K, L).
        independent: Of baseline D's masks (10, L).
        mask_ratio: Share of patches to remove.
        rows_per_pass: Masked images in one forward pass.
    """

    noise: Tensor
    independent: Tensor
    mask_ratio: float
    rows_per_pass: int = 512

    @classmethod
    def of_masks(
        cls,
        num_patches: int,
        mask_ratio: float,
        num_masks: int,
        *,
        complementary: bool = True,
        rows_per_pass: int = 512,
        seed: int = 0,
    ) -> "Viewer":
        """Draws the masks.

        Args:
            num_patches: Patches per image L.
            mask_ratio: Share of patches to remove.
            num_masks: K.
            complementary: See :func:`~attacks.membership_masks.mask_noise`; baseline D's masks are
                independent in any case.
            rows_per_pass: Masked images in one forward pass.
            seed: Of the masks.

        Raises:
            ValueError: There is no mask, or the ratio leaves no patch visible or none masked.
        """
        noise = mask_noise(
            num_masks, num_patches, mask_ratio, seed=seed, complementary=complementary
        )
        independent = mask_noise(
            CONSISTENCY_MASKS, num_patches, mask_ratio, seed=seed, complementary=False
        )
        return cls(noise, independent, mask_ratio, rows_per_pass)

    def signals(
        self, model: Autoencoder, batches: Iterable[Tensor], whole: bool = False
    ) -> Signals:
        """Signals of all images of some batches.

        Args:
            model: What they are shown to.
            batches: Images (N, c, S, S) in [0, 1].
            whole: Also measure what is asked of attacked models alone: baseline D's consistency,
                and what unmasked images show.
        """
        return Signals.join(
            [
                measure_signals(
                    model,
                    images,
                    self.noise,
                    self.mask_ratio,
                    independent=self.independent if whole else None,
                    whole=whole,
                    rows_per_pass=self.rows_per_pass,
                )
                for images in batches
            ]
        )

    def observe(
        self,
        attacked: ObservedModel,
        references: Sequence[ObservedModel],
        batches: Iterable[Tensor],
    ) -> Observation:
        """What an attack on ``attacked`` sees of some images.

        Args:
            attacked: The model under attack.
            references: Models that were trained on none of the images.
            batches: Images (N, c, S, S) in [0, 1]; iterated over once for each model.
        """
        return _observation(
            attacked,
            self.signals(attacked.pool, batches, whole=True),
            self.signals(attacked.simulated, batches),
            [self.signals(model.pool, batches) for model in references],
        )


def shadow_rounds(
    viewer: Viewer,
    target: ObservedModel,
    shadows: Sequence[ObservedModel],
    shadow_train: Sequence[Iterable[Tensor]],
    shadow_test: Iterable[Tensor],
    population: Iterable[Tensor],
) -> tuple[list[ShadowRound], Observation]:
    """All that attacks are fitted on: no argument can carry a member of the target.

    In each shadow's round the other shadows and the target are the references, as none of them
    was trained on its images.

    Args:
        viewer: Shows the images.
        target: The attacked model.
        shadows: Models whose training images the attacker knows.
        shadow_train: Batches of each shadow's training images.
        shadow_test: Batches of images that no model was trained on.
        population: Further such batches.

    Returns:
        A round for each shadow, and the population as seen with the target attacked.

    Raises:
        ValueError: There are not as many shadows as training sets.
    """
    if len(shadows) != len(shadow_train) or not shadows:
        raise ValueError(f"{len(shadows)} shadow models, {len(shadow_train)} training sets of them")
    # Each model is shown each set once.
    shared = [
        {id(m): viewer.signals(m.pool, batches, whole=True) for m in (target, *shadows)}
        for batches in (shadow_test, population)
    ]
    rounds = []
    for shadow, train in zip(shadows, shadow_train, strict=True):
        others = [model for model in (target, *shadows) if model is not shadow]
        test, crowd = (
            _observation(
                shadow,
                seen[id(shadow)],
                viewer.signals(shadow.simulated, batches),
                [seen[id(model)] for model in others],
            )
            for seen, batches in zip(shared, (shadow_test, population), strict=True)
        )
        rounds.append(ShadowRound(viewer.observe(shadow, others, train), test, crowd))
    seen = shared[1]
    return rounds, _observation(
        target,
        seen[id(target)],
        viewer.signals(target.simulated, population),
        [seen[id(model)] for model in shadows],
    )


def _observation(
    attacked: ObservedModel, signals: Signals, simulated: Signals, references: Sequence[Signals]
) -> Observation:
    posteriors = None if attacked.classifier is None else attacked.classifier(signals.embedding)
    return Observation(signals, tuple(references), simulated, posteriors)
