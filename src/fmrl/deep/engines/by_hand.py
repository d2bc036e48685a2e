"""Forward and backward pass of a stack of networks written by hand: no autograd, fixed buffers.

A network is blocks of [3x3 convolution, batch norm on batch statistics, (2x2 max-pool,) ReLU], then
one dense layer. Images are kept channels last, so a patch is three contiguous rows of 3·C numbers
and a convolution with per-task weights is a copy and one batched product. Every activation is
written straight into the padded input of the next convolution. With y = patches·W less its mean
over the rows of a task, r = (mean(y²) + eps)^(-1/2), xhat = r·y and dz the gradient at gamma·xhat +
beta:

    dy = gamma·r·(dz − mean(dz) − xhat·mean(dz·xhat)) = a·dz + b·y + c

with a, b, c [T, 1, F] per channel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from fmrl.deep.networks import HOOKS, Layout, SameConv2d

aten = torch.ops.aten
POOL = ([2, 2], [2, 2], [0, 0], [1, 1])  # kernel, stride, padding, dilation


@dataclass(frozen=True)
class Block:
    """Where one block's numbers lie in theta, and its geometry."""

    weight: int
    gamma: int
    channels: int
    filters: int
    side: int
    out: int  # side after the convolution
    after: int  # side after the pooling, if any
    stride: int
    pads: tuple[int, int, int, int]  # left, right, top, bottom
    eps: float


@dataclass(frozen=True)
class Plan:
    """A network this module can run."""

    blocks: tuple[Block, ...]
    dense: int  # where the dense layer starts
    inputs: int
    ways: int
    order: torch.Tensor  # [P]: theta in the plan's order = module-order theta[order]

    def patches(self, batch: int) -> int:
        """Numbers in the patches of one task."""
        return sum(batch * b.out**2 * 9 * b.channels for b in self.blocks)


