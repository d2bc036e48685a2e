"""Losses, gradients and Adam's step on a CPU, where a task's numbers should stay in the cache.

Where a network's products are small, its calls cost more than they do, and tasks are stacked as on
a GPU. For others (`suits`) there are two forms. Each is called with theta [T, P], inputs x [T, B,
...], labels and the keys of dropout (or None), and returns losses [T] and the gradient [T, P], in a
buffer that the next call overwrites. `Dense` writes the passes of dense layers in a row by hand,
for all tasks at once; `InTurn` calls the module itself on one task after another, with torch's own
kernels: their products gain nothing from being one call, and vmap copies more than it saves.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fmrl.deep.engines.by_hand import flattens, layers
from fmrl.deep.engines.functions import Replacing
from fmrl.deep.losses import CLASSIFIES, Loss, summed_cross_entropy
from fmrl.deep.networks import copied

aten = torch.ops.aten
FORWARD = {nn.ReLU: torch.relu, nn.Tanh: torch.tanh, nn.Sigmoid: torch.sigmoid}
BACKWARD = {
    nn.ReLU: lambda slope, y: aten.threshold_backward(slope, y, 0),
    nn.Tanh: aten.tanh_backward,
    nn.Sigmoid: aten.sigmoid_backward,
}
FUSED = getattr(torch, "_fused_adam_", None)
HEAVY = 4e6  # operations of a forward pass, about as long as the calls of a small network take
LATE = torch.tensor(1e30)  # steps taken: torch's own correction of the moments is then 1


def suits(stacked: Any, rows: torch.Tensor) -> bool:
    """Whether one of the two forms is used, for mini-batches like ``rows``. It depends on the
    network alone, so that runs repeat.
    """
    if stacked.looped or dense(stacked.module):
        return True
    # In single precision oneDNN runs recurrent layers, of which torch counts nothing.
    dtype = torch.float64 if stacked._takes_double(rows) else None
    module = copied(stacked.module).to(dtype)
    rows = stacked.cast(rows, next(module.parameters()).dtype)
    counter = FlopCounterMode(display=False)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), counter:
        module(rows)
    return counter.get_total_flops() > HEAVY


def gradient_of(stacked: Any, loss: Loss, tasks: int, like: torch.Tensor) -> Dense | InTurn:
    """The form that suits ``stacked.module``, for stacks of ``tasks`` on one thread."""
    made = Dense if dense(stacked.module) else InTurn
    return made(stacked, loss, tasks, like)


def dense(module: nn.Module) -> bool:
    """Whether a network is dense layers, each used once, and activations with known derivatives.

    >>> dense(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU())), dense(nn.GELU())
    (True, False)
    """
    found = layers(module) or []
    linear = [m for m in found if type(m) is nn.Linear]
    own = [id(p) for m in linear for p in m.parameters()]
    plain = all(type(m) in FORWARD or flattens(m) for m in found if type(m) is not nn.Linear)
    return bool(linear) and plain and len(set(own)) == len(own)


class Dense:
    """Dense layers in a row, by hand. ``done``, if given, is called with the number of every part
    between ``edges`` of theta once its gradient is known and the part is no longer needed."""

    def __init__(self, stacked: Any, loss: Loss, tasks: int, like: torch.Tensor):
        self.cast, self.loss, self.layers = stacked.cast, loss, layers(stacked.module)
        self.layout, self.grad = stacked.layout, like.new_zeros(tasks, stacked.layout.size)
        names = {id(p): n for n, p in stacked.module.named_parameters()}
        self.own = [[names[id(p)] for p in m.parameters(recurse=False)] for m in self.layers]
        self.plain = [flattens(m) for m in self.layers]
        linear = [m for m in self.layers if type(m) is nn.Linear]
        sizes = [sum(p.numel() for p in m.parameters()) for m in linear]
        self.edges = [0, *itertools.accumulate(sizes)]
        self.slopes = self._views(self.grad)
        self.first = next(i for i, own in enumerate(self.own) if own)  # with parameters
        self.met, self.theta = {}, []  # views of the parameters met, by their address

    def _views(self, flat) -> list:
        """Weight, its transpose and bias (or None) of every dense layer; None for others."""
        parts, found = self.layout.split(flat), []
        for own in self.own:
            weight, bias = [*(parts[n] for n in own), None, None][:2]
            bias = None if bias is None else bias[:, None]
            found.append(None if weight is None else (weight, weight.mT, bias))
        return found

    def __call__(self, theta, x, label, key=None, done=None) -> tuple[torch.Tensor, torch.Tensor]:
        if (at := theta.data_ptr()) not in self.met:
            self.met[at] = self._views(theta.data)
        self.theta = self.met[at]
        x, kept = self.cast(x, theta.dtype), []
        for layer, own, plain in zip(self.layers, self.theta, self.plain, strict=True):
            before = x
            if own is None:
                x = x.flatten(2) if plain else FORWARD[type(layer)](x)
            else:
                _, across, bias = own
                rows = before if x.ndim == 3 else x.reshape(len(x), -1, x.shape[-1])
                y = torch.bmm(rows, across)  # baddbmm is slower here
                y = y if bias is None else y.add_(bias)
                before, x = (rows, x.shape), y if x.ndim == 3 else y.view(*x.shape[:-1], -1)
            kept.append((before, x))
        values, slope = _slope(self.loss, x, label)
        part = len(self.edges) - 1
        for i in range(len(kept) - 1, self.first - 1, -1):
            slope = self._back(i, slope, *kept[i])
            if done is not None and self.own[i]:
                part -= 1
                done(part)
        return values, self.grad

    def _back(self, i: int, slope, before, after):
        """The slope at the input of layer i from that at its output; its parameters' slopes."""
        layer = self.layers[i]
        if self.theta[i] is None:
            plain = self.plain[i]
            return slope.view(before.shape) if plain else BACKWARD[type(layer)](slope, after)
        (rows, shape), (for_weight, _, for_bias) = before, self.slopes[i]
        slope = slope if slope.ndim == 3 else slope.reshape(len(rows), rows.shape[1], -1)
        torch.bmm(slope.mT, rows, out=for_weight)
        if for_bias is not None:
            torch.sum(slope, 1, keepdim=True, out=for_bias)
        return torch.bmm(slope, self.theta[i][0]).view(shape) if i > self.first else None


