"""Writes and shows what membership attacks found."""

import json
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from artifacts.files import write_json
from artifacts.tensors import MEMBERSHIP_SCORES, write_tensors
from attacks.membership import roc_curve
from callbacks.provenance import provenance
from callbacks.writing import writes_results
from lightning_modules.membership_inference import MembershipInference


class MembershipWriter(L.Callback):
    """Writes ``metrics.json`` and ``scores.safetensors``, and figures into TensorBoard."""

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes into the run directory and prints a line for each attack."""
        assert isinstance(pl_module, MembershipInference)
        if not writes_results(trainer):
            return
        from reporting.membership import membership_lines

        root = Path(trainer.default_root_dir)
        names = list(pl_module.attacks)
        scores = {name: pl_module.joined_scores(name) for name in names}
        tensors = {
            "members": torch.stack([scores[name][0] for name in names]),
            "non_members": torch.stack([scores[name][1] for name in names]),
            "thresholds": torch.tensor([pl_module.attacks[name].threshold for name in names]),
        }
        facts = provenance(trainer, attacks=json.dumps(names))
        write_tensors(root / "scores.safetensors", MEMBERSHIP_SCORES, tensors, facts)
        write_json(root / "metrics.json", pl_module.metrics)
        self._draw(trainer, pl_module, scores)
        for line in membership_lines(pl_module.metrics):
            pl_module.print(line)
        pl_module.print(f"results are in {root}")

    def _draw(
        self,
        trainer: L.Trainer,
        module: MembershipInference,
        scores: dict[str, tuple[Tensor, Tensor]],
    ) -> None:
        from reporting import membership

        curves = {name: roc_curve(*both) for name, both in scores.items()}
        number = len(next(iter(scores.values()))[1])
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                add = logger.experiment.add_figure
                add("membership/roc", membership.roc_figure(curves, number))
                for name, (members, non_members) in scores.items():
                    threshold = module.attacks[name].threshold
                    histogram = membership.score_histogram(name, members, non_members, threshold)
                    add(f"membership/scores/{name}", histogram)
