"""Embeddings of images: computed once, the backbone's own, never taken for another set's."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

import datamodules.embedding_cache
from artifacts.errors import InputError
from artifacts.tensors import sha256_of_tensors
from datamodules import EmbeddingsDataModule, ImageFolderDataModule
from datamodules.embedding_cache import EmbeddingCache
from models.backbones import Backbone, load_backbone
from tests.conftest import random_image_folder, random_vit

MakeData = Callable[..., EmbeddingsDataModule]


@pytest.fixture
def vit(tmp_path: Path) -> Path:
    return random_vit(tmp_path / "vit.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return random_image_folder(tmp_path / "images", {"cats": 5, "dogs": 4})


@pytest.fixture
def make(tmp_path: Path, vit: Path, folder: Path) -> MakeData:
    """Builds the data module, with other settings where they are given."""

    def build(images: dict[str, Any] | None = None, **settings: Any) -> EmbeddingsDataModule:  # noqa: ANN401
        given = {"root": str(folder), "image_size": 32, "test_fraction": 0.5, **(images or {})}
        return EmbeddingsDataModule(
            ImageFolderDataModule(**given),
            **{
                "backbone": "timm/test_vit.r160_in1k",
                "weights": str(vit),
                "cache_dir": str(tmp_path / "cache"),
                "batch_size": 2,
                **settings,
            },
        )

    return build


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches that a backbone embedded."""
    sizes: list[int] = []
    forward = Backbone.forward

    def counted(self: Backbone, images: Tensor) -> Tensor:
        if bool(images.any()):  # Not the empty image that measures the dimension.
            sizes.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(Backbone, "forward", counted)
    return sizes


def test_embeddings_are_the_backbone_s_in_the_images_order(make: MakeData, vit: Path) -> None:
    data = make()
    backbone = load_backbone("timm/test_vit.r160_in1k", str(vit), image_size=32)
    for tensors, images in (
        (data.train_tensors, data.images.train_set),
        (data.test_tensors, data.images.test_set),
    ):
        expected = torch.stack(
            [backbone(images[index][0][None])[0] for index in range(len(images))]
        )
        torch.testing.assert_close(tensors[0], expected, atol=1e-5, rtol=0)
        assert torch.equal(tensors[1], images.labels)
        assert set(tensors[1].tolist()) == {-1, 1}


def test_second_run_reads_the_cache(make: MakeData, embedded: list[int]) -> None:
    first = make()
    train, test = first.train_tensors[0], first.test_tensors[0]
    assert sum(embedded) == len(train) + len(test) == 9
    again = make(batch_size=3)
    assert torch.equal(again.train_tensors[0], train)
    assert torch.equal(again.test_tensors[0], test)
    assert sum(embedded) == 9


@pytest.mark.parametrize(
    ("images", "settings"),
    [
        ({"image_size": 48}, {}),
        ({"seed": 3}, {}),
        ({}, {"features": "cls_mean"}),
        ({}, {"precision": "bfloat16"}),
    ],
)
def test_another_setting_is_computed(
    images: dict[str, Any], settings: dict[str, Any], make: MakeData, embedded: list[int]
) -> None:
    _ = make().train_tensors
    _ = make(images, **settings).train_tensors
    assert sum(embedded) == 18