class InTurn:
    """A copy of the module, called on one task after another with that task's parameters."""

    def __init__(self, stacked: Any, loss: Loss, tasks: int, like: torch.Tensor):
        self.cast, self.loss, self.module = stacked.cast, loss, copied(stacked.module)
        self.parameters = list(self.module.parameters())
        self.layout, self.grad = stacked.layout, like.new_zeros(tasks, stacked.layout.size)
        self.live = [p for p in self.parameters if p.requires_grad]
        self.slopes = [
            [part for p, part in zip(self.parameters, self._parts(own), strict=True)
             if p.requires_grad] for own in self.grad
        ]  # fmt: skip
        # Only dropout and running statistics mean something else than the module says.
        self.replaced = stacked.drops or any(True for _ in self.module.buffers())
        self.at = 0  # where the parameters lie that the module has now

    @torch.enable_grad()
    def __call__(self, theta, x, label, key=None) -> tuple[torch.Tensor, torch.Tensor]:
        x, values = self.cast(x, theta.dtype), []
        for t, own in enumerate(theta.data):
            if own.data_ptr() != self.at:
                for parameter, value in zip(self.parameters, self._parts(own), strict=True):
                    parameter.data = value
                self.at = own.data_ptr()
            own_key = None if key is None else key[t]
            with Replacing(own_key, stacked=False) if self.replaced else nullcontext():
                out = self.module(x[t])
            value, slope = _slope(self.loss, out.detach()[None], label[t : t + 1])
            found = torch.autograd.grad(out, self.live, slope[0], materialize_grads=True)
            torch._foreach_copy_(self.slopes[t], found)
            values.append(value)
        return torch.cat(values), self.grad[: len(theta)]

    def _parts(self, flat: torch.Tensor):
        return self.layout.split(flat).values()


def _slope(loss: Loss, out, label) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses [T] and the slope at the outputs; by autograd where the loss is the user's."""
    if loss not in CLASSIFIES:
        out = out.detach().requires_grad_()
        with torch.enable_grad():
            values = loss(out, label)
            (slope,) = torch.autograd.grad(values.sum(), out)
        return values.detach(), slope
    weight = 1.0 if loss is summed_cross_entropy else 1.0 / label.shape[1]
    logs, at = out.log_softmax(-1), label[..., None]
    values = logs.gather(-1, at).sum((1, 2)).mul_(-weight)
    minus = torch.full_like(logs[..., :1], -1.0)
    return values, logs.exp_().scatter_add_(-1, at, minus).mul_(weight)


class Steps:
    """Adam's steps on theta [T, P] in place, a part at a time: right after its gradient, a part is
    still in the cache. Made once for tensors that stay where they are.

    Args:
        edges: Of the parts.
    """

    def __init__(self, within: Any, theta, second, gradient, edges: Sequence[int]):
        rows, ends = (theta, gradient, second), itertools.pairwise(edges)
        self.within, self.parts = within, [[v[:, a:b].unbind() for v in rows] for a, b in ends]
        self.etas, self.bias = [], 1.0  # of the tasks; of the step

    def __call__(self, part: int) -> None:
        rows, etas = self.parts[part], self.etas
        if min(etas) == max(etas):
            _adam(self.within, etas[0], self.bias, *rows)
            return
        for eta, *own in zip(etas, *rows, strict=True):
            _adam(self.within, eta, self.bias, *([v] for v in own))


def steps_once(theta, eta) -> bool:
    """Whether Adam's step can be taken in one pass: torch has it, and each task has one eta."""
    return FUSED is not None and eta.shape[1] == 1 and theta.is_contiguous()


def adam(within: Any, theta, second, gradient, eta, bias) -> bool:
    """Adam's step on theta [T, P], in place and in one pass; whether it can be taken so."""
    rows = theta, gradient, second
    if not steps_once(theta, eta) or not all(a.is_contiguous() for a in rows):
        return False
    etas = eta[:, 0].tolist()
    parts = [(etas[0], *rows)] if len(set(etas)) == 1 else list(zip(etas, *rows, strict=True))
    for step, *own in parts:
        _adam(within, step, float(bias), *([v] for v in own))
    return True


def _adam(within: Any, eta: float, bias: float, theta, gradient, second) -> None:
    """torch's kernel keeps a first moment too: with beta1 = 0 that is the gradient itself.
    eta·g/(√v/c + eps), c = ``bias``, is eta·c·g/(√v + eps·c), which needs no correction of the
    moments.
    """
    FUSED(
        theta, gradient, gradient, second, [], [LATE] * len(theta), lr=eta * bias, beta1=0.0,
        beta2=within.beta2, eps=within.eps * bias, weight_decay=0.0, amsgrad=False, maximize=False,
    )  # fmt: skip
