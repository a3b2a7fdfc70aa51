"""Files of masked autoencoders that people have, each loaded and compared with its maker."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from artifacts.encoders import write_encoder
from artifacts.errors import InputError
from lightning_modules.victim import load_autoencoder
from models.backbones import load_backbone
from models.mae_weights import DecoderSize
from models.masked_autoencoder import MaskedAutoencoder

IMAGENET = torch.tensor([0.485, 0.456, 0.406])


@pytest.fixture
def model() -> MaskedAutoencoder:
    torch.manual_seed(0)
    model = MaskedAutoencoder(32, 8, 3, 64, 2, 1, 32, 1, 2)
    for parameter in model.parameters():
        # Zero biases would hide a mix-up.
        parameter.data += 0.02 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(2, 3, 32, 32)


NOISE = torch.rand(2, 16, generator=torch.Generator().manual_seed(0))


def test_published_files(model: MaskedAutoencoder, images: Tensor, tmp_path: Path) -> None:
    # A training script's checkpoint, options included, and the encoder alone, in float16.
    full = tmp_path / "checkpoint-799.pth"
    options = argparse.Namespace(mask_ratio=0.75)
    torch.save({"model": model.reference_state_dict(), "args": options, "epoch": 799}, full)
    model.mean.copy_(IMAGENET)
    model.std.copy_(torch.tensor([0.229, 0.224, 0.225]))
    # 32 dimensions of the decoder are not 64 per head: no convention.
    with pytest.raises(InputError, match="does not tell the number of attention heads"):
        load_autoencoder(full)
    loaded = load_autoencoder(full, decoder=DecoderSize(32, 1, 2))
    assert (loaded.origin, loaded.has_decoder) == ("official", False)
    assert torch.equal(loaded.model.encode(images), model.encode(images))
    alone = tmp_path / "mae_pretrain.pth"
    torch.save({"model": {k: v.half() for k, v in model.encoder.state_dict().items()}}, alone)
    loaded = load_autoencoder(alone)
    assert not loaded.has_decoder
    assert len(list(loaded.model.decoder.blocks)) == 8
    assert torch.allclose(loaded.model.encode(images), model.encode(images), atol=1e-2)


def test_published_sizes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MaskedAutoencoder(32, 16, 3, 768, 1, 12, 512, 1, 16).eval()
    torch.save({"model": model.reference_state_dict()}, tmp_path / "full.pth")
    loaded = load_autoencoder(tmp_path / "full.pth", norm_pix_loss=True)
    assert (loaded.origin, loaded.has_decoder) == ("official", True)
    assert loaded.model.record.tolist() == [12, 16, 1]
    assert torch.equal(loaded.model.mean, IMAGENET)


def test_timm(images: Tensor, tmp_path: Path) -> None:
    import timm

    backbone: Any = timm.create_model(
        "vit_base_patch16_224.mae", pretrained=False, num_classes=0, img_size=32, depth=1
    ).eval()
    torch.save(backbone.state_dict(), tmp_path / "timm.bin")
    loaded = load_autoencoder(tmp_path / "timm.bin")
    normalised = loaded.model.normalise(images)
    expected = backbone.forward_features(normalised)
    assert torch.allclose(loaded.model.encode(images), expected, atol=1e-5)


@pytest.mark.parametrize("legacy", [True, False])
def test_transformers(images: Tensor, tmp_path: Path, legacy: bool) -> None:
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    torch.manual_seed(0)
    config = ViTMAEConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=1, intermediate_size=256,
        decoder_hidden_size=128, decoder_num_hidden_layers=2, decoder_num_attention_heads=4,
        decoder_intermediate_size=512, image_size=32, patch_size=8, layer_norm_eps=1e-6,
    )  # fmt: skip
    theirs: Any = ViTMAEForPreTraining(config)
    theirs.eval()
    for parameter in theirs.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    path = tmp_path / "model.safetensors"
    if legacy:
        theirs.save_pretrained(tmp_path)
    else:
        save_file(theirs.state_dict(), str(path))
    loaded = load_autoencoder(path)
    assert (loaded.origin, loaded.has_decoder) == ("transformers", True)
    with torch.no_grad():
        expected = theirs(loaded.model.normalise(images), noise=NOISE)
        loss, prediction, mask = loaded.model.eval()(images, 0.75, NOISE)
    assert torch.equal(mask, expected.mask)
    assert torch.allclose(prediction, expected.logits, atol=1e-4)
    assert torch.allclose(loss, expected.loss, rtol=1e-5)


def test_own_files(model: MaskedAutoencoder, images: Tensor, tmp_path: Path) -> None:
    model.norm_pix_loss = True
    model.record[2] = 1
    model.mean.fill_(0.4)
    as_of_lightning = {f"model.{name}": value for name, value in model.state_dict().items()}
    torch.save({"state_dict": as_of_lightning}, tmp_path / "last.ckpt")
    save_file(model.state_dict(), str(tmp_path / "model.safetensors"))
    for name in ("last.ckpt", "model.safetensors"):
        loaded = load_autoencoder(tmp_path / name)
        assert (loaded.origin, loaded.has_decoder) == ("afterimage", True)
        assert torch.equal(loaded.model(images, 0.5, NOISE)[0], model(images, 0.5, NOISE)[0])
    # Heads that are not what the width suggests.
    unusual = MaskedAutoencoder(32, 8, 3, 64, 1, 4, 64, 1, 2).eval()
    save_file(unusual.state_dict(), str(tmp_path / "unusual.safetensors"))
    loaded = load_autoencoder(tmp_path / "unusual.safetensors")
    assert torch.equal(loaded.model(images, 0.5, NOISE)[0], unusual(images, 0.5, NOISE)[0])
    with pytest.raises(InputError, match="num_heads is 1, but the file says 4: leave it out"):
        load_autoencoder(tmp_path / "unusual.safetensors", num_heads=1)
    load_autoencoder(tmp_path / "unusual.safetensors", num_heads=4)
    torch.save(model.encoder.state_dict(), tmp_path / "encoder.pth")
    with pytest.raises(InputError, match="num_heads is 0, but it must be at least 1"):
        load_autoencoder(tmp_path / "encoder.pth", num_heads=0)


def test_exported_encoder_is_loaded_here_and_by_timm(
    model: MaskedAutoencoder, images: Tensor, tmp_path: Path
) -> None:
    from timm.models import load_checkpoint
    from timm.models.vision_transformer import VisionTransformer

    model.mean.fill_(0.4)
    path = tmp_path / "encoder.safetensors"
    write_encoder(
        path, dict(model.encoder.state_dict()), num_heads=1, mean=model.mean, std=model.std
    )
    loaded = load_autoencoder(path, decoder=DecoderSize(16, 1, 1))
    assert not loaded.has_decoder
    assert torch.equal(loaded.model.encode(images), model.encode(images))
    timm_encoder = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=1, num_classes=0
    ).eval()
    load_checkpoint(timm_encoder, str(path))
    expected = model.encode(images)
    features = timm_encoder.forward_features(model.normalise(images))
    assert torch.allclose(features, expected, atol=1e-5)


def test_positions_are_resampled(model: MaskedAutoencoder, tmp_path: Path) -> None:
    save_file(model.state_dict(), str(tmp_path / "model.safetensors"))
    loaded = load_autoencoder(tmp_path / "model.safetensors", image_size=64).model
    table = loaded.encoder.get_parameter("pos_embed")
    assert table.shape == (1, 65, 64)
    grid = model.encoder.get_parameter("pos_embed")[0, 1:].T.reshape(1, 64, 4, 4)
    expected = torch.nn.functional.interpolate(
        grid, size=8, mode="bicubic", antialias=True, align_corners=False
    )
    assert torch.allclose(table[0, 1:].T.reshape(1, 64, 8, 8), expected, atol=1e-6)
    assert loaded(torch.rand(2, 3, 64, 64), 0.75)[1].shape == (2, 64, 192)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head.weight": torch.zeros(10, 64)}, "classifier .'head.weight'.: fine-tuning"),
        ({"blocks.0.ls1.gamma": torch.ones(64)}, "blocks.0.ls1.gamma"),
        ({"pos_embed": torch.zeros(1, 16, 64)}, "16 positions"),
        ({"pos_embed": torch.zeros(1, 1, 64)}, "its 1 positions"),
        ({"pos_embed": torch.zeros(1, 0, 64)}, "pos_embed. is float32 of shape .1, 0, 64.,"),
        ({"blocks.0.mlp.fc1.weight": torch.tensor(1.0)}, "fc1.weight. has shape .., not 2 dim"),
        ({"norm.bias": torch.zeros(64, dtype=torch.int64)}, "norm.bias. is int64"),
        ({"blocks.1.norm1.weight": torch.zeros(3)}, "blocks.1.norm1.weight"),
        ({"cls_token": None}, "no 'cls_token' in it"),
        ({"norm.weight": torch.full((64,), torch.nan)}, "NaN"),
    ],
)
def test_other_files_are_refused(
    change: dict[str, Tensor | None], message: str, model: MaskedAutoencoder, tmp_path: Path
) -> None:
    weights = {**model.encoder.state_dict(), **change}
    save_file({k: v for k, v in weights.items() if v is not None}, str(tmp_path / "x.safetensors"))
    with pytest.raises(InputError, match=message) as error:
        load_autoencoder(tmp_path / "x.safetensors", num_heads=1)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_any_misshapen_entry_is_refused(model: MaskedAutoencoder, tmp_path: Path) -> None:
    """Each entry of a file in turn is a scalar, empty, whole numbers, or of another shape."""
    good = {name: value.clone() for name, value in model.state_dict().items()}
    path = tmp_path / "model.safetensors"
    for name, value in good.items():
        for change in (
            torch.zeros((), dtype=value.dtype),
            torch.zeros(0, dtype=value.dtype),
            torch.zeros(*value.shape[:1], 0, *value.shape[2:], dtype=value.dtype),
            torch.zeros(1, *value.shape, dtype=value.dtype),
            value.float() if name == "record" else value.long(),
        ):
            save_file({**good, name: change}, str(path))
            for load in (load_autoencoder, partial(load_backbone, "mae")):
                with pytest.raises(ValueError, match="cannot be taken as a masked autoencoder: "):
                    load(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"std": torch.tensor([0.2, 0.0, 0.2])}, "'std' must be positive"),
        ({"std": torch.tensor([0.2, -0.1, 0.2])}, "'std' must be positive"),
        ({"std": torch.tensor([0.2])}, "'std' is not one finite number for each of 3 channels"),
        ({"mean": torch.tensor(0.2)}, "'mean' is not one finite number for each of 3 channels"),
        ({"mean": None}, "'mean' is not one finite number for each of 3 channels"),
        ({"record": torch.tensor([-1, 2, 0])}, "sizes must be positive"),
        ({"record": torch.tensor([10**15, 2, 0])}, "multiple of its 1000000000000000 heads"),
        ({"encoder.pos_embed": torch.zeros(1, 1, 64)}, "its 1 positions are not those of"),
    ],
)
def test_normalisation_and_record_are_checked(
    change: dict[str, Tensor | None], message: str, model: MaskedAutoencoder, tmp_path: Path
) -> None:
    weights = {**model.state_dict(), **change}
    save_file({k: v for k, v in weights.items() if v is not None}, str(tmp_path / "x.safetensors"))
    with pytest.raises(InputError, match=message):
        load_autoencoder(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"mean": "[NaN, 0, 0]"}, "'mean' is not one finite number"),
        ({"std": "0.5"}, "'std' is not one finite number"),
        ({"std": "[1e999, 1, 1]"}, "'std' is not one finite number"),
        ({"mean": '["a"]'}, "damaged header"),
        ({"mean": "[" * 100_000}, "damaged header"),
        ({"mean": "[[1, 2], 3]"}, "damaged header"),
        ({"mean": "{}"}, "damaged header"),
        ({"num_heads": "1" * 40}, "damaged header"),
        ({"num_heads": "two"}, "damaged header"),
    ],
)
def test_header_of_an_exported_encoder_is_checked(
    header: dict[str, str], message: str, model: MaskedAutoencoder, tmp_path: Path
) -> None:
    path = tmp_path / "encoder.safetensors"
    good = {"kind": "encoder", "num_heads": "1", "mean": "[0, 0, 0]", "std": "[1, 1, 1]"}
    save_file(dict(model.encoder.state_dict()), str(path), metadata={**good, **header})
    with pytest.raises(InputError, match=message):
        load_autoencoder(path)


def test_image_size_that_patches_do_not_tile(model: MaskedAutoencoder, tmp_path: Path) -> None:
    save_file(model.state_dict(), str(tmp_path / "model.safetensors"))
    with pytest.raises(InputError, match="image_size 13 is no multiple of the patch size 8"):
        load_autoencoder(tmp_path / "model.safetensors", image_size=13)
