"""The closed-form KKT residual against double backward, finite differences and golden values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attacks import kkt, kkt_derivatives
from attacks.kkt_derivatives import Rivals
from attacks.probe_layers import parameter_norm, probe_outputs
from attacks.scratch import Scratch

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden" / "kkt.npz"
GOLDEN_CASES = [
    "binary_bias_first",
    "binary_no_bias",
    "binary_two_hidden",
    "binary_two_hidden_biases",
    "multiclass",
    "multiclass_bias",
]


@dataclass(frozen=True)
class Problem:
    """Everything that the residual depends on, R draws."""

    layers: list[tuple[Tensor, Tensor | None]]
    candidates: Tensor
    multipliers: Tensor
    labels: Tensor
    relu_alpha: Tensor

    def draw(self, r: int) -> Problem:
        one = slice(r, r + 1)
        return replace(
            self,
            candidates=self.candidates[one],
            multipliers=self.multipliers[one],
            labels=self.labels if self.labels.ndim == 1 else self.labels[one],
            relu_alpha=self.relu_alpha[one],
        )

    def to(self, dtype: torch.dtype) -> Problem:
        return Problem(
            [(w.to(dtype), None if b is None else b.to(dtype)) for w, b in self.layers],
            self.candidates.to(dtype),
            self.multipliers.to(dtype),
            self.labels,
            self.relu_alpha.to(dtype),
        )

    def evaluate(self, **options: Any) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401
        return kkt.kkt_loss_and_grad(
            self.layers,
            self.candidates,
            self.multipliers,
            self.labels,
            self.relu_alpha,
            **options,
        )


def make_problem(
    widths: list[int],
    *,
    n_draws: int = 3,
    m: int = 7,
    biases: list[bool] | None = None,
    labels_per_draw: bool = False,
    seed: int = 0,
) -> Problem:
    """Random problem; `widths` runs from the input to the outputs."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    biases = biases or [True] * (len(widths) - 1)
    layers = [
        (normal(b, a) / a**0.5, 0.3 * normal(b) if has_bias else None)
        for (a, b), has_bias in zip(pairwise(widths), biases, strict=True)
    ]
    labels = torch.randint(
        max(widths[-1], 2), (n_draws, m) if labels_per_draw else (m,), generator=g
    )
    if widths[-1] == 1:
        labels = 2 * labels - 1
    # Multipliers of both signs: nothing in the residual keeps an attack from passing through zero.
    multipliers = torch.rand(n_draws, m, generator=g, dtype=torch.float64) - 0.2
    relu_alpha = 10 + 490 * torch.rand(n_draws, generator=g, dtype=torch.float64)
    return Problem(layers, normal(n_draws, m, widths[0]), multipliers, labels, relu_alpha)


def with_field(problem: Problem, field: str, value: Any) -> Problem:  # noqa: ANN401
    return replace(problem, **{field: value})


