"""Progress of long work within one step of the trainer."""

import time
from collections.abc import Callable

from lightning.pytorch.utilities import rank_zero_info

# Work that ends sooner says nothing, and longer work speaks no more often.
SECONDS = 5.0


def announced(what: str) -> Callable[[int, int], None]:
    """A function to call with the steps done and the steps in all, which says so now and then.

    Args:
        what: What is done, the beginning of the line.
    """
    said = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said > SECONDS:
            said = now
            rank_zero_info(f"{what}: {done / total:.0%}")

    return progress
