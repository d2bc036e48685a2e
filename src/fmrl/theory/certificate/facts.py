"""Facts: what a history says, as NumPy columns, and every assumption that can be checked on it.

What is the user's own, a class that this library does not define, is assumed and never checked: a
subclass may change anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np

from fmrl.core.algorithm import FMRL
from fmrl.core.algorithm import bound as theorem_a1
from fmrl.core.arrays import namespace
from fmrl.core.history import OBSERVED, SCALARS, History
from fmrl.core.losses import Linear
from fmrl.core.metric import Metric
from fmrl.core.rules.within import FTRL, OGD, OMD
from fmrl.core.samples import Samples, identify
from fmrl.core.values import foreign
from fmrl.errors import FMRLError
from fmrl.theory.bounds import ASSUMED, CHECKED, FALSE, Assumption, distance, weights
from fmrl.theory.bounds.bound import decide, numbers

LEARNERS = {
    OMD: "Theorem A.1 (lazy mirror descent)",
    FTRL: "Theorem A.1 (follow the regularised leader)",
    OGD: "the telescoping argument for eager mirror descent, docs/theory.md",
}
DIGITS = 64  # units of the last digit, relative to the sum of a task's numbers, in a checksum


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
    row_checksum: np.ndarray
    target_checksum: np.ndarray
    convex: np.ndarray  # 1 where the losses are known to be convex, else 0
    optimum: np.ndarray | None
    theta: np.ndarray | None
    earlier: int  # tasks played before this history began
    meta_batch: int  # tasks that shared one phi
    tasks: list[Any] | None  # as they were played
    phi: tuple[np.ndarray, np.ndarray]  # before the first task and after the last
    violations: tuple[int, ...]  # tasks, counted from 0, whose guess was violated
    metric: bool  # whether steps were metrics; eta is then only their mean
    memory: Any  # of the similarity rule, after the last task
    meta: tuple[Any, Any]  # memory of the meta-update, before the first task and after the last
    order: int | None
    digit: float  # of the numbers that were played: what rounding may hide, relatively
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
    def has_foreign_losses(self) -> bool:
        """Whether some losses are not the library's own, so that they are taken on trust."""
        return not bool(np.all(self.convex == 1))

    @property
    def linear(self) -> bool:
        """Whether all losses are known to be linear."""
        return not self.has_foreign_losses and all(
            type(loss) is Linear for loss in self._losses or (None,)
        )

    @property
    def _losses(self) -> list[Any]:
        return [getattr(task, "loss", task) for task in self.tasks or ()]

    @cached_property
    def true_lipschitz(self) -> np.ndarray | None:
        """The true G_t of the tasks [T], if these were given and have any."""
        if self.tasks is None or self.distance is not None:
            return None  # where gradients were recorded no constants are needed
        try:
            return np.array([float(task.open().lipschitz(self.algo.domain)) for task in self.tasks])
        except FMRLError:  # squared losses without a bounded domain
            return None

    @property
    def task_bounds(self) -> np.ndarray:
        """Theorem A.1's bound on each task's regret [T]; nan where gradients had to be observed and
        were not."""
        if self.distance is not None and self.energy is not None:
            return self.distance + self.energy
        if self.metric:
            return np.full(self.count, np.nan)
        constants = self.lipschitz if self.true_lipschitz is None else self.true_lipschitz
        return theorem_a1(self.divergence, self.eta, constants, self.rounds)

    def of_this_order(self, memory: Any) -> Any:
        """A memory with NumPy arrays, of this order."""
        if isinstance(memory, tuple):
            return tuple(map(self.of_this_order, memory))
        if not hasattr(memory, "shape"):
            return memory
        return numbers(memory) if self.order is None else numbers(memory)[self.order]

    @cached_property
    def assumptions(self) -> dict[str, Assumption]:
        """What could be checked, by name."""
        # Where gradients were observed, what was met stands in every bound, and G in none.
        steep = [self._lipschitz()] if self.distance is None else []
        found = [self.convexity, *steep, self._learner(), *self.domain_assumptions[:1]]
        algo = self.algo
        if rules := [*foreign(algo.update), *foreign(algo.meta), *foreign(algo.similarity)]:
            inside = bool(np.all(algo.domain.contains(self.phi[1])))
            detail = f"{', '.join(rules)} taken on trust" if inside else "the last phi is outside"
            name = "phi and the step are known before each task, and phi is in the domain"
            found.append(Assumption(name, ASSUMED if inside else FALSE, detail))
        return {a.name: a for a in (*found, self._inside())}

    @property
    def convexity(self) -> Assumption:
        """Whether the losses are convex."""
        name = "convex losses"
        if not self.has_foreign_losses:
            kinds = ", ".join(sorted({type(loss).__name__ for loss in self._losses}))
            kinds = kinds or "the library's own, as they were played"
            return Assumption(name, CHECKED, f"{kinds}: convex in the margins of a linear model")
        for loss in self._losses:
            if getattr(loss, "convex", None) is False:
                return Assumption(name, FALSE, f"{type(loss).__name__} is not convex")
        kinds = sorted({kind for loss in self._losses for kind in foreign(loss)})
        detail = f"{', '.join(kinds) or 'some tasks'}: not a loss of this library"
        return Assumption(name, ASSUMED, detail)

    @cached_property
    def domain_assumptions(self) -> list[Assumption]:
        """What is taken on trust of a domain of the user's own, and false where the run shows the
        opposite: that theorems hold on it; and that B_R is that of the class of this library that
        it comes from, by which D* and D̄ are computed. Of the library's own domains, nothing.
        """
        domain, own = self.algo.domain, foreign(self.algo.domain)
        if not own:
            return []
        (a, b), wrong, trust = self._pairs, "", f"{own[0]} taken on trust"
        parent = next(c for c in type(domain).__mro__ if c.__module__.startswith("fmrl."))
        found, known = domain.divergence(a, b), parent.divergence(domain, a, b)
        if np.any(found < distance(domain, a, b) * (1 - 1e-9)):
            wrong = f"B_R of {own[0]} is less than ½‖·‖² in this run"
        elif not np.all(domain.contains((a + b) / 2)):
            wrong = f"{own[0]} lacks a point between two of its own"
        name = "the set is convex and R is 1-strongly convex"
        fits = Assumption(name, FALSE if wrong else ASSUMED, wrong or trust)
        same = np.allclose(found, known, rtol=1e-9, atol=1e-300)
        detail = trust if same else f"not that of {own[0]} in this run"
        name = f"B_R is that of {parent.__name__}"
        return [fits, Assumption(name, ASSUMED if same else FALSE, detail)]

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Points of the run by which a domain can be caught: neighbours among both phi, the optima
        and the update vectors.
        """
        kept = (a for a in (self.optimum, self.theta) if a is not None)
        points = np.concatenate([self.phi[0][None], *kept, self.phi[1][None], self.phi[0][None]])
        return points[:-1], points[1:]

    def _lipschitz(self) -> Assumption:
        name, used, true = "Lipschitz losses", self.lipschitz, self.true_lipschitz
        if true is not None:
            short = np.flatnonzero(used < true * (1 - self.digit))
            if short.size:
                t = int(short[np.argmax(true[short] / np.maximum(used[short], 1e-300))])
                detail = f"G = {used[t]:.4g} was used where {true[t]:.4g} is true, in {short.size}"
                return Assumption(name, FALSE, f"{detail} tasks")
            if self.has_foreign_losses or foreign(self.algo.domain):
                return Assumption(name, ASSUMED, f"the tasks say {_range(true)}")
            return Assumption(name, CHECKED, f"G_t from the data, {_range(true)}")
        if self.algo.lipschitz is not None:
            given = f"G = {self.algo.lipschitz:g} was given"
            if self._only_lipschitz_is_open and (above := self._above_the_bound).size:
                t = int(above[0])
                detail = f"{given}, which allows task {t} a regret of {self.task_bounds[t]:.4g}"
                return Assumption(name, FALSE, f"{detail}; it was {self.regret[t]:.4g}")
            detail = f"{given}; pass tasks= to check" if self.tasks is None else given
            return Assumption(name, ASSUMED, detail)
        if not (self.has_foreign_losses or foreign(self.algo.domain)):
            return Assumption(name, CHECKED, f"G_t from the rows as played, {_range(used)}")
        return Assumption(name, ASSUMED, "G_t as the tasks gave them in the run")

    @property
    def _only_lipschitz_is_open(self) -> bool:
        """Whether nothing else that Theorem A.1 needs can be false."""
        known = type(self.algo.within) in LEARNERS and not self.has_foreign_losses
        return known and not foreign(self.algo.domain)

    @property
    def _above_the_bound(self) -> np.ndarray:
        """The tasks whose regret exceeds Theorem A.1's bound."""
        room = self.digit * (np.abs(self.regret) + np.abs(self.task_bounds))
        return np.flatnonzero(self.regret > self.task_bounds + room)

    def _learner(self) -> Assumption:
        within, ground = self.algo.within, LEARNERS.get(type(self.algo.within))
        detail = f"{within!r}: {ground}" if ground else f"nothing is known about {within!r}"
        name = "within-task learner has a regret bound"
        if ground and (own := foreign(self.algo.domain)):
            return Assumption(name, ASSUMED, f"{detail}, with the steps of {own[0]}")
        return decide(name, ground is not None, detail)

    def _inside(self) -> Assumption:
        name = "optima in the domain"
        if self.optimum is None:
            return Assumption(name, ASSUMED, "the history kept scalars only")
        outside = ~np.asarray(self.algo.domain.contains(self.optimum))
        if outside.any():
            detail = f"task {int(np.argmax(outside))} and {int(outside.sum()) - 1} more"
            return Assumption(name, FALSE, detail)
        if own := foreign(self.algo.domain):
            return Assumption(name, ASSUMED, f"{own[0]} taken on trust")
        return Assumption(name, CHECKED, f"all {self.count}")


