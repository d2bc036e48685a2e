"""Layers with per-task weights, each as one batched product: a Sequential network of them runs a
stack of tasks at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from fmrl.deep.engines.known_layers import layers
from fmrl.deep.layout import Layout
from fmrl.deep.models import SameConv2d

POINTWISE = (
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.ELU,
    nn.LeakyReLU,
    nn.SiLU,
    nn.Softplus,
    nn.Identity,
)


def batched(module: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """f(theta [T, P], x [T, B, ...]) -> [T, B, out] of a Sequential network of the layers below, or
    None for any other module.

    Layers that are used twice and weights that are tied are one parameter here as in the module.

    >>> batched(nn.Linear(2, 3))(torch.ones(4, 9), torch.ones(4, 5, 2)).unique().tolist()
    [3.0]
    """
    found = layers(module)
    names = {id(p): n for n, p in module.named_parameters()}
    if not found or any(
        _form(layer) is None or not {id(p) for p in _own(layer)} <= names.keys() for layer in found
    ):
        return None
    layout = Layout.of(module)
    steps = [(_form(layer), layer, [names[id(p)] for p in _own(layer)]) for layer in found]

    def apply(theta, x):
        parameters = layout.split(theta)
        x = _turned(x)
        for form, layer, own in steps:
            x = form(layer, x, [parameters[n] for n in own])
        return _turned(x)

    return apply


def _own(layer: nn.Module) -> list[torch.Tensor]:
    return [
        p for p in (getattr(layer, "weight", None), getattr(layer, "bias", None)) if p is not None
    ]


def _turned(x):
    """Images are kept as [T, C, B, H, W] between layers, so that no product's result needs a
    transposition.
    """
    return x.transpose(1, 2).contiguous() if x.ndim == 5 else x


def _form(layer: nn.Module):
    """The stacked form of a layer; None unless its type is exactly one of these."""
    kind = type(layer)
    if kind in POINTWISE:
        return lambda layer, x, own: layer(x)
    if kind is SameConv2d or (kind is nn.Conv2d and _plain(layer)):
        return _conv
    if kind in (nn.BatchNorm1d, nn.BatchNorm2d) and layer.affine:
        return _norm
    if (kind is nn.MaxPool2d and not layer.return_indices) or kind is nn.AvgPool2d:
        return lambda layer, x, own: layer(x.flatten(0, -3)).unflatten(0, x.shape[:-2])
    if kind is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        return lambda layer, x, own: _turned(x).flatten(2)
    if kind is nn.Linear:
        return _linear
    return None


def _plain(layer: nn.Conv2d) -> bool:
    return (
        layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    )


def _linear(layer, x, own):
    """Over the last axis, whatever lies between it and the tasks."""
    y = (x.flatten(1, -2) @ own[0].mT).unflatten(1, x.shape[1:-1])
    return y + own[1].view(len(x), *[1] * (x.ndim - 2), -1) if len(own) > 1 else y


def _norm(layer, x, own):
    """Batch statistics per task and channel, the variance the biased one, as in training; or
    statistics kept before, in eval mode.
    """
    channel = {3: 2, 4: 2, 5: 1}[x.ndim]
    over = [axis for axis in range(1, x.ndim) if axis != channel]
    shape = [len(x)] + [x.shape[i] if i == channel else 1 for i in range(1, x.ndim)]
    if layer.running_mean is None:
        centred = x - x.mean(over, keepdim=True)
        variance = (centred * centred).mean(over, keepdim=True)
    else:
        centred, variance = (
            x - layer.running_mean.view(1, *shape[1:]),
            layer.running_var.view(1, *shape[1:]),
        )
    return centred * (torch.rsqrt(variance + layer.eps) * own[0].view(shape)) + own[1].view(shape)


def _conv(layer, x, own):
    """x [T, C, B, H, W] with weights [T, O, C, k, k]: patches [T, C·k·k, B·positions], one batched
    product.
    """
    pads = (
        layer.pads(*x.shape[-2:])
        if isinstance(layer, SameConv2d)
        else [p for p in layer.padding[::-1] for _ in (0, 1)]
    )
    y = _Product.apply(x, own[0], tuple(pads), layer.stride, layer.dilation)
    return y + own[1][:, :, None, None, None] if len(own) > 1 else y


class _Product(torch.autograd.Function):
    """The product with its own backward pass: autograd's would fill one zero tensor for each tap."""

    @staticmethod
    def forward(ctx, x, weight, pads, stride, dilation):
        tasks, channels, batch = x.shape[:3]
        x = F.pad(x, pads)
        views = _taps(x, weight.shape[-2:], stride, dilation)
        oh, ow = views[0].shape[-2:]
        patches = torch.stack(views, dim=2).view(tasks, channels * len(views), batch * oh * ow)
        ctx.save_for_backward(patches, weight)
        ctx.rest = x.shape, pads, stride, dilation
        out = patches.new_empty(
            tasks, weight.shape[1], batch, oh, ow
        )  # no view, which an activation may not write to
        torch.bmm(
            weight.reshape(tasks, weight.shape[1], -1),
            patches,
            out=out.view(tasks, weight.shape[1], -1),
        )
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        patches, weight = ctx.saved_tensors
        shape, pads, stride, dilation = ctx.rest
        tasks, channels, batch = shape[:3]
        oh, ow = gradient.shape[-2:]
        flat = gradient.reshape(tasks, weight.shape[1], -1)
        for_weight = torch.bmm(flat, patches.mT).view(weight.shape)
        if not ctx.needs_input_grad[0]:
            return None, for_weight, None, None, None
        spread = torch.bmm(weight.reshape(tasks, weight.shape[1], -1).mT, flat).view(
            tasks, channels, -1, batch, oh, ow
        )
        out = flat.new_zeros(shape)
        for i, view in enumerate(_taps(out, weight.shape[-2:], stride, dilation)):
            view += spread[:, :, i]
        left, right, top, bottom = pads
        out = out[..., top : shape[3] - bottom, left : shape[4] - right]
        return out, for_weight, None, None, None


def _taps(x, kernel, stride, dilation):
    """Views of padded x, one for each tap of the kernel, at the positions the kernel visits."""
    (kh, kw), (sh, sw), (dh, dw) = kernel, stride, dilation
    oh, ow = (
        (x.shape[-2] - dh * (kh - 1) - 1) // sh + 1,
        (x.shape[-1] - dw * (kw - 1) - 1) // sw + 1,
    )
    return [
        x[..., i * dh : i * dh + (oh - 1) * sh + 1 : sh, j * dw : j * dw + (ow - 1) * sw + 1 : sw]
        for i in range(kh)
        for j in range(kw)
    ]
