"""Between a module and its flat parameter vector."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from fmrl.errors import FMRLError


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a module's parameters, in the module's own order: theta [..., P] holds
    them row by row.

    >>> layout = Layout.of(nn.Linear(2, 3))
    >>> layout.size, layout.split(torch.zeros(4, 9))["weight"].shape
    (9, torch.Size([4, 3, 2]))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    frozen: tuple[bool, ...]  # requires_grad=False: stays where it is, in every task and in phi

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of ``module``."""
        items = list(module.named_parameters())
        if not items:
            raise FMRLError("the module has no parameters")
        if any(nn.parameter.is_lazy(p) for _, p in items):
            raise FMRLError("the module has lazy parameters", fix="call it once on a mini-batch")
        if len({p.dtype for _, p in items}) > 1 or len({p.device for _, p in items}) > 1:
            raise FMRLError(
                "the module's parameters differ in dtype or device", fix="module.to(device, dtype)"
            )
        names, parameters = zip(*items, strict=True)
        return cls(
            names,
            tuple(tuple(p.shape) for p in parameters),
            tuple(not p.requires_grad for p in parameters),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers per parameter."""
        return tuple(torch.Size(s).numel() for s in self.shapes)

    @property
    def size(self) -> int:
        """P, the length of theta."""
        return sum(self.sizes)

    def mask(self, device: Any = None) -> torch.Tensor | None:
        """True [P] where theta is frozen; None when nothing is.

        >>> net = nn.Linear(2, 1)
        >>> Layout.of(net).mask(), Layout.of(net.requires_grad_(False)).mask().tolist()
        (None, [True, True, True])
        """
        flags, sizes = (
            torch.tensor(self.frozen, device=device),
            torch.tensor(self.sizes, device=device),
        )
        return flags.repeat_interleave(sizes) if any(self.frozen) else None

    def split(self, theta: torch.Tensor) -> dict[str, torch.Tensor]:
        """Views of theta [..., P], one per parameter, [..., *shape]."""
        parts = theta.split(self.sizes, dim=-1)
        return {
            n: p.reshape((*theta.shape[:-1], *s))
            for n, p, s in zip(self.names, parts, self.shapes, strict=True)
        }

    def join(self, parameters: dict[str, torch.Tensor], lead: int = 0) -> torch.Tensor:
        """The flat vector of named parameters that share ``lead`` leading axes."""
        return torch.cat(
            [
                parameters[n].flatten(lead)
                if lead < parameters[n].ndim
                else parameters[n][..., None]
                for n in self.names
            ],
            -1,
        )

    def flat(self, module: nn.Module) -> torch.Tensor:
        """theta [P] of a module."""
        return self.join({n: p.detach() for n, p in module.named_parameters()})

    def module(self, like: nn.Module, theta: torch.Tensor) -> nn.Module:
        """A copy of ``like`` with parameters theta [P]."""
        out = copy.deepcopy(like)
        with torch.no_grad():
            for name, value in self.split(theta).items():
                out.get_parameter(name).copy_(value)
        return out


def bind(module: nn.Module) -> Callable[..., torch.Tensor]:
    """The module as a function of theta [P] and x, and of buffers by name in place of its own; it
    is left as it was.

    Unlike torch's functional_call alone it takes modules that use one layer twice, whose parameters
    that would replace by tensors.

    >>> net = nn.Linear(2, 1)
    >>> bind(net)(torch.ones(3), torch.ones(1, 2)).tolist()
    [[3.0]]
    """
    layout, first = Layout.of(module), {id(p): n for n, p in module.named_parameters()}
    read = {  # every place that a parameter is read from: tied ones have several
        f"{prefix}.{n}" if prefix else n: first[id(p)]
        for prefix, part in module.named_modules()
        for n, p in part._parameters.items()
        if p is not None
    }

    def call(
        theta: torch.Tensor, x: torch.Tensor, buffers: dict[str, torch.Tensor] | None = None
    ) -> torch.Tensor:
        parameters = layout.split(theta)
        return functional_call(
            module,
            {n: parameters[k] for n, k in read.items()} | (buffers or {}),
            (x,),
            tie_weights=False,
        )

    return call
