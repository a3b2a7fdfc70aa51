"""Writes the candidates of a finished reconstruction."""

from pathlib import Path

import lightning as L

from artifacts.errors import InputError
from artifacts.tensors import CANDIDATES, write_tensors
from callbacks.expected import expect
from callbacks.provenance import provenance
from lightning_modules.candidate_search import CandidateSearch


class CandidateWriter(L.Callback):
    """Writes ``candidates.safetensors`` into the run directory when the reconstruction ends."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuses other modules than :class:`CandidateSearch` before anything is run."""
        expect(pl_module, self, CandidateSearch)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes the file on the first process, also when a finished run is only continued."""
        assert isinstance(pl_module, CandidateSearch)  # setup() has seen to it.
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        done = trainer.global_step * pl_module.iterations_per_step
        if trainer.global_step < pl_module.num_steps:
            raise InputError(
                f"the search stopped after {done} of {pl_module.iterations} iterations and writes "
                "no candidates; run it again without the trainer's limits to continue"
            )
        result = pl_module.result()  # Processes put their draws together.
        if not trainer.is_global_zero:
            return
        path = Path(trainer.default_root_dir) / "candidates.safetensors"
        kept = result["draw"].tolist()
        metadata = provenance(
            trainer,
            seed=pl_module.seed,
            first_draw=pl_module.first_draw,
            num_draws=pl_module.num_draws,
            part=pl_module.part,
            diverged_draws=[draw for draw in pl_module.draws_of_part if draw not in kept],
        )
        write_tensors(path, CANDIDATES, result, metadata)
        pl_module.print(f"{len(kept)} draws of {pl_module.num_candidates} candidates are in {path}")
