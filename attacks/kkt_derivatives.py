"""The KKT residual and its gradient written out by hand; `attacks.kkt` says what they are."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from attacks.probe_layers import Layers
from attacks.scratch import Scratch

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


@torch.no_grad()
def loss_and_gradients(
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
    every other class. Reversing these lines, with every derivative divided by -2 and named after
    what it belongs to::

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
