"""The image prior of the inversion: an untrained U-Net whose weights are all that is searched for.

Reconstructing Training Data From Real-World Models Trained with Transfer Learning, section 3.2 and
B.3; the network is that of the inversion method it follows (Tumanyan et al., 2022), which is Deep
Image Prior's (Ulyanov et al., 2018).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.colours import Colours, to_colours

CHANNELS = (16, 32, 64, 128, 128, 128)
KERNELS = (7, 7, 5, 5, 3, 3)
SKIP_CHANNELS = 4


@dataclass(frozen=True)
class PriorSettings:
    """What the generators of images are like.

    Attributes:
        noise_channels: Channels of the input: 32 in the method's reference, 3 in the paper.
        num_scales: Scales of the U-Net; fewer where the image is too small.
        colours: How three channels become a colour, see :func:`~models.colours.to_colours`.
        grouped: One module of grouped convolutions for a batch in place of a loop over modules.
            Slower on a CPU; the images are the same but for rounding.
    """

    noise_channels: int = 32
    num_scales: int = 6
    colours: Colours = "rgb"
    grouped: bool = False

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One is not positive.
        """
        if min(self.noise_channels, self.num_scales) < 1:
            raise ValueError("noise_channels and num_scales must be at least 1")


DEFAULT_PRIOR = PriorSettings()


