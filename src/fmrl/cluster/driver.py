"""The driver: which block waits for what.

exact rules      solve (map) → phi and guess through the optima, block after block → play (map)
meta-batches     solve (map) → for each meta-batch: play its blocks (map), one weighted update
task after task  solve (map) → each block in turn, on one worker at a time

An exact rule's phi follows from the optima alone. The driver reads them block by block and scans
them while the blocks before are being played, so any rule of the user's own works here as it does
in `fmrl.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from fmrl.cluster.groups import Block
from fmrl.cluster.tables import Skipped
from fmrl.cluster.work import Job, Start, ends_of
from fmrl.core.meta_level import State, scan, together
from fmrl.errors import FMRLError


@dataclass
class Totals:
    """What a run adds up to."""

    state: State
    regret: float = 0.0
    gap: float = 0.0


class Driver:
    """One run: a job, its blocks with what they hold in memory, a map, and a callable to tell
    about played tasks.
    """

    def __init__(
        self, job: Job, blocks: list[Block], held: Callable[[Block], Any], mapper: Any,
        progress: Any = None,
    ):  # fmt: skip
        self.job, self.algo, self.mapper = job, job.algo, mapper
        self.blocks, self.held, self.progress = blocks, held, progress or (lambda n: None)
        self.skipped: list[Skipped] = []

    def solve(self) -> None:
        """All optima; blocks whose tasks are all unusable are left out from here on."""
        self.mapper.ledger.begin("solve", len(self.blocks))
        skipped: dict[int, list[Skipped]] = {}
        solved = set()
        for done in self.mapper.map("solve", self.job, ((b, self.held(b)) for b in self.blocks)):
            skipped[done.item.number] = done.skipped
            if done.value:
                solved.add(done.item.number)
        self.skipped += [s for number in sorted(skipped) for s in skipped[number]]
        self.blocks = [b for b in self.blocks if b.number in solved]
        if not self.blocks:
            why = "; ".join(s.what for s in self.skipped[:3])
            raise FMRLError("no task is left to play", fix=f"look at what was skipped: {why}")

    def run(self, state: State) -> Totals:
        """Play all blocks from ``state``."""
        self.totals = Totals(state)
        if self.algo.update.exact and self.job.meta_batch == 1:
            self.mapper.ledger.begin("play", len(self.blocks))
            for done in self.mapper.map("play", self.job, self._scanned(state)):
                self._count(done)
        elif self.blocks[0].batch is not None:
            self._in_meta_batches(state)
        else:
            self._in_turn(state)
        return self.totals

    def _scanned(self, state: State) -> Iterator[tuple]:
        """Where each block starts and what its tasks guess."""
        for block in self.blocks:
            before, after = scan(self.algo, state, ends_of(self.job, block))
            yield block, self.held(block), Start(state.phi, state.meta, before.guess)
            state = self.totals.state = after

    def _in_turn(self, state: State) -> None:
        self.mapper.ledger.begin("turn", len(self.blocks))
        for block in self.blocks:
            (done,) = self.mapper.map("turn", self.job, [(block, self.held(block), state)])
            state = self.totals.state = done.value[2]
            self._count(done)

    def _in_meta_batches(self, state: State) -> None:
        """The blocks of one meta-batch are played at once, then phi moves."""
        self.mapper.ledger.begin("play", len(self.blocks))
        for _, group in groupby(self.blocks, key=lambda b: b.batch):
            blocks = list(group)
            start = Start(state.phi, None, np.asarray(state.guess))
            items = [(b, self.held(b), start) for b in blocks]
            for done in self.mapper.map("play", self.job, items, ordered=True):
                self._count(done)
            state = self.totals.state = together(self.algo, state, ends_of(self.job, *blocks))

    def _count(self, done: Any) -> None:
        self.totals.regret += done.value[0]
        self.totals.gap += done.value[1]
        self.progress(done.tasks)
