"""Handwritten digits of scikit-learn: 1,797 real 8×8 images that need no download."""

from typing import Literal

import torch

from artifacts.errors import InputError, require_seed
from datamodules.in_memory import Batch, InMemoryDataModule, balanced_sample


class DigitsDataModule(InMemoryDataModule):
    """Even (+1) against odd (-1) digits, or all ten, as flattened pixels in [0, 1].

    The training set is a balanced random sample; every other digit is in the test set.

    Args:
        num_train: Number of training images, a multiple of the number of labels.
        seed: Chooses the training images.
        task: ``"parity"`` has the labels +1 for even and -1 for odd digits, ``"digits"`` the
            labels 0 to 9.

    Raises:
        InputError: The task is unknown, the seed is out of range, or ``num_train`` cannot be split
            evenly over the labels or exceeds what there is.
    """

    image_shape = (1, 8, 8)

    def __init__(
        self, num_train: int = 50, seed: int = 0, task: Literal["parity", "digits"] = "parity"
    ) -> None:
        super().__init__()
        if task not in ("parity", "digits"):
            raise InputError(f"task must be 'parity' or 'digits', got '{task}'")
        require_seed(seed)
        self.task = task
        self.num_train = num_train
        self.seed = seed

    def load(self) -> tuple[Batch, Batch]:
        """Samples the training set; the rest is held out."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        inputs = torch.from_numpy(digits.data).float() / 16
        labels = torch.from_numpy(digits.target)
        if self.task == "parity":
            labels = 1 - 2 * (labels % 2)
        chosen = balanced_sample(labels, self.num_train, torch.Generator().manual_seed(self.seed))
        held_out = torch.ones(len(labels), dtype=torch.bool)
        held_out[chosen] = False
        return (inputs[chosen], labels[chosen]), (inputs[held_out], labels[held_out])
