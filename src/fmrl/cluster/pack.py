"""Pack: the tasks of one block as four arrays, so that a million tasks are no million Python
objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fmrl.core.losses import Loss
from fmrl.core.run import ELEMENTS, MOST
from fmrl.core.tasks import Rounds, Task
from fmrl.errors import FMRLError


@dataclass(frozen=True, eq=False)
class Pack:
    """n tasks one after another; ragged tasks need no padding here.

    >>> from fmrl.core.losses import Squared
    >>> pack = Pack.of([Task([[1.0], [2.0]], [0.5, 1.0], loss=Squared()), Task([[3.0]], [1.5], loss=Squared())])
    >>> len(pack), pack.starts.tolist(), [game.X.shape for _, game in pack.games(np.arange(2))]
    (2, [0, 2, 3], [(1, 1, 1), (1, 2, 1)])
    """

    loss: Loss
    X: np.ndarray  # [N, f] the rows of all tasks
    target: np.ndarray  # [N, outputs]
    starts: np.ndarray  # [n + 1] where tasks begin, and N
    names: np.ndarray  # [n]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def dim(self) -> int:
        """Length of theta."""
        return self.loss.outputs * self.X.shape[1]

    @property
    def lengths(self) -> np.ndarray:
        """m_t of every task, [n]."""
        return np.diff(self.starts)

    @classmethod
    def of(cls, tasks: Sequence[Any], first: int = 0) -> Pack:
        """From Task values of one loss, width and dtype, as NumPy arrays. first: the number of
        tasks[0], for messages.
        """
        for i, task in enumerate(tasks):
            if not isinstance(task, Task):
                raise FMRLError(
                    f"{type(task).__name__} cannot be sent to a cluster",
                    task=first + i,
                    fix="give Task values",
                )
            if not isinstance(task.X, np.ndarray):
                raise FMRLError(
                    "tasks on a cluster are NumPy arrays",
                    task=first + i,
                    fix="convert them, or use engine='local'",
                )
            one = tasks[0]
            if (task.loss, task.X.shape[1], task.X.dtype) != (
                one.loss,
                one.X.shape[1],
                one.X.dtype,
            ):
                raise FMRLError("tasks on a cluster need one loss, width and dtype", task=first + i)
        games = [task.open() for task in tasks]
        names = [first + i if task.name is None else task.name for i, task in enumerate(tasks)]
        return cls(
            tasks[0].loss,
            np.concatenate([g.X for g in games]),
            np.concatenate([g.target for g in games]),
            np.concatenate([[0], np.cumsum([g.length for g in games])]),
            np.array(names if len({type(n) for n in names}) == 1 else [str(n) for n in names]),
        )

    def take(self, positions: np.ndarray) -> Pack:
        """The tasks at ``positions`` alone."""
        lengths = self.lengths[positions]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        rows = np.repeat(self.starts[positions] - starts[:-1], lengths) + np.arange(starts[-1])
        return Pack(self.loss, self.X[rows], self.target[rows], starts, self.names[positions])

    def games(self, positions: np.ndarray) -> Iterator[tuple[np.ndarray, Rounds]]:
        """The tasks at ``positions`` as stacked games, tasks of similar length together, each small
        enough to stay in cache.
        """
        lengths = self.lengths[positions]
        kinds = np.frexp(lengths)[1]  # bit length, as `run` groups them
        for kind in np.unique(kinds):
            of_kind = np.flatnonzero(kinds == kind)
            longest = int(lengths[of_kind].max())
            size = max(1, min(MOST, ELEMENTS // max(1, longest * self.X.shape[1])))
            for i in range(0, len(of_kind), size):
                places = of_kind[i : i + size]
                yield places, self._game(positions[places])

    def _game(self, positions: np.ndarray) -> Rounds:
        n, lengths, begins = len(positions), self.lengths[positions], self.starts[positions]
        longest = int(lengths.max())
        rounds = lengths.astype(self.X.dtype)
        if (lengths == longest).all():
            if (np.diff(begins) == longest).all():  # side by side already: a view
                rows = slice(begins[0], begins[-1] + longest)
            else:
                rows = (begins[:, None] + np.arange(longest)).ravel()
            X, target = (a[rows].reshape(n, longest, -1) for a in (self.X, self.target))
            return Rounds(self.loss, X, target, np.ones((n, longest), self.X.dtype), rounds)
        counts = np.arange(longest) < lengths[:, None]
        rows = np.where(counts, begins[:, None] + np.arange(longest), 0)
        X, target = (a[rows] * counts[..., None] for a in (self.X, self.target))
        return Rounds(
            self.loss, X, target.astype(self.target.dtype), counts.astype(self.X.dtype), rounds
        )

    def rows_of(self, positions: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the rounds [len(positions), length] of padded games lie among the rows, and which
        of them count.
        """
        counts = np.arange(length) < self.lengths[positions][:, None]
        return (self.starts[positions][:, None] + np.arange(length))[counts], counts
