"""The life of a task: it gets more rows, is predicted by its own model, and is forgotten."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.utils.validation import _num_samples

from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError, warn
from fmrl.estimators.averaging import margins
from fmrl.estimators.calibration import COMMON
from fmrl.estimators.learning import Learning
from fmrl.estimators.many_models import TaskModels
from fmrl.estimators.population import Posterior
from fmrl.estimators.running import Unbroken
from fmrl.estimators.task_models import Prior
from fmrl.tables.read import column_names, read_rows, split_task
from fmrl.tables.targets import (
    drop_zero_weight,
    encode_targets,
    group_by_task,
    refuse_huge,
    refuse_overflow,
    task_ids,
)


class Asked(NamedTuple):
    """Predictions of rows, in the prior's coordinates."""

    margins: np.ndarray  # [n, outputs]
    variance: np.ndarray | None  # [n, outputs] of the margins, if it was asked for
    place: np.ndarray  # [n] which choice of the rule they are by, where it was
    prior: Prior  # they were made with


class Beside:
    """A method with the name of a parameter, which is kept beside it: ``update=`` is the rule of
    Algorithm 2 by which phi moves, and ``update(X, y, task=…)`` gives rows to tasks.
    """

    def __init__(self, method: Any):
        self.method = method

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self.method if owner is None else self.method.__get__(owner)

    def __set__(self, owner: Any, value: Any) -> None:
        vars(owner)[self.method.__name__] = value


