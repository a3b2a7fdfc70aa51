"""Speed and memory of the closed-form KKT residual, against double backward and matmul.

Everything is interleaved in one process and reported as medians per draw and iteration (value and
both gradients, no optimiser step):

* ``closed``: `attacks.kkt.kkt_loss_and_grad`, float32, all draws in one call.
* ``published 64`` / ``published 32``: the published loss as its authors run it, one draw at a
  time: network with modified ReLU, ``autograd.grad`` with ``create_graph``, ``loss.backward()``,
  which also fills the gradients of the probe. Their own precision is float64.
* ``lean 32``: the same with ``autograd.grad`` towards candidates and multipliers only.
* ``matmul``: five plain products of the same shapes, the work that none of these can avoid.

    python -m benchmarks.kkt_engine [--quick] [--threads 2] [--clock cpu]
    python -m benchmarks.kkt_engine --device cuda

On one CPU thread the closed form took 1/2.75 to 1/3.15 of ``published 64`` at the paper's size, and
1/1.9 to 1/2.55 of ``published 32``, at 80 to 85% of the matmul rate: with those five products no
more than another 1.25 is left. The GPU path has never been run on one.

On a machine that is busy with other things, ``--threads 1 --clock cpu`` gives usable ratios.
On a GPU it runs 100 draws at the paper's size with TF32 off and on, and says how long its whole
sweep of 100 x 50,000 iterations would take.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks.kkt import kkt_loss_and_grad
from attacks.optimizers import DrawwiseAdam
from attacks.probe_layers import Layers
from attacks.scratch import Scratch

PRODUCTS = 5
INTERMEDIATES = 6
"""Arrays (R, m, W) in the formulas of one iteration: activations, slopes, gates, q, g and t."""
SWEEP_DRAWS, SWEEP_ITERATIONS = 100, 50_000


@dataclass(frozen=True)
class Size:
    """Draws, candidates a draw, features, width of the hidden layer."""

    draws: int
    m: int
    features: int
    width: int

    def __str__(self) -> str:
        return f"D={self.features} W={self.width} m={self.m} R={self.draws}"


PAPER = {"m": 500, "features": 768, "width": 500}
SMALL = {"m": 100, "features": 64, "width": 128}
CPU_SIZES = [*(Size(r, **PAPER) for r in (1, 4, 8)), *(Size(r, **SMALL) for r in (8, 32))]
GPU_SIZES = [Size(r, **PAPER) for r in (1, 8, 100)] + [Size(r, **SMALL) for r in (32, 100)]


@dataclass(frozen=True)
class Problem:
    """Arguments of the loss: the paper's slopes, candidates and probe outputs of order one."""

    layers: Layers
    candidates: Tensor
    multipliers: Tensor
    labels: Tensor
    relu_alpha: Tensor

    @classmethod
    def random(cls, size: Size, device: str, dtype: torch.dtype) -> Problem:
        """Same numbers for every device and precision."""
        g = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g).to(device, dtype)

        layers = [
            (normal(size.width, size.features) / size.features**0.5, 0.1 * normal(size.width)),
            (normal(1, size.width) / size.width**0.5, None),
        ]
        labels = torch.ones(size.m)
        labels[: size.m // 2] = -1
        return cls(
            layers,
            normal(size.draws, size.m, size.features),
            torch.rand(size.draws, size.m, generator=g).to(device, dtype),
            labels.to(device, dtype),
            (10 + 490 * torch.rand(size.draws, generator=g)).to(device, dtype),
        )


class ModifiedReLU(torch.autograd.Function):
    """max(z, 0) whose backward pass multiplies by sigmoid(alpha z) and can be differentiated."""

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


def double_backward(problem: Problem, lean: bool) -> Callable[[int], None]:
    """Returns one iteration of one draw by differentiating twice."""
    (w1, b1), (w2, _) = problem.layers
    assert b1 is not None
    parameters = [p.clone().requires_grad_() for p in (w1, b1, w2)]
    leaves = [
        (x.clone().requires_grad_(), multipliers.clone().requires_grad_())
        for x, multipliers in zip(problem.candidates, problem.multipliers, strict=True)
    ]

    def iteration(r: int) -> None:
        x, multipliers = leaves[r]
        hidden = torch.nn.functional.linear(x, parameters[0], parameters[1])
        activations = ModifiedReLU.apply(hidden, problem.relu_alpha[r])
        outputs = torch.nn.functional.linear(activations, parameters[2])[:, 0]
        gradients = torch.autograd.grad(
            outputs, parameters, grad_outputs=multipliers * problem.labels, create_graph=True
        )
        terms = [
            (p.detach() - g).square().sum() for p, g in zip(parameters, gradients, strict=True)
        ]
        loss = torch.stack(terms).sum()
        if lean:
            torch.autograd.grad(loss, (x, multipliers))
        else:
            for leaf in (x, multipliers, *parameters):
                leaf.grad = None
            torch.autograd.backward(loss)

    return iteration


def five_products(problem: Problem) -> Callable[[], None]:
    """Returns plain products of the shapes that the closed form needs, and nothing else."""
    x, (weight, _) = problem.candidates, problem.layers[0]
    hidden = x @ weight.T
    residuals = hidden.mT @ x
    flat_x, flat_hidden = x.flatten(0, 1), hidden.flatten(0, 1)
    flat_out, out = torch.empty_like(flat_x), torch.empty_like(x)

    def iteration() -> None:
        torch.mm(flat_x, weight.T, out=flat_hidden)
        torch.bmm(hidden.mT, x, out=residuals)
        torch.bmm(x, residuals.mT, out=hidden)
        torch.bmm(hidden, residuals, out=out)
        torch.mm(flat_hidden, weight, out=flat_out)

    return iteration


def timings(
    problem: Problem, size: Size, device: str, clock: Callable[[], float], seconds: float
) -> dict[str, float]:
    """Median seconds per draw and iteration of every contestant, in turns for `seconds`."""
    arguments = (
        problem.layers,
        problem.candidates,
        problem.multipliers,
        problem.labels,
        problem.relu_alpha,
    )
    scratch = Scratch()
    matmul = five_products(problem)
    published64 = double_backward(Problem.random(size, device, torch.float64), lean=False)
    published32 = double_backward(problem, lean=False)
    lean32 = double_backward(problem, lean=True)
    # One draw at a time costs the same for every draw: some stand for all.
    some = range(min(size.draws, 4))
    contestants: dict[str, tuple[Callable[[], object], int]] = {
        "closed": (lambda: kkt_loss_and_grad(*arguments, scratch=scratch), size.draws),
        "published 64": (lambda: [published64(r) for r in some], len(some)),
        "published 32": (lambda: [published32(r) for r in some], len(some)),
        "lean 32": (lambda: [lean32(r) for r in some], len(some)),
        "matmul": (matmul, size.draws),
    }

    def timed(run: Callable[[], object]) -> float:
        start = clock()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        return clock() - start

    for run, _ in contestants.values():
        timed(run)
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(samples["closed"]) < 3:
        for name, (run, draws) in contestants.items():
            samples[name].append(timed(run) / draws)
    return {name: statistics.median(values) for name, values in samples.items()}


def report(size: Size, times: dict[str, float]) -> None:
    """Prints one line: medians, how much faster, and the share of the matmul rate."""
    closed = times["closed"]
    products = 2 * PRODUCTS * size.m * size.width * size.features
    print(
        f"{size!s:<27}",
        *(f"{name} {1e3 * value:.3f}" for name, value in times.items()),
        "ms |",
        *(f"{name} {times[name] / closed:.2f}x" for name in ("published 64", "published 32")),
        f"lean {times['lean 32'] / closed:.2f}x",
        f"| {times['matmul'] / closed:.0%} of the matmul rate,"
        f" {products / times['matmul'] / 1e9:.0f} GFLOPS",
        flush=True,
    )


def expected_memory(size: Size) -> int:
    """Bytes of the candidates, Adam's two states of them, and the intermediates of all draws."""
    candidates = size.draws * size.m * (size.features + 1)
    return 4 * (3 * candidates + INTERMEDIATES * size.draws * size.m * size.width)


def _adam_steps(size: Size, device: str) -> None:
    """Two iterations of an attack, with the memory that an Adam attack holds."""
    problem = Problem.random(size, device, torch.float32)
    unknowns = [problem.candidates, problem.multipliers]
    rates = torch.full((size.draws,), 0.03, device=device)
    optimiser = DrawwiseAdam([{"params": [unknown], "lr": rates} for unknown in unknowns])
    scratch = Scratch()
    for _ in range(2):
        _, problem.candidates.grad, problem.multipliers.grad = kkt_loss_and_grad(
            problem.layers,
            problem.candidates,
            problem.multipliers,
            problem.labels,
            problem.relu_alpha,
            scratch=scratch,
        )
        optimiser.step()


def _resident_bytes() -> int:
    """High-water mark of this process (Linux; getrusage would count the parent's too)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise OSError("/proc/self/status does not give VmHWM")


def _peak_cpu(size: Size) -> int:
    """Growth of the resident set, in a process that has done nothing else but warm up."""
    torch.set_num_threads(1)
    _adam_steps(Size(1, 4, 8, 4), "cpu")
    before = _resident_bytes()
    _adam_steps(size, "cpu")
    return _resident_bytes() - before


def peak_memory(size: Size, device: str) -> int:
    """Most bytes that an Adam attack of this size holds at once."""
    if device == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        _adam_steps(size, device)
        return torch.cuda.max_memory_allocated() - before
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_cpu, (size,))


def report_memory(size: Size, device: str) -> None:
    """Prints the peak beside what an attack needs at least."""
    try:
        peak, expected = peak_memory(size, device), expected_memory(size)
    except OSError as error:
        print(f"{size!s:<27} peak not measured: {error}")
        return
    # What does not grow with the draws: the probe's first layer, and its residual.
    fixed = 2 * 4 * size.features * size.width
    print(
        f"{size!s:<27} peak {peak / 2**20:.0f} MiB, {peak / expected:.2f} of"
        f" parameters + Adam's state + {INTERMEDIATES} (R, m, W) = {expected / 2**20:.0f} MiB,"
        f" {peak / (expected + fixed):.2f} with the probe and its residual",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark of the closed-form KKT residual.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each size")
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, one second each")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    on_gpu = options.device == "cuda"
    if on_gpu and (options.clock == "cpu" or not torch.cuda.is_available()):
        parser.error("--device cuda needs a GPU and the wall clock")
    clock = time.process_time if options.clock == "cpu" else time.perf_counter
    sizes = GPU_SIZES if on_gpu else CPU_SIZES
    if options.quick:
        options.seconds, sizes = 1.0, [sizes[0], sizes[-2]]
    where = torch.cuda.get_device_name() if on_gpu else f"{options.threads} CPU thread(s)"
    print(f"torch {torch.__version__}, {where}, {options.clock} clock; per draw and iteration:")
    for tf32 in (False, True) if on_gpu else (False,):
        if on_gpu:
            print(f"TF32 {'on' if tf32 else 'off'}")
            torch.backends.cuda.matmul.allow_tf32 = tf32
        for size in sizes:
            problem = Problem.random(size, options.device, torch.float32)
            times = timings(problem, size, options.device, clock, options.seconds)
            report(size, times)
            if on_gpu:
                hours = times["closed"] * SWEEP_DRAWS * SWEEP_ITERATIONS / 3600
                print(
                    f"    {1 / times['closed']:.0f} draws x iterations a second;"
                    f" {SWEEP_DRAWS} x {SWEEP_ITERATIONS:,} take {hours:.2f} h"
                )
    for size in sizes:
        report_memory(size, options.device)


if __name__ == "__main__":
    main()
