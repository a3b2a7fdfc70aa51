"""One artifact out of those that the parts of a sweep wrote."""

import glob
import sys
from pathlib import Path

from artifacts.errors import InputError
from artifacts.files import require_output
from artifacts.parts import merge_parts
from artifacts.tensors import CANDIDATES, write_tensors


def merge(parts: str, output: str) -> None:
    """Merges the candidates that the parts of a sweep (model.part) found, as one run would.

    Args:
        parts: The parts' files, as a pattern such as "runs/sweep/part_*/candidates.safetensors".
        output: The file to write.

    Raises:
        InputError: A part is missing, broken, or of another sweep.
    """
    require_output(output)
    paths = sorted(Path(name) for name in glob.glob(parts, recursive=True))  # noqa: PTH207
    paths = [path for path in paths if path.resolve() != Path(output).resolve()]
    if not paths:
        raise InputError(f"no files match {parts}")
    tensors, metadata = merge_parts(paths, CANDIDATES)
    write_tensors(output, CANDIDATES, tensors, metadata)
    sys.stdout.write(f"{len(paths)} parts with {len(tensors['draw'])} draws are in {output}\n")
