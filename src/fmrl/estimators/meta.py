"""What MetaClassifier and MetaRegressor share: everything but what is predicted.

fit      a prior over tasks' models is learned from the rows of all tasks
adapt    the posterior of a new task given a few rows: an ordinary fitted model
update   more rows of tasks, known or new; `predict` uses each task's posterior
relearn  the prior once more, from all rows there are now
"""

from __future__ import annotations

import copy
import inspect
import itertools
import os
import sys
import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import r2_score
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import (
    _check_feature_names_in,
    _num_samples,
    check_is_fitted,
)

from fmrl.core.losses import Squared
from fmrl.core.prior.mixture import Posterior
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError, refuse_other_names, warn
from fmrl.estimators import storage
from fmrl.estimators.averaging import margins
from fmrl.estimators.calibration import COMMON
from fmrl.estimators.certificate import EstimatorCertificate, certify_folds, certify_prior
from fmrl.estimators.environment import Environment
from fmrl.estimators.many_models import TaskModels
from fmrl.estimators.prior import Margins, Prior, loss_of
from fmrl.estimators.prior_fit import Settings, learn_prior, pilot_size, seed_of
from fmrl.estimators.rows import TaskRows
from fmrl.estimators.rows_sqlite import SQLiteRows
from fmrl.estimators.stream import MAX_UPDATED_COLUMNS, NumberStream, TaskStream
from fmrl.tables.read import column_names, read_rows, split_task, validate_fit
from fmrl.tables.targets import (
    as_numpy,
    check_targets,
    check_weights,
    class_positions,
    drop_zero_weight,
    group_by_task,
    refuse_huge,
    refuse_overflow,
    task_ids,
    warn_of_weights,
)

RELEARN_UP_TO = 64  # tasks: a prior of fewer is learned again whenever the rows have doubled
ROWS_AT_A_TIME = 1 << 21  # numbers of models that are gathered for rows at once
LEARNED_STATE = {"_prior", "_rows", "_seen_rows", "_learned_rows", "_warned"}


