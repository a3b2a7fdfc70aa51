"""The configs that turn embeddings into images run through ``main``, small, on noise."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torchvision.models import SqueezeNet1_1_Weights, squeezenet1_1

from artifacts.tensors import INVERSION_EVALUATION, INVERSIONS, REPRESENTATIVES, read_tensors
from tests.conftest import REPOSITORY, quiet, random_image_folder, random_vit, run_cli
from tests.inversion_configs import PIPELINES
from tests.unclip_parts import save_tiny_unclip

CONFIGS = REPOSITORY / "configs"
SIZE, DIMENSION = 32, 64
VIT = "timm/test_vit.r160_in1k"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, a backbone and a decoder, all of noise."""
    root = tmp_path_factory.mktemp("noise")
    random_image_folder(root / "photos", {"animals": 8, "food": 4, "plants": 4})
    random_vit(root / "vit.safetensors")
    save_tiny_unclip(root / "unclip", DIMENSION)
    return root


def reductions(made: Path) -> dict[str, dict[str, Any]]:
    """By the first word of a stage's name."""
    vit = {"model.backbone": VIT, "model.weights": str(made / "vit.safetensors")}
    data = {
        "data.images.root": str(made / "photos"),
        "data.images.image_size": SIZE,
        "data.backbone": VIT,
        "data.weights": str(made / "vit.safetensors"),
        "data.num_train": 8,
        "data.cache_dir": str(made / "cache"),
    }
    search = {"model.search.iterations": 4, "model.search.judge_every": 2}
    return {
        "probe": {
            **data,
            "model.hidden": [50],
            "model.epochs_per_step": 10,
            "trainer.max_epochs": 2,
        },
        "reconstruct": {
            "model.num_draws": 2,
            "model.num_candidates": 20,
            "model.iterations": 20,
            "model.iterations_per_step": 10,
        },
        "select": {"model.top": 3},
        "targets": {**data, "model.top": 3},
        "originals": {**data, "model.top": 3},
        "invert": {**vit, **search, "model.image_size": SIZE},
        "unclip": {
            "model.model": str(made / "unclip"),
            "model.steps": 2,
            "model.super_resolution_steps": 2,
        },
        "evaluate": data,
        "judge": {**data, **vit},
    }


def run_pipeline(config: str, made: Path, root: Path) -> None:
    content = yaml.safe_load((CONFIGS / config).read_text(encoding="utf-8"))
    content["run"] = str(root)
    grid = content.setdefault("grid", {})
    if "scale" in grid:
        grid["scale"] = [0.1, 1.0]
    still = dict(word.removeprefix("--").split("=") for word in quiet(root)[1:])
    kinds = {
        "evaluate_inversions": "judge",
        "evaluate_{method}": "judge",
        "invert_unclip": "unclip",
    }
    small = reductions(made)
    for name, stage in content["stages"].items():
        if stage["command"] != "report":
            kind = kinds.get(name, name.split("_")[0])
            stage["options"] = {**stage.get("options", {}), **small[kind], **still}
    path = root.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    assert run_cli("pipeline", f"--config={path}") == 0


@pytest.fixture(scope="module")
def photos(made: Path) -> Path:
    """The whole photo pipeline, run once."""
    run_pipeline("photos/pipeline_inversion.yaml", made, made / "photos_run")
    return made / "photos_run"


def test_photo_pipeline_ends_in_pictures_beside_photos(photos: Path, made: Path) -> None:
    inverted, _ = read_tensors(photos / "invert/inversions.safetensors", INVERSIONS)
    assert inverted["images"].shape == (3, 3, SIZE, SIZE)
    judged, _ = read_tensors(
        photos / "evaluate_inversions/inversion_evaluation.safetensors", INVERSION_EVALUATION
    )
    assert judged["original_images"].shape == judged["train_images"].shape == (3, 3, SIZE, SIZE)
    metrics = json.loads((photos / "evaluate_inversions/inversion_metrics.json").read_text())
    assert metrics["num_train"] == 8
    names = {image["train_image"] for image in metrics["images"]}
    assert all((made / "photos" / name).is_file() for name in names)
    page = (photos / "report/report.html").read_text(encoding="utf-8")
    assert "Pictures of recovered vectors" in page
    assert all(name in page for name in names)
    # Targets of the originals are the very embeddings that the recovered vectors were nearest to.
    originals, _ = read_tensors(photos / "originals/representatives.safetensors", REPRESENTATIVES)
    expected = [image["target_similarity"] for image in metrics["images"]]
    assert originals["score"].tolist() == pytest.approx(expected, abs=1e-4)


