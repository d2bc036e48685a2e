"""Networks: any module as a flat parameter vector, and the paper's two as Reptile has them.

The two have TensorFlow's 'same' padding, Glorot weights, and batch norm on batch statistics.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from fmrl.errors import FMRLError

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


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
        out = copied(like)
        with torch.no_grad():
            for name, value in self.split(theta).items():
                out.get_parameter(name).copy_(value)
        return out


def copied(module: nn.Module) -> nn.Module:
    """A copy that shares nothing with ``module``."""
    try:
        return copy.deepcopy(module)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        fix = "keep no results of earlier calls in it; parametrizations.weight_norm can be copied"
        what = f"the {type(module).__name__} cannot be copied: {reason}"
        raise FMRLError(what, fix=fix) from None


def present(module: nn.Module) -> tuple:
    """What a call depends on besides the values of parameters: what is frozen, which layers are in
    training mode, and whether buffers were written to.
    """
    layers, buffers = module.modules(), module.buffers()
    versions = [(id(b), b._version) for b in buffers]
    return Layout.of(module), tuple(m.training for m in layers), tuple(versions)


def place(name: str) -> str:
    """Where a layer stands, as one would write it: the module is called net.

    >>> place("3"), place("encoder.layers.0.norm"), place("")
    ('net[3]', 'net.encoder.layers[0].norm', 'net')
    """
    parts = [p for p in name.split(".") if p]
    return "net" + "".join(f"[{p}]" if p.isdigit() else f".{p}" for p in parts)


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


class SameConv2d(nn.Conv2d):
    """A convolution padded so that the output side is ceil(input side / stride).

    An odd pixel of padding goes below and to the right.

    Args:
        channels: Of the input.
        filters: Channels of the output.
        kernel: Side of the kernel.
        stride: Pixels between two positions of the kernel.
        bias: Whether a constant is added to every filter.

    >>> SameConv2d(1, 2, 3, stride=2)(torch.zeros(1, 1, 7, 28)).shape
    torch.Size([1, 2, 4, 14])
    """

    def __init__(
        self, channels: int, filters: int, kernel: int, stride: int = 1, bias: bool = False
    ):
        super().__init__(channels, filters, kernel, stride=stride, padding=0, bias=bias)
        nn.init.xavier_uniform_(self.weight)
        if bias:
            nn.init.zeros_(self.bias)

    def pads(self, height: int, width: int) -> tuple[int, int, int, int]:
        """(left, right, top, bottom) for an input of this size."""
        sides = []
        for size, kernel, stride in zip(
            (width, height), self.kernel_size, self.stride, strict=True
        ):
            extra = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            sides += [extra // 2, extra - extra // 2]
        return tuple(sides)

    def forward(self, x):
        return F.conv2d(F.pad(x, self.pads(*x.shape[-2:])), self.weight, self.bias, self.stride)


def omniglot_net(
    ways: int, *, filters: int = 64, side: int = 28, channels: int = 1, seed: int | None = None
) -> nn.Sequential:
    """4 × [3×3 convolution with stride 2, batch norm, ReLU], then a dense layer.

    The convolutions have no bias: batch norm would take any constant out again.

    Args:
        ways: Outputs.
        filters: Channels of every convolution.
        side: Of the images, [B, channels, side, side].
        channels: Of the images.
        seed: Of the initial weights; None draws them from torch's global generator.

    >>> sum(p.numel() for p in omniglot_net(5).parameters())
    112965
    """
    return _network(ways, filters, side, channels, seed, stride=2)


def mini_imagenet_net(
    ways: int, *, filters: int = 32, side: int = 84, channels: int = 3, seed: int | None = None
) -> nn.Sequential:
    """4 × [3×3 convolution, batch norm, 2×2 max-pool, ReLU], then a dense layer.

    Args:
        ways: Outputs.
        filters: Channels of every convolution.
        side: Of the images, [B, channels, side, side].
        channels: Of the images.
        seed: Of the initial weights; None draws them from torch's global generator.

    >>> mini_imagenet_net(5)(torch.zeros(2, 3, 84, 84)).shape
    torch.Size([2, 5])
    """
    return _network(ways, filters, side, channels, seed, stride=1)


def _network(ways, filters, side, channels, seed, stride: int) -> nn.Sequential:
    """Four blocks that halve the side each, by their stride or by pooling, and a dense layer."""
    with torch.random.fork_rng([], enabled=seed is not None):
        if seed is not None:
            torch.random.default_generator.manual_seed(seed)
        layers: list[nn.Module] = []
        for before in (channels, filters, filters, filters):
            norm = nn.BatchNorm2d(filters, eps=1e-3, track_running_stats=False)
            layers += [SameConv2d(before, filters, 3, stride=stride), norm]
            layers += [nn.MaxPool2d(2, ceil_mode=True)] * (stride == 1) + [nn.ReLU()]
            side = math.ceil(side / 2)
        dense = nn.Linear(filters * side * side, ways)
        nn.init.xavier_uniform_(dense.weight)
        nn.init.zeros_(dense.bias)
        return nn.Sequential(*layers, nn.Flatten(), dense)
