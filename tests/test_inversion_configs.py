"""The configs that turn embeddings into images run through ``main``, small, on noise."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.nn import functional as F
from torchvision.models import SqueezeNet1_1_Weights, squeezenet1_1

import models.backbones
from artifacts.tensors import (
    INVERSION_EVALUATION,
    INVERSIONS,
    REPRESENTATIVES,
    read_tensors,
    write_tensors,
)
from commands.stages import finished_files
from models.backbones import PAPER_BACKBONES
from tests.conftest import REPOSITORY, quiet, random_image_folder, random_vit, run_cli
from tests.datamodules.layouts import food101
from tests.inversion_configs import FIGURES, PHOTO_PIPELINE
from tests.unclip_parts import save_tiny_unclip

CONFIGS = REPOSITORY / "configs"
SIZE, DIMENSION = 32, 64
VIT = "timm/test_vit.r160_in1k"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, a data set, a backbone and a decoder, all of noise or nearly."""
    root = tmp_path_factory.mktemp("noise")
    random_image_folder(root / "photos", {"animals": 8, "food": 4, "plants": 4})
    food101(root / "food101")
    random_vit(root / "vit.safetensors")
    save_tiny_unclip(root / "unclip", DIMENSION)
    return root


def reductions(made: Path, photos: str = "photos") -> dict[str, dict[str, Any]]:
    """By the first word of a stage's name."""
    vit = {"model.backbone": VIT, "model.weights": str(made / "vit.safetensors")}
    data = {
        "data.images.root": str(made / photos),
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
        "targets": {**data, "model.top": 2},
        "originals": {**data, "model.top": 3},
        "invert": {**vit, **search, "model.image_size": SIZE},
        "maximise": {**vit, **search, "model.image_size": SIZE, "model.num_images": 2},
        "unclip": {
            "model.model": str(made / "unclip"),
            "model.steps": 2,
            "model.super_resolution_steps": 2,
        },
        "evaluate": data,
        "judge": {**data, **vit},
        "report": {},
        "table": {},
    }


def kind_of(stage: str, method: str) -> str:
    """Which reductions a stage has."""
    if stage.startswith("evaluate_{dataset}") or stage == "evaluate":
        return "evaluate"
    if stage.startswith("evaluate_"):
        return "judge"
    return "unclip" if "{method}" in stage and method == "unclip" else stage.split("_")[0]


def run_pipeline(
    config: str,
    small: dict[str, dict[str, Any]],
    root: Path,
    grid: dict[str, list[Any]] | None = None,
    scale: str = "",
) -> None:
    """Runs a shipped pipeline, reduced, and perhaps at a shipped scale."""
    content = yaml.safe_load((CONFIGS / config).read_text(encoding="utf-8"))
    content["run"] = str(root)
    content["grid"] = {**content.get("grid", {}), **(grid or {})}
    # The photos' scale has no other than the first.
    method = content["grid"].get("method", ["dip"])[0]
    still = dict(word.removeprefix("--").split("=") for word in quiet(root)[1:])
    for name, stage in content["stages"].items():
        if stage["command"] not in ("report", "table"):
            options = {**small[kind_of(name, method)], **still}
            stage["options"] = {**stage.get("options", {}), **options}
    path = root.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    configs = [path, *([CONFIGS / scale] if scale else [])]
    assert run_cli("pipeline", *(f"--config={path}" for path in configs)) == 0


@pytest.fixture(scope="module")
def photos(made: Path) -> Path:
    """The whole photo pipeline, run once."""
    run_pipeline(PHOTO_PIPELINE, reductions(made), made / "photos_run")
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


def test_pictures_of_another_size_are_judged_at_that_of_the_data(
    photos: Path, made: Path, tmp_path: Path
) -> None:
    """A decoder's 256 pixels are no multiple of the patches of CLIP ViT-L/14."""
    tensors, metadata = read_tensors(photos / "invert/inversions.safetensors", INVERSIONS)
    tensors["images"] = F.interpolate(tensors["images"], size=24)
    write_tensors(tmp_path / "inversions.safetensors", INVERSIONS, tensors, metadata)
    words = [
        f"--config={CONFIGS}/photos/evaluate_inversions.yaml",
        f"--config={CONFIGS}/photos/data.yaml",
        *(f"--{name}={value}" for name, value in reductions(made)["judge"].items()),
        f"--model.probe={photos}/probe/checkpoints/last.ckpt",
        f"--model.inversions={tmp_path}/inversions.safetensors",
    ]
    assert run_cli("test", *words, *quiet(tmp_path / "run")) == 0
    path = tmp_path / "run/inversion_evaluation.safetensors"
    judged, _ = read_tensors(path, INVERSION_EVALUATION)
    assert judged["train_images"].shape == (3, 3, 24, 24)


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


