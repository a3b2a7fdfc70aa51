"""The attacked probe, from whatever file holds it."""

from pathlib import Path

import torch
from torch import Tensor

from artifacts.errors import InputError
from artifacts.weights import read_state_dict
from models.probe import Probe


def load_probe(path: str | Path) -> Probe:
    """Reads a probe without running code from the file.

    Args:
        path: A checkpoint of :class:`~lightning_modules.ProbeMLP`, or a safetensors or state-dict
            file of linear layers (with ``mean`` and ``std`` if inputs are standardised).

    Returns:
        The probe, frozen.

    Raises:
        InputError: The file is missing, unreadable, holds NaN, or is not a chain of linear layers.
    """
    state_dict = read_state_dict(
        path,
        what="probe checkpoint",
        made_by="`python main.py fit --config configs/quickstart/probe.yaml` makes one, and so "
        "does saving a model's state_dict() as safetensors",
    )
    try:
        probe = Probe.from_state_dict(state_dict)
    except ValueError as error:
        raise InputError(f"{path} is not a probe: {error}") from error
    return probe.requires_grad_(False)


def require_own_training_set(probe: Probe, path: str | Path, inputs: Tensor) -> None:
    """Checks by the probe's standardisation whether these data trained it. For evaluation only.

    Args:
        probe: The probe; without standardisation it does not tell.
        path: Its file, for the message.
        inputs: Training samples (n, D).

    Raises:
        InputError: Other data did.
    """
    mean, std = probe.mean, probe.std
    if bool((mean == 0).all()) and bool((std == 1).all()):
        return
    expected = Probe(inputs.shape[1], ()).to(inputs)
    expected.set_standardisation(inputs)
    close = torch.allclose(mean, expected.mean, rtol=1e-3, atol=1e-4)
    if not close or not torch.allclose(std, expected.std, rtol=1e-3, atol=1e-4):
        raise InputError(
            f"{path} was trained on other data: their mean and standard deviation "
            "are not those it stores; give --data the values of its training"
        )
