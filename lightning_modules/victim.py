"""The attacked probe, from whatever file holds it."""

from pathlib import Path

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
