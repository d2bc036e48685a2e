"""What an estimator learns from its tasks: coordinates, a prior from a pilot of them, and the rows
of all.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from fmrl.core.algorithm import FMRL
from fmrl.core.history import History
from fmrl.core.rules.meta import FollowLeader
from fmrl.core.rules.private import promises
from fmrl.core.rules.similarity import AverageDeviation
from fmrl.core.rules.update import FAL
from fmrl.core.rules.within import OMD
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError, refuse_other_names
from fmrl.estimators.calibration import calibrate, members, spaced, without_common
from fmrl.estimators.common import with_common
from fmrl.estimators.coordinates import coordinates_of
from fmrl.estimators.environment import Environment
from fmrl.estimators.environment_choice import environment_of
from fmrl.estimators.many_models import Thetas
from fmrl.estimators.pilot import Piloted, pilot_size
from fmrl.estimators.rows import TaskRows
from fmrl.estimators.rows_sqlite import SQLiteRows
from fmrl.estimators.stream import Streams
from fmrl.estimators.task_models import Prior, loss_of

VECTORS = 10_000_000  # numbers of optima that a history may hold; beyond, it keeps scalars only
WIDE = 16  # columns from which on tasks may have no mean, where there are no more tasks
CACHED = 1 << 20  # numbers of models that are kept in memory beside a store
FITTED = ("_history", "_state", "coordinates_", "lipschitz_", "_prior")


class Learning(Piloted):
    """The run of one estimator; its parameters are those of `MetaClassifier`."""

    _opening: SQLiteRows | None = None  # a store that begins with the first rows

    def __new__(cls, *_: Any, **given: Any):
        """A new estimator; ``private=``, which is of the core, is refused in words."""
        if "private" in given:
            raise _not_private()
        refuse_other_names(cls.__name__, given)
        return super().__new__(cls)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name.

        Args:
            deep: As in scikit-learn; none of them has parameters that it knows.
        """
        return super().get_params(deep) | {"update": vars(self)["update"]}

    @property
    def prior_(self) -> Prior:
        """What was learned across tasks: from it new tasks are adapted to."""
        if "_prior" not in vars(self) and not vars(self).get("_stale"):
            self._fitted()
        if self._stale:
            with self._lock:
                if self._stale:
                    self._learn()
        return self._prior

    @contextmanager
    def _kept(self, begun: bool = False) -> Iterator[None]:
        """Whatever stops a `fit`, the estimator stays what it was before; one that has ``begun`` is
        only changed in a moment (`Unbroken`).
        """
        if begun and self._begun:
            yield
            return
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            rows = vars(self).get("_rows")
            if isinstance(rows, SQLiteRows) and rows is not before.get("_rows"):
                raise  # those before are gone, and all of the new is there
            for name in vars(self).keys() - before.keys():
                del vars(self)[name]
            vars(self).update(before)
            raise

    def _reset(self) -> None:
        for name in FITTED:
            vars(self).pop(name, None)
        self.streams_ = Streams()
        self._parts = []
        self._fresh = []
        self._stale = False
        self._waiting: Tasks | None = None  # that were not played yet
        self._before = getattr(getattr(self, "_rows", None), "id", None)  # of an earlier store
        self._rows = TaskRows()
        self._opening = None
        self._models, self._warned = Thetas(), set()

    def _begin(self, tasks: Tasks, expected: int | None = None) -> None:
        """Choose coordinates and rule from these tasks, and start a run of ``expected`` tasks
        (default: these).
        """
        if self.radius is not None and not (
            isinstance(self.radius, Real) and 0 < self.radius < np.inf
        ):
            raise FMRLError(f"radius must be a positive number, not {self.radius!r}")
        radius = None if self.radius is None else float(self.radius)
        few = tasks.take(spaced(len(tasks), 1024))
        self.coordinates_, self._even = coordinates_of(few, self.fit_intercept, radius)
        here = self.coordinates_.tasks(few)
        parts = [game.lipschitz(self.coordinates_.domain) for _, game in here.stacks()]
        self.lipschitz_ = max(float(np.sqrt(np.mean(np.concatenate(parts) ** 2))), 1e-290)
        self._pilot = tasks.take(spaced(len(tasks), pilot_size(tasks))).copied()
        self._stale = True
        algo = FMRL(
            domain=self.coordinates_.domain,
            within=OMD() if self.within is None else self.within,
            update=FAL() if (rule := vars(self)["update"]) is None else rule,
            meta=FollowLeader() if self.meta is None else self.meta,
            similarity=AverageDeviation() if self.similarity is None else self.similarity,
        )
        if promises(algo):
            raise _not_private()
        dim = tasks.loss.outputs * self.coordinates_.width
        keep = "vectors" if (expected or len(tasks)) * dim <= VECTORS else "scalars"
        if self.store is not None:
            keep = "totals"  # so that memory does not grow with the number of tasks
        self.state_ = algo.init(np.zeros(dim))
        self.history_ = History(algo, self.state_, keep)
        self._open()

    def _learn(self, tasks: Tasks | None = None, count: int | None = None) -> None:
        """Learn the prior from the pilot, or from the latest tasks where they say more.

        Args:
            tasks: All that there are, of which the pilot is a part (default: the pilot).
            count: How many they stand for, where only the latest are all there.
        """
        classes, intercept = getattr(self, "classes_", None), self._even.constant > 0
        tasks, seed = tasks or self._pilot, self._seed()
        count = count or len(tasks)
        pilot, here, common = with_common(self._pilot, self._even, self.common, classes)
        extra = pilot.X.shape[1] - self._even.centre.size
        asked = self.environment
        found = environment_of(here.tasks(pilot), intercept, asked, count, seed)
        share = min(1.0, found.window * count / len(tasks))
        places = replace(found, window=share).places(len(tasks), pilot_size(tasks))
        if found.kind == "recent" and found.older:
            whole = len(tasks) == len(pilot)
            pilot = pilot.take(places) if whole else _latest(tasks.take(places), pilot, common)
        elif found.kind == "recent":  # what all tasks share has moved as well
            pilot = tasks.take(places)
            pilot, here, common = with_common(pilot, self._even, self.common, classes)
            extra = pilot.X.shape[1] - self._even.centre.size
        # Too few tasks for a mean in every one of many directions.
        apart = max(len(pilot), WIDE) <= pilot.X.shape[1]
        learn, drift = members(intercept, extra, found.centres, apart), found.kind == "recent"
        group, rule = calibrate(here.tasks(pilot), learn, seed, self.scoring, drift)
        if common is not None and (plain := without_common(group, rule, intercept, extra)):
            (group, rule), here, common = plain, self._even, None
        known = classes, getattr(self, "encoder_", None), common, found
        self._prior = Prior(here, tuple(group), rule, *known)
        self._models, self._stale = Thetas(self._models.most), False

    @property
    def environment_(self) -> Environment:
        """Whether tasks stay around one place, drift, or lie around several centres; print it."""
        return self.prior_.environment

    def _seed(self) -> int:
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31))
        if not (self.random_state is None or isinstance(self.random_state, Integral)):
            raise FMRLError(f"random_state must be a whole number, not {self.random_state!r}")
        return int(self.random_state or 0)

    def _name(self, given: Any) -> Any:
        """The name of one more task: as given, or the next number that none has yet."""
        if given is None:
            return next(n for n in itertools.count(self.n_tasks_seen_) if n not in self._rows)
        given = given.item() if isinstance(given, np.generic) else given
        if not isinstance(given, Hashable):
            what = f"a {type(given).__name__} cannot name a task: partial_fit takes one at a time"
            raise FMRLError(what, fix="give one number or text; fit and update take many tasks")
        return given

    def _add(self, tasks: Tasks) -> None:
        """Remember more rows of tasks."""
        self._models.drop(tasks.names)
        rows = self._rows if self._opening is None else self._opening
        rows.add(tasks)
        self._rows, self._opening = rows, None

    def _thetas(self, names: list[Any]) -> np.ndarray:
        """Models [T, outputs, width] of tasks seen, solved when somebody first asks."""
        prior = self.prior_
        if self._rows.changed:  # by another process
            self._models = Thetas(self._models.most)
        slots = self._models.find(names)
        missing = np.flatnonzero(slots < 0)
        if not len(missing):
            return self._models.at(slots)
        some = [names[i] for i in missing]
        found = prior.adapt(self._rows.take(some)).theta
        theta = np.empty((len(names), *found.shape[1:]))
        there = slots >= 0
        theta[there], theta[missing] = self._models.at(slots[there]) if there.any() else 0, found
        self._models.put(some, found)
        return theta

    def _open(self) -> None:
        """Open the store, if rows are to lie in one; rows of an earlier fit go when there are
        others.
        """
        if self.store is not None:
            self._opening = SQLiteRows(os.fspath(self.store), self._kind(), old=self._before)
            self._models = Thetas(CACHED)

    def _kind(self) -> dict[str, Any]:
        """What a store's rows must agree in."""
        classes, names = getattr(self, "classes_", None), self.get_feature_names_out().tolist()
        return {
            "estimator": type(self).__name__,
            "columns": names,
            "classes": None if classes is None else classes.tolist(),
            "loss": repr(self._loss()),
            "width": len(names),
        }

    def _loss(self) -> Any:
        return loss_of(getattr(self, "classes_", None))


def _not_private() -> FMRLError:
    what = "an estimator learns coordinates and a prior from all rows, without noise"
    return FMRLError(what, fix="for privacy use fmrl.run(fmrl.FMRL(private=…), tasks)")


def _latest(few: Tasks, pilot: Tasks, common: Any) -> Tasks:
    """The tasks that count where they drift; a common part answered the pilot's without them."""
    if common is None:
        return few
    X, at = np.hstack([few.X, common(few.X)]), {name: i for i, name in enumerate(pilot.names)}
    known = np.array([name in at for name in few.names])
    some = np.array([at[name] for name in few.names if name in at], dtype=int)
    X[np.repeat(known, few.lengths)] = pilot.take(some).X
    return replace(few, X=X)
