"""What made a run, as its report says."""

from pathlib import Path

import lightning
import torch

from artifacts.tensors import package_version


def versions() -> str:
    """The versions that are installed."""
    return (
        f"afterimage {package_version()}, torch {torch.__version__}, "
        f"lightning {lightning.__version__}"
    )


def saved_configs(root: Path) -> list[tuple[str, str]]:
    """Name and text of the config of each stage beside ``root``."""
    return [
        (str(path.relative_to(root.parent)), path.read_text(encoding="utf-8"))
        for path in sorted(root.parent.glob("*/config*.yaml"))
        if ".previous" not in path.parent.name
    ]
