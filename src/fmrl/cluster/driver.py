"""The driver: which block waits for what.

exact rules      solve (map) → phi before each block → deviate (map) → guesses → play (map)
meta-batches     solve (map) → for each meta-batch: play its blocks (map), one weighted update
task after task  solve (map) → each block in turn, on one worker at a time

An exact rule's phi follows from the optima alone. Where the meta-update can merge a block into
one task and the similarity rule needs one number of a task, vectors stay with the workers. Any
other rule, such as one of the user's own, is scanned by the driver, which reads the optima block
by block while the blocks before are being played."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from fmrl.cluster.groups import Block
from fmrl.cluster.tables import Skipped
from fmrl.cluster.work import Job, Start, ends_of
from fmrl.core.meta_level import State, measured, scan, together
from fmrl.core.rules.meta import End
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
        self.sizes: dict[int, int] = {}  # tasks of each block that could be solved
        self.merged: dict[int, End | None] = {}

    def solve(self) -> None:
        """All optima; blocks whose tasks are all unusable are left out from here on."""
        self.mapper.ledger.begin("solve", len(self.blocks))
        skipped: dict[int, list[Skipped]] = {}
        for done in self.mapper.map("solve", self.job, ((b, self.held(b)) for b in self.blocks)):
            skipped[done.item.number] = done.skipped
            if done.tasks:
                self.sizes[done.item.number], self.merged[done.item.number] = done.value
        self.skipped += [s for number in sorted(skipped) for s in skipped[number]]
        self.blocks = [b for b in self.blocks if b.number in self.sizes]
        if not self.blocks:
            why = "; ".join(s.what for s in self.skipped[:3])
            raise FMRLError("no task is left to play", fix=f"look at what was skipped: {why}")

    def run(self, state: State) -> Totals:
        """Play all blocks from ``state``."""
        self.totals = Totals(state)
        if self.algo.update.exact and self.job.meta_batch == 1:
            self.mapper.ledger.begin("play", len(self.blocks))
            merged = all(self.merged[b.number] is not None for b in self.blocks)
            alone = merged and measured(self.algo.similarity)
            items = self._measured(state) if alone else self._scanned(state)
            for done in self.mapper.map("play", self.job, items):
                self._count(done)
        elif self.blocks[0].batch is not None:
            self._in_meta_batches(state)
        else:
            self._in_turn(state)
        return self.totals

    def _measured(self, state: State) -> Iterator[tuple]:
        """Where each block starts and what its tasks guess, from merged tasks and numbers alone."""
        algo, befores = self.algo, []
        phi, memory = state.phi, state.meta
        for block in self.blocks:
            befores.append((block, None, phi, memory))
            phi, memory = algo.meta.update(algo.domain, phi, memory, self.merged[block.number])
        self.mapper.ledger.begin("deviate", len(self.blocks))
        found = self.mapper.map("deviate", self.job, iter(befores), ordered=True)
        guess, seen = state.guess, state.similarity
        for (block, _, start, weight), done in zip(befores, found, strict=True):
            guesses, guess, seen = algo.similarity.follow(guess, seen, *done.value)
            yield block, self.held(block), Start(start, weight, guesses)
        tasks = state.tasks + sum(self.sizes[b.number] for b in self.blocks)
        self.totals.state = State(tasks, phi, guess, memory, seen)

    def _scanned(self, state: State) -> Iterator[tuple]:
        """The same, through all the optima."""
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
            start = Start(state.phi, None, np.asarray(state.guess), together=True)
            items = [(b, self.held(b), start) for b in blocks]
            for done in self.mapper.map("play", self.job, items, ordered=True):
                self._count(done)
            state = self.totals.state = together(self.algo, state, ends_of(self.job, *blocks))

    def _count(self, done: Any) -> None:
        self.totals.regret += done.value[0]
        self.totals.gap += done.value[1]
        self.progress(done.tasks)
