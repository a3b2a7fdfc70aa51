"""Embeddings of real images in the form of an attack's representatives: evaluation, not attack."""

from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor

from artifacts.errors import InputError
from artifacts.tensors import REPRESENTATIVES, read_tensors
from attacks.similarity import nearest_by_cosine
from lightning_modules.inverted_images import load_standardisation
from lightning_modules.sharding import require_one_process

What = Literal["training", "held_out", "nearest_training", "training_norm"]


class TrueEmbeddings(L.LightningModule):
    """Writes what an inversion would be given if the reconstruction were perfect; ``predict`` only.

    Reconstructing Training Data From Real-World Models Trained with Transfer Learning, Fig. 8, A.1,
    A.6, A.9, B.4: inversions of original embeddings show what an inversion can do at best. This
    reads the training set, so it is evaluation; no attack stage reads what it writes.

    Args:
        probe: The attacked probe; embeddings are then in its standardised space. Without one they
            are the backbone's.
        what: ``"training"`` or ``"held_out"``: the first images of that set.
            ``"nearest_training"``: for each representative the training sample that it is nearest
            to. ``"training_norm"``: the representatives themselves, at the norm of that sample, as
            the paper's UnCLIP has them (B.4).
        representatives: For the last two, a ``representatives.safetensors``.
        top: At most this many.

    Raises:
        InputError: Options do not fit each other.
    """

    def __init__(
        self,
        probe: str | None = None,
        what: What = "training",
        representatives: str | None = None,
        top: int = 40,
    ) -> None:
        super().__init__()
        if (what in ("nearest_training", "training_norm")) != (representatives is not None):
            raise InputError(f"what={what} and representatives do not belong together")
        if top < 1:
            raise InputError(f"top must be at least 1, got {top}")
        self.probe_path = probe
        self.what = what
        self.representatives_path = representatives
        self.top = top

    def setup(self, stage: str) -> None:
        """Refuses to share the one batch.

        Raises:
            InputError: There are several processes.
        """
        require_one_process(self.trainer, "TrueEmbeddings reads the whole training set")

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """The embeddings as ``representatives`` (k, D), ``score`` (k,) and ``label`` (k,)."""
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        inputs, labels = (t.to(self.device) for t in data.train_tensors)
        if self.what == "held_out":
            inputs, labels = batch
        probe = load_standardisation(self.probe_path, inputs.shape[1], "the data module")
        vectors = probe.to(self.device).standardise(inputs)
        if self.representatives_path is None:
            vectors, labels = vectors[: self.top], labels[: self.top]
            score = torch.ones(len(vectors))
        else:
            found, _ = read_tensors(self.representatives_path, REPRESENTATIVES)
            given = found["representatives"][: self.top].to(vectors)
            score, index = nearest_by_cosine(given, vectors)
            vectors, labels = vectors[index], labels[index]
            if self.what == "training_norm":
                norm = vectors.norm(dim=1, keepdim=True)
                vectors = norm * torch.nn.functional.normalize(given, dim=1)
        return {"representatives": vectors, "score": score, "label": labels}
