"""What several tests share."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

# One thread here and in subprocesses: other work on the machine then costs time only in
# proportion, and results are the same to the bit.
os.environ["OMP_NUM_THREADS"] = "1"

import main

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"

RunCLI = Callable[..., int]


@pytest.fixture(autouse=True)
def _in_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs name each other relative to the repository."""
    monkeypatch.chdir(REPOSITORY)


def run_cli(*words: object) -> int:
    """Runs a command line in this process and returns its exit code."""
    return main.main([str(word) for word in words])


def quiet(root: Path) -> list[str]:
    """Options that put a stage into ``root`` and keep the terminal still."""
    return [
        f"--trainer.default_root_dir={root}",
        "--trainer.enable_progress_bar=false",
        "--trainer.accelerator=cpu",
    ]


# The quickstart at a size that takes seconds.
SMALL_PROBE = ["--trainer.max_epochs=10", "--data.num_train=20", "--model.hidden=[100]"]
SMALL_ATTACK = [
    "--model.num_draws=3",
    "--model.num_candidates=40",
    "--model.iterations=100",
    "--model.iterations_per_step=10",
]


@pytest.fixture(scope="session")
def small_probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint of a small probe, trained once."""
    root = tmp_path_factory.mktemp("probe")
    words = ["fit", f"--config={REPOSITORY}/configs/quickstart/probe.yaml"]
    assert run_cli(*words, *quiet(root), *SMALL_PROBE) == 0
    return root / "checkpoints" / "last.ckpt"


@pytest.fixture(scope="session")
def small_candidates(small_probe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Candidates of a small reconstruction, made once."""
    root = tmp_path_factory.mktemp("reconstruct")
    words = ["fit", f"--config={REPOSITORY}/configs/quickstart/reconstruct.yaml"]
    assert run_cli(*words, *quiet(root), *SMALL_ATTACK, f"--model.probe={small_probe}") == 0
    return root / "candidates.safetensors"


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    """Copies a file into the test's own folder."""

    def copy(path: Path) -> Path:
        return Path(shutil.copy(path, tmp_path / path.name))

    return copy


def random_image_folder(root: Path, classes: dict[str, int], seed: int = 0) -> Path:
    """Makes ``root/CLASS/*.png``: coloured noise, each class around its own colour.

    Args:
        root: The folder.
        classes: Number of images by class.
        seed: Of the noise.
    """
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(seed)
    for name, number in classes.items():
        (root / name).mkdir(parents=True)
        colour = random.integers(40, 216, size=3)
        for index in range(number):
            noise = random.normal(0, 30, size=(40, 52, 3)) + random.normal(0, 30, size=3)
            pixels = (colour + noise).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index:03d}.png")
    return root


def random_vit(path: Path, seed: int = 0) -> Path:
    """Saves a small random vision transformer that ``timm/test_vit.r160_in1k`` loads."""
    import timm
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    save_file(timm.create_model("test_vit", num_classes=0).state_dict(), path)
    return path
