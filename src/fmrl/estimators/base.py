"""What MetaClassifier and MetaRegressor share: everything but what is predicted."""

from __future__ import annotations

import os
import threading
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fmrl.core.rules.meta import End
from fmrl.errors import FMRLError
from fmrl.estimators import store
from fmrl.estimators.inputs import as_numpy, read, task_ids, weighed
from fmrl.estimators.pack import Table, table
from fmrl.estimators.run import PILOTS, Running
from fmrl.estimators.stream import FirstTask, OpenTask, Streams
from fmrl.theory.certificate import Certificate, certify
from fmrl.theory.similarity import SimilarityReport, similarity_report

_ONE_AT_A_TIME = (
    threading.Lock()
)  # streams may be played by several threads; closing one moves what all share


class Meta(Running):
    """What the two estimators share: everything but what is predicted."""

    _task_model: type

    def __init__(
        self,
        *,
        within: Any = None,
        update: Any = None,
        meta: Any = None,
        similarity: Any = None,
        radius: float | None = None,
        fit_intercept: bool = True,
        random_state: int | None = 0,
    ):
        self.within = within
        self.update = update
        self.meta = meta
        self.similarity = similarity
        self.radius = radius
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def fit(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> Self:
        """Learn across tasks. X [n, f]; y [n]; task [n]: which task a row belongs to (none: one
        task); rows in play order.

        Tasks are played in the order in which they first appear.
        """
        X, y, weight = self._check(X, y, sample_weight, reset=True)
        weight, X, y, ids = weighed(weight, X, y, task_ids(task, len(y)))
        self._reset()
        tasks, names = table(X, self._target(y, None, first=True), weight, ids)
        self._begin(tasks)
        self._piloted = (
            PILOTS[-1] if self.rule_.choices else 1
        )  # these tasks chose better than a few more would
        self._play(tasks, names)
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, task: Any = None, sample_weight: Any = None
    ) -> Self:
        """Learn from one more task. task: its name (default: a number). classes: all labels, in the
        first call.

        Until fit or 64 such calls have chosen it, the rule is chosen again after 2, 4, 8, … of
        them."""
        first = not hasattr(self, "history_")
        X, y, weight = self._check(X, y, sample_weight, reset=first)
        weight, X, y = weighed(weight, X, y)
        if first:
            self._reset()
        name = self._name(task)
        self._new([name])
        tasks = Table(
            X, self._target(y, classes, first=first), weight, np.array([0]), np.array([len(y)])
        )
        if first:
            self._begin(tasks)
        if self._piloted < PILOTS[-1]:
            self._pilot.append(tasks)
            if len(self._pilot) in PILOTS and len(self._pilot) > self._piloted:
                self._consider()
        self._play(tasks, [name])
        return self

    def begin(
        self,
        tasks: Table,
        *,
        classes: Any = None,
        features: list[str] | None = None,
        expected: int | None = None,
    ) -> Self:
        """Choose the chart and the rule from the first tasks of a run too long to be held; `play`
        then plays them and the rest.

        tasks: rows whose y are positions among the sorted ``classes`` (numbers, for a regression).
        features: their names.
        expected: how many tasks will come, which decides what the history can afford to keep.
        """
        self._reset()
        if classes is not None:
            self.classes_ = np.unique(classes)
        self.n_features_in_ = tasks.X.shape[1]
        if features is not None:
            self.feature_names_in_ = np.array(features, dtype=object)
        self._begin(tasks, expected)
        self._piloted = PILOTS[-1]
        return self

    def play(self, tasks: Table, names: list, *, keep: bool = True) -> Self:
        """Play further tasks. keep=False: hold neither their rows nor their names, so that memory
        stays bounded.

        `model` does not know such tasks then, and the caller sees to it that none comes twice.

        Called with `WINDOW` tasks at a time (the last time with fewer), a run gives the same bits
        wherever it was interrupted."""
        self._play(tasks, names)
        if not keep:
            self._waiting.pop()
            self._known.difference_update(names)
        return self

    def adapt(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """An ordinary linear model of a new task from a few of its rows; this estimator stays as it
        is.
        """
        check_is_fitted(self, "history_")
        X = as_numpy(X)
        validate_data(
            self, X, reset=False, skip_check_array=True
        )  # the features must be those of fit
        return self._task_model(self.prior_).fit(X, as_numpy(y), sample_weight)

    def model(self, task: Any) -> Any:
        """The model of a task seen, by its id."""
        check_is_fitted(self, "history_")
        theta = self._seen(task)
        model = self._task_model(self.prior_)
        model._set(theta)
        if hasattr(self, "feature_names_in_"):
            model.feature_names_in_ = self.feature_names_in_
        return model

    def save(self, path: str | os.PathLike) -> None:
        """Write this estimator to one file (safetensors), whole or not at all."""
        store.save(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Read an estimator written by `save`; a damaged or foreign file is refused."""
        return store.load(path, cls)

    def task(self, rounds: int | None = None, *, name: Any = None, classes: Any = None) -> OpenTask:
        """Open a task whose rows come one at a time; see `fmrl.estimators.stream`. Any number may
        be open at once.

        rounds: how many rows are expected. name: by which the model of the closed task is found, if
        it is to be. classes: all labels, for a classifier that has seen no task."""
        if name is not None:
            self._new([name := self._name(name)]) if hasattr(self, "history_") else None
        if hasattr(self, "history_"):
            self._target(np.asarray(classes), classes, first=False) if classes is not None else None
            return OpenTask(self, rounds, name)
        if classes is None and isinstance(self, ClassifierMixin):
            raise FMRLError(
                "this classifier has seen no task", fix="name all labels: task(classes=[…])"
            )
        return FirstTask(self, name, classes)

    def _close(self, task: OpenTask, end: End) -> None:
        """A stream has ended: move the meta-level, and remember what it cost."""
        low, high = task.regret
        with _ONE_AT_A_TIME:
            if task.name is not None:
                self._new([task.name])
                self._thetas[task.name] = end.theta
                self._known.add(task.name)
            old = self.streams_
            self.streams_ = Streams(
                old.tasks + 1,
                old.rounds + task.rounds,
                old.loss + task.loss,
                (old.regret[0] + low, old.regret[1] + high),
            )
            self.state_ = self.history_.algo.advance(self.state_, end)

    @property
    def certificate_(self) -> Certificate:
        """What is proved about the regret of this run."""
        check_is_fitted(self, "history_")
        return certify(self.history_, loss=self.prior_.loss)

    @property
    def similarity_(self) -> SimilarityReport:
        """How similar the tasks were, and what that is worth."""
        check_is_fitted(self, "history_")
        return similarity_report(self.history_)

    @property
    def coef_(self) -> np.ndarray:
        """Where tasks start, in the user's units: the coefficients before any row of a task is
        seen.
        """
        return self._start()[0]

    @property
    def intercept_(self) -> Any:
        """The intercept that belongs to ``coef_``."""
        return self._start()[1]

    def _start(self) -> tuple[np.ndarray, Any]:
        if not hasattr(self, "history_"):
            raise AttributeError("coef_ and intercept_ are there after fit")
        return self._shape(*self.chart_.model(self.prior_.start(0), self.prior_.loss.outputs))

    def _shape(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, Any]:
        return coef, intercept

    def _margins(self, X: Any, task: Any) -> np.ndarray:
        """Margins of every row under the model of its task (phi where no task is given), [n,
        outputs].
        """
        check_is_fitted(self, "history_")
        rows = read(self, X)
        outputs = self.prior_.loss.outputs
        if task is None:
            coef, intercept = self.chart_.model(self.prior_.start(0), outputs)
            return rows @ coef.T + intercept
        names, which = np.unique(task_ids(task, len(rows)), return_inverse=True)
        coef, intercept = self.chart_.model(np.stack([self._seen(name) for name in names]), outputs)
        out, most = np.empty((len(rows), outputs)), max(1, (1 << 20) // coef[0].size)
        for first in range(0, len(rows), most):
            part, own = slice(first, first + most), which[first : first + most]
            out[part] = (coef[own] @ rows[part, :, None])[..., 0] + intercept[own]
        return out
