"""Configs of membership inference, at a size that takes seconds."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from sklearn.datasets import load_digits

from commands.pipeline import Stage, expand_grid
from reporting.paper_results import TABLES
from tests.conftest import REPOSITORY, quiet, run_cli
from tests.datamodules.layouts import cifar, cinic10, mnist, tiny_imagenet
from tests.membership_configs import EXPERIMENTS

CONFIGS = REPOSITORY / "configs"
SMALL_MODEL = {
    "model.image_size": 32,
    "model.patch_size": 8,
    "model.embed_dim": 32,
    "model.depth": 1,
    "model.num_heads": 2,
    "model.decoder_embed_dim": 16,
    "model.decoder_num_heads": 2,
    "model.warmup_epochs": 0.5,
}
SMALL_FIT = {
    "data.batch_size": 16,
    "trainer.max_epochs": 1,
    "trainer.precision": "32-true",
    "trainer.check_val_every_n_epoch": 1,
    "trainer.enable_model_summary": False,
}
SMALL_SIZES = {
    **{f"data.sizes.{name}": 16 for name in ("target_train", "target_test", "shadow_train")},
    "data.sizes.shadow_test": 16,
    "data.sizes.downstream": 20,
}
REDUCTIONS: dict[str, dict[str, Any]] = {
    "autoencoder": {**SMALL_MODEL, **SMALL_FIT, **SMALL_SIZES, "model.decoder_depth": 1},
    "decoder": {**SMALL_FIT, "model.warmup_epochs": 0.5},
    "attack": {"model.num_masks": 2, "model.bootstrap": 20, "trainer.precision": "32-true"},
}
GRIDS: dict[str, dict[str, list[Any]]] = {
    "table2": {"dataset": ["digits"], "encoder": ["encoder_i"]},
    "table3": {"dataset": ["digits"], "ratio": [0.5, 0.75]},
    "table4": {"dataset": ["digits"], "epoch": [0, 1]},
    "table5": {"dataset": ["digits"], "encoder": ["encoder_i"], "layers": [2]},
    "table6": {"dataset": ["digits"], "encoder": ["encoder_i"], "defence": ["none", "dropout"]},
    "fig4": {"dataset": ["digits"], "shadow": ["digits"]},
    "fig5": {"dataset": ["digits"], "ratio": [0.5], "guess": [0.5, 0.75]},
}
# What the paper's table gets of it.
CELLS = {"table2": 5, "table3": 2, "table4": 2, "table5": 2, "table6": 2, "fig4": 1, "fig5": 2}


def reduced(config: str, run: Path, grid: dict[str, list[Any]], **special: Any) -> Path:  # noqa: ANN401
    """A shipped pipeline in ``run``, at a size that takes seconds, as a config file."""
    content = yaml.safe_load((CONFIGS / config).read_text(encoding="utf-8"))
    content["run"] = str(run)
    assert set(grid) <= set(content["grid"])
    content["grid"] |= grid
    still = dict(word.removeprefix("--").split("=") for word in quiet(run)[1:])
    for name, stage in content["stages"].items():
        if stage["command"] == "report":
            continue
        of_decoder = name.startswith("simulated") or "_decoder" in name
        kind = (
            "attack" if stage["command"] == "test" else "decoder" if of_decoder else "autoencoder"
        )
        options = stage.setdefault("options", {})
        small = {**still, **REDUCTIONS[kind], **special.get(kind, {})}
        # What the grid sets is small already.
        options |= {key: value for key, value in small.items() if "{" not in str(options.get(key))}
    path = run.parent / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_end_with_the_papers_table(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    special: dict[str, Any] = {}
    if name == "table4":
        special = {"autoencoder": {"trainer.max_epochs": 2, "model.warmup_epochs": 0.5}}
    run = tmp_path / "run"
    path = reduced(f"mim_membership/{name}.yaml", run, GRIDS[name], **special)
    if name == "table4":
        trajectory = "configs/mim_membership/trajectory.yaml"
        text = (REPOSITORY / trajectory).read_text(encoding="utf-8")
        assert "every_n_epochs: 100\n" in text
        often = tmp_path / "trajectory.yaml"
        often.write_text(text.replace("every_n_epochs: 100", "every_n_epochs: 1"))
        path.write_text(path.read_text().replace(trajectory, str(often)))
    assert run_cli("pipeline", f"--config={path}") == 0
    printed = capsys.readouterr().out
    layout = TABLES[name]
    assert layout.title in printed
    assert f"{CELLS[name]} cells of {name}" in (run / name / "report.html").read_text()
    if layout.values:
        # The paper's own numbers stand beside.
        assert f"({next(iter(layout.values.values())):.4f})" in printed
    if name == "table2":
        assert TABLES["table7"].title in printed
    assert run_cli("pipeline", f"--config={path}") == 0
    assert "starts" not in capsys.readouterr().out


def test_no_table_trains_what_another_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, str] = {}
    settings: dict[str, str] = {}
    for experiment in EXPERIMENTS:
        content = yaml.safe_load((CONFIGS / f"mim_membership/{experiment}.yaml").read_text())
        assert content["run"] == "runs/mim_membership/paper"
        stages = {name: Stage(**stage) for name, stage in content["stages"].items()}
        for name, stage in expand_grid(stages, content["grid"]).items():
            if stage.command == "fit":
                assert names.setdefault(name, repr(stage)) == repr(stage)
                assert settings.setdefault(repr(stage), name) == name
    run = tmp_path / "run"
    grids = {"table3": {**GRIDS["table3"], "ratio": [0.5]}, "fig5": GRIDS["fig5"]}
    for experiment, grid in grids.items():
        path = reduced(f"mim_membership/{experiment}.yaml", run, grid)
        assert run_cli("pipeline", f"--config={path}") == 0
    printed = capsys.readouterr().out
    for shared in (
        "target_digits_encoder_i_0.5_none",
        "simulated_digits_encoder_i_0.5_none_by_0.5",
    ):
        assert printed.count(f"{shared}_seed0: starts") == 1
        assert printed.count(f"{shared}_seed0: complete, skipped") == 1


def test_an_experiment_runs_at_the_small_scale(tmp_path: Path) -> None:
    run = tmp_path / "run"
    path = reduced("mim_membership/table3.yaml", run, {"ratio": [0.75]})
    # The scale says digits and the size of the model; only the time is less here.
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    for stage in content["stages"].values():
        for name in [name for name in SMALL_MODEL if name in stage.get("options", {})]:
            del stage["options"][name]
        stage.get("options", {}).pop("model.decoder_depth", None)
        if stage["command"] == "fit":
            stage["options"]["model.warmup_epochs"] = 0.5
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    words = [f"--config={path}", f"--config={CONFIGS}/scale/small.yaml", "--scale.grid.seed=[3]"]
    assert run_cli("pipeline", *words) == 0
    small = tmp_path / "run_small"
    config = yaml.safe_load(
        (small / "target_digits_encoder_i_0.75_none_seed3/config.yaml").read_text(encoding="utf-8")
    )
    assert config["model"]["init_args"]["size"] == "tiny"
    assert (small / "table3/report.html").is_file()


@pytest.mark.parametrize(
    ("name", "shadow"),
    [
        ("cifar10", None),
        ("cifar10", "tiny_imagenet"),
        ("cifar100", "tiny_imagenet"),
        ("tiny_imagenet", "cifar10"),
        ("tiny_imagenet", "cifar100"),
        ("fashion_mnist", "digits"),
        ("digits", "fashion_mnist"),
    ],
)
def test_datasets_are_split(
    name: str, shadow: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the experiments compose them, from where the files say that the data are."""
    for own, kind in (("cifar10", "CIFAR10"), ("cifar100", "CIFAR100")):
        if own in (name, shadow):
            cifar(tmp_path / "data" / own, kind, monkeypatch)
    cinic10(tmp_path / "data/cinic10")
    tiny_imagenet(tmp_path / "data/tiny_imagenet")
    mnist(tmp_path / "data/fashion_mnist", zipped=True)
    names = ["pretraining", "encoder_i", f"splits_{name}"]
    names += [] if shadow is None else [f"shadow_{shadow}"]
    small = {**REDUCTIONS["autoencoder"], "trainer.max_epochs": 1, "data.batch_size": 2}
    small |= {f"data.sizes.{n}": 2 for n in ("target_train", "target_test", "shadow_train")}
    small |= {"data.sizes.shadow_test": 2, "data.sizes.downstream": 4 if shadow is None else 0}
    for part, of in (("source", name), ("shadow_source", shadow)):
        if of == "tiny_imagenet":
            small[f"data.{part}.num_classes"] = 3
    words = [f"--{option}={value}" for option, value in small.items()]
    configs = [f"--config={CONFIGS / 'mim_membership' / file}.yaml" for file in names]
    monkeypatch.chdir(tmp_path)
    assert run_cli("fit", *configs, *words, "--data.part=shadow_1", *quiet(tmp_path / "run")) == 0
    splits = json.loads((tmp_path / "run" / "membership_splits.json").read_text())
    assert len(splits["parts"]["shadow_1_train"]["identifiers"]) == 2


