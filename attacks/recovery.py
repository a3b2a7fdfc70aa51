"""How much of a training set an attack recovered. Evaluation only: no attack calls this."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.similarity import nearest_by_cosine, random_directions

# The paper counts a training sample as recovered above 0.75 (A.2); 0.9 is a stricter count.
THRESHOLDS = (0.75, 0.9)


@dataclass(frozen=True)
class Matches:
    """Samples beside the most similar vector that is offered for each.

    Attributes:
        samples: (n, D).
        nearest: The offered vector of highest cosine similarity (n, D).
        similarity: That similarity (n,).
    """

    samples: Tensor
    nearest: Tensor
    similarity: Tensor

    @classmethod
    def find(cls, samples: Tensor, vectors: Tensor) -> "Matches":
        """Matches samples (n, D) with vectors (k, D)."""
        similarity, index = nearest_by_cosine(samples, vectors)
        return cls(samples, vectors[index], similarity)

    def closest(self, top: int = 40) -> Tensor:
        """The samples that are matched best, best first: indices (min(top, n),).

        This is how section 3.3 chooses what to invert, and it needs the training set: evaluation,
        which no attack does.
        """
        return self.similarity.argsort(descending=True, stable=True)[:top]

    def norm_ratio(self) -> Tensor:
        """Norm of each sample's match over that of the sample (n,) (A.1, Fig. 10b)."""
        tiny = torch.finfo(self.samples.dtype).tiny
        ratio: Tensor = self.nearest.norm(dim=1) / self.samples.norm(dim=1).clamp_min(tiny)
        return ratio


@dataclass(frozen=True)
class Recovery:
    """What an attack found of the training set, and what chance would find.

    Attributes:
        recovered: Training samples and the attack's vectors.
        null_held_out: Held-out samples and the attack's vectors: what resemblance alone gives.
        null_random: Training samples and random vectors of the first layer's row space: what
            knowing that space alone gives.
    """

    recovered: Matches
    null_held_out: Matches
    null_random: Matches

    def counts(self) -> dict[str, dict[str, int]]:
        """By threshold, the samples with a similarity above it."""
        return {
            str(threshold): {
                name: int((matches.similarity > threshold).sum())
                for name, matches in vars(self).items()
            }
            for threshold in THRESHOLDS
        }


def measure_recovery(
    train: Tensor, held_out: Tensor, vectors: Tensor, basis: Tensor, seed: int = 0
) -> Recovery:
    """Compares an attack's vectors with the truth, and with chance.

    Args:
        train: Training samples (n, D), in the space of ``vectors``.
        held_out: Samples that were not trained on (N, D); a random n of them are the null.
        vectors: What the attack offers (k, D).
        basis: Orthonormal basis of the space that the first layer's rows span (r, D).
        seed: Chooses held-out samples and random vectors.

    Returns:
        The comparison. With fewer than n held-out samples their null is of that many.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(held_out), generator=generator)[: len(train)]
    return Recovery(
        recovered=Matches.find(train, vectors),
        null_held_out=Matches.find(held_out[chosen.to(held_out.device)], vectors),
        null_random=Matches.find(train, random_directions(basis, len(vectors), generator)),
    )


def rescaled(vectors: Tensor) -> Tensor:
    """Vectors (k, D) of the standardised space at the norm √D.

    A candidate's norm is arbitrary: with λ divided by it, the probe's stationarity hardly changes
    (A.1). Standardised training vectors have mean square 1, so √D needs no training sample.
    """
    norm = vectors.norm(dim=1, keepdim=True).clamp_min(torch.finfo(vectors.dtype).tiny)
    unit: Tensor = vectors / norm
    return unit * math.sqrt(vectors.shape[1])
