"""Attacks on made-up signals whose answer is known."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from attacks.membership import best_threshold, membership_metrics
from attacks.membership_baselines import DownstreamClassifier, embedding_entropy
from attacks.membership_scores import (
    LearnedAttack,
    LikelihoodRatioAttack,
    Observation,
    ShadowRound,
    SignalAttack,
    calibrated_error,
    combined_signals,
    reconstruction_error,
)
from attacks.membership_signals import Signals
from attacks.membership_suite import ATTACKS

MASKS = 12


def signals(
    number: int, seed: int, *, member: bool = False, scale: float = 1.0, easy: Tensor | None = None
) -> Signals:
    """What a model shows of images: errors are lower and steadier for members."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    difficulty = torch.zeros(number) if easy is None else easy
    gain = -0.5 if member else 0.0
    logs = difficulty[:, None] + gain + 0.3 * noise(number, MASKS)
    dispersion = (difficulty / 2 + gain + 0.2 * noise(number)).exp()
    return Signals(
        scale * logs.exp(),
        scale * (logs + 0.1 * noise(number, MASKS)).exp(),
        0.1 * scale * dispersion,
        0.1 * scale * dispersion * (0.1 * noise(number)).exp(),
        noise(number, 8) + gain,
        noise(number, 20) + gain,
        noise(number, 6) + gain,
    )


def posteriors(number: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(number, 5, generator=generator).double().softmax(1)


def observation(
    number: int, seed: int, *, member: bool = False, scale: float = 1.0, references: int = 2
) -> Observation:
    easy = torch.randn(number, generator=torch.Generator().manual_seed(1000 + seed))
    own = signals(number, seed, member=member, scale=scale, easy=easy)
    others = [signals(number, seed + 50 + i, easy=easy) for i in range(references)]
    simulated = signals(number, seed + 90, member=member, scale=scale, easy=easy)
    return Observation(own, tuple(others), simulated, posteriors(number, seed))


@pytest.fixture(scope="module")
def rounds() -> list[ShadowRound]:
    return [
        ShadowRound(
            observation(60, 10 * i, member=True), observation(60, 10 * i + 1), observation(90, 2)
        )
        for i in (1, 2)
    ]


def rows(images: Any, chosen: slice) -> Any:  # noqa: ANN401 - nested dataclasses of tensors
    """Some images of an observation."""
    if isinstance(images, Tensor):
        return images[chosen]
    if isinstance(images, tuple):
        return tuple(rows(part, chosen) for part in images)
    return replace(images, **{name: rows(value, chosen) for name, value in vars(images).items()})


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_scores_an_image_alike_in_any_company(
    name: str, rounds: list[ShadowRound]
) -> None:
    attack = ATTACKS[name]()
    assert attack.name == name
    attack.fit(rounds, observation(90, 3))
    images = observation(40, 7, member=True)
    together = attack.score(images)
    assert together.shape == (40,)
    assert together.dtype == torch.float64
    apart = torch.cat([attack.score(rows(images, slice(i, i + 8))) for i in range(0, 40, 8)])
    torch.testing.assert_close(apart, together)
    assert bool(torch.isfinite(together).all())
    assert np.isfinite(attack.threshold)
    # Fitting again gives the same attack.
    again = ATTACKS[name]()
    again.fit(rounds, observation(90, 3))
    assert torch.equal(again.score(images), together)
    assert again.threshold == attack.threshold


@pytest.mark.parametrize("name", ["paper", "many_masks", "calibrated", "combined", "baseline_d"])
def test_attacks_find_members_of_a_target_like_the_shadows(
    name: str, rounds: list[ShadowRound]
) -> None:
    attack = ATTACKS[name]()
    attack.fit(rounds, observation(90, 3))
    members, others = observation(200, 5, member=True), observation(200, 6)
    found = membership_metrics(attack.score(members), attack.score(others), attack.threshold)
    assert found["auc"] > (0.9 if name in ("calibrated", "combined") else 0.6)


def test_the_papers_attack_by_hand(rounds: list[ShadowRound]) -> None:
    attack = ATTACKS["paper"]()
    attack.fit(rounds[:1], observation(90, 3))
    shadow = [part.simulated for part in (rounds[0].members, rounds[0].non_members)]
    errors = [part.masked_error[:, 0].double() for part in shadow if part is not None]
    assert attack.threshold == best_threshold(*errors)
    images = observation(9, 4)
    assert images.simulated is not None
    assert torch.equal(attack.score(images), images.simulated.masked_error[:, 0].double())


def test_calibration_by_hand() -> None:
    images = observation(9, 4)
    own = np.log(images.attacked.masked_error.double().numpy())
    first, second = (np.log(r.masked_error.double().numpy()) for r in images.references)
    expected = (own - (first + second) / 2).mean(1)
    np.testing.assert_allclose(calibrated_error(images).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "immune"),
    [
        (lambda: SignalAttack("x", reconstruction_error(None, "masked", "pool"), "matched"), False),
        (lambda: SignalAttack("x", calibrated_error, "population"), True),
        (lambda: LikelihoodRatioAttack("x"), True),
        (ATTACKS["combined"], True),
    ],
)
def test_a_target_that_fits_worse_than_the_shadows_throws_off_what_is_not_relative(
    make: Callable[[], Any], immune: bool, rounds: list[ShadowRound]
) -> None:
    verdicts = []
    for scale in (1.0, 3.0):
        attack = make()
        attack.fit(rounds, observation(90, 3, scale=scale))
        score = attack.score(observation(50, 5, member=True, scale=scale))
        verdicts.append(score < attack.threshold)
    assert torch.equal(*verdicts) == immune