def two_folders(root: Path) -> dict[str, list[Any]]:
    """Digits as files, and the grid of an audit of them."""
    digits = load_digits()
    for folder, numbers in (("members", range(30)), ("others", range(30, 150))):
        (root / folder).mkdir()
        for number in numbers:
            pixels = np.kron(digits.images[number] * 15, np.ones((4, 4))).astype(np.uint8)
            Image.fromarray(pixels).convert("RGB").save(root / folder / f"{number}.png")
    return {
        "encoder": [str(root / "encoder" / "encoder.safetensors")],
        "image_size": [32],
        "members": [str(root / "members")],
        "others": [str(root / "others")],
    }


def test_an_audit_of_two_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = {**two_folders(tmp_path), "size": ["encoder_i"]}
    target = [f"--{name}={value}" for name, value in REDUCTIONS["autoencoder"].items()]
    data = [
        "--data=PretrainingDataModule",
        "--data.images=ImageFolderDataModule",
        f"--data.images.root={tmp_path / 'members'}",
        "--data.images.image_size=32",
    ]
    config = f"--config={CONFIGS}/mim_membership/pretraining.yaml"
    words = [word for word in target if "data.sizes" not in word]
    assert run_cli("fit", config, *data, *words, *quiet(tmp_path / "encoder")) == 0
    shares = yaml.safe_load((CONFIGS / "mim_membership/audit_data.yaml").read_text())
    shares = shares["data"]["init_args"]["sizes"]
    special = {"autoencoder": {f"data.sizes.{name}": share for name, share in shares.items()}}
    special["autoencoder"] |= {"data.sizes.downstream": 0}
    path = reduced("mim_membership/audit.yaml", tmp_path / "run", grid, **special)
    assert run_cli("pipeline", f"--config={path}") == 0
    printed = capsys.readouterr().out
    assert "29 members" in printed
    assert "combined: calibrated error and mask consistency" in printed
    assert "upper bound" not in printed
    assert (tmp_path / "run" / "report" / "report.html").is_file()
    # A third folder, of which nothing is known; here it is the attacker's own.
    run, last = tmp_path / "run", "checkpoints/last.ckpt"
    names = ("pretraining", "audit_data", "attack", "verdicts")
    small = {**REDUCTIONS["attack"], "data.members.image_size": 32, "data.source.image_size": 32}
    words = [
        *(f"--config={CONFIGS / 'mim_membership' / name}.yaml" for name in names),
        *(f"--{name}={value}" for name, value in small.items()),
        f"--data.source.root={tmp_path / 'others'}",
        f"--data.splits={run / 'shadow' / 'membership_splits.json'}",
        f"--data.questioned.root={tmp_path / 'others'}",
        "--data.questioned.image_size=32",
        f"--model.target={run / 'target_decoder' / last}",
        f"--model.simulated={run / 'simulated' / last}",
        f"--model.shadows=[{run / 'shadow' / last}]",
        f"--model.references=[{run / 'shadow_decoder' / last}]",
    ]
    assert run_cli("predict", *words, *quiet(tmp_path / "verdicts")) == 0
    lines = (tmp_path / "verdicts" / "scores.csv").read_text().splitlines()
    assert len(lines) == 121
    assert "combined member" in lines[0]
    # All of that folder but the non-members.
    assert "warning: 96 of them are the attacker's own" in capsys.readouterr().out
    # The ratio is that of the audit's models.
    words += ["--model.mask_ratio=0.6", *quiet(tmp_path / "other")]
    assert run_cli("predict", *words) == 1
    assert "was trained at mask ratio 0.75, not 0.6" in capsys.readouterr().err


