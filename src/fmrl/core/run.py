"""run: a composition over many tasks, batched where the composition allows, with the same numbers
as step in a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fmrl.core.algorithm import FMRL, Round, State, _step_size
from fmrl.core.arrays import Array, as_array, as_float, namespace, to_numpy, zeros
from fmrl.core.engine import Engine, find_engine
from fmrl.core.history import KEEP, History
from fmrl.core.metabatch import meta_batches, play_together, widen
from fmrl.core.rules.meta import End
from fmrl.core.rules.within import play
from fmrl.core.solve.minimise import Solution
from fmrl.core.tasks import Rounds, Task, stack
from fmrl.errors import FMRLError

ELEMENTS = (
    1 << 20
)  # of X in one block: 8 MB in float64; fewer blocks mean fewer calls, larger ones leave the cache
MOST = 1024  # tasks in one block


def run(
    algo: FMRL,
    tasks: Iterable[Any],
    phi: Array | None = None,
    *,
    state: State | None = None,
    orders: Any = None,
    meta_batch: int = 1,
    engine: str | Engine = "local",
    keep: str = "all",
    progress: Callable[[int], None] | None = None,
) -> History:
    """Play ``tasks`` (any iterable; a generator is consumed block by block) and return the History.

    phi: where to start, flat [d]; by default the middle of the domain. state: resume from a saved
    State instead.
    orders: integers [S, T]; play the tasks in S orders at once, histories stacked on a leading
    axis.
    meta_batch: so many tasks play from the same phi and guess, then one weighted update follows; 1
    is Algorithm 2.
    engine: "local", or "ray" or an Engine to run on a cluster; ``tasks`` may then be a folder of
    Parquet files (see fmrl.cluster).
    keep: "all"; "vectors" drops the losses; "scalars" the vectors too; "totals" keeps memory
    constant whatever T.
    progress: called with the number of tasks just played.

    If anything goes wrong at task t, or you press Ctrl-C, the exception carries ``.history`` with
    all tasks before it (its ``.state`` resumes the run); an FMRLError also has ``.task`` = t and
    ``.state``.

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
    if state is not None:
        algo.check(state)
    if not isinstance(meta_batch, int) or meta_batch < 1:
        raise FMRLError(f"meta_batch must be a whole number of at least 1, not {meta_batch!r}")
    if orders is not None:
        if state is not None:
            raise FMRLError(
                "orders start afresh and cannot resume a state",
                fix="give phi, or run one order with state",
            )
        if meta_batch > 1 or engine != "local":
            raise FMRLError(
                "orders are played on one machine, task after task",
                fix="leave meta_batch and engine out",
            )
        from fmrl.core.orders import run_orders

        return run_orders(algo, list(tasks), phi, to_numpy(as_array(orders)), keep, progress)
    if engine != "local":
        return find_engine(engine).run(
            algo, tasks, phi, state=state, meta_batch=meta_batch, keep=keep, progress=progress
        )
    history: History | None = None
    first = phi if state is None else state.phi
    try:
        for block in _blocks(tasks, first) if meta_batch == 1 else meta_batches(tasks, meta_batch):
            if history is None:
                history = History(
                    algo, state or algo.init(_start(algo, block[0], phi)), keep, meta_batch
                )
            if meta_batch == 1:
                _play_block(algo, block, history, progress)
                continue
            for happened, new in play_together(algo, history.state, list(_blocks(block, first))):
                history.append(happened, new)
            if progress:
                progress(len(block))
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
    """Consecutive tasks of one loss, width and kind of array, small enough to stay in cache.
    Anything else: one by one.
    """
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
                raise FMRLError(
                    f"{type(task).__name__} is not a task", fix="build one with Task(X, y, loss=…)"
                )
            longest = max(size, task.rounds * task.X.shape[1] if isinstance(task, Task) else 1)
            if block and (
                new != key or longest * (len(block) + 1) > ELEMENTS or len(block) == MOST
            ):
                yield block
                block, longest = (
                    [],
                    max(0, task.rounds * task.X.shape[1] if isinstance(task, Task) else 1),
                )
            block.append(task)
            key, size = new, longest
    except (Exception, KeyboardInterrupt):  # play what came before it first
        if block:
            yield block
        raise
    if block:
        yield block


def _optima(algo: FMRL, block: list[Any]) -> list[Solution | None]:
    """The optima of a block at once (None: not known before the play), for rules that must play one
    task after another.
    """
    if len(block) == 1 or not isinstance(block[0], Task):
        return [None] * len(block)
    try:
        best = stack(block).hindsight(algo.domain)
    except FMRLError:  # one by one, the tasks before the bad one are still played
        return [None] * len(block)
    return [Solution(*(a[t, ...] for a in best)) for t in range(len(block))]


def _play_block(
    algo: FMRL, block: list[Any], history: History, progress: Callable[[int], None] | None
) -> None:
    """Play a block at once if the composition allows, else (or if that fails, to find out where)
    one by one.
    """
    if len(block) > 1 and algo.update.exact and isinstance(block[0], Task):
        try:
            history.append(*_play_at_once(algo, block, history.state))
        except FMRLError:
            pass
        else:
            return progress(len(block)) if progress else None
    for task, best in zip(block, _optima(algo, block), strict=True):
        new, happened = algo.meet(history.state, task.open(), best)
        history.append(widen(happened), new)
        if progress:
            progress(1)


def _play_at_once(algo: FMRL, block: list[Task], state: State) -> tuple[Round, State]:
    """An exact rule needs no play to move phi: solve all optima at once, scan the meta-level, then
    play all at once.
    """
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
    return State(
        states[0].tasks,
        xp.stack([s.phi for s in states]),
        xp.stack([s.guess for s in states]),
        (),
        (),
    )


def _play_from(algo: FMRL, state: State, game: Rounds, best: Solution, sigma: Array) -> Round:
    played = play(algo.within, game, algo.domain, state.phi, _step_size(state.guess, sigma))
    return algo.record(state, game, played, best, algo.update.vector(played, best), sigma)