class Meta(BaseEstimator):
    """What the two estimators share: everything but what is predicted."""

    _task_model: ClassVar[type]
    _numeric: ClassVar[bool]  # whether numbers are predicted, and not classes
    _rows: TaskRows
    _prior: Prior
    # Metadata routing: what is called task is ours, unless the user says otherwise.
    __metadata_request__fit: ClassVar = {"task": True}
    __metadata_request__partial_fit: ClassVar = {"task": True}
    __metadata_request__predict: ClassVar = {"task": True}
    __metadata_request__score: ClassVar = {"task": True}

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """A new estimator; names that other libraries have are refused in words."""
        refuse_other_names(cls.__name__, given)
        return super().__new__(cls)

    def __init__(
        self, task: str | None = None, *, common: Any = "auto", environment: Any = "auto",
        features: Any = None, fit_intercept: bool = True, scoring: str | None = None,
        random_state: Any = None, store: str | os.PathLike | None = None, verbose: bool = False,
    ):  # fmt: skip
        self.task = task
        self.common = common
        self.environment = environment
        self.features = features
        self.fit_intercept = fit_intercept
        self.scoring = scoring
        self.random_state = random_state
        self.store = store
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any, task: Any = None, sample_weight: Any = None, **others: Any
    ) -> Self:
        """Learn across tasks, from the beginning: what an earlier fit learned is forgotten.

        A `fit` that fails or is interrupted leaves the estimator as it was.

        Args:
            X: Rows [n, f], as an array or a data frame: numbers, text, categories, dates, gaps.
            y: Labels or numbers [n].
            task: Which task a row belongs to [n], or the name of the column of X that says so and
                is then no feature (default: the parameter ``task``); without either all rows are
                one task.
            sample_weight: How much each row counts [n], 2 in a task's model as two such rows. Let
                them average 1 where they only set rows against each other.
            others: None; ``groups=`` is refused by a TypeError that says what it is called here.
        """
        if others:
            refuse_other_names("fit", others)
            raise TypeError(f"fit() got an unexpected keyword argument {next(iter(others))!r}")
        with self._lock:
            new = self._new_estimator()
            new._fit(X, y, task, sample_weight)
            self._take_over(new)
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, task: Any = None, sample_weight: Any = None
    ) -> Self:
        """`update`, by the name that scikit-learn has for it. The first call begins the estimator
        with these rows; without ``task`` they are those of one more task.

        Args:
            X: Rows [n, f].
            y: Their labels or numbers [n].
            classes: All labels, in the first call.
            task: As in `update`; None for one more task, called by the next number.
            sample_weight: How much each row counts [n].
        """
        with self._lock:
            given = self.task if task is None else task
            if not self._is_fitted:
                new = self._new_estimator()
                new._fit(X, y, 0 if given is None else given, sample_weight, classes, many=False)
                self._take_over(new)
                return self
            if classes is not None:
                self._encode_targets(np.asarray(classes), classes, first=False)
            named = given is not None or self._task_column in column_names(X)
            return self.update(X, y, task if named else self._next_name(), sample_weight)

    def update(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> Self:
        """Give more rows to tasks, known or new.

        A task's model is then the same as if all its rows had come together: that of `adapt` on
        them. Calls that are refused change nothing. The prior is learned again when the rows have
        doubled, as long as it was learned from fewer than 64 tasks; beyond, when `relearn` is
        called. The first call of an estimator that was not fitted is `fit`.

        Args:
            X: Rows [n, f] with the features of `fit`.
            y: Their labels or numbers [n].
            task: Which task a row belongs to [n], the name of the column that says so (default:
                the column of `fit`), or one name for all rows.
            sample_weight: How much each row counts [n].
        """
        with self._lock:
            if not self._is_fitted:
                ids = None if task is None else self._ids_or_column(X, task)
                return self.fit(X, y, task=ids, sample_weight=sample_weight)
            tasks = self._read_tasks(X, y, self._ids_or_column(X, task), sample_weight)
            if not len(tasks):
                return self
            new = np.flatnonzero(~self._rows.known(tasks.names))
            if len(new) and (like := self._of_other_kind(tasks.names[new[0]])):
                warn(f"the task {tasks.names[new[0]]!r} is new{like}")
            self._add_rows(tasks)
        return self

    def relearn(self, background: bool = False) -> Any:
        """Learn the prior again from the rows of all tasks known now. Predictions go on with the
        old one meanwhile; the new one takes its place at once.

        Args:
            background: Return immediately, and learn in another thread.

        Returns:
            This estimator; with ``background`` a `concurrent.futures.Future` of it.
        """
        if background:
            with_one_thread = ThreadPoolExecutor(1)
            try:
                return with_one_thread.submit(self.relearn)
            finally:
                with_one_thread.shutdown(wait=False)
        with self._fitted():
            tasks, count, rows = self._tasks_to_learn_from(), len(self._rows), self._seen_rows
            settings, held = self._settings(), self._rows
        prior = learn_prior(tasks, settings, count)
        with self._lock:
            if self._rows is held:  # and it was not fitted anew meanwhile
                self._prior = prior
                self._learned_rows = rows
        return self

    def forget(self, task: Any) -> Self:
        """Forget a task: its rows and its model go. The prior stays as it is until it is learned
        again.

        Args:
            task: Its name.
        """
        with self._fitted():
            self._rows.forget(self._known_name(task))
        return self

    def adapt(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """A fitted model of a new task from a few of its rows; this estimator stays as it is. The
        model is linear, around what all tasks share where ``common`` found that not to be.

        Args:
            X: Rows [n, f] with the features of `fit`; with none the model is that of a task of
                which nothing is known.
            y: Their labels or numbers [n].
            sample_weight: How much each row counts [n].

        Returns:
            A fitted `TaskClassifier` or `TaskRegressor`.
        """
        with self._fitted():
            model = self._task_model(self._prior)
        for name in {"n_features_in_", "feature_names_in_"} & vars(self).keys():
            setattr(model, name, getattr(self, name))
        return model._read_and_adapt(X, y, sample_weight, reset=False)

    def adapt_many(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> TaskModels:
        """Models of many new tasks from a few rows of each, solved together; this estimator stays
        as it is.

        Args:
            X: Rows [n, f] with the features of `fit`.
            y: Their labels or numbers [n].
            task: Which task a row belongs to [n], or the name of the column that says so.
            sample_weight: How much each row counts [n].

        Returns:
            A mapping from names to models as `adapt` gives them, with ``coef_`` and
            ``intercept_`` of all tasks as arrays, in the order of its names.
        """
        with self._fitted():
            ids = self._ids_or_column(X, task)
            return TaskModels(self, self._read_tasks(X, y, ids, sample_weight, every=True))

    def model(self, task: Any) -> Any:
        """The model of a task that is known.

        Args:
            task: Its name.
        """
        with self._fitted():
            rows, prior = self._rows.take([self._known_name(task)]), self._prior
        return self._adapted_model(rows, prior)

    def stream(self, task: Any = None) -> TaskStream:
        """Open a task whose rows come one at a time; any number may be open at once.

        After k rows it predicts what the model of `adapt` on these k rows predicts. A task that is
        known begins with its rows. When the stream is closed its rows are given to the task, as by
        `update`; without a name they are forgotten.

        Args:
            task: The task's name, or None.
        """
        with self._fitted():
            name = None if task is None else _python_name(task)
            if not isinstance(name, Hashable):
                raise FMRLError("a stream is of one task", fix="give its name")
            known = name is not None and name in self._rows
            prior = self._prior
            few = isinstance(prior.loss, Squared) and prior.coordinates.width <= MAX_UPDATED_COLUMNS
            kind = NumberStream if few else TaskStream
            return kind(self, name, self._rows.take([name]) if known else None)

    def describe(self) -> str:
        """How tasks differ, in words and in the user's units: what ``prior_.coef_std`` and
        ``prior_.noise`` hold.
        """
        prior = self.prior_
        slopes, level = prior.coef_std[0], prior.level_std
        names = self.get_feature_names_out().tolist()
        seen = f"learned from {prior.tasks:,} task{'s' if prior.tasks != 1 else ''}"
        if 0 < prior.pilot < prior.tasks:
            seen += f" (a pilot of {prior.pilot:,} chose families and weights)"
        if held := len(self.tasks_):
            seen += f", {held:,} known by name"
        if len(prior.rule.choices) == 1:
            return f"{seen}: how tasks differ is known from two on, with two rows or more"
        lines = [f"{seen}; one task differs from another by (deviation)"]
        if len(level) > 1:
            lines.append(f"  classes: {', '.join(map(str, prior.classes.tolist()))}")  # type: ignore[union-attr]
        pairs = [("a typical row", level), *zip(names, slopes.T, strict=True)]
        lines += [f"  {name}: {', '.join(f'{v:.3g}' for v in stds)}" for name, stds in pairs]
        if prior.classes is None:
            lines.append(f"  rows around their task's model: {prior.noise**0.5:.3g}")
        if prior.common is not None:
            weights = zip(prior.members, prior.rule.choices[-1].weights, strict=True)
            share = sum(w for member, w in weights if member.family.startswith(COMMON))
            lines.append(
                f"models with a part that all tasks share and that may bend have {share:.0%} of "
                "the say; coef_ does not show that part, and common='linear' leaves it out"
            )
        return "\n".join([*lines, str(prior.environment)])

    def certify(self, X: Any, y: Any, task: Any = None) -> EstimatorCertificate:
        """What predicting tasks row after row costs, and what it can cost at most.

        Args:
            X: Rows [n, f], in the order in which they came, of tasks that `fit` has not seen.
            y: Their labels or numbers [n].
            task: Their tasks, or the name of the column that names them.

        >>> rng = np.random.default_rng(0)
        >>> shop = np.repeat(np.arange(60), 8)
        >>> X = rng.normal(size=(480, 2))
        >>> y = X[:, 0] * rng.normal(size=60)[shop] + rng.normal(size=480)
        >>> from fmrl import MetaRegressor
        >>> reg = MetaRegressor(common="linear").fit(X[:400], y[:400], task=shop[:400])
        >>> found = reg.certify(X[400:], y[400:], task=shop[400:])
        >>> found.tasks, bool(found.deployed.mean() < found.bound.total)
        (10, True)
        """
        self._fitted()
        tasks = self._read_tasks(X, y, self._ids_or_column(X, task), None)
        if any(self._rows.known(tasks.names)):
            what = "some of these tasks were learned from, and a certificate is about others"
            raise FMRLError(what, fix="use certificate_, which holds out folds of them")
        return certify_prior(self._prior, tasks)

    @property
    def certificate_(self) -> EstimatorCertificate:
        """The certificate of the tasks it was learned from, each predicted by a prior that was
        learned from the other folds. It is computed when it is asked for, by five fits.
        """
        self._fitted()
        seed, settings = seed_of(self.random_state), self._settings()
        return certify_folds(
            self._tasks_to_learn_from(), lambda tasks: learn_prior(tasks, settings), seed
        )

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns that models have coefficients for: those of `fit`, encoded.

        Args:
            input_features: Not used; the names are those of `fit`.
        """
        check_is_fitted(self, "_prior")
        if hasattr(self, "encoder_"):
            return np.array(self.encoder_.names, dtype=object)
        return _check_feature_names_in(self, input_features)

    def save(self, path: str | os.PathLike) -> None:
        """Write this estimator to one file (safetensors), whole or not at all. Rows that lie in a
        store stay there.

        Args:
            path: The file.
        """
        with self._lock:
            storage.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Read an estimator written by `save`; a damaged or foreign file is refused.

        Args:
            path: The file.
        """
        return storage.load(path, cls)

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """The share of rows that are predicted right (accuracy) of a classifier, the coefficient of
        determination (R²) of a regressor.

        Args:
            X: Rows [n, f].
            y: Their labels or numbers [n].
            task: The task of every row [n]; None, or a task that was not seen: one of which
                nothing is known.
            sample_weight: How much each row counts [n] (default: 1).
        """
        y, found = check_targets(y, self._numeric, task), as_numpy(self.predict(X, task))
        if self._numeric:
            return float(r2_score(y, found, sample_weight=sample_weight))
        return float(np.average(np.asarray(found) == np.asarray(y), weights=sample_weight))

    def learn_tasks(
        self, tasks: Tasks, *, classes: Any = None, columns: list[str] | None = None,
        count: int | None = None, latest: Tasks | None = None,
    ) -> Self:  # fmt: skip
        """Learn a prior from tasks that are numbers already, as `fmrl.tasks_from_frame` gives them.
        Their rows are not kept, so these tasks are not known by name afterwards. ``features=`` is
        for rows of tables: here it is refused.

        Args:
            tasks: Targets are encoded by the positions of the sorted ``classes``.
            classes: The labels; None for a regression.
            columns: The names of the columns (default: x0, x1, …).
            count: How many tasks they stand for (default: as many as they are).
            latest: The last of all tasks, where ``tasks`` are only some.
        """
        if self.features is not None:
            fix = "make the columns before the tasks, and leave features= out"
            raise FMRLError("learn_tasks takes tasks that are numbers already", fix=fix)
        with self._lock:
            new = self._new_estimator()
            if classes is not None:
                new.classes_ = np.unique(classes)
            new.n_features_in_ = tasks.X.shape[1]
            if columns is not None:
                new.feature_names_in_ = np.array(columns, dtype=object)
            rows = new._empty_rows()
            rows.reserve()
            new._set_prior(learn_prior(tasks, new._settings(), count, latest), len(tasks.X), rows)
            self._take_over(new)
        return self

    @property
    def prior_(self) -> Prior:
        """What was learned across tasks: from it new tasks are adapted to."""
        with self._fitted():
            return self._prior

    @property
    def environment_(self) -> Environment:
        """Whether tasks stay around one place, drift, or lie around several centres; print it."""
        return self.prior_.environment

    @property
    def tasks_(self) -> list[Any]:
        """The names of the tasks known, in the order in which they came."""
        with self._fitted():
            return list(self._rows)

    @property
    def nbytes_(self) -> int:
        """Bytes of all that is kept of the tasks known: their rows (in the store, if there is one).
        Over ``len(tasks_)``, it is the state of one task.
        """
        with self._fitted():
            return self._rows.nbytes

    @property
    def coef_(self) -> np.ndarray:
        """The coefficients of a task of which nothing is known, in the user's units."""
        return self._model_without_rows().coef_

    @property
    def intercept_(self) -> Any:
        """The intercept that belongs to ``coef_``."""
        return self._model_without_rows().intercept_

    # What follows is not for users.

    def _known_name(self, task: Any) -> Any:
        """The name of a task that is known."""
        if not isinstance(name := _python_name(task), Hashable):
            raise FMRLError(f"{name!r} is not one name", fix="call it for each of them")
        if name in self._rows:
            return name
        fix = "tasks_ names those that were; adapt(X, y) is for a task of which there are few rows"
        raise FMRLError(f"the task {name!r} was not seen", fix=fix)

    def _fit(
        self, X: Any, y: Any, task: Any, sample_weight: Any, classes: Any = None,
        many: bool = True,
    ) -> None:  # fmt: skip
        """`fit` of an estimator that nobody else sees yet. ``many``: rows are of many tasks."""
        task = self.task if task is None else task
        ids = task if many or np.ndim(task) else self._ids_or_column(X, task)
        one = not many and not isinstance(ids, str)  # which is a column
        tasks = self._read_tasks(X, y, ids, sample_weight, first=True, one=one, classes=classes)
        if len(tasks) == len(tasks.X) >= 20:
            warn("every row is a task of its own: is task= the id of a row?")
        rows = self._empty_rows()
        rows.reserve()  # before it learns: a store may be another's
        self._set_prior(learn_prior(tasks, self._settings()), len(tasks.X), rows)
        self._rows.add(tasks)

    def _set_prior(self, prior: Prior, learned_rows: int, rows: TaskRows) -> None:
        """Take a prior, and the place where rows of tasks lie."""
        self._prior, self._rows = prior, rows
        self._seen_rows = self._learned_rows = learned_rows
        self._warned: set[str] = set()  # kinds of warnings that were given

    def _add_rows(self, tasks: Tasks) -> None:
        """Give rows to tasks, known or new; learn again where there are twice the rows, and few
        tasks.
        """
        self._rows.add(tasks)
        self._seen_rows += len(tasks.X)
        if self._seen_rows >= 2 * self._learned_rows and self._prior.tasks < RELEARN_UP_TO:
            self.relearn()

    def _tasks_to_learn_from(self) -> Tasks:
        """The tasks of which a prior is learned: all, or of a store as many as choose."""
        names = list(self._rows)
        if not names:
            raise FMRLError("no task is known by its rows", fix="call fit, or update first")
        if isinstance(self._rows, SQLiteRows):
            some = self._rows.take(names[:256])
            places = np.linspace(0, len(names) - 1, min(len(names), pilot_size(some)))
            names = [names[i] for i in np.unique(places.astype(int))]
        return self._rows.take(names)

    def _settings(self) -> Settings:
        known = getattr(self, "classes_", None), getattr(self, "encoder_", None)
        asked = self.fit_intercept, self.common, self.environment, self.scoring, self.random_state
        return Settings(*known, *asked, self._report)

    def _report(self, stage: str) -> None:
        """Say on standard error which stage begins, if the user wants to know."""
        if self.verbose:
            print(f"[{type(self).__name__} {time.strftime('%X')}] {stage}", file=sys.stderr)

    def _new_estimator(self) -> Self:
        """Another estimator with the same parameters and the same lock, which has seen nothing."""
        new = type(self)(**self.get_params(deep=False))
        vars(new)["_guard"] = self._lock
        if self._is_fitted:
            vars(new)["_old_store_id"] = getattr(self._rows, "id", None)  # a store that may go
        return new

    def _take_over(self, other: Self) -> None:
        """Take what another estimator learned, in one step; what scikit-learn keeps here stays."""
        vars(other).pop("_old_store_id", None)
        kept = {
            n: v for n, v in vars(self).items() if n not in LEARNED_STATE and not n.endswith("_")
        }
        self.__dict__ = kept | vars(other)

    def _empty_rows(self, store: Sequence[str] = ()) -> TaskRows:
        """Where rows of tasks will lie: in memory or in the store, where those of this estimator's
        last fit may go. Of a stored estimator: the path of its store and the id of its rows.
        """
        width = len(self.encoder_.names) if hasattr(self, "encoder_") else self.n_features_in_
        path, id = store or (self.store, None)
        if path is None:
            return TaskRows(self._loss(), width)
        old = vars(self).get("_old_store_id")
        return SQLiteRows(os.fspath(path), self._loss(), width, id, old)

    def _loss(self) -> Any:
        return loss_of(getattr(self, "classes_", None))

    @property
    def _is_fitted(self) -> bool:
        """Whether this estimator was fitted."""
        return "_prior" in vars(self)

    @contextmanager
    def _fitted(self) -> Iterator[None]:
        """Hold the lock of an estimator that was fitted."""
        with self._lock:
            if not self._is_fitted:  # scikit-learn's own check takes 20 µs to pass
                check_is_fitted(self, "_prior")
            yield

    @property
    def _lock(self) -> Any:
        """Held by whoever changes what is known, and by whoever reads more than one part of it."""
        try:
            return self._guard
        except AttributeError:
            return vars(self).setdefault("_guard", threading.RLock())

    def __getstate__(self) -> dict[str, Any]:
        """A copy, made while no other thread writes: who pickles it reads it later."""
        with self._lock:
            state = dict(super().__getstate__())
            state.pop("_guard", None)
            return copy.deepcopy(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        new = memo[id(self)] = type(self).__new__(type(self))
        new.__setstate__(self.__getstate__())
        return new

    def __sklearn_clone__(self) -> Self:
        """A copy that was not fitted, as searches and folds make them. Its rows are in memory: a
        store belongs to one estimator.
        """
        new = super().__sklearn_clone__()  # type: ignore[misc]
        if self.store is None:
            return new
        warn("a clone keeps its rows in memory: a store= belongs to one estimator")
        return new.set_params(store=None)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    @property
    def _task_column(self) -> str | None:
        """The column that named the tasks in `fit`."""
        encoder = getattr(self, "encoder_", None)
        return encoder.task if encoder else None

    def _next_name(self) -> int:
        """The next number that no task has for its name."""
        return next(n for n in itertools.count(len(self._rows)) if n not in self._rows)

    def _ids_or_column(self, X: Any, task: Any) -> Any:
        """Ids of rows, or the name of the column that holds them."""
        if task is None or np.ndim(task) or (isinstance(task, str) and task in column_names(X)):
            return task
        name = np.empty(_num_samples(X), dtype=object)
        name[:] = _python_name(task)
        return name

    def _read_tasks(
        self, X: Any, y: Any, ids: Any, sample_weight: Any, *, first: bool = False,
        one: bool = False, classes: Any = None, every: bool = False,
    ) -> Tasks:  # fmt: skip
        """Rows by task, checked.

        Args:
            X: Rows [n, f].
            y: Their labels or numbers [n].
            ids: Their tasks, or the name of the column that names them.
            sample_weight: How much each row counts [n].
            first: Whether the estimator begins here, so that features and labels are these.
            one: All rows are of one task.
            classes: All labels, where they are told.
            every: Refuse a task none of whose rows counts.
        """
        numeric = self._numeric
        options = {"y_numeric": numeric, "ensure_min_samples": int(first or one)}
        X, y, ids = validate_fit(self, X, y, ids, reset=first, one=one, **options)
        if first and not numeric:
            check_classification_targets(y)
        weight, given = check_weights(sample_weight, X), task_ids(ids, len(y))
        if given is None and not first:
            fix = "give task=: ids, a column, or one name for all rows"
            raise FMRLError("task= is missing", fix=fix)
        weight, X, y, ids = drop_zero_weight(weight, X, y, given)
        if every and (lost := {*given.tolist()} - {*ids.tolist()}):  # type: ignore[union-attr]
            what = f"no row of the task {min(lost)!r} counts: all weigh 0"
            raise FMRLError(what, fix="leave its rows out; adapt(X[:0], y[:0]) needs none")
        if first:
            warn_of_weights(weight)
        y = self._encode_targets(y, classes, first)
        refuse_huge(X, y)
        return group_by_task(self._loss(), X, y, weight, ids)

    def _encode_targets(self, y: Any, classes: Any, first: bool) -> Any:
        """Targets as numbers, or as positions of classes, which the first call tells."""
        if self._numeric:
            if classes is not None:
                raise FMRLError("a regressor has no classes", fix="use MetaClassifier")
            return np.asarray(y, dtype=float)
        told = None if classes is None else unique_labels(classes)
        if first:
            self.classes_ = unique_labels(y) if told is None else told
        elif told is not None and not np.array_equal(told, self.classes_):
            known = self.classes_.tolist()
            raise FMRLError(f"classes={list(classes)} differ from those of the first call, {known}")
        return class_positions(y, self.classes_)

    def _adapted_model(self, rows: Tasks, prior: Prior) -> Any:
        """The model of one task."""
        model = self._task_model(prior)
        model._name = rows.names[0]
        model._adapt(rows)
        if hasattr(self, "feature_names_in_"):
            model.feature_names_in_ = self.feature_names_in_
        return model

    def _model_without_rows(self) -> Any:
        if not self._is_fitted:
            raise AttributeError("coef_ and intercept_ are there after fit")
        return self._task_model(self._prior)._without_rows()

    def _margins(self, X: Any, task: Any, spread: bool) -> tuple[Margins, Prior]:
        """Margins of rows under the models of their tasks, and the prior they are by; of a task of
        which nothing is known, where no task is given or the task is unknown.
        """
        with self._fitted(), np.errstate(over="ignore", invalid="ignore"):
            X, task, _ = split_task(X, self._ids_or_column(X, task), self._task_column)
            X = read_rows(self, X)
            if task is None and self._task_column is not None:
                what = f"X has no column {self._task_column!r}, which named the tasks in fit"
                self._warn_once("no column", f"{what}, and there is no task=")
            prior, ids = self._prior, task_ids(task, len(X))
            rows = prior.rows(X)
            names, which, known = [None], np.zeros(len(rows), dtype=int), np.zeros(1, dtype=bool)
            if ids is not None:
                found, which = np.unique(ids, return_inverse=True)
                names = found.tolist()
                known = self._rows.known(names)
                if not known.all():
                    name = names[known.argmin()]
                    more = f", nor were {(~known).sum() - 1} others" if (~known).sum() > 1 else ""
                    what = f"the task {name!r} was not seen{more}{self._of_other_kind(name)}"
                    self._warn_once("not seen", what)
            return self._margins_of(prior, rows, names, which, known, spread), prior

    def _margins_of(
        self, prior: Prior, rows: np.ndarray, names: list, which: np.ndarray, known: np.ndarray,
        spread: bool,
    ) -> Margins:  # fmt: skip
        """Margins of rows [n, w] in the prior's coordinates, a block of tasks at a time.

        Args:
            prior: Of the models.
            rows: In its coordinates.
            names: Of some tasks.
            which: Of these, the task of every row [n].
            known: Which of these tasks have rows.
            spread: Whether variances are wanted.
        """
        middle, k, w = prior.middle(), prior.loss.outputs, rows.shape[1]
        z, variance = np.empty((len(rows), k)), np.empty((len(rows), k)) if spread else None
        place, most = np.zeros(len(names), dtype=int), max(1, ROWS_AT_A_TIME // (k * w * w))
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
                found, v = margins(rows[part, None], Posterior(models.theta[at], wide))
                z[part] = found[:, 0]
                if variance is not None:
                    variance[part] = v[:, 0]
        return Margins(*refuse_overflow(z, variance), place[which])

    def _models_of(
        self, names: list, known: np.ndarray, middle: Posterior, spread: bool, place: np.ndarray
    ) -> Posterior:
        """Models of some tasks; fills in which choice of the rule each is by."""
        theta = np.repeat(middle.theta, len(names), axis=0)
        wide = np.repeat(middle.spread, len(names), axis=0) if spread else None
        if known.any():
            rows = self._rows.take([name for name, seen in zip(names, known, strict=True) if seen])
            found = self._prior.adapt(rows, spread)
            theta[known], place[known] = found.theta, self._prior.rule.places(rows.mass)
            if wide is not None:
                wide[known] = found.spread
        return Posterior(theta, wide)

    def _of_other_kind(self, name: Any) -> str:
        """Words about a task that is known by the same name as text, or as a number; or ""."""
        other: Any = str(name)
        if isinstance(name, str):
            try:
                other = int(name)
            except ValueError:
                return ""
        kind = "text" if isinstance(other, str) else "a number"
        return f", but {other!r}, {kind}, is known" if self._rows.known([other])[0] else ""

    def _warn_once(self, kind: str, what: str) -> None:
        """Say that rows are predicted as of an unknown task, and why: once of each kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            how = "adapt(X, y) uses its rows; in cross-validation FewShotSplit only holds tasks out"
            how += ", and FewShotScorer (or few_shot_score) reveals rows of them"
            warn(f"{what}: predicted as a task of which nothing is known; {how}")


# What tools show as the arguments of an estimator.
Meta.__new__.__signature__ = inspect.signature(Meta.__init__)  # type: ignore[attr-defined]


def _python_name(name: Any) -> Any:
    """A name without NumPy around it."""
    return name.item() if isinstance(name, np.generic) else name
