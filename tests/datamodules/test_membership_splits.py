"""Parts of a membership attack: disjoint, repeatable, written down, refused when they overlap."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from artifacts.errors import InputError
from artifacts.membership_splits import read_membership_splits, write_membership_splits
from datamodules import (
    DigitImagesDataModule,
    ImageFolderDataModule,
    MembershipSplits,
    PretrainingDataModule,
)
from datamodules.image_sets import ImageSet
from datamodules.membership_parts import PartSizes

SIZES = PartSizes(20, 21, 22, 23, 24, 25, 26)


def digits(**options: Any) -> MembershipSplits:  # noqa: ANN401
    return MembershipSplits(DigitImagesDataModule(), **{"sizes": SIZES, **options})


def folder(root: Path, colours: range, **extra: int) -> ImageFolderDataModule:
    """A folder of images of one colour each; ``extra`` are further names with colours."""
    (root / "any").mkdir(parents=True, exist_ok=True)
    for name, colour in [*((f"{c}", c) for c in colours), *extra.items()]:
        pixels = np.full((8, 8, 3), colour, dtype=np.uint8)
        Image.fromarray(pixels).save(root / "any" / f"{name}.png")
    return ImageFolderDataModule(str(root), image_size=8)


def test_parts_are_disjoint_and_of_their_sizes() -> None:
    data = digits(num_shadows=2)
    data.setup()
    sizes = {name: len(part.identifiers) for name, part in data.parts.items()}
    assert sizes == {
        **{"target_train": 20, "target_test": 21, "shadow_test": 23, "population": 25},
        **{"downstream": 26, "pool": 24, "shadow_1_train": 22, "shadow_2_train": 22},
    }
    everyone = [name for part in data.parts.values() for name in part.identifiers]
    assert len(set(everyone)) == len(everyone)
    # Not even by content: digits has images that are the same.
    digests = [d for name in data.parts for d in data.images_of(name).digests()]
    assert len(set(digests)) == len(digests)


def test_a_seed_repeats_the_parts_and_shadows_are_drawn_last() -> None:
    few, many, other = digits(), digits(num_shadows=3), digits(seed=1)
    for data in (few, many, other):
        data.setup()
    assert few.parts == {name: many.parts[name] for name in few.parts}
    assert few.parts["target_train"] != other.parts["target_train"]


def test_fit_gets_its_part_and_test_the_target() -> None:
    for part, train, held_out in (
        ("target", "target_train", "target_test"),
        ("shadow_1", "shadow_1_train", "shadow_test"),
        ("pool", "pool", "shadow_test"),
    ):
        data = digits(part=part, batch_size=7, drop_last=False)
        data.setup("fit")
        for loader, name in (
            (data.train_dataloader(), train),
            (data.val_dataloader()[0], train),
            (data.val_dataloader()[1], held_out),
        ):
            given = torch.cat([images for images, _ in loader])
            expected = data.images_of(name).all_pixels()
            assert sorted(map(hash_of, given)) == sorted(map(hash_of, expected))
        data.setup("test")
        members, non_members = (
            torch.cat([images for images, _ in loader]) for loader in data.test_dataloader()
        )
        assert torch.equal(members, data.images_of("target_train").all_pixels())
        assert torch.equal(non_members, data.images_of("target_test").all_pixels())


def hash_of(image: torch.Tensor) -> bytes:
    return image.numpy().tobytes()


def test_passes_make_longer_epochs_of_the_same_images() -> None:
    data = digits(passes_per_epoch=3, batch_size=10)
    data.setup()
    given = [hash_of(image) for images, _ in data.train_dataloader() for image in images]
    assert len(given) == 60
    assert all(given.count(content) == 3 for content in given)


def test_the_attacker_gets_no_image_of_the_target() -> None:
    data = digits(num_shadows=2, batch_size=10)
    data.setup("test")
    loaders = data.attacker_loaders()
    assert loaders.downstream is not None
    given = [*loaders.shadows, loaders.shadow_test, loaders.population, loaders.downstream]
    attacker = {hash_of(image) for loader in given for images, _ in loader for image in images}
    target = {
        hash_of(image) for name in ("target_train", "target_test") for image in pixels(data, name)
    }
    assert len(attacker) == 22 + 22 + 23 + 25 + 26
    assert not attacker & target


def pixels(data: MembershipSplits, name: str) -> torch.Tensor:
    return data.images_of(name).all_pixels()


def test_splits_are_written_and_read(tmp_path: Path) -> None:
    first = digits()
    first.setup()
    path = tmp_path / "splits.json"
    write_membership_splits(path, first.parts, seed=0)
    # Sizes and seed do not matter to who reads them.
    second = digits(splits=str(path), seed=5, sizes=PartSizes(1, 1, 1, 1))
    second.setup()
    assert second.parts == first.parts == read_membership_splits(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c["parts"]["pool"]["identifiers"].__setitem__(0, "X"),
            "is in 'target_train' and in 'pool'",
        ),
        (lambda c: c["parts"]["pool"].pop("labels"), "'pool' needs 'dataset'"),
        (lambda c: c.update(kind="split"), "does not hold membership splits"),
        (lambda c: c.update(schema_version="0"), "schema version 0"),
        (lambda c: c.update(parts={}), "has no parts"),
        (
            lambda c: c["parts"]["target_test"].update(identifiers=[], labels=[]),
            "'target_test' has no images",
        ),
        *(
            (
                lambda c, label=label: c["parts"]["pool"]["labels"].__setitem__(0, label),
                "'pool' needs 'dataset'",
            )
            for label in (-2, 2**63, True)
        ),
    ],
)
def test_edited_splits_are_refused(change: Any, message: str, tmp_path: Path) -> None:  # noqa: ANN401
    data = digits()
    data.setup()
    path = tmp_path / "splits.json"
    write_membership_splits(path, data.parts, seed=0)
    content = json.loads(path.read_text())
    change(content)
    member = data.parts["target_train"].identifiers[0]
    path.write_text(json.dumps(content).replace('"X"', json.dumps(member)))
    with pytest.raises(InputError, match=message):
        digits(splits=str(path)).setup()


def test_members_may_lie_in_a_folder_of_their_own_that_shares_no_image(tmp_path: Path) -> None:
    sizes = PartSizes(4, 0.2, 0.2, 0.2, 0.2, 0.1)
    members = folder(tmp_path / "members", range(5))
    data = MembershipSplits(
        folder(tmp_path / "others", range(100, 130)), sizes=sizes, members=members
    )
    data.setup()
    assert {part.source for name, part in data.parts.items() if name != "target_train"} == {
        "source"
    }
    assert len(data.parts["target_train"].identifiers) == 4
    assert len(data.parts["pool"].identifiers) == 6
    same = folder(tmp_path / "others", range(0), copy=3)
    with pytest.raises(InputError, match=r"'any/copy.png' of data.source is also in data.members"):
        MembershipSplits(same, sizes=sizes, members=members).setup()


def test_the_attacker_may_have_another_dataset(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", range(30))
    data = MembershipSplits(
        source,
        sizes=PartSizes(5, 5, 4, 4, 4, 4),
        shadow_source=folder(tmp_path / "b", range(50, 90)),
    )
    data.setup()
    sources = {name: part.source for name, part in data.parts.items()}
    assert {name for name, source in sources.items() if source == "source"} == {
        "target_train",
        "target_test",
    }


def test_missing_members_matter_to_who_needs_them_only(tmp_path: Path) -> None:
    data = MembershipSplits(folder(tmp_path / "a", range(40)), sizes=PartSizes(9, 6, 5, 5, 5, 10))
    data.setup()
    write_membership_splits(tmp_path / "splits.json", data.parts, seed=0)
    for name in data.parts["target_train"].identifiers:
        (tmp_path / "a" / name).unlink()
    for part in ("shadow_1", "pool"):
        left = MembershipSplits(
            ImageFolderDataModule(str(tmp_path / "a"), image_size=8),
            part=part,
            splits=str(tmp_path / "splits.json"),
        )
        left.setup("fit")
        assert len(left.images_of("pool")) == 5
    with pytest.raises(InputError, match="9 images of 'target_train' are not in 'image_folder'"):
        left.setup("test")


def test_a_share_of_one_member_is_that_member(tmp_path: Path) -> None:
    members = folder(tmp_path / "members", range(1))
    others = folder(tmp_path / "others", range(100, 130))
    data = MembershipSplits(others, sizes=PartSizes(target_train=0.999999), members=members)
    data.setup()
    assert data.parts["target_train"].identifiers == ["any/0.png"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"part": "shadow_2"}, "part must be one of target, shadow_1, pool"),
        ({"num_shadows": 0}, "at least 1"),
        ({"sizes": PartSizes(2000, 1, 1, 1)}, "'target_train' needs 2000 images"),
        ({"sizes": PartSizes(10, 0, 1, 1)}, "'target_test' needs 1 images"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        digits(**options).setup()


def test_stages_write_their_splits(tmp_path: Path) -> None:
    class Trainer:
        is_global_zero, fast_dev_run, default_root_dir = True, False, str(tmp_path)
        global_rank, world_size = 0, 1

    data = digits(in_memory="never")
    data.trainer = Trainer()  # type: ignore[assignment]
    data.setup()
    # The module may still refuse the parts.
    assert not list(tmp_path.iterdir())
    data.test_dataloader()
    assert read_membership_splits(tmp_path / "membership_splits.json") == data.parts


def test_digests_tell_images_of_equal_names_apart(tmp_path: Path) -> None:
    sizes, path = PartSizes(4, 4, 4, 4, 0, 0, 0), tmp_path / "splits.json"
    found = []
    for name, shift in (("a", 0), ("same", 0), ("other", 1)):
        images = folder(tmp_path / name, range(0), **{str(c): c + shift for c in range(20)})
        splits = str(path) if path.exists() else None
        data = MembershipSplits(images, sizes=sizes, splits=splits)
        data.setup()
        write_membership_splits(path, data.parts, seed=0)
        found.append(data.training_digests)
    assert found[0] == found[1]
    assert all(found[0][part] != found[2][part] for part in ("target", "shadow_1"))


def test_images_are_hashed_for_a_split_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large set of images takes minutes to read: nothing compares the digest without a split."""

    def unasked(*_: object, **__: object) -> list[bytes]:
        raise AssertionError

    data = PretrainingDataModule(DigitImagesDataModule(num_train=20, num_test=20))
    data.setup("fit")
    monkeypatch.setattr(ImageSet, "digests", unasked)
    assert data.trained_on == ("", "")
