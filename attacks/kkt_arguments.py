"""Refuses arguments of the KKT residual that do not belong together."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.probe_layers import Layers


def check_arguments(
    layers: Layers,
    candidates: Tensor,
    multipliers: Tensor,
    labels: Tensor,
    relu_alpha: Tensor,
    allow_linear: bool,
) -> None:
    """Raises a one-line ValueError for arguments that do not belong together."""
    if not layers or (len(layers) == 1 and not allow_linear):
        raise ValueError(
            "KKT reconstruction needs a probe with a hidden layer; this one has none"
            " (allow_linear=True runs it all the same)"
        )
    if candidates.ndim != 3 or not candidates.numel():
        raise ValueError(f"candidates must be (R, m, D), none of them 0: {_describe(candidates)}")
    # The tails of the slopes need an exponent range that float16 does not have.
    if candidates.dtype not in (torch.float32, torch.float64, torch.bfloat16):
        raise ValueError(f"candidates must be float32, float64 or bfloat16, not {candidates.dtype}")
    n_draws, m, width = candidates.shape
    for i, (weight, bias) in enumerate(layers):
        if weight.ndim != 2 or weight.shape[1] != width:
            raise ValueError(f"weight of layer {i} must be (out, {width}), got {_describe(weight)}")
        width = weight.shape[0]
        if bias is not None and bias.shape != (width,):
            raise ValueError(f"bias of layer {i} must be ({width},), got {_describe(bias)}")
    if multipliers.shape != (n_draws, m):
        raise ValueError(f"multipliers must be ({n_draws}, {m}), got {_describe(multipliers)}")
    if relu_alpha.shape != (n_draws,) or not relu_alpha.is_floating_point():
        raise ValueError(f"relu_alpha must be float ({n_draws},), got {_describe(relu_alpha)}")
    if labels.shape not in ((m,), (n_draws, m)):
        raise ValueError(f"labels must be ({m},) or ({n_draws}, {m}), got {_describe(labels)}")
    if labels.dtype == torch.bool or (width > 1 and labels.is_floating_point()):
        raise ValueError(
            f"labels must be -1 or +1 for one output, integer classes for several, got"
            f" {labels.dtype} for {width}"
        )
    parameters = [p for layer in layers for p in layer if p is not None]
    if any(t.dtype != candidates.dtype for t in (multipliers, *parameters)):
        found = sorted({str(t.dtype) for t in (candidates, multipliers, *parameters)})
        raise ValueError(f"candidates, multipliers and probe must share a type, got {found}")
    if any(t.device != candidates.device for t in (multipliers, labels, relu_alpha, *parameters)):
        raise ValueError(f"all arguments must be on the candidates' device, {candidates.device}")
    if labels.device.type == "cpu":
        check_labels(labels, width)


def _describe(tensor: Tensor) -> str:
    """Type and shape of a tensor for a message."""
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def check_labels(labels: Tensor, n_outputs: int) -> None:
    """Refuses labels that do not belong to a probe with this many outputs.

    `kkt_loss` does this by itself where it costs nothing, on the CPU. On a GPU reading the values
    would make every iteration wait: there, call this once before the first.

    Args:
        labels: Labels of any shape.
        n_outputs: Number of outputs ``C`` of the probe.

    Raises:
        ValueError: If the labels are not -1 and +1 (one output) or class indices (several).
    """
    if n_outputs == 1:
        if not bool((labels.abs() == 1).all()):
            raise ValueError("labels of a probe with one output must be -1 or +1")
    elif not bool(((labels >= 0) & (labels < n_outputs)).all()):
        raise ValueError(f"labels of a probe with {n_outputs} outputs must be 0 to {n_outputs - 1}")
