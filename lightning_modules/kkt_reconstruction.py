"""Reconstruction of training vectors from the weights of a probe."""

from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from artifacts.errors import InputError
from attacks.draws import DrawRanges, balanced_labels, sample_draws
from attacks.kkt import Scratch, kkt_loss_and_grad, relative_residual
from attacks.optimizers import DrawwiseAdam, DrawwiseSGD
from attacks.row_space import row_space
from lightning_modules.victim import load_probe


class KKTReconstruction(L.LightningModule):
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
        multiplier_init: Uniform range of the initial multipliers. In a probe trained with weight
            decay wd on n samples they are at most 1 / (n·wd).
        multiplier_learning_rate: The multipliers' learning rate over the candidates'.
        multiplier_penalty: Weight of Σ relu(λ_min - λ)².
        alpha_annealing: α rises from this fraction of its value to its value.
        optimizer: ``"adam"``, or the paper's ``"sgd"`` with momentum 0.9.
        space: ``"auto"`` solves in the row space of the first layer when its singular values show
            one, ``"full"`` in all D dimensions.
        seed: Seed of the draws.
        iterations_per_step: Iterations in one step of the trainer, between two progress updates.

    Raises:
        InputError: A number or range makes no sense.
    """

    probe_layers: list[tuple[Tensor, Tensor | None]]
    candidates: nn.Parameter
    multipliers: nn.Parameter
    labels: Tensor
    lambda_min: Tensor
    relu_alpha: Tensor
    rates: Tensor
    basis: Tensor | None
    diverged: Tensor
    history: Tensor

    def __init__(
        self,
        probe: str,
        num_draws: int = 8,
        num_candidates: int = 100,
        iterations: int = 1000,
        learning_rate: tuple[float, float] = (0.03, 0.3),
        init_std: tuple[float, float] = (1e-5, 1.0),
        lambda_min: tuple[float, float] = (0.0005, 0.01),
        relu_alpha: tuple[float, float] = (10.0, 500.0),
        multiplier_init: tuple[float, float] = (0.0, 0.03),
        multiplier_learning_rate: float = 0.03,
        multiplier_penalty: float = 5.0,
        alpha_annealing: float = 1.0,
        optimizer: Literal["adam", "sgd"] = "adam",
        space: Literal["auto", "full"] = "auto",
        seed: int = 0,
        iterations_per_step: int = 50,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        if min(num_draws, iterations, iterations_per_step) < 1:
            raise InputError("num_draws, iterations and iterations_per_step must be at least 1")
        if not 0 < alpha_annealing <= 1:
            raise InputError(f"alpha_annealing must be in (0, 1], got {alpha_annealing}")
        try:
            self.ranges = DrawRanges(
                learning_rate, init_std, lambda_min, relu_alpha, multiplier_init
            )
        except ValueError as error:
            raise InputError(str(error)) from error
        self.probe_path = probe
        self.num_draws = num_draws
        self.num_candidates = num_candidates
        self.iterations = iterations
        self.iterations_per_step = min(iterations_per_step, iterations)
        self.multiplier_learning_rate = multiplier_learning_rate
        self.multiplier_penalty = multiplier_penalty
        self.alpha_annealing = alpha_annealing
        self.optimizer_name = optimizer
        self.space = space
        self.seed = seed
        self.num_steps = -(-iterations // self.iterations_per_step)
        self._configured = False

    def configure_model(self) -> None:
        """Reads the probe and draws the starting points."""
        if self._configured:
            return
        probe = load_probe(self.probe_path)
        layers = probe.weights_and_biases()
        if len(layers) < 2:
            raise InputError(
                f"{self.probe_path} is a linear probe: the method needs a hidden layer "
                "(a linear model has too few parameters to hold its training set)"
            )
        try:
            labels = balanced_labels(self.num_candidates, probe.out_features)
        except ValueError as error:
            raise InputError(str(error)) from error
        basis = row_space(layers[0][0]) if self.space == "auto" else None
        dimension = probe.in_features if basis is None else len(basis)
        draws = sample_draws(
            self.ranges, self.seed, range(self.num_draws), self.num_candidates, dimension
        )
        self.candidates = nn.Parameter(draws.candidates)
        self.multipliers = nn.Parameter(draws.multipliers)
        for name, tensor in (
            ("labels", labels),
            ("lambda_min", draws.lambda_min),
            ("relu_alpha", draws.relu_alpha),
            ("rates", draws.learning_rate),
            ("basis", basis),
        ):
            self.register_buffer(name, tensor, persistent=False)
        self.register_buffer("diverged", torch.zeros(self.num_draws, dtype=torch.bool))
        self.register_buffer("history", torch.zeros(self.num_steps, self.num_draws))
        self.probe = probe
        self._configured = True

    def setup(self, stage: str) -> None:
        """Tells the trainer how many steps there are.

        Raises:
            InputError: A data module was given.
        """
        if getattr(self.trainer, "datamodule", None) is not None:
            raise InputError("the attack takes no data: leave out --data")
        if self.trainer.max_epochs == -1:
            self.trainer.fit_loop.max_epochs = self.num_steps

    def solved_layers(self) -> list[tuple[Tensor, Tensor | None]]:
        """The probe's layers as functions of the coordinates that are solved for."""
        (weight, bias), *rest = self.probe.weights_and_biases()
        return [(weight if self.basis is None else weight @ self.basis.T, bias), *rest]

    def train_dataloader(self) -> DataLoader[int]:
        """One batch an epoch, which holds nothing: the attack has no data."""
        return DataLoader([0], batch_size=None)  # type: ignore[arg-type]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimiser for all draws, each with its own learning rate."""
        groups = [
            {"params": [self.candidates], "lr": self.rates},
            {"params": [self.multipliers], "lr": self.rates * self.multiplier_learning_rate},
        ]
        return (
            DrawwiseSGD(groups) if self.optimizer_name == "sgd" else DrawwiseAdam(groups, eps=1e-12)
        )

    def on_train_start(self) -> None:
        """Fixes the projected layers and the working memory for the run."""
        self._layers = self.solved_layers()
        self._scratch = Scratch()

    def training_step(self, batch: int, batch_idx: int) -> None:
        """Makes ``iterations_per_step`` iterations of every draw."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        first = self.current_epoch * self.iterations_per_step
        last = min(first + self.iterations_per_step, self.iterations)
        before = self.candidates.detach().clone(), self.multipliers.detach().clone()
        freeze = bool(self.diverged.any())
        for iteration in range(first, last):
            loss = self._set_gradients(iteration, freeze)
            # Only the last of them counts as a step of the trainer.
            (optimizer if iteration == last - 1 else optimizer.optimizer).step()
        self._freeze_diverged(optimizer.optimizer, loss, before)
        residual = relative_residual(loss, self._layers)
        self.history[self.current_epoch] = residual
        alive = residual[~self.diverged]
        if len(alive) == 0:
            raise InputError(
                f"all {self.num_draws} draws diverged by iteration {last}; "
                "lower the range of model.learning_rate"
            )
        self.log("residual/best", alive.min(), prog_bar=True, batch_size=1)
        self.log("residual/median", alive.median(), prog_bar=True, batch_size=1)
        self.log("draws/diverged", self.diverged.float().sum(), batch_size=1)

    @torch.no_grad()
    def _set_gradients(self, iteration: int, freeze: bool) -> Tensor:
        """Loss (R,) and gradients at one iteration; diverged draws get zeros if ``freeze``."""
        progress = iteration / self.iterations
        alpha = self.relu_alpha * self.alpha_annealing ** (1 - progress)
        loss, self.candidates.grad, grad = kkt_loss_and_grad(
            self._layers,
            self.candidates,
            self.multipliers,
            self.labels,
            alpha,
            scratch=self._scratch,
        )
        shortfall = (self.lambda_min[:, None] - self.multipliers).clamp_min(0)
        self.multipliers.grad = grad.sub_(shortfall, alpha=2 * self.multiplier_penalty)
        if freeze:
            self.candidates.grad[self.diverged] = 0
            self.multipliers.grad[self.diverged] = 0
        return loss

    @torch.no_grad()
    def _freeze_diverged(
        self, optimizer: torch.optim.Optimizer, loss: Tensor, before: tuple[Tensor, Tensor]
    ) -> None:
        """Puts draws that left the finite numbers back to ``before`` and stops them there."""
        finite = torch.isfinite(self.candidates).flatten(1).all(1) & torch.isfinite(loss)
        finite &= torch.isfinite(self.multipliers).all(1)
        fresh = ~finite & ~self.diverged
        if bool(fresh.any()):
            self.candidates[fresh], self.multipliers[fresh] = before[0][fresh], before[1][fresh]
            assert isinstance(optimizer, DrawwiseAdam | DrawwiseSGD)
            optimizer.reset_draws(fresh)
            self.diverged |= fresh
            names = ", ".join(str(int(index)) for index in torch.nonzero(fresh).squeeze(1))
            self.print(f"draw {names} diverged and is set aside")

    @torch.no_grad()
    def result(self) -> dict[str, Tensor]:
        """What the attack found.

        Returns:
            For the draws that did not diverge: ``candidates`` (R, m, D) in the probe's
            standardised space, ``multipliers`` (R, m), ``labels`` (m,), ``residual`` (R,) relative
            KKT residual, ``draw`` (R,) index of the draw, ``history`` (T, R) of the residual.
        """
        keep = ~self.diverged
        candidates = self.candidates[keep]
        loss, _, _ = kkt_loss_and_grad(
            self.solved_layers(),
            candidates,
            self.multipliers[keep],
            self.labels,
            self.relu_alpha[keep],
        )
        return {
            "candidates": candidates if self.basis is None else candidates @ self.basis,
            "multipliers": self.multipliers[keep],
            "labels": self.labels,
            "residual": relative_residual(loss, self.solved_layers()),
            "draw": torch.nonzero(keep).squeeze(1),
            "history": self.history[:, keep],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses to continue a run that was started with other settings."""
        saved = checkpoint.get("hyper_parameters", {})
        for name, value in self.hparams.items():
            if name in saved and saved[name] != value:
                raise InputError(
                    f"the run to continue has {name}={saved[name]}, this one {name}={value}; "
                    "choose another trainer.default_root_dir, or delete the old one"
                )
