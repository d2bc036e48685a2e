"""Stacks of tasks: their optima, their plays, and phi moving through them in order.

`run`, the estimators and the workers of a cluster play tasks by these functions and no others, so
a run has the same numbers wherever it is played."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fmrl.core.algorithm import FMRL, Round
from fmrl.core.arrays import Array, device, full, namespace
from fmrl.core.ensemble import Ensemble
from fmrl.core.meta_level import State, begun, looked, scan, together
from fmrl.core.metric import Metric
from fmrl.core.rules.meta import End
from fmrl.core.solve import Solution
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError


def solve(algo: FMRL, tasks: Tasks, phi: Array) -> tuple[Solution, Array]:
    """The optimum in hindsight of every task, and sigma = G·√m [n].

    >>> import fmrl
    >>> ones = [fmrl.Task([[1.0]], [y], loss=fmrl.Squared()) for y in (0.5, 2.0)]
    >>> solve(FMRL(), Tasks.of(ones), np.zeros(1))[0].theta.round(6).ravel()
    array([0.5, 1. ])
    """
    domain = algo.domain
    found = ((p, game.hindsight(domain), algo.sigma(phi, game, 0)) for p, game in tasks.stacks())
    parts, best, sigma = zip(*found, strict=True)
    order = _order(parts)
    return take(concat(best), order), taken(namespace(phi).concat(sigma), order)


def play_from(
    algo: FMRL, before: State, tasks: Tasks, best: Solution, sigma: Array, places: np.ndarray
) -> tuple[Round, End]:
    """Play the tasks at ``places`` [k], task i from phi[i] with guess[i]; phi does not move.

    Args:
        before: phi [k, d] and guess [k].
        best: Optima of all of ``tasks``.
        sigma: G·√m of all of ``tasks``.
    """
    played, parts = [], []
    for part, game in tasks.stacks(places):
        here = State(before.tasks, taken(before.phi, part), taken(before.guess, part), (), ())
        optima, weight = take(best, places[part]), taken(sigma, places[part])
        played.append(algo.play(here, game, optima, weight))
        parts.append(part)
    order, (rounds, ends) = _order(parts), zip(*played, strict=True)
    known = {name: taken(a, places) for name, a in tasks.identity.items()}
    return take(concat(rounds), order)._replace(**known), take(concat(ends), order)


def play_scanned(
    algo: FMRL, state: State, tasks: Tasks, best: Solution, sigma: Array, places: np.ndarray
) -> tuple[Round, State]:
    """Play the tasks at ``places`` [n] one after another, or [n, S] in S runs side by side.

    An exact update rule needs no play to move phi: the meta-level is scanned, then all are played
    at once."""
    xp, flat = namespace(state.phi), places.ravel()

    def stacked(a: Array) -> Array:
        return xp.reshape(taken(a, flat), (*places.shape, *a.shape[1:]))

    theta = stacked(best.theta)
    side = looked(algo, tasks.first)
    side = None if side is None else stacked(side)
    before, after = scan(algo, state, End(theta, theta, stacked(sigma), None, side))
    phi = xp.reshape(before.phi, (flat.size, before.phi.shape[-1]))
    guess = before.guess
    guess = guess.flat() if isinstance(guess, Metric) else xp.reshape(guess, (flat.size,))
    starts = State(state.tasks, phi, guess, (), ())
    rounds, _ = play_from(algo, starts, tasks, best, sigma, flat)
    return by_run(rounds, places.shape), after


def by_run(rounds: Round, shape: tuple[int, ...]) -> Round:
    """Columns [n·S, …] as [S, n, …], or as they are where there is one run."""
    if len(shape) == 1:
        return rounds
    xp = namespace(rounds.regret)

    def runs(a: Array) -> Array:
        return xp.moveaxis(xp.reshape(a, (*shape, *a.shape[1:])), 0, 1)

    return Round(*(None if a is None else runs(a) for a in rounds))


def play_solved(
    algo: FMRL, state: State, tasks: Tasks, best: Solution, sigma: Array, meta_batch: int = 1
) -> Iterator[tuple[Round, State]]:
    """Play all tasks in their order: what happened and the state after it, piece by piece."""
    if isinstance(algo, Ensemble):
        for i in range(len(tasks)):
            optimum = Solution(best.theta[i, :], best.value[i, ...], best.gap[i, ...])
            state, round = algo.step_solved(state, tasks.task(i).open(), optimum)
            yield one(round), state
        return
    if algo.scanned and meta_batch == 1:
        yield play_scanned(algo, state, tasks, best, sigma, np.arange(len(tasks)))
        return
    for part in _parts(len(tasks), meta_batch):
        n = len(part)
        side = looked(algo, tasks.first)
        phi = begun(algo, state, n, None if side is None else taken(side, part))
        same = State(state.tasks, phi, shared(state.guess, n), (), ())
        rounds, ends = play_from(algo, same, tasks, best, sigma, part)
        state = together(algo, state, ends)
        yield rounds, state


def play_tasks(
    algo: FMRL, state: State, tasks: Tasks, meta_batch: int = 1
) -> Iterator[tuple[Round, State]]:
    """`solve`, then `play_solved`. Where that fails, the tasks before the one that fails are
    played.
    """
    try:
        best, sigma = solve(algo, tasks, state.phi)
        pieces = play_solved(algo, state, tasks, best, sigma, meta_batch)
        first = [next(pieces)] if algo.scanned else []  # which may hold all the tasks
    except FMRLError as error:
        if len(tasks) <= meta_batch:
            error.task = state.tasks + _culprit(algo, tasks, state.phi)
            raise
        for part in _parts(len(tasks), meta_batch):
            for piece in play_tasks(algo, state, tasks.take(part), meta_batch):
                state = piece[1]
                yield piece
        return
    yield from first
    yield from pieces


def one(value: Any) -> Any:
    """A NamedTuple of arrays as a stack of one."""
    return type(value)(*(None if a is None else a[None, ...] for a in value))


def concat(values: Any) -> Any:
    """NamedTuples of arrays end to end; where rows differ in length the shorter are padded with
    0.
    """
    if len(values) == 1:
        return values[0]
    columns = []
    for column in zip(*values, strict=True):
        if any(a is None for a in column):
            columns.append(None)
            continue
        xp, width = namespace(*column), max(a.shape[-1] for a in column)
        if column[0].ndim > 1 and any(a.shape[-1] < width for a in column):
            rest = [full((*a.shape[:-1], width - a.shape[-1]), 0.0, a) for a in column]
            column = [xp.concat(pair, axis=-1) for pair in zip(column, rest, strict=True)]
        columns.append(xp.concat(list(column)))
    return type(values[0])(*columns)


def take(value: Any, places: np.ndarray | None) -> Any:
    """A NamedTuple of arrays at ``places`` of their first axis; None for all as they are."""
    if places is None:
        return value
    return type(value)(*(None if a is None else taken(a, places) for a in value))


def shared(guess: Any, n: int) -> Any:
    """One guess for n tasks: an array [n], or the metric itself, which needs no copies."""
    return guess if isinstance(guess, Metric) else full((n,), 0.0, guess) + guess


def taken(a: Any, places: np.ndarray | None) -> Any:
    """An array or a metric at ``places`` of its first axis; None for all as it is."""
    if places is None:
        return a
    if isinstance(a, Metric):
        return a.at(places)
    if isinstance(a, np.ndarray):
        return a[places]
    xp = namespace(a)
    return xp.take(a, xp.asarray(places, device=device(a)), axis=0)


def _order(parts: Sequence[np.ndarray]) -> np.ndarray | None:
    """What puts parts, end to end, back into the order 0, 1, …; None where they are in it."""
    if len(parts) == 1:
        return None
    return np.argsort(np.concatenate(parts), kind="stable")


def _parts(count: int, size: int) -> Iterator[np.ndarray]:
    return (np.arange(i, min(i + size, count)) for i in range(0, count, size))


def _culprit(algo: FMRL, tasks: Tasks, phi: Array) -> int:
    """The first task that fails by itself."""
    for i in range(len(tasks)):
        try:
            solve(algo, tasks.take(np.array([i])), phi)
        except FMRLError:
            return i
    return 0
