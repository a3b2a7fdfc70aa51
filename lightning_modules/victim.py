"""The attacked model, probe or autoencoder, from whatever file holds it."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from artifacts.encoders import read_autoencoder
from artifacts.errors import InputError
from artifacts.weights import read_state_dict
from models.mae_weights import DecoderSize, PretrainedAutoencoder, autoencoder_from_state_dict
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


def load_autoencoder(
    path: str | Path,
    *,
    image_size: int | None = None,
    num_heads: int | None = None,
    norm_pix_loss: bool | None = None,
    decoder: DecoderSize | None = None,
) -> PretrainedAutoencoder:
    """Reads a masked autoencoder, or its encoder alone, without running code from the file.

    Args:
        path: A published MAE file, timm's ``vit_*.mae``, transformers' ``ViTMAE``, a checkpoint of
            :class:`~lightning_modules.MAEPretraining`, or the ``encoder.safetensors`` of its run.
        image_size: See :func:`~models.mae_weights.autoencoder_from_state_dict`, as the others.
        num_heads: Attention heads of the encoder, if the file does not tell.
        norm_pix_loss: Whether the decoder predicts normalised pixels, if the file does not tell.
        decoder: Take a fresh decoder of this size, whatever the file holds.

    Raises:
        InputError: The file is missing, unreadable, holds NaN, or is of something else.
    """
    weights, training = read_autoencoder(path)
    try:
        loaded = autoencoder_from_state_dict(
            weights,
            image_size=image_size,
            num_heads=num_heads,
            norm_pix_loss=norm_pix_loss,
            decoder=decoder,
        )
    except ValueError as error:
        raise InputError(f"{path} cannot be taken as a masked autoencoder: {error}") from error
    return replace(loaded, training=training)


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
