"""Pictures of what a masked autoencoder makes of images it was trained on, and of others."""

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from lightning_modules.mae_pretraining import MAEPretraining
from models.augmentation import resize

_GREY = 0.5


class MAEPictures(L.Callback):
    """Puts reconstructions of fixed images into TensorBoard with every validation.

    Three rows: the images, what the encoder sees of them, and the reconstruction of the removed
    patches among the visible ones. ``pictures/train`` shows members, ``pictures/test`` others.

    Args:
        number: Images of each kind.
    """

    def __init__(self, number: int = 8) -> None:
        self.number = number
        self._images: list[Tensor] | None = None

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Logs both grids."""
        logger = trainer.logger
        if not isinstance(logger, TensorBoardLogger) or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, MAEPretraining)
        if self._images is None:
            self._images = trainer.datamodule.first_images(self.number)  # type: ignore[attr-defined]
        for name, images in zip(("train", "test"), self._images, strict=True):
            logger.experiment.add_image(
                f"pictures/{name}", picture(pl_module, images), trainer.global_step
            )


def picture(module: MAEPretraining, images: Tensor) -> Tensor:
    """Images, their visible patches and their reconstruction as rows of one image (c, H, W).

    Args:
        module: The training whose model reconstructs.
        images: Images (N, c, s, s), uint8 or in [0, 1].
    """
    from torchvision.utils import make_grid

    model = module.autoencoder
    images = resize(images.to(module.device), model.image_size)
    with torch.no_grad():
        noise = module.fixed_noise(torch.arange(len(images)))
        mask, reconstruction = model.reconstruct(images, module.mask_ratio, noise)
    rows = torch.cat([images, torch.where(mask, _GREY, images), reconstruction])
    grid: Tensor = make_grid(rows.float().clamp(0, 1), nrow=len(images), padding=1)
    return grid.cpu()
