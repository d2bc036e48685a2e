"""Recurrent layers of a stack of tasks, each with its own weights.

On a GPU they run step by step, all tasks at once: products with the inputs of all steps are one
batched product, and only what depends on the state is done in turn. The LSTM has a backward pass of
its own, in which the gradient of the recurrent weights is one product over all steps. On a CPU
torch's own layer runs task by task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fmrl.deep.engines import fused


@dataclass(frozen=True)
class Options:
    """What torch.lstm, torch.gru, torch.rnn_tanh and torch.rnn_relu are told."""

    cell: str  # "lstm", "gru", "tanh" or "relu"
    states: int  # 2 for an LSTM, h and c
    bias: bool
    depth: int
    dropout: float
    training: bool
    both_ways: bool
    batch_first: bool = False

    @property
    def each(self) -> int:
        """Weights of one layer in one direction."""
        return 4 if self.bias else 2

    def without_dropout(self) -> Options:
        """The same with nothing left out between layers."""
        return replace(self, dropout=0.0)


def layers(options: Options, weights: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The weights of every layer, of both directions."""
    each = options.each * (2 if options.both_ways else 1)
    if len(weights) != each * options.depth:
        raise NotImplementedError("a recurrent layer with projections")
    return [list(weights[i : i + each]) for i in range(0, len(weights), each)]


def layer(options: Options, x, states, weights) -> tuple[torch.Tensor, ...]:
    """Outputs and last states of a layer: x [T, S, B, I] or batch first, states [T, ways, B, H]."""
    x, ends, outputs = x.transpose(1, 2) if options.batch_first else x, [], []
    for way in range(len(weights) // options.each):
        given = weights[way * options.each :][: options.each]
        first = tuple(s[:, way] for s in states)
        y, last = _one_way(options.cell, x.flip(1) if way else x, first, given)
        outputs.append(y.flip(1) if way else y)
        ends.append(last)
    y = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
    y = y.transpose(1, 2) if options.batch_first else y
    return (y, *(torch.stack(parts, 1) for parts in zip(*ends, strict=True)))


def in_turn(func, options: Options, x, states, weights) -> tuple[torch.Tensor, ...]:
    """The same by torch's own layer, task by task: on a CPU a task's weights stay in the cache."""
    told = options.bias, 1, 0.0, options.training, options.both_ways, options.batch_first
    found = []
    for own in zip(x, *states, *weights, strict=True):
        first, given = own[1 : 1 + len(states)], [w.contiguous() for w in own[1 + len(states) :]]
        state = tuple(first) if options.cell == "lstm" else first[0]
        found.append(func(own[0], state, given, *told))
    return tuple(torch.stack(part) for part in zip(*found, strict=True))


def _one_way(cell: str, x, first, weights):
    """y [T, S, B, H] and the last states [T, B, H] of one layer in one direction."""
    into, again, *biases = weights
    tasks, steps, batch = x.shape[:3]
    gates = (x.flatten(1, 2) @ into.mT).view(tasks, steps, batch, -1)
    if biases:
        here = biases[0] if cell == "gru" else biases[0] + biases[1]
        gates = gates + here[:, None, None]
    if cell == "lstm":
        y, c = _LSTM.apply(gates, again, *first)
        return y, (y[:, -1], c)
    h, found = first[0], []
    for own in gates.unbind(1):
        h = _gru(own, h, again, biases) if cell == "gru" else _plain(cell, own, h, again)
        found.append(h)
    return torch.stack(found, 1), (h,)


def _plain(cell, gates, h, again):
    z = torch.baddbmm(gates, h, again.mT)
    return z.tanh() if cell == "tanh" else z.relu()


def _gru(gates, h, again, biases):
    back = h @ again.mT
    return step("gru", gates, back + biases[1][:, None] if biases else back, h)


def step(cell: str, gates, back, state):
    """The state after one step, from the products with the input and with the state, [..., 4H] for
    an LSTM (whose state is h and c), [..., 3H] for a GRU, else [..., H].
    """
    if cell == "gru":
        (r, z, n), (hr, hz, hn) = gates.chunk(3, -1), back.chunk(3, -1)
        r, z = (r + hr).sigmoid(), (z + hz).sigmoid()
        n = (n + r * hn).tanh()
        return n + z * (state - n)
    if cell != "lstm":
        return (gates + back).tanh() if cell == "tanh" else (gates + back).relu()
    i, f, g, o = (gates + back).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


class _LSTM(torch.autograd.Function):
    """Gates of all steps [T, S, B, 4H] and recurrent weights [T, 4H, H] to y [T, S, B, H] and c."""

    @staticmethod
    def forward(ctx, gates, again, h, c):
        (tasks, steps), gates = gates.shape[:2], gates.contiguous()
        work, y = torch.empty_like(gates), gates.new_empty(tasks, steps, *c.shape[1:])
        cells = gates.new_empty(tasks, steps + 1, *c.shape[1:])
        cells[:, 0] = c
        cell, last = _steps(gates)[0], h
        for s in range(steps):
            cell(gates, torch.bmm(last, again.mT), cells, work, y, s)
            last = y[:, s]
        ctx.save_for_backward(again, h, y, cells, work)
        return y, cells[:, -1].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy, dc):
        again, h, y, cells, work = ctx.saved_tensors
        dh, dc = torch.zeros_like(h), torch.zeros_like(h).add_(dc)  # written to, so copies
        dy = torch.zeros_like(y) if dy._is_zerotensor() else dy.contiguous()
        dgates, back = torch.empty_like(work), _steps(work)[1]
        for s in reversed(range(y.shape[1])):
            back(dh, dy, dc, cells, work, dgates, s)
            dh = torch.bmm(dgates[:, s], again)
        before = torch.cat([h[:, None], y[:, :-1]], 1).flatten(1, 2)
        return dgates, torch.bmm(dgates.flatten(1, 2).mT, before), dh, dc


