"""What MetaClassifier and MetaRegressor share: everything but what is predicted."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import _check_feature_names_in

from fmrl.core.rules.meta import End
from fmrl.core.rules.similarity import AverageDeviation
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError, refuse_other_names, warn
from fmrl.estimators import store
from fmrl.estimators.first_stream import FirstTask
from fmrl.estimators.rows import joined
from fmrl.estimators.running import Unbroken
from fmrl.estimators.stream import OpenTask, rows_of
from fmrl.estimators.stream_kinds import open_task
from fmrl.estimators.tasks_seen import TasksSeen
from fmrl.tables.encoder import Column, Encoder
from fmrl.tables.features import add_features
from fmrl.tables.targets import (
    drop_zero_weight,
    group_by_task,
    refuse_huge,
    task_ids,
    warn_of_weights,
)
from fmrl.theory.certificate import Certificate, certify
from fmrl.theory.similarity import SimilarityReport, similarity_report


class Meta(TasksSeen):
    """What the two estimators share: everything but what is predicted."""

    # Metadata routing: what is called task is ours, unless the user says otherwise.
    __metadata_request__fit: ClassVar = {"task": True}
    __metadata_request__partial_fit: ClassVar = {"task": True}
    __metadata_request__predict: ClassVar = {"task": True}
    __metadata_request__score: ClassVar = {"task": True}

    def __init__(
        self, *, within: Any = None, update: Any = None, meta: Any = None, similarity: Any = None,
        radius: float | None = None, fit_intercept: bool = True, common: Any = "auto",
        environment: Any = "auto", features: Any = None, scoring: str | None = None,
        random_state: int | None = 0, store: str | os.PathLike | None = None,
    ):  # fmt: skip
        self.within = within
        self.update = update
        self.meta = meta
        self.similarity = similarity
        self.radius = radius
        self.fit_intercept = fit_intercept
        self.common = common
        self.environment = environment
        self.features = features
        self.scoring = scoring
        self.random_state = random_state
        self.store = store

    def fit(
        self, X: Any, y: Any, task: Any = None, sample_weight: Any = None, **others: Any
    ) -> Self:
        """Learn across tasks, from the beginning: what an earlier fit learned is forgotten.

        Models and predictions need what is learned here. The run of Algorithm 2, with tasks in the
        order in which they first appear and rows of a task in theirs, is played when something of
        it is first asked for (``history_``, ``state_``, ``certificate_``, `task`, `save`, …); at
        once where a rule or ``store=`` was given.

        Args:
            X: Rows [n, f], as an array or a data frame: numbers, text, categories, dates, gaps.
            y: Labels or numbers [n].
            task: Which task a row belongs to [n], or the name of the column of X that says so and
                is then no feature; without it all rows are one task.
            sample_weight: How much each row counts [n], 2 in a task's model as two such rows. Let
                them average 1 where they only set rows against each other.
            others: None; ``groups=`` is refused by a TypeError that says what it is called here.
        """
        if others:
            refuse_other_names("fit", others)
            raise TypeError(f"fit() got an unexpected keyword argument {next(iter(others))!r}")
        with self._lock, self._kept():
            X, y, weight, task = self._check(X, y, sample_weight, task, reset=True)
            weight, X, y, ids = drop_zero_weight(weight, X, y, task_ids(task, len(y)))
            warn_of_weights(weight)
            self._reset()
            y = self._target(y, None, first=True)
            tasks = group_by_task(self._loss(), X, y, weight, ids)
            if len(tasks) == len(y) >= 20:
                warn("every row is a task of its own: is task= the id of a row?")
            self._begin(tasks)
            self._learn(tasks)
            self._play(tasks, later=True)
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, task: Any = None, sample_weight: Any = None
    ) -> Self:
        """Learn from one more task, or add rows to one that is known, which is then not played a
        second time: `update`.

        What was learned across tasks is learned again, from the latest tasks, when as many have
        come as it was learned from, and beyond 64 when 32 to 48 have.

        Args:
            X: The task's rows [n, f].
            y: Their labels or numbers [n].
            classes: All labels, in the first call.
            task: The task's name, or the column of X that holds it (default: a number).
            sample_weight: How much each row counts [n].
        """
        with self._lock, self._kept(begun=True):
            first = not self._begun
            X, y, weight, task = self._check(X, y, sample_weight, task, reset=first, one=True)
            weight, X, y = drop_zero_weight(weight, X, y)
            warn_of_weights(weight)
            if first:
                self._reset()
            name = self._name(task)
            y = self._target(y, classes, first=first)
            if not first:
                refuse_huge(X, y)
            one = group_by_task(self._loss(), X, y, weight, None)
            one.names[0] = name  # type: ignore[index]
            if not first and name in self._rows:
                with Unbroken():
                    self._add(one)
                return self
            if first:
                self._begin(one)
            self._play(one, observe=not first)
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
        with self._lock:
            self._reset()
            vars(self).pop("encoder_", None)
            if classes is not None:
                self.classes_ = np.unique(classes)
            self.n_features_in_ = tasks.X.shape[1]
            if features is not None:
                self.feature_names_in_ = np.array(features, dtype=object)
            if self.features is not None:
                names = features or [f"x{i}" for i in range(tasks.X.shape[1])]
                y = tasks.target.argmax(axis=1) if tasks.loss.outputs > 1 else tasks.target[:, 0]
                plain = Encoder(tuple(map(Column, names)))
                self.encoder_ = add_features(plain, self.features, tasks.X, y)
            tasks = self._widened(tasks)
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
        with self._lock:
            self._play(self._widened(tasks), keep)
        return self

    def relearn(self, tasks: Tasks, latest: Tasks) -> Self:
        """Learn again how tasks differ, after a run too long to be held: coordinates and the run
        stay as they are.

        Args:
            tasks: Some tasks, spread over the run, as in `begin`.
            latest: The last ones, which count where tasks drift.
        """
        with self._lock:
            self._fitted()
            self._pilot, self._fresh = self._widened(tasks), []
            last = set(latest.names)
            older = [i for i, name in enumerate(tasks.names) if name not in last]
            known = [tasks.take(np.array(older))] if older else []
            self._learn(self._widened(joined([*known, latest])), self.n_tasks_seen_)
        return self

    def _widened(self, tasks: Tasks) -> Tasks:
        """Tasks of a table's columns with those of ``features=``."""
        encoder = getattr(self, "encoder_", None)
        return tasks if encoder is None else replace(tasks, X=encoder.expand(tasks.X))

    def adapt(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """A fitted model of a new task from a few of its rows; this estimator stays as it is. The
        model is linear, around what all tasks share where ``common`` found that not to be.

        Args:
            X: Rows [n, f] with the features of `fit`; with none the model is the population's.
            y: Their labels or numbers [n].
            sample_weight: How much each row counts [n].

        Returns:
            A fitted `TaskClassifier` or `TaskRegressor`.
        """
        with self._lock:
            self._fitted()
            model = self._task_model(self.prior_)
        for name in {"n_features_in_", "feature_names_in_"} & vars(self).keys():
            setattr(model, name, getattr(self, name))
        return model._read_and_adapt(X, y, sample_weight, reset=False)

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
        self._fitted()
        if hasattr(self, "encoder_"):
            return np.array(self.encoder_.names, dtype=object)
        return _check_feature_names_in(self, input_features)

    def __sklearn_clone__(self) -> Self:
        """A copy that was not fitted, as searches and folds make them. Its rows are in memory: a
        store belongs to one estimator.
        """
        return super().__sklearn_clone__().set_params(store=None)  # type: ignore[misc]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def save(self, path: str | os.PathLike) -> None:
        """Write this estimator to one file (safetensors), whole or not at all. Rows that lie in a
        store stay there.
        """
        with self._lock:
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
            name: By which the model of the closed task is found, if it is to be. A task that is
                known gets the stream's rows and is not played a second time.
            classes: All labels, for a classifier that has seen no task.
        """
        with self._lock:
            if self._begun:
                if name is not None:
                    name = self._name(name)
                if classes is not None:
                    self._target(np.asarray(classes), classes, first=False)
                return open_task(self, rounds, name)
        if classes is None and isinstance(self, ClassifierMixin):
            fix = "name all labels: task(classes=[…])"
            raise FMRLError("this classifier has seen no task", fix=fix)
        return FirstTask(self, name, classes)

    def _close(self, task: OpenTask, end: End) -> None:
        """A stream has ended: move the meta-level, and remember what it cost. The caller holds the
        lock.
        """
        named = task.name is not None
        with Unbroken() if named else nullcontext():
            known, state = named and task.name in self._rows, self._state
            if not known:
                own = state if end.side is None else state._replace(phi=task.phi)
                state = self._history.algo.advance(own, end)
                rule = self._history.algo.similarity
                if isinstance(rule, AverageDeviation) and not rule.epsilon:
                    # A stream's last action lies as far from phi as the guess let it, and would
                    # shrink the guess for ever: whole tasks alone move it.
                    state = state._replace(guess=own.guess, similarity=own.similarity)
            streams = self.streams_.with_task(task.rounds, task.loss, task._bracket())
            if not named:
                self._ended(task)
            else:
                self._add(rows := rows_of([task]))
                if not known:
                    self._observe(rows)
            self.streams_, self._state = streams, state

    @property
    def certificate_(self) -> Certificate:
        """What is proved about the regret of this run."""
        with self._lock:
            self._fitted()
            return certify(self.history_)

    @property
    def similarity_report_(self) -> SimilarityReport:
        """How similar the tasks were, and what that is worth."""
        with self._lock:
            self._fitted()
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
        with self._lock:
            if not self._begun:
                raise AttributeError("coef_ and intercept_ are there after fit")
            prior = self.prior_
        theta = prior.middle().theta.ravel()
        coef, intercept = prior.coordinates.model(theta, prior.loss.outputs)
        return self._shape(coef[:, : prior.features], intercept)

    def _shape(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, Any]:
        return coef, intercept
