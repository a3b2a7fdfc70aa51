"""One file out of the parts that the tasks of an array job wrote."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from artifacts.errors import InputError
from artifacts.tensors import Schema, read_tensors

# Differs between the parts of one whole; everything else that files say of themselves does not.
_OWN = ("part", "diverged_draws")
_NUMBERS = r"\[(\d+(, \d+)*)?\]"


@dataclass(frozen=True)
class _Part:
    """What one file holds.

    Attributes:
        path: The file.
        index: Its number, from 0 on.
        count: Number of all parts.
        tensors: By name.
        alike: What all parts have in common.
        left_out: Draws that diverged.
        common: Metadata that all parts have in common.
    """

    path: Path
    index: int
    count: int
    tensors: dict[str, Tensor]
    alike: dict[str, object]
    left_out: list[int]
    common: dict[str, str]


def merge_parts(paths: Sequence[Path], schema: Schema) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Puts the items of all parts in order, as if one run had made them.

    Args:
        paths: The files.
        schema: What they hold; it names the dimension of the items and their index.

    Returns:
        Tensors and metadata of the whole.

    Raises:
        InputError: A file is broken, lacks items of its part or has others, a part is missing or
            there twice, or parts are of different runs.
    """
    assert schema.items is not None
    letter, index_name = schema.items
    parts: dict[int, _Part] = {}
    first: _Part | None = None
    for path in paths:
        part = _read(path, schema)
        first = first or part
        if (part.common, part.count) != (first.common, first.count):
            raise InputError(f"{path} is no part of the same run as {first.path}: settings differ")
        for name in {**part.alike, **first.alike}:
            if part.alike.get(name) != first.alike.get(name):
                raise InputError(
                    f"{path} is no part of the same run as {first.path}: '{name}' differs in "
                    "shape, type or values"
                )
        if part.index in parts:
            raise InputError(f"{path} is part {part.index}/{part.count}, which is there already")
        parts[part.index] = part
    count = 0 if first is None else first.count
    if first is None or len(parts) < count:
        missing = (f"{index}/{count}" for index in range(count) if index not in parts)
        raise InputError(
            f"{count - len(parts)} of {count} parts are missing: run the job again for part "
            f"{', '.join(islice(missing, 20))}"
        )
    order = torch.cat([part.tensors[index_name] for part in parts.values()]).argsort()
    if len(order) == 0:
        raise InputError(f"no part of {len(parts)} found anything; {schema.made_by}")
    whole: dict[str, Tensor] = {}
    for name, tensor in first.tensors.items():
        dimensions = _dimensions(schema, name)
        if letter in dimensions:
            dim = dimensions.index(letter)
            pieces = [part.tensors[name] for part in parts.values()]
            whole[name] = torch.cat(pieces, dim).index_select(dim, order)
        else:
            whole[name] = tensor
    left_out = sorted(draw for part in parts.values() for draw in part.left_out)
    return whole, {**first.common, "part": "0/1", "diverged_draws": str(left_out)}


def _read(path: Path, schema: Schema) -> _Part:
    """Reads a part and checks that it holds the items of its number.

    Raises:
        InputError: It is broken, does not say what part of what it is, or holds other items.
    """
    assert schema.items is not None
    letter, index_name = schema.items
    tensors, metadata = read_tensors(path, schema, as_part=True)
    said = re.fullmatch(r"(\d{1,18})/(\d{1,18})", metadata.get("part", ""), re.ASCII)
    if said is None or not int(said[1]) < int(said[2]) or index_name not in tensors:
        raise InputError(f"{path} does not say which part it is; {schema.made_by}")
    index, count = int(said[1]), int(said[2])
    start, number = (_number(metadata, name) for name in ("first_draw", "num_draws"))
    diverged = metadata.get("diverged_draws", "")
    if (
        start is None
        or number is None
        or start + number >= 2**63
        or not re.fullmatch(_NUMBERS, diverged, re.ASCII)
    ):
        raise InputError(
            f"{path} does not say which draws it is of (first_draw, num_draws, diverged_draws); "
            f"{schema.made_by}"
        )
    # As text: a number of any length can be compared.
    left_out = re.findall(r"\d+", diverged)
    held = [*map(str, tensors[index_name].tolist()), *left_out]
    expected = range(start, start + number)[index::count]
    if len(held) != len(expected) or set(held) != set(map(str, expected)):
        raise InputError(
            f"{path} is part {index}/{count} of {number} draws from {start} on: its draws, with "
            f"those that diverged, must be these {len(expected)}, each once; {schema.made_by}"
        )
    alike: dict[str, object] = {}
    for name, tensor in tensors.items():
        dimensions = _dimensions(schema, name)
        shape = [n for n, of in zip(tensor.shape, dimensions, strict=False) if of != letter]
        values = None if letter in dimensions else tensor.tolist()
        alike[name] = (tensor.dtype, shape, values)
    common = {
        name: value
        for name, value in metadata.items()
        if name not in _OWN and not name.startswith("shape.")
    }
    return _Part(path, index, count, tensors, alike, [int(draw) for draw in left_out], common)


def _number(metadata: Mapping[str, str], name: str) -> int | None:
    """A number in the metadata, if it is there and may have 64 bits."""
    text = metadata.get(name, "")
    return int(text) if re.fullmatch(r"\d{1,19}", text, re.ASCII) else None


def _dimensions(schema: Schema, name: str) -> list[str]:
    return {**schema.shapes, **schema.optional}.get(name, "").split()
