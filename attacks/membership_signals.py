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
        dispersion: Mean pairwise cosine distance of the embeddings under the first k masks, for
            every k from 1 to K (N, K); zero for k = 1. An embedding is the mean of the encoder's
            patch tokens.
        embedding: The class token of the whole image (N, D).
        internals: Class token and mean patch token behind each block of the whole image
            (N, 2·depth·D), the white-box view.
        statistics: Norm, standard deviation and maximum of the tokens behind each block
            (N, 3·depth).
    """

    masked_error: Tensor
    all_error: Tensor
    dispersion: Tensor
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
    whole: bool = True,
    rows_per_pass: int = 512,
) -> Signals:
    """Shows images to a model, each under the same K masks and once whole.

    Args:
        model: In evaluation mode, so that neither dropout nor statistics act.
        images: (N, c, S, S) in [0, 1].
        noise: (K, L), from :func:`~attacks.membership_masks.mask_noise`.
        mask_ratio: Share of patches to remove.
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
    masked, everywhere, dispersion = [], [], []
    total = torch.zeros((), device=images.device)
    for start in range(0, len(noise), masks_per_pass):
        rows = noise[start : start + masks_per_pass].to(images.device)
        errors, removed, units = _masked_pass(model, images, rows, mask_ratio)
        masked.append((errors * removed).sum(2) / removed.sum(2))
        everywhere.append(errors.mean(2))
        # ‖Σ u‖² = k + Σ of the cosines of all ordered pairs.
        sums = total + units.cumsum(1)
        total = sums[:, -1:]
        count = torch.arange(start + 1, start + 1 + units.shape[1], device=images.device)
        pairs = (sums.square().sum(2) - count) / (count * (count - 1)).clamp_min(1)
        dispersion.append(torch.where(count > 1, 1 - pairs, 0.0))
    return Signals(
        torch.cat(masked, 1),
        torch.cat(everywhere, 1),
        torch.cat(dispersion, 1),
        *(
            _whole_pass(model, images, rows_per_pass)
            if whole
            else [images.new_empty(len(images), 0)] * 3
        ),
    )


def _masked_pass(
    model: Autoencoder, images: Tensor, noise: Tensor, mask_ratio: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Under k masks: error of every patch and the mask (N, k, L), and unit embeddings (N, k, D)."""
    shape = (len(images), len(noise), -1)
    patches = model.patchify(model.normalise(images)).repeat_interleave(len(noise), 0)
    # Of the images, only their number and device matter here.
    masking = model.masking(patches, mask_ratio, noise.repeat(len(images), 1))
    latent = model.encode_patches(patches, masking.visible)
    error = (model.decoder(latent, masking) - model.target(patches)).square().mean(2)
    units = F.normalize(latent[:, 1:].mean(1).double(), dim=1)
    return error.view(shape), masking.mask.to(error).view(shape), units.view(shape)


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
