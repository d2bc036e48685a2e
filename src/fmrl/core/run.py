"""run: a composition over many tasks, batched where the composition allows, with the same numbers as step in a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fmrl.core.algorithm import FMRL, Round, State, _step_size
from fmrl.core.arrays import Array, as_array, as_float, device, namespace, to_numpy, zeros
from fmrl.core.errors import FMRLError
from fmrl.core.history import KEEP, SCALARS, History
from fmrl.core.meta import End
from fmrl.core.solver import Solution
from fmrl.core.tasks import Rounds, Task, stack
from fmrl.core.within import play

ELEMENTS = 1 << 20  # of X in one block: 8 MB in float64; fewer blocks mean fewer calls, larger ones leave the cache
MOST = 1024  # tasks in one block


def run(
    algo: FMRL,
    tasks: Iterable[Any],
    phi: Array | None = None,
    *,
    state: State | None = None,
    orders: Any = None,
    keep: str = "all",
    progress: Callable[[int], None] | None = None,
) -> History:
    """Play ``tasks`` (any iterable; a generator is consumed block by block) and return the History.

    phi: where to start, flat [d]; by default the middle of the domain. state: resume from a saved State instead.
    orders: integers [S, T]; play the tasks in S orders at once, histories stacked on a leading axis.
    keep: "all"; "vectors" drops the losses; "scalars" the vectors too; "totals" keeps memory constant whatever T.
    progress: called with the number of tasks just played.

    If anything goes wrong at task t, or you press Ctrl-C, the exception carries ``.history`` with all tasks before it
    (its ``.state`` resumes the run); an FMRLError also has ``.task`` = t and ``.state``.

    >>> import numpy as np
    >>> from fmrl.core.losses import Squared
    >>> tasks = [Task([[1.0, 0.0]], [0.5], loss=Squared()) for _ in range(10)]
    >>> round(float(run(FMRL(), tasks).tar), 4)
    0.0125
    """
    if keep not in KEEP:
        raise FMRLError(f"keep must be one of {', '.join(map(repr, KEEP))}, not {keep!r}")
    if not isinstance(algo, FMRL):
        raise FMRLError(f"algo must be an FMRL, not {type(algo).__name__}", fix="see fmrl.presets")
    if isinstance(tasks, Task):
        raise FMRLError("run takes several tasks", fix="give a list: run(algo, [task])")
    if state is not None and phi is not None:
        raise FMRLError("phi and state exclude each other: a state holds its own phi")
    if state is not None and not bool(namespace(state.phi).all(algo.domain.contains(state.phi))):
        raise FMRLError(f"the phi of this state lies outside {algo.domain!r}", fix="resume with the domain it was made in")
    if orders is not None:
        if state is not None:
            raise FMRLError("orders start afresh and cannot resume a state", fix="give phi, or run one order with state")
        return _run_orders(algo, list(tasks), phi, to_numpy(as_array(orders)), keep, progress)
    history: History | None = None
    try:
        for block in _blocks(tasks, phi if state is None else state.phi):
            if history is None:
                history = History(algo, state or algo.init(_start(algo, block[0], phi)), keep)
            _play_block(algo, block, history, progress)
    except BaseException as error:
        _carry(error, history, state)
        raise
    if history is None:
        raise FMRLError("there are no tasks", fix="give at least one Task")
    return history


def _carry(error: BaseException, history: History | None, state: State | None) -> None:
    """Put on the exception what was played before it, and where it happened."""
    if history is not None:
        error.history, state = history, history.state  # type: ignore[attr-defined]
    if isinstance(error, FMRLError):
        error.state = state
        if error.task is None:
            error.task = 0 if state is None else state.tasks


def _start(algo: FMRL, task: Any, phi: Array | None) -> Array:
    if phi is not None:
        return phi
    if not isinstance(task, Task):
        raise FMRLError("a reactive task does not say where to start", fix="give phi")
    return algo.domain.middle(zeros((task.dim,), task.X))


def _blocks(tasks: Iterable[Any], phi: Array | None) -> Iterator[list[Any]]:
    """Consecutive tasks of one loss, width and kind of array, small enough to stay in cache. Anything else: one by one."""
    block: list[Any] = []
    key, size = None, 0
    if phi is not None:
        phi = as_float(phi, "phi")
    try:
        for task in tasks:
            if isinstance(task, Task):
                namespace(task.X, *(() if phi is None else (phi,)))
                phi = task.X if phi is None else phi
                new = (task.loss, task.X.shape[1], task.X.dtype, task.rounds.bit_length())
            elif hasattr(task, "open"):
                new = object()
            else:
                raise FMRLError(f"{type(task).__name__} is not a task", fix="build one with Task(X, y, loss=…)")
            longest = max(size, task.rounds * task.X.shape[1] if isinstance(task, Task) else 1)
            if block and (new != key or longest * (len(block) + 1) > ELEMENTS or len(block) == MOST):
                yield block
                block, longest = [], max(0, task.rounds * task.X.shape[1] if isinstance(task, Task) else 1)
            block.append(task)
            key, size = new, longest
    except (Exception, KeyboardInterrupt):  # play what came before it first
        if block:
            yield block
        raise
    if block:
        yield block


def _optima(algo: FMRL, block: list[Any]) -> list[Solution | None]:
    """The optima of a block at once (None: not known before the play), for rules that must play one task after another."""
    if len(block) == 1 or not isinstance(block[0], Task):
        return [None] * len(block)
    try:
        best = stack(block).hindsight(algo.domain)
    except FMRLError:  # one by one, the tasks before the bad one are still played
        return [None] * len(block)
    return [Solution(*(a[t, ...] for a in best)) for t in range(len(block))]


def _widen(happened: Round) -> Round:
    """One task's round as a block of one."""
    return Round(*(a[..., None] if n in SCALARS else a[..., None, :] for n, a in zip(Round._fields, happened, strict=True)))


