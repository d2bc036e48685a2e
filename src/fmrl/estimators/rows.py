"""The rows of the tasks an estimator knows: all that a task's model is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from fmrl.core.losses import Loss
from fmrl.core.tasks import Tasks


class TaskRows:
    """Rows by task, in memory; a task may be given more of them at any time.

    The rows of a task are one text of bytes: of each row its columns, its target and its weight.
    Bytes are never changed, so what `take` gave stays as it is, and a call that is interrupted has
    added its rows or has not.

    Args:
        loss: Of the tasks.
        width: How many columns a row has.

    >>> from fmrl.core.losses import Squared
    >>> one = Tasks(Squared(), np.ones((2, 1)), np.ones((2, 1)), np.array([0, 2]), ["a"])
    >>> rows = TaskRows(Squared(), 1)
    >>> rows.add(one)
    >>> rows.add(one)
    >>> len(rows), rows.take(["a"]).lengths.tolist()
    (1, [4])
    """

    def __init__(self, loss: Loss, width: int) -> None:
        self.loss, self.width = loss, width
        self._bodies: dict[Any, bytes] = {}

    def __contains__(self, name: Any) -> bool:
        return bool(self.known([name])[0])

    def __len__(self) -> int:
        return len(self._bodies)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._bodies))

    @property
    def nbytes(self) -> int:
        """What the rows take."""
        return sum(map(len, self._bodies.values()))

    def reserve(self) -> None:
        """Make room before rows come: in memory, nothing."""

    def known(self, names: Sequence[Any]) -> np.ndarray:
        """Which of these tasks have rows here, [T]."""
        return np.array([name in self._bodies for name in names], dtype=bool)

    def add(self, tasks: Tasks) -> None:
        """More rows, of tasks known or new; each task at most once.

        Args:
            tasks: In the user's units. They are copied.
        """
        held, new = self._bodies, zip(tasks.names, rows_as_bytes(tasks), strict=True)
        held.update({name: held.get(name, b"") + body for name, body in new})

    def take(self, names: Sequence[Any]) -> Tasks:
        """Some tasks, each with all its rows in the order in which they came."""
        bodies = self._bytes_of(names)
        wide = self.width + max(self.loss.outputs, 1) + 1
        rows = np.frombuffer(b"".join(bodies), dtype="<f8").reshape(-1, wide)
        starts = np.cumsum([0, *(len(body) // (8 * wide) for body in bodies)])
        parts = np.split(rows, [self.width, wide - 1], axis=1)
        X, target, weight = (np.ascontiguousarray(part) for part in parts)
        return drop_unit_weights(Tasks(self.loss, X, target, starts, list(names), weight.ravel()))

    def forget(self, name: Any) -> None:
        """Drop a task and its rows."""
        del self._bodies[name]

    def _bytes_of(self, names: Sequence[Any]) -> list[bytes]:
        return [self._bodies[name] for name in names]


def rows_as_bytes(tasks: Tasks) -> Iterator[bytes]:
    """The rows of each task as bytes: of each row its columns, its target and its weight.

    Args:
        tasks: Some.
    """
    weight = np.ones(len(tasks.X)) if tasks.weight is None else tasks.weight
    whole = np.concatenate([tasks.X, tasks.target, weight[:, None]], axis=1).astype("<f8")
    return (whole[a:b].tobytes() for a, b in pairwise(tasks.starts.tolist()))


def drop_unit_weights(tasks: Tasks) -> Tasks:
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