def plan(module: nn.Module, shape: tuple[int, ...]) -> Plan | None:
    """The plan for inputs of ``shape`` (C, H, W), or None when the network is another one.

    >>> from fmrl.deep.networks import omniglot_net
    >>> len(plan(omniglot_net(5), (1, 28, 28)).blocks), plan(nn.Linear(2, 2), (2,))
    (4, None)
    """
    found = layers(module) or []
    if len(found) < 5 or len(shape) != 3 or shape[1] != shape[2]:
        return None
    *body, flatten, dense = found
    if not flattens(flatten) or type(dense) is not nn.Linear or dense.bias is None:
        return None
    layout, (channels, side, _) = Layout.of(module), shape
    numbered = layout.split(torch.arange(layout.size)).values()
    places = dict(zip(map(id, module.parameters()), numbered, strict=True))

    def at(weight: torch.Tensor) -> torch.Tensor:
        """Where a weight's numbers lie in theta; -1 if it is not a parameter of the module."""
        return places.get(id(weight), torch.full(weight.shape, -1))

    blocks, order, start = [], [], 0
    while body:
        conv, norm, pool, last, *_ = [*body, None, None, None]
        pooled = type(pool) is nn.MaxPool2d
        if not _plain(conv, norm, channels) or (pooled and not _halves(pool)):
            return None
        if type(last if pooled else pool) is not nn.ReLU:
            return None
        filters, stride = conv.out_channels, conv.stride[0]
        order += [at(conv.weight).permute(2, 3, 1, 0), at(norm.weight), at(norm.bias)]
        out, gamma = math.ceil(side / stride), start + conv.weight.numel()
        after = -(-out // 2) if pooled and pool.ceil_mode else out // 2 if pooled else out
        shapes = channels, filters, side, out, after, stride
        blocks.append(Block(start, gamma, *shapes, conv.pads(side, side), norm.eps))
        channels, side, start, body = filters, after, gamma + 2 * filters, body[3 + pooled :]
    if dense.in_features != channels * side * side:
        return None
    order += [at(dense.weight).unflatten(1, (channels, -1)).permute(2, 1, 0), at(dense.bias)]
    flat = torch.cat([part.flatten() for part in order])
    if not torch.equal(flat.sort().values, torch.arange(layout.size)):  # tied weights come twice
        return None
    return Plan(tuple(blocks), start, dense.in_features, dense.out_features, flat)


def _halves(pool: nn.MaxPool2d) -> bool:
    """Whether a max-pool is the plain 2x2 one."""
    plain = {"kernel_size": (2, (2, 2)), "stride": (2, (2, 2))}
    plain |= {"padding": (0, (0, 0)), "dilation": (1, (1, 1)), "return_indices": (False,)}
    return all(getattr(pool, name) in values for name, values in plain.items())


def _plain(conv: nn.Module, norm: nn.Module | None, channels: int) -> bool:
    """Whether these are a 3x3 convolution without bias and batch norm on batch statistics."""
    return (
        type(conv) is SameConv2d
        and (conv.kernel_size, conv.bias, conv.in_channels) == ((3, 3), None, channels)
        and conv.stride[0] == conv.stride[1]
        and (type(norm) is nn.BatchNorm2d and norm.affine and not norm.track_running_stats)
    )


class Gradient:
    """Loss and gradient of ``tasks`` stacked tasks with mini-batches of ``batch``.

    Call with theta [T, P] in the plan's order, images [T, B, H, W, C] and labels [T, B]; it returns
    the losses [T] (each sample weighs ``scale``) and the gradient [T, P], a buffer that the next
    call overwrites."""

    def __init__(self, plan: Plan, tasks: int, batch: int, scale: float, device, dtype):
        self.plan, self.tasks, self.batch, self.scale = plan, tasks, batch, scale

        def floats(*shape):
            return torch.zeros(tasks, *shape, dtype=dtype, device=device)

        self.grad = floats(len(plan.order))
        self.padded, self.patches, self.y, self.spread = [], [], [], []
        for b in plan.blocks:
            left, right, top, bottom = b.pads
            sides = b.side + top + bottom, b.side + left + right
            self.padded.append(floats(batch, *sides, b.channels))
            self.patches.append(floats(batch * b.out**2, 9 * b.channels))
            self.y.append(floats(batch * b.out**2, b.filters))
            self.spread.append(torch.zeros_like(self.padded[-1]) if len(self.spread) else None)
        last = plan.blocks[-1]
        self.flat = floats(batch, last.after, last.after, last.filters)
        self.inside = [_inside(p, b) for p, b in zip(self.padded, plan.blocks, strict=True)]
        self.outputs = [*self.inside[1:], self.flat]  # where each block writes
        self.views = [_windows(p, b) for p, b in zip(self.padded, plan.blocks, strict=True)]

    def __call__(self, theta, x, label) -> tuple[torch.Tensor, torch.Tensor]:
        kept = [self._forward(i, b, theta, x) for i, b in enumerate(self.plan.blocks)]
        loss, upstream = self._head(theta, label)
        for i in range(len(kept) - 1, -1, -1):
            upstream = self._backward(i, self.plan.blocks[i], theta, upstream, kept[i])
        return loss, self.grad

    def _forward(self, i: int, b: Block, theta, x):
        if i == 0:
            self.inside[0].copy_(x)
        self.patches[i].view(self.views[i].shape).copy_(self.views[i])
        weight = _part(theta, b.weight, 9 * b.channels, b.filters)
        y = torch.bmm(self.patches[i], weight, out=self.y[i])
        y.sub_(y.mean(1, keepdim=True))  # var_mean is many times slower along this axis
        r = (y * y).mean(1, keepdim=True).add_(b.eps).rsqrt_()
        gamma, beta = _part(theta, b.gamma, 2, b.filters).split(1, 1)
        slope = gamma * r
        z = torch.addcmul(beta, y, slope).view(self.tasks, self.batch, b.out, b.out, b.filters)
        where = None
        if b.after != b.out:
            z, where = aten.max_pool2d_with_indices(_images(z), *POOL, 2 * b.after > b.out)
            z = z.permute(0, 2, 3, 1).view(self.outputs[i].shape)
        torch.clamp_min(z, 0, out=self.outputs[i])
        return r, slope, where

    def _head(self, theta, label):
        """Softmax cross-entropy: losses, and the gradient at the last block's output."""
        p, h = self.plan, self.flat.view(self.tasks, self.batch, -1)
        weight, end = _part(theta, p.dense, p.inputs, p.ways), p.dense + p.inputs * p.ways
        logs = torch.baddbmm(_part(theta, end, 1, p.ways), h, weight).log_softmax(-1)
        label, minus = label[..., None], torch.full_like(logs[..., :1], -1.0)
        loss = logs.gather(2, label).sum((1, 2)).mul_(-self.scale)
        d = logs.exp_().scatter_add_(2, label, minus).mul_(self.scale)
        _part(self.grad, p.dense, p.inputs, p.ways).copy_(torch.bmm(h.mT, d))
        _part(self.grad, end, 1, p.ways).copy_(d.sum(1, keepdim=True))
        return loss, torch.bmm(d, weight.mT).view(self.flat.shape)

    def _backward(self, i: int, b: Block, theta, upstream, kept):
        r, slope, where = kept
        y, rows = self.y[i], self.batch * b.out**2
        dz = aten.threshold_backward(upstream, self.outputs[i], 0)
        if where is not None:
            before = _images(y.view(self.tasks, self.batch, b.out, b.out, -1))
            facts = _images(dz.contiguous()), before, *POOL, 2 * b.after > b.out, where
            dz = aten.max_pool2d_with_indices_backward(*facts).permute(0, 2, 3, 1)
        dz = dz.reshape(y.shape)
        shifts = dz.sum(1, keepdim=True)
        scales = (dz * y).sum(1, keepdim=True).mul_(r)  # sum of dz·xhat
        _part(self.grad, b.gamma, 1, b.filters).copy_(scales)
        _part(self.grad, b.gamma + b.filters, 1, b.filters).copy_(shifts)
        bend = slope * r * scales / -rows
        dy = torch.addcmul(slope * shifts / -rows, y, bend).addcmul_(dz, slope)
        where = b.weight, 9 * b.channels, b.filters
        _part(self.grad, *where).copy_(torch.bmm(self.patches[i].mT, dy))
        if i == 0:
            return None
        taps = torch.bmm(dy, _part(theta, *where).mT, out=self.patches[i])
        taps = taps.view(self.tasks, self.batch, b.out, b.out, 3, 3, b.channels)
        out, reach = self.spread[i].zero_(), b.stride * (b.out - 1) + 1
        for h in range(3):
            for w in range(3):
                out[:, :, h : h + reach : b.stride, w : w + reach : b.stride] += taps[..., h, w, :]
        return _inside(out, b)


def _part(flat: torch.Tensor, start: int, rows: int, columns: int) -> torch.Tensor:
    """A view [T, rows, columns] of flat [T, P]."""
    return flat[:, start : start + rows * columns].unflatten(1, (rows, columns))


def _inside(padded: torch.Tensor, b: Block) -> torch.Tensor:
    left, _, top, _ = b.pads
    return padded[:, :, top : top + b.side, left : left + b.side]


def _windows(padded: torch.Tensor, b: Block) -> torch.Tensor:
    """The 3x3 patches as a view [T, B, out, out, 3, 3·C]."""
    t, n, h, w, c = padded.stride()
    size = (*padded.shape[:2], b.out, b.out, 3, 3 * b.channels)
    return padded.as_strided(size, (t, n, h * b.stride, w * b.stride, h, c))


def _images(x: torch.Tensor) -> torch.Tensor:
    """[T, B, H, W, C] as torch's [T·B, C, H, W], channels last in memory."""
    return x.flatten(0, 1).permute(0, 3, 1, 2)


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
