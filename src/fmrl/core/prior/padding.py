"""Tasks of about one length side by side, so that one product is of all of them: as many at a time
as memory should hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from fmrl.core.arrays import Array, full, namespace
from fmrl.core.tasks import Tasks

NUMBERS = 1 << 21  # numbers that are held for one piece under all members and outputs, about


class Rows(NamedTuple):
    """Rows of tasks side by side."""

    X: Array  # [B, n, w]
    target: Array  # [B, n, K]
    weight: Array  # [B, n], 0 for padding


def stacks(tasks: Tasks) -> Iterator[tuple[Any, Rows]]:
    """Yield places of tasks and their rows side by side."""
    if len(tasks) == 1:
        weight = full((len(tasks.X),), 1.0, tasks.X) if tasks.weight is None else tasks.weight
        yield slice(0, 1), Rows(tasks.X[None], tasks.target[None], weight[None])
        return
    if tasks.weight is None:
        for part, game in tasks.stacks():
            yield part, Rows(game.X, game.target, game.weight)
        return
    both = namespace(tasks.X).concat([tasks.target, tasks.weight[:, None]], axis=1)
    for part, game in replace(tasks, target=both, weight=None).stacks():
        yield part, Rows(game.X, game.target[..., :-1], game.target[..., -1])


def pieces(tasks: Tasks, times: int) -> Iterator[tuple[Any, Rows]]:
    """Yield `stacks`, cut where ``times`` as many numbers as their rows have would be too many.

    Args:
        tasks: Some.
        times: How many numbers are held for each number of a row, for example members × outputs.
    """
    for part, rows in stacks(tasks):
        count, n, w = rows.X.shape
        size = max(1, NUMBERS // (times * n * w or 1))
        if count <= size:
            yield part, rows
            continue
        for first in range(0, count, size):
            some = slice(first, first + size)
            yield part[some], Rows(*(a[some, ...] for a in rows))
