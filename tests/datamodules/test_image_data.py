"""The base of image data modules, shown on folders of images."""

import json
import os
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from artifacts.errors import InputError
from datamodules import ImageFolderDataModule
from tests.conftest import run_cli
from tests.datamodules import layouts


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layouts.image_folder(
        tmp_path_factory.mktemp("images"), {"birds": 9, "fish": 12, "moss": 10}
    )


def module(root: Path | str, **options: Any) -> ImageFolderDataModule:  # noqa: ANN401
    data = ImageFolderDataModule(str(root), image_size=16, **options)
    data.setup()
    return data


GROUPS = {"fauna": ["birds", "fish"], "flora": ["moss"]}


def test_labels_are_those_of_the_groups(root: Path) -> None:
    data = module(root, task=GROUPS, num_train=8, seed=1)
    for images in (data.train_set, data.test_set):
        for name, label in zip(images.identifiers, images.labels.tolist(), strict=True):
            assert label == (-1 if name.startswith("moss/") else 1)
    assert len(data.test_set) == 6
    assert torch.unique(module(root).train_set.labels).tolist() == [0, 1, 2]


def test_folders_named_train_and_test(root: Path, tmp_path: Path) -> None:
    for name in ("train", "val"):
        shutil.copytree(root, tmp_path / name)
    data = module(tmp_path)
    assert {name.split("/")[0] for name in data.train_set.identifiers} == {"train"}
    assert {name.split("/")[0] for name in data.test_set.identifiers} == {"val"}
    assert (len(data.train_set), len(data.test_set)) == (31, 31)


def test_images_without_folders_and_files_that_are_none(tmp_path: Path) -> None:
    for n in range(5):
        layouts.save(tmp_path / f"{n}.png", layouts.tile(n))
    (tmp_path / "._0.png").write_bytes(b"Mac OS X")
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.warns(UserWarning, match=r"left out: 1 files at .* \(1 .txt\), .* 'notes.txt'"):
        data = module(tmp_path, test_fraction=0)
    assert data.train_set.identifiers == [f"{n}.png" for n in range(5)]
    assert data.train_set.labels.tolist() == [0] * 5
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no images to take: 6 files at .*such as '0.png'"):
        module(tmp_path)
    with pytest.raises(InputError, match="there are no images at"):
        module(tmp_path / "empty")
    with pytest.raises(InputError, match="there are no images at"):
        module(tmp_path / "empty", task=["cats"])
    with pytest.raises(InputError, match="root is blank"):
        module(" ")


