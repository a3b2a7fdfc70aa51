"""UnCLIP with random components: which embedding it takes, at which norm, one seed an image."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from artifacts.errors import InputError
from lightning_modules import UnCLIPInversion
from models.probe import Probe
from models.unclip import UnCLIPDecoder
from tests.unclip_parts import save_tiny_unclip

DIMENSION = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("unclip")
    save_tiny_unclip(root, DIMENSION)
    return root


def test_each_image_has_its_own_seed(folder: Path) -> None:
    decoder = UnCLIPDecoder(str(folder))
    assert decoder.embedding_dim == DIMENSION
    embeddings = torch.randn(3, DIMENSION)
    steps = {"steps": 2, "super_resolution_steps": 2}
    together = decoder(embeddings, [5, 6, 7], **steps)
    alone = decoder(embeddings[1:2], [6], **steps)
    torch.testing.assert_close(together[1], alone[0], rtol=0, atol=1e-4)
    assert together.shape == (3, 3, 16, 16)
    assert 0 <= float(together.min()) <= float(together.max()) <= 1
    other = decoder(-embeddings[1:2], [6], **steps)
    assert not torch.allclose(alone, other, atol=1e-3)


@pytest.mark.parametrize("missing", ["decoder", "tokenizer"])
def test_a_missing_part_is_told(folder: Path, tmp_path: Path, missing: str) -> None:
    for part in folder.iterdir():
        if part.name != missing:
            (tmp_path / part.name).symlink_to(part)
    with pytest.raises(ValueError, match="no unCLIP decoder could be loaded"):
        UnCLIPDecoder(str(tmp_path))


def module(**options: Any) -> UnCLIPInversion:  # noqa: ANN401 - options of the module
    """The module with a decoder that is never called."""
    inversion = UnCLIPInversion("none", **options)
    inversion.decoder = type("Decoder", (), {"embedding_dim": DIMENSION})()
    from lightning_modules.inverted_images import load_standardisation

    inversion.standardisation = load_standardisation(inversion.probe_path, DIMENSION, "none")
    return inversion


def test_the_norm_comes_from_public_facts(tmp_path: Path) -> None:
    probe = Probe(DIMENSION, (4,))
    probe.set_standardisation(torch.randn(30, DIMENSION) * 3 + 2)
    path = tmp_path / "probe.safetensors"
    save_file(probe.state_dict(), str(path))
    truth = torch.randn(2, DIMENSION)
    batch = {"index": torch.arange(2), "target": 0.01 * truth}

    aim = module(probe=str(path)).prepare(batch)["aim"]
    standardised = probe.standardise(aim)
    torch.testing.assert_close(standardised.norm(dim=1), torch.full((2,), DIMENSION**0.5))
    cosine = torch.cosine_similarity(standardised, truth)
    torch.testing.assert_close(cosine, torch.ones(2))

    aim = module(probe=str(path), norm="number", embedding_norm=7.0).prepare(batch)["aim"]
    torch.testing.assert_close(aim.norm(dim=1), torch.full((2,), 7.0))

    aim = module(probe=str(path), norm="as_given").prepare(batch)["aim"]
    torch.testing.assert_close(aim, probe.destandardise(batch["target"]))
    with pytest.raises(InputError, match="the targets have 8 features"):
        module().prepare({"target": torch.randn(2, 8)})


def test_the_norm_of_public_embeddings(folder: Path, tmp_path: Path) -> None:
    import lightning as L

    public = torch.randn(20, DIMENSION)
    save_file({"embeddings": public}, str(tmp_path / "public.safetensors"))
    path = str(tmp_path / "public.safetensors")
    inversion = UnCLIPInversion(str(folder), norm="public", public_embeddings=path)
    inversion.trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    inversion.configure_model()
    aim = inversion.prepare({"target": torch.randn(3, DIMENSION)})["aim"]
    torch.testing.assert_close(aim.norm(dim=1), public.norm(dim=1).mean().expand(3))


@pytest.mark.parametrize(
    "options",
    [
        {"norm": "number"},
        {"embedding_norm": 3.0},
        {"norm": "public"},
        {"norm": "number", "embedding_norm": -1.0},
        {"steps": 0},
    ],
)
def test_mistakes_are_told(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        UnCLIPInversion("none", **options)


def test_the_embedding_is_open_clips_projected_and_unnormalised() -> None:
    """What the decoder was trained on, Hugging Face's ``image_embeds``, from the same weights."""
    from open_clip.model import CLIPVisionCfg, _build_vision_tower

    transformers: Any = import_module("transformers")
    torch.manual_seed(0)
    width, layers, patch, size = 32, 2, 8, 16
    config = CLIPVisionCfg(
        layers=layers, width=width, head_width=16, patch_size=patch, image_size=size
    )
    ours = _build_vision_tower(DIMENSION, config, quick_gelu=True).eval()
    theirs = transformers.CLIPVisionModelWithProjection(
        transformers.CLIPVisionConfig(
            hidden_size=width,
            intermediate_size=4 * width,
            projection_dim=DIMENSION,
            num_hidden_layers=layers,
            num_attention_heads=2,
            image_size=size,
            patch_size=patch,
            hidden_act="quick_gelu",
        )
    ).eval()
    source = ours.state_dict()
    renamed = {
        "embeddings.class_embedding": source["class_embedding"],
        "embeddings.position_embedding.weight": source["positional_embedding"],
        "embeddings.patch_embedding.weight": source["conv1.weight"],
    }
    for part in ("weight", "bias"):
        renamed[f"pre_layrnorm.{part}"] = source[f"ln_pre.{part}"]
        renamed[f"post_layernorm.{part}"] = source[f"ln_post.{part}"]
        for i in range(layers):
            here, there = f"transformer.resblocks.{i}", f"encoder.layers.{i}"
            qkv = source[f"{here}.attn.in_proj_{part}"].chunk(3)
            for name, value in zip("qkv", qkv, strict=True):
                renamed[f"{there}.self_attn.{name}_proj.{part}"] = value
            pairs = {
                "attn.out_proj": "self_attn.out_proj",
                "ln_1": "layer_norm1",
                "ln_2": "layer_norm2",
                "mlp.c_fc": "mlp.fc1",
                "mlp.c_proj": "mlp.fc2",
            }
            for mine, other in pairs.items():
                renamed[f"{there}.{other}.{part}"] = source[f"{here}.{mine}.{part}"]
    prefix = "vision_model."
    weights = {prefix + name: value for name, value in renamed.items()}
    weights["visual_projection.weight"] = source["proj"].T
    missing = theirs.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    assert all("position_ids" in name for name in missing.missing_keys)
    images = torch.randn(3, 3, size, size)
    with torch.no_grad():
        expected = theirs(images).image_embeds
        torch.testing.assert_close(ours(images), expected, rtol=1e-4, atol=1e-5)
    assert float((expected.norm(dim=1) - 1).abs().min()) > 1e-3
