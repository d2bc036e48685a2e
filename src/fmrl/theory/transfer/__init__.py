"""Distributional learning-to-learn: what a meta-learned state is worth on a task nobody has seen
(Theorem thm:batch).

Draw a state A_t = (phi_t, D_t) of a finished run uniformly, run the within-task learner from it on
m samples of a new task, and answer with the average θ̄ of its actions. If tasks are i.i.d., so are
samples within tasks, and losses lie in [0, 1], then with probability 1 − δ over the run, for every
θ* (which may depend on the task)

    E_t E_task E_samples ℓ(θ̄)  ≤  E ℓ(θ*) + TAR/m + sqrt(8·log(1/δ)/T).

The same proof with the losses suffered in place of the regret needs no θ*, so the right-hand side
is a number of the run alone:

    E_t E_task E_samples ℓ(θ̄)  ≤  (1/T)·Σ_t (1/m)·Σ_i ℓ_{t,i}(θ_{t,i}) + sqrt(2·log(1/δ)/T).

Losses in [a, b] are rescaled: the square roots are multiplied by b − a. If no such range exists, no
guarantee is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.algorithm import State
from fmrl.core.arrays import Array, namespace, to_numpy
from fmrl.core.history import History
from fmrl.core.rules.meta import End
from fmrl.core.rules.within import play
from fmrl.core.tasks import Task
from fmrl.errors import FMRLError
from fmrl.theory.bounds import online_to_batch
from fmrl.theory.transfer.intervals import Estimate, mean, span


def states(history: History) -> list[State]:
    """The State before each task, by replaying the meta-level on what the history recorded; T of
    them.

    >>> import numpy as np, fmrl
    >>> tasks = [fmrl.Task([[1.0]], [y], loss=fmrl.Squared()) for y in (0.2, 0.4)]
    >>> [float(state.phi[0].round(6)) for state in states(fmrl.run(fmrl.FMRL(), tasks))]
    [0.0, 0.2]
    """
    if not isinstance(history, History):
        raise FMRLError(
            f"{type(history).__name__} is not a History", fix="give what fmrl.run returned"
        )
    if history.keep != "all":
        raise FMRLError(
            "the history kept scalars only, so phi cannot be replayed", fix="run with keep='all'"
        )
    xp = namespace(history.state.phi)
    sigma = history.lipschitz * xp.sqrt(history.rounds)
    found, state = [], history.start
    for t in range(len(history)):
        found.append(state)
        end = End(history.theta[..., t, :], history.optimum[..., t, :], sigma[..., t])
        state = history.algo.advance(state, end)
    if float(xp.max(xp.abs(state.phi - history.state.phi))) > 1e-5:
        raise FMRLError(
            "replaying the history does not lead to its last state", fix="run the tasks again"
        )
    return found


class Adapted(NamedTuple):
    """A new task learned from one state of a run."""

    average: Array  # [d] mean of the actions: what the theorem speaks of
    last: Array  # [d] the action after the last sample: what is done in practice
    t: int  # which state, counted from 0
    losses: Array  # [m] suffered on the way


def adapt(history: History, task: Task, *, seed: Any = 0, t: int | None = None) -> Adapted:
    """Learn ``task`` from state A_t of the run, t drawn uniformly with ``seed`` unless given.

    >>> import numpy as np, fmrl
    >>> tasks = [fmrl.Task([[1.0]], [y], loss=fmrl.Squared()) for y in (0.2, 0.4, 0.3)]
    >>> adapt(fmrl.run(fmrl.FMRL(), tasks), tasks[0], t=2).average
    array([0.30769231])
    """
    _one_run(history)
    found = states(history)
    t = int(np.random.default_rng(seed).integers(len(found))) if t is None else range(len(found))[t]
    return _adapt(history, found[t], task, t)


def _one_run(history: History) -> None:
    if history.regret.ndim != 1:
        raise FMRLError("this history holds several orders", fix="run one order at a time")


def _adapt(history: History, state: State, task: Task, t: int) -> Adapted:
    algo, game = history.algo, task.open()
    sigma = algo.sigma(state.phi, game, t)
    eta = state.guess / sigma if float(sigma) > 0 else 0 * sigma
    played = play(algo.within, game, algo.domain, state.phi, eta)
    return Adapted(played.average, played.last, t, played.losses)


@dataclass(frozen=True)
class Transfer:
    """Transfer risk of a run, measured on new tasks, beside what the theorem promises. ``str()``
    reads it aloud.
    """

    average: Estimate  # risk of θ̄
    last: Estimate  # risk of the last action
    start: Estimate  # risk of phi_t itself, without adapting
    comparator: Estimate  # risk of the fixed θ* = the run's last phi
    guarantee: (
        float | None
    )  # comparator + mean regret a round + deviation, or None if an assumption is false
    online: float | None  # mean loss suffered in the run + deviation: no comparator needed
    confidence: float
    assumptions: dict[str, str]  # what the theorem needs → checked, assumed or false, and why

    def __str__(self) -> str:
        lines = [
            f"A new task costs {self.average} a sample with the average action, {self.last} with the last one,",
            f"{self.start} without adapting ({self.average.tasks} new tasks, {self.confidence:.0%} intervals).",
        ]
        if self.guarantee is None or self.online is None:
            lines.append(
                "No guarantee: "
                + "; ".join(k for k, v in self.assumptions.items() if v.startswith("false"))
                + "."
            )
        else:
            lines.append(
                f"The theorem promises at most {self.guarantee:.4f} against the fixed initialisation and "
                f"{self.online:.4f} from the run alone, each with probability {self.confidence:.0%}."
            )
        return "\n".join(
            lines + [f"  {name}: {status}" for name, status in self.assumptions.items()]
        )

    def to_dict(self) -> dict:
        """Plain numbers and strings, for a record."""
        names = ("average", "last", "start", "comparator")
        plain = {n: vars(getattr(self, n)) for n in names}
        return plain | {
            n: getattr(self, n) for n in ("guarantee", "online", "confidence", "assumptions")
        }


def risk(
    history: History,
    tasks: Iterable[tuple[Task, Task]] | Callable[[np.random.Generator], tuple[Task, Task]],
    *,
    draws: int | None = None,
    confidence: float = 0.95,
    loss_range: tuple[float, float] | None = None,
    seed: int = 0,
) -> Transfer:
    """Transfer risk of ``history`` on new tasks, each a pair (samples to learn from, samples to
    test on).

    tasks: pairs, or a sampler ``rng -> pair`` called ``draws`` times. Every pair meets one state
    drawn uniformly. loss_range: (a, b) if you know that every loss lies there; by default it is
    bounded over the domain from the samples given.

    >>> import numpy as np, fmrl
    >>> def new(rng):
    ...     y = 0.3 + 0.1 * rng.standard_normal()
    ...     return [fmrl.Task(np.ones((5, 1)), np.full(5, y), loss=fmrl.Squared()) for _ in range(2)]
    >>> rng = np.random.default_rng(0)
    >>> history = fmrl.run(fmrl.presets.paper(), [new(rng)[0] for _ in range(50)])
    >>> transfer = risk(history, new, draws=200)
    >>> bool(transfer.average.mean < transfer.start.mean < 0.02), bool(transfer.average.mean < transfer.online)
    (True, True)
    """
    _one_run(history)
    if not 0 < confidence < 1:
        raise FMRLError(f"confidence must lie between 0 and 1, not {confidence}")
    before, rng = states(history), np.random.default_rng(seed)
    if callable(tasks):
        if draws is None:
            raise FMRLError("a sampler needs to know how often to draw", fix="give draws=…")
        sampler = tasks
        tasks = (sampler(rng) for _ in range(draws))
    rows, lengths = [], set()
    spans = [
        (float(to_numpy(losses).min()), float(to_numpy(losses).max())) for losses in history.losses
    ]
    for pair in islice(tasks, draws):
        train, test = _pair(pair, len(rows))
        t = int(rng.integers(len(before)))
        adapted, game = _adapt(history, before[t], train, t), test.open()
        points = (adapted.average, adapted.last, before[t].phi, history.state.phi)
        rows.append([float(np.mean(to_numpy(game.losses(theta)))) for theta in points])
        lengths.add(train.rounds)
        spans += [span(g, history.algo.domain) for g in (train.open(), game)]
    if len(rows) < 2:
        raise FMRLError(
            f"{len(rows)} new tasks are not enough for an interval", fix="give at least two"
        )
    low, high, status = _range(spans, loss_range)
    estimates = [
        mean(np.asarray(column), confidence, (low, high)) for column in zip(*rows, strict=True)
    ]
    assumptions = {
        "tasks are i.i.d., in the run and new": "assumed",
        "samples are i.i.d. within a task": "assumed",
        "losses lie in a bounded range": status,
        "the comparator's risk": f"estimated: {estimates[3]}",
        "the run's tasks and the new ones have the same m, or the same distribution of m": _same_length(
            history, lengths
        ),
    }
    guarantee = online = None
    if not any(s.startswith("false") for s in assumptions.values()):
        rounds, upper = to_numpy(history.rounds), to_numpy(history.regret) + to_numpy(history.gap)
        excess = online_to_batch(
            float(np.mean(upper / rounds)),
            1,
            len(history),
            1 - confidence,
            scale=max(high - low, 1e-300),
        )
        guarantee = estimates[3].mean + excess.total
        suffered = np.mean([np.mean(to_numpy(losses)) for losses in history.losses])
        online = (
            float(suffered) + excess.terms["confidence"] / 2
        )  # the losses lie in [a, b], their regret in ±(b − a)
    return Transfer(*estimates, guarantee, online, confidence, assumptions)


def _pair(pair: Any, index: int) -> tuple[Task, Task]:
    try:
        train, test = pair
    except (TypeError, ValueError):
        raise FMRLError(
            "a new task must be a pair (train, test)", task=index, fix="split its samples in two"
        ) from None
    if not (isinstance(train, Task) and isinstance(test, Task)) or train.loss != test.loss:
        raise FMRLError("train and test must be two Task values with one loss", task=index)
    return train, test


def _same_length(history: History, lengths: set[int]) -> str:
    run = {int(m) for m in to_numpy(history.rounds)}
    if not run & lengths:
        return f"false: m was {min(run)} to {max(run)} in the run and is {min(lengths)} to {max(lengths)} now"
    seen = run | lengths
    # The proof goes through when m is drawn together with the task.
    return (
        f"checked: m = {seen.pop()}"
        if len(seen) == 1
        else f"assumed: m varies from {min(seen)} to {max(seen)}"
    )


def _range(
    spans: list[tuple[float, float]], given: tuple[float, float] | None
) -> tuple[float, float, str]:
    low, high = min(a for a, _ in spans), max(b for _, b in spans)
    if given is not None:
        return *given, f"assumed: [{given[0]:g}, {given[1]:g}] was given"
    if not math.isfinite(high - low):
        return low, high, "false: the losses are unbounded on this domain"
    return (
        low,
        high,
        f"checked on the samples at hand: [{low:.4g}, {high:.4g}] over the domain, rescaled to [0, 1]",
    )
