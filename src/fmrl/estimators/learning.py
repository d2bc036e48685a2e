"""The run behind an estimator: what is chosen from the first tasks, the state that moves, and the
tasks seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from fmrl.core.algorithm import FMRL
from fmrl.core.batched import play_tasks
from fmrl.core.history import History
from fmrl.core.metric import mean_step
from fmrl.core.rules.meta import FollowLeader
from fmrl.core.rules.similarity import AverageDeviation
from fmrl.core.rules.update import FAL
from fmrl.core.rules.within import OMD
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.calibration import STEPS, learn, pool, spaced
from fmrl.estimators.coordinates import candidates
from fmrl.estimators.stream import Streams
from fmrl.estimators.task_models import Prior, loss_of

WINDOW = (
    1024  # tasks played at once, counted from the first, so that a resumed run has the same bits
)
VECTORS = 10_000_000  # numbers of optima that a history may hold; beyond, it keeps scalars only
PILOTS = (2, 4, 8, 16, 32, 64)  # tasks after which partial_fit chooses the rule again
FITTED = ("history_", "state_", "coordinates_", "rule_", "pooled_")


class Learning(BaseEstimator):
    """The run of one estimator; its parameters are those of `MetaClassifier`."""

    @property
    def prior_(self) -> Prior:
        """What adapting starts from."""
        state, classes = self.state_, getattr(self, "classes_", None)
        guess = mean_step(state.guess)
        if getattr(self.history_.algo.similarity, "absolute", False):
            guess *= self.rule_.lipschitz  # a step, not a distance: D = eta·G for one row
        known = self.coordinates_, self.rule_, state.phi, guess, classes, self.pooled_
        return Prior(*known, tasks=state.tasks, encoder=getattr(self, "encoder_", None))

    @property
    def n_tasks_seen_(self) -> int:
        """How many tasks were played, those of streams included."""
        return self.state_.tasks if hasattr(self, "history_") else 0

    def _reset(self) -> None:
        for name in FITTED:
            vars(self).pop(name, None)
        self.streams_ = Streams()
        self._pilot: list[Tasks] = []
        self._piloted = 1
        self._waiting: list[tuple[Tasks, Prior]] = []
        self._thetas: dict[Any, np.ndarray] = {}
        self._known: set = set()

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
        options = candidates(few, self.fit_intercept, radius)
        self.coordinates_, self.rule_ = learn(tasks, options, self._seed())
        self._pool(tasks)
        algo = FMRL(
            domain=self.coordinates_.domain,
            within=OMD() if self.within is None else self.within,
            update=FAL() if self.update is None else self.update,
            meta=FollowLeader() if self.meta is None else self.meta,
            similarity=AverageDeviation() if self.similarity is None else self.similarity,
        )
        dim = tasks.loss.outputs * self.coordinates_.width
        keep = "vectors" if (expected or len(tasks)) * dim <= VECTORS else "scalars"
        self.state_ = algo.init(np.zeros(dim))
        self.history_ = History(algo, self.state_, keep)

    def _pool(self, tasks: Tasks) -> None:
        """The pooled start, if some task may start there."""
        self.pooled_ = None
        if any(choice.start == "pooled" for choice in self.rule_.choices):
            steps = [step for step in STEPS if step <= self.rule_.pooled]
            self.pooled_ = pool(tasks, self.coordinates_, steps)[-1]

    def _seed(self) -> int:
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31))
        if not (self.random_state is None or isinstance(self.random_state, Integral)):
            raise FMRLError(f"random_state must be a whole number, not {self.random_state!r}")
        return int(self.random_state or 0)

    def _consider(self) -> None:
        """Choose the rule again, now that there are more tasks to choose by; the coordinates
        stay.
        """
        parts, self._piloted = self._pilot, len(self._pilot)
        weighted = any(p.weight is not None for p in parts)
        weights = [np.ones(len(p.X)) if p.weight is None else p.weight for p in parts]
        X, target = (np.concatenate([getattr(p, n) for p in parts]) for n in ("X", "target"))
        pilot = replace(
            parts[0], X=X, target=target, starts=np.cumsum([0, *(len(p.X) for p in parts)]),
            names=range(len(parts)), weight=np.concatenate(weights) if weighted else None,
            heaviest=max(p.heaviest for p in parts),
        )  # fmt: skip
        _, self.rule_ = learn(pilot, [self.coordinates_], self._seed())
        self._pool(pilot)

    def _name(self, given: Any) -> Any:
        """The name of one more task: as given, or the first number from the count of tasks on
        that none has yet.
        """
        if given is None:
            return next(n for n in itertools.count(self.n_tasks_seen_) if n not in self._known)
        given = given.item() if isinstance(given, np.generic) else given
        if not isinstance(given, Hashable):
            raise FMRLError(f"{given!r} cannot name a task", fix="give one number or text")
        return given

    def _new(self, names: Any) -> None:
        """Refuse tasks that were seen before."""
        twice = next((name for name in names if name in self._known), None)
        if twice is not None:
            fix = "give it another name, or adapt to its new rows"
            raise FMRLError(f"the task {twice!r} was seen before", fix=fix)

    def _play(self, tasks: Tasks) -> None:
        """Play tasks in the user's units and remember them."""
        self._new(tasks.names)
        if self.state_ is not self.history_.state:  # streams moved it: a new history begins
            self.history_ = History(self.history_.algo, self.state_, self.history_.keep)
        history = self.history_
        for first in range(0, len(tasks), WINDOW):
            window = tasks.take(np.arange(first, min(first + WINDOW, len(tasks))))
            here = self.coordinates_.tasks(window)
            for rounds, state in play_tasks(history.algo, history.state, here):
                history.append(rounds, state)
        self.state_ = history.state
        self._known.update(tasks.names)
        self._waiting.append((tasks, self.prior_))

    def _settle(self) -> None:
        """Solve the models of tasks seen, from what was known when they were; until somebody
        asks, their rows wait.
        """
        waiting, self._waiting = self._waiting, []
        for tasks, prior in waiting:
            self._thetas |= zip(tasks.names, prior.adapt(tasks), strict=True)

    def _seen(self, task: Any) -> np.ndarray:
        task = task.item() if isinstance(task, np.generic) else task
        self._settle()
        if task not in self._thetas:
            fix = "adapt to some of its rows: adapt(X, y)"
            raise FMRLError(f"the task {task!r} was not seen in fit", fix=fix)
        return self._thetas[task]

    def _loss(self) -> Any:
        return loss_of(getattr(self, "classes_", None))

    def __getstate__(self) -> dict:
        if getattr(self, "_waiting", None):
            self._settle()  # rows do not belong into a stored model
        return super().__getstate__()