def _steps(like: torch.Tensor):
    """The two functions of one step: by kernels where they run."""
    if like.is_cuda and like.dtype == torch.float32 and fused.available():
        return _by_kernel("lstm_cell"), _by_kernel("lstm_cell_back")
    return _cell, _cell_back


def _by_kernel(name: str):
    from fmrl.deep.kernels import recurrent as kernels

    def step(*given):
        *tensors, s = given
        tasks, more, batch, size = tensors[2 if name == "lstm_cell" else 3].shape  # cells
        grid = tasks, -(-batch * size // kernels.BLOCK)
        tensors = [t.contiguous() for t in tensors]
        getattr(kernels, name)[grid](*tensors, s, more - 1, batch, size, BLOCK=kernels.BLOCK)

    return step


def _cell(gates, back, cells, work, y, s) -> None:
    """Step s, in place: cells[s + 1], y[s] and the gates after their activation."""
    size, own = y.shape[-1], torch.add(gates[:, s], back, out=work[:, s])
    own[..., : 2 * size].sigmoid_()
    own[..., 2 * size : 3 * size].tanh_()
    own[..., 3 * size :].sigmoid_()
    i, f, g, o = own.chunk(4, -1)
    c = torch.addcmul(f * cells[:, s], i, g, out=cells[:, s + 1])
    torch.mul(o, c.tanh(), out=y[:, s])


def _cell_back(dh, dy, dc, cells, work, dgates, s) -> None:
    """Gradients of step s, in place: dgates[s], and dc moved from after the step to before it."""
    i, f, g, o = work[:, s].chunk(4, -1)
    di, df, dg, do = dgates[:, s].chunk(4, -1)
    dh, t = dh + dy[:, s], cells[:, s + 1].tanh()
    dc.addcmul_(dh * o, 1 - t * t)
    torch.mul(dc * g, i * (1 - i), out=di)
    torch.mul(dc * cells[:, s], f * (1 - f), out=df)
    torch.mul(dc * i, 1 - g * g, out=dg)
    torch.mul(dh * t, o * (1 - o), out=do)
    dc.mul_(f)
