"""Distributional learning-to-learn: what a meta-learned state is worth on a task that was not seen
(Theorem B.3).

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
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.algorithm import State
from fmrl.core.arrays import Array, dot, namespace, to_numpy, zeros
from fmrl.core.checks import generator, number, numbers, whole
from fmrl.core.domains import Domain
from fmrl.core.ensemble import Ensemble
from fmrl.core.history import History
from fmrl.core.meta_level import together
from fmrl.core.rules.meta import End, MetaUpdate
from fmrl.core.tasks import Rounds, Task
from fmrl.core.values import foreign
from fmrl.errors import FMRLError
from fmrl.theory.bounds import ASSUMED, CHECKED, FALSE, Assumption, online_to_batch


def states(history: History) -> list[State]:
    """The State before each task, by replaying the meta-level on what the history recorded. Tasks
    of one meta-batch share theirs.

    Args:
        history: Of `fmrl.run` with keep="all". Its rules must move phi and the guess by what a
            history keeps: ensembles, `Conditional` and rules that learn a step from gradients, but
            for `Isotropic`, are refused.

    Returns:
        T states.

    >>> import numpy as np, fmrl
    >>> tasks = [fmrl.Task([[1.0]], [y], loss=fmrl.Squared()) for y in (0.2, 0.4)]
    >>> [float(state.phi[0].round(6)) for state in states(fmrl.run(fmrl.FMRL(), tasks))]
    [0.0, 0.2]
    """
    _refuse(history)
    algo, batch, xp = history.algo, history.meta_batch, namespace(history.state.phi)
    columns = [history.theta, history.optimum, history.lipschitz * xp.sqrt(history.rounds)]
    axes = (-2, -2, -1)
    if getattr(algo.similarity, "observes", None):  # Σ‖∇‖² from ½·eta·Σ‖∇‖²
        still = history.eta <= 0
        eta = xp.where(still, xp.ones_like(history.eta), history.eta)
        columns, axes = [*columns, (2 * history.energy / eta)[..., None]], (*axes, -2)
    columns = [xp.moveaxis(a, axis, 0) for a, axis in zip(columns, axes, strict=True)]
    found, state = [], history.start
    for t in range(0, len(history), batch):
        ends = End(*(a[t : t + batch, ...] for a in columns))
        found += [state] * ends.tasks
        state = algo.advance(state, ends.at(0)) if batch == 1 else together(algo, state, ends)
    # √B changes by no more than phi does.
    room = 1e-5 * max(float(xp.max(xp.abs(a))) for a in (history.start.phi, history.theta))
    for t, before in enumerate(found):
        far, recorded = algo.domain.divergence(columns[0][t, ...], before.phi), history.deviation
        recorded = recorded[..., t]
        same = (far == recorded) | (xp.abs(xp.sqrt(far) - xp.sqrt(recorded)) <= room)
        if not bool(xp.all(same)):
            what = "replaying the history does not lead to where this task started"
            raise FMRLError(what, task=t, fix="run the tasks again")
    if not bool(xp.all(xp.abs(state.phi - history.state.phi) <= room)):
        what = "replaying the history does not lead to its last state"
        raise FMRLError(what, fix="run the tasks again")
    return found


def _refuse(history: History) -> None:
    """Refuse what a history cannot replay."""
    if not isinstance(history, History):
        what = f"{type(history).__name__} is not a History"
        raise FMRLError(what, fix="give what fmrl.run returned")
    if not len(history):
        raise FMRLError("no task was played")
    algo, look = history.algo, MetaUpdate.look
    looks = getattr(type(algo.meta), "look", look) is not look
    observes = getattr(algo.similarity, "observes", None) not in (None, "norms")
    name, rules = type(algo).__name__, "use rules that move by update vectors"
    for lacks, what, fix in (
        (history.keep != "all", "all its columns", "run with keep='all'"),
        (isinstance(algo, Ensemble), f"how the members of {name} played", "run one by itself"),
        (looks, f"what {algo.meta!r} looks at before a task", rules),
        (observes, f"the gradients that {algo.similarity!r} learns from", rules),
    ):
        if lacks:
            raise FMRLError(f"the history did not keep {what}, so phi cannot be replayed", fix=fix)


class Adapted(NamedTuple):
    """A new task learned from one state of a run."""

    average: Array  # [d] mean of the actions: what the theorem speaks of
    last: Array  # [d] the action after the last sample: what is done in practice
    t: int  # which state, counted from 0
    losses: Array  # [m] suffered on the way


def adapt(history: History, task: Task, *, seed: Any = 0, t: int | None = None) -> Adapted:
    """Learn a task from a state of the run.

    Args:
        history: Of `fmrl.run` with keep="all" and one order.
        task: Samples of the new task.
        seed: Of the draw of t.
        t: Which state, from 0; drawn uniformly if not given.

    >>> import numpy as np, fmrl
    >>> tasks = [fmrl.Task([[1.0]], [y], loss=fmrl.Squared()) for y in (0.2, 0.4, 0.3)]
    >>> adapt(fmrl.run(fmrl.FMRL(), tasks), tasks[0], t=2).average
    array([0.30769231])
    """
    found = _of_one_run(history)
    if not isinstance(task, Task):
        raise FMRLError(f"a Task is needed, not {task!r:.60}")
    t = int(generator(seed).integers(len(found))) if t is None else t
    whole("t", t, least=0)
    if t >= len(found):
        raise FMRLError(f"the history holds {len(found)} states, from 0, and none number {t}")
    return _adapt(history, found[t], task, t)


def _of_one_run(history: History) -> list[State]:
    if isinstance(history, History) and history.regret.ndim != 1:
        raise FMRLError("this history holds several orders", fix="run one order at a time")
    return states(history)


def _adapt(history: History, state: State, task: Task, t: int) -> Adapted:
    _, _, played = history.algo.play_rounds(state, task.open(), record=True)
    return Adapted(played.average, played.last, t, played.losses)


@dataclass(frozen=True)
class Estimate:
    """A Monte-Carlo mean over new tasks, with two intervals.

    ``interval`` is the normal approximation; ``proved`` holds for any number of tasks, from the
    range of the losses.
    """

    mean: float
    interval: tuple[float, float]
    proved: tuple[float, float] | None
    tasks: int

    def __str__(self) -> str:
        return f"{self.mean:.4f} [{self.interval[0]:.4f}, {self.interval[1]:.4f}]"


def _estimate(values: np.ndarray, confidence: float, bounds: tuple[float, float]) -> Estimate:
    """The proved interval is the better of Hoeffding's and the empirical Bernstein one.

    >>> print(_estimate(np.array([0.1, 0.3, 0.2, 0.2]), 0.95, (0.0, 1.0)))
    0.2000 [0.1200, 0.2800]
    """
    n, mean, deviation = values.size, float(values.mean()), float(values.std(ddof=1))
    half = NormalDist().inv_cdf((1 + confidence) / 2) * deviation / math.sqrt(n)
    width, proved = bounds[1] - bounds[0], None
    if math.isfinite(width):
        # Each has half of the failure probability. Bernstein: Maurer & Pontil 2009.
        log, log2 = math.log(8 / (1 - confidence)), math.log(4 / (1 - confidence))
        bernstein = deviation * math.sqrt(2 * log / n) + 7 * width * log / (3 * (n - 1))
        room = min(bernstein, width * math.sqrt(log2 / (2 * n)))
        proved = (max(bounds[0], mean - room), min(bounds[1], mean + room))
    return Estimate(mean, (mean - half, mean + half), proved, n)


@dataclass(frozen=True)
class Transfer:
    """Transfer risk of a run, measured on new tasks, beside what the theorem promises."""

    average: Estimate  # risk of θ̄
    last: Estimate  # risk of the last action
    start: Estimate  # risk of phi_t itself, without adapting
    comparator: Estimate  # risk of the fixed θ* = the run's last phi
    guarantee: float | None  # comparator + mean regret a round + deviation; None: not guaranteed
    online: float | None  # mean loss suffered in the run + deviation: no comparator needed
    confidence: float
    assumptions: tuple[Assumption, ...]  # what the theorem needs

    def __str__(self) -> str:
        lines = [
            f"A new task costs {self.average} a sample with the average action, "
            f"{self.last} with the last one,",
            f"{self.start} without adapting ({self.average.tasks} new tasks, "
            f"{self.confidence:.0%} intervals).",
        ]
        if self.guarantee is None or self.online is None:
            false = "; ".join(a.name for a in self.assumptions if a.status == FALSE)
            lines.append(f"No guarantee, for this is false: {false}.")
        else:
            lines.append(
                f"The theorem promises at most {self.guarantee:.4f} against the fixed "
                f"initialisation and {self.online:.4f} from the run alone, "
                f"each with probability {self.confidence:.0%}."
            )
        return "\n".join(lines + [f"  {a}" for a in self.assumptions])

    def to_dict(self) -> dict:
        """Plain numbers and strings, for a record."""
        found = {k: vars(v) if isinstance(v, Estimate) else v for k, v in vars(self).items()}
        return found | {"assumptions": [vars(a) for a in self.assumptions]}


def risk(
    history: History,
    tasks: Iterable[tuple[Task, Task]] | Callable[[np.random.Generator], tuple[Task, Task]], *,
    draws: int | None = None, confidence: float = 0.95,
    loss_range: tuple[float, float] | None = None, seed: int = 0,
) -> Transfer:  # fmt: skip
    """Transfer risk of a run on new tasks; each of them meets one state drawn uniformly.

    Args:
        history: Of `fmrl.run` with keep="all" and one order.
        tasks: Pairs (samples to learn from, samples to test on), or a sampler ``rng -> pair``.
        draws: How often a sampler is called; at most so many pairs are used.
        confidence: Of the intervals and of the guarantee.
        loss_range: (a, b) if every loss is known to lie there; by default it is bounded over the
            domain from the samples given.
        seed: Of all draws.

    >>> import numpy as np, fmrl
    >>> def new(rng):
    ...     X, y = np.ones((5, 1)), np.full(5, 0.3 + 0.1 * rng.standard_normal())
    ...     return [fmrl.Task(X, y, loss=fmrl.Squared()) for _ in range(2)]
    >>> rng = np.random.default_rng(0)
    >>> history = fmrl.run(fmrl.presets.paper(), [new(rng)[0] for _ in range(50)])
    >>> found = risk(history, new, draws=200)
    >>> bool(found.average.mean < found.start.mean < 0.02)
    True
    >>> bool(found.average.mean < found.online)
    True
    """
    before, rng = _of_one_run(history), generator(seed)
    if draws is not None:
        whole("draws", draws, least=2)
    if not 0 < number(confidence) < 1:
        raise FMRLError(f"confidence must lie between 0 and 1, not {confidence}")
    given = None if loss_range is None else numbers(loss_range)
    if given is not None and not (given.shape == (2,) and given[0] <= given[1]):
        raise FMRLError(f"loss_range must be the least and the largest loss, not {loss_range!r}")
    if callable(tasks):
        if draws is None:
            raise FMRLError("a sampler needs to know how often to draw", fix="give draws=…")
        sampler = tasks
        tasks = (sampler(rng) for _ in range(draws))
    if not hasattr(tasks, "__iter__"):
        raise FMRLError(f"tasks must be pairs of Tasks or a sampler, not {tasks!r:.60}")
    played = [to_numpy(losses) for losses in history.losses]
    spans = [(float(losses.min()), float(losses.max())) for losses in played]
    rows, lengths, own = [], set(), bool(np.any(to_numpy(history.convex) != 1))
    for pair in islice(tasks, draws):
        train, test = _pair(pair, len(rows))
        t = int(rng.integers(len(before)))
        adapted, game = _adapt(history, before[t], train, t), test.open()
        points = (adapted.average, adapted.last, before[t].phi, history.state.phi)
        rows.append([float(np.mean(to_numpy(game.losses(theta)))) for theta in points])
        lengths.add(train.rounds)
        own = own or bool(foreign(train.loss))
        played.append(to_numpy(adapted.losses))
        spans += [span(g, history.algo.domain) for g in (train.open(), game)]
    if len(rows) < 2:
        what = f"{len(rows)} new tasks are not enough for an interval"
        raise FMRLError(what, fix="give at least two")
    met = min(float(x.min()) for x in played), max(float(x.max()) for x in played)
    low, high, within = _range(spans, loss_range, met)
    estimates = [_estimate(column, confidence, (low, high)) for column in np.array(rows).T]
    assumptions = (
        Assumption("tasks are i.i.d., in the run and new"),
        Assumption("samples are i.i.d. within a task"),
        Assumption("convex losses", ASSUMED if own else CHECKED),
        within,
        Assumption("the comparator's risk is as estimated", ASSUMED, str(estimates[3])),
        _same_rounds({int(m) for m in to_numpy(history.rounds)}, lengths),
    )
    guarantee = online = None
    if not any(a.status == FALSE for a in assumptions):
        rounds, upper = to_numpy(history.rounds), to_numpy(history.regret) + to_numpy(history.gap)
        each, scale = float(np.mean(upper / rounds)), max(high - low, 1e-300)
        excess = online_to_batch(each, 1, len(history), 1 - confidence, scale=scale)
        guarantee = estimates[3].mean + excess.total
        # Losses lie in [a, b], regret in ±(b − a): half of the deviation is enough here.
        suffered = float(np.mean([np.mean(losses) for losses in played[: len(history)]]))
        online = suffered + excess.terms["confidence"] / 2
    return Transfer(*estimates, guarantee, online, confidence, assumptions)


def _pair(pair: Any, index: int) -> tuple[Task, Task]:
    try:
        train, test = pair
    except (TypeError, ValueError):
        what = "a new task must be a pair (train, test)"
        raise FMRLError(what, task=index, fix="split its samples in two") from None
    if not (isinstance(train, Task) and isinstance(test, Task)) or train.loss != test.loss:
        raise FMRLError("train and test must be two Task values with one loss", task=index)
    return train, test


def _same_rounds(run: set[int], new: set[int]) -> Assumption:
    name = "the run's tasks and the new ones have the same m, or the same distribution of m"
    if not run & new:
        was, now = (f"{min(m)} to {max(m)}" for m in (run, new))
        return Assumption(name, FALSE, f"m was {was} in the run and is {now} now")
    seen = run | new
    # The proof allows an m that is drawn together with the task.
    if len(seen) > 1:
        return Assumption(name, ASSUMED, f"m varies from {min(seen)} to {max(seen)}")
    return Assumption(name, CHECKED, f"m = {min(seen)}")


def _range(
    spans: list, given: tuple[float, float] | None, met: tuple[float, float]
) -> tuple[float, float, Assumption]:
    """[a, b] and whether all losses lie there, of which only the samples at hand are known."""
    name = "losses lie in a bounded range"
    low, high = (min(a for a, _ in spans), max(b for _, b in spans)) if given is None else given
    if not math.isfinite(high - low):
        return low, high, Assumption(name, FALSE, "the losses are unbounded on this domain")
    if given is not None and not low <= met[0] <= met[1] <= high:
        detail = f"[{low:g}, {high:g}] was given, and [{met[0]:.4g}, {met[1]:.4g}] was met"
        return low, high, Assumption(name, FALSE, detail)
    detail = f"those at hand lie in [{low:.4g}, {high:.4g}] over the domain"
    detail = detail if given is None else f"[{low:g}, {high:g}] was given"
    return low, high, Assumption(name, ASSUMED, detail)


def span(game: Rounds, domain: Domain) -> tuple[float, float]:
    """Numbers a ≤ b such that every loss of ``game`` lies in [a, b] everywhere on the domain.

    From the middle of the domain a loss rises by at most its Lipschitz constant times the distance
    to the farthest action. The losses are nonnegative; squared and linear ones have closed forms.

    Args:
        game: An opened task: ``task.open()``.
        domain: The action set.

    Returns:
        (a, b), with b = inf where the losses have no bound.

    >>> import numpy as np, fmrl
    >>> span(fmrl.Task([[3.0, 4.0]], [1.0], loss=fmrl.Squared()).open(), fmrl.Ball(1.0))
    (0.0, 18.0)
    """
    xp, loss = namespace(game.X), game.loss
    try:
        low, high = (dot(game.X, domain.lowest(sign * game.X)) for sign in (1, -1))
    except FMRLError:
        return 0.0, math.inf
    if loss.bend == 0:
        return float(xp.min(low)), float(xp.max(high))
    if math.isinf(loss.steep(domain.norm)):
        return 0.0, float(xp.max(game._steepest(domain)) ** 2 / 2)
    middle = domain.middle(zeros((game.dim,), game.X))
    reach = math.sqrt(2) * float(domain.reach(middle)) if domain.norm == "l2" else 2.0
    rise = loss.steep(domain.norm) * domain.dual(game.X) * reach
    return 0.0, float(xp.max(game.losses(middle) + rise))
