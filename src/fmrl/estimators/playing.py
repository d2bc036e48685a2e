"""Algorithm 2 over tables of tasks: windows of a fixed number of tasks, each solved, scanned and
played at once.

Windows are counted from the first task, so a run that stops between two of them and goes on later
gives the same bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fmrl.core.algorithm import FMRL, Round, State
from fmrl.core.algorithm import _step_size as step_size
from fmrl.core.history import SCALARS, History
from fmrl.core.losses import Loss
from fmrl.core.rules.within import Play, play
from fmrl.core.scan import scan
from fmrl.core.solve.minimise import Solution
from fmrl.core.tasks import Rounds
from fmrl.estimators import lazy
from fmrl.estimators.coordinates import Chart
from fmrl.estimators.pack import Table, groups, stack

WINDOW = 1024  # tasks


def play_tasks(
    history: History,
    tasks: Table,
    chart: Chart,
    loss: Loss,
    regression: bool,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Play the tasks in their order and append them to the history."""
    for first in range(0, len(tasks), WINDOW):
        window = tasks.select(np.arange(first, min(first + WINDOW, len(tasks))))
        stacks = [
            (i, stack(window.select(i), chart, loss, regression))
            for i in groups(window, chart.width)
        ]
        history.append(
            *(_at_once if history.algo.update.exact else _in_turn)(
                history.algo, history.state, stacks, len(window)
            )
        )
        if progress:
            progress(len(window))


def _at_once(
    algo: FMRL, state: State, stacks: list[tuple[np.ndarray, Rounds]], count: int
) -> tuple[Round, State]:
    """An exact rule needs no play to move phi: all optima, then the meta-level, then all plays."""
    sigma, theta = np.empty(count), np.empty((count, state.phi.size))
    best: list[Solution] = []
    for index, game in stacks:
        sigma[index] = algo.sigma(state.phi, game, state.tasks)
        best.append(game.hindsight(algo.domain))
        theta[index] = best[-1].theta
    before, after = scan(algo, state, theta, sigma)
    happened = []
    for (index, game), optimum in zip(stacks, best, strict=True):
        here = State(0, before.phi[index], before.guess[index], (), ())
        played = _played(algo, game, here.phi, step_size(here.guess, sigma[index]))
        happened.append(
            (index, algo.record(here, game, played, optimum, optimum.theta, sigma[index]))
        )
    return _join(happened, count), after


def _played(algo: FMRL, game: Rounds, phi: np.ndarray, eta: np.ndarray) -> Play:
    """The losses; actions are not needed where the optimum moves phi."""
    if lazy.applies(algo.within, algo.domain, game):
        return Play(lazy.suffered(game, algo.domain, phi, eta), phi, phi, None)  # type: ignore[arg-type]
    return play(algo.within, game, algo.domain, phi, eta)


def _in_turn(
    algo: FMRL, state: State, stacks: list[tuple[np.ndarray, Rounds]], count: int
) -> tuple[Round, State]:
    """Rules that need the play: one task after another, with optima solved together."""
    where: dict[int, tuple[Rounds, Solution, int]] = {}
    for index, game in stacks:
        best = game.hindsight(algo.domain)
        where |= {int(t): (game, best, i) for i, t in enumerate(index)}
    happened = []
    for t in range(count):
        stacked, best, i = where[t]
        game = stacked.take(np.array([i]))
        one = Rounds(game.loss, *(a[0] for a in (game.X, game.target, game.weight, game.rounds)))
        state, round = algo.meet(state, one, Solution(*(a[i] for a in best)))
        happened.append((np.array([t]), Round(*(np.asarray(a)[None] for a in round))))
    return _join(happened, count), state


def _join(parts: list[tuple[np.ndarray, Round]], count: int) -> Round:
    """Rounds of several stacks in the order of their tasks; the losses, which differ in length, are
    left out.
    """
    columns = {"losses": np.zeros((count, 0))}
    for name in (*SCALARS, "theta", "optimum"):
        pieces = [getattr(round, name) for _, round in parts]
        columns[name] = np.empty((count, *pieces[0].shape[1:]))
        for (index, _), piece in zip(parts, pieces, strict=True):
            columns[name][index] = piece
    return Round(**columns)
