"""Splits as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.errors import InputError
from artifacts.splits import Part, Split, read_split, write_split

SPLIT = Split(
    dataset="food101",
    seed=3,
    classes={1: ["pizza"], -1: ["tacos", "paella"]},
    train=Part(["images/pizza/1.jpg", "images/tacos/2.jpg"], [1, -1]),
    test=Part(["images/paella/3.jpg"], [-1]),
)

names = st.lists(st.text(st.characters(codec="utf-8"), min_size=1), unique=True, max_size=12)


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(names, st.integers(0, 12), st.integers(0, 2**31), st.data())
def test_round_trip(
    tmp_path: Path, identifiers: list[str], size: int, seed: int, data: st.DataObject
) -> None:
    labels = data.draw(st.lists(st.sampled_from([-1, 1]), min_size=12, max_size=12))
    labels = labels[: len(identifiers)]
    split = Split(
        "digits",
        seed,
        {1: ["0"], -1: ["1", "é"]},
        Part(identifiers[:size], labels[:size]),
        Part(identifiers[size:], labels[size:]),
    )
    write_split(tmp_path / "split.json", split)
    assert read_split(tmp_path / "split.json", dataset="digits") == split


def changed(**values: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    header = {"kind": "split", "schema_version": "1", "dataset": "food101", "seed": 3}
    parts = {
        "classes": {"1": ["pizza"], "-1": ["tacos", "paella"]},
        "train": {"identifiers": ["a"], "labels": [1]},
        "test": {"identifiers": ["b"], "labels": [1]},
    }
    return {**header, **parts, **values}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(dataset="cifar10"), "of the dataset 'cifar10', not of 'food101'"),
        (changed(kind="metrics"), "is not a split"),
        ([], "is not a split"),
        (changed(schema_version="0"), "schema version 0"),
        (changed(train=None), "'train' lacks the lists"),
        (changed(test={"identifiers": ["b"]}), "'test' lacks the lists"),
        (changed(train={"identifiers": ["a", "c"], "labels": [1]}), "2 identifiers and 1 labels"),
        (changed(train={"identifiers": ["a"], "labels": ["1"]}), "integers as labels"),
        (changed(train={"identifiers": ["a"], "labels": [True]}), "integers as labels"),
        (changed(train={"identifiers": [1], "labels": [1]}), "strings as identifiers"),
        (changed(train={"identifiers": ["a", "a"], "labels": [1, 1]}), "the image 'a' twice"),
        (changed(test={"identifiers": ["a"], "labels": [1]}), "1 images are in 'train' and in"),
        (changed(seed=None), "lacks 'seed' or 'classes'"),
        (changed(classes=3), "lacks 'seed' or 'classes'"),
        (changed(classes={"x": ["a"]}), "'classes' does not map"),
        (changed(classes={"1": 3, "-1": ["a"]}), "names for each label, not for 1;"),
        (
            changed(classes={"1": "pizza", "-1": ["a"]}),
            "names for each label, not for 1;",
        ),
        (changed(classes={"1": [3], "-1": ["a"]}), "names for each label, not for 1;"),
        (changed(classes={"1": [], "-1": ["a"]}), "names for each label, not for 1;"),
        (changed(classes={"1": ["a"], "-1": ["b", "a"]}), "the class 'a' twice"),
        (changed(classes={}), "labels of 'classes' must be 1 and -1, .*; got none"),
        (changed(classes={"0": ["a"], "1": ["b"]}), "must be 1 and -1"),
        (changed(classes={"0": ["a"], "1": ["b"], "3": ["c"]}), "must be 1 and -1"),
        (changed(classes={"1": ["a"], "01": ["b"]}), "must be 1 and -1"),
        (changed(train={"identifiers": ["a"], "labels": [0]}), "'train' has the label 0, which"),
        (changed(test={"identifiers": ["b"], "labels": [10**30]}), "'test' has the label 1000"),
        (changed(seed=True), "lacks 'seed' or 'classes'"),
    ],
)
def test_bad_splits_are_refused(content: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message) as error:
        read_split(path, dataset="food101")
    assert str(path) in str(error.value)
    with pytest.raises(InputError, match="no split at"):
        read_split(tmp_path / "none.json", dataset="food101")


def test_the_good_one_is_taken(tmp_path: Path) -> None:
    (tmp_path / "split.json").write_text(json.dumps(changed()))
    assert read_split(tmp_path / "split.json", dataset="food101").train == Part(["a"], [1])
