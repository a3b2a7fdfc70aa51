"""Is a probe attackable? What its weights and its *true* training data say about that.

This is evaluation, not attack: it needs the training set. It asks how far the probe is from the
stationary point that the attack solves for (Reconstructing Training Data From Real-World Models
Trained with Transfer Learning, Sec. 3.1, B.6), and whether there are enough equations (A.4).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attacks.margin_gradients import (
    Factors,
    gradient_factors,
    gram_matrix,
    log_loss_weights,
    loss_directions,
    margin_directions,
    margins,
    parameter_list,
    weighted_gradient,
)
from attacks.probe_layers import Layers, parameter_norm, probe_outputs
from attacks.row_space import row_space

# Share of the weights that the true data leave unexplained, above which little is to be expected.
# Measured on digits (n = 40, W = 500) along training and over weight decays: up to 0.2 more than
# half of the samples were recovered, near 0.5 a tenth, from 0.7 none.
RESIDUAL_LIMIT = 0.5


@dataclass(frozen=True)
class Attackability:
    """Facts about a probe and the data that trained it.

    Attributes:
        num_train: Training samples n.
        parameters: Parameters p of the probe.
        hidden_layers: Number of hidden layers.
        train_accuracy: Share of correct predictions; the theory assumes 1.
        smallest_margin: Least distance from the decision boundary.
        gradient_norm: Norm of the gradient of loss + (wd / 2)·‖θ‖²; 0 at a stationary point.
        equations_per_unknown: p / (n (D + 1)) (A.4).
        residual_stationary: ‖θ - Σ‖ / ‖θ‖ with the multipliers that the loss implies, and for
            several classes all rivals weighed as the loss does. None without weight decay.
        residual_natural: The same with the strongest rival alone, as the attack has it (B.5); the
            same number for one output.
        residual_best: The same with the best non-negative multipliers there are.
        first_layer_rank: Dimension of the span of the training data that the first layer's
            singular values show to an attacker; None if they show none.
        first_layer_cliff: Ratio of the last singular value of that span and the first beyond it;
            None without a span.
    """

    num_train: int
    parameters: int
    hidden_layers: int
    train_accuracy: float
    smallest_margin: float
    gradient_norm: float
    equations_per_unknown: float
    residual_stationary: float | None
    residual_natural: float | None
    residual_best: float
    first_layer_rank: int | None
    first_layer_cliff: float | None

    def obstacles(self) -> list[str]:
        """What stands in the way of the attack, a line each; empty if nothing does."""
        found = []
        if self.hidden_layers == 0:
            found.append("a linear probe has too few parameters: the method needs a hidden layer")
        if self.equations_per_unknown < 1:
            found.append(
                f"{self.equations_per_unknown:.2g} equations an unknown: fewer parameters than "
                "numbers in the training set"
            )
        if self.train_accuracy < 1:
            found.append(f"training accuracy {self.train_accuracy:.3f}: the data are not fitted")
        if self.residual_natural is None:
            found.append("no weight decay: training does not end where the attack looks")
        if self.residual_best > RESIDUAL_LIMIT:
            line = f"the true data leave {self.residual_best:.2f} of the weights unexplained"
            if self.residual_stationary is not None and self.residual_stationary <= RESIDUAL_LIMIT:
                line += (
                    f" with the strongest rival class alone, as the attack has it (B.5); with all "
                    f"rivals, as the loss has it, {self.residual_stationary:.2f}"
                )
            found.append(line)
        return found


def measure_attackability(
    layers: Layers, inputs: Tensor, labels: Tensor, weight_decay: float
) -> Attackability:
    """Compares a probe with the data that trained it, in double precision.

    Args:
        layers: The probe, first layer to last.
        inputs: Its standardised training inputs ``(n, D)``.
        labels: ``(n,)``; -1 and +1 for one output, class indices for several.
        weight_decay: Coefficient wd of (wd / 2)·‖θ‖² in the loss.

    Returns:
        The facts.
    """
    layers = [
        (w.detach().cpu().double(), None if b is None else b.detach().cpu().double())
        for w, b in layers
    ]
    inputs, labels = inputs.detach().cpu().double(), labels.cpu()
    outputs = probe_outputs(layers, inputs)
    margin = margins(outputs, labels)
    factors = gradient_factors(layers, inputs, margin_directions(outputs, labels))
    by_loss = gradient_factors(layers, inputs, loss_directions(outputs, labels))
    pulls = log_loss_weights(outputs, labels).exp() / len(inputs)
    first = layers[0][0]
    span = row_space(first)

    def residual(factors: Factors) -> float | None:
        if weight_decay == 0:
            return None
        return unexplained(layers, factors, pulls / weight_decay)

    return Attackability(
        num_train=len(inputs),
        parameters=sum(p.numel() for p in parameter_list(layers)),
        hidden_layers=len(layers) - 1,
        train_accuracy=float((margin > 0).double().mean()),
        smallest_margin=float(margin.min()),
        gradient_norm=regularised_gradient_norm(layers, by_loss, pulls, weight_decay),
        equations_per_unknown=equations_per_unknown(layers, len(inputs)),
        residual_stationary=residual(by_loss),
        residual_natural=residual(factors),
        residual_best=unexplained(layers, factors, best_multipliers(layers, factors)),
        first_layer_rank=None if span is None else len(span),
        first_layer_cliff=None if span is None else _cliff(torch.linalg.svdvals(first), len(span)),
    )


def unexplained(layers: Layers, factors: Factors, multipliers: Tensor) -> float:
    """Relative KKT residual of given data with given multipliers.

    Args:
        layers: The probe, first layer to last.
        factors: Gradients of the data, from `gradient_factors`.
        multipliers: ``(n,)``.

    Returns:
        ``||theta - sum_i lambda_i g_i|| / ||theta||``.
    """
    sums = weighted_gradient(layers, factors, multipliers)
    squares = [(p - s).square().sum() for p, s in zip(parameter_list(layers), sums, strict=True)]
    return float(torch.stack(squares).sum().sqrt() / parameter_norm(layers))


def regularised_gradient_norm(
    layers: Layers, factors: Factors, pulls: Tensor, weight_decay: float
) -> float:
    """Norm of the gradient of the mean loss plus (wd / 2)·‖θ‖².

    Args:
        layers: The probe, first layer to last.
        factors: Gradients of the data along `loss_directions`.
        pulls: Minus the derivative of the mean loss in each margin ``(n,)``.
        weight_decay: wd.

    Returns:
        ``||wd theta - sum_i pull_i g_i||``.
    """
    sums = weighted_gradient(layers, factors, pulls)
    parameters = parameter_list(layers)
    squares = [(weight_decay * p - s).square().sum() for p, s in zip(parameters, sums, strict=True)]
    return float(torch.stack(squares).sum().sqrt())


def best_multipliers(layers: Layers, factors: Factors) -> Tensor:
    """The non-negative multipliers that explain most of the parameters.

    Args:
        layers: The probe, first layer to last.
        factors: Gradients of n inputs, from `gradient_factors`, in float64.

    Returns:
        ``argmin_{lambda >= 0} ||theta - sum_i lambda_i g_i||``, ``(n,)``.
    """
    # `scipy.optimize.nnls` would be the obvious choice, but misses the optimum of some singular
    # problems since SciPy 1.15.
    from scipy.optimize import lsq_linear

    gram, projection = gram_matrix(layers, factors)
    # A square root of the Gram matrix stands for the p x n matrix of gradients, which may be huge.
    values, vectors = torch.linalg.eigh(gram)
    kept = values > len(values) * torch.finfo(values.dtype).eps * values[-1]
    roots, vectors = values[kept].sqrt(), vectors[:, kept]
    if not len(roots):
        return torch.zeros_like(projection)
    solution = lsq_linear(
        (roots[:, None] * vectors.T).numpy(),
        (vectors.T @ projection / roots).numpy(),
        bounds=(0, np.inf),
        tol=1e-14,
    )
    return torch.from_numpy(solution.x)


def equations_per_unknown(layers: Layers, num_train: int) -> float:
    """Equations over unknowns of the stationarity (A.4).

    Args:
        layers: The probe, first layer to last.
        num_train: Training samples n.

    Returns:
        ``p / (n (D + 1))``: parameters over the multiplier and D coordinates of each sample.
    """
    parameters = sum(p.numel() for p in parameter_list(layers))
    return parameters / (num_train * (layers[0][0].shape[1] + 1))


def _cliff(singular_values: Tensor, rank: int) -> float | None:
    if rank == len(singular_values):
        return None
    # What is below the rounding of the float32 that weights are trained in counts as rounding.
    floor = singular_values[0] * torch.finfo(torch.float32).eps
    inside, outside = torch.maximum(singular_values[rank - 1 : rank + 1], floor)
    return float(inside / outside)
