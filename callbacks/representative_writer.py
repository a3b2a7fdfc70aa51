"""Writes the representatives that a selection chose."""

from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor

from artifacts.tensors import REPRESENTATIVES, write_tensors
from callbacks.expected import expect
from callbacks.provenance import provenance
from callbacks.writing import writes_results
from lightning_modules.representative_selection import RepresentativeSelection
from lightning_modules.true_embeddings import TrueEmbeddings


class RepresentativeWriter(L.Callback):
    """Writes ``representatives.safetensors`` into the run directory."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuses modules that choose no representatives before anything is run."""
        expect(pl_module, self, RepresentativeSelection, TrueEmbeddings)

    def on_predict_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401 - as the base class
        batch: Any,  # noqa: ANN401 - as the base class
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Writes the selection of the only batch."""
        if not writes_results(trainer):
            return
        representatives: dict[str, Tensor] = outputs
        path = Path(trainer.default_root_dir) / "representatives.safetensors"
        write_tensors(path, REPRESENTATIVES, representatives, provenance(trainer))
        count = len(representatives["score"])
        pl_module.print(f"{count} representatives, best first, are in {path}")