def _play_block(algo: FMRL, block: list[Any], history: History, progress: Callable[[int], None] | None) -> None:
    """Play a block at once if the composition allows, else (or if that fails, to find out where) one by one."""
    if len(block) > 1 and algo.update.exact and isinstance(block[0], Task):
        try:
            history.append(*_play_at_once(algo, block, history.state))
        except FMRLError:
            pass
        else:
            return progress(len(block)) if progress else None
    for task, best in zip(block, _optima(algo, block), strict=True):
        new, happened = algo.meet(history.state, task.open(), best)
        history.append(_widen(happened), new)
        if progress:
            progress(1)


def _play_at_once(algo: FMRL, block: list[Task], state: State) -> tuple[Round, State]:
    """An exact rule needs no play to move phi: solve all optima at once, scan the meta-level, then play all at once."""
    game = stack(block)
    sigma = algo.sigma(state.phi, game, state.tasks)
    best = game.hindsight(algo.domain)
    states = []
    for t in range(len(block)):
        states.append(state)
        state = algo.advance(state, End(best.theta[t, ...], best.theta[t, ...], sigma[t, ...]))
    return _play_from(algo, _side_by_side(states), game, best, sigma), state


def _side_by_side(states: list[State]) -> State:
    """States as one, phi and guess stacked; the memories are not needed for playing."""
    xp = namespace(states[0].phi)
    return State(states[0].tasks, xp.stack([s.phi for s in states]), xp.stack([s.guess for s in states]), (), ())


def _play_from(algo: FMRL, state: State, game: Rounds, best: Solution, sigma: Array) -> Round:
    played = play(algo.within, game, algo.domain, state.phi, _step_size(state.guess, sigma))
    return algo.record(state, game, played, best, algo.update.vector(played, best), sigma)


def _run_orders(algo, tasks: list[Task], phi, orders, keep, progress) -> History:
    """Several orders of the same tasks side by side: optima are solved once, every position is played in all orders at once."""
    if not tasks or not all(isinstance(task, Task) for task in tasks):
        raise FMRLError("orders needs a list of Task values", fix="run reactive tasks one order at a time")
    if orders.ndim != 2 or not orders.size or orders.dtype.kind not in "iu" or orders.min() < 0 or orders.max() >= len(tasks):
        raise FMRLError(f"orders must be integers [S, T] below {len(tasks)}")
    keys = {(task.loss, task.X.shape[1], task.X.dtype) for task in tasks}
    if len(keys) > 1:
        raise FMRLError("orders needs tasks of one loss, width and dtype")
    game = stack(tasks)
    xp = namespace(game.X)
    runs, best = orders.shape[0], _hindsight(algo, game)
    start = as_float(_start(algo, tasks[0], phi), "phi")
    namespace(start, game.X)
    if start.shape[-1:] != (tasks[0].dim,):
        raise FMRLError(f"the tasks need phi of length {tasks[0].dim}, but phi has shape {tuple(start.shape)}")
    state = algo.init(zeros((runs, tasks[0].dim), game.X) + start)
    history = History(algo, state, keep)
    sigma = algo.sigma(zeros((len(tasks), tasks[0].dim), game.X), game, 0)
    positions = xp.asarray(orders.T.copy(), device=device(game.X))
    per_block = max(1, MOST // runs) if algo.update.exact else 1
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
                    state = algo.advance(state, End(theta, theta, xp.take(sigma, index[t, :], axis=0)))
                before = State(0, xp.concat([s.phi for s in states]), xp.concat([s.guess for s in states]), (), ())
                happened = _play_from(algo, before, these, optima, weight)
            else:
                happened = _play_from(algo, state, these, optima, weight)
                state = algo.advance(state, End(happened.theta, optima.theta, weight))
            history.append(_by_run(happened, index.shape), state)
            if progress:
                progress(index.shape[0])
    except BaseException as error:
        _carry(error, history, None)
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
    count, size = game.X.shape[0], max(1, ELEMENTS // (game.X.shape[1] * game.X.shape[2]))
    every = xp.arange(count, device=device(game.X))
    parts = [game.take(every[i : min(i + size, count)]).hindsight(algo.domain) for i in range(0, count, size)]
    return Solution(*(xp.concat(column) for column in zip(*parts, strict=True)))
