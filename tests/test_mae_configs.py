"""Configs of masked autoencoders, at a size that takes seconds, on data of the real layout."""

from pathlib import Path

import pytest
import torch
import yaml

from tests.conftest import REPOSITORY, quiet, run_cli
from tests.datamodules.layouts import cifar, food101, tiny_imagenet
from tests.mae_configs import DATASETS, DEFENCES, ENCODERS

CONFIGS = REPOSITORY / "configs"
SMALL = [
    "--model.image_size=32",
    "--model.patch_size=16",
    "--model.embed_dim=32",
    "--model.depth=1",
    "--model.num_heads=2",
    "--model.decoder_embed_dim=16",
    "--model.decoder_depth=1",
    "--model.decoder_num_heads=2",
    "--model.warmup_epochs=0.5",
    "--data.batch_size=4",
    "--trainer.precision=32-true",
    "--trainer.max_epochs=1",
    "--trainer.check_val_every_n_epoch=1",
]


def dataset(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if name == "tiny_imagenet":
        return tiny_imagenet(root)
    cifar(root, name.upper(), monkeypatch)
    return root


def composed(*names: str) -> list[str]:
    return [f"--config={CONFIGS / 'mim_membership' / name}.yaml" for name in names]


@pytest.mark.parametrize(
    "names",
    [
        *zip(DATASETS, ENCODERS, strict=True),
        ("cifar10", "tiny"),
        ("cifar10", "encoder_i", DEFENCES[0]),
        ("cifar10", "encoder_i", DEFENCES[1]),
    ],
    ids="-".join,
)
def test_pretraining(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = dataset(names[0], tmp_path / "data", monkeypatch)
    words = ["fit", *composed("pretraining", *names), f"--data.images.root={root}"]
    assert run_cli(*words, *SMALL, *quiet(tmp_path / "run")) == 0
    assert (tmp_path / "run" / "encoder.safetensors").is_file()
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    model = config["model"]["init_args"]
    assert model["size"] == names[1]
    assert (model["mask_ratio"], config["trainer"]["log_every_n_steps"]) == (0.75, 10)
    if names[2:] == ("defence_dropout",):
        assert model["encoder_dropout"] == model["decoder_dropout"] == 0.1
    if names[2:] == ("defence_weight_decay",):
        assert model["weight_decay"] == 0.3


def test_the_papers_settings_hold() -> None:
    for encoder in ENCODERS:
        content = {}
        for name in ("pretraining", encoder):
            text = (CONFIGS / "mim_membership" / f"{name}.yaml").read_text(encoding="utf-8")
            content[name] = yaml.safe_load(text)
        model = content["pretraining"]["model"]["init_args"]
        assert (model["image_size"], model["mask_ratio"]) == (224, 0.75)
        assert content["pretraining"]["trainer"]["max_epochs"] == 500
        size, accumulate = (
            content[encoder]["data"]["init_args"]["batch_size"],
            content[encoder]["trainer"]["accumulate_grad_batches"],
        )
        assert size * accumulate == 256


def test_linear_probe_of_a_papers_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = dataset("cifar10", tmp_path / "data", monkeypatch)
    words = [*composed("pretraining", "cifar10"), f"--data.images.root={root}", *SMALL]
    assert run_cli("fit", *words, *quiet(tmp_path / "mae")) == 0
    words = [
        *composed("linear_probe"),
        f"--data.root={root}",
        "--data.num_workers=0",
        "--data.batch_size=4",
        "--model.warmup_epochs=0.5",
        f"--model.encoder={tmp_path}/mae/encoder.safetensors",
        *quiet(tmp_path / "probe"),
        "--trainer.max_epochs=1",
    ]
    assert run_cli("fit", *words) == 0
    assert run_cli("test", *words, "--ckpt_path=last") == 0
    # The same encoder under the reconstruction attack.
    words = [
        f"--config={CONFIGS}/transfer_reconstruction/probe_binary.yaml",
        f"--config={CONFIGS}/data/food101_binary.yaml",
        f"--config={CONFIGS}/backbones/mae.yaml",
        f"--data.weights={tmp_path}/mae/encoder.safetensors",
        f"--data.images.root={food101(tmp_path / 'food101')}",
        "--data.images.image_size=32",
        f"--data.cache_dir={tmp_path}/cache",
        "--data.num_train=20",
        "--model.hidden=[20]",
        "--trainer.max_epochs=1",
    ]
    assert run_cli("fit", *words, *quiet(tmp_path / "reconstruction")) == 0
    weights = torch.load(tmp_path / "reconstruction/checkpoints/last.ckpt", weights_only=True)
    assert weights["state_dict"]["probe.mean"].shape == (32,)


def test_quickstart(tmp_path: Path) -> None:
    words = [
        f"--config={CONFIGS}/quickstart/mae.yaml",
        "--data.images.num_test=40",
        "--model.warmup_epochs=1",
        "--trainer.max_epochs=2",
        "--trainer.check_val_every_n_epoch=1",
    ]
    assert run_cli("fit", *words, *quiet(tmp_path / "mae")) == 0
    words = [
        f"--config={CONFIGS}/quickstart/mae_probe.yaml",
        f"--model.encoder={tmp_path}/mae/encoder.safetensors",
        "--data.num_train=100",
        "--data.num_test=100",
        "--trainer.max_epochs=2",
        *quiet(tmp_path / "probe"),
    ]
    assert run_cli("fit", *words) == 0
    assert run_cli("test", *words, "--ckpt_path=last") == 0
