"""Reconstruction of training vectors from the weights of a probe."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from artifacts.errors import InputError
from attacks.draws import Draws
from attacks.equalisation import equalised, neuron_scales
from attacks.kkt import kkt_loss, kkt_loss_and_grad, relative_residual
from attacks.kkt_derivatives import Rivals
from attacks.scratch import Scratch
from lightning_modules.candidate_search import CandidateSearch
from lightning_modules.resources import MatmulPrecision

# Sum of the multipliers that draws start with, on average: what probes have whose weight decay is
# strong enough for the method. Their scale is one with that of the candidates, so it can be rough.
MULTIPLIER_SUM = 1.5


class KKTReconstruction(CandidateSearch):
    """Solves the probe's KKT stationarity for its training vectors, many draws at once.

    Reconstructing Training Data From Real-World Models Trained with Transfer Learning, eq. 2, B.2
    and B.5. No argument here can bring training data in: the probe's weights are all it sees.

    Args:
        probe: The attacked probe: a checkpoint, or a file with a state dict of linear layers.
        num_draws: Draws R of hyper-parameters and starting points.
        num_candidates: Candidates m of a draw; the paper advises at least twice the training set.
        iterations: Steps of the optimiser.
        learning_rate: Log-uniform range of the candidates' learning rate.
        init_std: Log-uniform range of the candidates' initial standard deviation σ.
        lambda_min: Uniform range of the least multiplier that is not penalised.
        relu_alpha: Uniform range of the sharpness α of the softened ReLU derivative.
        multiplier_init: Uniform range of the initial multipliers; by default [0, 3 / m], which
            makes their sum 1.5 on average. In a probe trained on n samples with weight decay wd
            they are at most 1 / (n·wd), and at a usual wd their sum is of that size.
        multiplier_learning_rate: The multipliers' learning rate over the candidates'.
        frozen_multipliers: Draws whose multipliers stay at their initial values: ``"odd"`` draws,
            which makes draws differ in what they miss, ``"none"`` or ``"all"``.
        multiplier_penalty: Weight of Σ relu(λ_min - λ)².
        alpha_annealing: α rises from this fraction of its value to its value.
        equalise: Let every hidden neuron count the same in the loss, where that is exact: with
            one hidden layer and one output. Elsewhere only α is put on the scale of the neurons.
        optimizer: ``"adam"``, or the paper's ``"sgd"`` with momentum 0.9.
        vector_steps: Draws whose candidates Adam moves as vectors, the same in every basis (see
            :class:`~attacks.optimizers.DrawwiseAdam`): ``"half"``, two in four, ``"none"`` or
            ``"all"``. They find more of few samples, and the others more of many. Their rates
            are √(D/k) times as large in a space of k of D dimensions.
        space: ``"auto"`` solves in the row space of the first layer when its singular values show
            one, ``"full"`` in all D dimensions.
        seed: Seed of the draws.
        first_draw: Index of the first draw. A draw depends on the seed and its index alone, so a
            sweep can be split over runs.
        part: Which part of the draws this run searches: ``"0/3"`` is every third from the first.
            ``python main.py merge`` makes one file of all parts.
        iterations_per_step: Iterations in one step of the trainer, between two progress updates;
            by default chosen by the size of the problem. What is found does not depend on it.
        multiplier_rate_is_absolute: ``multiplier_learning_rate`` is the rate itself, the same in
            every draw, as in the published code.
        rivals: With several classes, what a candidate's class is set against: ``"strongest"`` other
            class (B.5), or ``"all"`` of them by the probe's probabilities, which is what training
            with cross-entropy leaves.
        allow_linear: Attack a probe without a hidden layer too, against all odds (section 6).
        matmul_precision: Precision of float32 matrix products during the search, as
            :func:`torch.set_float32_matmul_precision` has it. ``"high"`` lets GPUs with tensor
            cores use TF32, ``"medium"`` also bfloat16, and so do CPUs that multiply it natively;
            elsewhere nothing changes. Gradients are then off by about 1%. ``trainer.precision``
            is another thing: ``64-true`` searches in double precision, ``bf16-true`` keeps
            candidates themselves in bfloat16, so that fewer come very close to a training sample,
            and mixed precision has no effect.

    Raises:
        InputError: A number or range makes no sense.
    """

    multipliers: nn.Parameter
    lambda_min: Tensor
    relu_alpha: Tensor

    def __init__(
        self,
        probe: str,
        num_draws: int = 8,
        num_candidates: int = 100,
        iterations: int = 1000,
        learning_rate: tuple[float, float] = (0.025, 0.05),
        init_std: tuple[float, float] = (1e-3, 0.1),
        lambda_min: tuple[float, float] = (0.0, 0.0),
        relu_alpha: tuple[float, float] = (10.0, 10.0),
        multiplier_init: tuple[float, float] | None = None,
        multiplier_learning_rate: float = 0.003,
        frozen_multipliers: Literal["none", "odd", "all"] = "odd",
        multiplier_penalty: float = 5.0,
        alpha_annealing: float = 0.01,
        equalise: bool = True,
        optimizer: Literal["adam", "sgd"] = "adam",
        vector_steps: Literal["none", "half", "all"] = "half",
        space: Literal["auto", "full"] = "auto",
        seed: int = 0,
        first_draw: int = 0,
        part: str = "0/1",
        iterations_per_step: int | None = None,
        multiplier_rate_is_absolute: bool = False,
        rivals: Rivals = "strongest",
        allow_linear: bool = False,
        matmul_precision: MatmulPrecision = "highest",
    ) -> None:
        if not 0 < alpha_annealing <= 1:
            raise InputError(f"alpha_annealing must be in (0, 1], got {alpha_annealing}")
        if not (0 <= multiplier_learning_rate < math.inf and 0 <= multiplier_penalty < math.inf):
            raise InputError(
                "multiplier_learning_rate and multiplier_penalty must be finite and not negative, "
                f"got {multiplier_learning_rate} and {multiplier_penalty}"
            )
        most = 2 * MULTIPLIER_SUM / max(num_candidates, 1)
        super().__init__(
            probe,
            {
                "learning_rate": learning_rate,
                "init_std": init_std,
                "lambda_min": lambda_min,
                "relu_alpha": relu_alpha,
                "multiplier_init": (0.0, most) if multiplier_init is None else multiplier_init,
            },
            num_draws=num_draws,
            num_candidates=num_candidates,
            iterations=iterations,
            iterations_per_step=iterations_per_step,
            optimizer=optimizer,
            space=space,
            seed=seed,
            first_draw=first_draw,
            part=part,
            matmul_precision=matmul_precision,
            needs_hidden_layer=not allow_linear,
        )
        self.save_hyperparameters()
        self.multiplier_learning_rate = multiplier_learning_rate
        self.multiplier_rate_is_absolute = multiplier_rate_is_absolute
        self.frozen_multipliers = frozen_multipliers
        self.vector_steps = vector_steps
        self.equalise = equalise
        self.multiplier_penalty = multiplier_penalty
        self.alpha_annealing = alpha_annealing
        self.rivals: Rivals = rivals
        self.allow_linear = allow_linear

    def add_unknowns(self, draws: Draws) -> None:
        """Multipliers, and what the draws say about them and about the softened ReLU."""
        self.multipliers = nn.Parameter(draws.multipliers)
        self.register_buffer("lambda_min", draws.lambda_min, persistent=False)
        self.register_buffer("relu_alpha", draws.relu_alpha, persistent=False)

    def unknowns(self) -> list[nn.Parameter]:
        """Candidates and multipliers."""
        return [self.candidates, self.multipliers]

    def learning_rates(self) -> list[Tensor]:
        """The draws' rates for the candidates, and those of the multipliers."""
        rates, vector = self.rates, self.vector_draws()
        if self.optimizer_name == "adam":
            longer = math.sqrt(self.probe.in_features / self.candidates.shape[2])
            rates = torch.where(vector, longer * rates, rates)
        base = torch.ones_like(rates) if self.multiplier_rate_is_absolute else rates
        draw = self.draw
        moves = {"none": draw >= 0, "odd": draw % 2 == 0, "all": draw < 0}
        return [rates, base * self.multiplier_learning_rate * moves[self.frozen_multipliers]]

    def vector_draws(self) -> Tensor:
        """Draws 2, 3, 6, 7 and so on, which are as often odd as even."""
        draw = self.draw
        return {"none": draw < 0, "half": draw % 4 >= 2, "all": draw >= 0}[self.vector_steps]

    def solved_layers(self) -> list[tuple[Tensor, Tensor | None]]:
        """The layers whose stationarity is solved."""
        layers = self.probe_layers()
        return equalised(layers) if self._equalises() else layers

    def _equalises(self) -> bool:
        return self.equalise and len(self.probe.layers) == 2 and self.probe.out_features == 1

    def on_train_start(self) -> None:
        """Fixes the layers and the working memory for the run."""
        super().on_train_start()
        self._scratch = Scratch()
        self._alpha = self.relu_alpha if self._equalises() else self._alpha_of_probe()

    def _alpha_of_probe(self) -> Tensor:
        """The draws' α (R,) for the probe's own neurons: as sharp for one of median size."""
        scale = neuron_scales(self.probe.weights_and_biases()[-1][0]).median()
        return self.relu_alpha / scale if self.equalise else self.relu_alpha

    def set_gradients(self, iteration: int) -> Tensor:
        """Gradients of the KKT loss and of the penalty on small multipliers; the loss (R,)."""
        progress = iteration / self.iterations
        alpha = self._alpha * self.alpha_annealing ** (1 - progress)
        loss, self.candidates.grad, grad = kkt_loss_and_grad(
            self._layers,
            self.candidates,
            self.multipliers,
            self.labels,
            alpha,
            rivals=self.rivals,
            allow_linear=self.allow_linear,
            scratch=self._scratch,
        )
        shortfall = (self.lambda_min[:, None] - self.multipliers).clamp_min(0)
        self.multipliers.grad = grad.sub_(shortfall, alpha=2 * self.multiplier_penalty)
        return loss

    def residuals(self, loss: Tensor) -> Tensor:
        """Relative residual of the equations that are solved (R,)."""
        return relative_residual(loss, self._layers)

    def judge(self) -> dict[str, Tensor]:
        """Multipliers, and the residual of the probe's own weights under ``relu_alpha`` (R,)."""
        layers = self.probe_layers()
        alpha = self._alpha_of_probe()
        loss = kkt_loss(
            layers,
            self.candidates,
            self.multipliers,
            self.labels,
            alpha,
            rivals=self.rivals,
            allow_linear=self.allow_linear,
        )
        residual = relative_residual(loss, layers)
        return {
            "multipliers": self.multipliers,
            "residual": residual,
            "relu_alpha": alpha,
            "lambda_min": self.lambda_min,
        }
