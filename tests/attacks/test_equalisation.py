"""Equalised layers have the solutions of the original ones."""

import pytest
import torch

from attacks.equalisation import equalised, neuron_scales


@pytest.mark.parametrize("bias", [False, True])
def test_exact_solutions_stay_solutions(bias: bool) -> None:
    """A network that is built to be stationary stays so, by autograd of the ordinary network."""
    generator = torch.Generator().manual_seed(0)

    def randn(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    inputs, labels = randn(7, 5), torch.tensor([1.0, -1, 1, -1, 1, -1, 1])
    weight, output = randn(6, 5), randn(1, 6)
    offset = randn(6) if bias else torch.zeros(6, dtype=torch.float64)
    scale = neuron_scales(output)
    multipliers = torch.rand(7, generator=generator)

    def gradient_sums(w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.clone().requires_grad_() for x in (w, b, v)]
        outputs = torch.relu(inputs @ leaves[0].T + leaves[1]) @ leaves[2].T
        total = (multipliers * labels * outputs.squeeze(1)).sum()
        return list(torch.autograd.grad(total, leaves))

    layers = equalised([(weight, offset if bias else None), (output, None)])
    (new_weight, new_offset), (new_output, _) = layers
    assert (new_offset is None) == (not bias)
    if new_offset is None:
        new_offset = torch.zeros(6, dtype=torch.float64)
    old = gradient_sums(weight, offset, output)
    new = gradient_sums(new_weight, new_offset, new_output)
    # Both sides of each neuron's equations are divided by its scale: so is the residual.
    torch.testing.assert_close((weight - old[0]) / scale[:, None], new_weight - new[0])
    torch.testing.assert_close((offset - old[1]) / scale, new_offset - new[1])
    torch.testing.assert_close((output - old[2]) / scale, new_output - new[2])
    torch.testing.assert_close(new_output.abs(), torch.ones_like(output))


def test_small_neurons_are_not_blown_up() -> None:
    scale = neuron_scales(torch.tensor([[1.0, -2.0, 0.0, 1e-9]]))
    assert scale.tolist() == pytest.approx([1.0, 2.0, 0.02, 0.02])


def test_several_outputs_are_refused() -> None:
    with pytest.raises(ValueError, match="one output only"):
        equalised([(torch.ones(3, 2), None), (torch.ones(2, 3), None)])
