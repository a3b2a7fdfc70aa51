"""Files that are written whole or not at all."""

import fcntl
import glob
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from artifacts.errors import InputError

# No file takes so many seconds to write: what is older was left by a process that was killed.
_ABANDONED_AFTER = 3600.0


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary name beside ``path``; on success it is renamed to ``path``.

    Args:
        path: Where the finished file goes. Its folder is made if missing.

    Yields:
        The path to write to. When the block raises, that file is removed and an earlier ``path``
        stays as it was.

    Raises:
        InputError: The folder or the file cannot be written.
    """
    path = Path(path)
    require_writable_directory(path.parent)
    _remove_abandoned(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        # mkstemp makes files private; finished results follow the user's umask like any other.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    """Removes what killed processes left of their attempts to write ``path``."""
    # Eight characters, as mkstemp makes them.
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.????????{path.suffix}"):
        with suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > _ABANDONED_AFTER:
                leftover.unlink()


def require_output(path: str | Path, *, inputs: Iterable[Path] = ()) -> Path:
    """Returns the path of a file to write if it has a name and is none of what is read.

    Args:
        path: The file to write.
        inputs: Files that must stay as they are.

    Raises:
        InputError: It is no name, or the file is an input.
    """
    if not Path(path).name.strip() or "\0" in str(path):
        raise InputError(f"output {str(path)!r} names no file; give the one to write")
    path = Path(path)
    if path.resolve() in {file.resolve() for file in inputs}:
        raise InputError(f"output {path} is a file that is read; choose another one")
    return path


@contextmanager
def exclusive(path: str | Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Lets one process at a time into what follows; the others wait until it ends, or is killed.

    Args:
        path: A file that stands for it; made if it is not there.
        waiting: Called once if somebody else is inside.

    Raises:
        InputError: The file's folder cannot be written.
    """
    require_writable_directory(Path(path).parent)
    with Path(path).open("ab") as file:
        told = False
        while not _locked(file):
            if not told:
                waiting()
            told = True
            time.sleep(0.5)
        yield


def _locked(file: IO[bytes]) -> bool:
    """Takes a file's lock, which ends with the file; False if another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A file system without locks: as if alone.
        return True
    return True


def require_writable_directory(
    directory: str | Path, *, option: str = "trainer.default_root_dir"
) -> Path:
    """Makes ``directory`` if missing and checks that files can be made in it.

    Args:
        directory: The directory.
        option: What chooses another one, for the message.

    Raises:
        InputError: It is a file, or cannot be made or written.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except (OSError, ValueError) as error:  # ValueError: a name with a null character.
        raise InputError(
            f"cannot write to the directory {directory}: {getattr(error, 'strerror', error)}; "
            f"choose another one (--{option}) or change its permissions"
        ) from error
    return directory


def require_file(path: str | Path, *, what: str, made_by: str) -> Path:
    """Returns ``path`` if it is a file.

    Args:
        path: The file looked for.
        what: Its role, for the message ("probe checkpoint").
        made_by: What makes such a file, for the message.

    Raises:
        InputError: There is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no {what} at {path}; {made_by}")
    return path


def sha256_of_file(path: str | Path) -> str:
    """The SHA-256 of a file's bytes, as 64 hex digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: str | Path, value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Writes ``value`` as indented JSON, whole or not at all."""
    text = json.dumps(value, indent=2, sort_keys=False, allow_nan=False) + "\n"
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def read_json(path: str | Path, *, what: str, made_by: str) -> Any:  # noqa: ANN401
    """Reads a JSON file.

    Raises:
        InputError: It is missing or not JSON.
    """
    path = require_file(path, what=what, made_by=made_by)
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a {what}: {error}; {made_by}") from error
