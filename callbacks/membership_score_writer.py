"""Writes the verdict on each questioned image."""

import csv
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor

from artifacts.files import atomic_path
from callbacks.writing import writes_results
from datamodules.membership_splits import MembershipSplits
from lightning_modules.membership_inference import MembershipInference


class MembershipScoreWriter(L.Callback):
    """Writes ``scores.csv`` of a ``predict``: an image a line, a score and a verdict an attack.

    Scores are lower for likelier members; the verdict is 1 where the score is below the attack's
    threshold. ``learned from`` names the attacker's part that an image is in, if any: thresholds
    and classifiers come from those images, so verdicts on them say nothing.

    Lines are written as batches are scored, so any number of images takes the same memory; the file
    gets its name when it is complete.
    """

    def __init__(self) -> None:
        super().__init__()
        self._open = ExitStack()
        self._number = 0
        self._learned_from = 0

    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begins the file."""
        if not writes_results(trainer):
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, MembershipSplits)
        self._data = data
        self._identifiers = data.questioned_identifiers
        self._number = self._learned_from = 0
        path = Path(trainer.default_root_dir) / "scores.csv"
        temporary = self._open.enter_context(atomic_path(path))
        file = self._open.enter_context(temporary.open("w", newline="", encoding="utf-8"))
        self._rows = csv.writer(file)

    def on_predict_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,  # noqa: ANN401 - as the base class
        batch: Any,  # noqa: ANN401 - as the base class
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Appends the images of a batch."""
        if not writes_results(trainer):
            return
        assert isinstance(pl_module, MembershipInference)
        scores: dict[str, Tensor] = outputs
        if self._number == 0:
            header = [part for name in scores for part in (f"{name} score", f"{name} member")]
            self._rows.writerow(["image", "learned from", *header])
        for values in zip(*(value.tolist() for value in scores.values()), strict=True):
            part = self._data.attackers_part(self._number)
            self._learned_from += part != ""
            row: list[Any] = [self._identifiers[self._number], part]
            for name, value in zip(scores, values, strict=True):
                row += [f"{value:.6g}", int(value < pl_module.attacks[name].threshold)]
            self._rows.writerow(row)
            self._number += 1

    def on_predict_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Completes the file."""
        if not writes_results(trainer):
            return
        self._open.close()
        path = Path(trainer.default_root_dir) / "scores.csv"
        pl_module.print(f"scores of {self._number} images are in {path}")
        if self._learned_from:
            pl_module.print(
                f"warning: {self._learned_from} of them are the attacker's own (column 'learned "
                "from'): the attacks were fitted on these, and verdicts on them say nothing"
            )

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Leaves no half of a file."""
        self._open.__exit__(type(exception), exception, exception.__traceback__)
