"""Files of pre-trained masked autoencoders, and of encoders that are released alone."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from artifacts.errors import InputError
from artifacts.tensors import package_version, write_safetensors
from artifacts.training_record import ENTRY, TrainingRecord
from artifacts.weights import read_checkpoint, state_dict_in

_KIND = "encoder"
_MADE_BY = (
    "known are the published MAE files, timm's vit_*.mae, transformers' ViTMAE, checkpoints of "
    "MAEPretraining, and encoder.safetensors of its run"
)


def write_encoder(
    path: str | Path,
    weights: dict[str, Tensor],
    *,
    num_heads: int,
    mean: Tensor,
    std: Tensor,
    training: TrainingRecord | None = None,
) -> None:
    """Writes an encoder alone, as its provider would release it: timm loads the file.

    Args:
        path: The safetensors file.
        weights: The encoder's state dict, in timm's names.
        num_heads: Its attention heads; shapes do not tell.
        mean: Mean (c,) that images are normalised with.
        std: Their standard deviation (c,).
        training: What is known of its training.

    Raises:
        InputError: The file cannot be written.
    """
    metadata = {
        "kind": _KIND,
        "package_version": package_version(),
        "num_heads": str(num_heads),
        "mean": json.dumps(mean.tolist()),
        "std": json.dumps(std.tolist()),
    }
    if training is not None:
        metadata[ENTRY] = json.dumps(training.as_dict())
    write_safetensors(path, weights, metadata)


def read_autoencoder(path: str | Path) -> tuple[dict[str, Tensor], TrainingRecord | None]:
    """Reads the tensors of an autoencoder or encoder by name, running no code from the file.

    With them comes what the file says about its training; files from elsewhere say nothing.

    What :func:`write_encoder` put into the header comes as the entries ``record``, ``mean`` and
    ``std``, which an autoencoder's own state dict has too.

    Raises:
        InputError: The file is missing, unreadable, or holds NaN.
    """
    content = read_checkpoint(path, what="masked autoencoder", made_by=_MADE_BY)
    weights = state_dict_in(content, path, "masked autoencoder", _MADE_BY)
    training = content.get(ENTRY)
    if Path(path).suffix == ".safetensors":
        try:
            with safe_open(str(path), framework="pt") as file:
                header = dict(file.metadata() or {})
            if header.get("kind") == _KIND:
                weights["record"] = torch.tensor([int(header["num_heads"]), 0, 0])
                training = header.get(ENTRY)
                for name in ("mean", "std"):
                    weights[name] = torch.tensor(json.loads(header[name]), dtype=torch.float32)
        # RuntimeError: a number that does not fit; RecursionError is one of them.
        except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{path} has a damaged header ({error}); {_MADE_BY}") from error
    return weights, TrainingRecord.parse(path, training)
