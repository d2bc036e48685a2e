"""The fused inner step: which networks it fits, where parameters lie, and its launches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fmrl.deep.engines import by_hand
from fmrl.deep.engines.by_hand import Block, Plan

PRECISIONS = ("ieee", "tf32", "bf16")
PROGRAMS = 128  # that a launch should have, about one for each multiprocessor


def available() -> bool:
    """Whether Triton is here; on a CPU its interpreter counts (TRITON_INTERPRET=1), for tests."""
    try:
        import triton
    except ImportError:
        return False
    return torch.cuda.is_available() or triton.knobs.runtime.interpret


def plan(module: nn.Module, shape: tuple[int, ...], batch: int) -> Plan | None:
    """The plan for inputs (C, H, W) in mini-batches, or None when the kernels do not fit.

    It is the plan of `fmrl.deep.engines.by_hand` in another order: (gamma, beta) of every block,
    then all convolutions, then the dense layer.
    """
    found = by_hand.plan(module, shape)
    if found is None or len(found.blocks) < 2:
        return None
    first, last = found.blocks[0], found.blocks[-1]
    f, positions = first.filters, last.out**2
    for b in found.blocks:
        if (b.stride, b.filters, b.eps, b.after) != (2, f, first.eps, b.out):
            return None
    if f not in (16, 32, 64) or 9 * first.channels > 32 or found.ways > 64:
        return None
    if positions & (positions - 1) or batch > 32:
        return None
    if batch * first.out**2 > 8192:  # a program holds all rows of its channels
        return None
    parts, blocks, start = [found.order[b.gamma :][: 2 * f] for b in found.blocks], [], 0
    for i, b in enumerate(found.blocks):
        parts.append(found.order[b.weight : b.gamma])
        blocks.append(replace(b, gamma=2 * i * f, weight=2 * f * len(found.blocks) + start))
        start += b.gamma - b.weight
    order = torch.cat([*parts, found.order[found.dense :]])
    return replace(found, blocks=tuple(blocks), order=order)


def power(n: int) -> int:
    """The next power of two, at least 16."""
    return max(16, 1 << (n - 1).bit_length())


@dataclass(frozen=True)
class Tile:
    """How a program covers its work."""

    channels: int  # of the output
    depth: int  # input channels (or rows) at a time
    stages: int = 2  # loads in flight
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
    first: tuple[int, int] = 128, 4  # rows at a time in the first block, and warps
    few: tuple[int, int] = 1024, 8  # the same where few tasks leave multiprocessors idle
    sweep: int = 128  # rows at a time where batch norm's backward pass goes over them again

    def of(self, kernel: str, rows: int, tasks: int, filters: int) -> Tile:
        """The tile of ``kernel``; narrower where few tasks would leave multiprocessors idle."""
        tile = getattr(self, kernel)[sum(rows > limit for limit in (128, 320, 512))]
        channels = min(tile.channels, filters)
        while kernel != "weight" and channels > 16 and tasks * filters < channels * PROGRAMS:
            channels //= 2
        return replace(tile, channels=channels)


# The fastest of those measured on an H200 whose gradients are right.
FULL = Tiles((Tile(32, 32, 1),) * 4, (Tile(32, 32, 1),) * 4, (Tile(64, 64, 1),) * 4)
HALF = Tiles(
    (Tile(32, 64, 1), *(Tile(64, 64, 1),) * 3),
    (*(Tile(32, 64, 1),) * 2, *(Tile(32, 32, 1),) * 2),
    (Tile(64, 64, 3),) * 4,
    first=(256, 4),
    sweep=256,
)


class FusedStep:
    """Launches one inner step of ``tasks`` stacked tasks; holds the activations in between."""

    def __init__(
        self, plan: Plan, tasks: int, batch: int, within: Any, precision: str, device: Any,
        tiles: Tiles | None = None, wide: int | None = None, scale: float | None = None,
    ):  # fmt: skip
        self.plan, self.tasks, self.batch, self.within = plan, tasks, batch, within
        self.filters = f = plan.blocks[0].filters
        self.low = precision == "bf16"
        self.tiles = tiles or (HALF if self.low else FULL)
        self.wide = wide or tasks  # the stack size that tiles are chosen for
        self.scale = 1.0 / batch if scale is None else scale  # of one sample in the loss
        store = torch.bfloat16 if self.low else torch.float32
        self.precision = "tf32" if self.low else precision
        rows = [batch * b.out**2 for b in plan.blocks]
        self.xhat = [torch.empty(tasks, m, f, dtype=store, device=device) for m in rows]
        self.act = [torch.empty_like(x) for x in self.xhat[:-1]] + self.xhat[-1:]  # last: not read
        self.dy = [torch.empty_like(x) for x in self.xhat]
        self.rstd = [torch.empty(tasks, f, device=device) for _ in rows]
        self.small = torch.empty(tasks, 2 * len(rows) * f, device=device)

    def __call__(self, inputs, theta, second, average, index, label, eta, bias, loss) -> None:
        """Move theta [T, P] (kernel order) by one step, in place, and write loss [T].

        index, label [T, B]; eta [T]; bias [1].
        """
        import triton.language as tl

        from fmrl.deep.kernels import fused as kernels

        p, g, n, size = self.plan, self.tiles, self.tasks, len(self.plan.order)
        f, batch, last = self.filters, self.batch, len(p.blocks) - 1
        beta2, eps = self.within.beta2, self.within.eps
        rule = {"ADAM": self.within.adaptive, "AVERAGE": average is not None}
        second, average = theta if second is None else second, theta if average is None else average
        math_ = {"PRECISION": self.precision, "TYPE": tl.bfloat16 if self.low else tl.float32}
        small, first = self.small.shape[1], p.blocks[0]
        moved = theta, second, average

        def shape(b: Block) -> dict:
            return {"B": batch, "H": b.side, "OH": b.out, "PAD": b.pads[0], "F": f}

        def tiled(kernel: str, count: int) -> tuple[int, int, Tile, dict]:
            tile = g.of(kernel, count, self.wide, f)
            options = {"NB": tile.channels, "num_stages": tile.stages}
            return power(count), f // tile.channels, tile, options

        nb = min(32, f)
        rows, warps = g.few if self.low and self.wide * f < nb * PROGRAMS else g.first
        taps = {"CIN": first.channels, "RB": rows, "KP": power(9 * first.channels), "NB": nb}
        taps["num_warps"] = warps
        kernels.first_forward[(n, f // nb)](
            inputs, index, theta, self.xhat[0], self.act[0], self.rstd[0], size, first.weight, 0,
            first.eps, PRECISION=self.precision, **taps, **shape(first),
        )  # fmt: skip
        for i, b in enumerate(p.blocks[1:], 1):
            rows, programs, tile, options = tiled("forward", batch * b.out**2)
            kernels.forward[(n, programs)](
                self.act[i - 1], theta, self.xhat[i], self.act[i], self.rstd[i], size, b.weight,
                2 * i * f, first.eps, MB=rows, KB=min(tile.depth, f), ACT=i < last,
                num_warps=tile.warps(rows), **options, **shape(b), **math_,
            )  # fmt: skip
        kernels.head[(n,)](
            self.xhat[last], self.rstd[last], label, *moved, loss, self.dy[last], self.small, eta,
            bias, size, p.dense, 2 * last * f, beta2, eps, self.scale, B=batch,
            HW=p.blocks[last].out ** 2, F=f, WAYS=p.ways, BP=power(batch), WP=power(p.ways),
            LAYER=last, SMALL=small, num_warps=8 if batch <= 16 else 16, **math_, **rule,
        )  # fmt: skip
        for i in range(last, 0, -1):
            b = p.blocks[i]
            rows, programs, tile, options = tiled("data", batch * math.ceil(b.side / 2) ** 2)
            kernels.backward_data[(n, programs)](
                self.dy[i], self.xhat[i - 1], self.rstd[i - 1], theta, self.dy[i - 1], self.small,
                size, b.weight, 2 * (i - 1) * f, MC=rows, KB=min(tile.depth, f),
                SB=min(rows, g.sweep), LAYER=i - 1, SMALL=small, num_warps=tile.warps(rows),
                **options, **shape(b), **math_,
            )  # fmt: skip
            rows, programs, tile, options = tiled("weight", batch * b.out**2)
            kernels.backward_weight[(n, 9, programs)](
                self.dy[i], self.act[i - 1], *moved, eta, bias, size, b.weight, beta2, eps,
                RB=min(tile.depth, rows), PRECISION=self.precision, num_warps=4, **options,
                **shape(b), **rule,
            )  # fmt: skip
        kernels.first_weight[(n, f // nb)](
            inputs, index, self.dy[0], *moved, eta, bias, size, first.weight, beta2, eps, **taps,
            **shape(first), **math_, **rule,
        )  # fmt: skip
        facts = {"SMALL": small, "SP": power(small), "num_warps": 4} | rule
        kernels.small_step[(n,)](*moved, self.small, eta, bias, size, beta2, eps, **facts)


def descend(within, theta, second, average, squares, gradient, frozen, eta, bias) -> None:
    """`fmrl.deep.engines.inner.descend` in one pass over memory."""
    from fmrl.deep.kernels.descent import BLOCK, descend_all

    tasks, size = theta.shape
    given = [theta if t is None else t for t in (second, average, squares, frozen)]
    flags = {
        "ADAM": second is not None, "AVERAGE": average is not None, "OBSERVE": squares is not None,
        "FROZEN": frozen is not None, "SHAPED": eta.shape[1] > 1,
    }  # fmt: skip
    facts = theta, *given, gradient, eta, bias, size, within.beta2, within.eps
    descend_all[(tasks, -(-size // BLOCK))](*facts, BLOCK=BLOCK, **flags)
