"""Losses, gradients and Adam's step on a CPU, where a task's numbers should stay in the cache.

Where a network's products are small, its calls cost more than they do, and tasks are stacked as on
a GPU. For others (`suits`) there are two forms. Each is called with theta [T, P], inputs x [T, B,
...], labels and the keys of dropout (or None), and returns losses [T] and the gradient [T, P], in a
buffer that the next call overwrites. `Dense` writes the passes of dense layers in a row by hand,
for all tasks at once; `InTurn` calls the module itself on one task after another, with torch's own
kernels: their products gain nothing from being one call, and vmap copies more than it saves.
"""

from __future__ import annotations

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
    """Dense layers in a row, by hand."""

    def __init__(self, stacked: Any, loss: Loss, tasks: int, like: torch.Tensor):
        self.cast, self.loss, self.layers = stacked.cast, loss, layers(stacked.module)
        self.layout, self.grad = stacked.layout, like.new_zeros(tasks, stacked.layout.size)
        names = {id(p): n for n, p in stacked.module.named_parameters()}
        self.own = [[names[id(p)] for p in m.parameters(recurse=False)] for m in self.layers]
        self.slopes = self.layout.split(self.grad)
        self.first = next(i for i, own in enumerate(self.own) if own)  # with parameters
        self.at, self.theta = 0, {}  # the parameters met last, and their address

    def __call__(self, theta, x, label, key=None) -> tuple[torch.Tensor, torch.Tensor]:
        if theta.data_ptr() != self.at:
            self.at, self.theta = theta.data_ptr(), self.layout.split(theta.data)
        theta, x, kept = self.theta, self.cast(x, theta.dtype), []
        for layer, own in zip(self.layers, self.own, strict=True):
            before = x
            if not own:
                x = x.flatten(2) if flattens(layer) else FORWARD[type(layer)](x)
            else:
                weight, rows = theta[own[0]], x.reshape(len(x), -1, x.shape[-1])
                before = rows, x.shape
                y = torch.bmm(rows, weight.mT)  # baddbmm is slower here
                y = y.add_(theta[own[1]][:, None]) if len(own) > 1 else y
                x = y.view(*x.shape[:-1], -1)
            kept.append((before, x))
        values, slope = self._loss(x, label)
        for i in range(len(kept) - 1, self.first - 1, -1):
            slope = self._back(i, slope, theta, *kept[i])
        return values, self.grad

    def _loss(self, out, label) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses [T] and the slope at the outputs; by autograd where the loss is the user's."""
        if self.loss not in CLASSIFIES:
            out = out.detach().requires_grad_()
            with torch.enable_grad():
                values = self.loss(out, label)
                (slope,) = torch.autograd.grad(values.sum(), out)
            return values.detach(), slope
        weight = 1.0 if self.loss is summed_cross_entropy else 1.0 / label.shape[1]
        logs, at = out.log_softmax(-1), label[..., None]
        values = logs.gather(-1, at).sum((1, 2)).mul_(-weight)
        minus = torch.full_like(logs[..., :1], -1.0)
        return values, logs.exp_().scatter_add_(-1, at, minus).mul_(weight)

    def _back(self, i: int, slope, theta, before, after):
        """The slope at the input of layer i from that at its output; its parameters' slopes."""
        layer, own = self.layers[i], self.own[i]
        if not own:
            plain = flattens(layer)
            return slope.view(before.shape) if plain else BACKWARD[type(layer)](slope, after)
        rows, shape = before
        slope = slope.reshape(len(rows), rows.shape[1], -1)
        torch.bmm(slope.mT, rows, out=self.slopes[own[0]])
        if len(own) > 1:
            torch.sum(slope, 1, out=self.slopes[own[1]])
        return torch.bmm(slope, theta[own[0]]).view(shape) if i > self.first else None


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
            mode = Replacing(None if key is None else key[t], stacked=False)
            with mode if self.replaced else nullcontext():
                out = self.module(x[t])
            value = self.loss(out[None], label[t : t + 1])
            found = torch.autograd.grad(value, self.live, materialize_grads=True)
            torch._foreach_copy_(self.slopes[t], found)
            values.append(value.detach())
        return torch.cat(values), self.grad[: len(theta)]

    def _parts(self, flat: torch.Tensor):
        return self.layout.split(flat).values()


def adam(within: Any, theta, second, gradient, eta, bias) -> bool:
    """Adam's step on theta [T, P], in place and in one pass; whether it can be taken so.

    torch's kernel keeps a first moment too: with beta1 = 0 that is the gradient itself. eta·g/(√v/c
    + eps), c = ``bias``, is eta·c·g/(√v + eps·c), which needs no correction of the moments.
    """
    rows = theta, gradient, second
    if FUSED is None or eta.shape[1] > 1 or not all(a.is_contiguous() for a in rows):
        return False
    correction = float(bias)
    steps = [step * correction for step in eta[:, 0].tolist()]
    if len(set(steps)) == 1:
        parts = [(steps[0], *rows)]
    else:
        parts = list(zip(steps, *rows, strict=True))
    rest = {"weight_decay": 0.0, "amsgrad": False, "maximize": False, "beta1": 0.0}
    rest |= {"beta2": within.beta2, "eps": within.eps * correction}
    for step, t, g, v in parts:
        FUSED([t], [g], [g], [v], [], [LATE], lr=step, **rest)
    return True