@pytest.mark.parametrize("config", FIGURES)
def test_figure(config: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the files that it has at the paper's size, and a small network under their names."""
    for name in PAPER_BACKBONES:
        monkeypatch.setitem(models.backbones.PAPER_BACKBONES, name, VIT)
    small = reductions(made, "food101")
    for options in small.values():
        options.pop("data.backbone", None)
        options.pop("model.backbone", None)
    small["judge"] |= {
        "model.second_backbone": VIT,
        "model.second_weights": str(made / "vit.safetensors"),
    }
    grid: dict[str, list[Any]] = {
        "dataset": ["food101_binary"],
        "backbone": [{"fig08": "dinov2", "fig15": "clip"}.get(figure(config), "vit")],
        "scale": [0.1],
    }
    names = yaml.safe_load((CONFIGS / config).read_text(encoding="utf-8"))["grid"]
    grid = {name: values for name, values in grid.items() if name in names}
    methods = names.get("method", [None])
    for method in methods:
        one = {} if method is None else {"method": [method]}
        run_pipeline(config, small, tmp_path / "run", {**grid, **one})
    judged = sorted((tmp_path / "run").glob("*/inversion_metrics.json"))
    number = {"fig08": 1, "fig09": 2, "fig15": 2, "fig19": 1}[figure(config)]
    (table,) = finished_files(tmp_path / "run", "table*/table.md")
    rows = [line for line in table.read_text().splitlines() if line.startswith("|")][2:]
    assert len(judged) == len(rows) == number
    metrics = json.loads(judged[0].read_text())
    assert {"attacked_similarity", "second_similarity", "ssim"} <= metrics["mean"].keys()
    # The original's own picture stands beside each that an attack recovered.
    assert ("original_ssim" in metrics["mean"]) == (figure(config) in ("fig08", "fig15"))
    found = finished_files(tmp_path / "run", "report*/report.html")
    pages = [page.read_text(encoding="utf-8") for page in found]
    assert len(pages) == (2 if figure(config) == "fig15" else 1)
    sought = {"fig19": "that the probe is sure of", "fig09": "of training images"}.get(
        figure(config), "of recovered vectors"
    )
    assert all(f"Pictures {sought}" in page for page in pages)


# Fig. 15 is there Fig. 8 once more.
@pytest.mark.parametrize("config", [name for name in FIGURES if "fig15" not in name])
def test_figure_on_photos(config: str, made: Path, tmp_path: Path) -> None:
    """With the files of the photos' scale."""
    grid = {"loss": ["mse"]} if figure(config) == "fig09" else {}
    run_pipeline(config, reductions(made), tmp_path / "run", grid, scale="scale/photos.yaml")
    run = tmp_path / "run_photos"
    made_here = {path.parent.name: path for path in run.glob("*/inversions.safetensors")}
    judged = list(run.glob("*/inversion_metrics.json"))
    assert len(judged) == {"fig09": 3}.get(figure(config), 1)
    numbers = {len(read_tensors(path, INVERSIONS)[0]["images"]) for path in made_here.values()}
    assert numbers == {3 if figure(config) == "fig08" else 2}
    recipes = [(path.parent / "config_predict.yaml").read_text() for path in made_here.values()]
    assert all("total_variation: 0.05" in recipe for recipe in recipes)
    assert all("  top: 4\n" in recipe for recipe in recipes) == (figure(config) != "fig19")


def figure(config: str) -> str:
    """``fig08`` of ``transfer_reconstruction/fig08_inversions.yaml``."""
    return Path(config).name.split("_")[0]


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ("transfer_reconstruction/inversion_paper.yaml", "invert"),
        ("photos/image_activation_maximisation.yaml", "maximise"),
        ("transfer_reconstruction/image_activation_maximisation.yaml", "maximise"),
        ("inversions/clip_unclip.yaml", "unclip"),
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
    assert len(tensors["images"]) == (2 if kind == "maximise" else 3)
    assert ("similarity" in tensors) == (kind != "unclip")


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
