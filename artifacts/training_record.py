"""What a file of weights says about its training: on which images, under which masks."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from artifacts.errors import InputError

# Entry of a checkpoint, and of an encoder's header.
ENTRY = "training_record"


@dataclass(frozen=True)
class TrainingRecord:
    """How a masked autoencoder came about.

    Attributes:
        kind: ``"autoencoder"`` was trained whole; of a ``"decoder"`` the encoder stayed as it was.
        mask_ratio: Share of patches that were removed.
        part: Part of a membership split that it was trained on; empty if on none.
        images: :func:`digest_of_images` of that part.
        encoder: Of a decoder: the record of the frozen encoder; None if its file has none.
    """

    kind: Literal["autoencoder", "decoder"]
    mask_ratio: float
    part: str
    images: str
    encoder: "TrainingRecord | None" = None

    @property
    def of_encoder(self) -> "TrainingRecord | None":
        """What is known of the encoder's own training."""
        return self if self.kind == "autoencoder" else self.encoder

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they are stored."""
        return asdict(self)

    @classmethod
    def parse(cls, path: str | Path, stored: object) -> "TrainingRecord | None":
        """Reads what :meth:`as_dict` gave, or its JSON; None if nothing was stored.

        Raises:
            InputError: It is something else.
        """
        if stored is None:
            return None
        try:
            content: Any = json.loads(stored) if isinstance(stored, str) else stored
            kind, part, images = (str(content[name]) for name in ("kind", "part", "images"))
            if kind not in ("autoencoder", "decoder"):
                raise ValueError(f"its kind is '{kind}'")
            ratio = float(content["mask_ratio"])
            return cls(kind, ratio, part, images, cls.parse(path, content["encoder"]))  # type: ignore[arg-type]
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise InputError(f"{path} has a damaged {ENTRY} ({error}); make it anew") from error


def digest_of_images(contents: Iterable[bytes]) -> str:
    """SHA-256 of which images these are, by digests of their contents, whatever their order."""
    return hashlib.sha256(b"".join(sorted(contents))).hexdigest()