def test_an_audit_of_a_quickstart_s_encoder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = {**two_folders(tmp_path), "size": ["tiny"], "mask_ratio": [0.75]}
    configs = [f"--config={CONFIGS}/quickstart/membership{name}.yaml" for name in ("_data", "_mae")]
    short = {**QUICK["target"], "data.passes_per_epoch": 1}
    words = [f"--{name}={value}" for name, value in short.items()]
    assert run_cli("fit", *configs, *words, *quiet(tmp_path / "encoder")) == 0
    content = yaml.safe_load((CONFIGS / "mim_membership/audit.yaml").read_text(encoding="utf-8"))
    content["run"] = str(tmp_path / "run")
    still = dict(word.removeprefix("--").split("=") for word in quiet(tmp_path)[1:])
    for name, stage in content["stages"].items():
        if name != "report":
            stage["options"] |= still | QUICK["attack" if name == "attack" else "shadow"]
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    command = ["pipeline", f"--config={path}", f"--config={CONFIGS}/scale/audit_small.yaml"]
    # What does not fit is said before anything is trained.
    nowhere = str(tmp_path / "nowhere.pth")
    for changed, message in (
        ({"size": ["encoder_i"], "image_size": [224]}, "has embed_dim 128, patch_size 8, image_"),
        ({"image_size": [64]}, "has image_size 32; this model has 64"),
        ({"mask_ratio": [0.5]}, "was trained at mask ratio 0.75; set model.mask_ratio to that"),
        ({"mask_ratio": [0.999]}, "leaves none of 16 patches visible"),
        ({"encoder": [nowhere]}, f"no masked autoencoder at {nowhere}"),
    ):
        scale = command[:2] if "size" in changed else command
        assert run_cli(*scale, f"--grid={json.dumps(grid | changed)}") == 1
        assert message in capsys.readouterr().err
        assert not list(tmp_path.glob("run*/*/checkpoints"))
    assert run_cli(*command, f"--grid={json.dumps(grid)}") == 0
    printed = capsys.readouterr().out
    assert "combined: calibrated error and mask consistency" in printed
    assert "TPR at 1% FPR: not resolvable with 24 non-members" in printed
    assert (tmp_path / "run_small" / "report" / "report.html").is_file()


