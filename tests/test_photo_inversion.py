"""A held-out photo's own embedding, turned back into a picture by the shipped short recipe."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from artifacts.tensors import REPRESENTATIVES, read_tensors
from tests.conftest import REPOSITORY, SHARED, quiet, run_cli

CONFIGS = REPOSITORY / "configs" / "photos"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not (SHARED / "data" / "photos").is_dir(), reason="needs ../shared/data")
def test_a_photo_s_embedding_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    monkeypatch.chdir(REPOSITORY)
    words = [
        *("predict", f"--config={CONFIGS}/true_embeddings.yaml", f"--config={CONFIGS}/data.yaml"),
        *("--model.what=held_out", "--model.top=1", "--data.images.image_size=112"),
        *(f"--data.cache_dir={tmp_path}/cache", *quiet(tmp_path / "true")),
    ]
    assert run_cli(*words) == 0
    target = tmp_path / "true" / "representatives.safetensors"
    words = [
        *("predict", f"--config={CONFIGS}/invert.yaml", "--model.probe=null"),
        *(f"--data.representatives={target}", *quiet(tmp_path / "invert")),
    ]
    assert run_cli(*words) == 0
    (entry,) = json.loads((tmp_path / "invert" / "inversions.json").read_text())
    # The picture as anybody would look at it: the PNG, through timm's own network.
    weights = SHARED / "data" / "vit_small_patch14_dinov2.safetensors"
    backbone = timm.create_model(
        "vit_small_patch14_dinov2.lvd142m",
        pretrained=True,
        num_classes=0,
        img_size=112,
        pretrained_cfg_overlay={"file": str(weights)},
    ).eval()
    picture = Image.open(tmp_path / "invert" / "images" / "00000.png").convert("RGB")
    assert picture.size == (112, 112)
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    image = pixels.view(1, 112, 112, 3).permute(0, 3, 1, 2) / 255
    mean, std = (
        torch.tensor(numbers).view(3, 1, 1)
        for numbers in (timm.data.IMAGENET_DEFAULT_MEAN, timm.data.IMAGENET_DEFAULT_STD)
    )
    with torch.no_grad():
        embedding = backbone((image - mean) / std)
    aim = read_tensors(target, REPRESENTATIVES)[0]["representatives"]
    cosine = float(F.cosine_similarity(embedding, aim))
    assert cosine >= 0.9
    assert abs(cosine - entry["similarity"]) < 0.02