def test_images_that_are_left_out_are_told(root: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root, tmp_path / "copy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        everything = module(copy, test_fraction=0)
    # What Pillow decodes is taken.
    for name in ("new.avif", "new.jp2", "new.jfif"):
        with Image.open(copy / "moss" / "000.png") as image:
            image.save(copy / "moss" / name, format="JPEG" if name == "new.jfif" else None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        more = module(copy, test_fraction=0)
    assert len(more.train_set) == len(everything.train_set) + 3
    assert len(more.train_set.all_pixels()) == len(more.train_set)
    # In a class's folder but of no such kind, beside the folders, and in other classes.
    (copy / "moss" / "photo.HEIC").write_bytes(b"-")
    layouts.save(copy / "beside.png", layouts.tile(1))
    (copy / "moss" / ".hidden.heic").write_bytes(b"-")
    with pytest.warns(UserWarning, match=r"left out: 2 files .*\(1 .png, 1 .heic\), .*'beside.p"):
        module(copy)
    with pytest.warns(UserWarning, match=r"left out: 1 files .*\(1 .png\), such as 'beside.png'"):
        module(copy, task=["birds", "fish"])
    with pytest.raises(InputError, match=r"no class '0'; classes are named, .*: 'birds', 'fish"):
        module(copy, task=[0, 1])
    # A folder that is neither for training nor for testing.
    both = tmp_path / "both"
    for name in ("train", "test", "val"):
        shutil.copytree(root, both / name)
    with pytest.warns(UserWarning, match=r"left out: 31 files .*'val/birds/000.png'"):
        module(both)
    for file in [*copy.rglob("*.png"), *copy.rglob("new.*")]:
        file.rename(file.with_suffix(".heic"))
    with pytest.raises(InputError, match=r"no images to take: \d+ files .*move or convert them"):
        module(copy)


def test_class_without_images_is_refused(root: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root, tmp_path / "copy")
    (copy / "snow").mkdir()
    with pytest.raises(InputError, match="no training image of snow"):
        module(copy)
    with pytest.raises(InputError, match="no class 'mos'; the closest of 4 is 'moss'"):
        module(copy, task=["mos", "fish"])
    with pytest.raises(InputError, match=r"label 0 has 7 samples, 9 are asked for"):
        module(copy, task=["birds", "fish", "moss"], num_train=27)


@pytest.mark.parametrize(
    ("link", "to"),
    [
        ("train/fish/again", "."),
        ("test", "train"),
        ("train/moss/fish.png", "../fish/003.png"),
        ("train/fish", "moss"),
    ],
)
def test_an_image_that_is_there_twice_is_refused(link: str, to: str, tmp_path: Path) -> None:
    root = layouts.image_folder(tmp_path / "images" / "train", {"birds": 5, "moss": 5}).parent
    if link != "train/fish":
        layouts.image_folder(root / "train", {"fish": 5})
    # Links to what is not a part of the dataset are usual.
    elsewhere = layouts.save(tmp_path / "elsewhere.png", layouts.tile(99))
    (root / "train" / "birds" / "far.png").symlink_to(elsewhere)
    module(root)
    (root / link).symlink_to(to)
    with pytest.raises(InputError, match=r"is there twice, also as '.*; remove one of the two"):
        module(root)


@pytest.mark.parametrize("name", [b"birds/caf\xe9.png", b"caf\xe9/000.png"])
def test_a_name_that_is_no_text_is_refused(name: bytes, root: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root, tmp_path / "copy")
    layouts.save(copy / os.fsdecode(name), layouts.tile(99))
    with pytest.raises(InputError, match=r"the name '.*caf\\udce9.*' is not UTF-8; rename it"):
        module(copy)
    module(copy, task=["fish", "moss"])


def test_split_gives_the_same_images(root: Path, tmp_path: Path) -> None:
    first = module(root, task=GROUPS, num_train=10, num_test=4, seed=5)
    first.write_split(tmp_path / "split.json")
    # Whatever else is asked for, and wherever the images are now.
    copy = shutil.copytree(root, tmp_path / "elsewhere")
    second = module(copy, split=str(tmp_path / "split.json"), seed=9, num_train=3)
    for part in ("train_set", "test_set"):
        mine, theirs = getattr(first, part), getattr(second, part)
        assert mine.identifiers == theirs.identifiers
        assert torch.equal(mine.labels, theirs.labels)
        assert torch.equal(mine.all_pixels(), theirs.all_pixels())
    content = json.loads((tmp_path / "split.json").read_text())
    assert content["classes"] == {"1": ["birds", "fish"], "-1": ["moss"]}
    assert content["seed"] == 5

    # A label that an image's class does not have.
    other = next(at for at, label in enumerate(content["train"]["labels"]) if label == -1)
    content["train"]["labels"][other] = 1
    (tmp_path / "wrong.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"wrong.json gives 'moss/.*' the label 1, but .* has -1"):
        module(copy, split=str(tmp_path / "wrong.json"))
    content["classes"] = {"1": ["birds", "fish"], "-1": ["snow"]}
    (tmp_path / "wrong.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"images of .*wrong.json are not in"):
        module(copy, split=str(tmp_path / "wrong.json"))

    gone = first.train_set.identifiers[3]
    (copy / gone).unlink()
    with pytest.raises(InputError, match=rf"1 images of .*split.json are not in .*'{gone}'"):
        module(copy, split=str(tmp_path / "split.json"))
    with pytest.raises(InputError, match="of the dataset 'image_folder', not of 'holiday'"):
        module(root, name="holiday", split=str(tmp_path / "split.json"))


def test_content_key_changes_with_what_the_images_depend_on(root: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root, tmp_path / "copy")
    options: dict[str, Any] = {"task": GROUPS, "num_train": 10}
    data = module(copy, **options)
    key = data.content_key("train")
    for path in copy.rglob("*.png"):
        path.touch()
    assert module(root, **options).content_key("train") == key
    others = [
        data.content_key("test"),
        module(root, **{**options, "seed": 2}).content_key("train"),
        module(root, **{**options, "task": {"b": ["moss"], "a": ["birds", "fish"]}}).content_key(
            "train"
        ),
        module(root, in_chans=1, **options).content_key("train"),
        module(root, name="other", **options).content_key("train"),
    ]
    larger = ImageFolderDataModule(str(root), image_size=17, **options)
    larger.setup()
    others.append(larger.content_key("train"))
    # One bit of one file, which keeps its size and time.
    path = copy / data.train_set.identifiers[4]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    others.append(data.content_key("train"))
    assert len({key, *others}) == len(others) + 1

    # The same images with other labels.
    swapped = {"flora": GROUPS["flora"], "fauna": GROUPS["fauna"]}
    first, second = (module(root, task=task, test_fraction=0) for task in (GROUPS, swapped))
    assert first.train_set.identifiers == second.train_set.identifiers
    assert first.content_key("train") != second.content_key("train")


class Watcher(L.LightningModule):
    """Notes the labels and images of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.epochs: dict[int, list[float]] = {}

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        sums = batch[0].flatten(1).sum(1).tolist()
        self.epochs.setdefault(self.current_epoch, []).extend(sums)
        return self.weight.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters())


def fit(
    root: Path,
    run: Path,
    epochs: int,
    checkpoint: str | None = None,
    **options: Any,  # noqa: ANN401
) -> Watcher:
    watcher = Watcher()
    trainer = L.Trainer(
        default_root_dir=run,
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    options = {"image_size": 8, "batch_size": 4, "test_fraction": 0, "seed": 3, **options}
    data = ImageFolderDataModule(str(root), **options)
    trainer.fit(watcher, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    trainer.save_checkpoint(run / "last.ckpt")
    return watcher


@pytest.mark.parametrize("num_workers", [0, 2])
def test_order_is_that_of_seed_and_epoch_and_the_split_is_written(
    root: Path, tmp_path: Path, num_workers: int
) -> None:
    whole = fit(root, tmp_path / "whole", 3)
    assert whole.epochs[0] != whole.epochs[1]
    other = fit(root, tmp_path / "other", 1, seed=4)
    assert whole.epochs[0] != other.epochs[0]
    assert sorted(whole.epochs[0]) == sorted(whole.epochs[1]) == sorted(other.epochs[0])
    fit(root, tmp_path / "first", 1)
    # Workers begin when their iterator is made, and that is before the epoch is known.
    last = str(tmp_path / "first" / "last.ckpt")
    rest = fit(root, tmp_path / "rest", 3, last, num_workers=num_workers)
    assert rest.epochs == {epoch: whole.epochs[epoch] for epoch in (1, 2)}
    split = json.loads((tmp_path / "whole" / "split.json").read_text())
    assert len(split["train"]["identifiers"]) == len(whole.epochs[0]) == 31


def test_loaders(root: Path) -> None:
    data = module(root, batch_size=7, num_workers=2, num_train=21)
    for loader, images in (
        (data.val_dataloader(), data.test_set),
        (data.test_dataloader(), data.test_set),
        (data.predict_dataloader(), data.test_set),
    ):
        batches = list(loader)
        expected = torch.stack([images[at][0] for at in range(len(images))])
        assert torch.equal(torch.cat([batch[0] for batch in batches]), expected)
        assert torch.equal(torch.cat([batch[1] for batch in batches]), images.labels)
    inputs, labels = next(iter(data.train_dataloader()))
    assert inputs.shape == (7, 3, 16, 16)
    assert labels.dtype == torch.int64
    assert len(data.train_dataloader()) == 3


@pytest.mark.parametrize("num_workers", [0, 1])
def test_broken_image_is_one_line_also_from_a_worker(
    root: Path, tmp_path: Path, num_workers: int
) -> None:
    copy = shutil.copytree(root, tmp_path / "copy")
    broken = copy / "moss" / "004.png"
    broken.write_bytes(broken.read_bytes()[:300])
    data = module(copy, num_workers=num_workers, test_fraction=0)
    with pytest.raises(InputError) as error:
        list(data.train_dataloader())
    assert str(error.value).startswith(f"{broken} is a broken image (")
    assert str(error.value).endswith("remove or replace it")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 0}, "image_size"),
        ({"in_chans": 4}, "in_chans"),
        ({"batch_size": 0}, "batch_size"),
        ({"num_workers": -1}, "num_workers"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ImageFolderDataModule("nowhere", **options)


def test_options_of_the_base_are_reachable_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "class_path": "datamodules.CINIC10DataModule",
        "init_args": {
            "root": str(tmp_path / "nothing"),
            "with_valid": True,
            "task": {"flies": ["bird", "airplane"], "swims": ["frog", "ship"]},
            "num_train": 20,
            "test_from": "train",
        },
    }
    words = ["fit", "--model=lightning_modules.ProbeMLP", "--model.in_features=3"]
    (tmp_path / "data.yaml").write_text(json.dumps({"data": config}))
    words += [f"--config={tmp_path / 'data.yaml'}", f"--trainer.default_root_dir={tmp_path}"]
    there = [*words, f"--data.root={layouts.cinic10(tmp_path / 'cinic10')}"]
    for options, message in (
        (words, "no 'cinic10' at"),
        ([*there, "--data.task=[bird, 7, snow]"], "there is no class '7'"),
        ([*there, "--data.task=binray"], "no task 'binray'; it has binary"),
        ([*there, "--data.num_train=62"], "label -1 has 12 samples, 31 are asked for"),
        ([*there, "--data.num_trian=20"], "num_trian"),
    ):
        assert run_cli(*options) == 1
        assert re.search(message, capsys.readouterr().err)


def test_pixel_values_are_exact(root: Path) -> None:
    images = module(root).train_set
    image, _ = images[0]
    assert np.array_equal((image * 255).numpy(), images.pixels(0).numpy())