QUICK: dict[str, dict[str, Any]] = {
    "target": {"trainer.max_epochs": 1, "model.warmup_epochs": 0.5},
    "shadow": {"trainer.max_epochs": 1, "model.warmup_epochs": 0.5},
    "simulated": {"trainer.max_epochs": 1, "model.warmup_epochs": 0.5},
    "attack": {"model.num_masks": 2, "model.bootstrap": 20},
}


def test_the_quickstart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = yaml.safe_load((CONFIGS / "quickstart/membership.yaml").read_text(encoding="utf-8"))
    content["run"] = str(tmp_path / "run")
    content["grid"]["seed"] = [3, 4]
    still = dict(word.removeprefix("--").split("=") for word in quiet(tmp_path)[1:])
    for name, stage in content["stages"].items():
        if stage["command"] != "report":
            stage["options"] |= {**still, **QUICK[name.split("_")[0]], "data.passes_per_epoch": 1}
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    assert run_cli("pipeline", f"--config={path}") == 0
    capsys.readouterr()
    assert run_cli("report", "--table=seeds", f"--run={tmp_path / 'run'}") == 0
    printed = capsys.readouterr().out
    assert "Membership attacks over seeds 3, 4" in printed
    # What each step gains, from the same run.
    gains = yaml.safe_load((CONFIGS / "quickstart/membership_gains.yaml").read_text())
    gains |= {"run": content["run"], "grid": content["grid"]}
    options = content["stages"]["attack_seed{seed}"]["options"]
    gains["stages"]["independent_masks_seed{seed}"]["options"] |= {
        name: options[name] for name in (*still, *QUICK["attack"])
    }
    path.write_text(yaml.safe_dump(gains, sort_keys=False), encoding="utf-8")
    assert run_cli("pipeline", f"--config={path}") == 0
    assert "What each step gains, seeds 3, 4" in capsys.readouterr().out
    for seed in (3, 4):
        ours, theirs = (
            json.loads((tmp_path / "run" / f"{stage}_seed{seed}" / "metrics.json").read_text())
            for stage in ("attack", "independent_masks")
        )
        # Baseline D's masks are independent in any case.
        assert ours["attacks"]["baseline_d"] == theirs["attacks"]["baseline_d"]
        assert ours["attacks"]["combined"] != theirs["attacks"]["combined"]
    assert "upper bound" in printed
    assert (tmp_path / "run" / "report.html").is_file()