class ModifiedReLU(torch.autograd.Function):
    """max(z, 0) going forward, times sigmoid(alpha z) in a backward pass that can be repeated."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, alpha: Tensor) -> Tensor:  # noqa: ANN401
        """Ordinary ReLU."""
        ctx.save_for_backward(z, alpha)
        return z.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        """Softened derivative."""
        z, alpha = ctx.saved_tensors
        return grad * torch.sigmoid(alpha * z), None


def double_backward(
    problem: Problem, rivals: Rivals = "strongest"
) -> tuple[Tensor, Tensor, Tensor]:
    """The published loss as it is defined: one draw and one sample at a time, twice through it."""
    results = []
    for r, alpha in enumerate(problem.relu_alpha):
        x = problem.candidates[r].clone().requires_grad_()
        multipliers = problem.multipliers[r].clone().requires_grad_()
        parameters = [
            p.clone().requires_grad_() for layer in problem.layers for p in layer if p is not None
        ]
        differences = [p.detach() for p in parameters]
        labels = problem.labels if problem.labels.ndim == 1 else problem.labels[r]
        for i, label in enumerate(labels):
            left = iter(parameters)
            out = x[i]
            for depth, (_, bias) in enumerate(problem.layers):
                out = next(left) @ out
                if bias is not None:
                    out = out + next(left)
                if depth + 1 < len(problem.layers):
                    out = ModifiedReLU.apply(out, alpha)
            if len(out) == 1:
                value = label * out[0]
            else:
                other = out[torch.arange(len(out)) != label]
                share = other.detach().softmax(0)
                strongest = other.max(dim=0).values
                value = out[label] - (strongest if rivals == "strongest" else share @ other)
            gradients = torch.autograd.grad(value, parameters, create_graph=True)
            differences = [
                d - multipliers[i] * g for d, g in zip(differences, gradients, strict=True)
            ]
        loss = torch.stack([d.square().sum() for d in differences]).sum()
        results.append((loss.detach(), *torch.autograd.grad(loss, (x, multipliers))))
    losses, grads_x, grads_multipliers = zip(*results, strict=True)
    return torch.stack(losses), torch.stack(grads_x), torch.stack(grads_multipliers)


def assert_close(
    actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float = 1e-9
) -> None:
    """Each draw's error, relative to the size of the expected tensor."""
    for name, a, e in zip(("loss", "candidates", "multipliers"), actual, expected, strict=True):
        assert a.shape == e.shape, name
        for r, (one, want) in enumerate(zip(a, e, strict=True)):
            error = torch.linalg.vector_norm(one - want)
            size = torch.linalg.vector_norm(want)
            # Where every unit is dead, what is left are the slopes' tails, cut off at sqrt(tiny).
            assert error <= tolerance * size + 1e-140, f"{name} of draw {r}: {error / size:.1e}"


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    outputs = draw(st.sampled_from([1, 1, 2, 3, 5]))
    hidden = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    widths = [draw(st.integers(1, 6)), *hidden, outputs]
    return make_problem(
        widths,
        n_draws=draw(st.integers(1, 3)),
        m=draw(st.integers(1, 6)),
        biases=draw(st.lists(st.booleans(), min_size=len(widths) - 1, max_size=len(widths) - 1)),
        labels_per_draw=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
    )


@settings(max_examples=150, deadline=None)
@given(problem=problems())
@example(problem=make_problem([5, 4, 1]))
@example(problem=make_problem([5, 4, 1], biases=[False, False]))
@example(problem=make_problem([5, 4, 4], biases=[True, False]))
@example(problem=make_problem([5, 4, 3, 1], biases=[False, True, False]))
@example(problem=make_problem([5, 4, 1, 1]))
@example(problem=make_problem([5, 4, 1, 3], labels_per_draw=True))
def test_equals_double_backward(problem: Problem) -> None:
    assert_close(problem.evaluate(), double_backward(problem))


@settings(max_examples=30, deadline=None)
@given(problem=problems())
@example(problem=make_problem([5, 4, 3, 4], biases=[True, False, True], labels_per_draw=True))
def test_all_rivals_equal_double_backward_too(problem: Problem) -> None:
    assert_close(problem.evaluate(rivals="all"), double_backward(problem, "all"))


@pytest.mark.skipif(not GOLDEN.exists(), reason=f"golden values are not at {GOLDEN}")
@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_equals_published_code(case: str) -> None:
    with np.load(GOLDEN) as file:
        values = {
            key.removeprefix(f"{case}/"): torch.from_numpy(file[key])
            for key in file.files
            if key.startswith(f"{case}/")
        }
    layers = [
        (values[f"weight{i}"], values.get(f"bias{i}")) for i in range(int(values["n_layers"]))
    ]
    candidates, multipliers, relu_alpha, loss, grad_candidates, grad_multipliers = (
        values[name][None]
        for name in (
            "candidates",
            "multipliers",
            "relu_alpha",
            "loss",
            "grad_candidates",
            "grad_multipliers",
        )
    )
    problem = Problem(layers, candidates, multipliers, values["labels"], relu_alpha)
    assert_close(problem.evaluate(), (loss, grad_candidates, grad_multipliers), 1e-12)


