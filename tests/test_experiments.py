"""Every experiment of the papers runs at the small scale, by one command, and is not done twice."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands.pipeline import Stage, expand_grid
from commands.scale import Scale
from tests.conftest import quiet, random_image_folder, random_vit, run_cli
from tests.experiment_configs import EXPERIMENTS, ON_PHOTOS, REDUCTIONS, Experiment
from tests.reductions import CONFIGS


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment(experiment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = EXPERIMENTS[experiment]
    run_small(experiment, case, "small", {}, tmp_path)
    assert "stages are complete" in capsys.readouterr().out
    # Once more, and nothing is left to do.
    assert run_cli("pipeline", f"--config={tmp_path / 'experiment.yaml'}") == 0
    assert "starts" not in capsys.readouterr().out


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options that embed noise by a small random network, where photos and theirs are."""
    root = tmp_path_factory.mktemp("photos")
    return {
        "data.images.root": str(
            random_image_folder(root / "images", {"animals": 14, "food": 9, "plants": 9})
        ),
        "data.images.image_size": 32,
        "data.backbone": "timm/test_vit.r160_in1k",
        "data.weights": str(random_vit(root / "vit.safetensors")),
        "data.cache_dir": str(root / "cache"),
    }


@pytest.mark.parametrize("experiment", ON_PHOTOS)
def test_experiment_on_photos(experiment: str, photos: dict[str, Any], tmp_path: Path) -> None:
    options = dict(photos)
    if "ssim" in experiment:
        options |= {"data.backbone": "identity", "data.weights": None, "data.images.image_size": 8}
    run_small(experiment, ON_PHOTOS[experiment], "photos", options, tmp_path)
    split = next((tmp_path / "run_photos").glob("probe*/split.json")).read_text(encoding="utf-8")
    labels = json.loads(split)["classes"]
    assert len(labels) == (3 if "inaturalist" in experiment else 2)


