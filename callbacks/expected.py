"""Callbacks that go with some kinds of modules."""

import lightning as L

from artifacts.errors import InputError


def expect(module: L.LightningModule, callback: L.Callback, *kinds: type) -> None:
    """Checks that ``module`` is one of those that ``callback`` is for.

    Raises:
        InputError: It is another.
    """
    if not isinstance(module, kinds):
        raise InputError(
            f"callbacks.{type(callback).__name__} goes with "
            f"{' or '.join(kind.__name__ for kind in kinds)}, not with "
            f"{type(module).__name__}: take it out of trainer.callbacks"
        )
