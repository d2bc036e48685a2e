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

    changed = False  # whether somebody else has changed them since this was last asked

    def __init__(self) -> None:
        self._blocks: list[Tasks] = []
        self._noted = 0  # blocks of which `_places` tells where the tasks lie
        self._places: dict[Any, list[int]] = {}  # by name: block and place, block and place, …
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
        index, base = self._index(), self._blocks[0]
        places = [index[name] for name in names]
        if all(len(p) == 2 and p[0] == 0 for p in places):
            found = base.take(np.array([p[1] for p in places], dtype=int))
            return replace(_light(found), names=list(names))
        weighted = any(b.weight is not None for b in self._blocks)
        columns: list[list[np.ndarray]] = [[], [], []]
        lengths = np.zeros(len(names), dtype=np.int64)
        for t, own in enumerate(places):
            for block, place in zip(own[::2], own[1::2], strict=True):
                held = self._blocks[block]
                rows = slice(held.starts[place], held.starts[place + 1])
                lengths[t] += rows.stop - rows.start
                columns[0].append(held.X[rows])
                columns[1].append(held.target[rows])
                if weighted:
                    weight = held.weight
                    one = np.ones(rows.stop - rows.start)
                    columns[2].append(one if weight is None else weight[rows])
        X, target = np.concatenate(columns[0]), np.concatenate(columns[1])
        weight = np.concatenate(columns[2]) if weighted else None
        starts = np.concatenate([[0], np.cumsum(lengths)])
        heaviest = max(b.heaviest for b in self._blocks)
        return _light(Tasks(base.loss, X, target, starts, list(names), weight, heaviest))

    def forget(self, name: Any) -> None:
        """Drop a task and its rows."""
        own = self._index()[name]
        for block, place in zip(own[::2], own[1::2], strict=True):
            self._dead += int(self._blocks[block].lengths[place])
        del self._places[name]
        if self._dead > REPACK_SHARE * (len(self._blocks[0].X) + self._later):
            self._repack()

    def _index(self) -> dict[Any, list[int]]:
        """Where the tasks lie, by name; notes the blocks that came since this was last asked."""
        while self._noted < len(self._blocks):
            number = self._noted
            if not self._places:
                names = self._blocks[number].names
                self._places = {name: [number, i] for i, name in enumerate(names)}
            else:
                for i, name in enumerate(self._blocks[number].names):
                    own = self._places.setdefault(name, [])
                    if own[-2:] != [number, i]:  # noted before an interruption
                        own += [number, i]
            self._noted = number + 1
        return self._places

    def _repack(self) -> None:
        """Write all rows anew, task by task, without those that nobody owns."""
        new = TaskRows()
        if index := self._index():
            new._blocks = [self.take(list(index)).copied()]
            new._index()
        self.__dict__ = vars(new)


def _light(tasks: Tasks) -> Tasks:
    """Without weights that are all 1."""
    if tasks.weight is None or not len(tasks.X):
        return tasks
    if (np.asarray(tasks.weight) == 1).all():
        return replace(tasks, weight=None, heaviest=1.0)
    return replace(tasks, heaviest=float(np.max(tasks.weight)))


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