@pytest.mark.parametrize("widths", [[5, 6, 1], [5, 6, 4], [5, 6, 4, 1], [5, 6, 5, 3]])
def test_finite_differences_where_the_softened_slope_is_the_true_one(widths: list[int]) -> None:
    # So sharp that sigmoid(alpha z) is 0 or 1 unless z is within a few 1e-7 of the kink.
    problem = make_problem(widths, n_draws=2)
    problem = replace(problem, relu_alpha=torch.full((2,), 1e8, dtype=torch.float64))
    _, *grads = problem.evaluate()
    step = 1e-6
    for field, grad in zip(("candidates", "multipliers"), grads, strict=True):
        value: Tensor = getattr(problem, field)
        direction = torch.randn(value.shape, dtype=torch.float64, generator=torch.Generator())
        up, down = (
            with_field(problem, field, value + sign * step * direction).evaluate()[0]
            for sign in (1, -1)
        )
        slope = (grad * direction).flatten(1).sum(1)
        torch.testing.assert_close((up - down) / (2 * step), slope, rtol=1e-6, atol=1e-6)


def test_loss_is_the_distance_between_parameters_and_their_explanation() -> None:
    # Sharp slopes again: the ordinary gradients of the ordinary network, without modified ReLU.
    problem = make_problem([5, 6, 4, 1], n_draws=1)
    problem = replace(problem, relu_alpha=torch.full((1,), 1e8, dtype=torch.float64))
    layers = [
        (w.clone().requires_grad_(), b.clone().requires_grad_())
        for w, b in problem.layers
        if b is not None
    ]
    outputs = probe_outputs(layers, problem.candidates[0])[:, 0]
    explained = (problem.multipliers[0] * problem.labels * outputs).sum()
    parameters = [p for layer in layers for p in layer]
    gradients = torch.autograd.grad(explained, parameters)
    distances = [
        (p.detach() - g).square().sum() for p, g in zip(parameters, gradients, strict=True)
    ]
    torch.testing.assert_close(problem.evaluate()[0][0], torch.stack(distances).sum())


@pytest.mark.parametrize("bias", [True, False])
def test_tied_classes_resolve_to_the_lowest_index(bias: bool) -> None:
    problem = make_problem([5, 6, 4], biases=[True, bias])
    (first, (weight, shift)) = problem.layers
    weight[2] = weight[1]
    weight[3] = weight[1]
    if shift is not None:
        shift[1:] = shift[1] + 1
    problem = replace(problem, labels=torch.tensor([0, 1, 2, 3, 0, 1, 2]))
    assert_close(problem.evaluate(), double_backward(problem))

    # The same with the tie broken by a hair: classes 2 and 3 never win unless class 1 is the label.
    broken = weight.clone()
    broken[3] -= 1e-13 * weight[3].abs().max() * torch.ones_like(weight[3])
    broken[2] -= 0.5e-13 * weight[2].abs().max() * torch.ones_like(weight[2])
    untied = replace(problem, layers=[first, (broken, shift)])
    assert_close(problem.evaluate(), untied.evaluate())


def test_the_strongest_other_class_may_change_between_candidates() -> None:
    problem = make_problem([6, 8, 5], n_draws=4, m=40)
    outputs = probe_outputs(problem.layers, problem.candidates)
    rival = outputs.scatter(-1, problem.labels.expand(4, 40)[..., None], -torch.inf).argmax(-1)
    assert len(set(rival.flatten().tolist())) > 2
    assert_close(problem.evaluate(), double_backward(problem))


