"""Loss and gradient of a stack of pooled networks by Triton kernels, and where they apply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fmrl.deep.engines.by_hand import Plan
from fmrl.deep.engines.fused import power

SPLITS = 16  # stretches of rows whose weight gradients are summed apart


@dataclass(frozen=True)
class Tile:
    """Rows of one program, its warps, and loads in flight."""

    rows: int
    warps: int = 4
    stages: int = 1

    def over(self, rows: int) -> int:
        """How many tiles cover ``rows``."""
        return -(-rows // self.rows)

    @property
    def facts(self) -> dict:
        """For a launch."""
        return {"RB": self.rows, "num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class Tiles:
    """Tiles of the kernels: products of the first block and of later ones, and other passes."""

    convolve: tuple[Tile, Tile] = (Tile(128), Tile(128))
    weigh: tuple[Tile, Tile] = (Tile(128, stages=3), Tile(64))
    back: Tile = Tile(128)
    pixels: Tile = Tile(32)


def fits(plan: Plan) -> bool:
    """Whether the kernels run this network: pooled with a border, stride 1, equal filters."""
    first, f = plan.blocks[0], plan.blocks[0].filters
    if f not in (16, 32, 64) or 9 * first.channels > 64 or plan.ways > 64:
        return False
    return all(
        (b.stride, b.filters, b.after) == (1, f, (b.out + 1) // 2) and b.out > 1
        for b in plan.blocks
    )


class Gradient:
    """As `fmrl.deep.engines.by_hand.Gradient`: theta, images [T, B, H, W, C], labels [T, B].

    precision: "bf16" keeps gradients so and values, where neighbours compete, in float16, which
    resolves them as finely as tf32; sums are in float32. "tf32" and "ieee" keep float32."""

    def __init__(
        self, plan: Plan, tasks: int, batch: int, scale: float, device: Any, precision: str,
        tiles: Tiles | None = None,
    ):  # fmt: skip
        self.plan, self.tasks, self.batch, self.scale = plan, tasks, batch, scale
        self.tiles = tiles = tiles or Tiles()
        self.compiled = False
        low = precision == "bf16"
        self.precision = "tf32" if low else precision
        kind, back = (torch.float16, torch.bfloat16) if low else (torch.float32, torch.float32)

        def empty(*shape, dtype=torch.float32):
            return torch.empty(tasks, *shape, dtype=dtype, device=device)

        f, size = plan.blocks[0].filters, len(plan.order)
        self.rows = rows = [(batch * b.out**2, batch * b.after**2) for b in plan.blocks]
        self.y = [empty(m, f, dtype=kind) for m, _ in rows]
        self.act = [empty(n, f, dtype=kind) for _, n in rows]
        self.dy = [y.view(back) for y in self.y]
        self.da = [empty(n, f, dtype=back) for _, n in rows]
        self.sums, self.back = ([empty(2, f) for _ in rows] for _ in range(2))
        self.parts = [empty(tiles.convolve[i > 0].over(m), 2, f) for i, (m, _) in enumerate(rows)]
        self.back_parts = [empty(tiles.pixels.over(n), 2, f) for _, n in rows]
        self.split = torch.zeros(tasks, SPLITS, size, device=device)  # others use the first alone
        self.grad, self.loss = empty(size), empty()

    def __call__(self, theta, x, label) -> tuple[torch.Tensor, torch.Tensor]:
        from fmrl.deep.kernels import compiling, launch

        if not self.compiled and theta.is_cuda:
            with compiling() as compile_only:
                self._launch(compile_only, theta, x, label)
        self.compiled = True
        return self._launch(launch, theta, x, label)

    def _launch(self, launch, theta, x, label) -> tuple[torch.Tensor, torch.Tensor]:
        import triton.language as tl

        from fmrl.deep.kernels import pooled as kernels

        p, g, size, tasks = self.plan, self.tiles, len(self.plan.order), self.tasks
        f, last, inputs = p.blocks[0].filters, len(p.blocks) - 1, [x.contiguous(), *self.act[:-1]]
        low, math = self.y[0].dtype == torch.float16, {"PRECISION": self.precision}
        forward, backward = (tl.float16, tl.bfloat16) if low else (tl.float32, tl.float32)

        def taps(i: int) -> dict:
            b = p.blocks[i]
            width = b.channels if i else power(9 * b.channels)
            return {"H": b.out, "C": b.channels, "F": f, "KP": width, "FIRST": i == 0} | math

        def pixels(i: int) -> tuple[tuple, tuple, dict]:
            b, (m, n) = p.blocks[i], self.rows[i]
            sizes = {"H": b.out, "Q": b.after, "F": f} | g.pixels.facts
            return (tasks, g.pixels.over(n)), (size, m, n, b.gamma, b.eps), sizes

        for i, b in enumerate(p.blocks):
            m, part, tile = self.rows[i][0], self.parts[i], g.convolve[i > 0]
            count = part.shape[1]
            launch(kernels.convolve, (tasks, count))(
                inputs[i], theta, self.y[i], part, size, b.weight, m, count, TYPE=forward,
                **taps(i), **tile.facts,
            )  # fmt: skip
            torch.sum(part, 1, out=self.sums[i])
            grid, facts, sizes = pixels(i)
            launch(kernels.pool, grid)(self.y[i], theta, self.sums[i], self.act[i], *facts, **sizes)
        launch(kernels.classify, (tasks,))(
            self.act[last], label, theta, self.split, self.loss, self.da[last], size, SPLITS,
            p.dense, self.scale, B=self.batch, K=p.inputs, WAYS=p.ways, BP=power(self.batch),
            WP=power(p.ways), KB=64, TYPE=forward, BACK=backward, num_warps=4, num_stages=1, **math,
        )  # fmt: skip
        for i in range(last, -1, -1):
            b, m, part, tile = p.blocks[i], self.rows[i][0], self.back_parts[i], g.weigh[i > 0]
            y, dy, sums, back, da = (v[i] for v in (self.y, self.dy, self.sums, self.back, self.da))
            grid, facts, sizes = pixels(i)
            launch(kernels.unpool_sums, grid)(
                y, theta, sums, da, part, *facts, part.shape[1], **sizes
            )
            torch.sum(part, 1, out=back)
            norms = self.split[:, 0, b.gamma : b.gamma + 2 * f].unflatten(1, (2, f))
            norms.copy_(back.flip(1))
            launch(kernels.unpool, grid)(y, dy, theta, sums, back, da, *facts, **sizes)
            length = -(-m // (SPLITS * tile.rows)) * tile.rows
            launch(kernels.weigh, (tasks, SPLITS, 9 if i else 1))(
                dy, inputs[i], self.split, size, b.weight, m, SPLITS, LENGTH=length, TYPE=backward,
                **taps(i), **tile.facts,
            )  # fmt: skip
            if i:
                launch(kernels.back, (tasks, g.back.over(m)))(
                    dy, theta, self.da[i - 1], size, b.weight, m, H=b.out, C=f, F=f, TYPE=backward,
                    **g.back.facts, **math,
                )  # fmt: skip
        return self.loss, torch.sum(self.split, 1, out=self.grad)
