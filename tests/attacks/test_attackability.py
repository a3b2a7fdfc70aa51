"""Facts about a probe and its training data, each from an independent source."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from attacks.attackability import (
    Attackability,
    best_multipliers,
    equations_per_unknown,
    measure_attackability,
    unexplained,
)
from attacks.margin_gradients import (
    gradient_factors,
    margin_directions,
    parameter_list,
    sample_losses,
)
from attacks.probe_layers import Layers, probe_outputs
from tests.attacks.test_margin_gradients import jacobian, margin_by_definition, problem

SHAPES = [([5, 7, 1], False), ([5, 7, 1], True), ([5, 6, 7, 1], False), ([5, 7, 4], True)]


@pytest.mark.parametrize(("widths", "bias"), SHAPES)
@pytest.mark.parametrize("weight_decay", [0.08, 0.5])
def test_gradient_and_residual_are_those_of_the_regularised_loss(
    widths: list[int], bias: bool, weight_decay: float
) -> None:
    layers, inputs, labels = problem(widths, bias)
    parameters = parameter_list(layers)
    squares = torch.stack([p.square().sum() for p in parameters]).sum()
    theta_norm = float(squares.detach().sqrt())
    loss = sample_losses(layers, inputs, labels).mean() + weight_decay / 2 * squares
    gradients = torch.autograd.grad(loss, parameters)
    norm = float(torch.cat([g.flatten() for g in gradients]).norm())
    facts = measure_attackability(layers, inputs, labels, weight_decay)
    assert facts.gradient_norm == pytest.approx(norm, rel=1e-10)
    # The residual with the loss's own multipliers is this gradient, in units of wd theta.
    expected = norm / (weight_decay * theta_norm)
    assert facts.residual_stationary == pytest.approx(expected, rel=1e-10)
    if widths[-1] == 1:
        assert facts.residual_natural == pytest.approx(facts.residual_stationary, rel=1e-12)
    assert facts.residual_natural is not None
    assert facts.residual_best <= min(1, facts.residual_natural) + 1e-12


@pytest.mark.parametrize(("widths", "bias"), SHAPES)
@pytest.mark.parametrize("n", [3, 40])
def test_best_multipliers_are_those_of_nnls_on_the_whole_jacobian(
    widths: list[int], bias: bool, n: int
) -> None:
    layers, inputs, labels = problem(widths, bias, n)
    outputs = probe_outputs(layers, inputs)
    factors = gradient_factors(layers, inputs, margin_directions(outputs, labels))
    detached = [(w.detach(), None if b is None else b.detach()) for w, b in layers]
    factors = [(q.detach(), a.detach()) for q, a in factors]
    columns = jacobian(layers, lambda: margin_by_definition(outputs, labels)).numpy().T
    theta = np.concatenate([p.detach().flatten().numpy() for p in parameter_list(layers)])
    multipliers = best_multipliers(detached, factors)
    assert bool((multipliers >= 0).all())
    residual = unexplained(detached, factors, multipliers)
    _, distance = nnls(columns, theta)
    assert residual == pytest.approx(distance / np.linalg.norm(theta), rel=1e-7, abs=1e-9)
    # Optimality: no multiplier would do better larger, and smaller only if it is 0 already.
    gain = columns.T @ (theta - columns @ multipliers.numpy()) / np.linalg.norm(theta)
    assert gain.max() < 1e-5
    assert np.abs(gain * multipliers.numpy()).max() < 1e-5


def planted() -> tuple[Layers, Tensor, Tensor, Tensor]:
    """A linear probe that is exactly the weighted sum of its data."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(6, 20, generator=generator, dtype=torch.float64)
    labels = torch.tensor([1, -1, 1, -1, 1, -1])
    multipliers = torch.rand(6, generator=generator, dtype=torch.float64)
    return [((multipliers * labels) @ inputs[None], None)], inputs, labels, multipliers


def test_planted_multipliers_are_found() -> None:
    layers, inputs, labels, planted_multipliers = planted()
    factors = gradient_factors(layers, inputs, labels[:, None].double())
    torch.testing.assert_close(best_multipliers(layers, factors), planted_multipliers)
    assert unexplained(layers, factors, planted_multipliers) < 1e-14


def test_a_probe_trained_to_the_end_is_stationary() -> None:
    """Logistic regression with decay has one optimum; scikit-learn finds it."""
    from sklearn.linear_model import LogisticRegression

    _, inputs, labels, _ = planted()
    wd = 0.1
    model = LogisticRegression(C=1 / (wd * len(labels)), fit_intercept=False, tol=1e-12)
    model.fit(inputs.numpy(), labels.numpy())
    layers = [(torch.from_numpy(model.coef_), None)]
    facts = measure_attackability(layers, inputs, labels, wd)
    assert facts.gradient_norm < 1e-6
    assert facts.residual_natural is not None
    assert max(facts.residual_natural, facts.residual_best) < 1e-5
    other = measure_attackability(layers, inputs, labels, 2 * wd)
    assert other.residual_natural == pytest.approx(0.5, rel=1e-4)


def test_facts_of_a_first_layer_with_a_span() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, 30, generator=generator)
    weight = torch.randn(50, 8, generator=generator) @ inputs
    weight += 1e-4 * torch.randn(50, 30, generator=generator)
    layers = [(weight, None), (torch.randn(1, 50, generator=generator), None)]
    facts = measure_attackability(layers, inputs, 1 - 2 * (torch.arange(8) % 2), 0.0)
    assert facts.first_layer_rank == 8
    values = np.linalg.svd(weight.numpy(), compute_uv=False)
    assert facts.first_layer_cliff == pytest.approx(values[7] / values[8], rel=1e-2)
    assert facts.residual_natural is None
    assert facts.residual_stationary is None
    assert (facts.num_train, facts.parameters, facts.hidden_layers) == (8, 1550, 1)


def test_equations_per_unknown_is_that_of_the_paper() -> None:
    def layers(width: int) -> Layers:
        return [(torch.zeros(width, 768), torch.zeros(width)), (torch.zeros(1, width), None)]

    # p / (n (d + 1)) with p = (768 + 1) W + W.
    assert equations_per_unknown(layers(500), 100) == pytest.approx(770 * 500 / (100 * 769))


GOOD = Attackability(
    num_train=40,
    parameters=32500,
    hidden_layers=1,
    train_accuracy=1.0,
    smallest_margin=1.0,
    gradient_norm=0.03,
    equations_per_unknown=12.5,
    residual_stationary=0.16,
    residual_natural=0.16,
    residual_best=0.15,
    first_layer_rank=38,
    first_layer_cliff=2.2,
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_layers": 0}, "needs a hidden layer"),
        ({"equations_per_unknown": 0.5}, "0.5 equations an unknown"),
        ({"train_accuracy": 0.975}, "0.975"),
        ({"residual_natural": None, "residual_stationary": None}, "no weight decay"),
        ({"residual_best": 0.8, "residual_stationary": 0.8}, "leave 0.80 of the weights"),
        ({"residual_best": 0.6, "residual_stationary": 0.1}, "as the loss has it, 0.10"),
    ],
)
def test_obstacles_are_named(changes: dict[str, float], message: str) -> None:
    assert GOOD.obstacles() == []
    (line,) = replace(GOOD, **changes).obstacles()  # type: ignore[arg-type]
    assert message in line
