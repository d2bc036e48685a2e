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

import itertools
import math
from dataclasses import dataclass

import torch
from torch import nn

from fmrl.deep.networks import HOOKS, Layout, SameConv2d

aten = torch.ops.aten
LARGE = 2**18  # numbers in a task's patches, above which each task goes alone on a CPU
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
    call overwrites. ``done``, if given, is called with the number of every part between ``edges``
    of theta once its gradient is known and the part is no longer needed. All views are made once:
    threads share the interpreter, and wait for it."""

    def __init__(self, plan: Plan, tasks: int, batch: int, scale: float, device, dtype):
        self.plan, self.scale = plan, scale
        # torch's own batch norm passes over y less often, but knows one task.
        large = torch.device(device).type == "cpu" and plan.patches(batch) > LARGE
        self.alone = tasks == 1 and large  # small ones would differ by how many are left over

        def floats(*shape):
            return torch.zeros(tasks, *shape, dtype=dtype, device=device)

        self.grad, last = floats(len(plan.order)), plan.blocks[-1]
        self.edges = [*(b.weight for b in plan.blocks), plan.dense, len(plan.order)]
        self.slopes, self.met, self.theta = self._parts(self.grad), {}, []
        self.patches, self.views, self.rows, self.y = [], [], [], []
        self.back, self.taps, inside = [], [], []
        for i, b in enumerate(plan.blocks):
            left, right, top, bottom = b.pads
            padded = floats(batch, b.side + top + bottom, b.side + left + right, b.channels)
            patches = floats(batch * b.out**2, 9 * b.channels)
            y = floats(batch, b.out, b.out, b.filters)
            windows, spread = _windows(padded, b), torch.zeros_like(padded) if i else padded
            self.patches.append((patches, patches.mT))
            self.views.append((patches.view(windows.shape), windows))
            self.rows.append(y.flatten(1, 3))
            self.y.append(_images(y))
            self.back.append(_images(_inside(spread, b)))
            self.taps.append(_taps(spread, patches, b))
            inside.append(_inside(padded, b))
        self.inside, self.flat = inside[0], floats(batch, last.after**2 * last.filters)
        flat = self.flat.view(tasks, batch, last.after, last.after, last.filters)
        self.outputs = [_images(x) for x in (*inside[1:], flat)]  # where each block writes

    def __call__(self, theta, x, label, done=None) -> tuple[torch.Tensor, torch.Tensor]:
        if (at := theta.data_ptr()) not in self.met:
            self.met[at] = self._parts(theta.data)
        self.theta = self.met[at]
        self.inside.copy_(x)
        kept = [self._forward(i, b) for i, b in enumerate(self.plan.blocks)]
        loss, upstream = self._head(label)
        for i in range(len(kept), -1, -1):
            if i < len(kept):
                upstream = self._backward(i, self.plan.blocks[i], upstream, kept[i])
            if done is not None:
                done(i)
        return loss, self.grad

    def _parts(self, flat) -> list[tuple[torch.Tensor, ...]]:
        """Views of flat [T, P]: weight, its transpose, gamma and beta of every block; the dense
        layer's weight, its transpose and bias."""
        p, end = self.plan, self.plan.dense + self.plan.inputs * self.plan.ways
        found = []
        for b in p.blocks:
            weight = _part(flat, b.weight, 9 * b.channels, b.filters)
            norm = _part(flat, b.gamma, 2, b.filters)
            norm = norm[0].unbind(0) if self.alone else norm.split(1, 1)
            found.append((weight, weight.mT, *norm))
        weight = _part(flat, p.dense, p.inputs, p.ways)
        return [*found, (weight, weight.mT, _part(flat, end, 1, p.ways))]

    def _forward(self, i: int, b: Block) -> tuple:
        """Writes a block's output; what is kept of it."""
        (patches, windows), (weight, _, gamma, beta) = self.views[i], self.theta[i]
        patches.copy_(windows)
        y, where = torch.bmm(self.patches[i][0], weight, out=self.rows[i]), None
        if self.alone:
            z, *kept = torch.native_batch_norm(self.y[i], gamma, beta, None, None, True, 0.0, b.eps)
        else:
            y.sub_(y.mean(1, keepdim=True))  # var_mean is many times slower along this axis
            r = (y * y).mean(1, keepdim=True).add_(b.eps).rsqrt_()
            kept = r, gamma * r
            z = torch.addcmul(beta, y, kept[1]).view(-1, b.out, b.out, b.filters)
            z = z.permute(0, 3, 1, 2)
        if b.after != b.out:
            z, where = aten.max_pool2d_with_indices(z, *POOL, 2 * b.after > b.out)
        torch.clamp_min(z, 0, out=self.outputs[i])
        return *kept, where

    def _head(self, label):
        """Softmax cross-entropy: losses, and the gradient at the last block's output."""
        (weight, across, bias), slopes = self.theta[-1], self.slopes[-1]
        logs = torch.baddbmm(bias, self.flat, weight).log_softmax(-1)
        label, minus = label[..., None], torch.full_like(logs[..., :1], -1.0)
        loss = logs.gather(2, label).sum((1, 2)).mul_(-self.scale)
        d = logs.exp_().scatter_add_(2, label, minus).mul_(self.scale)
        torch.bmm(self.flat.mT, d, out=slopes[0])
        torch.sum(d, 1, keepdim=True, out=slopes[2])
        images = self.outputs[-1].permute(0, 2, 3, 1).shape
        return loss, torch.bmm(d, across).view(images).permute(0, 3, 1, 2)

    def _backward(self, i: int, b: Block, upstream, kept) -> torch.Tensor:
        """The gradient at a block's input (none at the images), from that at its output."""
        (_, across, gamma, _), (for_weight, _, *for_norm) = self.theta[i], self.slopes[i]
        (first, second, where), y = kept, self.rows[i]
        dz = aten.threshold_backward(upstream, self.outputs[i], 0)
        if where is not None:
            dz = dz.contiguous(memory_format=torch.channels_last)
            facts = dz, self.y[i], *POOL, 2 * b.after > b.out, where
            dz = aten.max_pool2d_with_indices_backward(*facts)
        if self.alone:
            facts = gamma, None, None, first, second, True, b.eps, [True] * 3
            dy, *found = aten.native_batch_norm_backward(dz, self.y[i], *facts)
            dy = dy.permute(0, 2, 3, 1).reshape(y.shape)
        else:
            r, slope, dz = first, second, dz.permute(0, 2, 3, 1).reshape(y.shape)
            shifts = dz.sum(1, keepdim=True)
            scales = (dz * y).sum(1, keepdim=True).mul_(r)  # sum of dz·xhat
            found, bend = (scales, shifts), slope * r * scales / -y.shape[1]
            dy = torch.addcmul(slope * shifts / -y.shape[1], y, bend).addcmul_(dz, slope)
        torch.bmm(self.patches[i][1], dy, out=for_weight)
        for target, value in zip(for_norm, found, strict=True):
            target.copy_(value)
        if i == 0:
            return dy
        torch.bmm(dy, across, out=self.patches[i][0])
        (target, value), *others = self.taps[i]
        if not _covers(b):
            self.back[i].zero_()
        target.copy_(value)
        for target, value in others:
            target.add_(value)
        return self.back[i]


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


def _taps(spread: torch.Tensor, patches: torch.Tensor, b: Block) -> list[tuple]:
    """Views (of padded images, of patches) of equal shape: added up, patches become images. Taps
    that lie within one stride of each other meet no pixel twice and go together."""
    (t, n, h, w, c), s = spread.stride(), b.stride
    patches = patches.view(*spread.shape[:2], b.out, b.out, 3, 3, b.channels)
    found = []
    for top, left in itertools.product(range(0, 3, s), range(0, 3, s)):
        part = patches[..., top : top + s, left : left + s, :]
        found.append((spread.as_strided(
            part.shape, (t, n, h * s, w * s, h, w, c), top * h + left * w), part))  # fmt: skip
    return found


def _covers(b: Block) -> bool:
    """Whether the first of `_taps` meets every pixel of the image, so that no zeros are needed."""
    left, _, top, _ = b.pads
    return max(left, top) + b.side <= b.stride * b.out


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
