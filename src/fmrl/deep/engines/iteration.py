"""One meta-iteration on fixed buffers: captured once, replayed for every number of the tasks that
were drawn for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fmrl.deep.engines.inner import InnerLoop, capture
from fmrl.deep.meta_level import MetaLevel, MetaState
from fmrl.deep.ranks import Ranks, shared
from fmrl.deep.tasks import Tasks
from fmrl.deep.within import Adam

CHUNK = 256  # meta-iterations whose tasks are drawn at once, or fewer where that takes more than
TABLES = 2**28  # bytes
STRETCH = 2**32  # task numbers between the first tasks of two seeds


class MetaIteration:
    """``meta_batch`` tasks of R runs, played by ``loop`` in one go, or in turn where Adam's moments
    pass from task to task.

    ``load`` draws the tasks of up to ``chunk`` meta-iterations into tables on the device,
    ``replay`` then runs that many of them without a word from the host. The state is moved in
    place; ``losses`` [chunk, R] are the mean losses of those replayed."""

    def __init__(
        self,
        level: MetaLevel,
        state: MetaState,
        loop: InnerLoop,
        meta_batch: int,
        rates: torch.Tensor,
        ranks: Ranks | None = None,
    ):
        self.level, self.state, self.loop, self.meta_batch, self.rates = (
            level,
            state,
            loop,
            meta_batch,
            rates,
        )
        self.ranks, (self.mine, self.own) = ranks, shared(ranks, meta_batch)
        self.runs, self.size = state.phi.shape
        self.carried = isinstance(level.within, Adam) and bool(level.within.carry)
        self.turns = (
            self.runs * self.own // loop.tasks
        )  # 1, or meta_batch when tasks are played in turn
        device, dtype = loop.theta.device, loop.theta.dtype
        self.chunk = chunk = max(1, min(CHUNK, TABLES // (16 * self.turns * loop.index.numel())))
        self.index = torch.zeros(
            chunk, self.turns, *loop.index.shape, dtype=torch.int64, device=device
        )
        self.label = torch.zeros(
            chunk, self.turns, *loop.label.shape, dtype=loop.label.dtype, device=device
        )
        self.bias = torch.ones(chunk, self.turns, loop.steps, dtype=dtype, device=device)
        self.fraction = torch.zeros(chunk, self.runs, dtype=dtype, device=device)
        self.losses = torch.zeros(chunk, self.runs, dtype=dtype, device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self.ends = (
            torch.zeros(self.runs, meta_batch, self.size, dtype=dtype, device=device)
            if self.turns > 1
            else None
        )
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.memories: list[
            Any
        ] = []  # the meta-update's after each meta-iteration loaded, where that is a plain number
        kept = [t.clone() for t in tensors(state)]
        try:
            self.once = capture(self.body, device)
        finally:  # capturing moved them
            _restore(state, kept)

    def load(self, sources: Sequence[Tasks], first: Sequence[int], count: int) -> None:
        """Draw the tasks of the next ``count`` meta-iterations; first: each run's first task
        number. Nothing waits for the device.
        """
        done, K, steps, turns = self.state.iteration, self.meta_batch, self.loop.steps, self.turns
        with self._aside():
            drawn = [s.draw(f + done * K, count * K) for s, f in zip(sources, first, strict=True)]
        for table, parts in zip((self.index, self.label), zip(*drawn, strict=True), strict=True):
            stacked = torch.stack(
                [
                    p.unflatten(0, (count, K))[:, self.mine].unflatten(
                        1, (turns, self.own // turns)
                    )
                    for p in parts
                ],
                2,
            )  # [count, turns, R, K', steps, batch]
            table[:count].copy_(stacked.flatten(2, 3).transpose(2, 3))
        if not self.label.is_cuda:  # there it would wait for the device, and tasks are checked once
            self.loop.check(self.label[:count])
        if self.side is not None:  # the next draw may use this memory again once it has been copied
            self.side.wait_stream(torch.cuda.current_stream(self.at.device))
        if isinstance(self.state.meta, int):
            fractions, memory, self.memories = [], self.state.meta, []
            for _ in range(count):
                fraction, memory = self.level.fraction(memory, K)
                fractions.append(fraction)
                self.memories.append(memory)
            self._send(
                self.fraction,
                torch.tensor(fractions, dtype=torch.float64)[:, None].expand(-1, self.runs),
            )
        before = (
            self.state.taken + torch.arange(count * turns).view(count, turns) * (K // turns * steps)
        ) * self.carried
        self._send(self.bias, self.loop.bias_at(before[..., None]))
        self.at.zero_()

    def replay(self, count: int) -> None:
        """Run the next ``count`` of the meta-iterations that were loaded. Whatever stops it, the
        state is that after whole ones.
        """
        together = count if self.at.is_cuda else 1  # on a GPU they take no time: all or none
        for start in range(0, count, together):
            self._some(min(together, count - start))

    def _some(self, count: int) -> None:
        state, kept = self.state, [t.clone() for t in tensors(self.state)]
        before, taken, memory = state.iteration, state.taken, state.meta
        try:
            for _ in range(count):
                self.once()
            state.iteration += count
            state.taken += count * self.meta_batch * self.loop.steps
            if self.memories:
                state.meta, self.memories = self.memories[count - 1], self.memories[count:]
        except BaseException:
            if self.at.is_cuda:
                torch.cuda.synchronize(self.at.device)
            _restore(state, kept)
            state.iteration, state.taken, state.meta = before, taken, memory
            raise

    def body(self) -> None:
        """One meta-iteration, on buffers alone, so that it can be captured."""
        loop, state, level, R, K = self.loop, self.state, self.level, self.runs, self.own
        per = K // self.turns
        index, label, bias = (
            t.index_select(0, self.at)[0] for t in (self.index, self.label, self.bias)
        )
        loop.eta.view(R, per).copy_(
            level.eta(state.guess, self.size, self.rates)[:, None].expand(-1, per)
        )
        if self.carried:
            loop.second.view(R, per, -1).copy_(state.second[:, None].expand(-1, per, -1))
        losses = torch.zeros_like(self.losses[0])
        for turn in range(self.turns):
            loop.index.copy_(index[turn])
            loop.label.copy_(label[turn])
            loop.bias.copy_(bias[turn])
            loop.theta.view(R, per, -1).copy_(state.phi[:, None].expand(-1, per, -1))
            if loop.second is not None and not self.carried:
                loop.second.zero_()
            if loop.average is not None:
                loop.average.zero_()
            loop.play()
            ends = (loop.theta if loop.average is None else loop.average / loop.steps).view(
                R, per, -1
            )
            if self.ends is not None:
                self.ends[:, turn : turn + 1].copy_(ends)
            losses += loop.losses.view(loop.steps, R, per).mean((0, 2))
        fraction = (
            self.fraction.index_select(0, self.at)[0] if isinstance(state.meta, int) else None
        )
        ends, losses = ends if self.ends is None else self.ends, losses / self.turns
        kept = None if loop.frozen is None else state.phi.clone()
        if self.ranks is not None and self.turns == 1:
            second = loop.second.view(R, K, -1) if self.carried else None
            losses = self.ranks.meet(
                level, state, ends, second, K * losses, self.meta_batch, loop.steps, fraction
            )
        else:
            level.advance(state, ends, fraction)
            if self.carried and self.turns > 1:
                state.second.copy_(loop.second)
            elif self.carried:
                level.carry(state.second, loop.second.view(R, K, -1), loop.steps)
        if kept is not None:  # means of equal numbers may differ in the last bit
            state.phi.copy_(torch.where(loop.frozen, kept, state.phi))
        self.losses.index_copy_(0, self.at, losses[None])
        self.at += 1

    def _send(self, table: torch.Tensor, values: torch.Tensor) -> None:
        values = values.to(table.dtype).contiguous()
        table[: len(values)].copy_(
            values.pin_memory() if table.is_cuda else values, non_blocking=True
        )

    @contextmanager
    def _aside(self):
        """A stream of its own for drawing tasks, which copies small tables from the host and would
        wait for the training.
        """
        if self.side is None:
            yield
            return
        with torch.cuda.stream(self.side):
            yield
        torch.cuda.current_stream(self.at.device).wait_stream(self.side)


def _restore(state: MetaState, kept: Sequence[torch.Tensor]) -> None:
    for tensor, value in zip(tensors(state), kept, strict=True):
        tensor.copy_(value)


def tensors(state: MetaState) -> list[torch.Tensor]:
    """Every tensor of the state, through tuples."""
    found: list[torch.Tensor] = []

    def collect(value):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, tuple):
            for v in value:
                collect(v)

    for name in ("phi", "second", "guess", "meta", "similarity"):
        collect(getattr(state, name))
    return found
