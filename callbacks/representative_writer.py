"""Writes the representatives that a selection chose."""

from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor

from artifacts.tensors import REPRESENTATIVES, write_tensors
from callbacks.provenance import provenance


class RepresentativeWriter(L.Callback):
    """Writes ``representatives.safetensors`` into the run directory."""

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
        representatives: dict[str, Tensor] = outputs
        path = Path(trainer.default_root_dir) / "representatives.safetensors"
        write_tensors(path, REPRESENTATIVES, representatives, provenance(trainer))
        count = len(representatives["score"])
        pl_module.print(f"{count} representatives, best first, are in {path}")