class _Block(nn.Module):
    """Convolution, batch normalisation, LeakyReLU, for G images that share no weight.

    Args:
        groups: Number of images G; channels of image g are the g-th of G equal blocks.
        in_channels: Per image.
        out_channels: Per image.
        kernel: Side of the kernel.
        stride: Of the convolution.
    """

    def __init__(
        self, groups: int, in_channels: int, out_channels: int, kernel: int, stride: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            groups * in_channels,
            groups * out_channels,
            kernel,
            stride=stride,
            padding=kernel // 2,
            padding_mode="reflect",
            groups=groups,
        )
        self.norm = _norm(groups * out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (1, G·in, H, W) to (1, G·out, H', W')."""
        normalised: Tensor = self.norm(self.conv(x))
        return F.leaky_relu(normalised, 0.2, inplace=True)


def _norm(channels: int) -> nn.BatchNorm2d:
    """Statistics of the image at hand, always: the prior is never in evaluation mode."""
    return nn.BatchNorm2d(channels, track_running_stats=False)


class _Scale(nn.Module):
    """One scale of the U-Net, and inside it the coarser ones."""

    def __init__(self, groups: int, in_channels: int, level: int, num_scales: int) -> None:
        super().__init__()
        self.groups = groups
        channels, kernel = CHANNELS[level], KERNELS[level]
        self.skip = _Block(groups, in_channels, SKIP_CHANNELS, 1)
        self.down = nn.Sequential(
            _Block(groups, in_channels, channels, kernel, stride=2),
            _Block(groups, channels, channels, kernel),
        )
        is_last = level + 1 == num_scales
        self.inner: nn.Module = (
            nn.Identity() if is_last else _Scale(groups, channels, level + 1, num_scales)
        )
        merged = SKIP_CHANNELS + (channels if is_last else CHANNELS[level + 1])
        self.merge = _norm(groups * merged)
        self.up = nn.Sequential(
            _Block(groups, merged, channels, kernel), _Block(groups, channels, channels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        skip = self.skip(x)
        deep = self.inner(self.down(x))
        # Sides that are odd at some scale come back to their own length.
        deep = F.interpolate(deep, size=skip.shape[-2:], mode="bilinear", align_corners=False)
        if self.groups == 1:
            merged = torch.cat([skip, deep], dim=1)
        else:
            per_image = [torch.unflatten(part, 1, (self.groups, -1)) for part in (skip, deep)]
            merged = torch.cat(per_image, dim=2).flatten(1, 2)
        up: Tensor = self.up(self.merge(merged))
        return up


class DeepImagePrior(nn.Module):
    """A skip U-Net from noise to an image, or G of them side by side that share no weight.

    Six scales with 16, 32, 64, 128, 128, 128 channels down and up, kernels 7, 7, 5, 5, 3, 3, stride
    2 down, bilinear up, 4 skip channels, reflection padding, batch normalisation, LeakyReLU 0.2, a
    1×1 convolution after each block up, a sigmoid at the end. Small images have fewer scales:
    normalisation over one pixel is empty, and reflection needs more pixels than it adds.

    Args:
        image_size: Side S of an image.
        settings: What the network is like.
        groups: Number of images G.

    Raises:
        ValueError: The image is too small for one scale.
    """

    def __init__(
        self, image_size: int, settings: PriorSettings = DEFAULT_PRIOR, groups: int = 1
    ) -> None:
        super().__init__()
        num_scales = min(settings.num_scales, largest_num_scales(image_size))
        self.groups = groups
        self.colours = settings.colours
        self.net = _Scale(groups, settings.noise_channels, 0, num_scales)
        self.head = nn.Conv2d(groups * CHANNELS[0], groups * 3, 1, groups=groups)

    def forward(self, noise: Tensor) -> Tensor:
        """Noise (G, c, S, S) to images (G, 3, S, S) in [0, 1]."""
        side_by_side = noise if self.groups == 1 else noise.flatten(0, 1).unsqueeze(0)
        pixels: Tensor = self.head(self.net(side_by_side))
        return to_colours(pixels.view(self.groups, 3, *pixels.shape[-2:]), self.colours)


class SeparatePriors(nn.Module):
    """Priors of B images, each run by itself.

    Args:
        priors: Each with one group.
    """

    def __init__(self, priors: Sequence[DeepImagePrior]) -> None:
        super().__init__()
        self.priors = nn.ModuleList(priors)
        # A fifth faster on a CPU, and what tensor cores want.
        self.to(memory_format=torch.channels_last)

    def forward(self, noise: Tensor, members: Sequence[int]) -> Tensor:
        """Images (A, 3, S, S) in [0, 1] of some of the B, from their noise (A, c, S, S).

        Args:
            noise: Of the images asked for.
            members: Which of the B they are.
        """
        inputs = torch.split(noise.contiguous(memory_format=torch.channels_last), 1)
        priors = [self.priors[member] for member in members]
        return torch.cat([prior(own) for prior, own in zip(priors, inputs, strict=True)])


class GroupedPriors(nn.Module):
    """Priors of B images as one module of grouped convolutions.

    Args:
        priors: Each with one group; their weights are copied.
        together: A prior with B groups.
    """

    def __init__(self, priors: Sequence[DeepImagePrior], together: DeepImagePrior) -> None:
        super().__init__()
        states = [prior.state_dict() for prior in priors]
        stacked = {name: torch.cat([state[name] for state in states]) for name in states[0]}
        together.load_state_dict(stacked)
        self.together = together

    def forward(self, noise: Tensor, members: Sequence[int]) -> Tensor:
        """As that of :class:`SeparatePriors`; images not asked for cost as much as the others."""
        chosen = list(members)
        everything = noise.new_zeros(self.together.groups, *noise.shape[1:])
        everything[chosen] = noise
        images: Tensor = self.together(everything)
        return images[chosen]


Priors = SeparatePriors | GroupedPriors


def largest_num_scales(image_size: int) -> int:
    """How many scales an image of this side allows.

    Raises:
        ValueError: Not one.
    """
    size, scales = image_size, 0
    for kernel in KERNELS:
        size = -(-size // 2)
        if size <= max(kernel // 2, 1):
            break
        scales += 1
    if scales == 0:
        raise ValueError(f"images of side {image_size} are too small; the least is 7")
    return scales


def build_priors(
    seeds: Sequence[int], image_size: int, settings: PriorSettings = DEFAULT_PRIOR
) -> Priors:
    """Priors of several images, each initialised from its own seed alone.

    Args:
        seeds: One for each image.
        image_size: Side S.
        settings: What they are like.

    Returns:
        A module that maps noise (A, noise_channels, S, S) and the numbers of A of the images to
        these images (A, 3, S, S).
    """
    priors = []
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            priors.append(DeepImagePrior(image_size, settings))
    if not settings.grouped:
        return SeparatePriors(priors)
    return GroupedPriors(priors, DeepImagePrior(image_size, settings, groups=len(priors)))
