"""One file out of the parts that the tasks of an array job wrote."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from artifacts.errors import InputError
from artifacts.tensors import Schema, read_tensors

# Differs between the parts of one whole; everything else that files say of themselves does not.
_OWN = ("part", "diverged_draws")


def merge_parts(paths: Sequence[Path], schema: Schema) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Puts the items of all parts in order, as if one run had made them.

    Args:
        paths: The files.
        schema: What they hold; it names the dimension of the items and their index.

    Returns:
        Tensors and metadata of the whole.

    Raises:
        InputError: A file is broken, a part is missing or there twice, or parts are of different
            runs.
    """
    assert schema.items is not None
    letter, index_name = schema.items
    parts: dict[int, dict[str, Tensor]] = {}
    first: tuple[Path, dict[str, str]] | None = None
    left_out: list[int] = []
    count = 0
    for path in paths:
        tensors, metadata = read_tensors(path, schema, as_part=True)
        index, _, of = metadata.get("part", "").partition("/")
        if not (index.isdecimal() and of.isdecimal()) or index_name not in tensors:
            raise InputError(f"{path} does not say which part it is; {schema.made_by}")
        if first is None:
            first, count = (path, _common(metadata)), int(of)
        elif first[1] != _common(metadata) or count != int(of):
            raise InputError(f"{path} is no part of the same run as {first[0]}: settings differ")
        if int(index) in parts:
            raise InputError(f"{path} is part {index}/{of}, which is there already")
        parts[int(index)] = tensors
        left_out += [
            int(word) for word in metadata["diverged_draws"].strip("[]").split(",") if word
        ]
    missing = [f"{index}/{count}" for index in range(count) if index not in parts]
    if missing or first is None:
        raise InputError(
            f"{len(missing)} of {count} parts are missing: run the job again for part "
            f"{', '.join(missing[:20])}"
        )
    order = torch.cat([part[index_name] for part in parts.values()]).argsort()
    if len(order) == 0:
        raise InputError(f"no part of {len(parts)} found anything; {schema.made_by}")
    whole: dict[str, Tensor] = {}
    for name, tensor in parts[0].items():
        dimensions = {**schema.shapes, **schema.optional}.get(name, "").split()
        if letter in dimensions:
            dim = dimensions.index(letter)
            pieces = [part[name] for part in parts.values()]
            whole[name] = torch.cat(pieces, dim).index_select(dim, order)
        else:
            whole[name] = tensor
    return whole, {**first[1], "part": "0/1", "diverged_draws": str(sorted(left_out))}


def _common(metadata: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in metadata.items()
        if name not in _OWN and not name.startswith("shape.")
    }
