"""The run behind an estimator: what is chosen from the first tasks, the state that moves, and the
tasks seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
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
from fmrl.estimators.calibration import calibrate, members, spaced
from fmrl.estimators.common import with_common
from fmrl.estimators.coordinates import coordinates_of
from fmrl.estimators.environment import Environment, environment_of
from fmrl.estimators.rows import TaskRows, joined
from fmrl.estimators.stream import Streams
from fmrl.estimators.task_models import Prior, loss_of

WINDOW = (
    1024  # tasks played at once, counted from the first, so that a resumed run has the same bits
)
VECTORS = 10_000_000  # numbers of optima that a history may hold; beyond, it keeps scalars only
PILOT = 1000  # tasks from which the prior is learned, at most …
ROWS = 20_000  # … or up to four times as many, to have so many rows
NUMBERS = 1 << 21  # … but no more than so many numbers, over all outputs
FITTED = ("history_", "state_", "coordinates_", "lipschitz_", "_prior")


class Learning(BaseEstimator):
    """The run of one estimator; its parameters are those of `MetaClassifier`."""

    @property
    def prior_(self) -> Prior:
        """What was learned across tasks: from it new tasks are adapted to."""
        if self._stale:
            self._learn()
        return self._prior

    @property
    def guess_(self) -> float:
        """D, the distance from phi within which tasks are expected."""
        guess = mean_step(self.state_.guess)
        if getattr(self.history_.algo.similarity, "absolute", False):
            guess *= self.lipschitz_  # a step, not a distance: D = eta·G for one row
        return float(guess)

    @property
    def n_tasks_seen_(self) -> int:
        """How many tasks were played, those of streams included."""
        return self.state_.tasks if hasattr(self, "history_") else 0

    def _reset(self) -> None:
        for name in FITTED:
            vars(self).pop(name, None)
        self.streams_ = Streams()
        self._pilot: Tasks | None = None  # of which the prior is learned
        self._fresh: list[Tasks] = []  # that have come since
        self._stale = False  # whether it is to be learned when next asked for
        self._rows, self._warned = TaskRows(), False
        self._models: dict[Any, np.ndarray] = {}  # theta [outputs, width] of tasks asked for

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
        self._pilot = tasks.take(spaced(len(tasks), pilot_size(tasks)))
        self._stale = True
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

    def _learn(self, tasks: Tasks | None = None) -> None:
        """Learn the prior from the pilot, or from the latest tasks where they say more.

        Args:
            tasks: All that there are, of which the pilot is a part (default: the pilot).
        """
        assert self._pilot is not None
        classes, intercept = getattr(self, "classes_", None), self._even.constant > 0
        pilot, tasks, seed = self._pilot, tasks or self._pilot, self._seed()
        even = self._even.tasks(pilot)
        found = environment_of(even, intercept, self.environment, len(tasks), seed)
        if found.kind == "recent":
            size = min(max(2, round(found.window * len(tasks))), pilot_size(tasks), len(tasks))
            pilot = tasks.take(np.arange(len(tasks) - size, len(tasks)))
        pilot, here, common = with_common(pilot, self._even, self.common, classes)
        extra = pilot.X.shape[1] - self._even.centre.size
        group, rule = calibrate(
            here.tasks(pilot), members(intercept, extra, found.centres), seed, self.scoring
        )
        known = classes, getattr(self, "encoder_", None), common, found
        self._prior = Prior(here, tuple(group), rule, *known)
        self._models, self._stale = {}, False

    @property
    def environment_(self) -> Environment:
        """Whether tasks stay around one place, drift, or lie around several centres; print it."""
        return self.prior_.environment

    def _observe(self, task: Tasks) -> None:
        """Keep one more task for the prior, which is learned again when as many have come as it was
        learned from.
        """
        assert self._pilot is not None
        self._fresh.append(task)
        most = pilot_size(self._pilot)
        if sum(map(len, self._fresh)) >= min(len(self._pilot), most):
            whole = joined([self._pilot, *self._fresh])
            self._pilot = whole.take(np.arange(max(0, len(whole) - most), len(whole)))
            self._fresh, self._stale = [], True

    def _seed(self) -> int:
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31))
        if not (self.random_state is None or isinstance(self.random_state, Integral)):
            raise FMRLError(f"random_state must be a whole number, not {self.random_state!r}")
        return int(self.random_state or 0)

    def _name(self, given: Any) -> Any:
        """The name of one more task: as given, or the first number from the count of tasks on
        that none has yet.
        """
        if given is None:
            return next(n for n in itertools.count(self.n_tasks_seen_) if n not in self._rows)
        given = given.item() if isinstance(given, np.generic) else given
        if not isinstance(given, Hashable):
            raise FMRLError(f"{given!r} cannot name a task", fix="give one number or text")
        return given

    def _new(self, names: Any) -> None:
        """Refuse tasks that were seen before."""
        twice = next((name for name in names if name in self._rows), None)
        if twice is not None:
            fix = "give it another name, or adapt to its new rows"
            raise FMRLError(f"the task {twice!r} was seen before", fix=fix)

    def _play(self, tasks: Tasks, keep: bool = True) -> None:
        """Play tasks in the user's units and remember their rows."""
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
        if keep:
            self._rows.add(tasks)

    def _thetas(self, names: list[Any]) -> np.ndarray:
        """Models [T, outputs, width] of tasks seen, solved when somebody first asks."""
        models = self._models
        if missing := [name for name in names if name not in models]:
            found = self.prior_.adapt(self._rows.take(missing)).theta
            models.update(zip(missing, found, strict=True))
        return np.stack([models[name] for name in names])

    def _loss(self) -> Any:
        return loss_of(getattr(self, "classes_", None))


def pilot_size(tasks: Tasks) -> int:
    """From how many tasks of this kind the prior is learned."""
    rows = max(len(tasks.X) / max(len(tasks), 1), 1.0)
    size = rows * tasks.X.shape[1] * tasks.loss.outputs
    return int(max(min(max(PILOT, min(ROWS / rows, 4 * PILOT)), NUMBERS / size), 64))
