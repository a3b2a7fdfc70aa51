"""Writes and shows how much inverted images resemble the training images."""

from pathlib import Path

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from artifacts.files import atomic_path, write_json
from artifacts.tensors import INVERSION_EVALUATION, write_tensors
from callbacks.provenance import provenance
from callbacks.writing import writes_results
from lightning_modules.inversion_evaluation import InversionEvaluation


class InversionEvaluationWriter(L.Callback):
    """Writes ``inversion_metrics.json``, ``inversion_evaluation.safetensors`` and a picture."""

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes into the run directory on the first process and prints the means."""
        from reporting import figures

        assert isinstance(pl_module, InversionEvaluation)
        if not writes_results(trainer):
            return
        root = Path(trainer.default_root_dir)
        tensors, metrics = pl_module.tensors, pl_module.metrics
        path = root / "inversion_evaluation.safetensors"
        write_tensors(path, INVERSION_EVALUATION, tensors, provenance(trainer))
        write_json(root / "inversion_metrics.json", metrics)
        figure = figures.inversion_grid(tensors, by_target=metrics["by_target"])
        with atomic_path(root / "inversions.png") as temporary:
            temporary.write_bytes(figures.png_bytes(figure))
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_figure("inversion/pairs", figure)
        means = ", ".join(f"{name} {value:.2f}" for name, value in metrics["mean"].items())
        pl_module.print(f"{metrics['num_images']} images, means: {means}; results are in {root}")
