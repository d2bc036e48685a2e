"""The first task of an estimator that has seen none, row by row."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.stream import OpenTask
from fmrl.estimators.stream_setting import numbers

if TYPE_CHECKING:
    from fmrl.estimators.base import Meta


class FirstTask(OpenTask):
    """A task of an estimator that has seen none: nothing is known of the scale yet, so its rows
    are kept and learned at the end.

    Until then it predicts the commonest label so far, or the mean.
    """

    def __init__(self, owner: Meta, name: Any, classes: Any):
        self.name, self.rounds, self.open = name, 0, True
        self._owner, self._given, self._rows, self._labels = owner, classes, [], []
        self.loss = math.nan  # nothing is suffered before there is a model

    def predict(self, x: Any) -> Any:
        """The commonest label so far, or the mean; the first class, or 0, before any."""
        if self._given is None:
            return float(np.mean(self._labels)) if self._labels else 0.0
        if not self._labels:
            return np.asarray(self._given)[0]
        values, counts = np.unique(self._labels, return_counts=True)
        return values[counts.argmax()]

    def predict_proba(self, x: Any) -> np.ndarray:
        """How often each class came so far, with one more of each."""
        if self._given is None:
            raise FMRLError("a regressor has no probabilities", fix="use predict")
        classes = np.unique(self._given)
        counts = np.array([1 + self._labels.count(c) for c in classes.tolist()])
        return counts / counts.sum()

    def learn(self, x: Any, y: Any) -> float:
        """Keep the row; nothing is suffered before there is a model."""
        if not self.open:
            raise FMRLError("this task is closed", fix="open another: estimator.task()")
        row = numbers(x)
        good = row is not None and row.ndim == 1 and not np.isinf(row).any()
        if not good or (self._rows and row.shape != self._rows[0].shape):
            what = "a row must be a vector of finite numbers, as many as before"
            raise FMRLError(what, round=self.rounds)
        if self._given is not None and not any(np.ndim(y) == 0 and y == c for c in self._given):
            what = f"the label {y!r} is not one of the classes {list(self._given)[:10]}"
            raise FMRLError(what, round=self.rounds)
        if self._given is None and not (isinstance(y, Real) and math.isfinite(y)):
            raise FMRLError(f"y is {y!r}", round=self.rounds, fix="give a finite number")
        self._rows.append(row)
        self._labels.append(y)
        self.rounds += 1
        return math.nan

    def play(self, x: Any, y: Any) -> Any:
        """`predict`, then `learn`."""
        answer = self.predict(x)
        self.learn(x, y)
        return answer

    @property
    def rows(self) -> Tasks:
        """Not there before the end."""
        what = "nothing is known of the classes' or the target's scale in the first task"
        raise FMRLError(what, fix="close it first")

    @property
    def theta(self) -> np.ndarray:
        """Not there before the end."""
        raise FMRLError("there is no model in the first task", fix="close it first")

    @property
    def regret(self) -> tuple[float, float]:
        """Unknown."""
        return math.nan, math.nan

    def close(self) -> None:
        """Learn the task from its rows."""
        if self.open and self.rounds:
            known = self._given is None or hasattr(self._owner, "history_")
            given = {} if known else {"classes": self._given}
            X, y = np.array(self._rows), np.array(self._labels)
            self._owner.partial_fit(X, y, task=self.name, **given)
        self.open = False
