"""What MetaClassifier and MetaRegressor share: everything but what is predicted."""

from __future__ import annotations

import os
import threading
import warnings
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from fmrl.core.rules.meta import End
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators import store
from fmrl.estimators.calibration import margins
from fmrl.estimators.encoding import as_numpy, by_task, read
from fmrl.estimators.inputs import grouped, task_ids, weighed
from fmrl.estimators.learning import Learning
from fmrl.estimators.population import Posterior
from fmrl.estimators.stream import FirstTask, OpenTask
from fmrl.theory.certificate import Certificate, certify
from fmrl.theory.similarity import SimilarityReport, similarity_report

_ONE_AT_A_TIME = (
    threading.Lock()
)  # streams may end in several threads; ending one moves what all share


class Asked(NamedTuple):
    """Predictions of rows, in the prior's coordinates."""

    margins: np.ndarray  # [n, outputs]
    variance: np.ndarray | None  # [n, outputs] of the margins, if it was asked for
    place: np.ndarray  # [n] which choice of the rule they are by, where it was


class Meta(Learning):
    """What the two estimators share: everything but what is predicted."""

    _task_model: type
    # Metadata routing: what is called task is ours, unless the user says otherwise.
    __metadata_request__fit: ClassVar = {"task": True}
    __metadata_request__partial_fit: ClassVar = {"task": True}
    __metadata_request__predict: ClassVar = {"task": True}
    __metadata_request__score: ClassVar = {"task": True}

    def __init__(
        self, *, within: Any = None, update: Any = None, meta: Any = None, similarity: Any = None,
        radius: float | None = None, fit_intercept: bool = True, common: Any = "auto",
        environment: Any = "auto", scoring: str | None = None, random_state: int | None = 0,
    ):  # fmt: skip
        self.within = within
        self.update = update
        self.meta = meta
        self.similarity = similarity
        self.radius = radius
        self.fit_intercept = fit_intercept
        self.common = common
        self.environment = environment
        self.scoring = scoring
        self.random_state = random_state

    def fit(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> Self:
        """Learn across tasks, from the beginning: what an earlier fit learned is forgotten.

        Tasks are played in the order in which they first appear, rows of a task in theirs.

        Args:
            X: Rows [n, f], as an array or a data frame: numbers, text, categories, dates, gaps.
            y: Labels or numbers [n].
            task: Which task a row belongs to [n], or the name of the column of X that says so and
                is then no feature; without it all rows are one task.
            sample_weight: How much each row counts [n].
        """
        X, y, weight, task = self._check(X, y, sample_weight, task, reset=True)
        weight, X, y, ids = weighed(weight, X, y, task_ids(task, len(y)))
        self._reset()
        y = self._target(y, None, first=True)
        tasks = grouped(self._loss(), X, y, weight, ids)
        self._begin(tasks)
        self._learn(tasks)
        self._play(tasks)
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, task: Any = None, sample_weight: Any = None
    ) -> Self:
        """Learn from one more task.

        What was learned across tasks is learned again, from the latest tasks, whenever as many have
        come as it was learned from.

        Args:
            X: The task's rows [n, f].
            y: Their labels or numbers [n].
            classes: All labels, in the first call.
            task: The task's name, or the column of X that holds it (default: a number).
            sample_weight: How much each row counts [n].
        """
        first = not hasattr(self, "history_")
        X, y, weight, task = self._check(X, y, sample_weight, task, reset=first, one=True)
        weight, X, y = weighed(weight, X, y)
        if first:
            self._reset()
        name = self._name(task)
        self._new([name])
        y = self._target(y, classes, first=first)
        one = grouped(self._loss(), X, y, weight, None)
        one.names[0] = name
        if first:
            self._begin(one)
        else:
            self._observe(one)
        self._play(one)
        return self

    def begin(
        self, tasks: Tasks, *, classes: Any = None, features: list[str] | None = None,
        expected: int | None = None,
    ) -> Self:  # fmt: skip
        """Choose coordinates and rule from the first tasks of a run too long to be held; `play`
        then plays them and the rest.

        Args:
            tasks: Some tasks, targets encoded by the positions of the sorted ``classes``.
            classes: The labels; None for a regression.
            features: The names of the columns.
            expected: How many tasks will come, which decides what the history can afford to keep.
        """
        self._reset()
        vars(self).pop("encoder_", None)
        if classes is not None:
            self.classes_ = np.unique(classes)
        self.n_features_in_ = tasks.X.shape[1]
        if features is not None:
            self.feature_names_in_ = np.array(features, dtype=object)
        self._begin(tasks, expected)
        self._learn(tasks)
        return self

    def play(self, tasks: Tasks, *, keep: bool = True) -> Self:
        """Play further tasks.

        Called with `WINDOW` tasks at a time (the last time with fewer), a run gives the same bits
        wherever it was interrupted.

        Args:
            tasks: As in `begin`.
            keep: Whether to hold their rows and names. Without them memory stays bounded, `model`
                does not know the tasks, and the caller sees to it that none comes twice.
        """
        self._play(tasks, keep)
        return self

    def adapt(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """An ordinary linear model of a new task from a few of its rows; this estimator stays as
        it is.

        Args:
            X: Rows [n, f] with the features of `fit`.
            y: Their labels or numbers [n].
            sample_weight: How much each row counts [n].

        Returns:
            A fitted `TaskClassifier` or `TaskRegressor`.
        """
        check_is_fitted(self, "history_")
        X = by_task(X, None, self._task_column)[0]
        validate_data(
            self, X, reset=False, skip_check_array=True
        )  # the features must be those of fit
        return self._task_model(self.prior_).fit(X, as_numpy(y), sample_weight)

    @property
    def _task_column(self) -> str | None:
        """The column that named the tasks in `fit`."""
        encoder = getattr(self, "encoder_", None)
        return encoder.task if encoder else None

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns that models have coefficients for: those of `fit`, encoded.

        Args:
            input_features: Not used; the names are those of `fit`.
        """
        check_is_fitted(self, "history_")
        if hasattr(self, "encoder_"):
            return np.array(self.encoder_.names, dtype=object)
        return _check_feature_names_in(self, input_features)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def model(self, task: Any) -> Any:
        """The model of a task seen, by its id."""
        check_is_fitted(self, "history_")
        name = task.item() if isinstance(task, np.generic) else task
        if name not in self._rows:
            fix = "adapt to some of its rows: adapt(X, y)"
            raise FMRLError(f"the task {name!r} was not seen", fix=fix)
        rows = self._rows.take([name])
        found = self.prior_.adapt(rows, spread=True)
        model = self._task_model(self.prior_)
        model._set(Posterior(found.theta[0], found.spread[0]), float(rows.mass[0]))
        if hasattr(self, "feature_names_in_"):
            model.feature_names_in_ = self.feature_names_in_
        return model

    def save(self, path: str | os.PathLike) -> None:
        """Write this estimator to one file (safetensors), whole or not at all."""
        store.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Read an estimator written by `save`; a damaged or foreign file is refused."""
        return store.load(path, cls)

    def task(
        self, rounds: int | None = None, *, name: Any = None, classes: Any = None
    ) -> OpenTask | FirstTask:
        """Open a task whose rows come one at a time; any number may be open at once.

        Args:
            rounds: How many rows are expected.
            name: By which the model of the closed task is found, if it is to be.
            classes: All labels, for a classifier that has seen no task.
        """
        if hasattr(self, "history_"):
            if name is not None:
                self._new([name := self._name(name)])
            if classes is not None:
                self._target(np.asarray(classes), classes, first=False)
            return OpenTask(self, rounds, name)
        if classes is None and isinstance(self, ClassifierMixin):
            fix = "name all labels: task(classes=[…])"
            raise FMRLError("this classifier has seen no task", fix=fix)
        return FirstTask(self, name, classes)

    def _close(self, task: OpenTask, end: End) -> None:
        """A stream has ended: move the meta-level, and remember what it cost."""
        with _ONE_AT_A_TIME:
            rows = task.rows
            if task.name is not None:
                self._new([task.name])
                self._rows.add(rows)
            self._observe(rows)
            self.streams_ = self.streams_.with_task(task.rounds, task.loss, task.regret)
            state = self.state_
            if end.side is not None:
                state = state._replace(phi=task.phi)
            self.state_ = self.history_.algo.advance(state, end)

    @property
    def certificate_(self) -> Certificate:
        """What is proved about the regret of this run."""
        check_is_fitted(self, "history_")
        return certify(self.history_, loss=self.prior_.loss)

    @property
    def similarity_report_(self) -> SimilarityReport:
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
        prior = self.prior_
        theta = prior.middle().theta.ravel()
        coef, intercept = prior.coordinates.model(theta, prior.loss.outputs)
        return self._shape(coef[:, : prior.features], intercept)

    def _shape(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, Any]:
        return coef, intercept

    def _asked(self, X: Any, task: Any, spread: bool) -> Asked:
        """What is predicted for rows under the models of their tasks; of the population, where no
        task is given or the task is unknown.
        """
        check_is_fitted(self, "history_")
        X, task, _ = by_task(X, task, self._task_column)
        prior, rows = self.prior_, self.prior_.rows(read(self, X))
        if task is None:
            names, which = [None], np.zeros(len(rows), dtype=int)
        else:
            found, which = np.unique(task_ids(task, len(rows)), return_inverse=True)
            names = found.tolist()
            self._warn_of([name for name in names if name not in self._rows])
        known = np.array([task is not None and name in self._rows for name in names])
        middle, k, w = prior.middle(), prior.loss.outputs, rows.shape[1]
        z, variance = np.empty((len(rows), k)), np.empty((len(rows), k)) if spread else None
        place, most = np.zeros(len(names), dtype=int), max(1, (1 << 21) // (k * w * w))
        order = np.argsort(which, kind="stable")
        ends = np.searchsorted(which[order], np.arange(len(names) + 1))
        for first in range(0, len(names), most):
            last = min(first + most, len(names))
            own, some = order[ends[first] : ends[last]], slice(first, last)
            models = self._models_of(names[some], known[some], middle, spread, place[some])
            for i in range(0, len(own), most):
                part = own[i : i + most]
                at = which[part] - first
                wide = None if models.spread is None else models.spread[at]
                said, v = margins(rows[part, None], Posterior(models.theta[at], wide))
                z[part] = said[:, 0]
                if variance is not None:
                    variance[part] = v[:, 0]
        return Asked(z, variance, place[which])

    def _models_of(
        self, names: list, known: np.ndarray, middle: Posterior, spread: bool, place: np.ndarray
    ) -> Posterior:
        """Models of some tasks; fills in which choice of the rule each is by."""
        theta = np.repeat(middle.theta, len(names), axis=0)
        wide = np.repeat(middle.spread, len(names), axis=0) if spread else None
        if known.any():
            seen = [name for name, there in zip(names, known, strict=True) if there]
            if wide is None:
                theta[known] = self._thetas(seen)
            else:
                rows = self._rows.take(seen)
                theta[known], wide[known] = self.prior_.adapt(rows, spread=True)
                place[known] = self.prior_.rule.places(rows.mass)
        return Posterior(theta, wide)

    def _warn_of(self, unknown: list) -> None:
        """Say once that tasks are predicted by the population's model."""
        if unknown and not self._warned:
            self._warned = True
            what = f"the task {unknown[0]!r} was not seen"
            if len(unknown) > 1:
                what += f", nor were {len(unknown) - 1} others"
            text = (
                f"{what}: predicted as a task of which nothing is known; adapt(X, y) uses its rows"
            )
            warnings.warn(text, stacklevel=4)
