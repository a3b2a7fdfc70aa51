"""Images that inversions make: one file each as they finish, and one of all."""

from pathlib import Path

import torch
from torch import Tensor

from artifacts.errors import InputError
from artifacts.tensors import INVERSION, INVERSIONS, read_tensors, write_tensors

MERGED = {"image": "images"}


def image_path(root: Path, index: int) -> Path:
    """Where the tensors of one image are; its PNG is beside it."""
    return root / "images" / f"{index:05d}.safetensors"


def finished_images(root: Path) -> dict[int, str]:
    """The images that a run directory has: by index the fingerprint of what made each.

    Raises:
        InputError: A file is broken.
    """
    finished = {}
    for path in sorted((root / "images").glob("[0-9]*.safetensors")):
        _, metadata = read_tensors(path, INVERSION)
        finished[int(path.stem)] = metadata.get("fingerprint", "")
    return finished


def merge_images(root: Path, total: int, metadata: dict[str, str]) -> dict[str, Tensor] | None:
    """Writes ``inversions.safetensors`` from the files of all images, if they are all there.

    Args:
        root: Run directory.
        total: How many there should be.
        metadata: Of the file.

    Returns:
        Its tensors, or None where images are missing.
    """
    paths = [image_path(root, index) for index in range(total)]
    if not all(path.is_file() for path in paths):
        return None
    parts = [read_tensors(path, INVERSION)[0] for path in paths]
    shapes = {tuple(part["image"].shape) for part in parts}
    if len(shapes) > 1:
        raise InputError(f"{root / 'images'} holds images of several sizes; delete it")
    merged = {
        MERGED.get(name, name): torch.stack([part[name] for part in parts])
        for name in parts[0]
        if name != "history"  # Its length is each image's own.
    }
    write_tensors(root / "inversions.safetensors", INVERSIONS, merged, metadata)
    return merged
