"""State dicts from files that may come from a stranger: nothing in them is ever executed."""

import argparse
import hashlib
import pickle
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from artifacts.errors import InputError
from artifacts.files import require_file, sha256_of_file
from artifacts.tensors import tensor_bytes

# What torch's restricted unpickler raises on bytes that are no checkpoint.
_UNPICKLER_ERRORS = (
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
# What torch.save is asked to write.
_CHECKPOINTS = (".bin", ".ckpt", ".pt", ".pth")


def read_checkpoint(path: str | Path, *, what: str, made_by: str) -> dict[str, Any]:
    """Reads a safetensors file or a torch checkpoint without running code from it.

    Args:
        path: ``*.safetensors``, or anything ``torch.load(weights_only=True)`` accepts.
        what: The file's role, for messages.
        made_by: What makes such a file, for messages.

    Returns:
        The content: a state dict, or a checkpoint with a ``state_dict`` entry.

    Raises:
        InputError: The file is missing, unreadable, or would need unpickling.
    """
    path = require_file(path, what=what, made_by=made_by)
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(str(path))
        else:
            # Many training scripts save their options beside the weights; a namespace is harmless.
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} is not a {what} that can be read safely: it is damaged, or holds objects "
            f"other than tensors; {made_by}"
        ) from error
    except (SafetensorError, OSError, *_UNPICKLER_ERRORS) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path} is not a readable {what} ({reason}); {made_by}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}, not a state dict; {made_by}")
    return content


def read_state_dict(path: str | Path, *, what: str, made_by: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint, by name.

    Entries ``state_dict`` and ``model`` are looked into, as training frameworks nest them.

    Raises:
        InputError: As :func:`read_checkpoint`, or there are no tensors, or one holds NaN or
            infinity.
    """
    return state_dict_in(read_checkpoint(path, what=what, made_by=made_by), path, what, made_by)


def state_dict_in(
    content: dict[str, Any], path: str | Path, what: str, made_by: str
) -> dict[str, Tensor]:
    """The tensors by name in what :func:`read_checkpoint` gave.

    Raises:
        InputError: There are no tensors, or one holds NaN or infinity.
    """
    for key in ("state_dict", "model"):
        if isinstance(content.get(key), dict):
            content = content[key]
            break
    state_dict = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    if not state_dict:
        raise InputError(f"{path} holds no tensors; {made_by}")
    for name, value in state_dict.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InputError(f"{path}: '{name}' holds NaN or infinity: the {what} is unusable")
    return state_dict


def sha256_of_content(path: str | Path) -> str:
    """A hash of what a file holds: of a checkpoint's values, of any other file's bytes.

    ``torch.save`` writes equal values as different bytes: pickle writes an object once and refers
    back to it, but what a resumed run read from its checkpoint is equal without being the same
    object. How a run went (its callbacks' paths and times) does not count.

    Returns:
        64 hex digits.

    Raises:
        OSError: There is no such file.
    """
    if Path(path).suffix not in _CHECKPOINTS:
        return sha256_of_file(path)
    digest = hashlib.sha256()
    try:
        content = read_checkpoint(path, what="checkpoint", made_by="")
        content.pop("callbacks", None)
        for piece in _pieces(content):
            digest.update(piece)
    except (InputError, NotImplementedError, RuntimeError):
        # No checkpoint after all, or one of sparse tensors or that holds itself.
        return sha256_of_file(path)
    return digest.hexdigest()


def _pieces(value: Any) -> Iterator[bytes | memoryview]:  # noqa: ANN401 - whatever a checkpoint holds
    """Bytes that are the same for equal values only."""
    if isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)}\n".encode()
        yield tensor_bytes(value)
    elif isinstance(value, Mapping):
        yield f"mapping of {len(value)}\n".encode()
        for name in sorted(value, key=repr):
            yield f"{name!r}\n".encode()
            yield from _pieces(value[name])
    elif isinstance(value, list | tuple):
        yield f"sequence of {len(value)}\n".encode()
        for item in value:
            yield from _pieces(item)
    else:
        yield f"{value!r}\n".encode()
