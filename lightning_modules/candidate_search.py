"""What attacks on a probe share: draws of candidates, and the loop that improves them."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.utils.data import DataLoader

from artifacts.errors import InputError
from artifacts.weights import sha256_of_content
from attacks.draws import DrawRanges, Draws, Range, balanced_labels, sample_draws
from attacks.optimizers import DrawwiseAdam, DrawwiseSGD
from attacks.row_space import row_space
from lightning_modules.resources import MatmulPrecision, matmul_precision, require_memory_for
from lightning_modules.sharding import IndependentRanks, gather, map_items, parse_part
from lightning_modules.victim import load_probe

# Candidates, their gradient, what the optimiser remembers, and where the step started.
COPIES = 5

# Operations in one step of the trainer, for which its own few milliseconds are little, and after
# which users see progress: about a quarter of a second of a CPU core, or of a GPU.
_STEP_OPERATIONS_CPU = 10**10
_STEP_OPERATIONS_GPU = 5 * 10**12
# But so many steps a run has at least, for its progress and its curve of residuals.
_FEWEST_STEPS = 10


class CandidateSearch(L.LightningModule):
    """R draws of m candidates, each draw improved by an optimiser of its own.

    A subclass says what is minimised (:meth:`set_gradients`), what else than candidates is
    searched for (:meth:`add_unknowns`), and how results are judged (:meth:`judge`). No argument
    can bring training data in: the probe's weights are all an attack sees.

    Draws are spread over the processes of a run (``--trainer.strategy=ddp``), which exchange no
    gradients; checkpoints and results hold all draws, whatever the number of processes.

    Args:
        probe: The attacked probe: a checkpoint, or a file with a state dict of linear layers.
        ranges: What draws are sampled from, fields of
            :class:`~attacks.draws.DrawRanges`.
        num_draws: Draws R of hyper-parameters and starting points.
        num_candidates: Candidates m of a draw.
        iterations: Steps of the optimiser.
        iterations_per_step: Iterations in one step of the trainer, between two progress updates;
            None chooses by the size of the problem. What is found does not depend on it.
        optimizer: ``"adam"``, or ``"sgd"`` with momentum 0.9.
        space: ``"auto"`` or ``"full"``, see :class:`~lightning_modules.KKTReconstruction`.
        seed: Seed of the draws.
        first_draw: Index of the first draw.
        part: Which part of the draws to search, such as ``"0/3"``: every third from the first.
        matmul_precision: Precision of float32 matrix products.
        needs_hidden_layer: Refuse a linear probe.

    Raises:
        InputError: A number or range makes no sense.
    """

    # What the CLI makes of --trainer.strategy=ddp.
    ddp_strategy = IndependentRanks

    candidates: nn.Parameter
    draw: Tensor
    labels: Tensor
    rates: Tensor
    init_std: Tensor
    basis: Tensor | None
    diverged: Tensor
    history: Tensor

    def __init__(
        self,
        probe: str,
        ranges: Mapping[str, Range],
        *,
        num_draws: int,
        num_candidates: int,
        iterations: int,
        iterations_per_step: int | None,
        optimizer: Literal["adam", "sgd"],
        space: Literal["auto", "full"],
        seed: int,
        first_draw: int = 0,
        part: str = "0/1",
        matmul_precision: MatmulPrecision = "highest",
        needs_hidden_layer: bool = False,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        if min(num_draws, iterations, iterations_per_step or 1, first_draw + 1, seed + 1) < 1:
            raise InputError(
                "num_draws, iterations and iterations_per_step must be at least 1, seed and "
                "first_draw at least 0"
            )
        if first_draw + num_draws >= 2**63:
            raise InputError("first_draw and num_draws are numbers of 64 bits")
        try:
            self.ranges = DrawRanges(**ranges)
        except ValueError as error:
            raise InputError(str(error)) from error
        self.probe_path = probe
        self.num_draws = num_draws
        self.num_candidates = num_candidates
        self.iterations = iterations
        self.iterations_per_step = iterations_per_step or 1
        self._chooses_step = iterations_per_step is None
        self.optimizer_name = optimizer
        self.space = space
        self.seed = seed
        self.first_draw = first_draw
        self.part = part
        part_index, self.num_parts = parse_part(part)
        if self.num_parts > num_draws:
            raise InputError(f"{num_draws} draws cannot be split into {self.num_parts} parts")
        draws = range(first_draw, first_draw + num_draws)
        self.draws_of_part = draws[part_index :: self.num_parts]
        self.matmul_precision = matmul_precision
        self.needs_hidden_layer = needs_hidden_layer
        self._configured = False

    def add_unknowns(self, draws: Draws) -> None:
        """Registers what a subclass searches for or needs beside the candidates."""

    def unknowns(self) -> list[nn.Parameter]:
        """What is searched for; each (R, …)."""
        return [self.candidates]

    def learning_rates(self) -> list[Tensor]:
        """Learning rate of every draw (R,), for each of the unknowns."""
        return [self.rates]

    def vector_draws(self) -> Tensor | None:
        """Draws (R,) whose candidates Adam moves as vectors, see :class:`DrawwiseAdam`."""
        return None

    @abstractmethod
    def set_gradients(self, iteration: int) -> Tensor:
        """Puts the gradients of one iteration into ``.grad`` of the unknowns.

        Returns:
            What each draw minimises (R,).
        """

    @abstractmethod
    def residuals(self, loss: Tensor) -> Tensor:
        """Relative KKT residual (R,) of every draw, from its loss (R,) or anew."""

    @abstractmethod
    def judge(self) -> dict[str, Tensor]:
        """What the result says about the draws.

        Returns:
            At least ``multipliers`` (R, m) and ``residual`` (R,), the relative KKT residual of the
            probe's own weights.
        """

    def configure_model(self) -> None:
        """Reads the probe and draws the starting points."""
        if self._configured:
            return
        probe = load_probe(self.probe_path)
        layers = probe.weights_and_biases()
        if len(layers) < 2 and self.needs_hidden_layer:
            raise InputError(
                f"{self.probe_path} is a linear probe: the method needs a hidden layer "
                "(a linear model has too few parameters to hold its training set); "
                "--model.allow_linear=true runs it all the same"
            )
        try:
            labels = balanced_labels(self.num_candidates, probe.out_features)
        except ValueError as error:
            raise InputError(str(error)) from error
        basis = row_space(layers[0][0]) if self.space == "auto" else None
        dimension = probe.in_features if basis is None else len(basis)
        if self.space == "auto":
            rank_zero_info(
                f"the search is in all {dimension} dimensions: the span of the training data does "
                "not stand out of the first layer's weights"
                if basis is None
                else f"the search is in the {dimension} of {probe.in_features} dimensions that "
                "stand out of the first layer's weights: the span of the training data"
            )
        trainer = self._trainer
        world, rank = (1, 0) if trainer is None else (trainer.world_size, trainer.global_rank)
        indices = self.draws_of_part[rank::world]
        require_memory_for(len(indices) * self.num_candidates * dimension, COPIES)
        draws = sample_draws(self.ranges, self.seed, indices, self.num_candidates, dimension)
        self.candidates = nn.Parameter(draws.candidates)
        self.add_unknowns(draws)
        for name, tensor in (
            ("draw", torch.tensor(indices)),
            ("labels", labels),
            ("rates", draws.learning_rate),
            ("init_std", draws.init_std),
            ("basis", basis),
        ):
            self.register_buffer(name, tensor, persistent=False)
        if self._chooses_step:
            shapes = [(dimension, len(layers[0][0])), *(weight.shape for weight, _ in layers[1:])]
            self.iterations_per_step = self._iterations_in_a_step(shapes)
        self.register_buffer("diverged", torch.zeros(len(indices), dtype=torch.bool))
        self.register_buffer("history", torch.zeros(self.num_steps, len(indices)))
        self.probe = probe
        self._configured = True

    def _iterations_in_a_step(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """The iterations in one step of the trainer, for layers with weights of these shapes."""
        # Five products of two operations each, see attacks.kkt.
        one = 10 * self.num_draws * self.num_candidates * sum(math.prod(s) for s in shapes)
        attached = self._trainer is not None
        device = self.trainer.strategy.root_device if attached else self.device
        most = _STEP_OPERATIONS_GPU if device.type == "cuda" else _STEP_OPERATIONS_CPU
        return max(1, min(most // one, self.iterations // _FEWEST_STEPS))

    @property
    def num_steps(self) -> int:
        """Steps of the trainer in all."""
        return -(-self.iterations // self.iterations_per_step)

    def setup(self, stage: str) -> None:
        """Checks what the trainer is to do.

        Raises:
            InputError: A data module was given, or the trainer's options do not fit.
        """
        if getattr(self.trainer, "datamodule", None) is not None:
            raise InputError("the attack takes no data: leave out --data")
        world = self.trainer.world_size
        if world > 1 and not isinstance(self.trainer.strategy, self.ddp_strategy):
            raise InputError("several devices share the draws only with --trainer.strategy=ddp")
        if world > len(self.draws_of_part):
            raise InputError(
                f"{len(self.draws_of_part)} draws cannot be shared by {world} processes; "
                "lower trainer.devices or raise model.num_draws"
            )
        if self.trainer.precision not in ("32-true", "64-true", "bf16-true"):
            raise InputError(
                f"trainer.precision {self.trainer.precision} has no effect here or is too coarse; "
                "take 32-true, 64-true or bf16-true"
            )

    def on_fit_start(self) -> None:
        """Tells the trainer how many steps there are."""
        # -1, or Lightning's default of 1,000: the iterations decide.
        limit = self.trainer.max_epochs
        if limit is None or limit == -1 or limit > self.num_steps:
            self.trainer.fit_loop.max_epochs = self.num_steps

    def probe_layers(self) -> list[tuple[Tensor, Tensor | None]]:
        """The probe's layers as functions of the coordinates that are solved for."""
        (weight, bias), *rest = self.probe.weights_and_biases()
        return [(weight if self.basis is None else weight @ self.basis.T, bias), *rest]

    def solved_layers(self) -> list[tuple[Tensor, Tensor | None]]:
        """The layers that the search itself works with."""
        return self.probe_layers()

    def train_dataloader(self) -> DataLoader[int]:
        """One batch an epoch, which holds nothing: the attack has no data."""
        return DataLoader([0], batch_size=None)  # type: ignore[arg-type]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimiser for all draws, each with its own learning rate."""
        groups: list[dict[str, Any]] = [
            {"params": [unknown], "lr": rates}
            for unknown, rates in zip(self.unknowns(), self.learning_rates(), strict=True)
        ]
        if self.optimizer_name == "sgd":
            return DrawwiseSGD(groups)
        groups[0]["vector"] = self.vector_draws()
        return DrawwiseAdam(groups, eps=1e-12)

    def on_train_start(self) -> None:
        """Fixes the layers for the run."""
        self._layers = self.solved_layers()

    def training_step(self, batch: int, batch_idx: int) -> None:
        """Makes ``iterations_per_step`` iterations of every draw."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        first = self.current_epoch * self.iterations_per_step
        last = min(first + self.iterations_per_step, self.iterations)
        freeze = bool(self.diverged.any())
        with matmul_precision(self.matmul_precision):
            for iteration in range(first, last):
                with torch.no_grad():
                    loss = self.set_gradients(iteration)
                if freeze:
                    self._zero_gradients_of_diverged()
                # Only the last of them counts as a step of the trainer.
                (optimizer if iteration == last - 1 else optimizer.optimizer).step()
        with torch.no_grad():
            residual = self.residuals(loss)
            # No later step would notice where the last one led.
            final = self.judge()["residual"] if last == self.iterations else residual
        self._freeze_diverged(optimizer.optimizer, loss, residual, final)
        self.history[self.current_epoch] = residual
        diverged = self.of_all_draws(self.diverged)
        alive = self.of_all_draws(residual)[~diverged]
        # A part of a sweep may diverge as a whole; what the other parts found still counts.
        if len(alive) == 0 and self.num_parts == 1:
            options = ("learning_rate", "init_std", "relu_alpha")
            given = [f"model.{name}" for name in options if name in self.hparams]
            raise InputError(
                f"all {self.num_draws} draws diverged by iteration {last}: no residual is a finite "
                f"number; lower the range of {', '.join(given[:-1])} or {given[-1]}"
            )
        if len(alive) > 0:
            self.log("residual/best", alive.min(), prog_bar=True, batch_size=1)
            self.log("residual/median", alive.median(), prog_bar=True, batch_size=1)
        self.log("draws/diverged", diverged.float().sum(), batch_size=1)

    def of_all_draws(self, share: Tensor, dim: int = 0) -> Tensor:
        """What all processes hold of the draws (along ``dim``), in the draws' order."""
        return gather(share, len(self.draws_of_part), dim)

    def _zero_gradients_of_diverged(self) -> None:
        for unknown in self.unknowns():
            assert unknown.grad is not None
            unknown.grad[self.diverged] = 0

    @torch.no_grad()
    def _freeze_diverged(self, optimizer: torch.optim.Optimizer, *judged: Tensor) -> None:
        """Sets draws that left the finite numbers to zero, and stops them there.

        Args:
            optimizer: What moves them.
            judged: Numbers that say how good the draws are, each (R,).
        """
        finite = torch.stack([torch.isfinite(values) for values in judged]).all(0)
        for unknown in self.unknowns():
            finite &= torch.isfinite(unknown).flatten(1).all(1)
        fresh = ~finite & ~self.diverged
        if bool(fresh.any()):
            for unknown in self.unknowns():
                unknown[fresh] = 0
            assert isinstance(optimizer, DrawwiseAdam | DrawwiseSGD)
            optimizer.reset_draws(fresh)
            self.diverged |= fresh
        everywhere = torch.nonzero(self.of_all_draws(fresh)).squeeze(1).tolist()
        if everywhere:
            names = ", ".join(str(self.draws_of_part[index]) for index in everywhere)
            self.print(f"draw {names} diverged and is set aside")

    @torch.no_grad()
    def result(self) -> dict[str, Tensor]:
        """What the attack found.

        Returns:
            For the draws that did not diverge: ``candidates`` (R, m, D) in the probe's
            standardised space, ``multipliers`` (R, m), ``labels`` (m,), ``residual`` (R,) relative
            KKT residual of the probe's own weights, ``draw`` (R,) index of the draw,
            ``learning_rate`` (R,) and ``init_std`` (R,) that it was sampled with, ``history``
            (T, R) of :meth:`residuals`, and what else :meth:`judge` says. All of it in float32
            at least, whatever the precision of the search.
        """
        candidates = self.candidates
        found = {
            "candidates": candidates if self.basis is None else candidates @ self.basis,
            "draw": self.draw,
            "learning_rate": self.rates,
            "init_std": self.init_std,
            **self.judge(),
        }
        keep = ~self.of_all_draws(self.diverged)
        found = {name: self.of_all_draws(tensor)[keep] for name, tensor in found.items()}
        found["history"] = self.of_all_draws(self.history, dim=1)[:, keep]
        found["labels"] = self.labels
        # NumPy and SciPy, which later stages use, know no bfloat16.
        return {
            name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            for name, tensor in found.items()
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Notes the probe and what a step of the trainer is, and holds all processes' draws."""
        checkpoint["probe_sha256"] = sha256_of_content(self.probe_path)
        checkpoint["iterations_per_step"] = self.iterations_per_step
        map_items(checkpoint, self._dimensions_of_draws(), self.of_all_draws)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses to continue a run that was started with other settings or another probe."""
        if checkpoint.get("probe_sha256") != sha256_of_content(self.probe_path):
            raise InputError(
                f"the run to continue attacked another probe than {self.probe_path} holds now; "
                "choose another trainer.default_root_dir, or delete the old one"
            )
        saved = checkpoint.get("hyper_parameters", {})
        for name, value in self.hparams.items():
            if name in saved and saved[name] != value:
                raise InputError(
                    f"the run to continue has {name}={saved[name]}, this one {name}={value}; "
                    "choose another trainer.default_root_dir, or delete the old one"
                )
        # A run may continue on another device, for which other steps would be chosen.
        self.iterations_per_step = checkpoint.get("iterations_per_step", self.iterations_per_step)
        self.history = self.history.new_zeros(self.num_steps, len(self.diverged))
        rank, world = self.trainer.global_rank, self.trainer.world_size

        def own(draws: Tensor, dim: int = 0) -> Tensor:
            return draws.movedim(dim, 0)[rank::world].movedim(0, dim)

        map_items(checkpoint, self._dimensions_of_draws(), own)

    def _dimensions_of_draws(self) -> dict[str, int]:
        """Which dimension of which tensor of the state dict is the draws'."""
        searched = {id(unknown) for unknown in self.unknowns()}
        names = [name for name, value in self.named_parameters() if id(value) in searched]
        return {**dict.fromkeys([*names, "diverged"], 0), "history": 1}
