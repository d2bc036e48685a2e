"""One's own tasks, given as arrays."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fmrl.deep.batches import Queried, mini_batches, table, whole
from fmrl.errors import FMRLError


class Arrays:
    """A fixed list of tasks (X, y), or (X, y, Xq, yq) with queries, of any sizes; task e is number
    e modulo the list's length.

    X [n, ...] and y [n] labels 0, 1, … or [n] or [n, k] numbers. Queries are what `evaluate` judges
    on and what `MAML` learns from.

    >>> tasks = Arrays([(np.zeros((3, 4)), [0, 1, 0]), (np.ones((9, 4)), [0] * 9)], batch=2, steps=3)
    >>> tasks.draw(0, 2)[0].amax((1, 2)).tolist()
    [2, 11]
    >>> tasks
    Arrays(2 tasks of 3 to 9 samples (4,), batch=2, steps=3)
    """

    def __init__(
        self, tasks: Sequence[tuple], *, batch: int, steps: int, seed: int = 0, device: Any = "cpu"
    ):
        whole(1, batch=batch, steps=steps)
        tasks = list(tasks)
        if not tasks:
            raise FMRLError("there are no tasks")
        lengths = {len(t) if isinstance(t, (tuple, list)) else 0 for t in tasks}
        if lengths not in ({2}, {4}):
            raise FMRLError(
                "every task is (X, y), or every task is (X, y, Xq, yq)",
                fix="give a list of such tuples",
            )
        self.batch, self.steps, self.seed, self.device = batch, steps, seed, device
        parts = [_pair(t, *task[:2], "") for t, task in enumerate(tasks)]
        asked = [_pair(t, *task[2:], "q") for t, task in enumerate(tasks)] if lengths == {4} else []
        for i, name in ((0, "X"), (1, "y")):
            first = parts[0][i].shape[1:]
            for n, pair in enumerate([*parts, *asked]):
                if pair[i].shape[1:] != first:
                    shapes = f"{tuple(pair[i].shape[1:])}, that of task 0 {tuple(first)}"
                    raise FMRLError(f"a sample of {name} has shape {shapes}", task=n % len(parts))
        self.sizes, self.asked = [len(X) for X, _ in parts], [len(X) for X, _ in asked]
        self.starts = np.cumsum(
            [0, *self.sizes, *self.asked]
        )  # of the tasks' samples, then of their queries
        self.inputs = torch.cat([X.to(device) for X, _ in [*parts, *asked]])
        self.targets = torch.cat([y.to(device) for _, y in [*parts, *asked]])
        self.labels = (
            self.targets.min().item(),
            self.targets.max().item(),
        )  # what the network must have outputs for

    def __repr__(self):
        few, many = min(self.sizes), max(self.sizes)
        sizes = f"{few}" if few == many else f"{few} to {many}"
        queries = f", at least {self.queries} queries each" if self.asked else ""
        shape = tuple(self.inputs.shape[1:])
        return f"Arrays({len(self.sizes)} tasks of {sizes} samples {shape}{queries}, batch={self.batch}, steps={self.steps})"

    @property
    def queries(self) -> int:
        """Queries of the task that has fewest; 0 when tasks have none."""
        return min(self.asked, default=0)

    def draw(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and targets of tasks ``start`` to ``start + count − 1``, [count, steps, batch(, …)]."""
        n, need = len(self.sizes), self.steps * self.batch
        rows = [
            int(self.starts[e % n])
            + mini_batches(e, (1, self.sizes[e % n]), need, self.seed, self.device)
            for e in range(start, start + count)
        ]
        index = torch.cat(rows).view(count, self.steps, self.batch)
        return index, self.targets[index]

    def queried(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor, list[Queried]]:
        """`draw`, and all samples and queries of those tasks, tasks of equal sizes together."""
        n, shapes = len(self.sizes), {}
        for i in range(count):
            e = (start + i) % n
            shapes.setdefault((self.sizes[e], self.asked[e]), []).append((i, e))
        found = []
        for pairs in shapes.values():
            support, query = (
                torch.stack([self._rows(first + e) for _, e in pairs]) for first in (0, n)
            )
            at = torch.tensor([i for i, _ in pairs], device=self.device)
            found.append(Queried(at, support, query, self.targets[query]))
        return *self.draw(start, count), found

    def with_steps(self, steps: int) -> Arrays:
        """The same tasks, cut into ``steps`` mini-batches."""
        other = copy.copy(self)
        other.steps = steps
        return other

    def _rows(self, part: int) -> torch.Tensor:
        return torch.arange(int(self.starts[part]), int(self.starts[part + 1]), device=self.device)


def _pair(task: int, X: Any, y: Any, mark: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one task as tensors of one length; labels become int64."""
    X, y = table(X, f"X{mark}", task), table(y, f"y{mark}", task)
    if len(X) != len(y):
        raise FMRLError(f"there are {len(X)} inputs but {len(y)} targets", task=task)
    if not len(X):
        raise FMRLError("there are no samples", task=task, fix="leave the task out")
    return X, y if y.is_floating_point() else y.to(torch.int64)
