"""Embeddings on disk, in chunks that are each written whole."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from artifacts.errors import InputError
from artifacts.files import write_json
from artifacts.tensors import EMBEDDINGS, read_tensors, write_tensors

# Images in a file. A stopped run loses at most the chunk that it was computing.
CHUNK_SIZE = 256


class EmbeddingCache:
    """Embeddings of one sequence of images.

    They are in ``root/KEY``, a file for every ``CHUNK_SIZE`` images, and there is no other record
    of what is done: the cache is whole when every chunk is there, so one that was left by a
    stopped run is continued and never taken for whole. Processes may fill it together.

    Args:
        root: Folder of all caches.
        facts: Everything that the embeddings depend on. Its hash is the key.
        size: Number of images N.
    """

    def __init__(self, root: str | Path, facts: Mapping[str, str], size: int) -> None:
        self.facts = {**facts, "chunk_size": str(CHUNK_SIZE)}
        text = json.dumps(self.facts, sort_keys=True)
        self.directory = Path(root) / hashlib.sha256(text.encode()).hexdigest()[:32]
        self.size = size

    def chunks(self) -> list[range]:
        """Positions of the images of each chunk."""
        starts = range(0, self.size, CHUNK_SIZE)
        return [range(start, min(start + CHUNK_SIZE, self.size)) for start in starts]

    def _file(self, chunk: range) -> Path:
        return self.directory / f"{chunk.start // CHUNK_SIZE:06d}.safetensors"

    def has(self, chunk: range) -> bool:
        """Whether a chunk is done."""
        return self._file(chunk).is_file()

    def write(self, chunk: range, embeddings: Tensor) -> None:
        """Writes the embeddings (len(chunk), D) of a chunk, whole or not at all.

        Raises:
            InputError: They hold NaN or infinity, or the file cannot be written.
        """
        description = self.directory / "description.json"
        if not description.is_file():
            write_json(description, self.facts)
        write_tensors(self._file(chunk), EMBEDDINGS, {"embeddings": embeddings}, self.facts)

    def read(self) -> Tensor:
        """All embeddings (N, D).

        Raises:
            InputError: A chunk is missing, damaged or of other embeddings.
        """
        return torch.cat(list(self._parts()))

    def _parts(self) -> Iterator[Tensor]:
        width = None
        for chunk in self.chunks():
            path = self._file(chunk)
            tensors, facts = read_tensors(path, EMBEDDINGS)
            embeddings = tensors["embeddings"]
            width = width or embeddings.shape[1:]
            expected = (len(chunk), *width)
            if embeddings.shape != expected or not self.facts.items() <= facts.items():
                raise InputError(
                    f"{path} does not hold the embeddings of these images; delete "
                    f"{self.directory} to compute them again"
                )
            yield embeddings
