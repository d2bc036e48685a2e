"""Functions of torch that torch.func.vmap refuses, or runs slowly, on a stack of tasks.

While a network is called, `Replacing` puts others in their place that give the same numbers:
convolutions as batched products, attention by its formula, recurrent layers in cells. Two functions
mean something else across tasks and are replaced wherever a network is called: dropout draws its
mask from a key (`uniform`), so that runs repeat and resume, and batch norm in training mode uses
the mini-batch at hand and leaves running statistics as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fmrl.deep.engines import recurrent
from fmrl.deep.engines.convolution import both, convolve, pads_of, single

SMALL = 2**13  # weights of a layer: below, a transposed copy costs less than to look for a rule
MULTIPLIERS = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # of splitmix64, as signed numbers


class Stacking(torch.autograd.Function):
    """f(*tensors [T, ...]) -> tensor or tensors [T, ...], called with one task's inside vmap.

    Autograd sees what f does.
    """

    @staticmethod
    def vmap(info, in_dims, f, *tensors):
        pairs = zip(tensors, in_dims[1:], strict=True)
        full = [
            t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0) for t, d in pairs
        ]
        out = f(*full)
        return out, 0 if isinstance(out, torch.Tensor) else (0,) * len(out)

    @staticmethod
    def forward(f, *tensors):
        raise NotImplementedError("call it inside torch.func.vmap")

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


class Replacing(TorchFunctionMode):
    """The replacements while a network is called.

    Args:
        key: A whole number (a tensor, its own for each task) that masks of dropout are drawn from;
            None leaves nothing out.
        stacked: Whether the call is inside vmap. Outside, only what is random is replaced.
    """

    def __init__(self, key: torch.Tensor | None = None, stacked: bool = True):
        super().__init__()
        self.key, self.stacked, self.calls = key, stacked, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        other = REPLACED.get(func)
        if other is None:
            return func(*args, **(kwargs or {}))
        return other(self, func, *args, **(kwargs or {}))

    @contextmanager
    def alone(self, key: torch.Tensor | None):
        """As outside vmap, for one task."""
        kept = self.key, self.stacked
        self.key, self.stacked = key, False
        try:
            yield
        finally:
            self.key, self.stacked = kept

    def formula(self, p: float) -> bool:
        """Whether a function that drops with probability p is replaced."""
        return self.stacked or (self.key is not None and p > 0)

    def stacking(self, f: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        """f of the whole stack's tensors; outside vmap, of a stack of one task."""
        if self.stacked:
            return Stacking.apply(f, *tensors)
        out = f(*(t[None] for t in tensors))
        return out[0] if isinstance(out, torch.Tensor) else tuple(t[0] for t in out)

    def dropped(self, x: torch.Tensor, p: float, shape: tuple[int, ...] | None = None):
        """x with each number, or each part of ``shape``, left out with probability p."""
        if self.key is None or p == 0:
            return x
        self.calls += 1
        shape = tuple(x.shape) if shape is None else shape
        kept = uniform(self.key, self.calls, math.prod(shape)).view(shape) >= p
        return x * kept.to(x.dtype) * (0.0 if p == 1 else 1 / (1 - p))


def uniform(key: torch.Tensor, call: int, count: int) -> torch.Tensor:
    """[count] numbers in [0, 1) that depend on the key, the call and the position alone.

    >>> key = torch.tensor(7)
    >>> bool((uniform(key, 1, 4) == uniform(key, 1, 8)[:4]).all())
    True
    >>> abs(float(uniform(key, 1, 10_000).mean()) - 0.5) < 0.01
    True
    """
    position = torch.arange(count, device=key.device)
    mixed = mix(mix(key) + mix(torch.tensor(call, device=key.device)) + position)
    return ((mixed >> 40) & 0xFFFFFF).to(torch.float32) / 2**24


def mix(z: torch.Tensor) -> torch.Tensor:
    """A permutation of 64-bit numbers under which neighbours lie far apart (splitmix64)."""
    z = z * -0x61C8864680B583EB
    for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * multiplier
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def _dropout(mode, func, input, p=0.5, training=True, inplace=False):
    return mode.dropped(input, p) if training else input


