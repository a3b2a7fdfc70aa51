"""Where an artifact comes from, as its metadata say."""

import hashlib
import json
from typing import Any

import lightning as L
import yaml
from lightning.pytorch.cli import SaveConfigCallback


def provenance(trainer: L.Trainer, **facts: object) -> dict[str, str]:
    """Metadata of an artifact that a stage writes.

    Args:
        trainer: The stage's trainer.
        facts: Further entries, turned into strings.

    Returns:
        ``config_sha256``, a hash of what in the stage's config decides the result: seed, model and
        data, but not where, on how many devices, or in how many parts it runs (empty if the stage
        was not started from a config); and the facts.
    """
    digest = ""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, SaveConfigCallback):
            config = yaml.safe_load(callback.parser.dump(callback.config, skip_none=False))
            decisive = {name: config.get(name) for name in ("seed_everything", "model", "data")}
            model: dict[str, Any] = decisive["model"] or {}
            model.get("init_args", {}).pop("part", None)
            digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return {"config_sha256": digest, **{name: str(value) for name, value in facts.items()}}
