"""The run of Algorithm 2 behind an estimator: the state that moves, and what happened.

Models of tasks need the prior and not the run. So the tasks of `fit` are played when something of
the run is first asked for.
"""

from __future__ import annotations

import copy
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fmrl.core.batched import play_tasks
from fmrl.core.history import History
from fmrl.core.metric import mean_step
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError

if TYPE_CHECKING:
    from fmrl.estimators.coordinates import Coordinates
    from fmrl.estimators.rows import TaskRows
    from fmrl.estimators.rows_sqlite import SQLiteRows

# Tasks played at once, counted from the first, so that a resumed run has the same bits.
WINDOW = 1024
ORDINARY = 1e12  # below, no number can be too large for the solver, in whichever units


class Unbroken:
    """Ctrl-C waits for the end of the block, which takes a moment, so that what is changed inside
    is changed as a whole. Signals reach the main thread only.
    """

    __slots__ = ("asked", "before")

    def __enter__(self) -> None:
        self.asked, self.before = None, None
        if threading.current_thread() is threading.main_thread():
            self.before = signal.getsignal(signal.SIGINT)
            try:
                if callable(self.before):
                    signal.signal(signal.SIGINT, self._wait)
            except ValueError:  # in an interpreter that is not the first, signals are not ours
                self.before = None

    def _wait(self, *given: Any) -> None:
        self.asked = given

    def __exit__(self, *_: Any) -> None:
        if callable(self.before):
            signal.signal(signal.SIGINT, self.before)
            if self.asked:
                self.before(*self.asked)


class Running(BaseEstimator):
    """The run of one estimator, which begins with ``history_`` and ``state_``."""

    coordinates_: Coordinates
    lipschitz_: float
    _rows: TaskRows | SQLiteRows
    _waiting: Tasks | None  # that were not played yet

    @property
    def history_(self) -> History:
        """What happened in the run of Algorithm 2, which is played when it is first asked for."""
        self._catch_up()
        return self._history

    @history_.setter
    def history_(self, history: History) -> None:
        self._history = history

    @property
    def state_(self) -> Any:
        """Where that run is, and streams after it: phi, and how far tasks are expected from it."""
        self._catch_up()
        return self._state

    @state_.setter
    def state_(self, state: Any) -> None:
        self._state = state

    def _catch_up(self) -> None:
        """Play the tasks of `fit`, of which models need no run."""
        if "_state" not in vars(self):
            self._fitted()
        if vars(self).get("_waiting") is None:
            return
        with self._lock:
            if self._waiting is not None:
                self._run(self._history, self._waiting)

    @property
    def guess_(self) -> float:
        """D, the distance from phi within which tasks are expected."""
        guess = mean_step(self.state_.guess)
        if getattr(self.history_.algo.similarity, "absolute", False):
            guess *= self.lipschitz_  # a step, not a distance: D = eta·G for one row
        return float(guess)

    @property
    def n_tasks_seen_(self) -> int:
        """How many tasks were played, those of streams and those since forgotten included."""
        if not self._begun:
            return 0
        with self._lock:
            return self._state.tasks + (0 if self._waiting is None else len(self._waiting))

    @property
    def _begun(self) -> bool:
        """Whether a task was seen."""
        return "_history" in vars(self)

    def _fitted(self) -> None:
        """Refuse an estimator that was not fitted; scikit-learn's own check takes 20 µs to pass."""
        if not self._begun:
            check_is_fitted(self, "_history")

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
            if self._begun:  # searches with n_jobs pickle one that was not fitted
                self._catch_up()
            state = dict(super().__getstate__())
            for name in ("_guard", "_setting"):  # which are made again when needed
                state.pop(name, None)
            return copy.deepcopy(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        new = memo[id(self)] = type(self).__new__(type(self))
        new.__setstate__(self.__getstate__())
        return new

    def _new(self, names: Any) -> None:
        """Refuse tasks that were seen before."""
        twice = next((name for name in names if name in self._rows), None)
        if twice is not None:
            fix = "give its new rows to update"
            raise FMRLError(f"the task {twice!r} was seen before", fix=fix)

    def _play(
        self, tasks: Tasks, keep: bool = True, rows: Tasks | None = None, later: bool = False,
        observe: bool = False,
    ) -> None:  # fmt: skip
        """Play tasks in the user's units and remember their rows; what cannot be played or stored
        changes nothing.

        Args:
            tasks: None of them known.
            keep: Whether rows are remembered.
            rows: Those to be remembered, if not only of these tasks.
            later: Whether the first tasks may be played when somebody asks for the run. Rules that
                a user chose, or huge numbers, may make that impossible, which he should hear now;
                and what lies in a store is not held.
            observe: Whether the prior is to be learned from them, too.
        """
        self._new(tasks.names)
        asked = (self.within, vars(self)["update"], self.meta, self.similarity, self.store)
        if later and all(given is None for given in asked) and _ordinary(tasks):
            self._add(tasks)
            self._waiting = self._rows.take(tasks.names)  # the user may change what he gave
            return
        history = self.history_
        if self.state_ is not history.state:  # streams moved it: a new history begins
            history = History(history.algo, self.state_, history.keep)
        self._run(history, tasks, (tasks if rows is None else rows) if keep else None, observe)

    def _run(
        self, history: History, tasks: Tasks, rows: Tasks | None = None, observe: bool = False
    ) -> None:
        """Play tasks, and remember them and some rows once that is done."""
        state, played = history.state, []
        for first in range(0, len(tasks), WINDOW):
            window = tasks.take(np.arange(first, min(first + WINDOW, len(tasks))))
            played += play_tasks(history.algo, state, self.coordinates_.tasks(window))
            state = played[-1][1]
        with Unbroken():
            if rows is not None:
                self._add(rows)
            for rounds, state in played:
                history.append(rounds, state)
            self._history, self._state, self._waiting = history, history.state, None
            if observe:
                self._observe(tasks)


def _ordinary(tasks: Tasks) -> bool:
    """Whether all numbers are far from those that a run would refuse."""
    return all(max(a.max(), -a.min()) < ORDINARY for a in (tasks.X, tasks.target) if a.size)
