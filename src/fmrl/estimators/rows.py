"""The rows of the tasks an estimator knows: all that a task's model is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fmrl.core.tasks import Tasks

REPACK_SHARE = 0.5  # of the rows lie outside the first block, or are of nobody: written anew


class TaskRows:
    """Rows by task, in memory; a task may be given more of them at any time.

    The rows of the first call lie task by task in one block. What comes later is kept as it came,
    with a note of the task and its place, until it is so much that all is written anew. Nothing
    that was written is changed, so what `take` gave stays as it is, and a call that is interrupted
    has added its rows or has not.

    >>> from fmrl.core.losses import Squared
    >>> one = Tasks(Squared(), np.ones((2, 1)), np.ones((2, 1)), np.array([0, 2]), ["a"])
    >>> rows = TaskRows()
    >>> rows.add(one)
    >>> rows.add(one)
    >>> len(rows), rows.take(["a"]).lengths.tolist()
    (1, [4])
    """

    def __init__(self) -> None:
        self._blocks: list[Tasks] = []
        self._begins = [
            0
        ]  # of every block that was noted, the number of its first run; and the end
        self._runs: dict[Any, list[int]] = {}  # by name: which runs of rows, through all blocks
        self._dead = 0  # rows of tasks that were forgotten
        self._later = 0  # rows of all blocks but the first

    def __contains__(self, name: Any) -> bool:
        return name in self._index()

    def __len__(self) -> int:
        return len(self._index())

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._index()))

    @property
    def nbytes(self) -> int:
        """What the rows take in memory."""
        columns = ((b.X, b.target, b.starts, b.weight) for b in self._blocks)
        return sum(a.nbytes for some in columns for a in some if a is not None)

    def known(self, names: Sequence[Any]) -> np.ndarray:
        """Which of these tasks have rows here, [T]."""
        index = self._index()
        return np.array([name in index for name in names], dtype=bool)

    def add(self, tasks: Tasks) -> None:
        """More rows, of tasks known or new; each task at most once.

        Args:
            tasks: In the user's units. They are copied.
        """
        self._blocks.append(tasks.copied())
        if len(self._blocks) > 1:
            self._later += len(tasks.X)
            if self._later > REPACK_SHARE * len(self._blocks[0].X):
                self._repack()

    def take(self, names: Sequence[Any]) -> Tasks:
        """Some tasks, each with all its rows in the order in which they came."""
        index = self._index()
        own = [index[name] for name in names]
        runs = np.array([run for some in own for run in some], dtype=int)
        if len(runs) == len(own) and runs.max(initial=-1) < self._begins[1]:
            return light(replace(self._blocks[0].take(runs), names=list(names)))
        task = np.repeat(np.arange(len(own)), [len(some) for some in own])
        block = np.searchsorted(self._begins, runs, "right") - 1
        parts, owner = [], []
        for b in np.unique(block):
            here = block == b
            parts.append(self._blocks[b].take(runs[here] - self._begins[b]))
            owner.append(np.repeat(task[here], parts[-1].lengths))
        found, which = joined(parts), np.concatenate(owner)
        order = np.argsort(which, kind="stable")
        lengths = np.bincount(which, minlength=len(own))
        return light(
            replace(
                found, X=found.X[order], target=found.target[order], names=list(names),
                starts=np.concatenate([[0], np.cumsum(lengths)]),
                weight=None if found.weight is None else found.weight[order],
            )
        )  # fmt: skip

    def forget(self, name: Any) -> None:
        """Drop a task and its rows."""
        self._dead += len(self.take([name]).X)
        del self._runs[name]
        if self._dead > REPACK_SHARE * (len(self._blocks[0].X) + self._later):
            self._repack()

    def _index(self) -> dict[Any, list[int]]:
        """Where the tasks lie, by name; notes the blocks that came since this was last asked."""
        while len(self._begins) <= len(self._blocks):
            first, names = self._begins[-1], self._blocks[len(self._begins) - 1].names
            if not self._runs:
                self._runs = {name: [first + i] for i, name in enumerate(names)}
            else:
                for run, name in enumerate(names, first):
                    own = self._runs.setdefault(name, [])
                    if own[-1:] != [run]:  # noted before an interruption
                        own.append(run)
            self._begins.append(first + len(names))
        return self._runs

    def _repack(self) -> None:
        """Write all rows anew, task by task, without those that nobody owns."""
        new = TaskRows()
        if index := self._index():
            new.add(self.take(list(index)))
        self.__dict__ = vars(new)


def light(tasks: Tasks) -> Tasks:
    """The same tasks, without weights where all are 1; else with the largest of them.

    Args:
        tasks: With weights or without.
    """
    if tasks.weight is None or not len(tasks.X):
        return tasks
    heaviest = float(np.max(tasks.weight))
    plain = heaviest == 1 and bool((np.asarray(tasks.weight) == 1).all())
    return replace(tasks, weight=None if plain else tasks.weight, heaviest=heaviest)


def joined(parts: Sequence[Tasks]) -> Tasks:
    """Tasks one after another as one value."""
    if len(parts) == 1:
        return parts[0]
    weights = None
    if any(p.weight is not None for p in parts):
        every = [np.ones(len(p.X)) if p.weight is None else p.weight for p in parts]
        weights = np.concatenate(every)
    X, target = (np.concatenate([getattr(p, n) for p in parts]) for n in ("X", "target"))
    lengths = np.concatenate([p.lengths for p in parts])
    return replace(
        parts[0], X=X, target=target, starts=np.concatenate([[0], np.cumsum(lengths)]),
        names=[name for p in parts for name in p.names],
        weight=weights,
        heaviest=max(p.heaviest for p in parts),
    )  # fmt: skip
