"""Each dataset in its published layout."""

import gzip
import hashlib
import json
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from artifacts.errors import InputError
from datamodules import (
    CIFAR10DataModule,
    CIFAR100DataModule,
    CINIC10DataModule,
    DigitImagesDataModule,
    DigitsDataModule,
    FashionMNISTDataModule,
    Food101DataModule,
    ImageDataModule,
    ImageFolderDataModule,
    INaturalistDataModule,
    MNISTDataModule,
    TinyImageNetDataModule,
)
from datamodules.mnist import read_idx
from datamodules.tasks import named_tasks
from tests.datamodules import layouts


def ready(data: ImageDataModule) -> ImageDataModule:
    data.setup()
    return data


def classes_of(data: ImageDataModule, part: str) -> list[str]:
    images = data.train_set if part == "train" else data.test_set
    collection = images.collection
    return [collection.classes[int(collection.targets[index])] for index in images.indices]


@pytest.fixture(scope="module")
def food(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layouts.food101(tmp_path_factory.mktemp("food"))


def test_food101_binary_mixes_five_dishes_a_side(food: Path) -> None:
    data = ready(Food101DataModule(str(food), task="binary", num_train=30, image_size=16))
    assert torch.bincount(data.train_set.labels + 1).tolist() == [15, 0, 15]
    sides = named_tasks("food101")["binary"]
    for part, images in (("train", data.train_set), ("test", data.test_set)):
        meta = json.loads((food / "food-101" / "meta" / f"{part}.json").read_text())
        for name, dish, label in zip(
            images.identifiers, classes_of(data, part), images.labels.tolist(), strict=True
        ):
            assert dish in sides["class_1" if label == 1 else "class_2"]
            assert name.removeprefix("images/").removesuffix(".jpg") in meta[dish]
    # Every official test image of the ten dishes.
    assert torch.bincount(data.test_set.labels + 1).tolist() == [20, 0, 20]
    again = ready(Food101DataModule(str(food / "food-101"), task="binary", num_train=30))
    assert again.train_set.identifiers == data.train_set.identifiers


def test_food101_multiclass_takes_the_first_of_the_list(food: Path) -> None:
    data = ready(Food101DataModule(str(food), task="multiclass", num_classes=4, num_train=12))
    names = named_tasks("food101")["multiclass"][:4]
    assert torch.bincount(data.train_set.labels).tolist() == [3, 3, 3, 3]
    assert classes_of(data, "train") == [names[label] for label in data.train_set.labels]


def test_food101_that_was_not_unpacked_completely(food: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(food, tmp_path / "copy"))
    (
        root
        / "food-101"
        / "images"
        / "pizza"
        / next((root / "food-101/images/pizza").iterdir()).name
    ).unlink()
    with pytest.raises(InputError, match=r"lacks 1 of the images.*images/pizza/"):
        ready(Food101DataModule(str(root), task="binary"))
    # Dishes that are not needed may be missing.
    ready(Food101DataModule(str(root), task=["gnocchi", "tacos", "waffles"]))
    (root / "food-101" / "meta" / "test.json").write_text('{"pizza": 3')
    with pytest.raises(InputError, match="no complete 'food101'"):
        ready(Food101DataModule(str(root), task="binary"))


def test_food101_in_a_folder_of_another_name(food: Path, tmp_path: Path) -> None:
    root = tmp_path / "dishes"
    shutil.copytree(food / "food-101", root)
    # The one beside it is not read instead.
    (tmp_path / "food-101").symlink_to(food / "food-101")
    with pytest.raises(InputError, match=r"dishes has to be called food-101.*: rename it"):
        ready(Food101DataModule(str(root), task="binary"))
    ready(Food101DataModule(str(tmp_path), task="binary"))


@pytest.mark.parametrize(
    ("part", "entry"),
    [("train", "{0}"), ("test", "{0}"), ("test", "pizza/../{0}")],
)
def test_food101_whose_lists_share_an_image(
    part: str, entry: str, food: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(food, tmp_path / "copy"))
    meta = root / "food-101" / "meta"
    first = json.loads((meta / "train.json").read_text())["pizza"][0]
    listed = json.loads((meta / f"{part}.json").read_text())
    listed["pizza"].append(entry.format(first))
    (meta / f"{part}.json").write_text(json.dumps(listed))
    with pytest.raises(InputError, match=rf"'images/{first}.jpg' is there twice, also as 'images"):
        ready(Food101DataModule(str(root), task="binary"))


@pytest.mark.parametrize(("train", "val"), [("2021_train", "2021_valid"), ("train_mini", "val")])
def test_inaturalist_needs_the_species_of_the_task_only(
    tmp_path: Path, train: str, val: str
) -> None:
    tasks = named_tasks("inaturalist")
    species = [name for names in tasks["binary"].values() for name in names]
    layouts.inaturalist(tmp_path, [*species, "00000_Animalia_A_B_C_D_E_f"], train, val)
    version = "train" if train == "2021_train" else "train_mini"
    data = INaturalistDataModule(
        str(tmp_path),
        version=version,  # type: ignore[arg-type]
        task="binary",
        num_train=20,
        image_size=24,
    )
    ready(data)
    assert torch.bincount(data.train_set.labels + 1).tolist() == [10, 0, 10]
    for part, images in (("train", data.train_set), ("test", data.test_set)):
        folder = train if part == "train" else val
        for name, label in zip(images.identifiers, images.labels.tolist(), strict=True):
            assert name.split("/")[0] == folder
            assert name.split("/")[1] in tasks["binary"]["fauna" if label == 1 else "flora"]
    assert len(data.test_set) == 23
    with pytest.raises(InputError, match=r"no class '01947_.*; the closest of 24 is '0"):
        ready(INaturalistDataModule(str(tmp_path), version=version, task="multiclass"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "kind", "number"),
    [(CIFAR10DataModule, "CIFAR10", 10), (CIFAR100DataModule, "CIFAR100", 100)],
)
def test_cifar_gives_the_pixels_of_the_batches(
    module: type[ImageDataModule],
    kind: str,
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = layouts.cifar(tmp_path, kind, monkeypatch)
    data = ready(module(str(tmp_path), image_size=32))
    for part, images in (("train", data.train_set), ("test", data.test_set)):
        pixels, labels = parts[part]
        assert torch.equal(images.all_pixels(), torch.from_numpy(pixels).permute(0, 3, 1, 2))
        assert images.labels.tolist() == labels.tolist()
        assert images.identifiers[7] == f"{part}/7"
    assert len(torch.unique(data.train_set.labels)) == number


def test_cifar_unpickles_no_file_of_another_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts.cifar(tmp_path, "CIFAR10", monkeypatch)

    class Attack:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
            return Path.touch, (tmp_path / "executed",)  # type: ignore[return-value]

    file = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    file.write_bytes(pickle.dumps(Attack()))
    with pytest.raises(InputError, match=r"no complete 'cifar10' at .*download"):
        ready(CIFAR10DataModule(str(tmp_path)))
    assert not (tmp_path / "executed").exists()
    # The file would have done it.
    pickle.loads(file.read_bytes())
    assert (tmp_path / "executed").exists()


def test_cifar_binary_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = layouts.cifar(tmp_path, "CIFAR10", monkeypatch)
    data = ready(CIFAR10DataModule(str(tmp_path), task="binary"))
    vehicle = np.isin(parts["train"][1], [0, 1, 8, 9])
    assert data.train_set.labels.tolist() == np.where(vehicle, 1, -1).tolist()


def test_cinic10_can_leave_out_cifar10(tmp_path: Path) -> None:
    layouts.cinic10(tmp_path)
    data = ready(CINIC10DataModule(str(tmp_path), image_size=32))
    assert (len(data.train_set), len(data.test_set)) == (30, 30)
    both = ready(CINIC10DataModule(str(tmp_path), with_valid=True, with_cifar10=False))
    assert (len(both.train_set), len(both.test_set)) == (40, 20)
    assert {name.split("/")[0] for name in both.train_set.identifiers} == {"train", "valid"}
    assert not any("cifar10" in name for name in both.train_set.identifiers)
    with Image.open(tmp_path / data.train_set.identifiers[4]) as image:
        assert np.array_equal(data.train_set.pixels(4).permute(1, 2, 0), np.asarray(image))


def test_tiny_imagenet_reads_the_annotations(tmp_path: Path) -> None:
    layouts.tiny_imagenet(tmp_path)
    data = ready(TinyImageNetDataModule(str(tmp_path), image_size=64))
    assert data.train_set.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.test_set.identifiers == [f"val/images/val_{n}.JPEG" for n in range(6)]
    assert classes_of(data, "test") == [layouts.WNIDS[n % 3] for n in range(6)]
    subset = ready(TinyImageNetDataModule(str(tmp_path / "tiny-imagenet-200"), num_classes=2))
    assert set(classes_of(subset, "train") + classes_of(subset, "test")) == set(
        sorted(layouts.WNIDS)[:2]
    )
    assert len(subset.test_set) == 4


def test_tiny_imagenet_with_sorted_or_damaged_validation_images(tmp_path: Path) -> None:
    layouts.tiny_imagenet(tmp_path)
    folder = tmp_path / "tiny-imagenet-200" / "val"
    annotations = (folder / "val_annotations.txt").read_text()
    (folder / "val_annotations.txt").write_text(annotations.replace("val_4.JPEG", "val_9.JPEG"))
    with pytest.raises(InputError, match=r"val_annotations.txt, line 5: .*val_9.JPEG"):
        ready(TinyImageNetDataModule(str(tmp_path)))
    # Twice, with another class.
    (folder / "val_annotations.txt").write_text(annotations.replace("val_4.JPEG", "val_3.JPEG"))
    with pytest.raises(InputError, match=r"'val/images/val_3.JPEG' is there twice"):
        ready(TinyImageNetDataModule(str(tmp_path)))
    (folder / "val_annotations.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"val_annotations.txt is no text .*unpack"):
        ready(TinyImageNetDataModule(str(tmp_path)))
    (folder / "val_annotations.txt").unlink()
    for n in range(6):
        target = folder / layouts.WNIDS[n % 3] / "images" / f"val_{n}.JPEG"
        target.parent.mkdir(parents=True, exist_ok=True)
        (folder / "images" / f"val_{n}.JPEG").rename(target)
    (folder / "images").rmdir()
    data = ready(TinyImageNetDataModule(str(tmp_path)))
    assert sorted(classes_of(data, "test")) == sorted(layouts.WNIDS * 2)


@pytest.mark.parametrize("module", [MNISTDataModule, FashionMNISTDataModule])
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("folder", ["", "{}/raw", "raw"])
def test_mnist_in_any_folder(
    module: type[MNISTDataModule], zipped: bool, folder: str, tmp_path: Path
) -> None:
    root = tmp_path / "data"
    images, labels = layouts.mnist(root / folder.format(module.reader), zipped=zipped)
    files = sorted(root.rglob("*"))
    # What is there is not downloaded again.
    data = module(str(root), image_size=28, in_chans=1, download=True)
    data.prepare_data()
    ready(data)
    assert sorted(root.rglob("*")) == files
    pixels = torch.cat([data.train_set.all_pixels(), data.test_set.all_pixels()])
    assert torch.equal(pixels.squeeze(1), torch.from_numpy(images))
    assert torch.cat([data.train_set.labels, data.test_set.labels]).tolist() == labels.tolist()
    assert len(data.train_set) == 50
    colour = ready(module(str(root), image_size=28))
    assert torch.equal(colour.train_set.pixels(3), data.train_set.pixels(3).expand(3, 28, 28))


def test_mnist_of_two_sizes_is_refused(tmp_path: Path) -> None:
    layouts.mnist(tmp_path / "raw", zipped=False)
    larger = np.zeros((10, 32, 30), dtype=np.uint8)
    (tmp_path / "raw" / "t10k-images-idx3-ubyte").write_bytes(layouts.idx(larger))
    with pytest.raises(InputError, match=r"train images of 28 by 28 pixels and t10k .* 32 by 30"):
        ready(MNISTDataModule(str(tmp_path)))


def test_mnist_is_read_as_torchvision_reads_it(tmp_path: Path) -> None:
    from torchvision.datasets import MNIST

    layouts.mnist(tmp_path / "MNIST" / "raw", zipped=False)
    data = ready(MNISTDataModule(str(tmp_path), image_size=28, in_chans=1))
    for images, train in ((data.train_set, True), (data.test_set, False)):
        expected = MNIST(tmp_path, train=train)
        assert torch.equal(images.all_pixels().squeeze(1), expected.data)
        assert torch.equal(images.labels, expected.targets)


IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (layouts.idx(IMAGES)[:-1], "damaged: 23 bytes or more where its header says 24"),
        (layouts.idx(IMAGES) + b"x", "damaged: 25 bytes"),
        (layouts.idx(IMAGES[0]), "not an IDX file of bytes in 3"),
        (b"", "not an IDX file"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "more than any such file"),
        (bytes([0, 0, 8, 3]) + bytes(12), "damaged"),
        (gzip.compress(layouts.idx(IMAGES), mtime=0)[:-9], "cannot read"),
    ],
)
def test_damaged_idx_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / ("x.gz" if content[:2] == b"\x1f\x8b" else "x")
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_idx(path, dimensions=3)


def test_digit_images_are_the_digits_of_the_vectors() -> None:
    vectors = DigitsDataModule(num_train=40, seed=5)
    images = ready(DigitImagesDataModule(task="parity", num_train=40, seed=5))
    for part, (inputs, labels) in (
        (images.train_set, vectors.train_tensors),
        (images.test_set, vectors.test_tensors),
    ):
        assert torch.equal(part.labels, labels)
        pixels = torch.stack([image for image, _ in part]).flatten(1)  # type: ignore[attr-defined]
        assert (pixels - inputs).abs().max() <= 0.5 / 255 + 1e-7
    large = ready(DigitImagesDataModule(image_size=32, num_train=50, in_chans=3))
    assert large.train_set[0][0].shape == (3, 32, 32)


@pytest.mark.parametrize(
    "module",
    [
        Food101DataModule,
        INaturalistDataModule,
        CIFAR10DataModule,
        CIFAR100DataModule,
        CINIC10DataModule,
        MNISTDataModule,
        FashionMNISTDataModule,
        TinyImageNetDataModule,
        ImageFolderDataModule,
    ],
)
@pytest.mark.parametrize("exists", [False, True])
def test_missing_files_are_one_clear_line(
    module: type[ImageDataModule], exists: bool, tmp_path: Path
) -> None:
    root = tmp_path / "nothing"
    if exists:
        root.mkdir()
    with pytest.raises(InputError, match=str(root)) as error:
        ready(module(str(root)))
    assert "\n" not in str(error.value)
    assert "expected" in str(error.value) or "give the folder" in str(error.value)
    assert root.exists() == exists


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without telling."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """Serves ``tmp_path`` on this machine; gives the address."""
    handler = partial(QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_archives_are_downloaded_checked_and_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, web: str
) -> None:
    layouts.tiny_imagenet(tmp_path / "web")
    archive = Path(shutil.make_archive(str(tmp_path / "tiny"), "zip", tmp_path / "web"))
    monkeypatch.setattr("datamodules.tiny_imagenet._URL", f"{web}/{archive.name}")
    monkeypatch.setattr(
        "datamodules.tiny_imagenet._MD5", hashlib.md5(archive.read_bytes()).hexdigest()
    )
    data = TinyImageNetDataModule(str(tmp_path / "mine"), download=True)
    data.prepare_data()
    assert len(ready(data).train_set) == 12
    # It is there: nothing is fetched again.
    monkeypatch.setattr("datamodules.tiny_imagenet._URL", f"{web}/nowhere.zip")
    data.prepare_data()
    other = TinyImageNetDataModule(str(tmp_path / "other"), download=True)
    with pytest.raises(InputError, match=r"cannot download .tiny_imagenet. to .*other"):
        other.prepare_data()


def test_torchvision_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, web: str) -> None:
    from torchvision.datasets import CIFAR10

    layouts.cifar(tmp_path / "web", "CIFAR10", monkeypatch)
    archive = Path(shutil.make_archive(str(tmp_path / "cifar"), "gztar", tmp_path / "web"))
    monkeypatch.setattr(CIFAR10, "url", f"{web}/{archive.name}")
    monkeypatch.setattr(CIFAR10, "filename", archive.name)
    damaged = CIFAR10DataModule(str(tmp_path / "mine"), download=True)
    with pytest.raises(InputError, match="cannot download 'cifar10'"):
        damaged.prepare_data()
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    damaged.prepare_data()
    assert len(ready(damaged).test_set) == 100


def test_what_has_no_download_says_so() -> None:
    data = ImageFolderDataModule("photos", download=True)
    with pytest.raises(InputError, match="'image_folder' cannot be downloaded"):
        data.prepare_data()