def _channels(axes: int):
    """Dropout of whole channels, over so many axes behind them."""

    def dropout(mode, func, input, p=0.5, training=True, inplace=False):
        # torch takes what dropout2d is given as a batch [N, C, ...], however many axes it has
        lead = 2 if axes == 2 or input.ndim == axes + 2 else 1
        kept = input.shape[:lead] + (1,) * (input.ndim - lead)
        return mode.dropped(input, p, kept) if training else input

    return dropout


def _embedding(mode, func, input, weight, padding_idx=None, *rest, **options):
    out = func(input, weight, padding_idx, *rest, **options)
    if padding_idx is None:
        return out
    # vmap looks all tasks' rows up in one table, of which only the first task's pad has no gradient
    pad = (input == padding_idx % len(weight))[..., None]
    return torch.where(pad, out.detach(), out)


def _batch_norm(mode, func, input, running_mean, running_var, weight=None, bias=None,
                training=False, momentum=0.1, eps=1e-5):  # fmt: skip
    kept = (None, None) if training else (running_mean, running_var)
    return func(input, *kept, weight, bias, training, momentum, eps)


def _instance_norm(mode, func, input, running_mean=None, running_var=None, weight=None, bias=None,
                   use_input_stats=True, momentum=0.1, eps=1e-5):  # fmt: skip
    kept = (None, None) if use_input_stats else (running_mean, running_var)
    return func(input, *kept, weight, bias, use_input_stats, momentum, eps)


