"""Named tensors in one safetensors file, with a schema that reading checks."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from artifacts.errors import InputError
from artifacts.files import atomic_path, require_file

SCHEMA_VERSION = "1"


@dataclass(frozen=True)
class Schema:
    """What a file of one kind holds.

    Attributes:
        kind: Its name, stored in the file ("candidates").
        shapes: For each tensor its dimensions by letter, such as ``"R m D"``; the same letter is
            the same length throughout the file.
        made_by: What makes such a file, for error messages.
        optional: Dimensions of tensors that need not be there.
        items: If parts of such a file can be merged, the letter of the dimension they are split
            along and the name of the tensor that numbers its items.
    """

    kind: str
    shapes: Mapping[str, str]
    made_by: str
    optional: Mapping[str, str] = field(default_factory=dict)
    items: tuple[str, str] | None = None


CANDIDATES = Schema(
    kind="candidates",
    shapes={"candidates": "R m D", "multipliers": "R m", "labels": "m", "residual": "R"},
    made_by="`python main.py fit --config configs/quickstart/reconstruct.yaml` makes one",
    optional={
        "draw": "R",
        "history": "T R",
        "init_std": "R",
        "lambda_min": "R",
        "learning_rate": "R",
        "relu_alpha": "R",
    },
    items=("R", "draw"),
)
REPRESENTATIVES = Schema(
    kind="representatives",
    shapes={"representatives": "k D", "score": "k", "label": "k"},
    made_by="`python main.py predict --config configs/quickstart/select.yaml` makes one",
)
_INVERSION_MADE_BY = "`python main.py predict --config configs/photos/invert.yaml` makes one"
INVERSION = Schema(
    kind="inversion",
    shapes={"image": "c h w", "label": ""},
    made_by=_INVERSION_MADE_BY,
)
INVERSIONS = Schema(
    kind="inversions",
    shapes={"images": "k c h w", "label": "k"},
    made_by=_INVERSION_MADE_BY,
)
INVERSION_EVALUATION = Schema(
    kind="inversion evaluation",
    shapes={
        "images": "k c h w",
        "train_images": "k c h w",
        "target_similarity": "k",
        "attacked_similarity": "k",
        "ssim": "k",
    },
    made_by="`python main.py test --config configs/photos/evaluate_inversions.yaml` makes one",
)
EVALUATION = Schema(
    kind="evaluation",
    shapes={"similarity": "n", "held_out_similarity": "h", "margin": "n", "labels": "n"},
    made_by="`python main.py test --config configs/quickstart/evaluate.yaml` makes one",
    optional={
        "residual_history": "T R",
        "train_images": "n c height width",
        "recovered_images": "n c height width",
        "ssim": "n",
    },
)
EMBEDDINGS = Schema(
    kind="embeddings",
    shapes={"embeddings": "N D"},
    made_by="delete it, and the next run computes it again",
)
MEMBERSHIP_SCORES = Schema(
    kind="membership scores",
    shapes={"members": "a m", "non_members": "a n", "thresholds": "a"},
    made_by="`python main.py pipeline --config configs/quickstart/membership.yaml` makes one",
)


def package_version() -> str:
    """The version of the installed package, or ``"unknown"`` in an uninstalled checkout."""
    try:
        return version("afterimage")
    except PackageNotFoundError:
        return "unknown"


def write_tensors(
    path: str | Path, schema: Schema, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Writes ``tensors`` under ``schema``, whole or not at all.

    Args:
        path: The safetensors file.
        schema: What the file must hold; checked before anything is written.
        tensors: Name to tensor.
        metadata: Further facts, as strings. Schema version, kind, package version and shapes are
            added.

    Raises:
        InputError: A tensor breaks the schema or holds NaN or infinity, or the file cannot be
            written.
    """
    check_tensors(str(path), schema, tensors, as_part=metadata.get("part", "0/1") != "0/1")
    shapes = {f"shape.{name}": str(list(tensor.shape)) for name, tensor in tensors.items()}
    header = {
        "schema_version": SCHEMA_VERSION,
        "kind": schema.kind,
        "package_version": package_version(),
        **shapes,
        **metadata,
    }
    write_safetensors(path, tensors, header)


