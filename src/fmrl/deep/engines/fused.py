"""The fused inner step: which networks it fits, where their parameters lie, and the launches of one
step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fmrl.deep.engines.by_hand import ends_dense
from fmrl.deep.engines.known_layers import Places, layers
from fmrl.deep.models import SameConv2d
from fmrl.deep.within import Adam

PRECISIONS = ("ieee", "tf32", "bf16")
PROGRAMS = 128  # that a launch should have, about one for each multiprocessor


def available() -> bool:
    """Whether Triton is here; on a CPU its interpreter counts (TRITON_INTERPRET=1), for tests."""
    try:
        import triton
    except ImportError:
        return False
    return torch.cuda.is_available() or triton.knobs.runtime.interpret


@dataclass(frozen=True)
class Block:
    """One [convolution, batch norm, ReLU]: side in, side out, padding before, where its weights
    start.
    """

    side: int
    out: int
    pad: int
    offset: int


@dataclass(frozen=True)
class Plan:
    """A network the kernels can run: ``order`` puts module-order parameters into the kernels'
    order.
    """

    blocks: tuple[Block, ...]
    channels: int
    filters: int
    ways: int
    dense: int  # where the dense layer starts
    eps: float
    order: torch.Tensor  # [P]: kernel-order theta = module-order theta[order]

    @property
    def size(self) -> int:
        """P."""
        return len(self.order)


def plan(module: nn.Module, shape: tuple[int, ...], batch: int) -> Plan | None:
    """The plan for inputs of ``shape`` (C, H, W) in mini-batches of ``batch``, or None when the
    kernels do not fit the network.
    """
    found = layers(module) or []
    if len(found) < 8 or len(found) % 3 != 2 or len(shape) != 3 or shape[1] != shape[2]:
        return None
    *blocks, flatten, dense = found
    convs, norms, relus = blocks[0::3], blocks[1::3], blocks[2::3]
    if (
        not ends_dense(flatten, dense)
        or type(convs[0]) is not SameConv2d
        or type(norms[0]) is not nn.BatchNorm2d
    ):
        return None
    filters, channels, side = convs[0].out_channels, shape[0], shape[1]
    fits = (
        all(type(r) is nn.ReLU for r in relus)
        and all(
            type(n) is nn.BatchNorm2d
            and n.affine
            and not n.track_running_stats
            and n.eps == norms[0].eps
            for n in norms
        )
        and all(
            type(c) is SameConv2d
            and c.kernel_size == (3, 3)
            and c.stride == (2, 2)
            and c.bias is None
            for c in convs
        )
        and all(c.out_channels == filters for c in convs)
        and all(c.in_channels == (filters if i else channels) for i, c in enumerate(convs))
    )
    if not fits or filters not in (16, 32, 64) or 9 * channels > 32:
        return None
    places = Places(module)
    for norm in norms:
        places.take(norm.weight)
        places.take(norm.bias)
    specs = []
    for conv in convs:
        out = math.ceil(side / 2)
        specs.append(
            Block(side, out, conv.pads(side, side)[0], places.take(conv.weight, 2, 3, 1, 0))
        )
        side = out
    positions = side * side
    if (
        dense.in_features != filters * positions
        or positions & (positions - 1)
        or dense.out_features > 64
    ):
        return None
    if batch > 32 or batch * specs[0].out ** 2 > 8192:  # a program holds all rows of its channels
        return None
    start, order = places.take_dense(dense, filters), places.order()
    return (
        None
        if order is None
        else Plan(tuple(specs), channels, filters, dense.out_features, start, norms[0].eps, order)
    )


def _power(n: int, least: int = 16) -> int:
    return max(least, 1 << (n - 1).bit_length())


@dataclass(frozen=True)
class Tile:
    """How a program covers its work: output channels, input channels (or rows) at a time, loads in
    flight, rows a warp.
    """

    channels: int
    depth: int
    stages: int = 2
    rows_per_warp: int = 64

    def warps(self, rows: int) -> int:
        """Warps of a program that holds ``rows`` rows."""
        return min(max(rows // self.rows_per_warp, 4), 16)


@dataclass(frozen=True)
class Tiles:
    """Tiles of the kernels, each for up to 128, 320, 512 and more rows."""

    forward: tuple[Tile, Tile, Tile, Tile]
    data: tuple[Tile, Tile, Tile, Tile]
    weight: tuple[Tile, Tile, Tile, Tile]
    first: int = 128  # rows at a time in the first block
    sweep: int = 128  # rows at a time where batch norm's backward pass goes over them again

    def of(self, kernel: str, rows: int, tasks: int, filters: int) -> Tile:
        """The tile of ``kernel`` for this many rows; narrower where few tasks would leave
        multiprocessors without work.
        """
        tile = getattr(self, kernel)[sum(rows > limit for limit in (128, 320, 512))]
        channels = min(tile.channels, filters)
        while kernel != "weight" and channels > 16 and tasks * filters < channels * PROGRAMS:
            channels //= 2
        return replace(tile, channels=channels)


# The fastest of those measured on an H200 whose gradients are right.
FULL = Tiles((Tile(32, 32, 1),) * 4, (Tile(32, 32, 1),) * 4, (Tile(64, 64, 1),) * 4)
HALF = Tiles(
    (Tile(32, 64, 1), Tile(64, 64, 1), Tile(64, 64, 1), Tile(64, 64, 1)),
    (Tile(32, 64, 1), Tile(32, 64, 1), Tile(32, 32, 1), Tile(32, 32, 1)),
    (Tile(64, 64, 1),) * 4,
)


class FusedStep:
    """Launches one inner step of ``tasks`` stacked tasks; holds the activations between launches."""

    def __init__(
        self, plan: Plan, tasks: int, batch: int, within: Any, precision: str, device: Any, tiles: Tiles | None = None,
        wide: int | None = None, scale: float | None = None,
    ):  # fmt: skip
        self.plan, self.tasks, self.batch, self.within, self.tiles = (
            plan,
            tasks,
            batch,
            within,
            tiles or (HALF if precision == "bf16" else FULL),
        )
        self.wide = wide or tasks  # the stack size that tiles are chosen for
        self.scale = 1.0 / batch if scale is None else scale  # of one sample in the loss
        store = torch.bfloat16 if precision == "bf16" else torch.float32
        self.precision = "tf32" if precision == "bf16" else precision
        rows = [batch * b.out**2 for b in plan.blocks]
        self.xhat = [torch.empty(tasks, m, plan.filters, dtype=store, device=device) for m in rows]
        self.act = [torch.empty_like(x) for x in self.xhat[:-1]] + self.xhat[
            -1:
        ]  # nobody reads the last one
        self.dy = [torch.empty_like(x) for x in self.xhat]
        self.rstd = [torch.empty(tasks, plan.filters, device=device) for _ in rows]
        self.small = torch.empty(tasks, 2 * len(rows) * plan.filters, device=device)
        self.low = precision == "bf16"

    def __call__(self, inputs, theta, second, average, index, label, eta, bias, loss) -> None:
        """Move theta [T, P] (kernel order) by one step, in place. index, label [T, B]; eta [T];
        bias [1]; loss [T] is written.
        """
        import triton.language as tl

        from fmrl.deep.kernels import backward as kernels_backward
        from fmrl.deep.kernels import forward as kernels

        p, g, n, size = self.plan, self.tiles, self.tasks, self.plan.size
        f, batch, last = p.filters, self.batch, len(p.blocks) - 1
        adam, averaging = isinstance(self.within, Adam), average is not None
        beta2, eps = (self.within.beta2, self.within.eps) if adam else (0.0, 0.0)
        second, average = theta if second is None else second, theta if average is None else average
        math_ = {"PRECISION": self.precision, "TYPE": tl.bfloat16 if self.low else tl.float32}
        rule = {"ADAM": adam, "AVERAGE": averaging}
        small = self.small.shape[1]

        def shape(b: Block) -> dict:
            return {"B": batch, "H": b.side, "OH": b.out, "PAD": b.pad, "F": f}

        first = p.blocks[0]
        nb = min(32, f)
        taps = {
            "CIN": p.channels,
            "RB": g.first,
            "KP": _power(9 * p.channels),
            "NB": nb,
            "num_warps": 4,
        }
        kernels.first_forward[(n, f // nb)](
            inputs, index, theta, self.xhat[0], self.act[0], self.rstd[0], size, first.offset, 0, p.eps,
            PRECISION=self.precision, **taps, **shape(first),
        )  # fmt: skip
        for i, b in enumerate(p.blocks[1:], 1):
            rows, tile = _power(batch * b.out**2), g.of("forward", batch * b.out**2, self.wide, f)
            nb = tile.channels
            kernels.forward[(n, f // nb)](
                self.act[i - 1], theta, self.xhat[i], self.act[i], self.rstd[i], size, b.offset, 2 * i * f, p.eps, MB=rows, NB=nb,
                KB=min(tile.depth, f), ACT=i < last, num_warps=tile.warps(rows), num_stages=tile.stages, **shape(b), **math_,
            )  # fmt: skip
        kernels.head[(n,)](
            self.xhat[last], self.rstd[last], label, theta, second, average, loss, self.dy[last], self.small, eta, bias,
            size, p.dense, 2 * last * f, beta2, eps, self.scale, B=batch, HW=p.blocks[last].out ** 2, F=f, WAYS=p.ways,
            BP=_power(batch), WP=_power(p.ways), LAYER=last, SMALL=small, num_warps=8 if batch <= 16 else 16, **math_, **rule,
        )  # fmt: skip
        for i in range(last, 0, -1):
            b = p.blocks[i]
            most = batch * math.ceil(b.side / 2) ** 2
            rows, tile = _power(most), g.of("data", most, self.wide, f)
            nb = tile.channels
            kernels_backward.backward_data[(n, f // nb)](
                self.dy[i], self.xhat[i - 1], self.rstd[i - 1], theta, self.dy[i - 1], self.small, size, b.offset, 2 * (i - 1) * f,
                MC=rows, NB=nb, KB=min(tile.depth, f), SB=min(rows, g.sweep), LAYER=i - 1, SMALL=small,
                num_warps=tile.warps(rows), num_stages=tile.stages, **shape(b), **math_,
            )  # fmt: skip
            rows, tile = _power(batch * b.out**2), g.of("weight", batch * b.out**2, self.wide, f)
            nb = tile.channels
            kernels_backward.backward_weight[(n, 9, f // nb)](
                self.dy[i], self.act[i - 1], theta, second, average, eta, bias, size, b.offset, beta2, eps, RB=min(tile.depth, rows),
                NB=nb, PRECISION=self.precision, num_warps=4, num_stages=tile.stages, **shape(b), **rule,
            )  # fmt: skip
        kernels_backward.first_weight[(n, f // taps["NB"])](
            inputs, index, self.dy[0], theta, second, average, eta, bias, size, first.offset, beta2, eps, **taps,
            **shape(first), **math_, **rule,
        )  # fmt: skip
        kernels_backward.small_step[(n,)](
            theta,
            second,
            average,
            self.small,
            eta,
            bias,
            size,
            beta2,
            eps,
            SMALL=small,
            SP=_power(small),
            num_warps=4,
            **rule,
        )
