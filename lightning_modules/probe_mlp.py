"""Training of the probe that is attacked later."""

from collections.abc import Sequence
from math import inf
from typing import Any

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.nn import functional as F

from artifacts.errors import InputError
from attacks.attackability import Attackability, measure_attackability
from models.probe import Bias, Probe


class ProbeMLP(L.LightningModule):
    """Trains an MLP D-W-…-C by full-batch gradient descent with weight decay.

    Reconstructing Training Data From Real-World Models Trained with Transfer Learning, section 4:
    one hidden layer of 500, learning rate 0.01, weight decay 0.08 or 0.16, 10,000 epochs, to zero
    training error. An epoch there is one gradient step; a training step of the trainer makes
    ``epochs_per_step`` of them, so that its own overhead is small. Weight decay acts on every
    parameter, biases included: otherwise the stationarity that the attack solves would not hold
    for them.

    Args:
        in_features: Dimension D of an embedding; by default that of the data.
        hidden: Widths of the hidden layers.
        out_features: 1 for labels ±1 (logistic loss), else the number of classes (cross-entropy).
        bias: Which layers have a bias.
        learning_rate: Step size of plain gradient descent.
        weight_decay: Coefficient wd of (wd / 2)·‖θ‖² in the loss.
        init_scale: Factor on the first layer's initial weights; small values start the training
            in the rich regime.
        epochs_per_step: Gradient steps for each batch that the data module gives.

    Raises:
        InputError: ``epochs_per_step`` is not positive.
    """

    def __init__(
        self,
        in_features: int | None = None,
        hidden: Sequence[int] = (500,),
        out_features: int = 1,
        bias: Bias = "none",
        learning_rate: float = 0.01,
        weight_decay: float = 0.08,
        init_scale: float = 1.0,
        epochs_per_step: int = 100,
    ) -> None:
        super().__init__()
        if epochs_per_step < 1:
            raise InputError(f"epochs_per_step must be at least 1, got {epochs_per_step}")
        if not (0 < learning_rate < inf and 0 <= weight_decay < inf and abs(init_scale) < inf):
            raise InputError(
                f"learning_rate must be positive, weight_decay not negative and all finite, got "
                f"{learning_rate}, {weight_decay} and init_scale {init_scale}"
            )
        self.automatic_optimization = False
        self.epochs_per_step = epochs_per_step
        self.save_hyperparameters()
        self.attackability: Attackability | None = None
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self._trained_weight_decay = weight_decay
        self.hidden, self.out_features, self.bias = hidden, out_features, bias
        self.init_scale = init_scale
        if in_features is not None:
            self._build(in_features)

    def _build(self, in_features: int) -> None:
        self.probe = Probe(in_features, self.hidden, self.out_features, self.bias)
        with torch.no_grad():
            for parameter in self.probe.layers[0].parameters():
                parameter.mul_(self.init_scale)

    def setup(self, stage: str) -> None:
        """Builds the probe if the data are to say its inputs, and checks one against the other.

        Raises:
            InputError: Number of features or labels do not fit.
        """
        data = getattr(self.trainer, "datamodule", None)
        if data is None or not hasattr(data, "train_tensors"):
            raise InputError("ProbeMLP needs a data module that holds its sets as tensors (--data)")
        inputs, labels = data.train_tensors
        if not hasattr(self, "probe"):
            self._build(inputs.shape[1])
        if inputs.shape[1] != self.probe.in_features:
            raise InputError(
                f"the data have {inputs.shape[1]} features, the probe takes "
                f"{self.probe.in_features}; set model.in_features to {inputs.shape[1]}"
            )
        allowed = {-1, 1} if self.probe.out_features == 1 else set(range(self.probe.out_features))
        if not set(labels.tolist()) <= allowed:
            raise InputError(
                f"labels {sorted(set(labels.tolist()))} do not fit {self.probe.out_features} "
                "output(s): one output takes -1 and 1, C outputs take 0 … C-1"
            )
        if len(labels.unique()) < 2:
            raise InputError(
                f"all {len(labels)} training samples have the label {int(labels[0])}: there is "
                "nothing to tell apart; choose classes or groups with two labels at least"
            )
        if self.trainer.world_size > len(labels):
            raise InputError(
                f"{len(labels)} training samples cannot be shared by {self.trainer.world_size} "
                "processes; lower trainer.devices"
            )

    def on_fit_start(self) -> None:
        """Takes the standardisation from the training set; a resumed run restores its own."""
        inputs, _ = self.trainer.datamodule.train_tensors  # type: ignore[attr-defined]
        self.probe.set_standardisation(inputs.to(self.device))

    def forward(self, inputs: Tensor) -> Tensor:
        """Embeddings (N, D) to logits (N, C)."""
        logits: Tensor = self.probe(inputs)
        return logits

    def loss_and_accuracy(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean loss and share of correct predictions of a batch."""
        inputs, labels = batch
        logits = self(inputs)
        if self.probe.out_features == 1:
            margin = labels * logits.squeeze(1)
            return F.softplus(-margin).mean(), (margin > 0).float().mean()
        return F.cross_entropy(logits, labels), (logits.argmax(1) == labels).float().mean()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Makes ``epochs_per_step`` steps of gradient descent."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        share, weight = self._share(batch)
        for epoch in range(1, self.epochs_per_step + 1):
            loss, accuracy = (weight * value for value in self.loss_and_accuracy(share))
            optimizer.zero_grad()
            self.manual_backward(loss)
            loss = self._over_processes(loss)
            if not bool(torch.isfinite(loss)):
                raise InputError(
                    f"the training diverged (loss {float(loss)}); lower "
                    "model.learning_rate or model.weight_decay"
                )
            # Only the last of them counts as a step of the trainer.
            (optimizer if epoch == self.epochs_per_step else optimizer.optimizer).step()
        self.log_dict(
            {
                "train/loss": loss,
                "train/accuracy": self._over_processes(accuracy),
                "train/gradient_norm": self.regularised_gradient_norm(),
            },
            batch_size=len(batch[1]),
            prog_bar=True,
        )

    def _share(self, batch: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], float]:
        """This process's samples, and the weight that makes the mean over processes theirs."""
        rank, world = self.trainer.global_rank, self.trainer.world_size
        inputs, labels = (tensor[rank::world] for tensor in batch)
        return (inputs, labels), world * len(labels) / len(batch[1])

    def _over_processes(self, value: Tensor) -> Tensor:
        mean = self.trainer.strategy.reduce(value.detach().clone())
        assert isinstance(mean, Tensor)
        return mean

    def regularised_gradient_norm(self) -> Tensor:
        """‖∇loss + wd·θ‖: zero where the stationarity that the attack solves is exact."""
        squares = [
            (parameter.grad + self.weight_decay * parameter).square().sum()
            for parameter in self.parameters()
            if parameter.grad is not None
        ]
        return torch.stack(squares).sum().sqrt()

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs loss and accuracy on held-out data."""
        self._log_evaluation("val", batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs loss and accuracy on held-out data, and how attackable the probe is.

        The latter compares the weights with the training set (see
        :class:`~attacks.attackability.Attackability`); what has no value is not logged.

        Raises:
            InputError: The probe was trained with another weight decay than this module has.
        """
        if self._trained_weight_decay != self.weight_decay:
            raise InputError(
                f"the probe was trained with weight decay {self._trained_weight_decay}, not "
                f"{self.weight_decay}: set model.weight_decay to {self._trained_weight_decay}"
            )
        self._log_evaluation("test", batch)
        inputs, labels = self.trainer.datamodule.train_tensors  # type: ignore[attr-defined]
        self.attackability = measure_attackability(
            self.probe.weights_and_biases(),
            self.probe.standardise(inputs.to(self.device)),
            labels,
            self.weight_decay,
        )
        for name, value in vars(self.attackability).items():
            if value is not None:
                self.log(f"attackability/{name}", float(value), batch_size=1)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remembers the weight decay that made the weights."""
        saved = checkpoint.get("hyper_parameters", {})
        self._trained_weight_decay = saved.get("weight_decay", self.weight_decay)

    def _log_evaluation(self, stage: str, batch: tuple[Tensor, Tensor]) -> None:
        loss, accuracy = self.loss_and_accuracy(batch)
        size = len(batch[1])
        values = {f"{stage}/loss": loss, f"{stage}/accuracy": accuracy}
        self.log_dict(values, batch_size=size, sync_dist=True)

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Logits (N, C)."""
        logits: Tensor = self(batch[0])
        return logits

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent with coupled weight decay."""
        return torch.optim.SGD(
            self.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
        )
