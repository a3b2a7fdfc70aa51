"""The baseline attack's formulas against closed forms and numerical optimisation."""

import pytest
import torch
from scipy.optimize import minimize_scalar

from attacks.activation_maximisation import activation_loss_and_grad, implied_multipliers
from attacks.margin_gradients import parameter_list
from attacks.probe_layers import probe_outputs
from tests.attacks.test_margin_gradients import SHAPES, jacobian, margin_by_definition, problem


def test_gradient_of_a_linear_probe_in_closed_form() -> None:
    layers, inputs, labels = problem([5, 1], False)
    weight = layers[0][0].detach()
    loss, gradient = activation_loss_and_grad([(weight, None)], inputs[None], labels)
    margin = labels * (inputs @ weight[0])
    torch.testing.assert_close(loss[0], torch.log1p((-margin).exp()).sum())
    torch.testing.assert_close(gradient[0], -(labels * torch.sigmoid(-margin))[:, None] * weight)


@pytest.mark.parametrize(("widths", "bias"), SHAPES)
def test_gradient_is_that_of_finite_differences(widths: list[int], bias: bool) -> None:
    layers, inputs, labels = problem(widths, bias)
    layers = [(w.detach(), None if b is None else b.detach()) for w, b in layers]
    draws = torch.stack([inputs, 0.3 * inputs.flip(0)])
    loss, gradient = activation_loss_and_grad(layers, draws, labels)
    direction = torch.randn(draws.shape, dtype=draws.dtype)
    step = 1e-6
    ahead, behind = (
        activation_loss_and_grad(layers, draws + sign * step * direction, labels)[0]
        for sign in (1, -1)
    )
    slope = (ahead - behind) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum((1, 2)), slope, rtol=1e-6, atol=1e-7)
    # Draws do not see each other, and the input is left alone.
    alone, _ = activation_loss_and_grad(layers, draws[1:], labels)
    torch.testing.assert_close(alone, loss[1:])
    assert not draws.requires_grad


@pytest.mark.parametrize(("widths", "bias"), SHAPES)
def test_multipliers_follow_the_loss_at_the_scale_that_explains_most(
    widths: list[int], bias: bool
) -> None:
    layers, inputs, labels = problem(widths, bias)
    outputs = probe_outputs(layers, inputs)
    rows = jacobian(layers, lambda: margin_by_definition(outputs, labels))
    theta = torch.cat([p.detach().flatten() for p in parameter_list(layers)])
    if widths[-1] == 1:
        weights = torch.sigmoid(-labels * outputs[:, 0]).detach()
    else:
        weights = 1 - outputs.softmax(1)[torch.arange(len(labels)), labels].detach()

    def distance(scale: float) -> float:
        return float((theta - scale * (weights @ rows)).norm() / theta.norm())

    best = minimize_scalar(distance, bounds=(0, 100), method="bounded", options={"xatol": 1e-10})
    with torch.no_grad():
        multipliers, residual = implied_multipliers(layers, inputs[None], labels)
    assert float(residual) == pytest.approx(min(best.fun, 1), abs=1e-7)
    torch.testing.assert_close(multipliers[0], best.x * weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e3, 1e6])
def test_judgement_stays_finite(scale: float) -> None:
    layers, inputs, labels = problem([5, 7, 1], False)
    layers = [(w.detach().float(), None) for w, _ in layers]
    multipliers, residual = implied_multipliers(layers, scale * inputs[None].float(), labels)
    assert bool(torch.isfinite(multipliers).all())
    assert 0 <= float(residual) <= 1 + 1e-6
