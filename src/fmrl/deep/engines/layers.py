"""Layers with per-task weights, each as one batched product.

Only networks of exactly known layers, as their authors left them, are replaced by faster forms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from fmrl.deep.layout import HOOKS, Layout
from fmrl.deep.models import SameConv2d

POINTWISE = (
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.LeakyReLU, nn.SiLU, nn.Softplus, nn.Identity,
)  # fmt: skip


def layers(module: nn.Module) -> list[nn.Module] | None:
    """Layers of (nested) nn.Sequential in the order they are applied; None for any other module.

    A layer that is used twice stands there twice. None also where a subclass, a hook or a replaced
    forward may do more than the types say.

    >>> act = nn.Tanh()
    >>> net = nn.Sequential(nn.Linear(2, 2), act, nn.Sequential(nn.Linear(2, 2), act))
    >>> [type(layer).__name__ for layer in layers(net)]
    ['Linear', 'Tanh', 'Linear', 'Tanh']
    """
    for m in module.modules():
        if "forward" in m.__dict__ or any(getattr(m, hook, None) for hook in HOOKS):
            return None
    if type(module) is nn.Linear:
        return [module]
    return list(_flatten(module)) if type(module) is nn.Sequential else None


def _flatten(module: nn.Sequential):
    for layer in module._modules.values():  # named_children() would leave out those met before
        if type(layer) is nn.Sequential:
            yield from _flatten(layer)
        else:
            yield layer


def flattens(layer: nn.Module) -> bool:
    """Whether a layer makes every sample one flat vector."""
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


def batched(module: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """f(theta [T, P], x [T, B, ...]) -> [T, B, out] of a Sequential of the layers below, or None.

    Layers that are used twice and weights that are tied are one parameter here as in the module.

    >>> batched(nn.Linear(2, 3))(torch.ones(4, 9), torch.ones(4, 5, 2)).unique().tolist()
    [3.0]
    """
    found, names = layers(module), {id(p): n for n, p in module.named_parameters()}
    owned = [(layer, _form(layer), _own(layer)) for layer in found or []]
    if not owned or any(form is None or {*map(id, own)} - names.keys() for _, form, own in owned):
        return None
    layout = Layout.of(module)
    steps = [(form, layer, [names[id(p)] for p in own]) for layer, form, own in owned]

    def apply(theta, x):
        parameters = layout.split(theta)
        x = _turned(x)
        for form, layer, own in steps:
            x = form(layer, x, [parameters[n] for n in own])
        return _turned(x)

    return apply


def _own(layer: nn.Module) -> list[torch.Tensor]:
    given = (getattr(layer, name, None) for name in ("weight", "bias"))
    return [p for p in given if p is not None]


def _turned(x):
    """Images as [T, C, B, H, W] between layers, so that no product's result is transposed."""
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
    if flattens(layer):
        return lambda layer, x, own: _turned(x).flatten(2)
    return _linear if kind is nn.Linear else None


def _plain(layer: nn.Conv2d) -> bool:
    zeros = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return layer.groups == 1 and zeros


def _linear(layer, x, own):
    """Over the last axis, whatever lies between it and the tasks."""
    y = (x.flatten(1, -2) @ own[0].mT).unflatten(1, x.shape[1:-1])
    return y + own[1].view(len(x), *[1] * (x.ndim - 2), -1) if len(own) > 1 else y


def _norm(layer, x, own):
    """Batch statistics per task and channel (biased variance), or those kept, in eval mode."""
    channel = {3: 2, 4: 2, 5: 1}[x.ndim]
    over = [axis for axis in range(1, x.ndim) if axis != channel]
    shape = [len(x)] + [x.shape[i] if i == channel else 1 for i in range(1, x.ndim)]
    if layer.running_mean is None:
        centred = x - x.mean(over, keepdim=True)
        variance = (centred * centred).mean(over, keepdim=True)
    else:
        centred = x - layer.running_mean.view(1, *shape[1:])
        variance = layer.running_var.view(1, *shape[1:])
    return centred * (torch.rsqrt(variance + layer.eps) * own[0].view(shape)) + own[1].view(shape)


def _conv(layer, x, own):
    """x [T, C, B, H, W] with weights [T, O, C, k, k], as one batched product of patches."""
    if isinstance(layer, SameConv2d):
        pads = layer.pads(*x.shape[-2:])
    else:
        pads = tuple(p for p in layer.padding[::-1] for _ in (0, 1))
    y = _Product.apply(x, own[0], pads, layer.stride, layer.dilation)
    return y + own[1][:, :, None, None, None] if len(own) > 1 else y


class _Product(torch.autograd.Function):
    """The product with its own backward pass: autograd's would fill a zero tensor for each tap."""

    @staticmethod
    def forward(ctx, x, weight, pads, stride, dilation):
        (tasks, channels, batch), filters = x.shape[:3], weight.shape[1]
        x = F.pad(x, pads)
        views = _taps(x, weight.shape[-2:], stride, dilation)
        oh, ow = views[0].shape[-2:]
        patches = torch.stack(views, dim=2).view(tasks, channels * len(views), batch * oh * ow)
        ctx.save_for_backward(patches, weight)
        ctx.rest = x.shape, pads, stride, dilation
        out = patches.new_empty(tasks, filters, batch, oh, ow)  # no view: ReLU may write to it
        torch.bmm(weight.reshape(tasks, filters, -1), patches, out=out.view(tasks, filters, -1))
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        patches, weight = ctx.saved_tensors
        shape, (left, right, top, bottom), stride, dilation = ctx.rest
        (tasks, channels, batch), filters = shape[:3], weight.shape[1]
        flat = gradient.reshape(tasks, filters, -1)
        for_weight = torch.bmm(flat, patches.mT).view(weight.shape)
        if not ctx.needs_input_grad[0]:
            return None, for_weight, None, None, None
        spread = torch.bmm(weight.reshape(tasks, filters, -1).mT, flat)
        spread = spread.view(tasks, channels, -1, batch, *gradient.shape[-2:])
        out = flat.new_zeros(shape)
        for i, view in enumerate(_taps(out, weight.shape[-2:], stride, dilation)):
            view += spread[:, :, i]
        out = out[..., top : shape[3] - bottom, left : shape[4] - right]
        return out, for_weight, None, None, None


def _taps(x, kernel, stride, dilation):
    """Views of padded x, one for each tap of the kernel, at the positions the kernel visits."""
    axes = zip(x.shape[-2:], kernel, stride, dilation, strict=True)
    rows, columns = (
        [slice(i * d, i * d + (n - d * (k - 1) - 1) // s * s + 1, s) for i in range(k)]
        for n, k, s, d in axes
    )
    return [x[..., row, column] for row in rows for column in columns]
