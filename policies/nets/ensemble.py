"""Forward and backward pass of an ensemble of E MLPs on the same input, as batched matrix products.

Each layer is one product [E, B, in] x [E, in, out]. The backward pass is written by hand, because updates
spend most of their time here: it is one autograd node instead of a dozen, and it skips rows with zero
gradient (all but one critic's where the minimum over critics is taken).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

EPS = 1e-5
"""Epsilon of LayerNorm."""


def ensemble(x: Tensor, parameters: Sequence[Tensor], *, layer_norm: bool) -> Tensor:
    """Outputs [E, B, O] for x [B, in]: linear, LayerNorm, ReLU for each hidden layer, and a linear head.

    Args:
        x: input of all networks.
        parameters: layer by layer weight [E, in, out], bias [E, 1, out] and, where there is a LayerNorm,
            its gain and bias [E, 1, out].
        layer_norm: whether hidden layers have one.
    """
    if torch.is_grad_enabled() and (x.requires_grad or parameters[0].requires_grad):
        outputs: Tensor = _Ensemble.apply(x, layer_norm, *parameters)
        return outputs
    return _forward(x, parameters, layer_norm)[0]


def _forward(x: Tensor, parameters: Sequence[Tensor], layer_norm: bool) -> tuple[Tensor, list[Tensor]]:
    """Outputs, and for each hidden layer the tensors that the backward pass needs.

    These are its output and, with LayerNorm, input, mean, inverse deviation and normalised input.
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
        # On a GPU, finding the zero rows would make the host wait for the device.
        nonzero_rows = (gradient != 0).any(-1) if gradient.is_cpu and len(gradient) > 1 else None
        if nonzero_rows is None or bool(nonzero_rows.all()):
            total = _input_gradient(gradient, parameters, kept, ctx.layer_norm).sum(0)
            return (total, None, *[None] * ctx.count)
        total = torch.zeros_like(x)
        rows = nonzero_rows.nonzero()[:, 1].split(nonzero_rows.sum(1).tolist())
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
    """The gradient [..., B, in] with respect to x alone, of all networks or of one."""
    *hidden, head = _layers(parameters, layer_norm)
    per = len(kept) // len(hidden)
    gradient = _linear_backward(gradient, head[0])
    for i in reversed(range(len(hidden))):
        weight, _, *norm = hidden[i]
        *before, after = kept[i * per : (i + 1) * per]
        gradient = _relu_backward(gradient, after)
        if norm:
            gradient = _layer_norm_backward(gradient, norm[0], before)
        gradient = _linear_backward(gradient, weight)
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
    gradient = _linear_backward(gradient, head[0])
    for i in reversed(range(len(hidden))):
        weight, _, *norm = hidden[i]
        *before, after = kept[i * per : (i + 1) * per]
        gradient = _relu_backward(gradient, after)
        of_norm: list[Tensor | None] = []
        if norm:
            of_norm = [(gradient * before[3]).sum(1, keepdim=True), gradient.sum(1, keepdim=True)]
            gradient = _layer_norm_backward(gradient, norm[0], before)
        of_bias = gradient.sum(1, keepdim=True)
        found = [_weight_gradient(inputs[i], gradient), of_bias, *of_norm, *found]
        if i or input_too:
            gradient = _linear_backward(gradient, weight)
    return [gradient.sum(0) if input_too else None, *found]


def _linear_backward(gradient: Tensor, weight: Tensor) -> Tensor:
    """Gradient [..., B, in] of the inputs of a linear layer from that of its outputs [..., B, out]."""
    return gradient * weight.mT if weight.shape[-1] == 1 else gradient @ weight.mT


def _relu_backward(gradient: Tensor, after: Tensor) -> Tensor:
    """Gradient of the inputs of a ReLU, in place."""
    torch.ops.aten.threshold_backward.grad_input(gradient, after, 0, grad_input=gradient)
    return gradient


def _layer_norm_backward(gradient: Tensor, gain: Tensor, before: Sequence[Tensor]) -> Tensor:
    values, mean, inverse, _ = before
    shape = values.shape[-1:]
    wanted = [True, False, False]
    through: Tensor = torch.ops.aten.native_layer_norm_backward(
        gradient * gain, values, shape, mean, inverse, None, None, wanted
    )[0]
    return through