@pytest.mark.parametrize("library", ["timm", "open_clip_torch", "torch", "pillow"])
def test_another_version_of_a_library_is_computed(
    library: str, make: MakeData, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _ = make().train_tensors
    _ = make().train_tensors
    assert sum(embedded) == 9
    monkeypatch.setattr(
        "datamodules.embeddings.version", lambda name: "0" if name == library else version(name)
    )
    _ = make().train_tensors
    assert sum(embedded) == 18


def test_bfloat16_has_three_digits(make: MakeData) -> None:
    exact, rounded = (make(precision=p).train_tensors[0] for p in ("float32", "bfloat16"))
    assert exact.dtype == rounded.dtype == torch.float32
    difference = float((rounded - exact).norm() / exact.norm())
    assert 1e-5 < difference < 0.03


def test_changed_weights_and_changed_images_are_computed(
    make: MakeData, vit: Path, folder: Path, embedded: list[int]
) -> None:
    before = make().train_tensors[0]
    random_vit(vit, seed=1)
    assert not torch.equal(make().train_tensors[0], before)
    assert sum(embedded) == 18
    name = make_name(make)
    size = (folder / name).stat()
    Image.new("RGB", (40, 32), "red").save(folder / name)
    assert (folder / name).stat().st_mtime_ns != size.st_mtime_ns
    _ = make().train_tensors
    # Only the side that it is in.
    assert 18 < sum(embedded) < 27


def make_name(make: MakeData) -> str:
    data = make()
    data.setup("fit")
    return data.images.train_set.identifiers[0]


def test_stopped_run_continues_and_is_not_taken_for_whole(
    make: MakeData, tmp_path: Path, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make(cache_dir=str(tmp_path / "whole")).train_tensors[0]
    monkeypatch.setattr(datamodules.embedding_cache, "CHUNK_SIZE", 2)
    embedded.clear()
    forward = Backbone.forward

    def stop_at_third(self: Backbone, images: Tensor) -> Tensor:
        if len(embedded) == 2 and bool(images.any()):
            raise KeyboardInterrupt
        return forward(self, images)

    with monkeypatch.context() as patch:
        patch.setattr(Backbone, "forward", stop_at_third)
        with pytest.raises(KeyboardInterrupt):
            _ = make().train_tensors
    assert embedded == [2, 2]
    torch.testing.assert_close(make().train_tensors[0], whole, atol=1e-5, rtol=0)
    assert sum(embedded) == 9


def test_processes_share_the_images(
    make: MakeData, tmp_path: Path, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datamodules.embedding_cache, "CHUNK_SIZE", 2)
    alone = make(cache_dir=str(tmp_path / "alone"))
    expected, _ = alone.train_tensors
    embedded.clear()

    def process(rank: int) -> EmbeddingsDataModule:
        data = make()
        strategy = SimpleNamespace(
            root_device=torch.device("cpu"), barrier=lambda name: barriers.append(rank)
        )
        data.trainer = SimpleNamespace(  # type: ignore[assignment]
            global_rank=rank,
            world_size=2,
            is_global_zero=rank == 0,
            progress_bar_callback=None,
            fast_dev_run=False,
            default_root_dir=str(tmp_path / "run"),
            strategy=strategy,
        )
        return data

    barriers: list[int] = []
    # Without the first process the second one does its share, and sees that the rest is missing.
    with pytest.raises(InputError, match="cache_dir must be a folder that all of them see"):
        process(1).setup("fit")
    assert sum(embedded) == 2
    first = process(0)
    with pytest.raises(InputError, match="all of them see"):
        first.setup("fit")  # The training images are whole now, the test images not yet.
    second = process(1)
    second.setup("fit")
    first.setup("fit")
    torch.testing.assert_close(first.train_tensors[0], expected, atol=1e-5, rtol=0)
    assert torch.equal(first.train_tensors[0], second.train_tensors[0])
    assert sum(embedded) == 9
    assert (tmp_path / "run" / "split.json").is_file()


def test_cache_with_embeddings_of_another_width_is_named(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path, {"backbone": "x"}, 300)
    for chunk, width in zip(cache.chunks(), (3, 4), strict=True):
        cache.write(chunk, torch.zeros(len(chunk), width))
    with pytest.raises(InputError, match=r"000001.safetensors does not hold the embeddings of"):
        cache.read()


def test_damaged_cache_is_named(make: MakeData, tmp_path: Path) -> None:
    _ = make().train_tensors
    for path in (tmp_path / "cache").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match=r"000000.safetensors is not a readable.*delete it"):
        _ = make().train_tensors


def test_training_draws_the_same_random_numbers_with_a_cache_and_without(make: MakeData) -> None:
    torch.manual_seed(7)
    _ = make().train_tensors
    without = torch.rand(1)
    torch.manual_seed(7)
    _ = make().train_tensors
    assert torch.equal(torch.rand(1), without)


def test_hub_weights_are_hashed_as_loaded(
    make: MakeData, monkeypatch: pytest.MonkeyPatch, embedded: list[int]
) -> None:
    seed = 0

    def from_hub(name: str, weights: None, **settings: Any) -> Backbone:  # noqa: ANN401
        assert weights is None
        torch.manual_seed(seed)
        return load_backbone("identity", **settings)

    monkeypatch.setattr("datamodules.embeddings.load_backbone", from_hub)
    _ = make(weights=None).train_tensors
    _ = make(weights=None).train_tensors
    assert sum(embedded) == 9
    model = timm.create_model("test_vit", num_classes=0)
    changed = {**model.state_dict(), "cls_token": model.state_dict()["cls_token"] + 1}
    assert sha256_of_tensors(model.state_dict()) != sha256_of_tensors(changed)


def test_identity_shows_candidates_as_images(make: MakeData) -> None:
    data = make(backbone="identity", weights=None)
    assert data.image_shape == (3, 32, 32)
    assert torch.equal(data.train_tensors[0][0].view(3, 32, 32), data.images.train_set[0][0])


def test_size_and_seed_reach_the_images(make: MakeData) -> None:
    data = make(num_train=4, seed=5)
    assert len(data.train_tensors[0]) == 4
    other = make({"num_train": 4, "seed": 5})
    assert torch.equal(data.train_tensors[0], other.train_tensors[0])


@pytest.mark.parametrize(
    ("images", "settings", "message"),
    [
        ({"num_train": 4}, {"num_train": 2}, r"data.num_train=2 and data.images.num_train=4"),
        ({"seed": 1}, {"seed": 2}, r"data.seed=2 and data.images.seed=1"),
        ({"in_chans": 1}, {}, "3 channels"),
        ({}, {"batch_size": 0}, "batch_size"),
        ({}, {"precision": "float16"}, "precision"),
        ({}, {"cache_dir": " "}, "data.cache_dir must be a folder for embeddings, got ' '"),
        ({}, {"cache_dir": __file__}, "data.cache_dir must be a folder for embeddings, got '/"),
    ],
)
def test_impossible_settings(
    images: dict[str, Any], settings: dict[str, Any], message: str, make: MakeData
) -> None:
    with pytest.raises(InputError, match=message):
        make(images, **settings)


def test_unusable_weights_or_sizes_are_one_line(make: MakeData, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no weights file of timm/test_vit"):
        _ = make(weights=str(tmp_path / "absent")).train_tensors
    with pytest.raises(InputError, match=r"give another one as data.weights$"):
        _ = make(backbone="mae", weights=str(tmp_path / "absent")).train_tensors
    with pytest.raises(InputError, match=r"cannot write to the directory .*--data.cache_dir"):
        _ = make(cache_dir=str(tmp_path / "vit.safetensors" / "cache")).train_tensors
    with pytest.raises(InputError, match="no multiple of the patch size"):
        _ = make({"image_size": 40}).train_tensors
    model = timm.create_model("test_vit", num_classes=0)
    values = {name: value * 1e30 for name, value in model.state_dict().items()}
    save_file(values, tmp_path / "huge.safetensors")
    with pytest.raises(InputError, match="NaN or infinity"):
        _ = make(weights=str(tmp_path / "huge.safetensors")).train_tensors
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_thumbnails_are_of_the_training_images_asked_for(make: MakeData) -> None:
    data = make()
    thumbnails = data.train_thumbnails(torch.tensor([2, 0]), size=16)
    assert thumbnails.shape == (2, 3, 16, 16)
    image = data.images.train_set[2][0]
    blocks = image.view(3, 16, 2, 16, 2).mean((2, 4))
    assert float((thumbnails[0] - blocks).abs().max()) < 0.35
    assert float((thumbnails[0] - blocks).abs().mean()) < float(
        (thumbnails[1] - blocks).abs().mean()
    )


@pytest.mark.parametrize("device", ["gpu7", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device: str, tmp_path: Path) -> None:
    images = ImageFolderDataModule(root=str(tmp_path))
    if device.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InputError, match=f"data.device.*{device}"):
        EmbeddingsDataModule(images, backbone="identity", device=device)
