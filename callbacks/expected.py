"""Callbacks that go with one kind of module."""

import lightning as L

from artifacts.errors import InputError


def expect(module: L.LightningModule, kind: type, callback: L.Callback) -> None:
    """Checks that ``module`` is what ``callback`` is for.

    Raises:
        InputError: It is another.
    """
    if not isinstance(module, kind):
        raise InputError(
            f"callbacks.{type(callback).__name__} goes with {kind.__name__}, not with "
            f"{type(module).__name__}: take it out of trainer.callbacks"
        )