def _range(values: np.ndarray) -> str:
    return f"{values.min():.4g} to {values.max():.4g}"


def read(history: History, tasks: Iterable[Any] | None, order: int | None) -> Facts:
    """The facts of a history (of one order, where it holds several)."""
    kept = history.keep != "scalars"
    names = (*SCALARS, *(name for name in OBSERVED if hasattr(history, name)))
    columns: dict[str, Any] = {name: numbers(getattr(history, name)) for name in names}
    columns |= {n: numbers(getattr(history, n)) if kept else None for n in ("optimum", "theta")}
    phi = numbers(history.start.phi), numbers(history.state.phi)
    if columns["regret"].ndim > 1:
        count = columns["regret"].shape[0]
        if type(order) is bool or not isinstance(order, Integral) or order not in range(count):
            fix = f"say which: certify(history, order=0 … {count - 1})"
            raise FMRLError(f"the history holds {count} orders", fix=fix)
        lead = columns["regret"].ndim
        columns = {n: a if a is None or a.ndim < lead else a[order] for n, a in columns.items()}
        phi = phi[0][order], phi[1][order]
    elif order is not None:
        raise FMRLError("the history holds one order", fix="leave order out")
    if tasks is not None and not hasattr(tasks, "__iter__"):
        raise FMRLError(f"tasks must be a list of those that were played, not {tasks!r:.60}")
    given = None if tasks is None else list(tasks)
    if given is not None:
        _check_tasks(given, columns)
    earlier = max(0, int(history.state.tasks) - columns["regret"].size)
    run = {"earlier": earlier, "meta_batch": history.meta_batch, "tasks": given, "phi": phi}
    violated = numbers(history.violations)[() if order is None else order]
    run |= {"violations": tuple(np.flatnonzero(violated).tolist())}
    metric, memory = isinstance(history.state.guess, Metric), history.state.similarity
    meta = history.start.meta, history.state.meta
    digit = max(1e-9, DIGITS * float(namespace(history.regret).finfo(history.regret.dtype).eps))
    run |= {"metric": metric, "memory": memory, "meta": meta, "order": order, "digit": digit}
    return Facts(history.algo, **columns, **run)


