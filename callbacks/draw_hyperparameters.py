"""Shows what each draw was sampled with, and how it did, in TensorBoard's HParams tab."""

from collections.abc import Mapping, Sequence

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from attacks.draw_trust import agreement, multiplier_spread
from lightning_modules.candidate_search import CandidateSearch
from lightning_modules.reconstruction_evaluation import ReconstructionEvaluation

SETTINGS = ("learning_rate", "init_std", "lambda_min", "relu_alpha")


class DrawHyperparameters(L.Callback):
    """One HParams entry a draw: after an attack what the attacker sees, after a test the truth."""

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Logs residual, agreement with other draws and spread of the multipliers."""
        assert isinstance(pl_module, CandidateSearch)
        found = pl_module.result()  # Processes put their draws together.
        signals = {
            "residual": found["residual"].tolist(),
            "agreement": agreement(found["candidates"], found["labels"]).tolist(),
            "multiplier_spread": multiplier_spread(found["multipliers"]).tolist(),
        }
        _log(trainer, found, signals)

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Logs the same, and how many training samples each draw recovered."""
        assert isinstance(pl_module, ReconstructionEvaluation)
        trust = pl_module.metrics["draw_trust"]
        signals = {name: values for name, values in trust.items() if isinstance(values, list)}
        _log(trainer, pl_module.run, signals)


def _log(
    trainer: L.Trainer, run: Mapping[str, Tensor], signals: Mapping[str, Sequence[float]]
) -> None:
    """Writes the draws of ``run``, with ``signals`` (R,) by name."""
    names = [name for name in SETTINGS if name in run]
    for logger in trainer.loggers:
        if not isinstance(logger, TensorBoardLogger) or not trainer.is_global_zero:
            continue
        for position in range(len(run["residual"])):
            number = int(run["draw"][position]) if "draw" in run else position
            logger.experiment.add_hparams(
                {name: float(run[name][position]) for name in names},
                {f"draw/{name}": float(values[position]) for name, values in signals.items()},
                run_name=f"draw_{number:04d}",
            )
