"""Configs compose in order; what to say where theirs cannot be what was meant."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from artifacts.errors import InputError


def require_order(files: list[Path]) -> None:
    """Refuses a stage's config that replaces the data which an earlier file was given for.

    Raises:
        InputError: A file that holds nothing but data comes before one with a model and data of
            another class, which would silently win.
    """
    for (first, data), (second, stage) in combinations(_contents(files), 2):
        replaced, by = _class_path(data, "data"), _class_path(stage, "data")
        if data.keys() == {"data"} and "model" in stage and replaced and by and replaced != by:
            raise InputError(
                f"{second} would replace the data of {first}, which it comes after; give --config "
                f"{first} after --config {second}"
            )


def order_hint(files: list[Path]) -> str:
    """Which file to give later, as the end of a message about an option that is not known.

    Empty if no file has options of a class that only a later one names.
    """
    contents = list(_contents(files))
    for (first, options), (_, choice) in combinations(contents, 2):
        for part in ("data", "model"):
            if part in options and not _class_path(options, part) and _class_path(choice, part):
                last = next(path for path, c in reversed(contents) if _class_path(c, part))
                return f"; give --config {first} after --config {last}, whose {part} it is for"
    return ""


def _contents(files: list[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in files:
        yield path, yaml.safe_load(path.read_text(encoding="utf-8"))


def _class_path(content: dict[str, Any], part: str) -> str:
    """The class that a config chooses for its model or data; empty if it chooses none."""
    value = content.get(part)
    chosen = value.get("class_path") if isinstance(value, dict) else value
    return chosen if isinstance(chosen, str) else ""
