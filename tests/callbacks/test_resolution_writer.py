"""Resolutions of the images behind a run (Fig. 29)."""

import json
from pathlib import Path

import yaml
from PIL import Image

from tests.conftest import quiet, run_cli
from tests.datamodules.layouts import food101
from tests.reductions import CONFIGS

RESOLUTION_CONFIGS = {
    "transfer_reconstruction/fig29_resolutions.yaml",
    "transfer_reconstruction/resolutions.yaml",
}
SIZES = [(40, 30), (30, 40), (40, 30), (50, 50)]


def test_stored_sizes_are_counted(tmp_path: Path) -> None:
    root = food101(tmp_path / "food101")
    photos = sorted(root.rglob("*.jpg"))
    for number, path in enumerate(photos):
        Image.new("RGB", SIZES[number % 4], (number % 256, 100, 100)).save(path)
    name = "transfer_reconstruction/fig29_resolutions.yaml"
    content = yaml.safe_load((CONFIGS / name).read_text(encoding="utf-8"))
    content |= {"run": str(tmp_path / "run"), "grid": {"dataset": ["food101_binary"]}}
    content["stages"]["probe_{dataset}"]["options"] = {
        **dict(word.removeprefix("--").split("=") for word in quiet(tmp_path)[1:]),
        "data.images.root": str(root),
        "data.images.image_size": 4,
        "data.backbone": "identity",
        "data.cache_dir": str(tmp_path / "cache"),
        "data.num_train": 4,
        "model.hidden": [5],
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    assert run_cli("pipeline", f"--config={path}") == 0
    rows = json.loads((tmp_path / "run/probe_food101_binary/resolutions.json").read_text())
    found = {(row["width"], row["height"]): row["images"] for row in rows}
    split = json.loads((tmp_path / "run/probe_food101_binary/split.json").read_text())
    expected: dict[tuple[int, int], int] = {}
    for part in ("train", "test"):
        for identifier in split[part]["identifiers"]:
            with Image.open(next(root.rglob(identifier))) as image:
                expected[image.size] = expected.get(image.size, 0) + 1
    assert found == expected
    assert set(found) == set(SIZES)
    page = (tmp_path / "run/report/report.html").read_text(encoding="utf-8")
    assert f"<td>40 x 30</td><td>{expected[40, 30]}</td>" in page
    assert "No attack" in page
