"""Lists image files, one folder a class, and turns what readers raise into one line."""

import os
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePath

import torch
from lightning.pytorch.utilities import rank_zero_warn

from artifacts.errors import InputError
from datamodules.image_files import EXTENSIONS
from datamodules.image_sets import ImageCollection, ImageFiles


def list_images(
    root: Path, folders: Mapping[str, bool], classes: list[str] | None = None
) -> ImageFiles:
    """Lists folders that have one subfolder a class, with images at any depth in it.

    Args:
        root: What file names are relative to.
        folders: By folder below ``root``, whether its images are held out.
        classes: Only images of these are listed; None for all.

    Returns:
        Images in sorted order; every class's name, in sorted order.

    Raises:
        InputError: A folder is missing or cannot be listed.
    """
    from torchvision.datasets.folder import make_dataset

    try:
        names = sorted(
            {
                entry.name
                for folder in folders
                for entry in (root / folder).iterdir()
                if entry.is_dir() and not entry.name.startswith(".")
            }
        )
        # Images without folders are of one class.
        names = names or ["."]
        index = {name: at for at, name in enumerate(names)}
        wanted = index if classes is None else {n: index[n] for n in classes if n in index}
        found = [
            (Path(file), target, is_held_out)
            for folder, is_held_out in folders.items()
            if wanted
            for file, target in make_dataset(
                str(root / folder), wanted, extensions=EXTENSIONS, allow_empty=True
            )
        ]
    except OSError as error:
        raise InputError(
            f"cannot list the images at {error.filename}: {error.strerror}; "
            "give the folder of the dataset as root"
        ) from error
    for file, _, _ in found:
        if not file.is_file():
            raise InputError(f"{file} is no regular file; remove it")
    # Such as macOS's ._IMG_0001.jpg, which is no image.
    found = [item for item in found if not item[0].name.startswith(".")]
    held_out = torch.tensor([item[2] for item in found], dtype=torch.bool)
    return ImageFiles(
        identifiers=[file.relative_to(root).as_posix() for file, _, _ in found],
        targets=torch.tensor([target for _, target, _ in found], dtype=torch.int64),
        classes=names,
        held_out=held_out if any(folders.values()) else None,
        root=root,
    )


def tell_left_out(images: ImageFiles, folders: list[str], classes: list[str] | None) -> None:
    """Warns of files that :func:`list_images` did not take and nobody asked to leave out.

    Args:
        images: What it took.
        folders: Where it looked, below the root.
        classes: Which classes were asked for.

    Raises:
        InputError: It took nothing, but there are files.
    """
    root, taken = images.root, set(images.identifiers)
    not_wanted = {
        root / folder / name
        for folder in folders
        for name in images.classes
        if classes is not None and name not in classes
    }
    left_out: list[str] = []
    for directory, inner, files in os.walk(root, followlinks=True):
        inner[:] = [
            name
            for name in inner
            if not name.startswith(".") and Path(directory, name) not in not_wanted
        ]
        names = (Path(directory, name) for name in files if not name.startswith("."))
        left_out += [str(path.relative_to(root).as_posix()) for path in names]
    left_out = sorted(set(left_out) - taken)
    if not left_out:
        return
    endings = Counter(PurePath(name).suffix.lower() or "without ending" for name in left_out)
    kinds = ", ".join(f"{count} {ending}" for ending, count in endings.most_common(5))
    message = (
        f"{len(left_out)} files at {root} ({kinds}), such as '{left_out[0]}', are in no class's "
        "folder, or of a kind that is not read (docs/datasets.md)"
    )
    is_missing = classes is not None and not set(classes) & set(images.classes)
    if not taken and (not is_missing or images.classes == ["."]):
        raise InputError(f"there are no images to take: {message}; move or convert them")
    rank_zero_warn(f"left out: {message}")


def require_distinct(images: ImageCollection, where: str) -> None:
    """Checks that no image is there twice: one could be trained on and held out.

    Args:
        images: The collection.
        where: Which one, for the message.

    Raises:
        InputError: Two entries are one image, or a name cannot be written into a split.
    """
    real_folder = cache(os.path.realpath)
    seen: dict[str, str] = {}
    for name in images.identifiers:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{where}: the name {name!r} is not UTF-8; rename it") from error
        image = name
        if isinstance(images, ImageFiles):
            path = images.root / name
            # Resolving each file by itself would take minutes for a million of them.
            image = os.path.realpath(path) if path.is_symlink() else ""
            image = image or f"{real_folder(path.parent)}/{path.name}"
        if image in seen:
            raise InputError(
                f"{where}: '{seen[image]}' is there twice, also as '{name}', and could be trained "
                "on and held out; remove one of the two (a link, or a line of a list)"
            )
        seen[image] = name


def find_folder(root: Path, name: str, marker: str) -> Path:
    """``root`` itself if it has the file or folder ``marker``, else ``root/name``."""
    return root if (root / marker).exists() else root / name


@contextmanager
def reading(name: str, root: Path, layout: str) -> Iterator[None]:
    """Turns what torchvision raises about files that are missing or damaged into one line.

    Raises:
        InputError: Instead of it.
    """
    try:
        yield
    except InputError:
        raise
    except (
        AttributeError,
        EOFError,
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise InputError(
            f"no complete '{name}' at {root}, expected {layout}; give its folder as root, or "
            f"download it (--data.download=true): {_reason(error)}"
        ) from error


@contextmanager
def downloading(name: str, root: Path) -> Iterator[None]:
    """Turns what goes wrong in a download into one line.

    Raises:
        InputError: Instead of it.
    """
    try:
        yield
    except (
        OSError,
        RuntimeError,
        ValueError,
        EOFError,
        tarfile.TarError,
        zipfile.BadZipFile,
    ) as error:
        raise InputError(
            f"cannot download '{name}' to {root}: {_reason(error)}; "
            "get it on another machine and give its folder as root"
        ) from error


def download_archive(name: str, root: Path, url: str, md5: str, folder: Path) -> None:
    """Downloads an archive into ``root``, checks it and unpacks it into ``folder``.

    Raises:
        InputError: That cannot be done.
    """
    from torchvision.datasets.utils import download_and_extract_archive

    with downloading(name, root):
        download_and_extract_archive(url, str(root), str(folder), md5=md5)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
