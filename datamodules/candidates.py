"""The candidates of a reconstruction run, as input of the selection."""

import lightning as L
from torch import Tensor
from torch.utils.data import DataLoader

from artifacts.tensors import CANDIDATES, read_tensors


class CandidatesDataModule(L.LightningDataModule):
    """All candidates of a run as one batch.

    Args:
        candidates: A ``candidates.safetensors`` file.
    """

    def __init__(self, candidates: str) -> None:
        super().__init__()
        self.candidates = candidates
        self._tensors: dict[str, Tensor] | None = None

    def setup(self, stage: str) -> None:
        """Reads and checks the file.

        Raises:
            InputError: It is missing or broken.
        """
        self._tensors, _ = read_tensors(self.candidates, CANDIDATES)

    def predict_dataloader(self) -> DataLoader[dict[str, Tensor]]:
        """One batch: the tensors of the file by name."""
        assert self._tensors is not None
        return DataLoader([self._tensors], batch_size=None)  # type: ignore[arg-type]
