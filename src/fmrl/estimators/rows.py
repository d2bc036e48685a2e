"""The rows of the tasks an estimator knows: all that a task's model is made of."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np

from fmrl.core.tasks import Tasks

LARGE = 1 << 26  # bytes of a table that is copied as one block, without room to grow


class TaskRows:
    """Rows by task, in memory; a task may be given more of them at any time.

    The rows of a task lie together in a block. Where they have no room to grow they move to the
    last block, with twice the room; rows that were written are never changed, so that what `take`
    gave stays as it is.

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
        self._blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # X, target, weight
        self._used = 0  # rows of the last block
        self._numbers: dict[Hashable, int] = {}
        # By number: block, first row, rows, room.
        self._places = np.zeros((0, 4), dtype=np.int64)
        self._given, self._dead = 0, 0  # numbers given; rows that nobody owns any more

    def __contains__(self, name: Any) -> bool:
        return name in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._numbers))

    @property
    def nbytes(self) -> int:
        """What the rows take in memory."""
        return self._places.nbytes + sum(a.nbytes for block in self._blocks for a in block)

    def known(self, names: Sequence[Any]) -> np.ndarray:
        """Which of these tasks have rows here, [T]."""
        return _lookup(self._numbers, names) >= 0

    def add(self, tasks: Tasks) -> None:
        """More rows, of tasks known or new; each task at most once."""
        self._kind = self._kind or replace(tasks, weight=None, heaviest=1.0)
        weight = np.ones(len(tasks.X)) if tasks.weight is None else tasks.weight
        numbers, lengths = _lookup(self._numbers, tasks.names), tasks.lengths
        fresh = np.flatnonzero(numbers < 0)
        if tasks.X.nbytes > LARGE and len(fresh) == len(tasks):
            at = len(self._blocks)
            self._blocks.append(tuple(np.array(a) for a in (tasks.X, tasks.target, weight)))
            self._used = len(tasks.X)
            parts = (np.full(len(tasks), at), tasks.starts[:-1], lengths, lengths)
            self._places_of(tasks.names)[:] = np.stack(parts, axis=1)
            return
        if len(fresh):
            numbers[fresh] = np.arange(self._given, self._given + len(fresh))
            self._places_of([tasks.names[i] for i in fresh])[:] = 0
        held = self._places[numbers]
        grown = held[:, 2] + lengths
        move = np.flatnonzero(grown > held[:, 3])
        if len(move):
            old = held[move]
            room = np.where(old[:, 2] > 0, 2 * grown[move], grown[move])
            block, first = self._room(int(room.sum()))
            held[move, 0], held[move, 3] = block, room
            held[move, 1] = first + np.cumsum(room) - room
            self._copy(old, held[move])
            self._dead += int(old[:, 3].sum())
        to = held.copy()
        to[:, 1] += held[:, 2]
        self._write(to[:, 0], _span(to[:, 1], lengths), lengths, (tasks.X, tasks.target, weight))
        held[:, 2] = grown
        self._places[numbers] = held
        if self._dead > 1024 and 2 * self._dead > sum(len(b[2]) for b in self._blocks):
            self._pack()

    def take(self, names: Sequence[Any]) -> Tasks:
        """Some tasks, each with all its rows in the order in which they came."""
        assert self._kind is not None
        blocks, first, lengths, _ = self._places[_lookup(self._numbers, names)].T
        starts = np.concatenate([[0], np.cumsum(lengths)])
        if len(names) == 1 or ((blocks == blocks[0]).all() and _side_by_side(first, lengths)):
            rows = slice(int(first[0]), int(first[0] + starts[-1]))
            X, target, weight = (a[rows] for a in self._blocks[blocks[0]])
        else:
            rows, owner = _span(first, lengths), np.repeat(blocks, lengths)
            found = np.unique(blocks)
            if len(found) == 1:
                X, target, weight = (a[rows] for a in self._blocks[found[0]])
            else:
                like = self._blocks[found[0]]
                X, target, weight = (np.empty((len(rows), *a.shape[1:])) for a in like)
                for block in found:
                    mine = owner == block
                    pairs = zip((X, target, weight), self._blocks[block], strict=True)
                    for out, a in pairs:
                        out[mine] = a[rows[mine]]
        plain = bool((weight == 1).all())
        heaviest = 1.0 if plain or not len(weight) else float(weight.max())
        return replace(
            self._kind, X=X, target=target, starts=starts, names=list(names),
            weight=None if plain else weight, heaviest=heaviest,
        )  # fmt: skip

    def forget(self, name: Any) -> None:
        """Drop a task and its rows."""
        number = self._numbers.pop(name)
        self._dead += int(self._places[number, 3])
        self._places[number] = 0
        if 2 * self._dead > sum(len(b[2]) for b in self._blocks):
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
        kind, total = self._kind, sum(len(b[2]) for b in self._blocks)
        assert kind is not None
        if not self._blocks or self._used + rows > len(self._blocks[-1][2]):
            size = max(rows, total // 2 if self._blocks else rows)
            widths = ((size, kind.X.shape[1]), (size, kind.target.shape[1]), (size,))
            self._blocks.append(tuple(np.empty(w) for w in widths))  # type: ignore[arg-type]
            self._used = 0
        self._used += rows
        return len(self._blocks) - 1, self._used - rows

    def _copy(self, old: np.ndarray, new: np.ndarray) -> None:
        """Rows of tasks from their old places to new ones, which are all in one block."""
        to = self._blocks[int(new[0, 0])]
        for block in np.unique(old[:, 0]):
            some = np.flatnonzero((old[:, 0] == block) & (old[:, 2] > 0))
            source, target = (_span(p[some, 1], old[some, 2]) for p in (old, new))
            for a, b in zip(to, self._blocks[block], strict=True):
                a[target] = b[source]

    def _write(self, blocks: Any, rows: np.ndarray, lengths: np.ndarray, columns: Any) -> None:
        found = np.unique(blocks)
        owner = np.repeat(blocks, lengths)
        for block in found:
            mine = slice(None) if len(found) == 1 else owner == block
            for a, new in zip(self._blocks[block], columns, strict=True):
                a[rows[mine]] = new[mine]


def _lookup(numbers: dict[Any, int], names: Sequence[Any]) -> np.ndarray:
    """The numbers of some names, [T]; −1 for those that have none."""
    found = map(numbers.get, names, repeat(-1))
    return np.fromiter(found, dtype=np.int64, count=len(names))


def _span(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The row numbers first … first + length of every task, one after another."""
    ends = np.cumsum(lengths)
    return np.repeat(first - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


def _side_by_side(first: np.ndarray, lengths: np.ndarray) -> bool:
    return bool((first[1:] == first[:-1] + lengths[:-1]).all())


class Thetas:
    """Models that were asked for, until their tasks get more rows.

    Args:
        most: How many numbers are kept; None for all.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most, self._slots = most, {}
        self._values, self._valid = np.zeros((0, 0, 0)), np.zeros(0, dtype=bool)

    @property
    def nbytes(self) -> int:
        """What they take in memory."""
        return self._values.nbytes + self._valid.nbytes

    def find(self, names: Sequence[Any]) -> np.ndarray:
        """Where the models of these tasks are, [T]; −1 where there is none."""
        slots = _lookup(self._slots, names)
        if len(self._valid):
            slots[~self._valid[slots]] = -1
        return slots

    def at(self, slots: np.ndarray) -> np.ndarray:
        """The models [T, outputs, width] in some slots."""
        return self._values[slots]

    def put(self, names: Sequence[Any], found: np.ndarray) -> None:
        """Keep models [T, outputs, width]; all others go where they would be too many."""
        size = max(found[:1].size, 1)
        if self.most is not None and (len(self._slots) + len(names)) * size > self.most:
            self.__init__(self.most)
            names, found = names[: self.most // size], found[: self.most // size]
        slots = _lookup(self._slots, names)
        new = np.flatnonzero(slots < 0)
        first, last = len(self._slots), len(self._slots) + len(new)
        if last > len(self._values):
            room = max(last, 2 * len(self._values))
            values, valid = np.empty((room, *found.shape[1:])), np.zeros(room, dtype=bool)
            if first:
                values[:first], valid[:first] = self._values[:first], self._valid[:first]
            self._values, self._valid = values, valid
        slots[new] = np.arange(first, last)
        self._slots.update(zip([names[i] for i in new], range(first, last), strict=True))
        self._values[slots], self._valid[slots] = found, True

    def drop(self, names: Sequence[Any]) -> None:
        """Forget the models of some tasks."""
        if self._slots:
            slots = _lookup(self._slots, names)
            self._valid[slots[slots >= 0]] = False


def joined(parts: Sequence[Tasks]) -> Tasks:
    """Tasks one after another as one value."""
    if len(parts) == 1:
        return parts[0]
    weighted = any(p.weight is not None for p in parts)
    weights = [np.ones(len(p.X)) if p.weight is None else p.weight for p in parts]
    X, target = (np.concatenate([getattr(p, n) for p in parts]) for n in ("X", "target"))
    lengths = np.concatenate([p.lengths for p in parts])
    return replace(
        parts[0], X=X, target=target, starts=np.concatenate([[0], np.cumsum(lengths)]),
        names=[name for p in parts for name in p.names],
        weight=np.concatenate(weights) if weighted else None,
        heaviest=max(p.heaviest for p in parts),
    )  # fmt: skip
