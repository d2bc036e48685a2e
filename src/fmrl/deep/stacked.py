"""A network applied to many tasks at once, each with its own parameters.

``stack(module)`` returns f(theta [T, P], x [T, B, ...]) -> [T, B, out]. Sequential networks of the layers below take a fast path in
which a layer with per-task weights is one batched matrix product; any other module goes through torch.func. Both give the same
numbers as calling the module task by task.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from fmrl.core.errors import FMRLError
from fmrl.deep.layout import Layout
from fmrl.deep.models import SameConv2d

Apply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
POINTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.LeakyReLU, nn.SiLU, nn.Softplus, nn.Identity)


def stack(module: nn.Module, path: str = "auto") -> Apply:
    """The stacked form of ``module``. path: "auto", "stacked" (or an error if a layer has no fast form) or "functional"."""
    refuse_state(module)
    if path not in ("auto", "stacked", "functional"):
        raise FMRLError(f"path={path!r} is unknown", fix="use 'auto', 'stacked' or 'functional'")
    if path != "functional":
        fast = _sequential(module)
        if fast is not None:
            return fast
        if path == "stacked":
            raise FMRLError(f"{type(module).__name__} has a layer without a stacked form", fix="use path='functional'")
    return _functional(module)


def refuse_state(module: nn.Module) -> None:
    """Running statistics would leak from task to task, and dropout would differ between the paths."""
    for name, layer in module.named_modules():
        if getattr(layer, "track_running_stats", False):
            raise FMRLError(
                f"{name or type(layer).__name__} keeps running statistics, which mix the tasks",
                fix="build it with track_running_stats=False, so that it always uses the batch at hand",
            )
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0 and layer.training:
            raise FMRLError(f"{name} drops units at random, which no stacked run can repeat", fix="set its p to 0")


def _functional(module: nn.Module) -> Apply:
    layout = Layout.of(module)
    buffers = dict(module.named_buffers())

    def one(theta, x):
        return functional_call(module, layout.split(theta) | buffers, (x,))

    return vmap(one)


def _sequential(module: nn.Module) -> Apply | None:
    if not isinstance(module, nn.Sequential):
        module = nn.Sequential(module) if isinstance(module, nn.Linear) else None
    layers = [] if module is None else list(_flatten(module))
    if not layers or any(_stacked(layer) is None for _, layer in layers):
        return None
    names = [[f"{prefix}{n}" for n, _ in layer.named_parameters()] for prefix, layer in layers]
    layout = Layout.of(module)

    def apply(theta, x):
        parameters = layout.split(theta)
        x = _turned(x)
        for (_, layer), own in zip(layers, names, strict=True):
            x = _stacked(layer)(layer, x, [parameters[n] for n in own])
        return _turned(x)

    return apply


def _turned(x):
    """Images are kept as [T, C, B, H, W] between layers, so that no product's result needs a transposition."""
    return x.transpose(1, 2).contiguous() if x.ndim == 5 else x


def _flatten(module: nn.Sequential, prefix: str = ""):
    for name, layer in module.named_children():
        if isinstance(layer, nn.Sequential):
            yield from _flatten(layer, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}.", layer


def _stacked(layer: nn.Module):
    if isinstance(layer, POINTWISE):
        return lambda layer, x, own: layer(x)
    if isinstance(layer, SameConv2d) or (type(layer) is nn.Conv2d and _plain(layer)):
        return _conv
    if type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d) and layer.affine:
        return _norm
    if type(layer) is nn.MaxPool2d or type(layer) is nn.AvgPool2d:
        return lambda layer, x, own: layer(x.flatten(0, 2)).unflatten(0, x.shape[:3])
    if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        return lambda layer, x, own: _turned(x).flatten(2)
    if type(layer) is nn.Linear:
        return _linear
    return None


def _plain(layer: nn.Conv2d) -> bool:
    return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _linear(layer, x, own):
    y = x @ own[0].mT
    return y + own[1][:, None] if len(own) > 1 else y


def _norm(layer, x, own):
    """Batch statistics per task and channel; the variance is the biased one, as in training."""
    over, shape = ((2, 3, 4), (*x.shape[:2], 1, 1, 1)) if x.ndim == 5 else ((1,), (x.shape[0], 1, x.shape[2]))
    centred = x - x.mean(over, keepdim=True)
    scale = torch.rsqrt((centred * centred).mean(over, keepdim=True) + layer.eps)
    return centred * (scale * own[0].view(shape)) + own[1].view(shape)


def _conv(layer, x, own):
    """x [T, C, B, H, W] with weights [T, O, C, k, k]: patches [T, C·k·k, B·positions], one batched product."""
    pads = layer.pads(*x.shape[-2:]) if isinstance(layer, SameConv2d) else [p for p in layer.padding[::-1] for _ in (0, 1)]
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
        return torch.bmm(weight.reshape(tasks, weight.shape[1], -1), patches).view(tasks, -1, batch, oh, ow)

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
        spread = torch.bmm(weight.reshape(tasks, weight.shape[1], -1).mT, flat).view(tasks, channels, -1, batch, oh, ow)
        out = flat.new_zeros(shape)
        for i, view in enumerate(_taps(out, weight.shape[-2:], stride, dilation)):
            view += spread[:, :, i]
        left, right, top, bottom = pads
        out = out[..., top : shape[3] - bottom, left : shape[4] - right]
        return out, for_weight, None, None, None


def _taps(x, kernel, stride, dilation):
    """Views of padded x, one for each tap of the kernel, at the positions the kernel visits."""
    (kh, kw), (sh, sw), (dh, dw) = kernel, stride, dilation
    oh, ow = (x.shape[-2] - dh * (kh - 1) - 1) // sh + 1, (x.shape[-1] - dw * (kw - 1) - 1) // sw + 1
    return [
        x[..., i * dh : i * dh + (oh - 1) * sh + 1 : sh, j * dw : j * dw + (ow - 1) * sw + 1 : sw]
        for i in range(kh)
        for j in range(kw)
    ]
