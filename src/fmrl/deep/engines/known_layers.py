"""The layers of a network that may be replaced by faster forms: known by their exact types, and as
their authors left them.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def layers(module: nn.Module) -> list[nn.Module] | None:
    """Layers of (nested) nn.Sequential in the order they are applied, one that is used twice twice;
    None for any other module.

    None also where a class of one's own, a hook or a replaced forward may do more than the types
    say.

    >>> act = nn.Tanh()
    >>> [type(layer).__name__ for layer in layers(nn.Sequential(nn.Linear(2, 2), act, nn.Sequential(nn.Linear(2, 2), act)))]
    ['Linear', 'Tanh', 'Linear', 'Tanh']
    """
    if any(
        "forward" in m.__dict__ or any(getattr(m, hook, None) for hook in HOOKS)
        for m in module.modules()
    ):
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


class Places:
    """Where the numbers of each parameter lie in theta, and the order a plan takes them in."""

    def __init__(self, module: nn.Module):
        parameters = list(module.parameters())
        starts = accumulate((p.numel() for p in parameters), initial=0)
        self.start = {id(p): at for p, at in zip(parameters, starts, strict=False)}
        self.size = sum(p.numel() for p in parameters)
        self.taken: list[torch.Tensor] = []

    @property
    def count(self) -> int:
        """Numbers taken so far."""
        return sum(map(len, self.taken))

    def take(self, parameter: torch.Tensor, *axes: int) -> int:
        """Take a parameter's numbers next, with its axes permuted; returns where they start in the
        new order.
        """
        at = torch.arange(parameter.numel()).reshape(parameter.shape)
        return self._put(parameter, at.permute(axes) if axes else at)

    def take_dense(self, dense: nn.Linear, channels: int) -> int:
        """Take a dense layer's weights [position, channel, output] and its bias next."""
        places = (
            torch.arange(dense.in_features).view(channels, -1).mT.reshape(-1)
        )  # (position, channel) instead
        before = self._put(
            dense.weight,
            torch.arange(dense.out_features)[None] * dense.in_features + places[:, None],
        )
        self.take(dense.bias)
        return before

    def _put(self, parameter: torch.Tensor, at: torch.Tensor) -> int:
        before, start = (
            self.count,
            self.start.get(id(parameter), self.size),
        )  # beyond theta: a weight that is no parameter
        self.taken.append(start + at.reshape(-1))
        return before

    def order(self) -> torch.Tensor | None:
        """theta in the plan's order is theta[order]; None unless every number was taken once (tied
        weights are taken twice).
        """
        order = torch.cat(self.taken)
        return order if torch.equal(order.sort().values, torch.arange(self.size)) else None