def test_perceptual_distance_is_an_option_that_needs_a_network(
    photos: Path,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        f"--config={CONFIGS}/photos/evaluate_inversions.yaml",
        f"--config={CONFIGS}/photos/data.yaml",
        *(f"--{name}={value}" for name, value in reductions(made)["judge"].items()),
        f"--model.probe={photos}/probe/checkpoints/last.ckpt",
        f"--model.inversions={photos}/invert/inversions.safetensors",
        "--model.perceptual=true",
        *quiet(tmp_path / "run"),
    ]
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    assert run_cli("test", *words) == 1
    last = capsys.readouterr().err.strip().rsplit("\n", 1)[-1]
    assert "model.perceptual needs a network that could not be downloaded" in last
    assert not (tmp_path / "run" / "inversion_metrics.json").exists()
    name = SqueezeNet1_1_Weights.DEFAULT.url.rsplit("/", 1)[1]
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True, exist_ok=True)
    torch.save(squeezenet1_1(weights=None).state_dict(), tmp_path / "hub" / "checkpoints" / name)
    assert run_cli("test", *words) == 0
    metrics = json.loads((tmp_path / "run" / "inversion_metrics.json").read_text())
    assert all(image["lpips"] > 0 for image in metrics["images"])


@pytest.mark.parametrize("config", PIPELINES[1:])
def test_studies(config: str, made: Path, tmp_path: Path) -> None:
    run_pipeline(config, made, tmp_path / "run")
    results = list((tmp_path / "run").glob("*/inversions.safetensors"))
    assert len(results) == (4 if "scale" in config else 2)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ("transfer_reconstruction/inversion_paper.yaml", "invert"),
        ("transfer_reconstruction/fig19_image_activation_maximisation.yaml", "invert"),
        ("transfer_reconstruction/unclip.yaml", "unclip"),
    ],
)
def test_inversions(config: str, kind: str, photos: Path, made: Path, tmp_path: Path) -> None:
    options = {
        **reductions(made)[kind],
        "model.probe": photos / "probe/checkpoints/last.ckpt",
        "data.representatives": photos / "select/representatives.safetensors",
    }
    if "activation" in config:
        del options["data.representatives"]
    words = [f"--{name}={value}" for name, value in options.items()]
    assert run_cli("predict", f"--config={CONFIGS / config}", *quiet(tmp_path), *words) == 0
    tensors, _ = read_tensors(tmp_path / "inversions.safetensors", INVERSIONS)
    assert len(tensors["images"]) == (6 if "activation" in config else 3)
    assert ("similarity" in tensors) == (kind == "invert")


def test_the_training_norm_is_a_matter_of_evaluation(
    photos: Path, made: Path, tmp_path: Path
) -> None:
    """The recovered direction at the norm of the nearest training sample (B.4)."""
    words = [
        f"--config={CONFIGS}/photos/true_embeddings.yaml",
        f"--config={CONFIGS}/photos/data.yaml",
        *(f"--{name}={value}" for name, value in reductions(made)["originals"].items()),
        f"--model.probe={photos}/probe/checkpoints/last.ckpt",
        f"--model.representatives={photos}/select/representatives.safetensors",
        "--model.what=training_norm",
    ]
    assert run_cli("predict", *words, *quiet(tmp_path)) == 0
    scaled, given, nearest = (
        read_tensors(root / "representatives.safetensors", REPRESENTATIVES)[0]["representatives"]
        for root in (tmp_path, photos / "select", photos / "originals")
    )
    assert (scaled / scaled.norm(dim=1, keepdim=True)).allclose(
        given / given.norm(dim=1, keepdim=True), atol=1e-5
    )
    assert scaled.norm(dim=1).allclose(nearest.norm(dim=1), rtol=1e-4)
