"""The pre-trained encoder as its provider would release it."""

from pathlib import Path

import lightning as L

from artifacts.encoders import write_encoder
from callbacks.writing import writes_results
from lightning_modules.mae_pretraining import MAEPretraining


class EncoderWriter(L.Callback):
    """Writes ``encoder.safetensors`` at the end of a pre-training: the encoder without decoder.

    timm loads the file, and so does everything here that takes a masked autoencoder.
    """

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes the file, also where a run was stopped between its last epoch and this."""
        assert isinstance(pl_module, MAEPretraining)
        if writes_results(trainer):
            model, record = pl_module.autoencoder, pl_module.training_record
            write_encoder(
                Path(trainer.default_root_dir) / "encoder.safetensors",
                dict(model.encoder.state_dict()),
                num_heads=int(model.record[0]),
                mean=model.mean,
                std=model.std,
                training=None if record is None else record.of_encoder,
            )
