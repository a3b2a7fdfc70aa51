"""Configs about embeddings of images, on small datasets of the real layout and a small backbone."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import models.backbones
from artifacts.files import read_json
from artifacts.tensors import EVALUATION, read_tensors
from datamodules.tasks import named_tasks
from models.backbones import PAPER_BACKBONES
from tests.conftest import REPOSITORY, SHARED, quiet, random_image_folder, random_vit, run_cli
from tests.datamodules.layouts import cifar, food101, inaturalist
from tests.embedding_configs import COMPOSITIONS, EMBEDDING_PIPELINES, Composition
from tests.reductions import CONFIGS, PROBE
from tests.test_configs import PipelineCase, run_small

TINY = "timm/test_vit.r160_in1k"


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small datasets by name, and the weights of a small backbone."""
    root = tmp_path_factory.mktemp("datasets")
    species = named_tasks("inaturalist")
    return {
        "food101": food101(root / "food101"),
        "fauna_flora": inaturalist(
            root / "fauna_flora", [name for group in species["binary"].values() for name in group]
        ),
        "multiclass": inaturalist(
            root / "multiclass",
            [name for group in species["multiclass"].values() for name in group],
        ),
        "photos": random_image_folder(
            root / "photos", {"animals": 14, "food": 9, "plants": 9, "other": 1}
        ),
        "weights": random_vit(root / "vit.safetensors"),
    }


