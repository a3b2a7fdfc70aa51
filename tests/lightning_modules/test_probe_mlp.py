"""Training of the probe against a plain loop in float64."""

from pathlib import Path

import lightning as L
import pytest
import torch

from artifacts.errors import InputError
from datamodules import DigitsDataModule
from datamodules.in_memory import Batch, InMemoryDataModule
from lightning_modules import ProbeMLP


class TinyData(InMemoryDataModule):
    """Twelve samples of six features in three classes."""

    def load(self) -> tuple[Batch, Batch]:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(24, 6, generator=generator)
        labels = torch.arange(24) % 3
        return (inputs[:12], labels[:12]), (inputs[12:], labels[12:])


def train(module: ProbeMLP, data: L.LightningDataModule, epochs: int, root: Path) -> L.Trainer:
    trainer = L.Trainer(
        default_root_dir=root,
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, data)
    return trainer


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("bias", ["none", "all"])
def test_training_is_gradient_descent_with_weight_decay(
    outputs: int, bias: str, tmp_path: Path
) -> None:
    data = DigitsDataModule(20) if outputs == 1 else TinyData()
    inputs, labels = data.train_tensors
    module = ProbeMLP(inputs.shape[1], [9, 5], outputs, bias, 0.1, 0.05, 0.7, epochs_per_step=10)  # type: ignore[arg-type]
    parameters = [p.detach().double().clone().requires_grad_() for p in module.parameters()]
    trainer = train(module, data, 3, tmp_path)

    x = ((inputs - inputs.mean(0)) / inputs.std(0).where(inputs.std(0) > 0, 1)).double()
    for _ in range(30):
        hidden, rest = x, list(parameters)
        while rest:
            weight = rest.pop(0)
            hidden = hidden @ weight.T
            if bias == "all":
                hidden = hidden + rest.pop(0)
            if rest:
                hidden = hidden.clamp(min=0)
        if outputs == 1:
            loss = torch.log1p(torch.exp(-labels * hidden[:, 0])).mean()
        else:
            loss = -torch.log_softmax(hidden, 1)[torch.arange(len(labels)), labels].mean()
        loss = loss + 0.05 / 2 * sum(p.square().sum() for p in parameters)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            before = [p.clone() for p in parameters]
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0.1 * gradient
    for ours, theirs in zip(module.parameters(), parameters, strict=True):
        torch.testing.assert_close(ours.detach().double(), theirs.detach(), rtol=1e-3, atol=2e-5)
    # The logged norm is of the regularised loss's gradient, at the parameters it was taken at
    # for the loss, and after the step for the decay.
    norm = (
        torch.stack(
            [
                (g - 0.05 * b + 0.05 * p).square().sum()
                for g, b, p in zip(gradients, before, parameters, strict=True)
            ]
        )
        .sum()
        .sqrt()
    )
    torch.testing.assert_close(
        trainer.callback_metrics["train/gradient_norm"].double(),
        norm.detach(),
        rtol=1e-3,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (ProbeMLP(6, [4], 2), "labels \\[0, 1, 2\\] do not fit 2"),
        (ProbeMLP(6, [4], 1), "labels \\[0, 1, 2\\] do not fit 1"),
        (ProbeMLP(7, [4], 3), "set model.in_features to 6"),
    ],
)
def test_data_that_do_not_fit_are_refused(module: ProbeMLP, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        train(module, TinyData(), 1, tmp_path)
