"""The baseline attack: inputs that a probe is confident about."""

from typing import Literal

from torch import Tensor

from attacks.activation_maximisation import activation_loss_and_grad, implied_multipliers
from lightning_modules.candidate_search import CandidateSearch


class ActivationMaximisation(CandidateSearch):
    """Minimises the probe's loss over its own inputs, argmin_x L(φ(x), y).

    Reconstructing Training Data From Real-World Models Trained with Transfer Learning, A.8, first
    variant: the baseline that KKT reconstruction is compared with. Candidates start where those of
    :class:`~lightning_modules.KKTReconstruction` with the same seed, σ and space do, and the result
    has the same form, so that the same selection and evaluation follow. The multipliers are those
    that the loss implies, at the scale that explains most of the weights; the residual is the KKT
    residual they leave (see :func:`~attacks.activation_maximisation.implied_multipliers`).

    Args:
        probe: The attacked probe: a checkpoint, or a file with a state dict of linear layers. It
            may be linear.
        num_draws: Draws R of learning rate, σ and starting points.
        num_candidates: Candidates m of a draw, equally many of each label.
        iterations: Steps of the optimiser.
        learning_rate: Log-uniform range of the learning rate.
        init_std: Log-uniform range of the candidates' initial standard deviation σ. The smaller it
            is, the more alike are the candidates of one label in the end.
        optimizer: ``"adam"``, or ``"sgd"`` with momentum 0.9; the paper does not say.
        space: ``"full"`` searches all D dimensions as the paper does, ``"auto"`` the row space of
            the first layer when its singular values show one.
        seed: Seed of the draws.
        part: Which part of the draws this run searches: ``"0/3"`` is every third from the first.
        iterations_per_step: Iterations in one step of the trainer, between two progress updates;
            by default chosen by the size of the problem. What is found does not depend on it.

    Raises:
        InputError: A number or range makes no sense.
    """

    def __init__(
        self,
        probe: str,
        num_draws: int = 8,
        num_candidates: int = 100,
        iterations: int = 1000,
        learning_rate: tuple[float, float] = (0.001, 0.1),
        init_std: tuple[float, float] = (1e-5, 1.0),
        optimizer: Literal["adam", "sgd"] = "adam",
        space: Literal["auto", "full"] = "full",
        seed: int = 0,
        part: str = "0/1",
        iterations_per_step: int | None = None,
    ) -> None:
        super().__init__(
            probe,
            {
                "learning_rate": learning_rate,
                "init_std": init_std,
                # Not used by this attack, and drawn all the same: the rest then starts alike.
                "lambda_min": (0.0, 0.0),
                "relu_alpha": (1.0, 1.0),
                "multiplier_init": (0.0, 0.0),
            },
            num_draws=num_draws,
            num_candidates=num_candidates,
            iterations=iterations,
            iterations_per_step=iterations_per_step,
            optimizer=optimizer,
            space=space,
            seed=seed,
            part=part,
        )
        self.save_hyperparameters()

    def set_gradients(self, iteration: int) -> Tensor:
        """Gradients of the probe's loss; its sum over each draw's candidates (R,)."""
        loss, self.candidates.grad = activation_loss_and_grad(
            self._layers, self.candidates, self.labels
        )
        return loss

    def residuals(self, loss: Tensor) -> Tensor:
        """KKT residual with the multipliers that the loss implies (R,)."""
        return implied_multipliers(self._layers, self.candidates, self.labels)[1]

    def judge(self) -> dict[str, Tensor]:
        """The multipliers that the loss implies, and their residual."""
        layers = self.probe_layers()
        multipliers, residual = implied_multipliers(layers, self.candidates, self.labels)
        return {"multipliers": multipliers, "residual": residual}