def _check_tasks(tasks: list[Any], columns: dict[str, np.ndarray]) -> None:
    """Refuse tasks that were not played: their rows, targets or loss have other checksums."""
    if len(tasks) != columns["rounds"].size:
        played = columns["rounds"].size
        raise FMRLError(f"the history is of {played} tasks, but {len(tasks)} were given")
    for t, task in enumerate(tasks):
        if not hasattr(task, "open"):
            raise FMRLError(f"{task!r} is not a task", task=t, fix="give the tasks as played")
        game, m, room = task.open(), columns["rounds"][t], {}
        if isinstance(game, Samples):
            if game.length != m:
                what = f"has {game.length} rounds, but {m:g} were played: not the tasks of this"
                raise FMRLError(f"{what} history", task=t)
            digit = DIGITS * (1e-7 if "32" in str(game.X.dtype) else 2.3e-16)
            for name, a in (("row_checksum", game.X), ("target_checksum", game.target)):
                room[name] = digit * float(np.sum(np.abs(numbers(a))))
        for name, value in identify(game, np.zeros(())).items():
            found, recorded = float(value), columns[name][t]
            both = np.isnan(found) and np.isnan(recorded)
            if not (both or abs(found - recorded) <= room.get(name, 0.0)):
                fix = "give the tasks in the order they were played"
                raise FMRLError("is not the task that was played", task=t, fix=fix)
