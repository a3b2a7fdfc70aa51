"""What all inversions share: items that are finished one by one, and what decides each."""

import hashlib
from abc import abstractmethod

import lightning as L
from torch import Tensor

from artifacts.errors import InputError
from artifacts.weights import sha256_of_content
from lightning_modules.victim import load_probe
from models.probe import Probe

Batch = dict[str, Tensor]


class InvertedImages(L.LightningModule):
    """Makes an image of each item of a batch; ``predict`` only.

    Images are independent of each other and nothing is shared that a training could learn, so
    they are items of a prediction: over devices, or shares of a job array, each comes out as it
    would alone. No argument can bring training data in.

    Args:
        seed: Seed of all images; each has its own, from this one and its index.

    Attributes:
        finished: Indices of images that an earlier, stopped run made; a callback fills it.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        if seed < 0:
            raise InputError(f"seed must be at least 0, got {seed}")
        self.seed = seed
        self.finished: set[int] = set()

    @abstractmethod
    def prepare(self, batch: Batch) -> Batch:
        """Adds what the inversion needs to a batch.

        Raises:
            InputError: The batch does not fit the backbone or probe.
        """

    def unfinished(self, batch: Batch) -> Batch:
        """The items of a batch that no earlier run made, out of inference mode."""
        left = [at for at, i in enumerate(batch["index"].tolist()) if i not in self.finished]
        return {name: value[left].clone() for name, value in batch.items()}

    def fingerprints(self, batch: Batch) -> list[str]:
        """For each item of a prepared batch a hash of all that decides its image."""
        # Files count by their content, wherever they are.
        settings = {
            name: sha256_of_content(value) if name in ("probe", "weights") and value else value
            for name, value in sorted(self.hparams.items())
        }
        common = f"{type(self).__name__} {settings} {self.dtype} {self.trainer.precision}"
        tensors = [batch[name] for name in sorted(batch)]
        return [
            hashlib.sha256(
                common.encode() + b"".join(t[i].cpu().numpy().tobytes() for t in tensors)
            ).hexdigest()
            for i in range(len(batch["index"]))
        ]


def load_standardisation(path: str | None, dimension: int, source: str) -> Probe:
    """A probe for its mean and standard deviation, or one that changes nothing.

    Args:
        path: The attacked probe; None where targets are embeddings as the backbone gives them.
        dimension: Dimension D of an embedding.
        source: What gives such embeddings, for messages.

    Raises:
        InputError: The probe is unreadable, or of another width.
    """
    probe = Probe(dimension, ()).requires_grad_(False) if path is None else load_probe(path)
    if probe.in_features != dimension:
        raise InputError(f"{path} takes {probe.in_features} features, {source} gives {dimension}")
    return probe


def require_width(targets: Tensor, dimension: int, source: str) -> None:
    """Refuses targets (B, D) of another width.

    Raises:
        InputError: They do not belong to ``source``.
    """
    if targets.shape[1] != dimension:
        raise InputError(f"the targets have {targets.shape[1]} features, {source} {dimension}")
