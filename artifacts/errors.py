"""The one exception that a user can mend, and what is refused in many places."""


class InputError(ValueError):
    """A mistake in what the user gave: the message says what is wrong, where, and what to do.

    ``main`` prints it as one line and exits with a non-zero code.

    Args:
        message: What the user reads.
    """

    def __init__(self, message: str) -> None:
        # From a DataLoader's worker, torch raises it anew with the worker's traceback before it.
        if message.startswith("Caught InputError in DataLoader worker"):
            message = message.rpartition("InputError: ")[2].strip()
        super().__init__(message)


def require_seed(seed: int) -> None:
    """Refuses a seed that not every generator of random numbers takes.

    Raises:
        InputError: It is out of range.
    """
    if not 0 <= seed < 2**63:
        raise InputError(f"seed must be from 0 to 2^63 - 1, got {seed}")
