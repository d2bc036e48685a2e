"""Which tasks stand for all, and which are held out together."""

from __future__ import annotations

import numpy as np


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """At most ``most`` of the numbers 0 … count − 1, evenly spaced.

    >>> evenly_spaced(10, 4).tolist(), evenly_spaced(3, 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


FOLDS = 12  # of tasks; trees and families are held out by some of them at a time


def fold_count(count: int) -> int:
    """Into how many parts so many tasks are cut for families and weights: few tasks into more, so
    that enough are left.
    """
    return count if count <= 6 else 4 if count < 60 else 3 if count < 200 else 2


def fold_of_tasks(count: int, folds: int, seed: int) -> np.ndarray:
    """In which fold each task is, [count]: the one assignment of a `fit`, by which trees, families
    and weights are held out. Of twelve tasks that follow each other one is in each of twelve folds,
    since neighbours in a file are often alike; fewer folds are unions of those.

    Args:
        count: How many tasks.
        folds: How many folds: 6, 4, 3 or 2; or as many as there are tasks.
        seed: Of the draw.

    >>> fold_of_tasks(12, 6, seed=0).tolist()
    [3, 2, 1, 4, 5, 5, 0, 3, 0, 4, 2, 1]
    """
    rng, starts = np.random.default_rng(seed), range(0, count, FOLDS)
    return np.concatenate([rng.permutation(min(FOLDS, count - i)) for i in starts]) % folds
