"""Loss and gradient of a stack of pooled networks by Triton kernels: the launches of one pass, and
where they apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fmrl.deep.engines.by_hand import Plan

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
    """Tiles of the kernels: products of the first block and of later ones, and passes over pooled
    pixels.
    """

    convolve: tuple[Tile, Tile] = (Tile(128), Tile(128))
    weigh: tuple[Tile, Tile] = (Tile(128, stages=3), Tile(64))
    back: Tile = Tile(128)
    pixels: Tile = Tile(32)


def fits(plan: Plan) -> bool:
    """Whether the kernels run this network: every block pooled with a border, stride 1, and one
    number of filters.
    """
    filters = plan.blocks[0].filters
    return (
        filters in (16, 32, 64)
        and 9 * plan.blocks[0].channels <= 64
        and plan.ways <= 64
        and all(
            b.stride == 1 and b.filters == filters and b.after == (b.out + 1) // 2 and b.out > 1
            for b in plan.blocks
        )
    )


def _power(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


class Gradient:
    """As `fmrl.deep.engines.by_hand.Gradient`: theta [T, P] in the plan's order, images [T, B, H,
    W, C], labels [T, B] -> losses, gradient.

    precision: "bf16" keeps gradients so and values, where neighbours compete, in float16, which
    resolves them as finely as tf32; sums are in float32. "tf32" and "ieee" keep float32."""

    def __init__(
        self, plan: Plan, tasks: int, batch: int, scale: float, device: Any, precision: str, tiles: Tiles | None = None
    ):  # fmt: skip
        self.plan, self.tasks, self.batch, self.scale, self.tiles = (
            plan,
            tasks,
            batch,
            scale,
            tiles or Tiles(),
        )
        self.precision = "tf32" if precision == "bf16" else precision
        kind, back = (
            (torch.float16, torch.bfloat16)
            if precision == "bf16"
            else (torch.float32, torch.float32)
        )

        def empty(*shape, dtype=torch.float32):
            return torch.empty(tasks, *shape, dtype=dtype, device=device)

        f, size = plan.blocks[0].filters, len(plan.order)
        self.rows = [(batch * b.out**2, batch * b.after**2) for b in plan.blocks]
        self.y = [empty(m, f, dtype=kind) for m, _ in self.rows]
        self.act = [empty(n, f, dtype=kind) for _, n in self.rows]
        self.dy = [y.view(back) for y in self.y]
        self.da = [empty(n, f, dtype=back) for _, n in self.rows]
        self.sums, self.back = ([empty(2, f) for _ in self.rows] for _ in range(2))
        self.parts = [
            empty(self.tiles.convolve[i > 0].over(m), 2, f) for i, (m, _) in enumerate(self.rows)
        ]
        self.back_parts = [empty(self.tiles.pixels.over(n), 2, f) for _, n in self.rows]
        self.split = torch.zeros(
            tasks, SPLITS, size, device=device
        )  # norms and the dense layer use the first alone
        self.grad, self.loss = empty(size), empty()

    def __call__(
        self, theta: torch.Tensor, x: torch.Tensor, label: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        import triton.language as tl

        from fmrl.deep.kernels import pooled as kernels

        p, g, size, tasks = self.plan, self.tiles, len(self.plan.order), self.tasks
        f, last, inputs = p.blocks[0].filters, len(p.blocks) - 1, [x.contiguous(), *self.act[:-1]]
        low, math = self.y[0].dtype == torch.float16, {"PRECISION": self.precision}
        forward, backward = (tl.float16, tl.bfloat16) if low else (tl.float32, tl.float32)

        def taps(i: int) -> dict:
            b = p.blocks[i]
            width = b.channels if i else _power(9 * b.channels)
            return {"H": b.out, "C": b.channels, "F": f, "KP": width, "FIRST": i == 0} | math

        def pixels(i: int) -> tuple[tuple, tuple, dict]:
            b, (m, n) = p.blocks[i], self.rows[i]
            return (
                (tasks, g.pixels.over(n)),
                (size, m, n, b.gamma, b.eps),
                {"H": b.out, "Q": b.after, "F": f} | g.pixels.facts,
            )

        for i, b in enumerate(p.blocks):
            m, part, tile = self.rows[i][0], self.parts[i], g.convolve[i > 0]
            count = part.shape[1]
            kernels.convolve[(tasks, count)](
                inputs[i], theta, self.y[i], part, size, b.weight, m, count, TYPE=forward, **taps(i), **tile.facts
            )  # fmt: skip
            torch.sum(part, 1, out=self.sums[i])
            grid, facts, sizes = pixels(i)
            kernels.pool[grid](self.y[i], theta, self.sums[i], self.act[i], *facts, **sizes)
        kernels.classify[(tasks,)](
            self.act[last], label, theta, self.split, self.loss, self.da[last], size, SPLITS, p.dense, self.scale, B=self.batch,
            K=p.inputs, WAYS=p.ways, BP=_power(self.batch), WP=_power(p.ways), KB=64, TYPE=forward, BACK=backward,
            num_warps=4, num_stages=1, **math,
        )  # fmt: skip
        for i in range(last, -1, -1):
            b, m, part, tile = p.blocks[i], self.rows[i][0], self.back_parts[i], g.weigh[i > 0]
            grid, facts, sizes = pixels(i)
            kernels.unpool_sums[grid](
                self.y[i], theta, self.sums[i], self.da[i], part, *facts, part.shape[1], **sizes
            )
            torch.sum(part, 1, out=self.back[i])
            norms = self.split[:, 0, b.gamma : b.gamma + 2 * f].unflatten(1, (2, f))
            norms.copy_(self.back[i].flip(1))
            kernels.unpool[grid](
                self.y[i],
                self.dy[i],
                theta,
                self.sums[i],
                self.back[i],
                self.da[i],
                *facts,
                **sizes,
            )
            length = -(-m // (SPLITS * tile.rows)) * tile.rows
            kernels.weigh[(tasks, SPLITS, 9 if i else 1)](
                self.dy[i], inputs[i], self.split, size, b.weight, m, SPLITS, LENGTH=length, TYPE=backward, **taps(i), **tile.facts
            )  # fmt: skip
            if i:
                kernels.back[(tasks, g.back.over(m))](
                    self.dy[i], theta, self.da[i - 1], size, b.weight, m, H=b.out, C=f, F=f, TYPE=backward, **g.back.facts, **math
                )  # fmt: skip
        return self.loss, torch.sum(self.split, 1, out=self.grad)
