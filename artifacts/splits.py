"""Which images of a dataset a run trained and tested on, as JSON."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from artifacts.errors import InputError
from artifacts.files import read_json, write_json
from artifacts.tensors import SCHEMA_VERSION, package_version

KIND = "split"
MADE_BY = "a run with an image data module writes one as split.json into its directory"


@dataclass(frozen=True)
class Part:
    """The images of one side of a split.

    Attributes:
        identifiers: File names relative to the dataset's root, or ``"test/7"`` for the image at
            index 7 of a dataset that is no folder of images.
        labels: One for each.
    """

    identifiers: list[str]
    labels: list[int]


@dataclass(frozen=True)
class Split:
    """Training and test images of a dataset.

    Attributes:
        dataset: Its name.
        seed: What the images were drawn with.
        classes: The dataset's classes that have a label, by label.
        train: Trained on.
        test: Held out.
    """

    dataset: str
    seed: int
    classes: dict[int, list[str]]
    train: Part
    test: Part = field(default_factory=lambda: Part([], []))


def write_split(path: str | Path, split: Split) -> None:
    """Writes a split, whole or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    header = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "package_version": package_version(),
    }
    write_json(path, header | asdict(split))


def read_split(path: str | Path, *, dataset: str) -> Split:
    """Reads what :func:`write_split` wrote.

    Args:
        path: The JSON file.
        dataset: Name of the dataset that it must be of.

    Raises:
        InputError: The file is missing, not a split, of another dataset, contradicts itself, or has
            an image twice.
    """
    content = read_json(path, what=KIND, made_by=MADE_BY)
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise InputError(f"{path} is not a {KIND}; {MADE_BY}")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {content.get('schema_version')}, this package reads "
            f"version {SCHEMA_VERSION}; {MADE_BY}"
        )
    if content.get("dataset") != dataset:
        raise InputError(
            f"{path} is a split of the dataset '{content.get('dataset')}', not of '{dataset}'"
        )
    seed, classes = content.get("seed"), content.get("classes")
    if not _is_integer(seed) or not isinstance(classes, dict):
        raise InputError(f"{path} lacks 'seed' or 'classes'; {MADE_BY}")
    by_label = _classes(path, classes)
    train, test = (_part(path, name, content.get(name)) for name in ("train", "test"))
    for name, part in (("train", train), ("test", test)):
        unknown = set(part.labels) - by_label.keys()
        if unknown:
            label = str(min(unknown))[:40]
            raise InputError(
                f"{path}: '{name}' has the label {label}, which 'classes' does not have; {MADE_BY}"
            )
    _require_distinct(path, train, test)
    return Split(dataset, seed, by_label, train, test)


def _classes(path: str | Path, value: dict[str, Any]) -> dict[int, list[str]]:
    """The names of each label's classes, checked."""
    try:
        by_label = {int(label): names for label, names in value.items()}
    except ValueError as error:
        raise InputError(f"{path}: 'classes' does not map labels to names; {MADE_BY}") from error
    for label, names in by_label.items():
        if (
            not isinstance(names, list)
            or not names
            or not all(isinstance(name, str) for name in names)
        ):
            raise InputError(
                f"{path}: 'classes' needs a list of names for each label, not for "
                f"{str(label)[:40]}; {MADE_BY}"
            )
    expected = {-1, 1} if len(value) == 2 else set(range(len(value)))
    if not expected or by_label.keys() != expected:
        raise InputError(
            f"{path}: the labels of 'classes' must be 1 and -1, or, unless there are two, 0, 1, 2, "
            f"…; got {', '.join(value)[:80] or 'none'}"
        )
    name, count = Counter(name for names in by_label.values() for name in names).most_common(1)[0]
    if count > 1:
        raise InputError(f"{path}: 'classes' has the class '{name}' twice")
    return by_label


def _part(path: str | Path, name: str, value: Any) -> Part:  # noqa: ANN401 - any JSON value
    value = value if isinstance(value, dict) else {}
    identifiers, labels = value.get("identifiers"), value.get("labels")
    if not isinstance(identifiers, list) or not isinstance(labels, list):
        raise InputError(f"{path}: '{name}' lacks the lists 'identifiers' and 'labels'; {MADE_BY}")
    if not all(isinstance(item, str) for item in identifiers) or not all(
        _is_integer(label) for label in labels
    ):
        raise InputError(f"{path}: '{name}' needs strings as identifiers and integers as labels")
    if len(identifiers) != len(labels):
        raise InputError(
            f"{path}: '{name}' has {len(identifiers)} identifiers and {len(labels)} labels"
        )
    return Part(identifiers, labels)


def _is_integer(value: object) -> TypeGuard[int]:
    """Whether a JSON value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def _require_distinct(path: str | Path, train: Part, test: Part) -> None:
    for name, part in (("train", train), ("test", test)):
        seen: set[str] = set()
        for identifier in part.identifiers:
            if identifier in seen:
                raise InputError(f"{path}: '{name}' has the image '{identifier}' twice")
            seen.add(identifier)
    shared = set(train.identifiers) & set(test.identifiers)
    if shared:
        raise InputError(
            f"{path}: {len(shared)} images are in 'train' and in 'test', such as '{min(shared)}'"
        )
