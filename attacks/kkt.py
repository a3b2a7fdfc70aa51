"""The KKT residual of a multi-layer probe and its gradient, written out by hand for many draws.

A homogeneous classifier phi trained to separation ends near a KKT point of the maximum-margin
problem: its parameters are a weighted sum of the gradients of its own training samples,
``theta = sum_i lambda_i y_i grad_theta phi(x_i)``. Reconstruction looks for candidates ``x_i``
and multipliers ``lambda_i`` that make both sides equal (Oz et al., Reconstructing Training Data
From Real World Models Trained with Transfer Learning, Sec. 3.1 Eq. 2; several classes: B.5).

Conventions, throughout:

* ``R`` independent draws of ``m`` candidates with ``D`` features; layer ``l`` is
  ``(weight (out, in), bias (out,) or None)`` and the last layer has ``C`` outputs.
* Hidden activations are ``max(z, 0)`` going forward, but *every* backward pass through one
  multiplies by ``sigmoid(alpha z)`` (B.2, item 4): once in ``grad_theta phi`` and again when the
  loss is differentiated through the activations.
* The loss is the plain squared norm over all parameters, biases included where there are any.
  There is no factor ``1/m``: it only rescales the multipliers.
* Gradients are with respect to candidates and multipliers; the probe is constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Layers = Sequence[tuple[Tensor, Tensor | None]]
"""Weight ``(out, in)`` and bias ``(out,)`` or None of each layer, first to last."""

Rivals = Literal["strongest", "all"]
"""Classes that a label is set against: the strongest other one (B.5), or all by probability."""

# Draws are worked through in groups whose (group, m, W) intermediates have about this many
# elements: small problems are batched, which hides the cost of each call; large ones go draw by
# draw, which keeps the few intermediates of a group in the processor's cache and takes their memory
# only once. Measured from m W = 13,000 to 250,000: 2^18 is the fastest or within 8% of it, 2^16
# loses up to 30% on small problems and 2^20 up to 25% on mid-sized ones. A GPU needs more work at a
# time and has no such cache; there the limit only bounds the memory.
_GROUP_ELEMENTS_CPU = 1 << 18
_GROUP_ELEMENTS_GPU = 1 << 24


class Scratch:
    """Memory that an attack's loop hands to every iteration instead of asking for it anew.

    The intermediates of an iteration are just large enough for the system's allocator to return
    them each time and fetch them back page by page, a quarter of the time of a mid-sized problem.
    Buffers are handed out in the order of asking and grow to the largest size seen.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        # Views already made of each buffer: slicing anew takes as long as a small product.
        self._views: list[dict[tuple[int, ...], Tensor]] = []
        self._used = 0

    def mark(self) -> int:
        """Number of buffers in use."""
        return self._used

    def rewind(self, mark: int = 0) -> None:
        """Frees every buffer taken after `mark` was noted."""
        self._used = mark

    def take(self, like: Tensor, *shape: int) -> Tensor:
        """Returns an uninitialised contiguous tensor with the type and device of `like`."""
        i, size = self._used, math.prod(shape)
        if i == len(self._buffers):
            self._buffers.append(like.new_empty(size))
            self._views.append({})
        buffer, views = self._buffers[i], self._views[i]
        if buffer.numel() < size or buffer.dtype != like.dtype or buffer.device != like.device:
            buffer = self._buffers[i] = like.new_empty(size)
            views.clear()
        if shape not in views:
            views[shape] = buffer[:size].view(shape)
        self._used += 1
        return views[shape]