@pytest.mark.parametrize("widths", [[5, 6, 1], [5, 6, 4], [5, 6, 4, 1]])
@pytest.mark.parametrize("elements", [1, 100, 1 << 20])
def test_batched_draws_equal_single_draws(
    widths: list[int], elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(widths, n_draws=4, labels_per_draw=True)
    singles = [problem.draw(r).evaluate() for r in range(4)]
    monkeypatch.setattr(kkt_derivatives, "_GROUP_ELEMENTS_CPU", elements)
    assert_close(problem.evaluate(), tuple(map(torch.cat, zip(*singles, strict=True))), 1e-13)


@pytest.mark.parametrize("widths", [[5, 6, 1], [5, 6, 4], [5, 6, 4, 1]])
@pytest.mark.parametrize("field", ["candidates", "multipliers"])
def test_a_diverged_draw_leaves_the_others_alone_bit_for_bit(widths: list[int], field: str) -> None:
    problem = make_problem(widths, n_draws=4).to(torch.float32)
    clean = problem.evaluate()
    for diverged in range(4):
        poisoned = getattr(problem, field).clone()
        poisoned[diverged] = torch.nan
        others = [r for r in range(4) if r != diverged]
        for ours, theirs in zip(
            with_field(problem, field, poisoned).evaluate(), clean, strict=True
        ):
            assert ours[diverged].isnan().all()
            assert torch.equal(ours[others], theirs[others])


@pytest.mark.parametrize("widths", [[5, 6, 1], [5, 6, 4], [5, 6, 4, 1]])
def test_autograd_gives_the_same_gradients(widths: list[int]) -> None:
    problem = make_problem(widths)
    loss, grad_candidates, grad_multipliers = problem.evaluate()
    x = problem.candidates.clone().requires_grad_()
    multipliers = problem.multipliers.clone().requires_grad_()
    value = kkt.kkt_loss(problem.layers, x, multipliers, problem.labels, problem.relu_alpha)
    weights = torch.tensor([0.5, -2.0, 3.0], dtype=torch.float64)
    torch.autograd.backward((weights * value).sum())
    assert torch.equal(value, loss)
    torch.testing.assert_close(x.grad, weights[:, None, None] * grad_candidates, rtol=1e-14, atol=0)
    torch.testing.assert_close(
        multipliers.grad, weights[:, None] * grad_multipliers, rtol=1e-14, atol=0
    )


def test_autograd_needs_no_gradient_and_gives_one_only_where_asked() -> None:
    problem = make_problem([5, 6, 1])
    arguments = (problem.labels, problem.relu_alpha)
    loss = kkt.kkt_loss(problem.layers, problem.candidates, problem.multipliers, *arguments)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, problem.evaluate()[0])
    multipliers = problem.multipliers.clone().requires_grad_()
    loss = kkt.kkt_loss(problem.layers, problem.candidates, multipliers, *arguments)
    torch.autograd.backward(loss.sum())
    torch.testing.assert_close(multipliers.grad, problem.evaluate()[2])


def test_a_second_backward_says_so() -> None:
    problem = make_problem([5, 6, 1])
    x = problem.candidates.requires_grad_()
    loss = kkt.kkt_loss(problem.layers, x, problem.multipliers, problem.labels, problem.relu_alpha)
    torch.autograd.backward(loss.sum(), retain_graph=True)
    with pytest.raises(RuntimeError, match="only once"):
        torch.autograd.backward(loss.sum())


def test_scratch_and_layout_do_not_matter() -> None:
    scratch = Scratch()
    for widths, n_draws in (([5, 6, 1], 3), ([9, 3, 4], 2), ([5, 6, 4, 1], 5), ([2, 2, 1], 1)):
        problem = make_problem(widths, n_draws=n_draws)
        expected = problem.evaluate()
        x = problem.candidates.transpose(0, 2).contiguous().transpose(0, 2)
        strided = replace(
            problem, candidates=x, multipliers=problem.multipliers.t().contiguous().t()
        )
        for _ in range(2):
            actual = strided.evaluate(scratch=scratch)
            assert all(map(torch.equal, actual, expected))
    single = problem.to(torch.float32).evaluate(scratch=scratch)
    assert all(t.dtype == torch.float32 for t in single)


