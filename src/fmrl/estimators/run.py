"""The run behind an estimator: what is chosen from the first tasks, the state that moves, and the
tasks seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from fmrl.core.algorithm import FMRL
from fmrl.core.history import History
from fmrl.core.rules.meta import FollowLeader
from fmrl.core.rules.similarity import AverageDeviation
from fmrl.core.rules.update import FAL
from fmrl.core.rules.within import OMD
from fmrl.errors import FMRLError
from fmrl.estimators.calibration import STEPS, Rule, learn, pool
from fmrl.estimators.coordinates import charts
from fmrl.estimators.pack import Table
from fmrl.estimators.playing import play_tasks
from fmrl.estimators.stream import Streams
from fmrl.estimators.task_models import Prior

VECTORS = 10_000_000  # numbers of optima that a history may hold; beyond, it keeps scalars only
PILOTS = (2, 4, 8, 16, 32, 64)  # tasks after which partial_fit chooses the rule again


class Running(BaseEstimator):
    """The run of one estimator; its parameters are those of `MetaClassifier`."""

    @property
    def prior_(self) -> Prior:
        """What adapting starts from."""
        state = self.state_
        classes = getattr(self, "classes_", None)
        return Prior(self.chart_, self.rule_, state.phi, float(state.guess), classes, self.pooled_)

    @property
    def n_tasks_seen_(self) -> int:
        """How many tasks were played, those of streams included."""
        return self.state_.tasks if hasattr(self, "history_") else 0

    def _reset(self) -> None:
        for name in ("history_", "state_", "chart_", "rule_", "pooled_"):
            if hasattr(self, name):
                delattr(self, name)
        self.streams_ = Streams()
        self._pilot: list[Table] = []
        self._piloted = 1
        self._waiting: list[tuple[Table, list, Prior]] = []
        self._thetas: dict[Any, np.ndarray] = {}
        self._known: set = set()

    def _begin(self, tasks: Table, expected: int | None = None) -> None:
        """Choose the chart and the rule from these tasks, and start a run of that many tasks
        (default: these).
        """
        regression = not hasattr(self, "classes_")
        few = tasks.select(
            np.unique(np.linspace(0, len(tasks) - 1, min(len(tasks), 1024)).astype(int))
        )
        rows = few.rows()
        weight = None if tasks.weight is None else tasks.weight[rows]
        if weight is not None and not weight.sum() > 0:
            raise FMRLError(
                "all sample weights of the first tasks are zero", fix="leave those rows out"
            )
        options = charts(
            tasks.X[rows], tasks.y[rows] if regression else None, weight, self.fit_intercept
        )
        if self.radius is not None:
            if not (isinstance(self.radius, Real) and 0 < self.radius < np.inf):
                raise FMRLError(f"radius must be a positive number, not {self.radius!r}")
            options = [replace(c, radius=float(self.radius)) for c in options]
        classes = None if regression else self.classes_
        loss = Prior(options[0], Rule(1.0), np.zeros(0), 0.0, classes).loss
        self.chart_, self.rule_ = learn(tasks, options, loss, regression, self._seed())
        self._pool(tasks, loss)
        algo = FMRL(
            domain=self.chart_.domain,
            within=OMD() if self.within is None else self.within,
            update=FAL() if self.update is None else self.update,
            meta=FollowLeader() if self.meta is None else self.meta,
            similarity=AverageDeviation() if self.similarity is None else self.similarity,
        )
        width = loss.outputs * self.chart_.width
        keep = "vectors" if (expected or len(tasks)) * width <= VECTORS else "scalars"
        self.state_ = algo.init(np.zeros(width))
        self.history_ = History(algo, self.state_, keep)

    def _pool(self, tasks: Table, loss: Any) -> None:
        """The pooled start, if some task may start there."""
        self.pooled_ = None
        if any(choice.start == "pooled" for choice in self.rule_.choices):
            steps = [step for step in STEPS if step <= self.rule_.pooled]
            self.pooled_ = pool(tasks, self.chart_, loss, not hasattr(self, "classes_"), steps)[-1]

    def _seed(self) -> int:
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31))
        if not (self.random_state is None or isinstance(self.random_state, Integral)):
            raise FMRLError(f"random_state must be a whole number, not {self.random_state!r}")
        return 0 if self.random_state is None else int(self.random_state)

    def _consider(self) -> None:
        """Choose the rule again, now that there are more tasks to choose by; the chart stays."""
        parts, self._piloted = self._pilot, len(self._pilot)
        weight = (
            None
            if all(p.weight is None for p in parts)
            else np.concatenate(
                [np.ones(len(p.y)) if p.weight is None else p.weight for p in parts]
            )
        )
        sizes = np.array([len(p.y) for p in parts])
        X, y = np.concatenate([p.X for p in parts]), np.concatenate([p.y for p in parts])
        pilot = Table(X, y, weight, np.cumsum(sizes) - sizes, sizes)
        loss = self.prior_.loss
        _, self.rule_ = learn(
            pilot, [self.chart_], loss, not hasattr(self, "classes_"), self._seed()
        )
        self._pool(pilot, loss)

    def _name(self, given: Any) -> Any:
        """The name of one more task: as given, or the first number from the count of tasks on that
        none has yet.
        """
        if given is None:
            return next(n for n in itertools.count(self.n_tasks_seen_) if n not in self._known)
        given = given.item() if isinstance(given, np.generic) else given
        if not isinstance(given, Hashable):
            raise FMRLError(f"{given!r} is no name of a task", fix="give one number or text")
        return given

    def _new(self, names: list) -> None:
        """Refuse tasks that were seen before."""
        twice = next((name for name in names if name in self._known), None)
        if twice is not None:
            raise FMRLError(
                f"the task {twice!r} was seen before",
                fix="give it another name, or adapt to its new rows",
            )

    def _play(
        self, tasks: Table, names: list, progress: Callable[[int], None] | None = None
    ) -> None:
        self._new(names)
        if self.state_ is not self.history_.state:  # streams moved it: a new history begins
            self.history_ = History(self.history_.algo, self.state_, self.history_.keep)
        play_tasks(
            self.history_,
            tasks,
            self.chart_,
            self.prior_.loss,
            not hasattr(self, "classes_"),
            progress,
        )
        self.state_ = self.history_.state
        self._known.update(names)
        self._waiting.append((tasks, names, self.prior_))

    def _settle(self) -> None:
        """Solve the models of tasks seen, from what was known when they were; until somebody asks,
        their rows wait.
        """
        waiting, self._waiting = self._waiting, []
        for tasks, names, prior in waiting:
            self._thetas |= zip(names, prior.adapt(tasks), strict=True)

    def _seen(self, task: Any) -> np.ndarray:
        task = task.item() if isinstance(task, np.generic) else task
        self._settle()
        if task not in self._thetas:
            raise FMRLError(
                f"the task {task!r} was not seen in fit",
                fix="adapt to some of its rows: adapt(X, y)",
            )
        return self._thetas[task]

    def __getstate__(self) -> dict:
        if getattr(self, "_waiting", None):
            self._settle()  # rows do not belong into a stored model
        return super().__getstate__()
