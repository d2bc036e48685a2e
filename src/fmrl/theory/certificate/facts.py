"""Facts: what a history says, as NumPy columns, and every assumption that can be checked on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fmrl.core.algorithm import FMRL
from fmrl.core.algorithm import bound as theorem_a1
from fmrl.core.history import OBSERVED, SCALARS, History
from fmrl.core.losses import Hinge, Linear, Logistic, OneVsAll, Softmax, Squared, Weighted
from fmrl.core.metric import Metric
from fmrl.core.rules.within import FTRL, OGD, OMD
from fmrl.core.tasks import Task
from fmrl.errors import FMRLError
from fmrl.theory.bounds import ASSUMED, CHECKED, FALSE, Assumption, weights
from fmrl.theory.bounds.bound import numbers

# A subclass may change anything, so losses and learners are known by their exact type.
CONVEX_LOSSES = {Hinge, Linear, Logistic, OneVsAll, Softmax, Squared, Weighted}
LEARNERS = {
    OMD: "Theorem A.1 (lazy mirror descent)",
    FTRL: "Theorem A.1 (follow the regularised leader)",
    OGD: "the telescoping argument for eager mirror descent, docs/theory.md",
}


@dataclass(frozen=True)
class Facts:
    """One run: the columns of its history [T], vectors [T, d] if kept, and its tasks if given."""

    algo: FMRL
    regret: np.ndarray
    gap: np.ndarray
    guess: np.ndarray
    eta: np.ndarray
    divergence: np.ndarray
    deviation: np.ndarray
    lipschitz: np.ndarray
    rounds: np.ndarray
    optimum: np.ndarray | None
    theta: np.ndarray | None
    earlier: int  # tasks played before this history began
    meta_batch: int  # tasks that shared one phi
    tasks: list[Any] | None  # as they were played
    loss: Any  # of all tasks, where that is known
    metric: bool  # whether steps were metrics; eta is then only their mean
    memory: Any  # of the similarity rule, after the last task
    meta: tuple[Any, Any]  # memory of the meta-update, before the first task and after the last
    order: int | None
    distance: np.ndarray | None = None  # this and energy: where the rule observes gradients
    energy: np.ndarray | None = None

    @property
    def count(self) -> int:
        """T."""
        return self.regret.size

    @property
    def sigma(self) -> np.ndarray:
        """G_t·√m_t as the run used them, [T]."""
        return weights(self.lipschitz, self.rounds)

    @property
    def absolute(self) -> bool:
        """Whether the rule learns a step and guesses no distance."""
        return getattr(getattr(self.algo, "similarity", None), "absolute", False)

    @property
    def violations(self) -> tuple[int, ...]:
        """The tasks, counted from 0, whose guess was violated; a step guesses no distance."""
        if self.absolute:
            return ()
        return tuple(np.flatnonzero(self.guess < np.sqrt(self.deviation)).tolist())

    @property
    def linear(self) -> bool:
        """Whether all losses are known to be linear."""
        losses = [getattr(task, "loss", None) for task in self.tasks or ()]
        return bool(losses) and all(isinstance(loss, Linear) for loss in losses)

    @cached_property
    def constants(self) -> np.ndarray | None:
        """The true G_t of the tasks [T], if these were given."""
        if self.tasks is None or getattr(self.algo.similarity, "observes", None):
            return None  # a rule that observes gradients needs no constants
        return np.array([float(task.open().lipschitz(self.algo.domain)) for task in self.tasks])

    @property
    def each(self) -> np.ndarray:
        """Theorem A.1's bound on each task's regret [T]; nan where gradients had to be observed and
        were not."""
        if self.distance is not None and self.energy is not None:
            return self.distance + self.energy
        if self.metric:
            return np.full(self.count, np.nan)
        constants = self.lipschitz if self.constants is None else self.constants
        return theorem_a1(self.divergence, self.eta, constants, self.rounds)

    def alone(self, memory: Any) -> Any:
        """A memory with NumPy arrays, of this order."""
        if isinstance(memory, tuple):
            return tuple(map(self.alone, memory))
        if not hasattr(memory, "shape"):
            return memory
        return numbers(memory) if self.order is None else numbers(memory)[self.order]

    @cached_property
    def assumptions(self) -> dict[str, Assumption]:
        """What could be checked, by name."""
        checks = {
            "Lipschitz losses": self._lipschitz(),
            "within-task learner has a regret bound": self._learner(),
            "optima in the domain": self._inside(),
        }
        if self.distance is not None:  # what was met stands in every bound, G in none
            del checks["Lipschitz losses"]
        found = {name: Assumption(name, *found) for name, found in checks.items()}
        return {self.convex.name: self.convex} | found

    @property
    def convex(self) -> Assumption:
        """Whether the losses are convex."""
        return Assumption("convex losses", *self._convex())

    def _convex(self) -> tuple[str, str]:
        if self.tasks is None and type(self.loss) not in CONVEX_LOSSES:
            return ASSUMED, "give tasks= to check"
        losses = [self.loss]
        if self.tasks is not None:
            losses = [task if _loss(task) is None else _loss(task) for task in self.tasks]
        foreign = [loss for loss in losses if type(loss) not in CONVEX_LOSSES]
        for loss in foreign:
            if getattr(loss, "convex", None) is False:
                return FALSE, f"{type(loss).__name__} is not convex"
        if foreign:
            return ASSUMED, "tasks of a kind this library does not know"
        kinds = ", ".join(sorted({type(loss).__name__ for loss in losses}))
        return CHECKED, f"{kinds}: convex in the margins of a linear model"

    def _lipschitz(self) -> tuple[str, str]:
        used, true = self.lipschitz, self.constants
        if true is not None:
            short = np.flatnonzero(used < true * (1 - 1e-9))
            if short.size:
                t = int(short[np.argmax(true[short] / np.maximum(used[short], 1e-300))])
                where = f"in {short.size} tasks"
                return FALSE, f"G = {used[t]:.4g} was used where {true[t]:.4g} is true, {where}"
            if all(isinstance(task, Task) for task in self.tasks or ()):
                return CHECKED, f"G_t from the data, {_range(true)}"
            return ASSUMED, f"the tasks say {_range(true)}"
        if self.algo.lipschitz is not None:
            return ASSUMED, f"G = {self.algo.lipschitz:g} was given; pass tasks= to check"
        if type(self.loss) in CONVEX_LOSSES:
            return CHECKED, f"G_t from the rows as they were played, {_range(used)}"
        return ASSUMED, "G_t as the tasks gave them in the run; pass tasks= to check"

    def _learner(self) -> tuple[str, str]:
        ground = LEARNERS.get(type(self.algo.within))
        if ground is None:
            return FALSE, f"nothing is known about {self.algo.within!r}"
        return CHECKED, f"{self.algo.within!r}: {ground}"

    def _inside(self) -> tuple[str, str]:
        if self.optimum is None:
            return ASSUMED, "the history kept scalars only"
        outside = ~np.asarray(self.algo.domain.contains(self.optimum))
        if outside.any():
            return FALSE, f"task {int(np.argmax(outside))} and {int(outside.sum()) - 1} more"
        return CHECKED, f"all {self.count}"


def _loss(task: Any) -> Any:
    return getattr(task, "loss", None)


def _range(values: np.ndarray) -> str:
    return f"{values.min():.4g} to {values.max():.4g}"


def read(history: History, tasks: Iterable[Any] | None, order: int | None, loss: Any) -> Facts:
    """The facts of a history (of one order, where it holds several)."""
    kept = history.keep != "scalars"
    names = (*SCALARS, *(name for name in OBSERVED if hasattr(history, name)))
    columns: dict[str, Any] = {name: numbers(getattr(history, name)) for name in names}
    vectors = {n: numbers(getattr(history, n)) if kept else None for n in ("optimum", "theta")}
    several = columns["regret"].ndim > 1
    if several:
        count = columns["regret"].shape[0]
        if order is None or not 0 <= order < count:
            fix = f"say which: certify(history, order=0 … {count - 1})"
            raise FMRLError(f"the history holds {count} orders", fix=fix)
        columns = {name: a[order] if a.ndim > 1 else a for name, a in columns.items()}
        vectors = {name: None if a is None else a[order] for name, a in vectors.items()}
    elif order is not None:
        raise FMRLError("the history holds one order", fix="leave order out")
    given = None if tasks is None else list(tasks)
    if given is not None:
        _check_tasks(given, columns["rounds"], None if several else history)
    earlier = max(0, int(history.state.tasks) - columns["regret"].size)
    run = {"earlier": earlier, "meta_batch": history.meta_batch, "tasks": given, "loss": loss}
    metric, memory = isinstance(history.state.guess, Metric), history.state.similarity
    meta = history.start.meta, history.state.meta
    run |= {"metric": metric, "memory": memory, "meta": meta, "order": order}
    return Facts(history.algo, **columns, **vectors, **run)


def _check_tasks(tasks: list[Any], rounds: np.ndarray, history: History | None) -> None:
    """Refuse tasks that were not played: the recorded optimum must have the recorded loss."""
    if len(tasks) != rounds.size:
        raise FMRLError(f"the history is of {rounds.size} tasks, but {len(tasks)} were given")
    for t, (task, m) in enumerate(zip(tasks, rounds, strict=True)):
        length = getattr(task, "rounds", None)
        if isinstance(length, int) and length != m:
            what = f"has {length} rounds, but {m:g} were played: not the tasks of this history"
            raise FMRLError(what, task=t)
    if history is None or history.keep != "all":
        return
    regret = numbers(history.regret)
    tolerance = 1e-3 if "32" in str(history.regret.dtype) else 1e-6
    for t, task in enumerate(tasks):
        if isinstance(task, Task):
            losses = numbers(history.losses[t])
            recorded = float(losses.sum() - regret[t])
            found = float(numbers(task.open().losses(history.optimum[t, ...])).sum())
            scale = abs(recorded) + float(np.abs(losses).sum())
            if abs(found - recorded) > tolerance * scale + 1e-12:
                fix = "give the tasks in the order they were played"
                raise FMRLError("is not the task that was played", task=t, fix=fix)
