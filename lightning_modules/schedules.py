"""Learning rates over the course of a training, and what they apply to."""

import math
from collections.abc import Iterable
from typing import Any

import lightning as L
import torch
from torch import nn

from artifacts.errors import InputError


def warmup_cosine(step: int, warmup_steps: int, total_steps: int, floor: float = 0.0) -> float:
    """Factor on the learning rate: a linear rise from 0 to 1, then half a cosine to ``floor``.

    Args:
        step: Index of the optimiser's step.
        warmup_steps: Length of the rise.
        total_steps: Length of the training.
        floor: The last factor.
    """
    if step < warmup_steps:
        return step / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def parameter_groups(
    named: Iterable[tuple[str, nn.Parameter]], weight_decay: float
) -> list[dict[str, object]]:
    """Trainable parameters in two groups: biases, norms and other vectors do not decay."""
    trainable = [parameter for _, parameter in named if parameter.requires_grad]
    return [
        {"params": [p for p in trainable if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.dim() <= 1], "weight_decay": 0.0},
    ]


def scaled_learning_rate(trainer: L.Trainer, base: float) -> float:
    """``base`` × effective batch size / 256, with accumulation and all devices counted.

    Raises:
        InputError: The data module does not tell its batch size.
    """
    data: Any = getattr(trainer, "datamodule", None)
    if not hasattr(data, "batch_size"):
        raise InputError("the training needs a data module with a batch_size (--data)")
    batch_size: int = data.batch_size
    return base * batch_size * trainer.accumulate_grad_batches * trainer.world_size / 256


def adamw_with_warmup(
    module: L.LightningModule,
    *,
    learning_rate: float,
    weight_decay: float,
    warmup_epochs: float,
    betas: tuple[float, float],
) -> dict[str, object]:
    """AdamW with warm-up and cosine by the step, as ``configure_optimizers`` returns it.

    Args:
        module: Whose parameters; its trainer tells the number of steps.
        learning_rate: The peak.
        weight_decay: On matrices only.
        warmup_epochs: Length of the warm-up, in epochs.
        betas: AdamW's.

    Raises:
        InputError: The training is endless, or not longer than its warm-up.
    """
    trainer = module.trainer
    total = trainer.estimated_stepping_batches
    if not math.isfinite(total) or total < 1:
        raise InputError("set trainer.max_epochs (or max_steps): the schedule needs an end")
    accumulated = max(1, trainer.accumulate_grad_batches)
    warmup = round(warmup_epochs * math.ceil(trainer.num_training_batches / accumulated))
    if warmup >= total:
        raise InputError(
            f"model.warmup_epochs ({warmup_epochs:g}) must be fewer than the training's epochs; "
            "lower it, or raise trainer.max_epochs"
        )
    optimizer = torch.optim.AdamW(
        parameter_groups(module.named_parameters(), weight_decay),
        lr=learning_rate,
        betas=betas,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: warmup_cosine(step, warmup, int(total))
    )
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": schedule, "interval": "step", "name": "learning_rate"},
    }