def _attention(mode, func, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False,
               scale=None, enable_gqa=False):  # fmt: skip
    if not mode.formula(dropout_p):
        given = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return func(query, key, value, attn_mask, 0.0, **given)
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(times, -3) for t in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        above = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(above, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    shares = scores.softmax(-1) if attn_mask is None else _shares(scores)
    return mode.dropped(shares, dropout_p) @ value


def _shares(scores):
    """Softmax over the last axis; 0 where everything is hidden, as in torch's own attention."""
    none = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(none, 0.0).softmax(-1).masked_fill(none, 0.0)


def _multi_head(mode, func, query, key, value, embed_dim, heads, in_weight, in_bias, bias_k, bias_v,
                add_zero_attn, dropout_p, out_weight, out_bias, training=True,
                key_padding_mask=None, need_weights=True, attn_mask=None,
                use_separate_proj_weight=False, q_proj_weight=None, k_proj_weight=None,
                v_proj_weight=None, static_k=None, static_v=None, average_attn_weights=True,
                is_causal=False):  # fmt: skip
    """torch.nn.functional.multi_head_attention_forward: [L, N, E], or [L, E], and all its masks."""
    dropout_p = dropout_p if training else 0.0
    if not mode.formula(dropout_p):
        first = query, key, value, embed_dim, heads, in_weight, in_bias, bias_k, bias_v
        masks = training, key_padding_mask, need_weights, attn_mask
        apart = use_separate_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight
        rest = add_zero_attn, 0.0, out_weight, out_bias, *masks, *apart
        return func(*first, *rest, static_k, static_v, average_attn_weights, is_causal)
    if bias_k is not None or add_zero_attn or static_k is not None:
        raise NotImplementedError("attention with added keys")
    alone = query.ndim == 2
    if alone:
        query, key, value = (t[:, None] for t in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
    split = in_weight.chunk(3) if in_weight is not None else ()
    weights = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else split
    biases = (None,) * 3 if in_bias is None else in_bias.chunk(3)
    parts = zip((query, key, value), weights, biases, strict=True)
    # [L, N, E] -> [N, heads, L, E / heads]
    into = (_linear(mode, F.linear, *p).unflatten(-1, (heads, -1)) for p in parts)
    q, k, v = (t.permute(1, 2, 0, 3) for t in into)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    for mask in (attn_mask, None if key_padding_mask is None else key_padding_mask[:, None, None]):
        if mask is None:
            continue
        mask = mask.view(-1, heads, *mask.shape[1:]) if mask.ndim == 3 else mask
        hidden = mask.dtype == torch.bool
        scores = scores.masked_fill(mask, -math.inf) if hidden else scores + mask
    plain = need_weights or (attn_mask is None and key_padding_mask is None)
    shares = mode.dropped(scores.softmax(-1) if plain else _shares(scores), dropout_p)
    joined = (shares @ v).permute(2, 0, 1, 3).flatten(2)
    out = _linear(mode, F.linear, joined, out_weight, out_bias)
    seen = (shares.mean(1) if average_attn_weights else shares) if need_weights else None
    if alone:
        out, seen = out[:, 0], None if seen is None else seen[0]
    return out, seen


class Linear(torch.autograd.Function):
    """x [T, n, I] times weights [T, O, I]: no product or gradient is transposed in memory."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.mT)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, slope):
        x, weight = ctx.saved_tensors
        back = torch.bmm(slope, weight) if ctx.needs_input_grad[0] else None
        return back, torch.bmm(slope.mT, x)


def _linear(mode, func, input, weight, bias=None):
    if not mode.stacked or weight.numel() < SMALL:
        return func(input, weight, bias)

    def run(x, weight):
        y = Linear.apply(x.reshape(len(x), -1, x.shape[-1]), weight)
        return y.view(*x.shape[:-1], weight.shape[1])

    y = mode.stacking(run, input, weight)
    return y if bias is None else y + bias


def _conv2d(mode, func, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    if not mode.stacked or groups != 1 or input.ndim != 4:
        return func(input, weight, bias, stride, padding, dilation, groups)
    stride, dilation = both(stride), both(dilation)
    pads = pads_of(padding, weight.shape[-2:], dilation)
    y = mode.stacking(lambda x, w: convolve(x, w, pads, stride, dilation), input, weight)
    return y if bias is None else y + bias[:, None, None]


def _conv1d(mode, func, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    if not mode.stacked or groups != 1 or input.ndim != 3:
        return func(input, weight, bias, stride, padding, dilation, groups)
    stride, dilation = ((1, *single(v)) for v in (stride, dilation))
    padding = padding if isinstance(padding, str) else (0, *single(padding))
    flat = input[..., None, :], weight[..., None, :]
    return _conv2d(mode, func, *flat, bias, stride, padding, dilation)[..., 0, :]


def _recurrent(cell: str):
    def layer(mode, func, input, state, weights, *options):
        if not isinstance(options[0], bool):  # packed sequences have other arguments
            if mode.stacked:
                raise NotImplementedError("packed sequences")
            return func(input, state, weights, *options)
        states = tuple(state) if cell == "lstm" else (state,)
        own = recurrent.Options(cell, len(states), *options)
        own = own if own.training and own.depth > 1 else own.without_dropout()
        if not mode.formula(own.dropout):
            bias, depth, _, training, *rest = options
            return func(input, state, weights, bias, depth, 0.0, training, *rest)
        x, ends = input, []
        for i, each in enumerate(recurrent.layers(own, weights)):
            x = mode.dropped(x, own.dropout) if i else x
            ways = len(each) // own.each
            first = [s[i * ways : (i + 1) * ways] for s in states]

            def run(x, *rest):
                if x.is_cuda:
                    return recurrent.layer(own, x, rest[: len(states)], rest[len(states) :])
                return recurrent.in_turn(func, own, x, rest[: len(states)], rest[len(states) :])

            x, *last = mode.stacking(run, x, *first, *each)
            ends.append(last)
        return (x, *(torch.cat(parts) for parts in zip(*ends, strict=True)))

    return layer


def _cell(kind: str):
    """One step, which vmap would run task by task."""

    def cell(mode, func, input, state, into, again, bias=None, back=None):
        if not mode.stacked:
            return func(input, state, into, again, bias, back)
        h = state[0] if kind == "lstm" else state
        gates = _linear(mode, F.linear, input, into, bias)
        return recurrent.step(kind, gates, _linear(mode, F.linear, h, again, back), state)

    return cell


REPLACED = {
    F.dropout: _dropout,
    torch.dropout: lambda mode, func, input, p, train: _dropout(mode, func, input, p, train),
    F.dropout1d: _channels(1),
    F.dropout2d: _channels(2),
    F.dropout3d: _channels(3),
    F.embedding: _embedding,
    F.batch_norm: _batch_norm,
    F.instance_norm: _instance_norm,
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head,
    F.linear: _linear,
    torch.conv2d: _conv2d,
    torch.conv1d: _conv1d,
    torch.lstm: _recurrent("lstm"),
    torch.gru: _recurrent("gru"),
    torch.rnn_tanh: _recurrent("tanh"),
    torch.rnn_relu: _recurrent("relu"),
    torch.lstm_cell: _cell("lstm"),
    torch.gru_cell: _cell("gru"),
    torch.rnn_tanh_cell: _cell("tanh"),
    torch.rnn_relu_cell: _cell("relu"),
}