def kkt_loss(
    layers: Layers,
    candidates: Tensor,
    multipliers: Tensor,
    labels: Tensor,
    relu_alpha: Tensor,
    *,
    rivals: Rivals = "strongest",
    allow_linear: bool = False,
) -> Tensor:
    """Squared distance of each draw from the KKT point, differentiable once.

    The value is ``||theta - sum_i lambda_i grad_theta f_i||^2`` with ``f_i = y_i phi(x_i)`` for
    one output (Sec. 3.1, Eq. 2) and ``f_i = phi(x_i)_{y_i} - max_{j != y_i} phi(x_i)_j`` for
    several (B.5). Among tied classes the maximum is the one with the lowest index, for the value
    and the derivative alike; that is what ``torch.max(dim=...)`` does under double backward,
    whereas ``torch.amax`` would split the derivative between them.

    With ``rivals="all"`` it is ``f_i = phi(x_i)_{y_i} - sum_{j != y_i} r_j phi(x_i)_j`` with the
    probe's own probabilities of the other classes, ``r_j = p_j / (1 - p_{y_i})``. The weights of a
    probe trained with cross-entropy and weight decay are exactly a sum of those gradients. The
    r_j are taken as constants, in the value's gradient too.

    Where a gradient is needed it is computed together with the value, so that the two cost five
    products with the first layer and seven with every further hidden layer. ``backward`` hands
    that gradient out once: it cannot be repeated with ``retain_graph``.

    Args:
        layers: The probe, first layer to last.
        candidates: Candidates of every draw, ``(R, m, D)``.
        multipliers: Their multipliers lambda, ``(R, m)``.
        labels: ``(m,)`` or ``(R, m)``; -1 and +1 for one output, class indices for several.
        relu_alpha: Sharpness of the softened ReLU derivative in every draw, ``(R,)``.
        rivals: What a label is set against, where there are several outputs.
        allow_linear: Accept a probe without a hidden layer.

    Returns:
        The loss of every draw, ``(R,)``.

    Raises:
        ValueError: If shapes, types or labels do not fit, or the probe has no hidden layer.
    """
    _check(layers, candidates, multipliers, labels, relu_alpha, allow_linear)
    loss: Tensor = _KKTLoss.apply(candidates, multipliers, layers, labels, relu_alpha, rivals)
    return loss


