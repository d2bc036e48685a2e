"""A module as a function of the parameters of many tasks: at once, or task by task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.overrides import _get_current_function_mode
from torch.utils._pytree import tree_flatten, tree_unflatten

from fmrl.deep.engines.by_hand import flattens, layers
from fmrl.deep.engines.functions import Linear, Replacing, Stacking
from fmrl.deep.networks import Layout, bind

Apply = Callable[..., torch.Tensor]
COUNTER = "num_batches_tracked"  # of a batch norm: the only buffer that a call may write to


POINTWISE = (
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.LeakyReLU, nn.SiLU, nn.Softplus, nn.Identity,
)  # fmt: skip


def chain(module: nn.Module) -> Apply | None:
    """The form of dense layers and activations in a row, without vmap: a small network's step is
    otherwise spent in its bookkeeping. None for any other module.

    >>> chain(nn.Linear(2, 3))(torch.ones(4, 9), torch.ones(4, 5, 2)).unique().tolist()
    [3.0]
    """
    found, names = layers(module), {id(p): n for n, p in module.named_parameters()}
    plain = [type(m) in POINTWISE or type(m) is nn.Linear or flattens(m) for m in found or []]
    if not plain or not all(plain):
        return None
    layout = Layout.of(module)
    own = [[names[id(p)] for p in (m.weight, m.bias) if p is not None]
           if type(m) is nn.Linear else None for m in found]  # fmt: skip

    def form(theta, x, key=None):
        parameters = layout.split(theta)
        for layer, named in zip(found, own, strict=True):
            if named is None:
                x = x.flatten(2) if flattens(layer) else layer(x)
                continue
            weight, *bias = (parameters[n] for n in named)
            y = Linear.apply(x.reshape(len(x), -1, x.shape[-1]), weight)
            y = y + bias[0][:, None] if bias else y
            x = y.view(*x.shape[:-1], -1)
        return x

    return form


def at_once(module: nn.Module, replaced: bool = True) -> Apply:
    """f(theta [T, P], x [T, B, ...], key [T] or None), by vmap but for a `chain`."""
    if replaced and (direct := chain(module)) is not None:
        return direct
    one, buffers = bind(module), counters(module)

    def call(theta, x, key=None):
        with Replacing(key, stacked=replaced):
            return one(theta, x, buffers)

    def form(theta, x, key=None):
        return vmap(call, in_dims=(0, 0, None if key is None else 0))(theta, x, key)

    return form


def each_in_turn(module: nn.Module) -> Apply:
    """The same, task by task."""
    one, buffers = bind(module), counters(module)

    def form(theta, x, key=None):
        keys, outputs = [None] * len(theta) if key is None else key, []
        for own in zip(theta, x, keys, strict=True):
            with Replacing(own[2], stacked=False):
                outputs.append(one(own[0], own[1], buffers))
        return torch.stack(outputs)

    return form


def counters(module: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of what a call may count in, so that the module's own stay as they are."""
    return {n: b.clone() for n, b in module.named_buffers() if n.endswith(COUNTER)}


def run_in_turn(layer: nn.Module) -> None:
    """Make ``layer`` run task by task where the network around it runs at once."""
    plain, busy = layer.forward, []

    def forward(*args: Any, **kwargs: Any) -> Any:
        if busy:
            return plain(*args, **kwargs)
        mode, own = _get_current_function_mode(), dict(_parameters(layer))
        leaves, tree = tree_flatten((args, kwargs))
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        keys, calls, shape = [] if mode.key is None else [mode.key], mode.calls, []

        def one(*tensors):
            key, tensors = (tensors[0], tensors[1:]) if keys else (None, tensors)
            for i, tensor in zip(at, tensors[len(own) :], strict=True):
                leaves[i] = tensor
            ordered, named = tree_unflatten(leaves, tree)
            mode.calls = calls
            # torch leaves the mode while it looks for the rule of `Stacking` in vmap.
            inside = _get_current_function_mode() is mode
            with mode.alone(key), nullcontext() if inside else mode:
                given = dict(zip(own, tensors, strict=False))
                out, found = tree_flatten(functional_call(layer, given, ordered, named))
                shape[:] = [found]
            return out

        def run(*tensors):
            busy.append(True)
            try:
                found = [one(*part) for part in zip(*tensors, strict=True)]
            finally:
                busy.pop()
            return tuple(torch.stack(part) for part in zip(*found, strict=True))

        out = Stacking.apply(run, *keys, *own.values(), *(leaves[i] for i in at))
        return tree_unflatten(list(out), shape[0])

    layer.forward = forward


def _parameters(layer: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and present values: inside functional_call they are plain tensors."""
    for prefix, part in layer.named_modules():
        for name, value in part._parameters.items():
            if value is not None:
                yield f"{prefix}.{name}" if prefix else name, value


@contextmanager
def tracked(module: nn.Module, entered: list[str]):
    """In ``entered``, the layers whose call has begun and not ended; handles are removed after."""
    handles = []
    for name, layer in module.named_modules():
        handles.append(layer.register_forward_pre_hook(lambda *_, n=name: entered.append(n)))
        handles.append(layer.register_forward_hook(lambda *_, n=name: entered.remove(n)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
