"""Which images play which part in a membership attack, as JSON."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from artifacts.errors import InputError
from artifacts.files import read_json, write_json
from artifacts.tensors import SCHEMA_VERSION, package_version

KIND = "membership splits"
MADE_BY = "the stage that trains the target writes one as membership_splits.json"


@dataclass(frozen=True)
class Part:
    """The images of one part.

    Attributes:
        dataset: Name of the dataset.
        source: Which of the data module's sources holds it: ``source``, ``shadow_source`` or
            ``members``.
        identifiers: File names relative to the dataset's root, or such as ``"test/7"``.
        labels: Class of each.
    """

    dataset: str
    source: str
    identifiers: list[str]
    labels: list[int]


def write_membership_splits(path: str | Path, parts: dict[str, Part], seed: int) -> None:
    """Writes the parts by name, whole or not at all.

    Raises:
        InputError: Two parts share an image, or the file cannot be written.
    """
    require_disjoint(str(path), parts)
    header = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "package_version": package_version(),
        "seed": seed,
    }
    write_json(path, header | {"parts": {name: asdict(part) for name, part in parts.items()}})


def read_membership_splits(path: str | Path) -> dict[str, Part]:
    """Reads what :func:`write_membership_splits` wrote.

    Raises:
        InputError: The file is missing, not such a file, or an image is in two parts or twice.
    """
    content = read_json(path, what=f"{KIND} file", made_by=MADE_BY)
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise InputError(f"{path} does not hold {KIND}; {MADE_BY}")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {content.get('schema_version')}, this package reads "
            f"version {SCHEMA_VERSION}; {MADE_BY}"
        )
    entries = content.get("parts")
    if not isinstance(entries, dict) or not entries:
        raise InputError(f"{path} has no parts; {MADE_BY}")
    parts = {str(name): _part(path, str(name), entry) for name, entry in entries.items()}
    require_disjoint(str(path), parts)
    return parts


def require_disjoint(where: str, parts: dict[str, Part]) -> None:
    """Checks that no image has two parts, or one part twice.

    Raises:
        InputError: One line naming the image and its parts.
    """
    owner: dict[tuple[str, str], str] = {}
    for name, part in parts.items():
        for identifier in part.identifiers:
            other = owner.setdefault((part.source, identifier), name)
            if other != name:
                raise InputError(
                    f"{where}: the image '{identifier}' is in '{other}' and in '{name}'; an image "
                    "must have one part only, or the attack would be judged on what it knows"
                )
        if len(set(part.identifiers)) != len(part.identifiers):
            raise InputError(f"{where}: '{name}' has an image twice")


def _part(path: str | Path, name: str, entry: Any) -> Part:  # noqa: ANN401 - any JSON value
    entry = entry if isinstance(entry, dict) else {}
    identifiers, labels = entry.get("identifiers"), entry.get("labels")
    texts = (entry.get("dataset"), entry.get("source"))
    if (
        not isinstance(identifiers, list)
        or not isinstance(labels, list)
        or len(identifiers) != len(labels)
        or not all(isinstance(text, str) for text in (*texts, *identifiers))
        or not all(type(label) is int and -1 <= label < 2**63 for label in labels)
    ):
        raise InputError(
            f"{path}: '{name}' needs 'dataset', 'source', and as many 'identifiers' (strings) as "
            f"'labels' (-1 and 1, or classes from 0); {MADE_BY}"
        )
    if not identifiers:
        raise InputError(f"{path}: '{name}' has no images; {MADE_BY}")
    return Part(str(texts[0]), str(texts[1]), identifiers, labels)
