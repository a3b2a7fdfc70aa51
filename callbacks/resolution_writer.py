"""Counts the resolutions of the images behind a run."""

from collections import Counter
from pathlib import Path

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from artifacts.errors import InputError
from artifacts.files import write_json
from callbacks.writing import writes_results
from datamodules.embeddings import EmbeddingsDataModule
from datamodules.image_data import ImageDataModule


class ResolutionWriter(L.Callback):
    """Writes ``resolutions.json`` and draws it: how often images have which size (Fig. 29)."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Counts training and test images at the size that they are stored in.

        Raises:
            InputError: The data are no images.
        """
        if not writes_results(trainer):
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        images = data.images if isinstance(data, EmbeddingsDataModule) else data
        if not isinstance(images, ImageDataModule):
            raise InputError("callbacks.ResolutionWriter needs a data module of images")
        counts: Counter[tuple[int, int]] = Counter()
        for part in (images.train_set, images.test_set):
            counts.update(part.stored_sizes())
        rows = [
            {"width": width, "height": height, "images": number}
            for (width, height), number in counts.most_common()
        ]
        write_json(Path(trainer.default_root_dir) / "resolutions.json", rows)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                from reporting.resolutions import resolution_scatter

                logger.experiment.add_figure("data/resolutions", resolution_scatter(counts))
