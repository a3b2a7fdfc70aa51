"""The prior is the reference's network, and many of them are what each is alone."""

from typing import Any

import pytest
import torch

from models.deep_image_prior import (
    DeepImagePrior,
    PriorSettings,
    build_priors,
    largest_num_scales,
)


def test_size_is_that_of_the_reference() -> None:
    # The method's reference has 2,606,763 parameters with 32 noise channels.
    assert sum(p.numel() for p in DeepImagePrior(224).parameters()) == 2_606_763


@pytest.mark.parametrize(
    ("image_size", "scales"),
    [(7, 1), (8, 1), (16, 2), (31, 3), (56, 5), (64, 5), (112, 6), (224, 6)],
)
def test_scales_fit_the_image(image_size: int, scales: int) -> None:
    assert largest_num_scales(image_size) == scales
    images = DeepImagePrior(image_size, PriorSettings(noise_channels=3))(
        torch.randn(1, 3, image_size, image_size)
    )
    assert images.shape == (1, 3, image_size, image_size)
    assert bool(torch.isfinite(images).all())
    assert 0 <= float(images.detach().min()) <= float(images.detach().max()) <= 1
    # Reflection and normalisation allow no further scale.
    if scales < 6:
        sides = [image_size]
        for _ in range(scales + 1):
            sides.append(-(-sides[-1] // 2))
        assert sides[-1] <= max((7, 7, 5, 5, 3, 3)[scales] // 2, 1)


def test_too_small_an_image_is_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        DeepImagePrior(6)


def test_grouped_equals_separate_in_values_and_gradients() -> None:
    seeds = [3, 1, 4]
    noise = torch.randn(3, 5, 20, 20, dtype=torch.float64)
    weights = torch.randn(3, 3, 20, 20, dtype=torch.float64)
    results: list[tuple[Any, torch.Tensor]] = []
    for grouped in (False, True):
        priors = build_priors(seeds, 20, PriorSettings(5, grouped=grouped)).double()
        images = priors(noise, [0, 1, 2])
        (images * weights).sum().backward()
        results.append((priors, images))
    (separate, one), (grouped_priors, other) = results
    torch.testing.assert_close(one, other, rtol=0, atol=1e-13)
    names = dict(separate.priors[0].named_parameters())
    for name in names:
        expected = torch.cat([dict(p.named_parameters())[name].grad for p in separate.priors])
        grad = dict(grouped_priors.together.named_parameters())[name].grad
        torch.testing.assert_close(grad, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("grouped", [False, True])
def test_some_of_them_are_asked_for(grouped: bool) -> None:
    priors = build_priors([0, 1, 2], 16, PriorSettings(3, grouped=grouped)).double()
    noise = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    everything = priors(noise, [0, 1, 2])
    torch.testing.assert_close(priors(noise[[2, 0]], [2, 0]), everything[[2, 0]])


def test_each_starts_from_its_own_seed() -> None:
    before = torch.get_rng_state()
    first: Any = build_priors([7, 8], 16)
    second: Any = build_priors([8], 16)
    assert torch.equal(torch.get_rng_state(), before)
    mine = first.priors[1].state_dict()
    alone = second.priors[0].state_dict()
    assert all(torch.equal(mine[name], alone[name]) for name in alone)
    assert not torch.equal(mine["head.weight"], first.priors[0].state_dict()["head.weight"])
