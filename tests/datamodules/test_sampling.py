"""Which images are drawn: balanced, disjoint, repeatable."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.errors import InputError
from datamodules.sampling import Drawing, draw_disjoint

labels_of_images = st.lists(st.integers(-1, 3), min_size=30, max_size=80)


def counts(labels: torch.Tensor) -> list[int]:
    return [int((labels == label).sum()) for label in torch.unique(labels)]


@settings(deadline=None, max_examples=100)
@given(
    labels_of_images,
    st.sampled_from(["test", "train"]),
    st.booleans(),
    st.integers(1, 6),
    st.integers(0, 2**31),
)
def test_draws_are_balanced_disjoint_and_of_the_right_side(
    values: list[int], test_from: str, official: bool, per_label: int, seed: int
) -> None:
    labels = torch.tensor(values)
    generator = torch.Generator().manual_seed(seed)
    has_label = torch.rand(len(labels), generator=generator) < 0.9
    held_out = torch.rand(len(labels), generator=generator) < 0.4 if official else None
    pool = has_label if held_out is None else has_label & ~held_out
    size = per_label * len(torch.unique(labels[pool]))
    drawing = Drawing(num_train=size, test_from=test_from, seed=seed)  # type: ignore[arg-type]
    try:
        train, test = drawing.draw(labels, has_label, held_out)
    except InputError as error:
        assert "asked for" in str(error) or "balanced" in str(error)  # noqa: PT017
        return
    assert len(train) == size
    assert not set(train.tolist()) & set(test.tolist())
    assert has_label[train].all()
    assert has_label[test].all()
    assert len(set(counts(labels[train]))) == 1
    if held_out is not None:
        assert not held_out[train].any()
        assert bool(held_out[test].all()) or test_from == "train"
    if test_from == "train":
        assert len(train) + len(test) == int(pool.sum())
    again = drawing.draw(labels, has_label, held_out)
    assert torch.equal(train, again[0])
    assert torch.equal(test, again[1])


def test_every_image_is_drawn_equally_often() -> None:
    labels = torch.tensor([0] * 10 + [1] * 30)
    everything = torch.ones(40, dtype=torch.bool)
    often = torch.zeros(40)
    for seed in range(2000):
        train, _ = Drawing(num_train=10, test_from="train", seed=seed).draw(
            labels, everything, None
        )
        often[train] += 1
    # Binomial with p = 1/2 and 1/6: within 5 standard deviations.
    assert (often[:10] - 1000).abs().max() < 5 * (2000 / 4) ** 0.5
    assert (often[10:] - 2000 / 6).abs().max() < 5 * (2000 * 5 / 36) ** 0.5


def test_test_set_of_an_undivided_dataset_does_not_depend_on_the_training_set() -> None:
    labels = torch.arange(100) % 2
    everything = torch.ones(100, dtype=torch.bool)
    first, second = (
        Drawing(num_train=size, test_fraction=0.3, seed=4).draw(labels, everything, None)[1]
        for size in (10, 60)
    )
    assert torch.equal(first, second)
    assert counts(labels[first]) == [15, 15]
    train, test = Drawing(test_fraction=0).draw(labels, everything, None)
    assert (len(train), len(test)) == (100, 0)


def test_unbalanced_draws() -> None:
    labels = torch.arange(100) % 10
    everything = torch.ones(100, dtype=torch.bool)
    drawing = Drawing(num_train=33, num_test=7, balanced=False, test_from="train")
    train, test = drawing.draw(labels, everything, None)
    assert (len(train), len(test)) == (33, 7)
    with pytest.raises(InputError, match="training images: 33 samples cannot be balanced over 10"):
        Drawing(num_train=33).draw(labels, everything, None)
    with pytest.raises(InputError, match="test images: cannot draw 30 of 20"):
        Drawing(num_test=30, balanced=False).draw(labels, everything, None)


@pytest.mark.parametrize(
    "options",
    [{"test_fraction": 1.0}, {"test_fraction": -0.1}, {"test_from": "val"}, {"seed": 2**64}],
)
def test_impossible_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        Drawing(**options)  # type: ignore[arg-type]


def test_disjoint_samples() -> None:
    labels = torch.arange(60) % 3
    sizes = {"member": 12, "non_member": 12, "shadow": 30}
    samples = draw_disjoint(labels, sizes, seed=3)
    assert {name: len(sample) for name, sample in samples.items()} == sizes
    assert len(torch.unique(torch.cat(list(samples.values())))) == 54
    assert all(len(set(counts(labels[sample]))) == 1 for sample in samples.values())
    # A further sample changes none of those before it.
    more = draw_disjoint(labels, {**sizes, "population": 6}, seed=3)
    assert all(torch.equal(samples[name], more[name]) for name in sizes)
    assert not torch.equal(samples["member"], draw_disjoint(labels, sizes, seed=4)["member"])
    with pytest.raises(InputError, match="'shadow': label 0 has 2 samples, 3 are asked for"):
        draw_disjoint(labels, {"member": 54, "shadow": 9}, seed=0)
