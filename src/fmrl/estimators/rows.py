"""The rows of the tasks an estimator knows: all that a task's model is made of."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fmrl.core.tasks import Tasks


class TaskRows:
    """Rows by task, in memory; a task may be given more of them at any time.

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
        self._places: dict[Hashable, list[tuple[int, int]]] = {}

    def __contains__(self, name: Any) -> bool:
        return name in self._places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._places)

    @property
    def nbytes(self) -> int:
        """What the rows take in memory."""
        parts = (a for b in self._blocks for a in (b.X, b.target, b.weight) if a is not None)
        return sum(a.nbytes for a in parts)

    def add(self, tasks: Tasks) -> None:
        """More rows, of tasks known or new."""
        block = len(self._blocks)
        self._blocks.append(tasks)
        for i, name in enumerate(tasks.names):
            self._places.setdefault(name, []).append((block, i))

    def take(self, names: Sequence[Any]) -> Tasks:
        """Some tasks, each with all its rows in the order in which they came."""
        places = [self._places[name] for name in names]
        blocks = {block for place in places for block, _ in place}
        if len(blocks) == 1 and all(len(place) == 1 for place in places):
            return self._blocks[blocks.pop()].take(np.array([place[0][1] for place in places]))
        parts = [[self._blocks[b].take(np.array([i])) for b, i in place] for place in places]
        whole = joined([one for some in parts for one in some])
        lengths = [sum(len(one.X) for one in some) for some in parts]
        return replace(whole, starts=np.concatenate([[0], np.cumsum(lengths)]), names=list(names))

    def forget(self, name: Any) -> None:
        """Drop a task; its rows go when their block is written anew."""
        del self._places[name]
        kept = [self.take(list(self._places))] if self._places else []
        self.__init__()
        for tasks in kept:
            self.add(tasks)


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
