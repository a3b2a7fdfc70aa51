"""Colours stay in [0, 1], and each space does what it is for."""

from typing import get_args

import pytest
import torch

from models.colours import _NATURAL, Colours, to_colours


@pytest.mark.parametrize("colours", get_args(Colours))
def test_every_space_gives_colours_and_gradients(colours: Colours) -> None:
    generator = torch.Generator().manual_seed(0)
    channels = 3 * torch.randn(2, 3, 8, 8, generator=generator, dtype=torch.float64)
    channels.requires_grad_()
    images = to_colours(channels, colours)
    assert images.shape == channels.shape
    assert 0 < float(images.detach().min()) < 0.1
    assert 0.9 < float(images.detach().max()) < 1
    assert torch.autograd.gradcheck(lambda x: to_colours(x, colours), channels[:1, :, :2, :2])


def test_bounded_colours_cannot_part() -> None:
    channels = torch.zeros(1, 3, 1, 2, dtype=torch.float64)
    channels[0, :, 0, 0] = torch.tensor([1.0, 1e3, -1e3])
    channels[0, 0, 0, 1] = 5.0
    vivid, grey = to_colours(channels, "bounded")[0, :, 0].logit().T
    # Two of red, green and blue differ most along one axis and a part of the other: 2 (√½ + √1.5).
    assert float(vivid.max() - vivid.min()) == pytest.approx(2 * (0.5**0.5 + 1.5**0.5), abs=1e-9)
    assert float(grey.max() - grey.min()) == pytest.approx(0, abs=1e-9)


def test_the_mix_is_that_of_natural_images() -> None:
    from sklearn.datasets import load_sample_image

    # A street: one of the library's two photographs; the other is of a single red flower.
    pixels = torch.from_numpy(load_sample_image("china.jpg").copy()).double().flatten(0, 1) / 255
    together = torch.corrcoef(pixels.T)
    # Back through the mix, the channels of a real photograph hardly vary together.
    apart = torch.corrcoef(torch.linalg.solve(torch.tensor(_NATURAL).double(), pixels.T))
    off = ~torch.eye(3, dtype=torch.bool)
    assert float(together[off].abs().mean()) > 0.9
    assert float(apart[off].abs().mean()) < 0.3
