"""Tasks of a flat table as stacked games: rows sorted by task in, padded stacks of tasks of similar
size out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fmrl.core.losses import Loss, Weighted
from fmrl.core.tasks import Rounds
from fmrl.estimators.coordinates import Chart

ELEMENTS = 1 << 19  # of one stack, so that it stays in cache


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of several tasks, task t being rows starts[t] : starts[t] + sizes[t], in the order they
    are to be played.
    """

    X: np.ndarray  # [N, f]
    y: np.ndarray  # [N]: positions of classes, or numbers
    weight: np.ndarray | None  # [N]
    starts: np.ndarray  # [T]
    sizes: np.ndarray  # [T]

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, tasks: np.ndarray) -> Table:
        """Some of the tasks."""
        return Table(self.X, self.y, self.weight, self.starts[tasks], self.sizes[tasks])

    def take(self, rows: np.ndarray) -> Table:
        """Tasks of one size from row numbers [T, n]."""
        flat, (count, n) = rows.ravel(), rows.shape
        weight = None if self.weight is None else self.weight[flat]
        return Table(self.X[flat], self.y[flat], weight, np.arange(count) * n, np.full(count, n))

    def rows(self) -> np.ndarray:
        """All row numbers, task after task."""
        offsets = np.arange(self.sizes.sum()) - np.repeat(
            np.cumsum(self.sizes) - self.sizes, self.sizes
        )
        return np.repeat(self.starts, self.sizes) + offsets


def table(
    X: np.ndarray, y: np.ndarray, weight: np.ndarray | None, ids: np.ndarray | None
) -> tuple[Table, list]:
    """Rows grouped by task; tasks in the order in which they first appear, rows of a task in
    theirs.

    >>> t, names = table(np.arange(4.0)[:, None], np.zeros(4), None, np.array(["b", "a", "b", "a"]))
    >>> names, t.X.ravel().tolist(), t.starts.tolist()
    (['b', 'a'], [0.0, 2.0, 1.0, 3.0], [0, 2])
    """
    if ids is None:
        return Table(X, y, weight, np.array([0]), np.array([len(y)])), [None]
    names, first, which, sizes = np.unique(
        ids, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first, kind="stable")  # tasks by first appearance
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    which, sizes = place[which.ravel()], sizes[order]
    if (np.diff(which) < 0).any():
        rows = np.argsort(which, kind="stable")
        X, y, weight = X[rows], y[rows], None if weight is None else weight[rows]
    return Table(X, y, weight, np.cumsum(sizes) - sizes, sizes), names[order].tolist()


def encode(y: np.ndarray, loss: Loss) -> np.ndarray:
    """Targets [..., outputs] of class positions, or of numbers, already in the chart's units."""
    y = y[..., None]
    return (y == np.arange(loss.outputs)).astype(float) if loss.outputs > 1 else y.astype(float)


def stack(tasks: Table, chart: Chart, loss: Loss, regression: bool) -> Rounds:
    """The tasks side by side as one game, shorter ones padded with rounds that do not count."""
    long = int(tasks.sizes.max())
    column = np.arange(long)
    there = column < tasks.sizes[:, None]
    rows = tasks.starts[:, None] + np.where(there, column, 0)
    X, y = chart.rows(tasks.X[rows]), tasks.y[rows]
    target = encode(chart.target(y) if regression else y, loss)
    if tasks.weight is not None:
        weight = tasks.weight[rows]
        if regression:  # ½(z − y)² weighted is ½(√w·z − √w·y)²
            X, target = np.sqrt(weight)[..., None] * X, np.sqrt(weight)[..., None] * target
        else:
            loss = Weighted(loss, float(tasks.weight.max()))
            target = np.concatenate([target, weight[..., None]], axis=-1)
    if not there.all():
        X, target = X * there[..., None], target * there[..., None]
    return Rounds(loss, X, target, there.astype(float), tasks.sizes.astype(float))


def groups(tasks: Table, width: int) -> Iterator[np.ndarray]:
    """Positions of tasks to be stacked together: sizes within a factor of two, not too many at
    once.
    """
    scale = np.frexp(tasks.sizes)[1]
    for s in np.unique(scale):
        (index,) = np.nonzero(scale == s)
        most = max(1, ELEMENTS // (int(tasks.sizes[index].max()) * width))
        for first in range(0, len(index), most):
            yield index[first : first + most]
