"""Facts: what a history says, as NumPy columns, and what can be checked about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fmrl.core import losses as library
from fmrl.core.algorithm import FMRL
from fmrl.core.history import SCALARS, History
from fmrl.core.losses import Weighted
from fmrl.core.rules.within import FTRL, OGD, OMD
from fmrl.core.tasks import Task
from fmrl.errors import FMRLError
from fmrl.theory.bounds.bound import ASSUMED, CHECKED, FALSE, Assumption, numbers

CONVEX_LOSSES = tuple(
    value
    for value in vars(library).values()
    if isinstance(value, type) and issubclass(value, library.Loss)
)
CONVEX_LOSSES += (Weighted,)
LEARNERS = {
    OMD: "Theorem A.1 (lazy mirror descent)",
    FTRL: "Theorem A.1 (follow the regularised leader)",
    OGD: "the telescoping argument for eager mirror descent, docs/theory.md",
}


@dataclass(frozen=True)
class Facts:
    """One run: columns [T], vectors [T, d] if kept, the true Lipschitz constants if the tasks were
    given.
    """

    algo: FMRL
    columns: dict[str, np.ndarray]  # the scalars of History
    optimum: np.ndarray | None
    theta: np.ndarray | None
    earlier: int  # tasks played before this history began
    constants: np.ndarray | None  # G_t of the tasks, [T]
    assumptions: dict[str, Assumption]
    linear: bool  # all losses are linear
    meta_batch: int = 1  # tasks that shared one phi

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in SCALARS:
            raise AttributeError(name)
        return self.columns[name]

    @property
    def tasks(self) -> int:
        """T."""
        return self.regret.size

    @property
    def sigma(self) -> np.ndarray:
        """G_t·√m_t as the run used them, [T]."""
        return self.lipschitz * np.sqrt(self.rounds)

    @property
    def violations(self) -> tuple[int, ...]:
        """The tasks, counted from 0, whose guess was violated."""
        return tuple(np.flatnonzero(self.guess < np.sqrt(self.deviation)).tolist())


def gather(
    history: History, tasks: Iterable[Any] | None, order: int | None, loss: Any = None
) -> Facts:
    """Columns of the history (of one order, where it holds several) and every assumption that can
    be looked at.
    """
    columns = {name: numbers(getattr(history, name)) for name in SCALARS}
    kept = history.keep != "scalars"
    vectors = {
        name: numbers(getattr(history, name)) if kept else None for name in ("optimum", "theta")
    }
    several = columns["regret"].ndim > 1
    if several:
        if order is None or not 0 <= order < columns["regret"].shape[0]:
            count = columns["regret"].shape[0]
            raise FMRLError(
                f"the history holds {count} orders",
                fix=f"say which: certify(history, order=0 … {count - 1})",
            )
        columns = {name: a[order] if a.ndim > 1 else a for name, a in columns.items()}
        vectors = {name: None if a is None else a[order] for name, a in vectors.items()}
    elif order is not None:
        raise FMRLError("the history holds one order", fix="leave order out")
    listed = None if tasks is None else list(tasks)
    if listed is not None:
        _same(listed, columns["rounds"])
        if history.keep == "all" and not several:
            _played(listed, history)
    constants = (
        None
        if listed is None
        else np.array([float(t.open().lipschitz(history.algo.domain)) for t in listed])
    )
    played = int(history.state.tasks)
    facts = Facts(
        history.algo,
        columns,
        vectors["optimum"],
        vectors["theta"],
        max(0, played - columns["regret"].size),
        constants,
        {},
        bool(listed) and all(isinstance(getattr(t, "loss", None), library.Linear) for t in listed),
        history.meta_batch,
    )
    ours = listed is not None and all(isinstance(t, Task) for t in listed)
    checks = (
        _convex(listed, loss),
        _lipschitz(facts, ours, loss),
        _learner(facts),
        *_inside(facts),
    )
    facts.assumptions.update({a.name: a for a in checks})
    return facts


def _same(tasks: list[Any], rounds: np.ndarray) -> None:
    if len(tasks) != rounds.size:
        raise FMRLError(f"the history is of {rounds.size} tasks, but {len(tasks)} were given")
    for t, (task, m) in enumerate(zip(tasks, rounds, strict=True)):
        length = getattr(task, "rounds", None)
        if isinstance(length, int) and length != m:
            raise FMRLError(
                f"has {length} rounds, but {m:g} were played: not the tasks of this history", task=t
            )


def _played(tasks: list[Any], history: History) -> None:
    """The tasks given must be those that were played: the recorded optimum has the recorded loss on
    each of them.
    """
    for t, (task, losses) in enumerate(zip(tasks, history.losses, strict=True)):
        if isinstance(task, Task):
            recorded = float(numbers(losses).sum() - numbers(history.regret)[t])
            found = float(numbers(task.open().losses(history.optimum[t, ...])).sum())
            scale = abs(recorded) + float(np.abs(numbers(losses)).sum())
            if (
                abs(found - recorded)
                > (1e-3 if "32" in str(history.regret.dtype) else 1e-6) * scale + 1e-12
            ):
                raise FMRLError(
                    "is not the task that was played",
                    task=t,
                    fix="give the tasks in the order they were played",
                )


def _convex(tasks: list[Any] | None, loss: Any) -> Assumption:
    name = "convex losses"
    if tasks is None and type(loss) in CONVEX_LOSSES:
        return Assumption(
            name, CHECKED, f"{type(loss).__name__}: convex in the margins of a linear model"
        )
    if tasks is None:
        return Assumption(name, ASSUMED, "give tasks= to check")
    claims = []
    for task in tasks:
        loss = getattr(task, "loss", None)
        known = type(loss) in CONVEX_LOSSES
        claims.append(
            True if known else getattr(loss if loss is not None else task, "convex", None)
        )
        if claims[-1] is False:
            return Assumption(
                name, FALSE, f"{type(loss if loss is not None else task).__name__} is not convex"
            )
        if known:
            continue
        claims[-1] = None  # somebody's word, not ours
    if all(claims):
        kinds = sorted({type(task.loss).__name__ for task in tasks})
        return Assumption(
            name, CHECKED, f"{', '.join(kinds)}: convex in the margins of a linear model"
        )
    return Assumption(name, ASSUMED, "tasks of a kind this library does not know")


def _lipschitz(facts: Facts, ours: bool, loss: Any) -> Assumption:
    name = "Lipschitz losses"
    if facts.constants is None and facts.algo.lipschitz is None and type(loss) in CONVEX_LOSSES:
        span = f"{facts.lipschitz.min():.4g} to {facts.lipschitz.max():.4g}"
        return Assumption(name, CHECKED, f"G_t from the rows as they were played, {span}")
    if facts.constants is not None:
        short = np.flatnonzero(facts.lipschitz < facts.constants * (1 - 1e-9))
        if short.size:
            t = int(
                short[
                    np.argmax(facts.constants[short] / np.maximum(facts.lipschitz[short], 1e-300))
                ]
            )
            detail = f"G = {facts.lipschitz[t]:.4g} was used where {facts.constants[t]:.4g} is true, in {short.size} tasks"
            return Assumption(name, FALSE, detail)
        span = f"{facts.constants.min():.4g} to {facts.constants.max():.4g}"
        return (
            Assumption(name, CHECKED, f"G_t from the data, {span}")
            if ours
            else Assumption(name, ASSUMED, f"the tasks say {span}")
        )
    if facts.algo.lipschitz is None:
        return Assumption(
            name, ASSUMED, "G_t as the tasks gave them in the run; pass tasks= to check"
        )
    return Assumption(
        name, ASSUMED, f"G = {facts.algo.lipschitz:g} was given; pass tasks= to check"
    )


def _learner(facts: Facts) -> Assumption:
    ground = LEARNERS.get(type(facts.algo.within))
    name = "within-task learner has a regret bound"
    if ground is None:
        return Assumption(name, FALSE, f"nothing is known about {facts.algo.within!r}")
    return Assumption(name, CHECKED, f"{facts.algo.within!r}: {ground}")


def _inside(facts: Facts) -> tuple[Assumption, ...]:
    if facts.optimum is None:
        return (Assumption("optima in the domain", ASSUMED, "the history kept scalars only"),)
    outside = ~np.asarray(facts.algo.domain.contains(facts.optimum))
    if outside.any():
        t = int(np.argmax(outside))
        return (
            Assumption(
                "optima in the domain", FALSE, f"task {t} and {int(outside.sum()) - 1} more"
            ),
        )
    return (Assumption("optima in the domain", CHECKED, f"all {facts.tasks}"),)
