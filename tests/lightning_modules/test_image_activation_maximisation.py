"""The baseline on images: the probe becomes sure, and the attack takes no data."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from artifacts.tensors import INVERSIONS, read_tensors
from models.probe import Probe
from tests.conftest import REPOSITORY, quiet, run_cli

SIZE = 8
CONFIG = "configs/photos/image_activation_maximisation.yaml"


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("probe") / "probe.safetensors"
    model = Probe(3 * SIZE * SIZE, (16,), 3)
    model.set_standardisation(torch.rand(20, 3 * SIZE * SIZE))
    save_file(model.state_dict(), str(path))
    return path


def words(probe: Path, root: Path, *options: str) -> list[str]:
    return [
        "predict",
        f"--config={REPOSITORY}/{CONFIG}",
        *quiet(root),
        "--model.backbone=identity",
        "--model.weights=null",
        f"--model.image_size={SIZE}",
        "--model.search.iterations=60",
        "--model.search.judge_every=5",
        "--model.search.jitter=0",
        "--model.search.averaging=0",
        "--model.batch_size=3",
        f"--model.probe={probe}",
        *options,
    ]


def test_the_probe_becomes_sure_of_each_label(probe: Path, tmp_path: Path) -> None:
    assert run_cli(*words(probe, tmp_path)) == 0
    made, _ = read_tensors(tmp_path / "inversions.safetensors", INVERSIONS)
    assert made["label"].tolist() == [0, 0, 1, 1, 2, 2]
    from lightning_modules.victim import load_probe

    sure = load_probe(probe)(made["images"].flatten(1)).softmax(1)
    own = sure[range(6), made["label"]]
    torch.testing.assert_close(own, made["similarity"], rtol=1e-3, atol=1e-3)
    assert sure.argmax(1).tolist() == made["label"].tolist()
    assert float(own.mean()) > 0.5
    assert not torch.allclose(made["images"][0], made["images"][1], atol=0.05)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--data=datamodules.DigitsDataModule", "takes no data"),
        ("--model.num_images=7", "num_images must be a positive multiple of 3"),
        ("--model.first=6", "first below num_images"),
    ],
)
def test_mistakes_are_one_line(
    option: str, message: str, probe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(*words(probe, tmp_path, option)) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "images").exists()