class TasksSeen(Learning):
    """Tasks that are known by name."""

    _task_model: type

    @property
    def tasks_(self) -> list[Any]:
        """The names of the tasks known, in the order in which they came."""
        with self._lock:
            self._fitted()
            return list(self._rows)

    @property
    def nbytes_(self) -> int:
        """Bytes of all that is kept of the tasks known: their rows (in the store, if there is one)
        and the models that were asked for. Over ``len(tasks_)``, it is the state of one task.
        """
        with self._lock:
            self._fitted()
            return self._rows.nbytes + self._models.nbytes

    def describe(self) -> str:
        """How tasks differ, in words and in the user's units: what ``prior_.coef_std`` and
        ``prior_.noise`` hold.
        """
        with self._lock:
            return self._words()

    def _words(self) -> str:
        self._fitted()
        prior = self.prior_
        slopes, level = prior.coef_std[0], prior.level_std
        names = self.get_feature_names_out().tolist()
        seen = f"{self.n_tasks_seen_:,} task{'s' if self.n_tasks_seen_ != 1 else ''} seen"
        if 0 < (held := len(self._rows)) < self.n_tasks_seen_:
            seen += f", {held:,} of them known by name now"
        if len(prior.rule.choices) == 1:
            return f"{seen}: how tasks differ is known from two on, with two rows or more"
        lines = [f"{seen}; one task differs from another by (deviation)"]
        if len(level) > 1:
            lines.append(f"  classes: {', '.join(map(str, self.classes_.tolist()))}")  # type: ignore[attr-defined]
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

    @Beside
    def update(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> Self:
        """Give more rows to tasks, known or new.

        A task's model is then the same as if all its rows had come together: that of `adapt` on
        them. New tasks are played as in `partial_fit`; a known one is not played a second time. A
        batch that is refused changes nothing. The first call of an estimator that was not fitted
        is `fit`.

        Args:
            X: Rows [n, f] with the features of `fit`.
            y: Their labels or numbers [n].
            task: Which task a row belongs to [n], the name of the column that says so, or one name
                for all rows.
            sample_weight: How much each row counts [n].
        """
        with self._lock:
            if not self._begun:
                ids = None if task is None else self._ids(X, task)
                return self.fit(X, y, task=ids, sample_weight=sample_weight)
            loss, X, y, weight, ids = self._read(X, y, task, sample_weight)
            if not len(y):
                return self
            names = ids.tolist()
            self._models.drop(names)  # first: a model must not outlive its rows
            if self._rows.more(names, X, encode_targets(y, loss), weight):
                return self
            tasks = group_by_task(loss, X, y, weight, ids)
            known = self._rows.known(tasks.names)
            if not known.all():
                new = tasks if not known.any() else tasks.take(np.flatnonzero(~known))
                if like := self._like(new.names[0]):
                    warn(f"the task {new.names[0]!r} is new{like}")
                self._play(new, rows=tasks, observe=True)
            else:
                with Unbroken():
                    self._add(tasks)
        return self

    def learn_many(self, X: Any, y: Any, task: Any = None) -> Self:
        """Learn rows of many tasks at once: `update`, which for known tasks is the same as one row
        after another. Models are solved when they are asked for.

        Args:
            X: Rows [n, f].
            y: Their labels or numbers [n].
            task: Which task a row belongs to [n], or the name of the column that says so (default:
                the column of `fit`).
        """
        return self.update(X, y, task=task)

    def predict_many(self, X: Any, task: Any = None) -> Any:
        """What `predict` says of rows of many tasks, known or not, without a warning.

        Args:
            X: Rows [n, f].
            task: Which task a row belongs to [n], or the name of the column that says so (default:
                the column of `fit`).
        """
        return self._said(self._asked(X, task, spread=False, many=True), X)

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
        with self._lock:
            self._fitted()
            return TaskModels(
                self, group_by_task(*self._read(X, y, task, sample_weight, every=True))
            )

    def model(self, task: Any) -> Any:
        """The model of a task seen, by its id."""
        name = task.item() if isinstance(task, np.generic) else task
        with self._lock:
            self._fitted()
            if name not in self._rows:
                fix = "adapt to some of its rows: adapt(X, y)"
                raise FMRLError(f"the task {name!r} was not seen", fix=fix)
            rows, prior = self._rows.take([name]), self.prior_
        return self._model_of(rows, prior)

    def forget(self, task: Any) -> Self:
        """Forget a task: its rows and its model go. What was learned across tasks stays as it is.

        Args:
            task: Its name.
        """
        if not isinstance(task, Hashable):
            raise FMRLError("forget takes one name", fix="call it for each of them")
        with self._lock:
            self._fitted()
            name = self._name(task)
            if name not in self._rows:
                raise FMRLError(
                    f"the task {name!r} was not seen", fix="tasks_ names those that were"
                )
            self._catch_up()  # while there are its rows
            if self._stale:
                self._learn()
            kept = []
            for tasks in (self._pilot, *self._fresh):
                others = np.flatnonzero([n is None or n != name for n in tasks.names])
                if len(others):
                    kept.append(tasks if len(others) == len(tasks) else tasks.take(others))
            if not kept:
                what = f"{name!r} is the only task there is"
                raise FMRLError(what, fix="begin anew with another estimator")
            with Unbroken():
                self._rows.forget(name)
                self._models.drop([name])
                self._pilot, self._fresh = kept[0], kept[1:]
        return self

    def _ids(self, X: Any, task: Any) -> Any:
        """Ids of rows, or the name of the column that holds them."""
        if task is None or np.ndim(task) or (isinstance(task, str) and task in column_names(X)):
            return task
        name = np.empty(_num_samples(X), dtype=object)
        name[:] = task.item() if isinstance(task, np.generic) else task
        return name

    def _read(
        self, X: Any, y: Any, task: Any, sample_weight: Any, every: bool = False
    ) -> tuple[Any, ...]:
        """Checked rows that count: what `group_by_task` takes. ``every`` task must have some."""
        X, y, weight, ids = self._check(X, y, sample_weight, self._ids(X, task), reset=False)
        given = task_ids(_told(ids), len(y))
        weight, X, y, ids = drop_zero_weight(weight, X, y, given)
        if every and (lost := {*given.tolist()} - {*ids.tolist()}):
            what = f"no row of the task {min(lost)!r} counts: all weigh 0"
            raise FMRLError(what, fix="leave its rows out; adapt(X[:0], y[:0]) needs none")
        y = self._target(y, None, first=False)
        refuse_huge(X, y)
        return self._loss(), X, y, weight, ids

    def _model_of(self, rows: Tasks, prior: Prior) -> Any:
        """The model of one task."""
        model = self._task_model(prior)
        model._name = rows.names[0]
        model._adapt(rows)
        if hasattr(self, "feature_names_in_"):
            model.feature_names_in_ = self.feature_names_in_
        return model

    def _asked(self, X: Any, task: Any, spread: bool, many: bool = False) -> Asked:
        """What is predicted for rows under the models of their tasks; of the population, where no
        task is given or the task is unknown. Of ``many``, a task must be given, and none is warned
        of.
        """
        with self._lock, np.errstate(over="ignore", invalid="ignore"):
            self._fitted()
            X, task, _ = split_task(X, self._ids(X, task), self._task_column)
            X, task = read_rows(self, X), _told(task) if many else task
            if task is None and self._task_column is not None:
                what = f"X has no column {self._task_column!r}, which named the tasks in fit"
                self._warn_of("no column", f"{what}, and there is no task=")
            return self._answers(X, task_ids(task, len(X)), spread, warn=not many)

    def _answers(self, X: np.ndarray, ids: np.ndarray | None, spread: bool, warn: bool) -> Asked:
        prior, rows = self.prior_, self.prior_.rows(X)
        names, which, known = [None], np.zeros(len(rows), dtype=int), np.zeros(1, dtype=bool)
        if ids is not None:
            found, which = np.unique(ids, return_inverse=True)
            names = found.tolist()
            known = self._rows.known(names)
            if warn and not known.all():
                unknown = [names[i] for i in np.flatnonzero(~known)]
                more = f", nor were {len(unknown) - 1} others" if len(unknown) > 1 else ""
                more += self._like(unknown[0])
                self._warn_of("not seen", f"the task {unknown[0]!r} was not seen{more}")
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
        return Asked(*refuse_overflow(z, variance), place[which], prior)

    def _models_of(
        self, names: list, known: np.ndarray, middle: Posterior, spread: bool, place: np.ndarray
    ) -> Posterior:
        """Models of some tasks; fills in which choice of the rule each is by."""
        if known.all() and not spread:
            return Posterior(self._thetas(names), None)
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

    def _like(self, name: Any) -> str:
        """Words about a task that is known by the same name as text, or as a number; or ""."""
        other = str(name)
        if isinstance(name, str):
            try:
                other = int(name)
            except ValueError:
                return ""
        kind = "text" if isinstance(other, str) else "a number"
        return f", but {other!r}, {kind}, is known" if self._rows.known([other])[0] else ""

    def _warn_of(self, kind: str, what: str) -> None:
        """Say that rows are predicted by the population's model, and why: once of each kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            how = "adapt(X, y) uses its rows; in cross-validation FewShotSplit only holds tasks out"
            how += ", and FewShotScorer (or few_shot_score) reveals rows of them"
            warn(f"{what}: predicted as a task of which nothing is known; {how}")


def _told(task: Any) -> Any:
    """Ids of tasks, which must be there."""
    if task is None:
        fix = "give task=: ids, a column, or one name for all rows"
        raise FMRLError("rows of which task?", fix=fix)
    return task
