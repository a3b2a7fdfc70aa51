"""From a generator's three unbounded channels to colours in [0, 1]."""

from typing import Literal

import torch
from torch import Tensor

Colours = Literal["rgb", "decorrelated", "bounded"]

# Colours of natural images as a square root of their covariance, from ImageNet: Olah, Mordvintsev
# and Schubert, Feature Visualization (2017), appendix; rows are red, green, blue.
_NATURAL = ((0.26, 0.09, 0.02), (0.27, 0.00, -0.05), (0.27, -0.09, 0.03))
# Orthonormal: grey, red against blue, green against both.
_OPPONENT = (
    (3**-0.5, 2**-0.5, 6**-0.5),
    (3**-0.5, 0.0, -2 * 6**-0.5),
    (3**-0.5, -(2**-0.5), 6**-0.5),
)
# Of the logits of a colour along either opponent axis.
_LARGEST_CHROMA = 2.0


def to_colours(channels: Tensor, colours: Colours) -> Tensor:
    """Maps unbounded channels to red, green and blue.

    Args:
        channels: (N, 3, H, W).
        colours: ``"rgb"`` takes each channel's sigmoid, as the method's reference does.
            ``"decorrelated"`` first mixes the channels as the colours of natural images vary
            together, most in brightness. ``"bounded"`` takes the first channel as grey and the
            others as opponent colours, which are bounded: red, green and blue of a pixel cannot
            part as far as in garish patterns.

    Returns:
        (N, 3, H, W) in [0, 1].
    """
    if colours == "rgb":
        return torch.sigmoid(channels)
    if colours == "decorrelated":
        mix = channels.new_tensor(_NATURAL)
        # A step in brightness is then the one that "rgb" makes in each channel.
        mix = mix / mix[:, 0].mean()
    else:
        mix = channels.new_tensor(_OPPONENT)
        grey, chroma = channels[:, :1], channels[:, 1:]
        chroma = _LARGEST_CHROMA * torch.tanh(chroma / _LARGEST_CHROMA)
        channels = torch.cat([grey, chroma], dim=1)
    return torch.sigmoid(torch.einsum("rc,nchw->nrhw", mix, channels))
