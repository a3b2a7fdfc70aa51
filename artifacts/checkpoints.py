"""Trainer checkpoints that are written whole or not at all."""

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.plugins.io import TorchCheckpointIO

from artifacts.errors import InputError
from artifacts.files import atomic_path


def write_checkpoint(path: str | Path, content: dict[str, Any]) -> None:
    """Saves with ``torch.save``, whole or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            torch.save(content, file)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot write {path} (is the disk full?): {reason}") from error


class AtomicCheckpointIO(TorchCheckpointIO):
    """Saves beside the target and renames: a full disk or a kill leaves the earlier checkpoint."""

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: _PATH,
        storage_options: Any | None = None,  # noqa: ANN401 - as the base class
    ) -> None:
        """Writes a checkpoint.

        Raises:
            InputError: It cannot be written.
        """
        write_checkpoint(Path(path), checkpoint)
