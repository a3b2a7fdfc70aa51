"""The attacked classifier: a multilayer perceptron on embeddings that carries its standardisation.

Reconstructing Training Data From Real-World Models Trained with Transfer Learning, sections 4, B.1.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

Bias = Literal["none", "first", "all"]


class Probe(nn.Module):
    """An MLP D-W-…-C with ReLU between its layers.

    Inputs are standardised with the training set's mean and standard deviation, which the paper
    counts as part of the model (B.1); both are buffers, so whoever has the probe has them.

    Args:
        in_features: Dimension D of an embedding.
        hidden: Widths of the hidden layers; empty for a linear probe.
        out_features: 1 for labels ±1, else the number of classes C.
        bias: Which layers have a bias: ``"none"``, ``"first"`` or ``"all"``.

    Raises:
        ValueError: A width is not positive.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int] = (500,),
        out_features: int = 1,
        bias: Bias = "none",
    ) -> None:
        super().__init__()
        widths = [in_features, *hidden, out_features]
        if min(widths) < 1:
            raise ValueError(f"layer widths must be positive, got {'-'.join(map(str, widths))}")
        self.layers = nn.ModuleList(
            nn.Linear(width, next_width, bias=bias == "all" or (bias == "first" and index == 0))
            for index, (width, next_width) in enumerate(itertools.pairwise(widths))
        )
        self.register_buffer("mean", torch.zeros(in_features))
        self.register_buffer("std", torch.ones(in_features))

    @property
    def in_features(self) -> int:
        """Dimension D of an embedding."""
        return len(self.mean)

    @property
    def out_features(self) -> int:
        """Number of outputs C."""
        return len(self.weights_and_biases()[-1][0])

    def weights_and_biases(self) -> list[tuple[Tensor, Tensor | None]]:
        """``(weight (out, in), bias (out,) or None)`` from the first layer to the last."""
        linears = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        return [(linear.weight, linear.bias) for linear in linears]

    def set_standardisation(self, inputs: Tensor) -> None:
        """Stores mean and standard deviation of the training set (B.1, with n - 1).

        Args:
            inputs: Training embeddings (n, D). A dimension that never varies keeps the scale 1.
        """
        self.mean.copy_(inputs.mean(dim=0))
        std = inputs.std(dim=0) if len(inputs) > 1 else torch.zeros_like(self.std)
        self.std.copy_(torch.where(std > 0, std, torch.ones_like(std)))

    def standardise(self, inputs: Tensor) -> Tensor:
        """Embeddings (…, D) of the backbone to the space the layers see."""
        return (inputs - self.mean) / self.std

    def destandardise(self, inputs: Tensor) -> Tensor:
        """Standardised vectors (…, D) back to the backbone's space."""
        return inputs * self.std + self.mean

    def forward(self, inputs: Tensor) -> Tensor:
        """Embeddings (N, D) to logits (N, C)."""
        hidden = self.standardise(inputs)
        for layer in self.layers[:-1]:
            hidden = torch.relu(layer(hidden))
        logits: Tensor = self.layers[-1](hidden)
        return logits

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Tensor]) -> "Probe":
        """Builds a probe from anybody's state dict of linear layers.

        The order of the layers is that of the numbers in their names, or else the only one in
        which their shapes fit; files do not keep the order of entries. A vector named like a
        matrix with ``bias`` for ``weight`` is its bias. Vectors named ``mean`` and ``std`` (after
        the last dot) are the standardisation; without them inputs are taken as they are.

        Args:
            state_dict: Name to tensor.

        Raises:
            ValueError: It is not a chain of linear layers.
        """
        names = _in_order(
            {name: weight for name, weight in state_dict.items() if name.split(".")[-1] == "weight"}
        )
        weights = [state_dict[name] for name in names]
        biases = [state_dict.get(name.removesuffix("weight") + "bias") for name in names]
        buffers = {
            name.split(".")[-1]: value
            for name, value in state_dict.items()
            if name.split(".")[-1] in ("mean", "std")
        }
        known = {*names, *(name.removesuffix("weight") + "bias" for name in names)}
        other = [n for n in state_dict if n not in known and n.split(".")[-1] not in buffers]
        if not weights:
            raise ValueError("it has no '*.weight' matrix")
        if other:
            raise ValueError(f"'{other[0]}' does not belong to a chain of linear layers")
        for name, weight, bias in zip(names, weights, biases, strict=True):
            if weight.dim() != 2 or not weight.is_floating_point():
                raise ValueError(f"'{name}' of shape {tuple(weight.shape)} is not a linear layer")
            if bias is not None and bias.shape != weight.shape[:1]:
                raise ValueError(f"the bias of '{name}' has shape {tuple(bias.shape)}")
        for (name, weight), following in zip(
            zip(names, weights, strict=True), weights[1:], strict=False
        ):
            if following.shape[1] != weight.shape[0]:
                raise ValueError(
                    f"'{name}' has {weight.shape[0]} outputs, the next layer "
                    f"{following.shape[1]} inputs"
                )
        in_features = weights[0].shape[1]
        for name, value in buffers.items():
            if value.shape != (in_features,):
                raise ValueError(f"'{name}' has shape {tuple(value.shape)}, not ({in_features},)")
        if "std" in buffers and bool((buffers["std"] <= 0).any()):
            raise ValueError("'std' must be positive")
        probe = cls(in_features, [len(weight) for weight in weights[:-1]], len(weights[-1]))
        probe.layers = nn.ModuleList()
        for weight, bias in zip(weights, biases, strict=True):
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
            linear.weight.data = weight.detach().clone().float()
            if bias is not None:
                linear.bias.data = bias.detach().clone().float()
            probe.layers.append(linear)
        for name, value in buffers.items():
            getattr(probe, name).copy_(value)
        return probe


def _in_order(weights: Mapping[str, Tensor]) -> list[str]:
    """Names of weight matrices, from the first layer to the last."""
    numbers = {name: [int(number) for number in re.findall(r"\d+", name)] for name in weights}
    stems = {re.sub(r"\d+", "#", name) for name in weights}
    if len(stems) <= 1:
        return sorted(weights, key=lambda name: numbers[name])
    if any(weight.dim() != 2 for weight in weights.values()) or len(weights) > 6:
        return list(weights)
    chains = [
        list(order)
        for order in itertools.permutations(weights)
        if all(len(weights[a]) == weights[b].shape[1] for a, b in itertools.pairwise(order))
    ]
    if len(chains) > 1:
        raise ValueError(
            "neither names nor shapes tell the order of its layers; name them 0.weight, 1.weight …"
        )
    return chains[0] if chains else list(weights)
