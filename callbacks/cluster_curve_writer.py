"""Writes and draws how the number of clusters decides over the representatives."""

from pathlib import Path

import lightning as L

from artifacts.files import atomic_path, write_json
from callbacks.writing import writes_results
from lightning_modules.cluster_count_evaluation import ClusterCountEvaluation


class ClusterCurveWriter(L.Callback):
    """Writes ``metrics.json`` and ``cluster_count.png`` into the run directory."""

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes both, and prints the best number of clusters."""
        assert isinstance(pl_module, ClusterCountEvaluation)
        if not writes_results(trainer):
            return
        from reporting.clusters import cluster_count_curves, run_curves
        from reporting.figures import png_bytes

        root = Path(trainer.default_root_dir)
        metrics = pl_module.metrics
        write_json(root / "metrics.json", metrics)
        figure = cluster_count_curves(metrics["maxclust"], run_curves(metrics))
        with atomic_path(root / "cluster_count.png") as temporary:
            temporary.write_bytes(png_bytes(figure))
        for name, curve in metrics["curves"].items():
            best = max(range(len(metrics["maxclust"])), key=curve["cosine"].__getitem__)
            pl_module.print(
                f"{name}: at most {curve['cosine'][best]} good representatives of {metrics['top']}"
                f" ({curve['distinct'][best]} distinct samples), with"
                f" {metrics['maxclust'][best]} clusters; {curve['cosine_null_held_out'][best]} are"
                " as near to held-out samples"
            )
        pl_module.print(f"results are in {root}")
