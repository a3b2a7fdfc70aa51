"""What a search asks of the machine: memory, and the precision of its products."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from artifacts.errors import InputError

MatmulPrecision = Literal["highest", "high", "medium"]


def require_memory_for(numbers: int, copies: int) -> None:
    """Refuses a search that this machine could never hold.

    Args:
        numbers: How many are searched for, of 4 bytes each.
        copies: How often they are held at the same time.

    Raises:
        InputError: They need more than all memory.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = 4 * numbers * copies
    if needed > memory:
        raise InputError(
            f"the candidates need {needed / 2**30:.3g} GiB, this machine has "
            f"{memory / 2**30:.3g}; lower model.num_draws or model.num_candidates, or split the "
            "draws over several machines (model.part)"
        )


@contextmanager
def matmul_precision(precision: MatmulPrecision) -> Iterator[None]:
    """Sets the precision of float32 matrix products, and puts the old one back."""
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)
