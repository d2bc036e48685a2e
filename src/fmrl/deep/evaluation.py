"""The result of an evaluation: a mean over tasks with its interval, and what it is a mean of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fmrl.errors import FMRLError


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """``tasks`` [count] holds one number for each test task: its share of right answers, or its
    loss on the queries, as ``what`` says.

    >>> Evaluation(torch.tensor([0.0, 1.0, 1.0, 1.0]), "inductive", 5)
    Evaluation(accuracy 0.7500 [0.2600, 1.2400], inductive, 4 tasks, 5 steps)
    """

    tasks: torch.Tensor
    protocol: str
    steps: int
    what: str = "accuracy"  # or "loss"

    @property
    def mean(self) -> float:
        """Mean over tasks."""
        return float(self.tasks.mean())

    @property
    def accuracy(self) -> float:
        """Mean share of right answers."""
        return self._only("accuracy")

    @property
    def loss(self) -> float:
        """Mean loss on the queries."""
        return self._only("loss")

    @property
    def error(self) -> float:
        """Standard error of the mean; NaN for a single task, which has none."""
        return (
            float(self.tasks.std(correction=1)) / math.sqrt(len(self.tasks))
            if len(self.tasks) > 1
            else math.nan
        )

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval over tasks, mean ± 1.96 standard errors; NaN for a single task."""
        return self.mean - 1.96 * self.error, self.mean + 1.96 * self.error

    def __repr__(self):
        low, high = self.interval
        spread = f"[{low:.4f}, {high:.4f}]" if len(self.tasks) > 1 else "without an interval"
        tasks = f"{len(self.tasks)} task{'s' * (len(self.tasks) > 1)}"
        return f"Evaluation({self.what} {self.mean:.4f} {spread}, {self.protocol}, {tasks}, {self.steps} steps)"

    def __eq__(self, other):
        if not isinstance(other, Evaluation):
            return NotImplemented
        mine, theirs = ((e.protocol, e.steps, e.what) for e in (self, other))
        return mine == theirs and torch.equal(self.tasks, other.tasks)

    __hash__ = None

    def _only(self, what: str) -> float:
        if self.what != what:
            raise FMRLError(
                f"this evaluation measured the {self.what}",
                fix=f"see .{self.what}, or evaluate with what={what!r}",
            )
        return self.mean
