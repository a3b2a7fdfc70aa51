"""What a masked autoencoder shows of an image: the raw material of every membership attack."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Autoencoder(Protocol):
    """What is measured: :class:`models.masked_autoencoder.MaskedAutoencoder`, and its like."""

    training: bool

    @property
    def encoder(self) -> nn.Module:
        """With a final ``norm``."""

    @property
    def decoder(self) -> Callable[..., Any]:
        """From latent and masking to values of all patches."""

    def normalise(self, images: Tensor) -> Tensor:
        """Images in [0, 1] to the scale that the layers see."""

    def patchify(self, images: Tensor) -> Tensor:
        """Images (N, c, S, S) to patches (N, L, p²·c)."""

    def target(self, patches: Tensor) -> Tensor:
        """What the decoder is to predict for patches."""

    def masking(self, images: Tensor, mask_ratio: float, noise: Tensor | None = None) -> Any:  # noqa: ANN401
        """Which patches are visible, and the mask (N, L), 1 = removed."""

    def encode_patches(self, patches: Tensor, visible: Tensor | None = None) -> Tensor:
        """Latent tokens (N, 1 + K, D), class token first."""

    def block_features(self, images: Tensor) -> list[Tensor]:
        """Tokens (N, 1 + L, D) of whole images behind each block."""


@dataclass(frozen=True)
class Signals:
    """What one model shows of N images.

    Attributes:
        masked_error: Mean squared error of the removed patches under each of K masks (N, K).
        all_error: The same of all patches (N, K).
        dispersion: Mean pairwise cosine distance of the embeddings under these masks (N,); zero
            for K = 1. An embedding is the mean of the encoder's patch tokens.
        consistency: The same under independent random masks (N,), for baseline D.
        embedding: The class token of the whole image (N, D).
        internals: Class token and mean patch token behind each block of the whole image
            (N, 2·depth·D), the white-box view.
        statistics: Norm, standard deviation and maximum of the tokens behind each block
            (N, 3·depth).
    """

    masked_error: Tensor
    all_error: Tensor
    dispersion: Tensor
    consistency: Tensor
    embedding: Tensor
    internals: Tensor
    statistics: Tensor

    def __len__(self) -> int:
        return len(self.masked_error)

    @staticmethod
    def join(parts: "list[Signals]") -> "Signals":
        """Signals of consecutive batches as one."""
        names = [field.name for field in fields(Signals)]
        return Signals(**{n: torch.cat([getattr(part, n) for part in parts]) for n in names})


@torch.no_grad()
def measure_signals(
    model: Autoencoder,
    images: Tensor,
    noise: Tensor,
    mask_ratio: float,
    *,
    independent: Tensor | None = None,
    whole: bool = True,
    rows_per_pass: int = 512,
) -> Signals:
    """Shows images to a model, each under the same K masks and once whole.

    Args:
        model: In evaluation mode, so that neither dropout nor statistics act.
        images: (N, c, S, S) in [0, 1].
        noise: (K, L), from :func:`~attacks.membership_masks.mask_noise`.
        mask_ratio: Share of patches to remove.
        independent: Noise of the masks of ``consistency`` (k, L); without it, that is empty (N, 0).
        whole: Also show the images unmasked; else embedding, internals and statistics are empty
            (N, 0), as nothing asks for those of a reference.
        rows_per_pass: Masked images in one forward pass; bounds the memory.

    Returns:
        The signals, on the images' device.

    Raises:
        ValueError: The model is in training mode, or images or noise do not fit it.
    """
    if model.training:
        raise ValueError("the model must be in evaluation mode to be measured")
    masks_per_pass = max(1, rows_per_pass // len(images))
    masked, everywhere, sums = [], [], []
    for rows in torch.split(noise.to(images.device), masks_per_pass):
        seen = _Masked(model, images, rows, mask_ratio)
        errors, removed = seen.errors(), seen.removed()
        masked.append((errors * removed).sum(2) / removed.sum(2))
        everywhere.append(errors.mean(2))
        sums.append(seen.sum_of_units())
    nothing = images.new_empty(len(images), 0)
    consistency = nothing
    if independent is not None:
        # The encoder alone is asked here.
        steadiness = [
            _Masked(model, images, rows, mask_ratio).sum_of_units()
            for rows in torch.split(independent.to(images.device), masks_per_pass)
        ]
        consistency = _mean_distance(steadiness, len(independent))
    return Signals(
        torch.cat(masked, 1),
        torch.cat(everywhere, 1),
        _mean_distance(sums, len(noise)),
        consistency,
        *(_whole_pass(model, images, rows_per_pass) if whole else [nothing] * 3),
    )


class _Masked:
    """N images under k masks, in N·k rows."""

    def __init__(
        self, model: Autoencoder, images: Tensor, noise: Tensor, mask_ratio: float
    ) -> None:
        self.model = model
        self.shape = (len(images), len(noise), -1)
        self.patches = model.patchify(model.normalise(images)).repeat_interleave(len(noise), 0)
        # Of the images, only their number and device matter here.
        self.masking = model.masking(self.patches, mask_ratio, noise.repeat(len(images), 1))
        self.latent = model.encode_patches(self.patches, self.masking.visible)

    def errors(self) -> Tensor:
        """Mean squared error of every patch (N, k, L)."""
        wrong = self.model.decoder(self.latent, self.masking) - self.model.target(self.patches)
        squares: Tensor = wrong.square().mean(2)
        return squares.view(self.shape)

    def removed(self) -> Tensor:
        """The masks (N, k, L), 1 = removed."""
        mask: Tensor = self.masking.mask
        return mask.to(self.latent).view(self.shape)

    def sum_of_units(self) -> Tensor:
        """Sum (N, D) of the embeddings under the k masks, each made a unit vector."""
        units = F.normalize(self.latent[:, 1:].mean(1).double(), dim=1)
        return units.view(self.shape).sum(1)


def _mean_distance(sums: list[Tensor], number: int) -> Tensor:
    """Mean cosine distance (N,) of the pairs of k unit vectors, given partial sums (N, D)."""
    total = torch.stack(sums).sum(0)
    if number < 2:
        return torch.zeros_like(total[:, 0])
    # ‖Σ u‖² = k + Σ of the cosines of all ordered pairs.
    return 1 - (total.square().sum(1) - number) / (number * (number - 1))


def _whole_pass(
    model: Autoencoder, images: Tensor, rows_per_pass: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Embedding, internals and statistics of unmasked images."""
    embeddings, internals, statistics = [], [], []
    for part in torch.split(images, rows_per_pass):
        blocks = model.block_features(part)
        last = model.encoder.get_submodule("norm")(blocks[-1])
        embeddings.append(last[:, 0])
        internals.append(torch.cat([t for b in blocks for t in (b[:, 0], b[:, 1:].mean(1))], 1))
        values = [v for b in blocks for v in (b.norm(dim=2).mean(1), b.std((1, 2)), b.amax((1, 2)))]
        statistics.append(torch.stack(values, 1))
    return torch.cat(embeddings), torch.cat(internals), torch.cat(statistics)
