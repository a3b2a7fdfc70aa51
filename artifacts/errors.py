"""The one exception that a user can mend."""


class InputError(ValueError):
    """A mistake in what the user gave: the message says what is wrong, where, and what to do.

    ``main`` prints it as one line and exits with a non-zero code.
    """