def test_a_scale_that_does_not_fit_is_refused_before_anything_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Digits are no images that an inversion could give."""
    figure = CONFIGS / "transfer_reconstruction/fig08_inversions.yaml"
    words = [f"--config={figure}", f"--config={CONFIGS}/scale/small.yaml"]
    assert run_cli("pipeline", *words, f"--run={tmp_path}/run") == 1
    message = capsys.readouterr().err
    assert "no config file at configs/inversions/none.yaml" in message
    assert "check 'config' of stage invert_digits-none-seed0" in message
    assert list(tmp_path.iterdir()) == []


def run_small(
    experiment: str, case: Experiment, name: str, data: dict[str, Any], tmp_path: Path
) -> None:
    """Runs an experiment at a scale, and still smaller."""
    content = yaml.safe_load((CONFIGS / experiment).read_text(encoding="utf-8"))
    scale = read_scale(name)
    content["run"] = str(tmp_path / "run")
    # On top of the scale, a size that takes seconds.
    scale["grid"] |= {"seed": [0], **case.grid}
    still = dict(word.removeprefix("--").split("=") for word in quiet(tmp_path)[1:])
    for stage_name, stage in content["stages"].items():
        if stage["command"] in ("report", "table"):
            continue
        options = stage.setdefault("options", {})
        kind = stage_name.split("_")[0]
        small: dict[str, Any] = {**still, **REDUCTIONS[kind]}
        small |= data if kind in ("probe", "trajectory", "check", "evaluate") else {}
        small |= case.options.get(stage_name, {})
        options |= {key: value for key, value in small.items() if "{" not in str(options.get(key))}
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump({**content, "scale": scale}, sort_keys=False), encoding="utf-8")
    assert run_cli("pipeline", f"--config={path}") == 0
    for stage in (stage for stage in content["stages"] if stage.startswith("table")):
        table = (tmp_path / f"run_{name}/{stage}/table.md").read_text(encoding="utf-8")
        rows = [line for line in table.splitlines() if line.startswith("|")][2:]
        assert len(rows) == case.rows
    last = list(content["stages"])[-1]
    page = (tmp_path / f"run_{name}/{last}/report.html").read_text(encoding="utf-8")
    assert "What the paper says" in page
    assert len(page) < 10_000_000


def read_scale(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((CONFIGS / f"scale/{name}.yaml").read_text("utf-8"))
    return content["scale"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["small", "paper_recipe", "photos"])
def test_stand_ins_are_files(name: str) -> None:
    scale = read_scale(name)
    # The grid has values that no file is named by, as there is nothing that they add.
    own = {value for values in scale.get("grid", {}).values() for value in values}
    for old, new in scale["replace"].items():
        assert (CONFIGS.parent / old).is_file() or Path(old).stem in own
        assert all((CONFIGS.parent / path).is_file() for path in new)


PAPER_FIGURES = sorted(CONFIGS.glob("transfer_reconstruction/fig*.yaml"))


@pytest.mark.parametrize("path", PAPER_FIGURES, ids=lambda path: path.stem)
def test_nothing_on_photos_needs_what_is_not_there(path: Path) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["stages"] = {name: Stage(**stage) for name, stage in content["stages"].items()}
    scale = Scale(**read_scale("photos"))
    stages = expand_grid(content["stages"], scale.scaled_grid(content.get("grid", {})))
    for name, stage in stages.items():
        for config in scale.scaled_configs(stage.config):
            assert (CONFIGS.parent / config).is_file(), name
            parts = (
                () if Path(config).stem == "cls_and_mean" else ("data", "backbones", "inversions")
            )
            assert Path(config).parent.name not in parts, name
            assert Path(config).name != "inversion_paper.yaml", name


def test_no_figure_trains_what_another_has() -> None:
    names: dict[tuple[str, str], tuple[Path, Stage]] = {}
    trained: dict[tuple[str, str], str] = {}
    shared: set[tuple[str, str]] = set()
    for path in PAPER_FIGURES:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        run = content["run"]
        stages = {name: Stage(**stage) for name, stage in content["stages"].items()}
        for name, stage in expand_grid(stages, content.get("grid", {})).items():
            # What one figure has made, another takes, and none moves the other's aside.
            first, same = names.setdefault((run, name), (path, stage))
            assert same == stage, f"{name} in {first.name} and {path.name}"
            if stage.command == "fit":
                shared |= {(first.name, path.name)} - {(path.name, path.name)}
                place = run if stage.inputs else "anywhere"
                assert trained.setdefault((place, repr(stage)), name) == name
    pairs = {tuple(name[:5] for name in pair) for pair in shared}
    assert {("fig03", f"fig{n}") for n in ("08", "13", "14", "15", "18", "19", "28")} <= pairs
    assert ("fig07", "fig11") in pairs


def test_a_probe_is_trained_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = "transfer_reconstruction"
    run_small(f"{directory}/fig03_models.yaml", Experiment(), "small", {}, tmp_path)
    case = Experiment(rows=1, grid={"wd": [0.08]})
    run_small(f"{directory}/fig28_weight_decay.yaml", case, "small", {}, tmp_path)
    printed = capsys.readouterr().out
    for stage in ("probe", "reconstruct"):
        name = f"{stage}_digits-none-n40-w500-wd0.08-seed0"
        assert printed.count(f"{name}: starts") == 1
        assert printed.count(f"{name}: complete, skipped") == 1


def test_the_list_of_experiments_is_whole() -> None:
    text = (CONFIGS.parent / "docs/experiments.md").read_text(encoding="utf-8")
    folders = (CONFIGS / "transfer_reconstruction", CONFIGS / "mim_membership")
    names = [path.name for folder in folders for path in folder.glob("*.yaml")]
    experiments = [name for name in names if name.startswith(("fig", "table"))]
    assert len(experiments) > 20
    assert [name for name in experiments if f"`{name}`" not in text] == []