def write_safetensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Writes tensors and metadata as they are, whole or not at all; equal ones as equal bytes.

    The library writes metadata in an order that differs from call to call; equal results should
    be equal files, so that a hash tells whether an input changed.

    Raises:
        InputError: The file cannot be written.
    """
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = save(contiguous, metadata=dict(metadata))
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_path(path) as temporary:
        temporary.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


def sha256_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of names, shapes, dtypes and values, in order of names, as 64 hex digits."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(tensor_bytes(value))
    return digest.hexdigest()


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The values of a tensor, one after the other, as bytes."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data


def read_tensors(
    path: str | Path, schema: Schema, *, as_part: bool = False
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Reads a file that :func:`write_tensors` wrote.

    Args:
        path: The safetensors file.
        schema: What it must hold.
        as_part: Take one part of a sweep that found nothing, too.

    Returns:
        The tensors by name, and the metadata.

    Raises:
        InputError: The file is missing, of another kind or schema version, truncated, or holds
            wrong shapes, NaN or infinity.
    """
    path = require_file(path, what=f"{schema.kind} file", made_by=schema.made_by)
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is not a readable safetensors file ({error}); {schema.made_by}"
        ) from error
    kind = metadata.get("kind")
    if kind != schema.kind:
        raise InputError(
            f"{path} holds {kind or 'unlabelled tensors'}, not {schema.kind}; {schema.made_by}"
        )
    if metadata.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {metadata.get('schema_version')}, this package reads "
            f"version {SCHEMA_VERSION}; {schema.made_by}"
        )
    check_tensors(str(path), schema, tensors, as_part=as_part)
    return tensors, metadata


def check_tensors(
    where: str, schema: Schema, tensors: Mapping[str, Tensor], *, as_part: bool = False
) -> None:
    """Checks names, shapes, dtypes and finiteness.

    Args:
        where: The file, for messages.
        schema: What it must hold.
        tensors: Name to tensor.
        as_part: A part of a sweep may hold no items.

    Raises:
        InputError: One line naming the file, the tensor and what is wrong with it.
    """
    lengths: dict[str, int] = {}
    may_be_empty = schema.items[0] if as_part and schema.items is not None else ""
    for name, dimensions in {**schema.shapes, **schema.optional}.items():
        if name not in tensors:
            if name in schema.optional:
                continue
            raise InputError(f"{where} lacks the tensor '{name}'; {schema.made_by}")
        tensor = tensors[name]
        letters = dimensions.split()
        if tensor.dim() != len(letters):
            raise InputError(
                f"{where}: '{name}' has shape {tuple(tensor.shape)}, expected ({dimensions}); "
                f"{schema.made_by}"
            )
        for letter, length in zip(letters, tensor.shape, strict=True):
            empty = length == 0 and letter != may_be_empty
            if lengths.setdefault(letter, length) != length or empty:
                raise InputError(
                    f"{where}: '{name}' has shape {tuple(tensor.shape)}, but {letter} should be "
                    f"{lengths[letter] or 'at least 1'}; {schema.made_by}"
                )
        is_index = name.startswith("label") or name == "draw"
        if (tensor.dtype != torch.int64) if is_index else (not tensor.is_floating_point()):
            raise InputError(f"{where}: '{name}' has dtype {tensor.dtype}; {schema.made_by}")
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{where}: '{name}' holds NaN or infinity; {schema.made_by}")
        least = 0 if name in ("draw", "residual", "history") else -1 if is_index else -torch.inf
        values = set(tensor.flatten().tolist()) if is_index else set()
        if tensor.numel() and (float(tensor.min()) < least or {-1, 0} <= values):
            kind = "-1 and 1, or classes from 0" if name != "draw" and is_index else "from 0"
            raise InputError(
                f"{where}: '{name}' has values from {tensor.min()}, not {kind}; {schema.made_by}"
            )