def kkt_loss_and_grad(
    layers: Layers,
    candidates: Tensor,
    multipliers: Tensor,
    labels: Tensor,
    relu_alpha: Tensor,
    *,
    rivals: Rivals = "strongest",
    allow_linear: bool = False,
    scratch: Scratch | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The value of `kkt_loss` and its gradients, without autograd: what a loop should call.

    Args:
        layers: The probe, first layer to last.
        candidates: Candidates of every draw, ``(R, m, D)``.
        multipliers: Their multipliers lambda, ``(R, m)``.
        labels: ``(m,)`` or ``(R, m)``; -1 and +1 for one output, class indices for several.
        relu_alpha: Sharpness of the softened ReLU derivative in every draw, ``(R,)``.
        rivals: What a label is set against, where there are several outputs.
        allow_linear: Accept a probe without a hidden layer.
        scratch: Memory to work in. The gradients lie in it too, until the next call with it.

    Returns:
        The loss ``(R,)`` and, for each draw's own loss, the gradients with respect to candidates
        ``(R, m, D)`` and multipliers ``(R, m)``.

    Raises:
        ValueError: If shapes, types or labels do not fit, or the probe has no hidden layer.
    """
    _check(layers, candidates, multipliers, labels, relu_alpha, allow_linear)
    scratch = scratch or Scratch()
    scratch.rewind()
    grads = tuple(scratch.take(t, *t.shape) for t in (candidates, multipliers))
    loss = _evaluate(layers, candidates, multipliers, labels, relu_alpha, rivals, grads, scratch)
    return loss, grads[0], grads[1]


def parameter_norm(layers: Layers) -> Tensor:
    """Euclidean norm of all parameters together, biases included.

    Args:
        layers: The probe, first layer to last.

    Returns:
        ``||theta||``, a scalar tensor.
    """
    parameters = [p.detach().flatten() for layer in layers for p in layer if p is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.cat(parameters))
    return norm


def relative_residual(loss: Tensor, layers: Layers) -> Tensor:
    """Share of the parameters that a draw leaves unexplained: 0 is exact, 1 is no better than 0.

    Args:
        loss: Values of `kkt_loss`, ``(R,)``.
        layers: The probe, first layer to last.

    Returns:
        ``sqrt(loss) / ||theta||``, ``(R,)``.
    """
    return loss.sqrt() / parameter_norm(layers)


def probe_outputs(layers: Layers, inputs: Tensor) -> Tensor:
    """Outputs of the probe with its ordinary ReLU.

    Args:
        layers: The probe, first layer to last.
        inputs: Inputs of the probe, ``(..., D)``.

    Returns:
        Outputs before any sigmoid or softmax, ``(..., C)``.
    """
    *hidden, last = layers
    for weight, bias in hidden:
        inputs = torch.nn.functional.linear(inputs, weight, bias).relu()
    outputs: Tensor = torch.nn.functional.linear(inputs, *last)
    return outputs


def multiplier_penalty(multipliers: Tensor, lambda_min: Tensor, weight: float = 5.0) -> Tensor:
    """Pulls multipliers up to the least value that a draw allows (B.2, item 3).

    Args:
        multipliers: Multipliers of every draw, ``(R, m)``.
        lambda_min: Least multiplier of every draw, ``(R,)``.
        weight: Weight of this term beside the KKT loss; 5 in the published code.

    Returns:
        ``weight * sum_i relu(lambda_min - lambda_i)^2``, ``(R,)``.
    """
    return weight * (lambda_min[:, None] - multipliers).relu().square().sum(1)


def check_labels(labels: Tensor, n_outputs: int) -> None:
    """Refuses labels that do not belong to a probe with this many outputs.

    `kkt_loss` does this by itself where it costs nothing, on the CPU. On a GPU reading the values
    would make every iteration wait: there, call this once before the first.

    Args:
        labels: Labels of any shape.
        n_outputs: Number of outputs ``C`` of the probe.

    Raises:
        ValueError: If the labels are not -1 and +1 (one output) or class indices (several).
    """
    if n_outputs == 1:
        if not bool((labels.abs() == 1).all()):
            raise ValueError("labels of a probe with one output must be -1 or +1")
    elif not bool(((labels >= 0) & (labels < n_outputs)).all()):
        raise ValueError(f"labels of a probe with {n_outputs} outputs must be 0 to {n_outputs - 1}")


class _KKTLoss(torch.autograd.Function):
    """Ties `_evaluate` into autograd: the gradient is made going forward and scaled backward."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch gives its context no public type
        candidates: Tensor,
        multipliers: Tensor,
        layers: Layers,
        labels: Tensor,
        relu_alpha: Tensor,
        rivals: Rivals,
    ) -> Tensor:
        """See `kkt_loss`."""
        ctx.grads = None
        if any(ctx.needs_input_grad[:2]):
            ctx.grads = tuple(t.new_empty(t.shape) for t in (candidates, multipliers))
        arguments = (layers, candidates, multipliers, labels, relu_alpha, rivals)
        return _evaluate(*arguments, ctx.grads, Scratch())

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401
        grad_loss: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Chain rule with the gradients of the forward pass."""
        if ctx.grads is None:
            raise RuntimeError("kkt_loss can be differentiated only once; evaluate it again")
        grad_candidates, grad_multipliers = ctx.grads
        # Scaled in place and let go, because a second copy of all candidates is what costs memory.
        ctx.grads = None
        grad_candidates.mul_(grad_loss[:, None, None])
        grad_multipliers.mul_(grad_loss[:, None])
        return grad_candidates, grad_multipliers, None, None, None, None


@torch.no_grad()
def _evaluate(
    layers: Layers,
    candidates: Tensor,
    multipliers: Tensor,
    labels: Tensor,
    relu_alpha: Tensor,
    rivals: Rivals,
    grads: tuple[Tensor, ...] | None,
    scratch: Scratch,
) -> Tensor:
    """Loss ``(R,)`` of every draw; fills `grads` (candidates, multipliers) unless it is None."""
    n_draws, m = multipliers.shape
    candidates, relu_alpha = candidates.contiguous(), relu_alpha.to(candidates.dtype)
    labels = labels.expand(n_draws, m)
    widest = max(weight.shape[0] for weight, _ in layers)
    elements = _GROUP_ELEMENTS_GPU if candidates.is_cuda else _GROUP_ELEMENTS_CPU
    size = min(n_draws, max(1, elements // (m * widest)))
    loss = torch.empty_like(relu_alpha)
    mark = scratch.mark()
    start = stop = 0
    while stop < n_draws:
        scratch.rewind(mark)
        start, stop = stop, min(stop + size, n_draws)
        # No draw is left alone: products of one matrix are rounded otherwise than those of several,
        # and a draw's result should not depend on how many others there are.
        stop += stop == n_draws - 1 and size > 1
        group = slice(start, stop)
        loss[group] = _evaluate_group(
            layers,
            candidates[group],
            multipliers[group],
            labels[group],
            relu_alpha[group, None, None],
            rivals,
            None if grads is None else (grads[0][group], grads[1][group]),
            scratch,
        )
    return loss


def _evaluate_group(
    layers: Layers,
    x: Tensor,
    multipliers: Tensor,
    labels: Tensor,
    alpha: Tensor,
    rivals: Rivals,
    grads: tuple[Tensor, Tensor] | None,
    scratch: Scratch,
) -> Tensor:
    """Loss and gradients of a few draws, all batched products; `alpha` is ``(R, 1, 1)``.

    With layers l = 1..L, a_0 = x, and ``*`` elementwise, the residuals are::

        z_l = a_{l-1} W_l' + b_l     s_l = sigmoid(alpha z_l)     a_l = max(z_l, 0)
        q_L = lambda v               u_l = q_{l+1} W_{l+1}        q_l = u_l * s_l
        R_l = W_l - q_l' a_{l-1}     r_l = b_l - sum_i q_l        loss = sum_l |R_l|^2 + |r_l|^2

    where row i of v is df_i/dz_L: y_i, or +1 at the label and -1 at the strongest other class
    (constant almost everywhere, so that z_L itself is only needed to find that class), or -r_j at
    every other class. Reversing
    these lines, with every derivative divided by -2 and named after what it belongs to::

        g_l  = a_{l-1} R_l' + r_l + t_{l-1} W_l'      t_l = g_l * s_l         (of q_l and of u_l)
        h_l  = q_{l+1} R_{l+1} + e_{l+1} W_{l+1}                              (of a_l)
        e_l  = s_l * (alpha (g_l - t_l) * u_l + h_l)                          (of z_l; e_L = 0)
        dloss/dlambda = -2 sum_c v * g_L              dloss/dx = -2 h_0

    The first term of e_l is the derivative of s_l in z_l, the second the softened derivative of
    a_l. Products with one hidden layer: z_1, q_1' x, x R_1', q_1 R_1 and e_1 W_1.
    """
    n_draws, m = multipliers.shape

    def take(width: int) -> Tensor:
        return scratch.take(x, n_draws, m, width)

    activations, slopes = [x], []
    for weight, bias in layers[:-1]:
        z = _linear(activations[-1], weight, bias, take(len(weight)))
        slopes.append(_slope(torch.mul(z, alpha, out=take(len(weight)))))
        activations.append(z.relu_())
    room = take(len(layers[-1][0]))
    direction = _direction(activations[-1], *layers[-1], labels, rivals, room)

    # What is needed only for a moment, q_l, t_l and h_l in turn, shares one array. Where no layer
    # is wider than the input, the gradient's memory has room for it: it is filled last.
    last = len(slopes)
    widest = max((slope.shape[2] for slope in slopes), default=0)
    memory = grads[0] if grads is not None and widest <= x.shape[2] else take(widest)

    def momentary(width: int) -> Tensor:
        return memory.as_strided((n_draws, m, width), (m * width, width, 1))

    # From the last layer to the first, so that the first two terms of g_l can take the place of
    # a_l. Into a single output, u_l is the outer product of the column q_L and a row: only the row
    # is kept, and the column multiplies s_l instead. This takes no other array than q_l.
    single_output = len(layers[-1][0]) == 1
    column = q = direction * multipliers[..., None]
    us: list[Tensor] = []
    residuals: list[Tensor] = []
    gs: list[Tensor] = []
    norms: list[Tensor] = []
    for i in reversed(range(len(layers))):
        (weight, bias), a = layers[i], activations[i]
        room = scratch.take(x, n_draws, *weight.shape)
        residuals.append(torch.baddbmm(weight[None], q.mT, a, alpha=-1, out=room))
        norms.append(torch.linalg.vector_norm(room, dim=(1, 2)))
        r = None if bias is None else bias - q.sum(1)
        if r is not None:
            norms.append(torch.linalg.vector_norm(r, dim=1))
        if grads is not None:
            g = take(len(weight)) if i == last else activations[i + 1]
            gs.append(torch.bmm(a, room.mT, out=g))
            if r is not None:
                g += r[:, None]
        if i > 0:
            width = weight.shape[1]
            if i == last and single_output:
                us.append(weight)
                q = torch.mul(slopes[i - 1], q, out=momentary(width)).mul_(weight)
            else:
                us.append(_linear(q, weight.T, None, take(width)))
                q = torch.mul(slopes[i - 1], us[-1], out=momentary(width))
    loss = torch.stack(norms).square().sum(0)
    if grads is None:
        return loss
    for filled_backwards in (us, residuals, gs):
        filled_backwards.reverse()

    # From the first layer to the last; of g_l only g_l - t_l is kept.
    for i, slope in enumerate(slopes):
        t = torch.mul(gs[i], slope, out=momentary(slope.shape[2]))
        _flat(gs[i + 1]).addmm_(_flat(t), layers[i + 1][0].T)
        gs[i].sub_(t)
    torch.sum(direction.mul_(gs[last]), -1, out=grads[1]).mul_(-2)

    # And back to the inputs: e_l takes the place of g_l - t_l, and q_l, made again, that of s_l.
    q = column
    e: Tensor | None = None
    for i in reversed(range(1, len(layers))):
        slope, u, difference = slopes[i - 1], us[i - 1], gs[i - 1]
        if i == last and single_output:
            h, scale = residuals[i], alpha * u
            slope.mul_(column)
        else:
            h, scale = torch.bmm(q, residuals[i], out=momentary(slope.shape[2])), alpha
            difference.mul_(u)
        if e is not None:
            _flat(h).addmm_(_flat(e), layers[i][0])
        e = torch.addcmul(h, difference, scale, out=difference).mul_(slope)
        q = slope.mul_(u)
    torch.bmm(q, residuals[0], out=grads[0])
    if e is None:
        grads[0].mul_(-2)
    else:
        _flat(grads[0]).addmm_(_flat(e), layers[0][0], beta=-2, alpha=-2)
    return loss


def _direction(
    a: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    rivals: Rivals,
    room: Tensor,
) -> Tensor:
    """Derivative of f_i in the outputs, into `room` ``(R, m, C)``; `a` feeds the last layer."""
    if len(weight) == 1:
        return room.copy_(labels[..., None])
    own = labels[..., None].long()
    outputs = _linear(a, weight, bias, room)
    outputs.scatter_(-1, own, -math.inf)
    if rivals == "all":
        return room.copy_(outputs.softmax(-1)).neg_().scatter_(-1, own, 1.0)
    rival = outputs.argmax(-1, keepdim=True)
    return outputs.zero_().scatter_(-1, rival, -1.0).scatter_(-1, own, 1.0)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, room: Tensor) -> Tensor:
    """``x @ weight.T + bias`` of ``(R, m, in)`` into `room`, as one large product."""
    if bias is None:
        torch.mm(_flat(x), weight.T, out=_flat(room))
    else:
        torch.addmm(bias, _flat(x), weight.T, out=_flat(room))
    return room


def _flat(x: Tensor) -> Tensor:
    """Draws and candidates of ``(R, m, width)`` as the rows of one matrix."""
    return x.view(-1, x.shape[-1])


def _slope(x: Tensor) -> Tensor:
    """``sigmoid(x)`` in place, but never closer to 0 than ``sqrt(tiny)``: 1e-19 in float32.

    A sharp slope otherwise fills with subnormal numbers, at which processors are so slow that half
    a percent of them more than doubles the time of an iteration; and `sigmoid` itself is five
    times slower where its exponential over- or underflows.
    """
    reach = -0.5 * math.log(torch.finfo(x.dtype).tiny)
    return x.clamp_(-reach, reach).sigmoid_()


def _check(
    layers: Layers,
    candidates: Tensor,
    multipliers: Tensor,
    labels: Tensor,
    relu_alpha: Tensor,
    allow_linear: bool,
) -> None:
    """Raises a one-line ValueError for arguments that do not belong together."""
    if not layers or (len(layers) == 1 and not allow_linear):
        raise ValueError(
            "KKT reconstruction needs a probe with a hidden layer; this one has none"
            " (allow_linear=True runs it all the same)"
        )
    if candidates.ndim != 3 or not candidates.numel():
        raise ValueError(f"candidates must be (R, m, D), none of them 0: {_describe(candidates)}")
    # The tails of the slopes need an exponent range that float16 does not have.
    if candidates.dtype not in (torch.float32, torch.float64, torch.bfloat16):
        raise ValueError(f"candidates must be float32, float64 or bfloat16, not {candidates.dtype}")
    n_draws, m, width = candidates.shape
    for i, (weight, bias) in enumerate(layers):
        if weight.ndim != 2 or weight.shape[1] != width:
            raise ValueError(f"weight of layer {i} must be (out, {width}), got {_describe(weight)}")
        width = weight.shape[0]
        if bias is not None and bias.shape != (width,):
            raise ValueError(f"bias of layer {i} must be ({width},), got {_describe(bias)}")
    if multipliers.shape != (n_draws, m):
        raise ValueError(f"multipliers must be ({n_draws}, {m}), got {_describe(multipliers)}")
    if relu_alpha.shape != (n_draws,) or not relu_alpha.is_floating_point():
        raise ValueError(f"relu_alpha must be float ({n_draws},), got {_describe(relu_alpha)}")
    if labels.shape not in ((m,), (n_draws, m)):
        raise ValueError(f"labels must be ({m},) or ({n_draws}, {m}), got {_describe(labels)}")
    if labels.dtype == torch.bool or (width > 1 and labels.is_floating_point()):
        raise ValueError(
            f"labels must be -1 or +1 for one output, integer classes for several, got"
            f" {labels.dtype} for {width}"
        )
    parameters = [p for layer in layers for p in layer if p is not None]
    if any(t.dtype != candidates.dtype for t in (multipliers, *parameters)):
        found = sorted({str(t.dtype) for t in (candidates, multipliers, *parameters)})
        raise ValueError(f"candidates, multipliers and probe must share a type, got {found}")
    if any(t.device != candidates.device for t in (multipliers, labels, relu_alpha, *parameters)):
        raise ValueError(f"all arguments must be on the candidates' device, {candidates.device}")
    if labels.device.type == "cpu":
        check_labels(labels, width)


def _describe(tensor: Tensor) -> str:
    """Type and shape of a tensor for a message."""
    return f"{tensor.dtype} {tuple(tensor.shape)}"
