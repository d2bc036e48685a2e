"""Tasks of about one length side by side, so that one product is of all of them; as many at a time
as memory should hold, and of no more rows than a loss needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fmrl.core.losses import Squared
from fmrl.core.tasks import Tasks

NUMBERS = 1 << 21  # that are held for some tasks under all members and outputs, about


def stacks(tasks: Tasks) -> Iterator[tuple[Any, np.ndarray, np.ndarray, np.ndarray]]:
    """Places, rows [B, n, w], targets [B, n, K] and weights [B, n] of tasks side by side; padding
    has weight 0.
    """
    if len(tasks) == 1:
        weight = np.ones(len(tasks.X)) if tasks.weight is None else np.asarray(tasks.weight)
        yield slice(0, 1), tasks.X[None], tasks.target[None], weight[None]
        return
    if tasks.weight is None:
        for part, game in tasks.stacks():
            yield part, game.X, game.target, game.weight
        return
    both = np.concatenate([tasks.target, np.asarray(tasks.weight)[:, None]], axis=1)
    for part, game in replace(tasks, target=both, weight=None).stacks():
        yield part, game.X, game.target[..., :-1], game.target[..., -1]


def pieces(tasks: Tasks, times: int) -> Iterator[tuple[Any, np.ndarray, np.ndarray, np.ndarray]]:
    """`stacks`, cut where ``times`` as many numbers as their rows have would be too many."""
    for part, *rows in stacks(tasks):
        size = max(1, NUMBERS // (times * rows[0][0].size or 1))
        if len(rows[0]) <= size:
            yield part, *rows
            continue
        for first in range(0, len(rows[0]), size):
            some = slice(first, first + size)
            yield part[some], *(a[some] for a in rows)


def shortened(tasks: Tasks) -> Tasks:
    """Tasks whose rows say the same to a squared loss, and are w + 1: the triangle of a QR
    decomposition of rows and targets. As they are where that is no shorter.
    """
    w = tasks.X.shape[1]
    if not isinstance(tasks.loss, Squared) or len(tasks.X) <= len(tasks) * (w + 1):
        return tasks
    short = np.zeros((len(tasks), w + 1, w + 1))
    for part, X, target, weight in stacks(tasks):
        rows = np.sqrt(weight)[..., None] * np.concatenate([X, target], axis=-1)
        triangle = np.linalg.qr(rows, mode="r")
        short[part, : triangle.shape[1]] = triangle
    rows = short.reshape(-1, w + 1)
    starts = np.arange(0, len(rows) + 1, w + 1)
    return replace(tasks, X=rows[:, :w], target=rows[:, w:], starts=starts, weight=None)
