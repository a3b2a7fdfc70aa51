"""Writes and shows how much an attack recovered."""

from pathlib import Path

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from artifacts.files import atomic_path, write_json
from artifacts.tensors import EVALUATION, write_tensors
from callbacks.expected import expect
from callbacks.provenance import provenance
from callbacks.writing import writes_results
from lightning_modules.reconstruction_evaluation import ReconstructionEvaluation
from reporting.summary import summary_lines


class RecoveryWriter(L.Callback):
    """Writes ``metrics.json`` and ``evaluation.safetensors``, and figures into TensorBoard."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuses other modules than :class:`ReconstructionEvaluation` before anything is run."""
        expect(pl_module, self, ReconstructionEvaluation)

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes into the run directory and prints the main line."""
        assert isinstance(pl_module, ReconstructionEvaluation)  # setup() has seen to it.
        if not writes_results(trainer):
            return
        root = Path(trainer.default_root_dir)
        write_tensors(
            root / "evaluation.safetensors", EVALUATION, pl_module.tensors, provenance(trainer)
        )
        write_json(root / "metrics.json", pl_module.metrics)
        self._draw(trainer, root, pl_module.tensors)
        for line in summary_lines(pl_module.metrics):
            pl_module.print(line)
        pl_module.print(f"results are in {root}")

    def _draw(self, trainer: L.Trainer, root: Path, tensors: dict[str, Tensor]) -> None:
        from reporting import figures

        drawn = {
            "similarity_against_margin": figures.margin_scatter(
                tensors["similarity"], tensors["margin"], tensors["labels"]
            ),
            "norms": figures.norm_comparison(
                tensors["similarity"], tensors["sample_norm"], tensors["candidate_norm"]
            ),
        }
        if "residual_history" in tensors:
            drawn["residual"] = figures.residual_curves(tensors["residual_history"])
        if "train_images" in tensors:
            drawn["reconstructions"] = figures.reconstruction_grid(
                tensors["train_images"], tensors["recovered_images"], tensors["similarity"]
            )
            with atomic_path(root / "reconstructions.png") as temporary:
                temporary.write_bytes(figures.png_bytes(drawn["reconstructions"]))
        if "ssim" in tensors:
            drawn["ssim"] = figures.ssim_scatter(tensors["similarity"], tensors["ssim"])
        if "closest_photo" in tensors:
            drawn["photos"] = figures.photo_grid(
                tensors["closest_photo"], tensors["closest_similarity"]
            )
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                for name, figure in drawn.items():
                    logger.experiment.add_figure(f"recovery/{name}", figure)
