"""Frozen backbones, beside the libraries they come from."""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import open_clip
import pytest
import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.data.transforms_factory import create_transform
from torch import Tensor, nn
from torchvision.transforms import v2

import models.hub
from artifacts.errors import InputError
from models.backbones import PAPER_BACKBONES, load_backbone
from models.hub import _obstacle
from models.masked_autoencoder import MaskedAutoencoder
from tests.conftest import SHARED

TINY = "test_vit.r160_in1k"
REAL = "vit_small_patch14_dinov2.lvd142m"
REAL_WEIGHTS = SHARED / "data" / "vit_small_patch14_dinov2.safetensors"


def small_vit(**settings: Any) -> Any:  # noqa: ANN401 - timm has no common class
    """The smallest vision transformer of timm, random."""
    torch.manual_seed(0)
    return timm.create_model(TINY, **settings).eval()


def saved(model: nn.Module, path: Path) -> str:
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
    return str(path)


def images(size: int, count: int = 2) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights file of a small vision transformer, classifier included."""
    return saved(small_vit(), tmp_path_factory.mktemp("weights") / "tiny.safetensors")


def test_embeddings_are_those_of_timm(tiny: str) -> None:
    backbone = load_backbone(f"timm/{TINY}", tiny)
    model = small_vit()
    x = v2.functional.normalize(images(160), [0.5] * 3, [0.5] * 3)
    expected = model.forward_head(model.forward_features(x), pre_logits=True)
    assert backbone.embedding_dim == 64
    torch.testing.assert_close(backbone(images(160)), expected, atol=1e-6, rtol=0)


@pytest.mark.skipif(not REAL_WEIGHTS.is_file(), reason="needs ../shared/data")
def test_real_weights_on_real_photos_agree_with_timm() -> None:
    paths = sorted((SHARED / "data" / "photos" / "animals").iterdir())[:3]
    resize = v2.Compose([v2.Resize(224, v2.InterpolationMode.BICUBIC), v2.CenterCrop(224)])
    photos = [resize(Image.open(path).convert("RGB")) for path in paths]
    model = timm.create_model(
        REAL,
        pretrained=True,
        num_classes=0,
        img_size=224,
        pretrained_cfg_overlay={"file": str(REAL_WEIGHTS)},
    ).eval()
    transform = create_transform(
        224,
        mean=IMAGENET_DEFAULT_MEAN,
        std=IMAGENET_DEFAULT_STD,
        crop_pct=1.0,
        interpolation="bicubic",
    )
    pixels = torch.stack([torch.from_numpy(np.array(photo)) for photo in photos])
    backbone = load_backbone(f"timm/{REAL}", str(REAL_WEIGHTS), image_size=224)
    with torch.no_grad():
        expected = model(torch.stack([transform(photo) for photo in photos]))
        found = backbone(pixels.permute(0, 3, 1, 2).float() / 255)
    assert backbone.embedding_dim == 384
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_mean_of_patch_tokens_leaves_registers_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: Any = timm.create_model(
        "vit_small_patch14_reg4_dinov2", num_classes=0, img_size=42
    ).eval()
    path = saved(model, tmp_path / "registers.safetensors")
    backbone = load_backbone(
        "timm/vit_small_patch14_reg4_dinov2.lvd142m", path, image_size=42, features="cls_mean"
    )
    x = v2.functional.normalize(images(42), IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
    patches, prefix = model.forward_intermediates(
        x,
        indices=1,
        return_prefix_tokens=True,
        norm=True,
        output_fmt="NLC",
        intermediates_only=True,
    )[-1]
    assert prefix.shape[1] == 5
    assert patches.shape[1] == 9
    expected = torch.cat([prefix[:, 0], patches.mean(1)], dim=1)
    torch.testing.assert_close(backbone(images(42)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_vgg_from_torchvision_s_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torchvision.models.vgg11().eval()
    torch.save(model.state_dict(), tmp_path / "vgg.pth")
    backbone = load_backbone("timm/vgg11.tv_in1k", str(tmp_path / "vgg.pth"), image_size=224)
    x = v2.functional.normalize(images(224, 1), IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
    expected = model.classifier[:-1](model.avgpool(model.features(x)).flatten(1))
    torch.testing.assert_close(backbone(images(224, 1)), expected, atol=1e-5, rtol=1e-5)


def test_convolutional_network_has_pooled_features_only(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    torch.save({"state_dict": model.state_dict()}, tmp_path / "resnet.pth")
    weights = str(tmp_path / "resnet.pth")
    backbone = load_backbone("timm/resnet18.tv_in1k", weights, image_size=64)
    x = v2.functional.normalize(images(64), IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
    model.fc = nn.Identity()
    torch.testing.assert_close(backbone(images(64)), model(x), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match=r"cls_mean.*timm/resnet18"):
        load_backbone("timm/resnet18.tv_in1k", weights, features="cls_mean")


def test_image_tower_of_clip_with_its_projection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 16},
        "text_cfg": {
            "context_length": 8,
            "vocab_size": 50,
            "width": 32,
            "heads": 2,
            "layers": 1,
        },
    }
    (tmp_path / "tiny-clip.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path / "tiny-clip.json")
    torch.manual_seed(0)
    model: Any = open_clip.create_model("tiny-clip").eval()
    path = saved(model, tmp_path / "clip.safetensors")
    backbone = load_backbone("open_clip/tiny-clip", path)
    x = v2.functional.normalize(
        images(32), open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
    )
    assert (backbone.embedding_dim, backbone.image_size) == (24, 32)
    torch.testing.assert_close(backbone(images(32)), model.encode_image(x), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="projected"):
        load_backbone("open_clip/tiny-clip", path, features="cls_mean")
    # A file that is called as the library's own weights.
    torch.save(model.state_dict(), tmp_path / "mine")
    tags = {"mine": {"url": "http://127.0.0.1:9/mine.pt"}}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny-clip", tags)
    monkeypatch.chdir(tmp_path)
    same = load_backbone("open_clip/tiny-clip", "mine")
    assert torch.equal(same(images(32)), backbone(images(32)))
    larger = saved(open_clip.create_model("tiny-clip", embed_dim=20), tmp_path / "o.safetensors")
    with pytest.raises(ValueError, match=r"o\.safetensors is not of open_clip/tiny-clip: .*size"):
        load_backbone("open_clip/tiny-clip", larger)


def test_encoder_of_a_masked_autoencoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MaskedAutoencoder(32, 8, 3, 64, 2, 1, 64, 1, 1).eval()
    model.mean.fill_(0.4)
    model.std.fill_(0.3)
    path = saved(model, tmp_path / "mae.safetensors")
    encoder: Any = model.encoder
    x = (images(32) - 0.4) / 0.3
    tokens = encoder.forward_features(x)
    cls = load_backbone("mae", path)
    assert (cls.image_size, cls.embedding_dim) == (32, 64)
    torch.testing.assert_close(cls(images(32)), tokens[:, 0], atol=1e-5, rtol=0)
    both = load_backbone("mae", path, features="cls_mean")(images(32))
    torch.testing.assert_close(both[:, 64:], tokens[:, 1:].mean(1), atol=1e-5, rtol=0)
    assert load_backbone("mae", path, image_size=48).image_size == 48
    other = saved(small_vit(), tmp_path / "classifier.safetensors")
    with pytest.raises(ValueError, match=r"classifier.safetensors cannot be taken as .*"):
        load_backbone("mae", other)
    with pytest.raises(ValueError, match="give a masked autoencoder's file as `weights`"):
        load_backbone("mae")


def test_identity_is_the_pixels() -> None:
    backbone = load_backbone("identity", image_size=8)
    assert torch.equal(backbone(images(8)), images(8).flatten(1))


def test_frozen_whatever_is_asked(tiny: str) -> None:
    backbone = load_backbone(f"timm/{TINY}", tiny, image_size=32)
    outer = nn.ModuleList([backbone, nn.Dropout()])
    outer.train()
    assert outer.training
    assert not any(module.training for module in backbone.modules())
    assert not any(parameter.requires_grad for parameter in outer.parameters())
    x = images(32).requires_grad_()
    backbone(x).square().sum().backward()
    assert x.grad is not None
    assert float(x.grad.abs().min(dim=0).values.mean()) > 0


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("vit", {}, "no backbone 'vit'; choose vit_b16, .*identity"),
        ("timm/vit_huge_patch3", {}, r"timm .* has no model 'vit_huge_patch3'"),
        ("timm/test_vit.mine", {}, r"Invalid pretrained tag \(mine\)"),
        ("open_clip/ViT-Z", {}, "has no model 'ViT-Z'"),
        ("open_clip/ViT-B-32", {}, "name the weights"),
        ("open_clip/ViT-B-32:mine", {}, "no tag 'mine'; it has: openai"),
        ("open_clip/ViT-L-14:openai", {}, "use open_clip/ViT-L-14-quickgelu:openai"),
        ("identity", {}, "needs an image_size"),
        ("identity", {"image_size": 8, "features": "cls_mean"}, "no weights or tokens"),
        ("vit_b16", {"features": "mean"}, "'cls' or 'cls_mean', got 'mean'"),
        ("vit_b16", {"image_size": 0}, "must be positive"),
    ],
)
def test_impossible_requests(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_backbone(name, **settings)


def test_sizes_that_do_not_fit(tiny: str) -> None:
    with pytest.raises(ValueError, match="50 is no multiple of the patch size 16"):
        load_backbone(f"timm/{TINY}", tiny, image_size=50)
    # Smaller than a patch, which timm refuses in other words.
    with pytest.raises(ValueError, match="image_size 13 is no multiple of the patch size 16"):
        load_backbone(f"timm/{TINY}", tiny, image_size=13)
    with pytest.raises(ValueError, match="image_size 20 is no multiple of the patch size 14"):
        load_backbone("clip_vit_l14", image_size=20)
    backbone = load_backbone(f"timm/{TINY}", tiny, image_size=32)
    with pytest.raises(ValueError, match=r"\(N, 3, 32, 32\), got \(2, 3, 48, 48\)"):
        backbone(images(48))


def test_weights_of_another_model_are_refused(tmp_path: Path, tiny: str) -> None:
    with pytest.raises(ValueError, match=r"tiny.safetensors is not of timm/vit_tiny_.*Missing key"):
        load_backbone("timm/vit_tiny_patch16_224.augreg_in21k", tiny)
    model = small_vit()
    # timm itself would leave the layer at its random initialisation.
    del model.blocks[1].mlp.fc2
    partial = saved(model, tmp_path / "partial.safetensors")
    with pytest.raises(ValueError, match=r"Missing key.*blocks.1.mlp.fc2.weight"):
        load_backbone(f"timm/{TINY}", partial)
    model = small_vit()
    model.blocks.append(nn.Linear(2, 2))
    deeper = saved(model, tmp_path / "deeper.safetensors")
    with pytest.raises(ValueError, match=r"Unexpected key.*blocks.6.weight"):
        load_backbone(f"timm/{TINY}", deeper)


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    torch.save({"model": small_vit()}, tmp_path / "pickled.pth")
    for name in (f"timm/{TINY}", "clip_vit_l14"):
        with pytest.raises(InputError, match="that can be read safely"):
            load_backbone(name, str(tmp_path / "pickled.pth"))
    with pytest.raises(InputError, match="no weights file of vit_b16 at"):
        load_backbone("vit_b16", str(tmp_path / "absent.safetensors"))


@pytest.mark.parametrize("name", ["clip_vit_l14", "dino_vit_b16", "timm/test_vit"])
def test_without_network_one_line_says_what_is_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    source = PAPER_BACKBONES.get(name, name)
    with pytest.raises(ValueError, match="give a local file of them as `weights`") as caught:
        load_backbone(name)
    message = str(caught.value)
    assert message.startswith(f"no weights for {source}: timm/")
    assert str(tmp_path) in message
    assert "\n" not in message
    assert not caplog.records


@pytest.mark.parametrize("name", ["clip_vit_l14", "dino_vit_b16"])
def test_a_hub_out_of_reach_is_not_tried_again_and_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError(f"it waits for {seconds} s")

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(time, "sleep", sleep)
        with pytest.raises(ValueError, match=f"{address} cannot be reached: .*refused.*local file"):
            load_backbone(name)
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


def test_a_hub_that_answers_or_is_slow_is_left_to_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(503)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.handle_request).start()
        assert _obstacle(f"http://127.0.0.1:{server.server_port}") == ""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(models.hub, "_CONNECTION_TIMEOUT", 0.2)
        assert _obstacle(f"http://127.0.0.1:{silent.getsockname()[1]}") == ""
    assert "cannot be reached" in _obstacle("http://no-such-host.invalid")


def test_the_paper_s_four_exist_with_their_weights() -> None:
    for name, source in PAPER_BACKBONES.items():
        library, _, model = source.partition("/")
        if library == "timm":
            settings = timm.get_pretrained_cfg(model, allow_unregistered=False)
            assert settings is not None
            assert settings.hf_hub_id == source
            # B.1's table; of ViT it is 0.5.
            assert settings.mean == ((0.5,) * 3 if name == "vit_b16" else IMAGENET_DEFAULT_MEAN)
        else:
            architecture, _, tag = model.partition(":")
            assert tag in open_clip.list_pretrained_tags_by_model(architecture)
