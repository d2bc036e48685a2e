"""The driver: which block waits for what. FAL needs two maps, a prefix and a scan; other rules go
meta-batch after meta-batch.

exact rules      solve (map) → phi before each block (prefix of sums) → deviate (map) → guess (scan) → play (map)
meta-batches     solve (map) → for each meta-batch: play its blocks (map), one weighted update
task after task  solve (map) → each block in turn, on one worker at a time
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from fmrl.cluster import store
from fmrl.cluster.groups import Block
from fmrl.cluster.prefix import Sums, after, jumps
from fmrl.cluster.scan import Ends, scan, scans
from fmrl.cluster.tables import Skipped
from fmrl.cluster.work import Job, Start
from fmrl.core.algorithm import State
from fmrl.core.metabatch import move
from fmrl.core.rules.meta import End
from fmrl.core.rules.similarity import Known
from fmrl.errors import FMRLError


@dataclass
class Totals:
    """What a run adds up to."""

    state: State
    regret: float = 0.0
    gap: float = 0.0


class Driver:
    """One run: a job, its blocks with what they hold in memory, a map, and a callable to tell about
    played tasks.
    """

    def __init__(
        self,
        job: Job,
        blocks: list[Block],
        held: Callable[[Block], Any],
        mapper: Any,
        progress: Any = None,
    ):
        self.job, self.algo, self.mapper = job, job.algo, mapper
        self.blocks, self.held, self.progress = blocks, held, progress or (lambda n: None)
        self.sums: dict[int, Sums] = {}
        self.skipped: list[Skipped] = []

    def solve(self) -> None:
        """All optima; blocks whose tasks are all unusable are left out from here on."""
        self.mapper.ledger.begin("solve", len(self.blocks))
        skipped: dict[int, list[Skipped]] = {}
        for done in self.mapper.map("solve", self.job, ((b, self.held(b)) for b in self.blocks)):
            skipped[done.item.number] = done.skipped
            if done.value is not None:
                self.sums[done.item.number] = done.value
        self.skipped += [s for number in sorted(skipped) for s in skipped[number]]
        self.blocks = [b for b in self.blocks if b.number in self.sums]
        if not self.blocks:
            raise FMRLError(
                "no task is left to play",
                fix="look at what was skipped: " + "; ".join(s.what for s in self.skipped[:3]),
            )

    def run(self, state: State) -> Totals:
        """Play all blocks from ``state``."""
        self.totals = Totals(state)
        if self.job.algo.update.exact and self.job.meta_batch == 1:
            self._exact(state)
        elif self.blocks[0].batch is not None:
            self._in_meta_batches(state)
        else:
            self._in_turn(state)
        return self.totals

    def _exact(self, state: State) -> None:
        self.mapper.ledger.begin("play", len(self.blocks))
        prefix = jumps(self.algo.meta) and scans(self.algo.similarity)
        items = self._by_prefix(state) if prefix else self._by_hand(state)
        for done in self.mapper.map("play", self.job, items):
            self._count(done)

    def _by_prefix(self, state: State) -> Iterator[tuple]:
        """Where each block starts, from sums and numbers alone."""
        rule, before, phi, memory = self.algo.similarity, [], state.phi, state.meta
        for block in self.blocks:
            before.append((block, phi, memory))
            phi, memory = after(self.algo.meta, phi, memory, self.sums[block.number])
        guess, seen = state.guess, state.similarity
        if isinstance(rule, Known):
            found: Any = ((b, None) for b in self.blocks)
        else:
            self.mapper.ledger.begin("deviate", len(self.blocks))
            items = ((b, None, phi, memory) for b, phi, memory in before)
            found = (
                (d.item, d.value) for d in self.mapper.map("deviate", self.job, items, ordered=True)
            )
        for (block, start, weight), (_, ends) in zip(before, found, strict=True):
            if ends is None:
                guesses = np.full(self.sums[block.number].count, guess)
            else:
                guesses, guess, seen = scan(rule, guess, seen, ends)
            yield block, self.held(block), Start(start, weight, guesses)
        count = sum(self.sums[b.number].count for b in self.blocks)
        self.totals.state = State(state.tasks + count, phi, guess, memory, seen)

    def _by_hand(self, state: State) -> Iterator[tuple]:
        """A rule of the user's own: the driver itself moves phi and the guess, task after task,
        over the optima.
        """
        for block in self.blocks:
            columns = self._read("optima", block, ["optimum", "sigma"])
            phis, guesses = np.empty_like(columns["optimum"]), np.empty(len(columns["sigma"]))
            for t, (theta, sigma) in enumerate(
                zip(columns["optimum"], columns["sigma"], strict=True)
            ):
                phis[t], guesses[t] = state.phi, state.guess
                state = self.algo.advance(state, End(theta, theta, np.asarray(sigma)))
            yield block, self.held(block), Start(phis, None, guesses)
        self.totals.state = state

    def _in_turn(self, state: State) -> None:
        self.mapper.ledger.begin("turn", len(self.blocks))
        for block in self.blocks:
            (done,) = self.mapper.map("turn", self.job, [(block, self.held(block), state)])
            state = done.value[2]
            self.totals.state = state
            self._count(done)

    def _in_meta_batches(self, state: State) -> None:
        """The blocks of one meta-batch are played at once, then phi moves."""
        self.mapper.ledger.begin("play", len(self.blocks))
        for _, group in groupby(self.blocks, key=lambda b: b.batch):
            blocks = list(group)
            start = Start(state.phi, None, np.asarray(state.guess))
            ends: list[tuple[Ends, Sums]] = []
            for done in self.mapper.map(
                "play", self.job, [(b, self.held(b), start) for b in blocks], ordered=True
            ):
                ends.append(done.value[2])
                self._count(done)
            state = self._moved(state, blocks, ends)
            self.totals.state = state

    def _moved(self, state: State, blocks: list[Block], ends: list[tuple[Ends, Sums]]) -> State:
        if not scans(self.algo.similarity) or sum(s.count for _, s in ends) == 1:
            parts = [
                self._read("rounds", b, None) | self._read("optima", b, ["optimum", "sigma"])
                for b in blocks
            ]
            theta = np.concatenate([p.get("theta", p["optimum"]) for p in parts])
            optimum, sigma = (np.concatenate([p[n] for p in parts]) for n in ("optimum", "sigma"))
            return move(self.algo, state, theta, optimum, sigma)
        columns = Ends(*(np.concatenate(c) for c in zip(*(e for e, _ in ends), strict=True)))
        _, guess, seen = scan(self.algo.similarity, state.guess, state.similarity, columns)
        total = ends[0][1]
        for _, s in ends[1:]:
            total = total + s
        if total.weight > 0:
            mean = End(
                total.moment / total.weight, total.optima / total.weight, np.asarray(total.weight)
            )
        else:
            mean = End(*(total.plain / total.count), np.asarray(0.0))
        phi, memory = self.algo.meta.update(self.algo.domain, state.phi, state.meta, mean)
        return State(state.tasks + total.count, phi, guess, memory, seen)

    def _read(self, kind: str, block: Block, names: list[str] | None) -> dict[str, Any]:
        columns = store.read(self.job.path(kind, block), names)
        if columns is None:
            raise FMRLError(
                f"the {kind} of block {block.number} are gone or damaged",
                fix="run it again with resume",
            )
        return columns

    def _count(self, done: Any) -> None:
        self.totals.regret += done.value[0]
        self.totals.gap += done.value[1]
        self.progress(done.tasks)
