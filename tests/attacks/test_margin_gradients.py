"""Factored gradients against autograd in double precision."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from attacks.margin_gradients import (
    gradient_factors,
    gram_matrix,
    log_loss_weights,
    loss_directions,
    margin_directions,
    margins,
    parameter_list,
    sample_losses,
    weighted_gradient,
)
from attacks.probe_layers import Layers, probe_outputs

SHAPES = [
    pytest.param(widths, bias, id=f"{'-'.join(map(str, widths))}-{bias}")
    for widths in ([5, 1], [5, 4], [5, 7, 1], [5, 7, 3], [5, 6, 7, 1], [5, 6, 7, 4])
    for bias in (False, True)
]


def problem(widths: list[int], bias: bool, n: int = 9) -> tuple[Layers, Tensor, Tensor]:
    """A random probe in float64 with inputs and labels."""
    generator = torch.Generator().manual_seed(len(widths) + bias)

    def randn(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).requires_grad_()

    layers = [
        (randn(after, before), randn(after) if bias else None) for before, after in pairwise(widths)
    ]
    inputs = randn(n, widths[0]).detach()
    classes = widths[-1]
    labels = torch.arange(n) % max(classes, 2)
    return layers, inputs, 1 - 2 * labels if classes == 1 else labels


def margin_by_definition(outputs: Tensor, labels: Tensor) -> Tensor:
    if outputs.shape[1] == 1:
        return labels * outputs[:, 0]
    rows = []
    for row, label in zip(outputs, labels.tolist(), strict=True):
        rows.append(row[label] - max(v for j, v in enumerate(row) if j != label))
    return torch.stack(rows)


def jacobian(layers: Layers, function: Callable[[], Tensor]) -> Tensor:
    """Gradient of each entry of a vector in all parameters, (n, p)."""
    rows = []
    for value in function():
        gradients = torch.autograd.grad(value, parameter_list(layers), retain_graph=True)
        rows.append(torch.cat([g.flatten() for g in gradients]))
    return torch.stack(rows)


@pytest.mark.parametrize(("widths", "bias"), SHAPES)
def test_gradients_are_those_of_autograd(widths: list[int], bias: bool) -> None:
    layers, inputs, labels = problem(widths, bias)
    expected = jacobian(layers, lambda: margin_by_definition(probe_outputs(layers, inputs), labels))
    outputs = probe_outputs(layers, inputs)
    torch.testing.assert_close(margins(outputs, labels), margin_by_definition(outputs, labels))
    factors = gradient_factors(layers, inputs, margin_directions(outputs, labels))
    multipliers = torch.rand(len(inputs), dtype=torch.float64)
    sums = weighted_gradient(layers, factors, multipliers)
    torch.testing.assert_close(torch.cat([s.flatten() for s in sums]), multipliers @ expected)
    gram, projection = gram_matrix(layers, factors)
    theta = torch.cat([p.flatten() for p in parameter_list(layers)])
    torch.testing.assert_close(gram, expected @ expected.T)
    torch.testing.assert_close(projection, expected @ theta)


@pytest.mark.parametrize(("widths", "bias"), SHAPES)
def test_weights_and_directions_are_the_derivative_of_the_loss(
    widths: list[int], bias: bool
) -> None:
    layers, inputs, labels = problem(widths, bias)
    outputs = probe_outputs(layers, inputs).detach().requires_grad_()
    if widths[-1] == 1:
        targets = (labels.double() + 1) / 2
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            outputs[:, 0], targets, reduction="none"
        )
    else:
        losses = torch.nn.functional.cross_entropy(outputs, labels, reduction="none")
    torch.testing.assert_close(sample_losses(layers, inputs, labels), losses)
    (gradient,) = torch.autograd.grad(losses.sum(), outputs)
    weights = log_loss_weights(outputs, labels).exp()
    torch.testing.assert_close(weights[:, None] * loss_directions(outputs, labels), -gradient)


def test_draws_may_lead() -> None:
    layers, inputs, labels = problem([5, 7, 3], True)
    draws = torch.stack([inputs, inputs.flip(0)])
    outputs = probe_outputs(layers, draws)
    for function in (log_loss_weights, loss_directions, margin_directions, margins):
        both = function(outputs, labels)
        for index in range(2):
            torch.testing.assert_close(both[index], function(outputs[index], labels))
    losses = sample_losses(layers, draws, labels)
    torch.testing.assert_close(losses[1], sample_losses(layers, draws[1], labels))


@pytest.mark.parametrize("classes", [1, 3])
def test_confident_outputs_keep_their_weights_apart(classes: int) -> None:
    outputs = torch.tensor([[500.0, 0, -1], [1000.0, 0, -1]], dtype=torch.float32)[:, :classes]
    labels = torch.tensor([1, 1] if classes == 1 else [0, 0])
    logs = log_loss_weights(outputs, labels)
    torch.testing.assert_close(logs[0] - logs[1], torch.tensor(500.0))
