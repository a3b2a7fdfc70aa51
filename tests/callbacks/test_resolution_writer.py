"""Resolutions of the images behind a run."""

import json
from pathlib import Path

from PIL import Image

from tests.conftest import REPOSITORY, quiet, run_cli

SIZES = [(40, 30), (30, 40), (40, 30), (50, 50)]


def test_stored_sizes_are_counted(tmp_path: Path) -> None:
    for label in ("a", "b"):
        for number, size in enumerate(SIZES):
            path = tmp_path / "images" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", size, (40 * number, 100, 100)).save(path)
    words = [
        "fit",
        f"--config={REPOSITORY}/configs/transfer_reconstruction/probe_binary.yaml",
        *quiet(tmp_path / "run"),
        "--data=datamodules.EmbeddingsDataModule",
        "--data.images=datamodules.ImageFolderDataModule",
        f"--data.images.root={tmp_path}/images",
        "--data.images.image_size=4",
        "--data.images.test_from=train",
        "--data.backbone=identity",
        f"--data.cache_dir={tmp_path}/cache",
        "--data.num_train=4",
        "--model.hidden=[5]",
        "--model.epochs_per_step=1",
        "--trainer.max_epochs=1",
        "--trainer.callbacks+=callbacks.ResolutionWriter",
    ]
    assert run_cli(*words) == 0
    rows = json.loads((tmp_path / "run/resolutions.json").read_text())
    found = {(row["width"], row["height"]): row["images"] for row in rows}
    assert found == {(40, 30): 4, (30, 40): 2, (50, 50): 2}
