"""Choice of the candidates worth inverting, without the training set."""

import lightning as L
from torch import Tensor


class RepresentativeSelection(L.LightningModule):
    """placeholder until attacks.representatives lands."""

    def __init__(self, top: int = 45) -> None:
        super().__init__()
        self.top = top

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Chooses."""
        raise AssertionError