def test_without_the_members_not_a_bit_of_the_attack_changes(tmp_path: Path) -> None:
    """The shipped quickstart on files: its whole attack, shadows too, with and without them."""
    digits = load_digits()
    images = tmp_path / "images"
    for number in range(420):
        folder = images / str(digits.target[number])
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.kron(digits.images[number] * 15, np.ones((4, 4))).astype(np.uint8)
        Image.fromarray(pixels).convert("RGB").save(folder / f"{number}.png")
    files = {"": "datamodules.ImageFolderDataModule", ".root": str(images), ".image_size": 32}
    sizes = {"pool": 32, "population": 16, "downstream": 40, "shadow_train": 32}
    sizes |= {"target_train": 32, "target_test": 32, "shadow_test": 32}
    small: dict[str, Any] = {f"data.sizes.{name}": size for name, size in sizes.items()}
    small |= {f"data.source{name}": value for name, value in files.items()}
    small |= {"data.passes_per_epoch": 1}
    small |= dict(word.removeprefix("--").split("=") for word in quiet(tmp_path)[1:])
    content = yaml.safe_load((CONFIGS / "quickstart/membership.yaml").read_text(encoding="utf-8"))
    del content["stages"]["report_seed{seed}"]
    for name, stage in content["stages"].items():
        stage["options"] |= small | QUICK[name.split("_")[0]]
    # Without the truth, which is for `test`, the attack is applied to images of any kind.
    attack = content["stages"]["attack_seed{seed}"]
    attack["command"] = "predict"
    attack["outputs"] = ["scores.csv"]
    attack["options"] |= {f"data.questioned{name}": value for name, value in files.items()}
    attack["options"]["trainer.callbacks"] = "callbacks.MembershipScoreWriter"
    del attack["inputs"]["model.true_target"]
    attack["options"]["model.true_target"] = None
    path = tmp_path / "small.yaml"

    def run(name: str) -> Path:
        content["run"] = str(tmp_path / name)
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        assert run_cli("pipeline", f"--config={path}") == 0
        return tmp_path / name

    before = run("before")
    target = content["stages"].pop("target_seed{seed}")
    released = tmp_path / "after" / "target_seed0"
    released.mkdir(parents=True)
    for name in target["outputs"][1:]:
        shutil.copy(before / "target_seed0" / name, released)
    splits = json.loads((released / "membership_splits.json").read_text())
    members = splits["parts"]["target_train"]["identifiers"]
    assert len(members) == 32
    for name in members:
        (images / name).unlink()
    shutil.rmtree(before / "target_seed0")
    after = run("after")
    trained = sorted(p.relative_to(before) for p in before.glob("*/checkpoints/last.ckpt"))
    assert len(trained) == 3 + 1 + 4
    for checkpoint in trained:
        ours, theirs = (
            torch.load(root / checkpoint, weights_only=True)["state_dict"]
            for root in (before, after)
        )
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    scores, again = (
        (root / "attack_seed0" / "scores.csv").read_text().splitlines() for root in (before, after)
    )
    gone = {line for line in scores if line.split(",")[0] in members}
    assert len(gone) == 32
    assert [line for line in scores if line not in gone] == again


def test_fashion_mnist_takes_the_place_of_digits(tmp_path: Path) -> None:
    quickstart = CONFIGS / "quickstart"
    digits, fashion = (
        yaml.safe_load((quickstart / f"membership{name}_data.yaml").read_text(encoding="utf-8"))
        for name in ("", "_fashion")
    )
    settings = fashion["data"]["init_args"], digits["data"]["init_args"]
    assert settings[0]["source"]["class_path"] == "datamodules.FashionMNISTDataModule"
    assert {**settings[0]["sizes"], "downstream": 200} == settings[1]["sizes"]
    grid = yaml.safe_load((quickstart / "membership_fashion.yaml").read_text())["grid"]
    assert grid == {"seed": [0], "data": ["membership_fashion_data"]}
