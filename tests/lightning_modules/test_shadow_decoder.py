"""A decoder in place of the one that was not released."""

from pathlib import Path

import lightning as L
import pytest
import torch
from safetensors.torch import save_file

from artifacts.errors import InputError
from datamodules import DigitImagesDataModule, PretrainingDataModule
from lightning_modules import ShadowDecoder
from models.masked_autoencoder import MaskedAutoencoder


def autoencoder(seed: int, path: Path, patch_size: int = 2) -> tuple[MaskedAutoencoder, str]:
    """A random autoencoder with normalised targets, and its file."""
    torch.manual_seed(seed)
    model = MaskedAutoencoder(8, patch_size, 1, 16, 2, 4, 12, 2, 3, norm_pix_loss=True)
    model.mean.fill_(0.1 * seed)
    save_file(model.state_dict(), str(path))
    return model, str(path)


def test_encoder_and_decoder_are_joined(tmp_path: Path) -> None:
    (target, encoder), (shadow, decoder) = (
        autoencoder(seed, tmp_path / f"{seed}.safetensors") for seed in (1, 2)
    )
    module = ShadowDecoder(encoder, decoder)
    module.configure_model()
    joined, images = module.autoencoder, torch.rand(5, 1, 8, 8)
    assert torch.equal(joined.encode(images), target.encode(images))
    # By the shadow's decoder and target, at the encoder's normalisation.
    shadow.encoder, shadow.mean = target.encoder, target.mean
    noise = torch.rand(5, 16)
    expected = shadow.per_image_error(images, 0.75, noise)
    assert torch.allclose(joined.per_image_error(images, 0.75, noise), expected, rtol=1e-6)
    assert joined.record.tolist() == [4, 3, 1]
    other = ShadowDecoder(encoder, autoencoder(3, tmp_path / "3.safetensors", patch_size=4)[1])
    with pytest.raises(InputError, match="their patch_size are 4 and 2"):
        other.configure_model()


def test_only_the_decoder_is_trained(tmp_path: Path) -> None:
    target, encoder = autoencoder(1, tmp_path / "1.safetensors")
    shadow, decoder = autoencoder(2, tmp_path / "2.safetensors")
    module = ShadowDecoder(encoder, decoder, base_learning_rate=0.1, warmup_epochs=1)
    images = DigitImagesDataModule(image_size=8, num_train=40, num_test=40)
    L.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(module, PretrainingDataModule(images, batch_size=20))
    trained = module.autoencoder
    for name, value in target.encoder.state_dict().items():
        assert torch.equal(trained.encoder.state_dict()[name], value), name
    before, after = shadow.decoder.state_dict(), trained.decoder.state_dict()
    unchanged = {name for name in before if torch.equal(before[name], after[name])}
    assert unchanged == {"pos_embed"}
    module.train()
    assert trained.decoder.training
    assert not trained.encoder.training
