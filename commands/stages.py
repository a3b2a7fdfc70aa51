"""Which stages in a run directory are finished."""

import json
import re
from pathlib import Path

from artifacts.files import read_json

MARKER = "stage.json"


def is_finished(directory: Path) -> bool:
    """Whether results in a stage's directory count.

    What a change moved aside (``<stage>.previous``) does not, nor what a pipeline has begun and not
    completed. A directory without a marker was made by a command of its own, and counts.

    Raises:
        InputError: The marker is not readable.
    """
    if directory.name.endswith(".previous"):
        return False
    marker = directory / MARKER
    if not marker.is_file():
        return True
    made_by = f"delete {directory} to start afresh"
    saved = read_json(marker, what="stage marker", made_by=made_by)
    return isinstance(saved, dict) and saved.get("status") == "complete"


def command_of(directory: Path) -> list[str]:
    """The command line of a pipeline's stage; nothing for a directory without a marker.

    Raises:
        InputError: The marker is not readable.
    """
    marker = directory / MARKER
    if not marker.is_file():
        return []
    made_by = f"delete {directory} to start afresh"
    saved = read_json(marker, what="stage marker", made_by=made_by)
    words = saved.get("command") if isinstance(saved, dict) else None
    return [str(word) for word in words] if isinstance(words, list) else []


def finished_files(run: str | Path, pattern: str) -> list[Path]:
    """Files of finished stages, in order of their names.

    Args:
        run: Directory of the stages.
        pattern: Glob of the files, relative to ``run``: the stage's directory, then the file.

    Raises:
        InputError: A stage's marker is not readable.
    """
    root = Path(run)
    paths = sorted(path for path in root.glob(pattern) if path.is_file())
    stages = {path.relative_to(root).parts[0] for path in paths}
    finished = {stage for stage in stages if is_finished(root / stage)}
    return [path for path in paths if path.relative_to(root).parts[0] in finished]


def stages_behind(stage: Path) -> list[Path]:
    """A pipeline's stage and all whose files it took, directly or through others.

    Args:
        stage: The stage's directory.

    Returns:
        Directories in order of their names; none if the stage has no marker.

    Raises:
        InputError: A stage's marker is not readable.
    """
    run = stage.parent
    waiting, found = [stage], set()
    while waiting:
        directory = waiting.pop()
        if directory in found or not (directory / MARKER).is_file():
            continue
        found.add(directory)
        made_by = f"delete {directory} to start afresh"
        saved = read_json(directory / MARKER, what="stage marker", made_by=made_by)
        # Files stand in its command line, and those that a pattern stands for among its inputs.
        names = re.split(r'[/"\\]', json.dumps(saved, ensure_ascii=False))
        waiting += [run / name for name in set(names) - {"", ".", ".."}]
    return sorted(found)
