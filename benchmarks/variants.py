"""Searches that were tried and are not the default: see docs/recovery.md for what they recover."""

import math

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor

from attacks.kkt import kkt_loss
from lightning_modules import KKTReconstruction


class LeastSquaresMultipliers(KKTReconstruction):
    """λ solves the non-negative least-squares problem of the candidates, now and then.

    The residual is linear in λ, so that its best value for given candidates is known.
    """

    every = 50

    def set_gradients(self, iteration: int) -> Tensor:
        """Solves for λ before some of the iterations."""
        if iteration and iteration % self.every == 0:
            self._solve(self._alpha * self.alpha_annealing ** (1 - iteration / self.iterations))
        return super().set_gradients(iteration)

    def _solve(self, alpha: Tensor) -> None:
        from scipy.optimize import nnls

        (weight, _), (output, _) = self._layers
        with torch.no_grad():
            for r, x in enumerate(self.candidates):
                z = x @ weight.T
                rows, labels = output * torch.sigmoid(alpha[r] * z), self.labels[:, None]
                activations = z.relu()
                gram = (rows @ rows.T) * (x @ x.T) + activations @ activations.T
                gram = (gram * labels * labels.T).double()
                products = ((rows @ weight) * x).sum(1) + activations @ output[0]
                # Those at the lower bound keep a gradient, and may come back.
                floor = 0.05 * self.multipliers[r].double().mean()
                aim = (products * self.labels).double() - gram.sum(1) * floor
                ridge = 1e-4 * gram.diagonal().mean() * torch.eye(len(x), dtype=torch.float64)
                factor = torch.linalg.cholesky(gram + ridge)
                solved = torch.linalg.solve_triangular(factor, aim[:, None], upper=False)[:, 0]
                found, _ = nnls(factor.T.numpy(), solved.numpy(), maxiter=100 * len(x))
                self.multipliers[r] = (torch.from_numpy(found) + floor).to(x)


class FixedGauge(KKTReconstruction):
    """Moves each candidate's norm into its multiplier, now and then: λ‖x‖ stays, ‖x‖ is √k."""

    every = 50

    def set_gradients(self, iteration: int) -> Tensor:
        """Rescales before some of the iterations."""
        if iteration and iteration % self.every == 0:
            with torch.no_grad():
                size = self.candidates.norm(dim=2) / math.sqrt(self.candidates.shape[2])
                size.clamp_(min=1e-3)
                self.multipliers.mul_(size)
                self.candidates.div_(size[..., None])
        return super().set_gradients(iteration)


class SecondOrder(KKTReconstruction):
    """The last fifth of the iterations by L-BFGS, all draws of one start for themselves."""

    share = 0.8

    def set_gradients(self, iteration: int) -> Tensor:
        """Replaces the first of the last iterations by L-BFGS, the others by nothing."""
        start = round(self.share * self.iterations)
        if iteration < start:
            return super().set_gradients(iteration)
        if iteration == start:
            self._finish(self.iterations - start)
        loss = super().set_gradients(self.iterations - 1)
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        for group in optimizer.optimizer.param_groups:
            group["scale"] = 0.0
        return loss

    @torch.enable_grad()
    def _finish(self, steps: int) -> None:
        moves = self.learning_rates()[1] > 0
        for r in range(self.num_draws):
            x = self.candidates[r : r + 1].detach().clone().requires_grad_()
            multipliers = self.multipliers[r : r + 1].detach().clone()
            unknowns = [x, multipliers.requires_grad_()] if moves[r] else [x]
            optimiser = torch.optim.LBFGS(
                unknowns,
                max_iter=steps,
                max_eval=steps,
                history_size=10,
                line_search_fn="strong_wolfe",
                tolerance_grad=0.0,
                tolerance_change=0.0,
            )

            def closure(
                x: Tensor = x,
                multipliers: Tensor = multipliers,
                r: int = r,
                optimiser: torch.optim.LBFGS = optimiser,
            ) -> Tensor:
                optimiser.zero_grad()
                alpha = self._alpha[r : r + 1]
                loss = kkt_loss(self._layers, x, multipliers, self.labels, alpha).sum()
                loss = loss + self.multiplier_penalty * multipliers.clamp_max(0).square().sum()
                torch.autograd.backward(loss)
                return loss

            optimiser.step(closure)  # type: ignore[no-untyped-call]
            with torch.no_grad():
                self.candidates[r], self.multipliers[r] = x[0], multipliers[0]


VARIANTS: dict[str, type[KKTReconstruction]] = {
    "+ least-squares λ": LeastSquaresMultipliers,
    "+ fixed gauge": FixedGauge,
    "+ L-BFGS finish": SecondOrder,
}
