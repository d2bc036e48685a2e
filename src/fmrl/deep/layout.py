"""Between a module and its flat parameter vector, and which modules may run side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from fmrl.deep.within import known
from fmrl.errors import FMRLError

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
PLAIN = (bool, int, float, str, tuple)


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a module's parameters, in its own order: theta [..., P] holds them.

    Args:
        names: Of the parameters.
        shapes: Of the parameters.
        frozen: Whether requires_grad is False: such a parameter never moves.

    >>> layout = Layout.of(nn.Linear(2, 3))
    >>> layout.size, layout.split(torch.zeros(4, 9))["weight"].shape
    (9, torch.Size([4, 3, 2]))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    frozen: tuple[bool, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of ``module``."""
        items = list(module.named_parameters())
        if not items:
            raise FMRLError("the module has no parameters")
        if any(nn.parameter.is_lazy(p) for _, p in items):
            raise FMRLError("the module has lazy parameters", fix="call it once on a mini-batch")
        if len({(p.dtype, p.device) for _, p in items}) > 1:
            what = "the module's parameters differ in dtype or device"
            raise FMRLError(what, fix="module.to(device, dtype)")
        names, parameters = zip(*items, strict=True)
        shapes = tuple(tuple(p.shape) for p in parameters)
        return cls(names, shapes, tuple(not p.requires_grad for p in parameters))

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
        if not any(self.frozen):
            return None
        flags, sizes = (torch.tensor(v, device=device) for v in (self.frozen, self.sizes))
        return flags.repeat_interleave(sizes)

    def split(self, theta: torch.Tensor) -> dict[str, torch.Tensor]:
        """Views of theta [..., P], one per parameter, [..., *shape]."""
        parts = zip(self.names, theta.split(self.sizes, dim=-1), self.shapes, strict=True)
        return {name: part.reshape((*theta.shape[:-1], *shape)) for name, part, shape in parts}

    def join(self, parameters: dict[str, torch.Tensor], lead: int = 0) -> torch.Tensor:
        """The flat vector of named parameters that share ``lead`` leading axes."""
        found = [parameters[n] for n in self.names]
        return torch.cat([p.flatten(lead) if lead < p.ndim else p[..., None] for p in found], -1)

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
    """The module as a function of theta [P], x, and optionally of buffers by name.

    The module itself is not changed. Unlike torch's functional_call alone it takes modules that use
    one layer twice, whose parameters functional_call would replace by tensors.

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

    def call(theta: torch.Tensor, x: torch.Tensor, buffers: dict | None = None) -> torch.Tensor:
        parameters = layout.split(theta)
        given = {n: parameters[k] for n, k in read.items()} | (buffers or {})
        return functional_call(module, given, (x,), tie_weights=False)

    return call


def architecture(module: nn.Module) -> tuple:
    """What modules of one architecture share besides their parameters' shapes.

    That is layers, settings, hooks, buffers, and what is frozen.
    """
    settings = []
    for name, m in module.named_modules():
        plain = [(k, v) for k, v in sorted(vars(m).items()) if type(v) in PLAIN]
        settings.append((name, plain, [len(getattr(m, hook, ())) for hook in HOOKS]))
    buffers = [(name, buffer.cpu().numpy().tobytes()) for name, buffer in module.named_buffers()]
    frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
    return repr(module), settings, buffers, frozen


def side_by_side(
    module: nn.Module | Sequence[nn.Module], within: Any, runs: int | None, device: Any
) -> tuple[list[nn.Module], list[Any], torch.device]:
    """One module and one inner rule for every run, on one device."""
    modules = [module] if isinstance(module, nn.Module) else list(module)
    if not modules or not all(isinstance(m, nn.Module) and [*m.parameters()] for m in modules):
        fix = "give a module with parameters, or a list of such modules"
        raise FMRLError("there is nothing to train", fix=fix)
    device = torch.device(device or next(modules[0].parameters()).device)
    modules = [m.to(device) for m in modules] * (runs or 1 if len(modules) == 1 else 1)
    given = within if isinstance(within, (list, tuple)) else [within] * len(modules)
    withins, fix = [known(w) for w in given], "train them one after the other"
    if len(withins) != len(modules) or (runs and runs != len(modules)):
        raise FMRLError("there must be one module and one within for every run")
    if len({repr(replace(w, step=1.0)) for w in withins}) > 1:
        raise FMRLError(f"{withins!r}: runs side by side differ in step alone", fix=fix)
    first = architecture(modules[0]), Layout.of(modules[0])
    if any((architecture(m), Layout.of(m)) != first for m in modules[1:]):
        raise FMRLError("runs side by side need one architecture, and equal buffers", fix=fix)
    return modules, withins, device
