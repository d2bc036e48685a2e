"""The rows of the tasks an estimator knows: all that a task's model is made of."""

from __future__ import annotations

import mmap
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np

from fmrl.core.tasks import Tasks
from fmrl.estimators.running import Unbroken

LARGE = 1 << 26  # bytes of a table that is copied as one block, without room to grow
WAITING = 1 << 20  # numbers of rows that wait to be sorted into the blocks, at most: 8 MB


class TaskRows:
    """Rows by task, in memory; a task may be given more of them at any time.

    New rows wait as they came until somebody asks or many have come; sorting them in together is
    cheaper. The rows of a task lie together in a block. Where they have no room to grow they move
    to the last block, with twice the room; rows that were written are never changed, so that what
    `take` gave stays as it is.

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
        self._kind: Tasks | None = None  # a value of their kind
        self._blocks: list[tuple[np.ndarray, ...]] = []  # X, target; weight, if any was given
        self._used = 0  # rows of the last block
        self._numbers: dict[Hashable, int] = {}
        # By number: block, first row, rows, room.
        self._places = np.zeros((0, 4), dtype=np.int64)
        self._given, self._dead = 0, 0  # numbers given; rows that nobody owns any more
        # New rows, number and columns, and how many numbers they have.
        self._waiting: list[tuple[np.ndarray, ...]] = []
        self._count, self._weighted = 0, False
        self._grew = True

    def __contains__(self, name: Any) -> bool:
        return name in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._numbers))

    @property
    def nbytes(self) -> int:
        """What the rows take in memory."""
        self._settle()
        return self._places.nbytes + sum(a.nbytes for block in self._blocks for a in block)

    def known(self, names: Sequence[Any]) -> np.ndarray:
        """Which of these tasks have rows here, [T]."""
        return lookup(self._numbers, names) >= 0

    def counts(self, names: Sequence[Any]) -> np.ndarray:
        """How many rows these tasks have, [T]."""
        self._settle()
        return self._places[lookup(self._numbers, names), 2]

    def grew(self) -> bool:
        """Whether there may be more rows than when this was last asked."""
        grew, self._grew = self._grew, False
        return grew

    def add(self, tasks: Tasks) -> None:
        """More rows, of tasks known or new; each task at most once."""
        self._grew = True
        self._kind = self._kind or replace(tasks, weight=None, heaviest=1.0)
        numbers, lengths = lookup(self._numbers, tasks.names), tasks.lengths
        columns, fresh = (tasks.X, tasks.target, tasks.weight), np.flatnonzero(numbers < 0)
        if tasks.X.nbytes > LARGE and len(fresh) == len(tasks):
            self._blocks.append(tuple(map(_copied, self._columns(*columns))))
            self._used = len(tasks.X)
            last = np.full(len(tasks), len(self._blocks) - 1)
            parts = (last, tasks.starts[:-1], lengths, lengths)
            self._places_of(tasks.names)[:] = np.stack(parts, axis=1)
            return
        if len(fresh):
            numbers[fresh] = np.arange(self._given, self._given + len(fresh))
            self._places_of([tasks.names[i] for i in fresh])[:] = 0
        self._wait(np.repeat(numbers, lengths), *columns)

    def more(self, names: Sequence[Any], X: Any, target: Any, weight: Any) -> bool:
        """Add rows by the name of each one's task, in any order; False, and nothing is done, if a
        task is not known.
        """
        numbers = lookup(self._numbers, names)
        if numbers.min() < 0:
            return False
        self._grew = True
        self._wait(numbers, X, target, weight)
        return True

    def _wait(self, owner: np.ndarray, *given: Any) -> None:
        """Take rows [n] of tasks by number, to be sorted in later."""
        columns = self._columns(*given)
        more = sum(a.size for a in columns)
        now = self._count + more >= WAITING
        self._waiting.append((owner, *(columns if now else map(np.array, columns))))
        self._count += more
        if now:
            self._settle()

    def _columns(self, X: Any, target: Any, weight: Any) -> tuple[np.ndarray, ...]:
        """What is kept of rows: weights only once some were given."""
        if weight is None and not self._weighted:
            return X, target
        if not self._weighted:
            self._settle()
            self._weighted = True
            self._blocks = [(*block, np.ones(len(block[0]))) for block in self._blocks]
        return X, target, np.ones(len(X)) if weight is None else weight

    def _settle(self) -> None:
        """Sort the rows that wait into the blocks."""
        if self._waiting:
            with Unbroken():  # else they would be lost
                self._sort_in()

    def _sort_in(self) -> None:
        parts, self._waiting, self._count = self._waiting, [], 0
        whole = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        owner, *columns = whole
        if (owner[1:] < owner[:-1]).any():
            # Numbers of 16 bits are sorted without comparing them.
            key = owner.astype(np.uint16) if self._given < 1 << 16 else owner
            order = np.argsort(key, kind="stable")
            owner, *columns = (a.take(order, axis=0) for a in (owner, *columns))
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        self._grow(owner[starts], np.diff(starts, append=len(owner)), columns)

    def _grow(self, numbers: np.ndarray, lengths: np.ndarray, columns: Sequence[Any]) -> None:
        """Write more rows of tasks, task by task, into the blocks."""
        held = self._places.take(numbers, axis=0)
        grown = held[:, 2] + lengths
        move = np.flatnonzero(grown > held[:, 3])
        if len(move):
            held[move] = self._moved(held[move], grown[move])
        self._write(held[:, 0], _span(held[:, 1] + held[:, 2], lengths), lengths, columns)
        held[:, 2] = grown
        self._places[numbers] = held
        if self._dead > 1024 and 2 * self._dead > sum(len(b[0]) for b in self._blocks):
            self._pack()

    def take(self, names: Sequence[Any]) -> Tasks:
        """Some tasks, each with all its rows in the order in which they came."""
        self._settle()
        assert self._kind is not None
        blocks, first, lengths, _ = self._places[lookup(self._numbers, names)].T
        starts = np.concatenate([[0], np.cumsum(lengths)])
        if len(names) == 1 or ((blocks == blocks[0]).all() and _side_by_side(first, lengths)):
            rows = slice(int(first[0]), int(first[0] + starts[-1]))
            columns = [a[rows] for a in self._blocks[blocks[0]]]
        else:
            rows, owner = _span(first, lengths), np.repeat(blocks, lengths)
            found = np.unique(blocks)
            if len(found) == 1:
                columns = [a.take(rows, axis=0) for a in self._blocks[found[0]]]
            else:
                columns = [np.empty((len(rows), *a.shape[1:])) for a in self._blocks[found[0]]]
                for block in found:
                    mine = owner == block
                    for out, a in zip(columns, self._blocks[block], strict=True):
                        out[mine] = a[rows[mine]]
        X, target, weight = (*columns, None)[:3]
        if weight is not None and (weight == 1).all():
            weight = None
        heaviest = float(weight.max()) if weight is not None and len(weight) else 1.0
        return replace(
            self._kind, X=X, target=target, starts=starts, names=list(names), weight=weight,
            heaviest=heaviest,
        )  # fmt: skip

    def forget(self, name: Any) -> None:
        """Drop a task and its rows."""
        self._settle()
        number = self._numbers.pop(name)
        self._dead += int(self._places[number, 3])
        self._places[number] = 0
        if 2 * self._dead > sum(len(b[0]) for b in self._blocks):
            self._pack()

    def _pack(self) -> None:
        """Write all rows anew, without those that nobody owns."""
        kept = self.take(list(self._numbers)) if self._numbers else None
        self.__init__()
        if kept is not None:
            self.add(kept)

    def _places_of(self, names: Sequence[Any]) -> np.ndarray:
        """Give numbers to new tasks; their places, to be filled."""
        first = self._given
        self._given += len(names)
        if self._given > len(self._places):
            more = np.zeros((max(self._given, 2 * len(self._places)), 4), dtype=np.int64)
            more[:first] = self._places[:first]
            self._places = more
        self._numbers.update(zip(names, range(first, self._given), strict=True))
        return self._places[first : self._given]

    def _room(self, rows: int) -> tuple[int, int]:
        """A block with room for more rows, and where that begins."""
        kind, total = self._kind, sum(len(b[0]) for b in self._blocks)
        assert kind is not None
        if not self._blocks or self._used + rows > len(self._blocks[-1][0]):
            size = max(rows, total // 2 if self._blocks else rows)
            shapes = ((size, kind.X.shape[1]), (size, kind.target.shape[1]), (size,))
            self._blocks.append(tuple(map(np.empty, shapes[: 3 if self._weighted else 2])))
            self._used = 0
        self._used += rows
        return len(self._blocks) - 1, self._used - rows

    def _moved(self, old: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """New places for tasks, with room for twice so many rows (new tasks: for so many), where
        what they have is copied to.
        """
        new, room = old.copy(), np.where(old[:, 2] > 0, 2 * rows, rows)
        new[:, 0], first = self._room(int(room.sum()))
        new[:, 1], new[:, 3] = first + np.cumsum(room) - room, room
        to = self._blocks[int(new[0, 0])]
        for block in np.unique(old[:, 0]):
            some = np.flatnonzero((old[:, 0] == block) & (old[:, 2] > 0))
            source, target = (_span(p[some, 1], old[some, 2]) for p in (old, new))
            for a, b in zip(to, self._blocks[block], strict=True):
                a[target] = b.take(source, axis=0)
        self._dead += int(old[:, 3].sum())
        return new

    def _write(self, blocks: Any, rows: np.ndarray, lengths: np.ndarray, columns: Any) -> None:
        one = (blocks == blocks[0]).all()
        owner = blocks if one else np.repeat(blocks, lengths)
        for block in blocks[:1] if one else np.unique(blocks):
            mine = slice(None) if one else owner == block
            for a, new in zip(self._blocks[block], columns, strict=True):
                a[rows[mine]] = new[mine]


def lookup(numbers: dict[Any, int], names: Sequence[Any]) -> np.ndarray:
    """The numbers of some names, [T]; −1 for those that have none."""
    found = map(numbers.get, names, repeat(-1))
    return np.fromiter(found, dtype=np.int64, count=len(names))


def _span(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The row numbers first … first + length of every task, one after another."""
    ends = np.cumsum(lengths)
    return np.repeat(first - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


def _side_by_side(first: np.ndarray, lengths: np.ndarray) -> bool:
    return bool((first[1:] == first[:-1] + lengths[:-1]).all())


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


def _copied(a: np.ndarray) -> np.ndarray:
    """A copy. Memory for a large one is asked for at once: to look for huge pages, as NumPy lets
    the kernel do, can take longer than all else of a `fit`.
    """
    if a.nbytes > LARGE and hasattr(mmap, "MAP_POPULATE"):
        how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        with suppress(OSError):
            new = np.frombuffer(mmap.mmap(-1, a.nbytes, flags=how), a.dtype).reshape(a.shape)
            new[...] = a
            return new
    return np.array(a)
