"""Writes the candidates of a finished reconstruction."""

from pathlib import Path

import lightning as L
import torch

from artifacts.errors import InputError
from artifacts.tensors import CANDIDATES, write_tensors
from callbacks.provenance import provenance
from lightning_modules.candidate_search import CandidateSearch


class CandidateWriter(L.Callback):
    """Writes ``candidates.safetensors`` into the run directory when the reconstruction ends."""

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes the file on the first process, also when a finished run is only continued."""
        assert isinstance(pl_module, CandidateSearch)
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        done = trainer.global_step * pl_module.iterations_per_step
        if trainer.global_step < pl_module.num_steps:
            raise InputError(
                f"the search stopped after {done} of {pl_module.iterations} iterations and writes "
                "no candidates; run it again without the trainer's limits to continue"
            )
        path = Path(trainer.default_root_dir) / "candidates.safetensors"
        diverged = torch.nonzero(pl_module.diverged).squeeze(1).tolist()
        metadata = provenance(trainer, seed=pl_module.seed, diverged_draws=diverged)
        write_tensors(path, CANDIDATES, pl_module.result(), metadata)
        pl_module.print(
            f"{pl_module.num_draws - len(diverged)} draws of {pl_module.num_candidates} "
            f"candidates are in {path}"
        )
