"""Classifiers on a pre-trained encoder."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from artifacts.errors import InputError
from datamodules import DigitImagesDataModule, DigitsDataModule
from lightning_modules import EncoderClassification
from lightning_modules.global_batch import Share
from models.masked_autoencoder import MaskedAutoencoder


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("encoder") / "model.safetensors"
    save_file(MaskedAutoencoder(8, 2, 1, 48, 2, 2, 16, 1, 1).state_dict(), str(path))
    return path


def trained(
    file: Path,
    root: Path,
    data: L.LightningDataModule | None = None,
    **options: Any,  # noqa: ANN401
) -> tuple[EncoderClassification, float]:
    module = EncoderClassification(
        str(file), 10, **{"base_learning_rate": 0.03, "warmup_epochs": 1, **options}
    )
    data = data or DigitImagesDataModule(num_train=500, num_test=500, batch_size=50)
    trainer = L.Trainer(
        default_root_dir=root,
        accelerator="cpu",
        max_epochs=6,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data)
    return module, trainer.test(module, data, verbose=False)[0]["test/accuracy"]


def encoder_of(module: EncoderClassification) -> dict[str, Tensor]:
    assert module.backbone is not None
    return module.backbone.encoder.state_dict()


def test_linear_probe_leaves_the_encoder_alone(file: Path, tmp_path: Path) -> None:
    module, accuracy = trained(file, tmp_path)
    fresh = EncoderClassification(str(file), 10)
    fresh.configure_model()
    before, after = encoder_of(fresh), encoder_of(module)
    assert all(torch.equal(before[name], after[name]) for name in before)
    # Features of a random encoder are of some use; guessing gives 0.1.
    assert accuracy > 0.4


def test_fine_tuning_trains_the_encoder(file: Path, tmp_path: Path) -> None:
    module, accuracy = trained(file, tmp_path, frozen=False, pooling="cls")
    fresh = EncoderClassification(str(file), 10)
    fresh.configure_model()
    before, after = encoder_of(fresh), encoder_of(module)
    assert not torch.equal(before["blocks.0.attn.qkv.weight"], after["blocks.0.attn.qkv.weight"])
    assert torch.equal(before["pos_embed"], after["pos_embed"])
    # What has no gradient would stop a run on several devices.
    named = {name for name, p in module.named_parameters() if p.requires_grad}
    assert not any("decoder" in name or "pos_embed" in name for name in named)
    assert accuracy > 0.4


def test_binary_labels_are_two_classes(file: Path) -> None:
    module = EncoderClassification(str(file), 2)
    module.configure_model()
    module.log_dict = lambda *_, **__: None  # type: ignore[method-assign]
    logits, labels = torch.rand(4, 2), torch.tensor([0, 1, 1, 0])
    share = Share(torch.arange(4), torch.ones(4, dtype=torch.bool), total=4, world_size=1)
    loss = module._log_loss("train", logits, 2 * labels - 1, share)
    assert torch.allclose(loss, torch.nn.functional.cross_entropy(logits, labels))
    with pytest.raises(InputError, match=r"label 2, but model.num_classes is 2"):
        module._log_loss("train", logits, labels + 1, share)


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="num_classes must be at least 2"):
        EncoderClassification("x.pth", 1)
    with pytest.raises(InputError, match="seed must be from 0"):
        EncoderClassification("x.pth", 10, seed=-1)
    with pytest.raises(InputError, match="no masked autoencoder at"):
        EncoderClassification(str(tmp_path / "x.pth"), 10).configure_model()


def test_images_of_other_channels_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "colour.safetensors"
    save_file(MaskedAutoencoder(8, 2, 3, 16, 1, 1, 8, 1, 1).state_dict(), str(path))
    with pytest.raises(InputError, match=r"have 1 channel.*takes 3; set data.in_chans to 3"):
        trained(path, tmp_path)


def test_a_batch_of_one_image_is_refused(file: Path, tmp_path: Path) -> None:
    data = DigitImagesDataModule(num_train=61, num_test=10, batch_size=60, balanced=False)
    with pytest.raises(InputError, match="a single image, which cannot be standardised"):
        trained(file, tmp_path, data)


def test_features_are_those_of_the_pooling(file: Path) -> None:
    images = torch.rand(3, 1, 8, 8)
    for pooling in ("cls", "mean"):
        module = EncoderClassification(str(file), 10, pooling=pooling)
        module.configure_model()
        assert module.backbone is not None
        tokens = module.backbone.encode(images)
        expected = tokens[:, 0] if pooling == "cls" else tokens[:, 1:].sum(dim=1) / 16
        assert torch.allclose(module.features(images), expected, atol=1e-6)
        assert not module.features(images).requires_grad


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "mean"}, "pooling=cls, this one has mean: set model.pooling to cls"),
        ({"num_heads": 3}, "num_heads=1, this one has 3: set model.num_heads to 1"),
        ({"image_size": 16}, "image_size=8, this one has 16: set model.image_size to 8"),
        ({"image_size": 8}, ""),
    ],
)
def test_a_checkpoint_is_tested_as_it_was_trained(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    # A file that does not tell the heads, as the published ones.
    encoder = MaskedAutoencoder(8, 2, 1, 192, 1, 1, 16, 1, 1).encoder.state_dict()
    path = tmp_path / "encoder.pth"
    torch.save({"model": encoder}, path)
    data = DigitImagesDataModule(num_train=20, num_test=10)
    trainer = L.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    given: dict[str, Any] = {"pooling": "cls", "num_heads": 1, "warmup_epochs": 0}
    trainer.fit(EncoderClassification(str(path), 10, **given), data)
    trainer.save_checkpoint(tmp_path / "c.ckpt")
    other = EncoderClassification(str(path), 10, **{**given, **options})
    with pytest.raises(InputError, match=message) if message else nullcontext():
        trainer.test(other, data, ckpt_path=tmp_path / "c.ckpt", verbose=False)


def test_data_without_images_or_held_out_images_are_refused(file: Path, tmp_path: Path) -> None:
    data = DigitImagesDataModule(test_from="test", test_fraction=0)
    with pytest.raises(InputError, match="no image is held out"):
        trained(file, tmp_path, data)
    with pytest.raises(InputError, match="needs a data module of images"):
        trained(file, tmp_path, DigitsDataModule())
