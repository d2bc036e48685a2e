"""What a training run sets aside for its evaluation: some rows of the training tasks, and some of
the held-out tasks.

Both are chosen by keys that depend on the seed and on the place or name alone, so a resumed run
sets aside the same. """

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from fmrl.core.tasks import Task
from fmrl.runs.source import targets
from fmrl.tables.frames import id_text

ROWS = 20_000  # of training tasks, for the pooled baseline
LONGEST = 1024  # rows of a held-out task


@dataclass
class Reservoir:
    """A uniform sample of at most ``most`` rows of all that were added: those with the smallest
    random keys.

    >>> sample = Reservoir(3)
    >>> for w in range(4):
    ...     sample.add(np.full((10, 1), w), np.arange(10), w)
    >>> sample.X.shape, sample.seen
    ((3, 1), 40)
    """

    most: int = ROWS
    seed: int = 0
    seen: int = 0
    keys: np.ndarray = field(default_factory=lambda: np.empty(0))
    X: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    y: np.ndarray = field(default_factory=lambda: np.empty(0))

    def add(self, X: np.ndarray, y: np.ndarray, window: int) -> None:
        """Rows of window number ``window``."""
        keys = np.random.default_rng([self.seed, window]).random(len(y))
        good = np.flatnonzero(keys < (self.keys.max() if len(self.keys) == self.most else 1.0))
        self.seen += len(y)
        first = not len(self.keys)
        joined = np.concatenate([self.keys, keys[good]])
        X, y = (X[good], y[good]) if first else (np.concatenate([self.X, X[good]]), np.concatenate([self.y, y[good]]))
        kept = np.sort(np.argsort(joined, kind="stable")[: self.most])  # in the order of the table
        self.keys, self.X, self.y = joined[kept], X[kept], y[kept]


@dataclass(frozen=True, eq=False)
class Held:
    """A held-out task, its rows in a random order."""

    name: str
    X: np.ndarray
    y: np.ndarray


@dataclass
class Heldout:
    """At most ``most`` of the held-out tasks that were added: those whose name hashes lowest."""

    most: int = 100
    seed: int = 0
    seen: int = 0
    kept: list[tuple[int, Held]] = field(default_factory=list)

    def add(self, tasks: list[Task]) -> None:
        """Some more of them."""
        self.seen += len(tasks)
        for task in tasks:
            name = id_text(task.name)
            key = int.from_bytes(hashlib.sha256(f"{self.seed}/{name}".encode()).digest()[:8])
            if len(self.kept) >= self.most and not any(key < other for other, _ in self.kept[-1:]):
                continue
            order = np.random.default_rng([self.seed, key]).permutation(task.rounds)[:LONGEST]
            self.kept.append((key, Held(name, np.asarray(task.X)[order], targets(task)[order])))
            self.kept = sorted(self.kept, key=lambda pair: pair[0])[: self.most]

    @property
    def tasks(self) -> list[Held]:
        """Those kept."""
        return [held for _, held in self.kept]
