"""Tasks: the lists of appendix C, and what users list."""

import re

import pytest
import torch

from artifacts.errors import InputError
from datamodules.tasks import make_task, named_tasks, resolve_task
from tests.conftest import SHARED

PAPER = SHARED / "papers" / "transfer_learning_reconstruction.txt"


@pytest.fixture(scope="module")
def appendix() -> str:
    if not PAPER.is_file():
        pytest.skip("the paper's text is not there")
    text = PAPER.read_text(encoding="utf-8")
    return text[text.index("Appendix C Datasets - Full Details") :]


def test_food101_is_as_the_paper_lists_it(appendix: str) -> None:
    text = appendix[: appendix.index("C.3 iNaturalist")]
    binary, multiclass = text.split("Multiclass Tasks")
    found = [
        [name.replace(" ", "_") for name in re.findall(r'"([a-z ]+)"', part)]
        for part in (*re.findall(r"• Class I+: (.*)", binary), multiclass)
    ]
    tasks = named_tasks("food101")
    assert found == [*tasks["binary"].values(), tasks["multiclass"]]
    assert [len(names) for names in found] == [5, 5, 10]


def test_inaturalist_is_as_the_paper_lists_it(appendix: str) -> None:
    text = appendix[appendix.index("C.3 iNaturalist") :]
    species = re.findall(r"^\d{5}_\w+", text, flags=re.MULTILINE)
    tasks = named_tasks("inaturalist")
    groups = {**tasks["binary"], **tasks["multiclass"]}
    assert [name for names in groups.values() for name in names] == species
    assert {name: len(names) for name, names in groups.items()} == {
        "fauna": 11,
        "flora": 12,
        "insects": 6,
        "aquatic_animals": 6,
        "reptiles": 5,
        "birds": 6,
    }
    fungi_and_plants = ("_Fungi_", "_Plantae_")
    assert all(any(word in name for word in fungi_and_plants) for name in groups["flora"])
    assert all("_Animalia_" in name for name in groups["fauna"])


def test_two_labels_are_signs_and_more_are_counted() -> None:
    assert make_task({"a": ["x", "y"], "b": ["z"]}).classes == {1: ["x", "y"], -1: ["z"]}
    assert make_task(["x", "y"]).classes == {1: ["x"], -1: ["y"]}
    assert make_task(["x", "z", "y"]).classes == {0: ["x"], 1: ["z"], 2: ["y"]}


def test_first_classes_of_the_list() -> None:
    multiclass = resolve_task("food101", "multiclass", 4)
    assert multiclass.names == ["beef_carpaccio", "beet_salad", "carrot_cake", "cup_cakes"]
    assert list(resolve_task("inaturalist", "multiclass", 3).classes) == [0, 1, 2]
    assert len(resolve_task("inaturalist", "multiclass", 3).names) == 17


def test_labels_of_images() -> None:
    task = make_task({"even": ["0", "2"], "odd": ["1"]})
    labels, has_label = task.labels(["0", "1", "2", "3"], torch.tensor([3, 2, 1, 0, 1]))
    assert labels.tolist() == [0, 1, -1, 1, -1]
    assert has_label.tolist() == [False, True, True, True, True]
    with pytest.raises(InputError, match="no class 'pizzza'; the closest of 2 is 'pizza'"):
        make_task(["pizzza", "tacos"]).labels(["tacos", "pizza"], torch.tensor([0]))


@pytest.mark.parametrize(
    ("task", "number", "message"),
    [
        ("binry", None, "no task 'binry'; it has binary, multiclass"),
        (["a", "b", "a"], None, "'a' twice"),
        ({"a": ["x"], "b": ["x"]}, None, "'x' twice"),
        ({"a": ["x"], "b": []}, None, "class for every label"),
        ([], None, "class for every label"),
        ("multiclass", 11, "from 1 to 10, got 11"),
        ("multiclass", 0, "from 1 to 10, got 0"),
    ],
)
def test_impossible_tasks_are_refused(task: object, number: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_task("food101", task, number)  # type: ignore[arg-type]
