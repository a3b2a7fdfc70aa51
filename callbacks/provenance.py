"""Where an artifact comes from, as its metadata say."""

from pathlib import Path

import lightning as L
from lightning.pytorch.cli import SaveConfigCallback

from artifacts.files import sha256_of_file


def provenance(trainer: L.Trainer, **facts: object) -> dict[str, str]:
    """Metadata of an artifact that a stage writes.

    Args:
        trainer: The stage's trainer; its run directory holds the saved config.
        facts: Further entries, turned into strings.

    Returns:
        ``config_sha256`` of the stage's saved config (empty if none was saved), and the facts.
    """
    digest = ""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, SaveConfigCallback):
            digest = sha256_of_file(Path(trainer.default_root_dir) / callback.config_filename)
    return {"config_sha256": digest, **{name: str(value) for name, value in facts.items()}}
