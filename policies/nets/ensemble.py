"""E networks of the same shape on the same input, and their derivative, as batched products.

Each layer is one product [E, B, in] x [E, in, out]. The derivative is written by hand, because an update
spends its time here: one node in autograd's graph in place of a dozen, and rows whose gradient is zero
(all but one member's, where the least of the members' values is sought) are left out.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

EPS = 1e-5
"""What LayerNorm adds to the variance."""


def ensemble(x: Tensor, parameters: Sequence[Tensor], *, layer_norm: bool) -> Tensor:
    """Outputs [E, B, O] for x [B, in]: linear, LayerNorm, ReLU for each hidden layer, and a linear head.

    Args:
        x: what all members see.
        parameters: layer by layer weight [E, in, out], bias [E, 1, out] and, where there is a LayerNorm,
            its gain and bias [E, 1, out].
        layer_norm: whether hidden layers have one.
    """
    if torch.is_grad_enabled() and (x.requires_grad or parameters[0].requires_grad):
        outputs: Tensor = _Ensemble.apply(x, layer_norm, *parameters)
        return outputs
    return _forward(x, parameters, layer_norm)[0]


def _forward(x: Tensor, parameters: Sequence[Tensor], layer_norm: bool) -> tuple[Tensor, list[Tensor]]:
    """Outputs, and for each hidden layer what its derivative needs.

    That is what it gave; with LayerNorm also its input, mean, inverse deviation and normalised input.
    """
    *hidden, head = _layers(parameters, layer_norm)
    h = x.expand(len(head[0]), *x.shape)
    kept: list[Tensor] = []
    for weight, bias, *norm in hidden:
        h = torch.baddbmm(bias, h, weight)
        if norm:
            before = h
            normed, mean, inverse = torch.native_layer_norm(before, before.shape[-1:], None, None, EPS)
            h = torch.addcmul(norm[1], normed, norm[0])
            kept += [before, mean, inverse, normed]
        h = h.relu_()
        kept.append(h)
    return _product(h, head[0], head[1]), kept


def _product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [E, B, in] times weight [E, in, out] plus bias [E, 1, out]."""
    if weight.shape[-1] > 1:
        return torch.baddbmm(bias, x, weight)
    # Products with a single column are several times slower than those with a single row.
    return torch.baddbmm(bias, weight.mT, x.mT).mT


def _weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """[E, in, out] for inputs [E, B, in] and the gradient [E, B, out] of outputs."""
    if gradient.shape[-1] > 1:
        return torch.bmm(x.mT, gradient)
    return torch.bmm(gradient.mT, x).mT


def _layers(parameters: Sequence[Tensor], layer_norm: bool) -> list[Sequence[Tensor]]:
    """The parameters of each layer, the head last."""
    per = 4 if layer_norm else 2
    return [parameters[i : i + per] for i in range(0, len(parameters), per)]


class _Ensemble(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer_norm: bool, *parameters: Tensor) -> Tensor:
        outputs, kept = _forward(x, parameters, layer_norm)
        ctx.layer_norm, ctx.count = layer_norm, len(parameters)
        ctx.save_for_backward(x, *parameters, *kept)
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        parameters, kept = saved[: ctx.count], saved[ctx.count :]
        if ctx.needs_input_grad[2]:
            found = _backward(gradient, x, parameters, kept, ctx.layer_norm, ctx.needs_input_grad[0])
            return (found[0], None, *found[1:])
        # Which rows are zero is known to the host alone, which on a GPU would have to wait for it.
        touched = (gradient != 0).any(-1) if gradient.is_cpu and len(gradient) > 1 else None
        if touched is None or bool(touched.all()):
            whole = _input_gradient(gradient, parameters, kept, ctx.layer_norm).sum(0)
            return (whole, None, *[None] * ctx.count)
        total = torch.zeros_like(x)
        rows = touched.nonzero()[:, 1].split(touched.sum(1).tolist())
        for e, index in enumerate(rows):
            part = _input_gradient(
                gradient[e].index_select(0, index),
                [parameter[e] for parameter in parameters],
                [value[e].index_select(0, index) for value in kept],
                ctx.layer_norm,
            )
            total.index_add_(0, index, part)
        return (total, None, *[None] * ctx.count)


def _input_gradient(
    gradient: Tensor, parameters: Sequence[Tensor], kept: Sequence[Tensor], layer_norm: bool
) -> Tensor:
    """The gradient [..., B, in] with respect to x alone, of all members or of one."""
    *hidden, head = _layers(parameters, layer_norm)
    per = len(kept) // len(hidden)
    gradient = _through(gradient, head[0])
    for i in reversed(range(len(hidden))):
        weight, _, *norm = hidden[i]
        *before, after = kept[i * per : (i + 1) * per]
        gradient = _through_relu(gradient, after)
        if norm:
            gradient = _through_norm(gradient, norm[0], before)
        gradient = _through(gradient, weight)
    return gradient


def _backward(
    gradient: Tensor,
    x: Tensor,
    parameters: Sequence[Tensor],
    kept: Sequence[Tensor],
    layer_norm: bool,
    input_too: bool,
) -> list[Tensor | None]:
    """The gradients with respect to x (None unless wanted) and to all parameters."""
    *hidden, head = _layers(parameters, layer_norm)
    per = len(kept) // len(hidden)
    inputs = [x.expand(len(head[0]), *x.shape), *kept[per - 1 :: per]]
    found: list[Tensor | None] = [
        _weight_gradient(inputs[-1], gradient),
        gradient.sum(1, keepdim=True),
    ]
    gradient = _through(gradient, head[0])
    for i in reversed(range(len(hidden))):
        weight, _, *norm = hidden[i]
        *before, after = kept[i * per : (i + 1) * per]
        gradient = _through_relu(gradient, after)
        of_norm: list[Tensor | None] = []
        if norm:
            of_norm = [(gradient * before[3]).sum(1, keepdim=True), gradient.sum(1, keepdim=True)]
            gradient = _through_norm(gradient, norm[0], before)
        of_bias = gradient.sum(1, keepdim=True)
        found = [_weight_gradient(inputs[i], gradient), of_bias, *of_norm, *found]
        if i or input_too:
            gradient = _through(gradient, weight)
    return [gradient.sum(0) if input_too else None, *found]


def _through(gradient: Tensor, weight: Tensor) -> Tensor:
    """From outputs [..., B, out] of a product to its inputs [..., B, in]."""
    return gradient * weight.mT if weight.shape[-1] == 1 else gradient @ weight.mT


def _through_relu(gradient: Tensor, after: Tensor) -> Tensor:
    """In place: the gradient is ours."""
    torch.ops.aten.threshold_backward.grad_input(gradient, after, 0, grad_input=gradient)
    return gradient


def _through_norm(gradient: Tensor, gain: Tensor, before: Sequence[Tensor]) -> Tensor:
    values, mean, inverse, _ = before
    shape = values.shape[-1:]
    wanted = [True, False, False]
    through: Tensor = torch.ops.aten.native_layer_norm_backward(
        gradient * gain, values, shape, mean, inverse, None, None, wanted
    )[0]
    return through