@pytest.fixture
def small(
    datasets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Options that embed small images with the small backbone, whatever the config calls it."""
    for name in (*PAPER_BACKBONES, "timm/vgg16.tv_in1k"):
        monkeypatch.setitem(models.backbones.PAPER_BACKBONES, name, TINY)
    return {
        "data.weights": str(datasets["weights"]),
        "data.images.image_size": 32,
        "data.cache_dir": str(tmp_path / "cache"),
    }


@pytest.mark.parametrize(
    "composition", COMPOSITIONS, ids=lambda c: "-".join([c.data, *c.backbones])
)
def test_composition(
    composition: Composition,
    datasets: dict[str, Path],
    small: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = datasets.get(composition.dataset, tmp_path / "dataset")
    if composition.dataset == "cifar10":
        cifar(root, "CIFAR10", monkeypatch)
        del small["data.weights"]
    options = {**PROBE, **small, "data.images.root": str(root)}
    words = [
        *(f"--config={CONFIGS / file}" for file in composition.files),
        *(f"--{name}={value}" for name, value in options.items()),
        *composition.options,
    ]
    assert run_cli("fit", *words, *quiet(tmp_path / "run")) == 0
    split = read_json(tmp_path / "run" / "split.json", what="split", made_by="-")
    labels = sorted(set(split["train"]["labels"]))
    number = {"food101_multiclass": 10, "inaturalist_multiclass": 4}.get(composition.data, 2)
    assert labels == ([-1, 1] if number == 2 else list(range(number)))
    assert len(split["train"]["labels"]) == 20
    facts = [
        read_json(path, what="description", made_by="-")
        for path in (tmp_path / "cache").rglob("description.json")
    ]
    backbones = {"vit": "vit_b16", "dino": "dino_vit_b16", "dinov2": "dinov2_vit_b14"}
    backbones |= {"clip": "clip_vit_l14", "vgg": "timm/vgg16.tv_in1k"}
    expected = backbones[composition.backbones[0]] if composition.backbones else "identity"
    assert {fact["backbone"] for fact in facts} == {expected}
    features = "cls_mean" if "cls_and_mean" in composition.backbones else "cls"
    assert {fact["features"] for fact in facts} == {features}


@pytest.mark.parametrize("config", EMBEDDING_PIPELINES)
def test_pipeline(
    config: str,
    datasets: dict[str, Path],
    small: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dataset = "photos" if config.startswith("photos") else "food101"
    data = {**small, "data.images.root": str(datasets[dataset])}
    if dataset == "photos":
        data["data.backbone"] = TINY
    content = yaml.safe_load((CONFIGS / config).read_text(encoding="utf-8"))
    stages = content["stages"]
    embedded = [name for name in stages if name.split("_")[0] in ("probe", "check", "evaluate")]
    grid: dict[str, list[Any]] = {
        "dataset": ["food101_binary"],
        "backbone": ["vit", "dino"],
        "train": [20],
        "seed": [0],
    }
    case = PipelineCase(
        grid={name: values for name, values in grid.items() if name in content.get("grid", {})},
        options=dict.fromkeys(embedded, data),
    )
    run_small(config, case, tmp_path, capsys)
    evaluated = sorted((tmp_path / "run").glob("evaluate*/evaluation.safetensors"))
    assert len(evaluated) == (2 if dataset == "food101" else 1)
    tensors, _ = read_tensors(evaluated[0], EVALUATION)
    assert tensors["closest_photo"].shape == (20, 3, 32, 32)
    # Trained on and evaluated with the same embeddings: every image embedded once a backbone.
    number = len(list((tmp_path / "cache").glob("*")))
    assert number == 2 * len(evaluated)
    if dataset == "photos":
        page = (tmp_path / "run" / "report" / "report.html").read_text(encoding="utf-8")
        assert "They are not recovered images" in page
        # As photographs are, several times smaller.
        assert page.count("data:image/jpeg;base64,") == 1


def test_photos_of_the_config_are_grouped_into_two_labels(
    datasets: dict[str, Path], small: dict[str, Any], tmp_path: Path
) -> None:
    words = [
        *(f"--{name}={value}" for name, value in {**PROBE, **small}.items()),
        f"--data.images.root={datasets['photos']}",
        f"--data.backbone={TINY}",
    ]
    configs = [
        f"--config={CONFIGS / name}"
        for name in ("transfer_reconstruction/probe_binary.yaml", "photos/data.yaml")
    ]
    assert run_cli("fit", *configs, *words, *quiet(tmp_path)) == 0
    split = read_json(tmp_path / "split.json", what="split", made_by="-")
    for part in ("train", "test"):
        for name, label in zip(split[part]["identifiers"], split[part]["labels"], strict=True):
            assert label == (1 if name.startswith("animals/") else -1)
    assert len(split["test"]["labels"]) == 12


def test_settings_of_replaced_data_do_not_leak(
    datasets: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "data.yaml"
    images = {
        "class_path": "datamodules.ImageFolderDataModule",
        "init_args": {"root": str(datasets["photos"]), "num_train": 12},
    }
    settings = {"images": images, "backbone": "identity"}
    content = {"data": {"class_path": "datamodules.EmbeddingsDataModule", "init_args": settings}}
    other.write_text(yaml.safe_dump(content), encoding="utf-8")
    probe = f"--config={CONFIGS}/transfer_reconstruction/probe_binary.yaml"
    # The digits' own num_train is 40.
    assert run_cli("fit", probe, f"--config={other}", *quiet(tmp_path)) == 1
    assert "data.num_train=40 and data.images.num_train=12" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not (SHARED / "data" / "photos").is_dir(), reason="needs ../shared/data")
def test_photos_pipeline_recovers_real_photos(tmp_path: Path) -> None:
    content = yaml.safe_load((CONFIGS / "photos/pipeline.yaml").read_text(encoding="utf-8"))
    content["run"] = str(tmp_path / "run")
    shared = {
        "data.images.root": str(SHARED / "data" / "photos"),
        "data.weights": str(SHARED / "data" / "vit_small_patch14_dinov2.safetensors"),
        "data.cache_dir": str(tmp_path / "cache"),
        # A third of the patches, and fewer photos.
        "data.images.image_size": 126,
        "data.images.num_test": 40,
        "data.num_train": 20,
    }
    for name in ("probe", "check", "evaluate"):
        content["stages"][name].setdefault("options", {}).update(shared)
    content["stages"]["reconstruct"]["options"] = {"model.num_candidates": 80}
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    assert run_cli("pipeline", f"--config={path}") == 0
    metrics = read_json(tmp_path / "run/evaluate/metrics.json", what="metrics", made_by="-")
    counts = metrics["candidates"]["cosine"]["0.75"]
    assert counts["recovered"] >= 10
    assert counts["null_held_out"] <= 5


def test_docs_and_configs_name_the_same_files() -> None:
    text = (REPOSITORY / "docs" / "own_photos.md").read_text(encoding="utf-8")
    for name in ("configs/photos/data.yaml", "configs/photos/pipeline.yaml"):
        assert name in text
