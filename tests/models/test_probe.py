"""The probe and what it accepts as one."""

import numpy as np
import pytest
import torch
from torch import nn

from models.probe import Probe


def test_standardisation_is_that_of_the_paper() -> None:
    inputs = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    inputs[:, 2] = 7.0
    probe = Probe(4, [6])
    probe.set_standardisation(inputs)
    standardised = probe.standardise(inputs).numpy()
    expected = (inputs.numpy() - inputs.numpy().mean(0)) / inputs.numpy().std(0, ddof=1).clip(1e-9)
    np.testing.assert_allclose(standardised[:, [0, 1, 3]], expected[:, [0, 1, 3]], rtol=1e-4)
    np.testing.assert_allclose(standardised[:, 2], 0)
    torch.testing.assert_close(probe.destandardise(probe.standardise(inputs)), inputs)


@pytest.mark.parametrize("bias", ["none", "first", "all"])
@pytest.mark.parametrize("hidden", [[], [5], [5, 7]])
def test_a_probe_is_rebuilt_from_any_state_dict_of_its_layers(bias: str, hidden: list[int]) -> None:
    probe = Probe(4, hidden, 3, bias)  # type: ignore[arg-type]
    probe.set_standardisation(torch.randn(9, 4))
    inputs = torch.randn(8, 4)
    state = {f"anything.{name}": value for name, value in probe.state_dict().items()}
    torch.testing.assert_close(Probe.from_state_dict(state)(inputs), probe(inputs))
    plain = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
    torch.testing.assert_close(Probe.from_state_dict(plain.state_dict())(inputs), plain(inputs))


def test_layers_are_put_in_order_whatever_the_order_of_the_file() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(8, 4)
    deep = nn.Sequential(*[m for w in range(6) for m in (nn.Linear(4, 4), nn.ReLU())][:-1])
    shuffled = dict(sorted(deep.state_dict().items(), key=lambda item: str(item[0])))
    assert list(shuffled)[2] == "10.bias"
    torch.testing.assert_close(Probe.from_state_dict(shuffled)(inputs), deep(inputs))
    hidden, head = nn.Linear(4, 5), nn.Linear(5, 1)
    state = {"head.weight": head.weight, "head.bias": head.bias}
    state |= {"hidden.weight": hidden.weight, "hidden.bias": hidden.bias}
    expected = head(torch.relu(hidden(inputs)))
    torch.testing.assert_close(Probe.from_state_dict(state)(inputs), expected)
    with pytest.raises(ValueError, match="neither names nor shapes tell"):
        Probe.from_state_dict({"hid.weight": torch.ones(4, 4), "inp.weight": torch.ones(4, 4)})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"x": torch.ones(3)}, "no '\\*.weight' matrix"),
        ({"0.weight": torch.ones(3, 4, 2)}, "is not a linear layer"),
        ({"0.weight": torch.ones(3, 4, dtype=torch.int64)}, "is not a linear layer"),
        ({"0.weight": torch.ones(3, 4), "1.weight": torch.ones(2, 5)}, "3 outputs, the next layer"),
        ({"0.weight": torch.ones(3, 4), "0.bias": torch.ones(4)}, "the bias of '0.weight'"),
        ({"0.weight": torch.ones(3, 4), "cls_token": torch.ones(4)}, "'cls_token' does not belong"),
        ({"0.weight": torch.ones(3, 4), "mean": torch.ones(5)}, "'mean' has shape"),
        ({"0.weight": torch.ones(3, 4), "std": torch.zeros(4)}, "'std' must be positive"),
    ],
)
def test_other_models_are_refused(state: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Probe.from_state_dict(state)


def test_widths_must_be_positive() -> None:
    with pytest.raises(ValueError, match="4-0-1"):
        Probe(4, [0])
