"""The search: each image as if it were alone, to the bit as if it had not been stopped."""

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.image_search import ImageSearch, NoiseSchedule, SearchSettings, image_seeds
from attacks.views import random_views, total_variation
from models.deep_image_prior import DeepImagePrior, PriorSettings, build_priors

SIZE, CHANNELS = 12, 4
TARGETS = torch.randn(4, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
ENCODER = nn.Linear(3 * SIZE * SIZE, 10).double().requires_grad_(False)
SETTINGS = SearchSettings(
    iterations=12,
    noise=NoiseSchedule((0.5, 0.1, 0.0), (0.5, 0.75)),
    views=2,
    jitter=1,
    crop=0.8,
    total_variation=0.1,
    averaging=0.5,
    judge_every=4,
)


def search(
    indices: list[int], settings: SearchSettings = SETTINGS, grouped: bool = False
) -> ImageSearch:
    seeds = image_seeds(0, indices)
    priors = build_priors(seeds, SIZE, PriorSettings(CHANNELS, grouped=grouped)).double()

    def objective(images: Tensor, shown: Tensor) -> tuple[Tensor, Tensor]:
        target = TARGETS[torch.tensor(indices)[shown]]
        similarity = F.cosine_similarity(ENCODER(images.flatten(1)), target, dim=1)
        return 1 - similarity, similarity

    shape = (CHANNELS, SIZE, SIZE)
    return ImageSearch(priors, objective, seeds, shape, settings, apart=not grouped)


def run(found: ImageSearch) -> ImageSearch:
    while not found.done:
        found.advance()
    return found


@pytest.mark.parametrize("grouped", [False, True])
def test_many_at_once_are_what_each_is_alone(grouped: bool) -> None:
    together = run(search([0, 1, 2], grouped=grouped))
    for index in range(3):
        alone = run(search([index]))
        torch.testing.assert_close(together.images[index], alone.images[0], rtol=0, atol=1e-8)
        torch.testing.assert_close(
            together.similarity[index], alone.similarity[0], rtol=0, atol=1e-8
        )
    assert not torch.allclose(together.images[0], together.images[1], atol=0.01)


@pytest.fixture
def threads() -> Iterator[int]:
    """Three threads, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def test_threads_share_images_and_change_nothing(threads: int) -> None:
    settings = replace(SETTINGS, patience=8)
    shared = run(search([0, 1, 2, 3], settings))
    assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    looped = run(search([0, 1, 2, 3], settings))
    torch.testing.assert_close(shared.images, looped.images, rtol=0, atol=1e-8)
    torch.testing.assert_close(
        torch.stack(shared.history), torch.stack(looped.history), rtol=0, atol=1e-8, equal_nan=True
    )
    assert torch.equal(shared.stopped_at, looped.stopped_at)


def test_what_a_thread_raises_is_raised(threads: int) -> None:
    found = search([0, 1, 2])
    found.noise_shape = (CHANNELS + 1, SIZE, SIZE)
    with pytest.raises(RuntimeError, match="must match the size"):
        found.advance()


def test_a_plain_loop_gives_the_same() -> None:
    """Eq. 3 and B.3 written out, for one image without extras."""
    settings = SearchSettings(
        iterations=8, noise=NoiseSchedule((2.0, 1.0, 0.5), (0.5, 0.75)), judge_every=8, keep="last"
    )
    found = run(search([1], settings))
    (seed,) = image_seeds(0, [1])
    torch.manual_seed(seed)
    prior = DeepImagePrior(SIZE, PriorSettings(CHANNELS)).double()
    generator = torch.Generator().manual_seed(seed)

    def noise() -> Tensor:
        shape = (1, CHANNELS, SIZE, SIZE)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    fixed = noise()
    optimizer = torch.optim.Adam(prior.parameters(), lr=0.01)
    for std in (2, 2, 2, 2, 1, 1, 0.5, 0.5):
        embedding = ENCODER(prior(fixed + std * noise()).flatten(1))
        loss = 1 - F.cosine_similarity(embedding, TARGETS[[1]], dim=1).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.testing.assert_close(found.images, prior(fixed).detach(), rtol=0, atol=1e-8)


def test_a_stopped_search_continues_to_the_same_bits() -> None:
    settings = replace(SETTINGS, patience=8)
    whole = run(search([0, 1, 2], settings))
    begun = search([0, 1, 2], settings)
    for _ in range(7):
        begun.advance()
    state = copy.deepcopy(begun.state_dict())
    continued = search([0, 1, 2], settings)
    continued.load_state_dict(state)
    run(continued)
    assert torch.equal(continued.images, whole.images)
    assert torch.equal(continued.similarity, whole.similarity)
    assert len(continued.history) == len(whole.history) == 3


@pytest.mark.parametrize("grouped", [False, True])
def test_an_image_that_is_good_enough_stops_alone(grouped: bool) -> None:
    free = run(search([0, 1, 2], grouped=grouped))
    looks = torch.stack(free.history)
    # Reached by one of the three at the first look.
    bound = float(looks[0].sort().values[-2:].mean())
    stopped = run(search([0, 1, 2], replace(SETTINGS, stop_above=bound), grouped))
    first = int(looks[0].argmax())
    assert int(stopped.stopped_at[first]) == 4
    torch.testing.assert_close(stopped.similarity[first].float(), looks[0, first])
    for other in {0, 1, 2} - {first}:
        after = next((at for at in range(3) if looks[at, other] > bound), 2)
        expected = looks[: after + 1, other].max()
        torch.testing.assert_close(stopped.similarity[other].float(), expected)
    assert bool(torch.stack(stopped.history)[1:, first].isnan().all())


def test_the_best_look_is_kept_or_the_last() -> None:
    best, last = (
        run(search([0], replace(SETTINGS, keep=k, judge_every=1))) for k in ("best", "last")
    )
    looks = torch.stack(best.history)[:, 0]
    torch.testing.assert_close(best.similarity[0].float(), looks.max())
    torch.testing.assert_close(last.similarity[0].float(), looks[-1])
    _, similarity = best.objective(best.images, torch.tensor([0]))
    torch.testing.assert_close(similarity, best.similarity)


def test_noise_falls_at_half_and_three_quarters() -> None:
    schedule = NoiseSchedule()
    stds = [schedule.std(i, 20_000) for i in (0, 9_999, 10_000, 14_999, 15_000, 19_999)]
    assert stds == [10, 10, 2, 2, 0.5, 0.5]
    short = [schedule.std(i, 8) for i in range(8)]
    assert short == [10, 10, 10, 10, 2, 2, 0.5, 0.5]
    assert NoiseSchedule(reading="variance").std(0, 8) == pytest.approx(10**0.5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"iterations": 0}, "at least 1"),
        ({"crop": 0.0}, "crop"),
        ({"averaging": 1.0}, "averaging"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate .* got nan"),
        ({"total_variation": float("nan")}, "total_variation"),
        ({"stop_above": float("nan")}, "stop_above"),
        ({"jitter": -1}, "jitter"),
        ({"judge_every": 0}, "judge_every"),
        ({"patience": 0}, "patience"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SearchSettings(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="need 1 ends"):
        NoiseSchedule((1.0, 2.0))
    with pytest.raises(ValueError, match="rise between 0 and 1"):
        NoiseSchedule(until=(0.75, 0.5))


def test_divergence_is_told() -> None:
    found = search([0], replace(SETTINGS, judge_every=1))
    with torch.no_grad():
        next(found.priors.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="diverged"):
        found.advance()


def test_views_are_shifts_by_whole_pixels_and_crops() -> None:
    images = torch.rand(2, 3, 9, 9, dtype=torch.float64)

    def views(seed: int, **options: float) -> Tensor:
        sources = [torch.Generator().manual_seed(seed + i) for i in range(2)]
        return random_views(images, sources, 4, **options)  # type: ignore[arg-type]

    assert torch.equal(views(0), images.repeat_interleave(4, 0))
    shifted = views(0, jitter=2)
    padded = F.pad(images, (2, 2, 2, 2), mode="reflect")
    seen = set()
    for at, view in enumerate(shifted):
        inside = view[:, 2:-2, 2:-2]
        matches = [
            (dy, dx)
            for dy in range(5)
            for dx in range(5)
            if torch.allclose(inside, padded[at // 4][:, dy + 2 : dy + 7, dx + 2 : dx + 7])
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) > 3
    # A crop of a ramp is a flatter ramp inside its range.
    ramp = torch.linspace(0, 1, 9, dtype=torch.float64).expand(1, 3, 9, 9)
    crops = random_views(ramp, [torch.Generator().manual_seed(0)], 6, crop=0.5)
    slope = crops[:, 0, 4, 5] - crops[:, 0, 4, 4]
    assert 0.5 / 8 <= float(slope.min()) < float(slope.max()) <= 1 / 8
    # An image's views do not depend on what else there is.
    alone = random_views(images[1:], [torch.Generator().manual_seed(1)], 4, jitter=2, crop=0.7)
    torch.testing.assert_close(views(0, jitter=2, crop=0.7)[4:], alone)


def test_total_variation_is_the_mean_step() -> None:
    ramp = torch.arange(5.0).expand(1, 2, 5, 5) * 0.25
    torch.testing.assert_close(total_variation(ramp), torch.tensor([0.25]))
    assert float(total_variation(torch.ones(1, 3, 4, 4))) == 0
