"""Which classes of a dataset get which label; the lists of appendix C are the YAML files here."""

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
import yaml
from torch import Tensor

from artifacts.errors import InputError

# Names of classes, or groups of them. An unquoted 7 in YAML is a number.
Classes = Sequence[str | int] | Sequence[str] | Mapping[str, Sequence[str | int]]


@dataclass(frozen=True)
class Task:
    """Labels of classes.

    Attributes:
        classes: Names of the classes of each label. Two labels are +1 (first) and -1, more of them
            0, 1, 2, …
    """

    classes: dict[int, list[str]]

    @property
    def names(self) -> list[str]:
        """Every class that has a label."""
        return [name for names in self.classes.values() for name in names]

    def labels(self, known: Sequence[str], targets: Tensor) -> tuple[Tensor, Tensor]:
        """Labels of images.

        Args:
            known: Names of the dataset's classes.
            targets: Class of each image (N,).

        Returns:
            Label of each image (N,), 0 where it has none, and whether it has one (N,).

        Raises:
            InputError: The dataset has no such class.
        """
        of_class = torch.zeros(len(known), dtype=torch.int64)
        has_label = torch.zeros(len(known), dtype=torch.bool)
        index = {name: position for position, name in enumerate(known)}
        for label, names in self.classes.items():
            for name in names:
                if name not in index:
                    raise InputError(f"there is no class '{name}'{suggestion(name, known)}")
                of_class[index[name]] = label
                has_label[index[name]] = True
        return of_class[targets], has_label[targets]


def suggestion(name: str, known: Sequence[str]) -> str:
    """The known name most like ``name``, or the first few, as the end of a message."""
    closest = difflib.get_close_matches(name, known, n=1)
    if closest:
        return f"; the closest of {len(known)} is '{closest[0]}'"
    few = ", ".join(f"'{other}'" for other in known[:5])
    more = ", …" if len(known) > 5 else ""
    return f"; classes are named, not numbered: {few}{more}" if known else "; there are none"


def make_task(classes: Classes, number: int | None = None) -> Task:
    """A task from class names, or from groups of them.

    Args:
        classes: Names of classes that have a label each, or by any name, of classes that share one.
        number: Only the first so many labels are made.

    Raises:
        InputError: There is no label, an empty group, or a class twice; or there are not ``number``
            labels.
    """
    groups = (
        [[str(name) for name in names] for names in classes.values()]
        if isinstance(classes, Mapping)
        else [[str(name)] for name in classes]
    )
    if number is not None:
        if not 1 <= number <= len(groups):
            raise InputError(f"num_classes must be from 1 to {len(groups)}, got {number}")
        groups = groups[:number]
    counts = Counter(name for group in groups for name in group)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise InputError(f"the task has the class '{twice[0]}' twice")
    if not groups or not all(groups):
        raise InputError(f"a task needs a class for every label; got {groups}")
    labels = [1, -1] if len(groups) == 2 else list(range(len(groups)))
    return Task(dict(zip(labels, groups, strict=True)))


def named_tasks(dataset: str) -> dict[str, Any]:
    """The lists of a dataset by name; none if it has no file here."""
    file = resources.files(__name__) / f"{dataset}.yaml"
    return dict(yaml.safe_load(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def resolve_task(
    dataset: str,
    task: str | Classes,
    number: int | None = None,
) -> Task:
    """The task that a configuration names or lists.

    Args:
        dataset: Name of the dataset.
        task: One of its named tasks, or as :func:`make_task`.
        number: As :func:`make_task`.

    Raises:
        InputError: There is no such task; or as :func:`make_task`.
    """
    if isinstance(task, str):
        tasks = named_tasks(dataset)
        if task not in tasks:
            raise InputError(
                f"'{dataset}' has no task '{task}'; it has {', '.join(tasks) or 'none'}, "
                "and takes a list of classes or named groups of them"
            )
        task = tasks[task]
    return make_task(task, number)
