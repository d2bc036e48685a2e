"""Several orders of the same tasks, played side by side."""

from __future__ import annotations

from fmrl.core import run as one
from fmrl.core.algorithm import FMRL, Round, State
from fmrl.core.arrays import as_float, device, namespace, zeros
from fmrl.core.history import History
from fmrl.core.rules.meta import End
from fmrl.core.solve.minimise import Solution
from fmrl.core.tasks import Rounds, Task, stack
from fmrl.errors import FMRLError


def run_orders(algo, tasks: list[Task], phi, orders, keep, progress) -> History:
    """Several orders of the same tasks side by side: optima are solved once, every position is
    played in all orders at once.
    """
    if not tasks or not all(isinstance(task, Task) for task in tasks):
        raise FMRLError(
            "orders needs a list of Task values", fix="run reactive tasks one order at a time"
        )
    if (
        orders.ndim != 2
        or not orders.size
        or orders.dtype.kind not in "iu"
        or orders.min() < 0
        or orders.max() >= len(tasks)
    ):
        raise FMRLError(f"orders must be integers [S, T] below {len(tasks)}")
    keys = {(task.loss, task.X.shape[1], task.X.dtype) for task in tasks}
    if len(keys) > 1:
        raise FMRLError("orders needs tasks of one loss, width and dtype")
    game = stack(tasks)
    xp = namespace(game.X)
    runs, best = orders.shape[0], _hindsight(algo, game)
    start = as_float(one._start(algo, tasks[0], phi), "phi")
    namespace(start, game.X)
    if start.shape[-1:] != (tasks[0].dim,):
        raise FMRLError(
            f"the tasks need phi of length {tasks[0].dim}, but phi has shape {tuple(start.shape)}"
        )
    state = algo.init(zeros((runs, tasks[0].dim), game.X) + start)
    history = History(algo, state, keep)
    sigma = algo.sigma(zeros((len(tasks), tasks[0].dim), game.X), game, 0)
    positions = xp.asarray(orders.T.copy(), device=device(game.X))
    per_block = max(1, one.MOST // runs) if algo.update.exact else 1
    try:
        for first in range(0, orders.shape[1], per_block):
            index = positions[first : min(first + per_block, orders.shape[1]), :]  # [n, S]
            flat = xp.reshape(index, (-1,))
            these, optima = game.take(flat), Solution(*(xp.take(a, flat, axis=0) for a in best))
            weight = xp.take(sigma, flat, axis=0)
            states = []
            if algo.update.exact:
                for t in range(index.shape[0]):
                    states.append(state)
                    theta = xp.take(best.theta, index[t, :], axis=0)
                    state = algo.advance(
                        state, End(theta, theta, xp.take(sigma, index[t, :], axis=0))
                    )
                before = State(
                    0,
                    xp.concat([s.phi for s in states]),
                    xp.concat([s.guess for s in states]),
                    (),
                    (),
                )
                happened = one._play_from(algo, before, these, optima, weight)
            else:
                happened = one._play_from(algo, state, these, optima, weight)
                state = algo.advance(state, End(happened.theta, optima.theta, weight))
            history.append(_by_run(happened, index.shape), state)
            if progress:
                progress(index.shape[0])
    except BaseException as error:
        one._carry(error, history, None)
        raise
    return history


def _by_run(happened: Round, shape: tuple[int, int]) -> Round:
    """Columns [n·S, …] as [S, n, …]."""
    xp = namespace(happened.regret)

    def turn(a):
        return xp.moveaxis(xp.reshape(a, (*shape, *a.shape[1:])), 0, 1)

    return Round(*(turn(a) for a in happened))


def _hindsight(algo: FMRL, game: Rounds) -> Solution:
    """Optima of a large stack, solved in blocks that stay in cache."""
    xp = namespace(game.X)
    count, size = game.X.shape[0], max(1, one.ELEMENTS // (game.X.shape[1] * game.X.shape[2]))
    every = xp.arange(count, device=device(game.X))
    parts = [
        game.take(every[i : min(i + size, count)]).hindsight(algo.domain)
        for i in range(0, count, size)
    ]
    return Solution(*(xp.concat(column) for column in zip(*parts, strict=True)))
