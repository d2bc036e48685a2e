"""A network applied to many tasks at once, each with its own parameters.

theta [T, P], x [T, B, ...] -> [T, B, out]. Three forms, the fastest that fits: `batched` products
for Sequential networks of exactly known layers, as their authors left them, torch.func.vmap of the
module, and, where vmap refuses (LSTM, GRU, branches that depend on data), the module task by task.
All give the numbers of the module called on each task alone.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional as F

from fmrl.deep.networks import HOOKS, Layout, SameConv2d, bind
from fmrl.errors import FMRLError

Apply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FORMS = ("auto", "stacked", "functional")
ROWS = 3  # of the batches that are tried


class Uncapturable(Exception):
    """Raised instead of doing what a CUDA graph may not be able to repeat."""


class Stacked:
    """The stacked form of ``module``: call it with theta [T, P] and x [T, B, ...].

    path: "auto", "stacked" (or an error if a layer has no fast form) or "functional". sample: some
    inputs [n, ...] to try it on; without them the first call's are taken. After that ``outputs`` is
    the shape of one sample's output and ``looped`` says whether tasks take turns. Inputs are cast
    to the parameters' dtype: floats, bytes (images) and bools always; other whole numbers only
    where the network does not take them as they are (a Linear does not, an Embedding does).
    Parameters that a mini-batch does not reach have gradient 0.

    >>> Stacked(nn.Linear(2, 3))(torch.ones(4, 9), torch.ones(4, 5, 2)).shape
    torch.Size([4, 5, 3])
    """

    def __init__(self, module: nn.Module, path: str = "auto", sample: torch.Tensor | None = None):
        refuse_state(module)
        self.module, self.path, self.name = module, path, type(module).__name__
        self.layout, self.one = Layout.of(module), bind(module)
        if path not in FORMS:
            raise FMRLError(f"path={path!r} is unknown", fix=f"use one of {FORMS}")
        if path == "stacked" and batched(module) is None:
            what = f"{self.name} has a layer without a stacked form"
            raise FMRLError(what, fix="use path='functional'")
        self.form: Apply | None = None
        self.outputs: tuple[int, ...] = ()
        self.whole = self.looped = False
        if sample is not None:
            self.settle(sample)

    def __call__(self, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.form is None:
            self.settle(x[0])
        return self.form(theta, self.cast(x, theta.dtype))

    def cast(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Inputs as the network takes them."""
        return x if self.whole and _whole(x) else x.to(dtype)

    def settle(self, sample: torch.Tensor) -> None:
        """Choose the form by trying ``sample`` [n, ...]; an error if the network refuses it."""
        if len(sample) == 0:
            raise FMRLError("there are no inputs")
        rows = sample[torch.arange(ROWS, device=sample.device) % len(sample)]
        rows = rows.to(next(self.module.parameters()).device)
        refused = []
        for self.whole in (True, False) if _whole(rows) else (False,):
            try:
                outputs = self._tried(rows)
                break
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                refused.append(str(error).partition("\n")[0])
        else:
            what = f"{self.name} does not take inputs {tuple(rows.shape)} of {rows.dtype}"
            raise FMRLError(f"{what}: {'; as floats: '.join(refused)}")
        self.outputs, self.form, self.looped = tuple(outputs.shape[1:]), None, False
        if self.path != "functional" and self._agrees(rows):
            self.form = batched(self.module)
        elif self.path == "stacked":
            what = f"{self.name} has no stacked form for inputs {tuple(rows.shape[1:])}"
            raise FMRLError(what, fix="use path='functional'")
        elif (reason := self._no_vmap(rows)) is None:
            self.form = vmap(self.one)
        else:  # stacklevel: one place, so that Python shows it once
            self.form, self.looped = self._each, True
            what = f"{self.name} is run task by task, which is exact but slow: {reason}"
            warnings.warn(what, RuntimeWarning, stacklevel=2)

    def _each(self, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if theta.is_cuda and torch.cuda.is_current_stream_capturing():
            raise Uncapturable  # a branch that depends on data would be frozen as it was
        return torch.stack([self.one(t, own) for t, own in zip(theta, x, strict=True)])

    @torch.no_grad()
    def _tried(self, rows: torch.Tensor) -> torch.Tensor:
        """The module's own outputs, from copies of its buffers."""
        buffers = {n: b.clone() for n, b in self.module.named_buffers()}
        versions = {n: b._version for n, b in buffers.items()}
        theta = self.layout.flat(self.module)
        out = self.one(theta, self.cast(rows, theta.dtype), buffers)
        written = [n for n, b in buffers.items() if b._version != versions[n]]
        if written:
            raise FMRLError(f"its forward pass writes to {written[0]}, which mixes the tasks")
        if not isinstance(out, torch.Tensor) or out.shape[:1] != rows.shape[:1]:
            raise FMRLError("it must return one tensor with a row for every input")
        return out

    @torch.no_grad()
    def _agrees(self, rows: torch.Tensor) -> bool:
        """Whether batched products give the module's numbers on these rows, in float64."""
        if batched(self.module) is None:
            return False
        twin = copy.deepcopy(self.module).to("cpu", torch.float64)
        fast, one = batched(twin), bind(twin)
        theta = self.layout.flat(twin) * torch.tensor([[1.0], [1.1]], dtype=torch.float64)
        x = torch.stack([rows, rows.flip(0)]).to("cpu", torch.float64)
        plain = torch.stack([one(t, own) for t, own in zip(theta, x, strict=True)])
        close = {"rtol": 1e-6, "atol": 1e-6 * float(plain.abs().max()), "equal_nan": True}
        try:
            return torch.allclose(fast(theta, x), plain, **close)
        except (RuntimeError, IndexError, KeyError):  # axes that no batched form knows
            return False

    def _no_vmap(self, rows: torch.Tensor) -> str | None:
        """Why torch.func.vmap cannot run the module and its gradient; None when it can."""
        theta = self.layout.flat(self.module).repeat(2, 1).requires_grad_()
        x = self.cast(torch.stack([rows, rows.flip(0)]), theta.dtype)
        try:
            with torch.enable_grad():
                torch.autograd.grad(vmap(self.one)(theta, x).sum(), theta)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return str(error).partition("\n")[0]
        return None


def _whole(x: torch.Tensor) -> bool:
    real = x.is_floating_point() or x.is_complex()
    return not real and x.dtype not in (torch.uint8, torch.bool)


def refuse_state(module: nn.Module) -> None:
    """Running statistics would leak from task to task; dropout would differ between the paths."""
    for name, layer in module.named_modules():
        name = name or type(layer).__name__
        if getattr(layer, "track_running_stats", False) and layer.training:
            fix = "build it with track_running_stats=False, or call its eval()"
            raise FMRLError(f"{name} keeps running statistics, which mix the tasks", fix=fix)
        drops = isinstance(layer, nn.modules.dropout._DropoutNd)
        rate = layer.p if drops else getattr(layer, "dropout", 0)
        if isinstance(rate, (int, float)) and rate > 0 and layer.training:
            what = f"{name} drops units at random, which no stacked run can repeat"
            raise FMRLError(what, fix="set it to 0")


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
