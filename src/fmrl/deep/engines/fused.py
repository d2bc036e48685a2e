"""The fused inner step: which networks it fits, where parameters lie, and its launches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fmrl.deep.engines import by_hand
from fmrl.deep.engines.by_hand import Block, Plan

PRECISIONS = ("ieee", "tf32", "bf16")
PROGRAMS = 128  # that a launch should have, about one for each multiprocessor
SPLIT = 160  # tasks up to which rows are split between programs


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
    sweep: int = 128  # rows at a time where batch norm's backward pass goes over them again
    part: int = 128  # rows of a program where few tasks are split,
    few: tuple[int, int] = 256, 4  # in the first block, and its warps,
    few_sweep: int = 32  # and where batch norm goes over them again

    def of(self, kernel: str, rows: int, programs: int, filters: int) -> Tile:
        """The tile of ``kernel``; narrower where a launch would leave multiprocessors idle.

        programs: those that it has beside the cut by channels."""
        tile = getattr(self, kernel)[sum(rows > limit for limit in (128, 320, 512))]
        channels = min(tile.channels, filters)
        while kernel != "weight" and channels > 16 and programs * filters < channels * PROGRAMS:
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
    """Launches one inner step of ``tasks`` stacked tasks; holds the activations in between.

    A program sees all rows of its channels. Where few tasks would leave multiprocessors idle it
    sees a part of them, and a second launch does what batch norm can only do after all. Gradients
    of weights, which nobody waits for, are computed beside the backward pass.
    """

    def __init__(
        self, plan: Plan, tasks: int, batch: int, within: Any, precision: str, device: Any,
        tiles: Tiles | None = None, wide: int | None = None, scale: float | None = None,
    ):  # fmt: skip
        self.plan, self.tasks, self.batch, self.within = plan, tasks, batch, within
        self.filters = f = plan.blocks[0].filters
        self.low = precision == "bf16"
        self.tiles = tiles or (HALF if self.low else FULL)
        self.wide = wide or tasks  # the stack size that tiles are chosen for
        self.split = self.wide <= SPLIT
        self.scale = 1.0 / batch if scale is None else scale  # of one sample in the loss
        store = torch.bfloat16 if self.low else torch.float32
        self.precision = "tf32" if self.low else precision
        rows = [batch * b.out**2 for b in plan.blocks]
        self.xhat = [torch.empty(tasks, m, f, dtype=store, device=device) for m in rows]
        self.act = [torch.empty_like(x) for x in self.xhat[:-1]] + self.xhat[-1:]  # last: not read
        self.dy = [torch.empty_like(x) for x in self.xhat]
        self.rstd = [torch.empty(tasks, f, device=device) for _ in rows]
        self.small = torch.empty(tasks, 2 * len(rows) * f, device=device)
        most = 4 * math.ceil(max(rows) / self.tiles.part) if self.split else 0  # parts of a launch
        self.raw = torch.empty(tasks if self.split else 0, max(rows), f, device=device)
        self.sums = torch.empty(tasks, most, 2, f, device=device)
        self.parts = torch.empty(tasks, most, 9 * plan.blocks[0].channels * f, device=device)
        self.side, self.compiled = None, False
        if self.split and self.small.is_cuda:
            kept = torch.cuda.current_stream(device).priority
            self.side = torch.cuda.Stream(device, priority=kept)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """After what was launched so far, beside what is launched next."""
        if self.side is None:
            yield
            return
        self.side.wait_stream(torch.cuda.current_stream(self.side.device))
        with torch.cuda.stream(self.side):
            yield

    def __call__(self, *buffers: torch.Tensor | None) -> None:
        """Move theta [T, P] (kernel order) by one step, in place, and write loss [T].

        buffers: inputs, theta, second, average; index, label [T, B]; eta [T]; bias [1]; loss.
        """
        from fmrl.deep.kernels import compiling, launch

        if not self.compiled and self.small.is_cuda:
            with compiling() as compile_only:
                self._launch(compile_only, *buffers)
        self.compiled = True
        self._launch(launch, *buffers)

    def _launch(
        self, launch, inputs, theta, second, average, index, label, eta, bias, loss
    ) -> None:
        import triton.language as tl

        from fmrl.deep.kernels import first_block
        from fmrl.deep.kernels import fused as kernels

        p, g, n, size = self.plan, self.tiles, self.tasks, len(self.plan.order)
        f, batch, last = self.filters, self.batch, len(p.blocks) - 1
        beta2, eps = self.within.beta2, self.within.eps
        rule = {"ADAM": self.within.adaptive, "AVERAGE": average is not None}
        second, average = theta if second is None else second, theta if average is None else average
        math_ = {"PRECISION": self.precision, "TYPE": tl.bfloat16 if self.low else tl.float32}
        small, first = self.small.shape[1], p.blocks[0]
        moved, cut = (theta, second, average), {"SPLIT": self.split, "SUMS": self.sums[:1].numel()}

        def shape(b: Block) -> dict:
            return {"B": batch, "H": b.side, "OH": b.out, "PAD": b.pads[0], "F": f}

        def tiled(kernel: str, count: int) -> tuple[int, int, int, Tile, dict]:
            """Rows of a program, programs by channels and by rows, the tile, Triton's options."""
            rows = power(min(count, g.part) if self.split and kernel != "weight" else count)
            parts = math.ceil(count / rows)
            tile = g.of(kernel, count, self.wide * parts, f)
            options = {"NB": tile.channels, "num_stages": tile.stages}
            return rows, f // tile.channels, parts, tile, options

        def normalise(i: int, made: int) -> None:
            """The second launch of block i, whose programs have ``made`` rows each."""
            count, sweep = batch * p.blocks[i].out ** 2, g.few_sweep
            launch(kernels.normalise, (n, 1, math.ceil(count / sweep)))(
                self.raw, self.sums, theta, self.xhat[i], self.act[i], self.rstd[i], size,
                2 * i * f, first.eps, M=count, F=f, MB=made, SB=sweep, NB=f, ACT=i < last,
                SUMS=cut["SUMS"],
            )  # fmt: skip

        nb, (rows, warps) = (min(16, f), g.few) if self.split else (min(32, f), g.first)
        taps = {"CIN": first.channels, "RB": rows, "KP": power(9 * first.channels), "NB": nb}
        taps["num_warps"] = warps
        chunks = math.ceil(batch * first.out**2 / rows) if self.split else 1
        launch(first_block.first_forward, (n, f // nb, chunks))(
            inputs, index, theta, self.xhat[0], self.act[0], self.rstd[0], self.raw, self.sums,
            size, first.weight, 0, first.eps, PRECISION=self.precision, **taps, **shape(first),
            **cut,
        )  # fmt: skip
        if self.split:
            normalise(0, rows)
        for i, b in enumerate(p.blocks[1:], 1):
            rows, programs, parts, tile, options = tiled("forward", batch * b.out**2)
            launch(kernels.forward, (n, programs, parts))(
                self.act[i - 1], theta, self.xhat[i], self.act[i], self.rstd[i], self.raw,
                self.sums, size, b.weight, 2 * i * f, first.eps, MB=rows, KB=min(tile.depth, f),
                ACT=i < last, num_warps=tile.warps(rows), **options, **shape(b), **math_, **cut,
            )  # fmt: skip
            if self.split:
                normalise(i, rows)
        launch(kernels.head, (n,))(
            self.xhat[last], self.rstd[last], label, *moved, loss, self.dy[last], self.small, eta,
            bias, size, p.dense, 2 * last * f, beta2, eps, self.scale, B=batch,
            HW=p.blocks[last].out ** 2, F=f, WAYS=p.ways, BP=power(batch), WP=power(p.ways),
            LAYER=last, SMALL=small, num_warps=8 if batch <= 16 else 16, **math_, **rule,
        )  # fmt: skip
        for i in range(last, 0, -1):
            b, facts = p.blocks[i], {"LAYER": i - 1, "SMALL": small}
            rows, programs, parts, tile, options = tiled("data", batch * (-(-b.side // 2)) ** 2)
            launch(kernels.backward_data, (n, programs, 4 * parts if self.split else 1))(
                self.dy[i], self.xhat[i - 1], self.rstd[i - 1], theta, self.dy[i - 1], self.small,
                self.sums, size, b.weight, 2 * (i - 1) * f, MC=rows, KB=min(tile.depth, f),
                SB=min(rows, g.sweep), num_warps=tile.warps(rows), **facts, **options, **shape(b),
                **math_, **cut,
            )  # fmt: skip
            if self.split:
                count = batch * b.side**2
                launch(kernels.normalise_back, (n, 1, math.ceil(count / g.few_sweep)))(
                    self.xhat[i - 1], self.rstd[i - 1], theta, self.dy[i - 1], self.small,
                    self.sums, size, 2 * (i - 1) * f, PARTS=4 * parts, M=count, F=f, NB=f,
                    SB=g.few_sweep, SUMS=cut["SUMS"], **facts,
                )  # fmt: skip
            rows, programs, _, tile, options = tiled("weight", batch * b.out**2)
            with self._aside():
                launch(kernels.backward_weight, (n, 9, programs))(
                    self.dy[i], self.act[i - 1], *moved, eta, bias, size, b.weight, beta2, eps,
                    RB=min(tile.depth, rows), PRECISION=self.precision, num_warps=4, **options,
                    **shape(b), **rule,
                )  # fmt: skip
        launch(first_block.first_weight, (n, f // nb, chunks))(
            inputs, index, self.dy[0], self.parts, *moved, eta, bias, size, first.weight, beta2,
            eps, SPLIT=self.split, **taps, **shape(first), **math_, **rule,
        )  # fmt: skip
        count = 9 * first.channels * f
        facts = {"SMALL": small, "SP": power(small), "TAPS": count, "TP": power(count)}
        launch(first_block.small_step, (n,))(
            *moved, self.small, self.parts, eta, bias, size, first.weight, beta2, eps,
            PARTS=chunks * self.split, num_warps=4, **facts, **rule,
        )  # fmt: skip
        if self.side is not None:
            torch.cuda.current_stream(self.side.device).wait_stream(self.side)


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
