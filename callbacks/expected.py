"""Callbacks that go with one kind of module."""

from typing import TypeVar

import lightning as L

from artifacts.errors import InputError

Module = TypeVar("Module", bound=L.LightningModule)


def expect(module: L.LightningModule, kind: type[Module], callback: L.Callback) -> Module:
    """Returns ``module`` if it is what ``callback`` is for.

    Raises:
        InputError: It is another.
    """
    if not isinstance(module, kind):
        raise InputError(
            f"callbacks.{type(callback).__name__} goes with {kind.__name__}, not with "
            f"{type(module).__name__}: take it out of trainer.callbacks"
        )
    return module