def test_the_shadows_choose_the_direction(rounds: list[ShadowRound]) -> None:
    def backwards(images: Observation) -> Tensor:
        return -calibrated_error(images)

    attack = SignalAttack("x", backwards, "matched", choose_direction=True)
    attack.fit(rounds, observation(90, 3))
    members, others = (
        attack.score(observation(90, 5, member=True)),
        attack.score(observation(90, 6)),
    )
    assert membership_metrics(members, others, attack.threshold)["asr"] > 0.8


def test_likelihood_ratio_is_a_normal_score_with_a_shrunk_variance(
    rounds: list[ShadowRound],
) -> None:
    many = [
        ShadowRound(*(observation(30, s, references=6) for s in (1, 2, 3))),
    ]
    population = observation(500, 4, references=6)
    images = observation(20, 5, references=6)

    def variance(seen: Observation) -> Any:  # noqa: ANN401 - an array
        logs = [r.masked_error.double().log().mean(1).numpy() for r in seen.references]
        return np.var(np.stack(logs), axis=0, ddof=1)

    attack = LikelihoodRatioAttack("x", prior=3.0)
    attack.fit(many, population)
    shrunk = (5 * variance(images) + 3 * variance(population).mean()) / 8
    expected = calibrated_error(images).numpy() / np.sqrt(shrunk)
    np.testing.assert_allclose(attack.score(images).numpy() + attack.centre, expected, atol=1e-9)
    with pytest.raises(ValueError, match="two shadow models"):
        LikelihoodRatioAttack("x").fit(
            [ShadowRound(*(observation(5, s, references=1) for s in (1, 2, 3)))],
            observation(5, 4, references=1),
        )


def test_the_combination_gives_log_odds_of_a_logistic_regression(
    rounds: list[ShadowRound],
) -> None:
    from sklearn.linear_model import LogisticRegression

    attack = LearnedAttack("x", combined_signals, lambda: LogisticRegression(C=1e9))
    attack.fit(rounds, observation(90, 3))
    inputs = torch.cat([combined_signals(o) for r in rounds for o in (r.members, r.non_members)])
    labels = ([0] * 60 + [1] * 60) * 2
    reference = LogisticRegression(C=1e9).fit(inputs.numpy(), labels)
    images = observation(30, 5)
    expected = reference.decision_function(combined_signals(images).numpy())
    np.testing.assert_allclose(attack.score(images).numpy(), expected, rtol=1e-9)


def test_entropy_is_scipys() -> None:
    images = observation(7, 1)
    softmax = images.attacked.embedding.double().softmax(1).numpy()
    np.testing.assert_allclose(embedding_entropy(images), stats.entropy(softmax, axis=1))


def test_a_downstream_classifier_learns_its_task() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3).repeat(40)
    embeddings = torch.randn(120, 6, generator=generator) + 2 * torch.eye(3, 6)[labels]
    classifier = DownstreamClassifier(embeddings, labels)
    probabilities = classifier(embeddings)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(120).double())
    assert float((probabilities.argmax(1) == labels).double().mean()) > 0.8
    with pytest.raises(ValueError, match="two classes"):
        DownstreamClassifier(embeddings, torch.zeros(120))


@pytest.mark.parametrize(
    ("signal", "images", "message"),
    [
        (calibrated_error, replace(observation(3, 1), references=()), "needs a reference model"),
        (reconstruction_error(1), replace(observation(3, 1), simulated=None), "simulated decoder"),
    ],
)
def test_what_an_attack_lacks_is_named(
    signal: Callable[[Observation], Tensor], images: Observation, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        signal(images)


def test_baseline_a_needs_posteriors(rounds: Sequence[ShadowRound]) -> None:
    bare = [
        ShadowRound(*(replace(part, posteriors=None) for part in vars(r).values())) for r in rounds
    ]
    with pytest.raises(ValueError, match="downstream task"):
        ATTACKS["baseline_a"]().fit(bare, replace(observation(9, 3), posteriors=None))
