"""Writes how attackable a probe is."""

from dataclasses import asdict
from pathlib import Path

import lightning as L

from artifacts.files import write_json
from callbacks.expected import expect
from callbacks.writing import writes_results
from lightning_modules.probe_mlp import ProbeMLP


class AttackabilityWriter(L.Callback):
    """Writes ``attackability.json`` into the run directory of a probe's test, and says it in words.

    The same numbers are logged as ``attackability/*`` by the module itself.
    """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuses other modules than :class:`ProbeMLP` before anything is run."""
        expect(pl_module, self, ProbeMLP)

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes the file on the first process."""
        assert isinstance(pl_module, ProbeMLP)  # setup() has seen to it.
        facts = pl_module.attackability
        if facts is None or not writes_results(trainer):
            return
        obstacles = facts.obstacles()
        path = Path(trainer.default_root_dir) / "attackability.json"
        write_json(path, {**asdict(facts), "obstacles": obstacles})
        pl_module.print(
            f"the training data leave {facts.residual_best:.2f} of the weights unexplained; "
            f"{facts.equations_per_unknown:.1f} equations an unknown; {path}"
        )
        for obstacle in obstacles:
            pl_module.print(f"in the way of an attack: {obstacle}")
        if not obstacles:
            pl_module.print("nothing stands in the way of an attack")
