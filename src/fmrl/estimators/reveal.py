"""Which rows of a task are revealed, and in which order tasks are held out: drawn by a seed and by
the values of the rows, so that neither their order nor the names of tasks matter.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from fmrl.tables.read import columns_of
from fmrl.tables.targets import as_numpy, task_ids


class Groups:
    """The rows of each task, in the order in which they are revealed, and the order of tasks."""

    def __init__(self, X: Any, y: Any, task: Any, seed: int | None):
        ids = task_ids(task, len(np.asarray(as_numpy(task))))
        assert ids is not None
        self.ids = ids
        found, first, which = np.unique(ids, return_index=True, return_inverse=True)
        if seed is None:
            keys, own = np.arange(len(ids)), first
        else:
            keys = _keys(X, y, seed)
            own = np.zeros(len(found), dtype=np.uint64)
            np.add.at(own, which, keys)  # of a task: the sum of its rows'
        by = np.lexsort((keys, which))
        self.rows = np.split(by, np.cumsum(np.bincount(which))[:-1])
        self.order = np.argsort(own, kind="stable").tolist()


def _keys(X: Any, y: Any, seed: int) -> np.ndarray:
    """A number [n] for every row, which depends on its values and the seed alone."""
    columns = columns_of(X)
    columns += [] if y is None else [np.asarray(as_numpy(y))]
    out = np.full(len(columns[0]), seed % (1 << 64), dtype=np.uint64)
    for column in columns:
        out = _mix(out * np.uint64(0x9E3779B97F4A7C15) + _bits(column))
    return out


def _bits(column: np.ndarray) -> np.ndarray:
    """The values of a column as whole numbers, the same for the same value."""
    if column.dtype.kind in "biuf":
        return (column.astype(np.float64) + 0.0).view(np.uint64)  # one zero, not two
    texts, which = np.unique([str(v) for v in column.tolist()], return_inverse=True)
    digests = (hashlib.sha256(t.encode()).digest()[:8] for t in texts.tolist())
    return np.array([int.from_bytes(d, "little") for d in digests], dtype=np.uint64)[which]


def _mix(z: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit of z (splitmix64)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
