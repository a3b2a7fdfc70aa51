"""Small datasets in the layouts in which the real ones are published, with real images."""

import gzip
import hashlib
import json
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image

from datamodules.tasks import named_tasks

# As CIFAR-10 orders them.
CIFAR10 = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
]

Pixels = npt.NDArray[np.uint8]


@cache
def photo() -> Pixels:
    """A photograph (427, 640, 3)."""
    return np.asarray(load_sample_image("flower.jpg"), dtype=np.uint8)


def tile(number: int, height: int = 32, width: int = 32) -> Pixels:
    """A part of the photograph, another one for each number."""
    image = photo()
    top = (37 * number) % (image.shape[0] - height)
    left = (101 * number) % (image.shape[1] - width)
    return image[top : top + height, left : left + width]


def save(path: Path, pixels: Pixels, **options: Any) -> Path:  # noqa: ANN401
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def food101(root: Path, per_class: int = 4) -> Path:
    """``food-101`` with the classes of both tasks and one more, as many test as training images."""
    tasks = named_tasks("food101")
    dishes = {*tasks["binary"]["class_1"], *tasks["binary"]["class_2"], *tasks["multiclass"]}
    meta: dict[str, dict[str, list[str]]] = {"train": {}, "test": {}}
    for at, dish in enumerate([*sorted(dishes), "waffles"]):
        for split in meta:
            names = [f"{dish}/{1000 * at + (split == 'test') * 500 + n}" for n in range(per_class)]
            meta[split][dish] = names
            for n, name in enumerate(names):
                pixels = tile(100 * at + 10 * n + (split == "test"), 20 + n, 26)
                save(root / "food-101" / "images" / f"{name}.jpg", pixels)
    for split, content in meta.items():
        path = root / "food-101" / "meta" / f"{split}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
        lines = [name for names in content.values() for name in names]
        path.with_suffix(".txt").write_text("\n".join(lines))
    return root


def inaturalist(root: Path, species: list[str], train: str = "train", val: str = "val") -> Path:
    """Some species only, as somebody has who took no more than a task needs."""
    for at, name in enumerate(species):
        for n in range(3):
            save(root / train / name / f"{at:04d}-{n}.jpg", tile(10 * at + n, 30, 40))
        save(root / val / name / f"{at:04d}-val.jpg", tile(10 * at + 7, 40, 30))
    return root


def cifar(root: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, Any]]:
    """Pickled batches; torchvision is told their checksums, which it checks as ever.

    Returns:
        Pixels (N, 32, 32, 3) and labels of the parts ``train`` and ``test``.
    """
    from torchvision import datasets

    reader = getattr(datasets, kind)
    key, names_key, classes = (
        ("labels", "label_names", CIFAR10)
        if kind == "CIFAR10"
        else ("fine_labels", "fine_label_names", [f"class {n:03d}" for n in range(100)])
    )
    folder = root / reader.base_folder
    folder.mkdir(parents=True)
    parts: dict[str, tuple[Any, Any]] = {}
    for part, attribute in (("train", "train_list"), ("test", "test_list")):
        batches, sums = [], []
        for at, (name, _) in enumerate(getattr(reader, attribute)):
            labels = [n % len(classes) for n in range(100)]
            pixels = np.stack([tile(1000 * at + n + 500 * (part == "test")) for n in labels])
            data = pixels.transpose(0, 3, 1, 2).reshape(len(labels), -1)
            sums.append([name, _pickle(folder / name, {"data": data, key: labels})])
            batches.append((pixels, labels))
        monkeypatch.setattr(reader, attribute, sums)
        parts[part] = (
            np.concatenate([pixels for pixels, _ in batches]),
            np.concatenate([labels for _, labels in batches]),
        )
    meta = dict(reader.meta)
    meta["md5"] = _pickle(folder / meta["filename"], {names_key: classes})
    monkeypatch.setattr(reader, "meta", meta)
    return parts


def _pickle(path: Path, content: object) -> str:
    path.write_bytes(pickle.dumps(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


def cinic10(root: Path) -> Path:
    for split in ("train", "valid", "test"):
        for at, name in enumerate(CIFAR10):
            for n in range(3):
                file = f"cifar10-{split}-{n}.png" if n == 0 else f"n0188271{n}_{at}.png"
                save(root / split / name / file, tile(40 * at + 5 * n + len(split)))
    return root


WNIDS = ["n02124075", "n01443537", "n04067472"]


def tiny_imagenet(root: Path) -> Path:
    """Three classes; ``wnids.txt`` is not sorted in the published dataset either."""
    folder = root / "tiny-imagenet-200"
    for at, name in enumerate(WNIDS):
        for n in range(4):
            save(folder / "train" / name / "images" / f"{name}_{n}.JPEG", tile(50 * at + n, 64, 64))
        boxes = "".join(f"{name}_{n}.JPEG\t0\t0\t62\t62\n" for n in range(4))
        (folder / "train" / name / f"{name}_boxes.txt").write_text(boxes)
    (folder / "wnids.txt").write_text("\n".join(WNIDS))
    lines = []
    for n in range(6):
        save(folder / "val" / "images" / f"val_{n}.JPEG", tile(200 + n, 64, 64))
        lines.append(f"val_{n}.JPEG\t{WNIDS[n % 3]}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    save(folder / "test" / "images" / "test_0.JPEG", tile(300, 64, 64))
    return root


def digits28() -> tuple[Pixels, Pixels]:
    """Digits (N, 28, 28) and labels (N,), as MNIST has them."""
    digits = load_digits()
    small = (digits.images[:60] * 15.9).astype(np.uint8)
    large = [np.asarray(Image.fromarray(image).resize((28, 28))) for image in small]
    return np.stack(large), digits.target[:60].astype(np.uint8)


def idx(array: Pixels) -> bytes:
    header = bytes([0, 0, 8, array.ndim])
    return header + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.tobytes()


def mnist(folder: Path, *, zipped: bool) -> tuple[Pixels, Pixels]:
    """50 training and 10 test images.

    Returns:
        All images and labels in this order.
    """
    folder.mkdir(parents=True)
    images, labels = digits28()
    for prefix, part in (("train", slice(0, 50)), ("t10k", slice(50, 60))):
        for name, array in (("images-idx3", images[part]), ("labels-idx1", labels[part])):
            content = idx(array)
            path = folder / f"{prefix}-{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(content) if zipped else content)
    return images, labels


def image_folder(root: Path, classes: dict[str, int], size: tuple[int, int] = (20, 24)) -> Path:
    """``root/CLASS/N.png``, so many of each class."""
    for at, (name, number) in enumerate(classes.items()):
        for n in range(number):
            save(root / name / f"{n:03d}.png", tile(29 * at + n, *size))
    return root