@pytest.mark.parametrize("widths", [[12, 20, 1], [12, 20, 4], [12, 20, 10, 1]])
def test_float32_agrees_and_extreme_slopes_stay_finite(widths: list[int]) -> None:
    problem = make_problem(widths, m=30)
    single = problem.to(torch.float32)
    assert_close(single.evaluate(), single.to(torch.float64).evaluate(), 1e-4)
    for alpha in (1e-6, 1e6, 1e30):
        extreme = replace(problem, relu_alpha=torch.full((3,), alpha, dtype=torch.float64))
        assert all(t.isfinite().all() for t in extreme.to(torch.float32).evaluate())


class ProductCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the number of scalar multiplications of every matrix product."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products: list[int] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Runs the operation and looks at its last two factors."""
        name = str(func).split(".")[1].rstrip("_")
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            first, second = [a for a in args if isinstance(a, Tensor)][-2:]
            self.products.append(first.numel() * second.shape[-1])
        return func(*args, **(kwargs or {}))


def test_five_products_with_the_first_layer_and_seven_with_the_next() -> None:
    n_draws, m, width, hidden, second = 2, 16, 32, 24, 20
    problem = make_problem([width, hidden, 1], n_draws=n_draws, m=m)
    with ProductCounter() as counter:
        problem.evaluate()
    large = n_draws * m * width * hidden
    assert sorted(counter.products)[-5:] == [large] * 5
    assert sum(counter.products) - 5 * large <= 4 * n_draws * m * hidden

    x = problem.candidates.requires_grad_()
    with ProductCounter() as counter:
        loss = kkt.kkt_loss(
            problem.layers, x, problem.multipliers, problem.labels, problem.relu_alpha
        )
        torch.autograd.backward(loss.sum())
    assert counter.products.count(large) == 5

    deep = make_problem([width, hidden, second, 1], n_draws=n_draws, m=m)
    with ProductCounter() as counter:
        deep.evaluate()
    assert counter.products.count(large) == 5
    assert counter.products.count(n_draws * m * hidden * second) == 7


class MemoryCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the size of every memory that an operation writes to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Runs the operation and looks at what it returns."""
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            storage = result.untyped_storage()
            self.sizes[storage.data_ptr()] = storage.nbytes() // result.element_size()
        return result


@pytest.mark.parametrize(
    ("hidden", "outputs", "arrays"),
    [
        ([64], 1, 2),  # Activations and slopes.
        ([64], 3, 3),  # With several outputs u_l too.
        ([64, 64], 1, 5),
        ([128], 1, 6),  # As wide as two, and too wide for the gradient's memory.
    ],
)
def test_one_draw_works_in_few_intermediates(hidden: list[int], outputs: int, arrays: int) -> None:
    m, features = 64, 96
    problem = make_problem([features, *hidden, outputs], n_draws=1, m=m)
    scratch = Scratch()
    problem.evaluate(scratch=scratch)
    with MemoryCounter() as counter:
        problem.evaluate(scratch=scratch)
    given = {problem.candidates, *(p for layer in problem.layers for p in layer if p is not None)}
    for tensor in given:
        counter.sizes.pop(tensor.untyped_storage().data_ptr(), None)
    weights = sum(weight.numel() for weight, _ in problem.layers)
    unavoidable = m * features + weights  # The gradient, and the residuals.
    array = m * 64
    assert sum(counter.sizes.values()) - unavoidable < (arrays + 0.5) * array


def test_a_linear_probe_is_refused_and_runs_when_asked() -> None:
    problem = make_problem([5, 1])
    with pytest.raises(ValueError, match="needs a probe with a hidden layer"):
        problem.evaluate()
    for outputs in (1, 4):
        problem = make_problem([5, outputs])
        assert_close(problem.evaluate(allow_linear=True), double_backward(problem))

    # And it is exact where the parameters are the weighted sum of the samples.
    problem = make_problem([5, 1], n_draws=1, biases=[False])
    weight = (problem.multipliers * problem.labels) @ problem.candidates[0]
    loss, *_ = replace(problem, layers=[(weight, None)]).evaluate(allow_linear=True)
    assert loss.item() < 1e-28


@pytest.mark.parametrize(
    ("widths", "change", "message"),
    [
        ([5, 6, 1], {"layers": []}, "hidden layer"),
        ([5, 6, 1], {"candidates": torch.zeros(7, 5)}, r"candidates must be \(R, m, D\)"),
        ([5, 6, 1], {"candidates": torch.zeros(3, 0, 5)}, "none of them 0"),
        ([5, 6, 1], {"candidates": torch.zeros(3, 7, 5).half()}, "not torch.float16"),
        ([5, 6, 1], {"candidates": torch.zeros(3, 7, 5).long()}, "not torch.int64"),
        ([5, 6, 1], {"candidates": torch.zeros(3, 7, 4)}, "weight of layer 0"),
        ([5, 6, 1], {"candidates": torch.zeros(3, 7, 5)}, "share a type"),
        ([5, 6, 1], {"multipliers": torch.zeros(3, 8)}, "multipliers must be"),
        ([5, 6, 1], {"labels": torch.ones(8)}, "labels must be"),
        ([5, 6, 1], {"labels": torch.ones(7).bool()}, "torch.bool"),
        ([5, 6, 1], {"labels": torch.tensor([0, 1, 0, 1, 0, 1, 0])}, "must be -1 or [+]1"),
        ([5, 6, 4], {"labels": torch.tensor([0, 1, 2, 3, 4, 0, 0])}, "must be 0 to 3"),
        ([5, 6, 4], {"labels": torch.ones(7)}, "integer classes"),
        ([5, 6, 1], {"relu_alpha": torch.ones(())}, "relu_alpha must be"),
        ([5, 6, 1], {"relu_alpha": torch.ones(3, dtype=torch.long)}, "relu_alpha must be"),
        ([5, 6, 1], {"labels": torch.ones(7, device="meta")}, "candidates' device"),
    ],
)
def test_errors_are_one_clear_line(widths: list[int], change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        replace(make_problem(widths), **change).evaluate()
    assert "\n" not in str(error.value)


def test_layers_must_fit_together() -> None:
    problem = make_problem([5, 6, 1])
    (w1, b1), (w2, _) = problem.layers
    assert b1 is not None
    with pytest.raises(ValueError, match=r"bias of layer 0 must be \(6,\)"):
        replace(problem, layers=[(w1, b1[:5]), (w2, None)]).evaluate()
    with pytest.raises(ValueError, match=r"weight of layer 1 must be \(out, 6\)"):
        replace(problem, layers=[(w1, b1), (w2[:, :5], None)]).evaluate()


def test_relative_residual_is_one_without_multipliers() -> None:
    problem = make_problem([5, 6, 4])
    silent = replace(problem, multipliers=torch.zeros_like(problem.multipliers))
    residual = kkt.relative_residual(silent.evaluate()[0], problem.layers)
    torch.testing.assert_close(residual, torch.ones_like(residual))
    flat = torch.cat([p.flatten() for layer in problem.layers for p in layer if p is not None])
    torch.testing.assert_close(parameter_norm(problem.layers), flat.norm())


def test_probe_outputs_take_any_leading_shape() -> None:
    problem = make_problem([5, 6, 4, 2])
    outputs = probe_outputs(problem.layers, problem.candidates)
    assert outputs.shape == (3, 7, 2)
    torch.testing.assert_close(
        outputs[1, 2], probe_outputs(problem.layers, problem.candidates[1, 2])
    )


def test_multiplier_penalty() -> None:
    multipliers = torch.tensor([[0.5, 0.1, -0.2], [0.5, 0.1, -0.2]], requires_grad=True)
    penalty = kkt.multiplier_penalty(multipliers, torch.tensor([0.2, 0.0]))
    torch.testing.assert_close(penalty, 5 * torch.tensor([0.1**2 + 0.4**2, 0.2**2]))
    torch.testing.assert_close(
        kkt.multiplier_penalty(multipliers, torch.tensor([0.2, 0.0]), weight=1.0), penalty / 5
    )
    torch.autograd.backward(penalty.sum())
    expected = torch.tensor([[0.0, -1.0, -4.0], [0.0, 0.0, -2.0]])
    torch.testing.assert_close(multipliers.grad, expected)
