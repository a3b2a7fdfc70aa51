"""The digits."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from artifacts.errors import InputError
from datamodules import DigitsDataModule
from datamodules.in_memory import balanced_sample


def test_training_set_is_balanced_and_not_in_the_test_set() -> None:
    data = DigitsDataModule(num_train=40, seed=5)
    inputs, labels = data.train_tensors
    held_out, held_out_labels = data.test_tensors
    assert int((labels == 1).sum()) == int((labels == -1).sum()) == 20
    assert len(inputs) + len(held_out) == 1797
    source = load_digits()
    pixels = np.sort(np.concatenate([inputs, held_out]).view("f4,f4").reshape(-1))
    expected = np.sort((source.data.astype("f4") / 16).view("f4,f4").reshape(-1))
    assert (pixels == expected).all()
    even = {
        tuple(row): 1 - 2 * (int(digit) % 2)
        for row, digit in zip(*load_digits(return_X_y=True), strict=True)
    }
    for row, label in zip((held_out * 16).tolist(), held_out_labels.tolist(), strict=True):
        assert even[tuple(row)] == label


def test_seed_chooses_the_training_set() -> None:
    first, same, other = (DigitsDataModule(20, seed).train_tensors[0] for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("size", "message"), [(3, "balanced"), (0, "balanced"), (9000, "asked")])
def test_impossible_samples_are_refused(size: int, message: str) -> None:
    labels = torch.tensor([1, -1]).repeat(50)
    with pytest.raises(InputError, match=message):
        balanced_sample(labels, size, torch.Generator())


def test_all_ten_digits_are_labels_from_0_to_9() -> None:
    data = DigitsDataModule(num_train=50, seed=3, task="digits")
    inputs, labels = data.train_tensors
    assert labels.dtype == torch.int64
    assert torch.bincount(labels).tolist() == [5] * 10
    held_out, held_out_labels = data.test_tensors
    digit = {
        tuple(row): int(target) for row, target in zip(*load_digits(return_X_y=True), strict=True)
    }
    for rows, targets in ((inputs, labels), (held_out, held_out_labels)):
        for row, target in zip((rows * 16).tolist(), targets.tolist(), strict=True):
            assert digit[tuple(row)] == target
    with pytest.raises(InputError, match="multiple of 10"):
        _ = DigitsDataModule(num_train=44, task="digits").train_tensors
    with pytest.raises(InputError, match="'parity' or 'digits'"):
        DigitsDataModule(task="even")  # type: ignore[arg-type]
