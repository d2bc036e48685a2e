"""run: a composition over many tasks, batched where it allows, with the numbers of step in a
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from fmrl.core.algorithm import FMRL
from fmrl.core.arrays import Array, as_array, as_float, namespace, stacked, to_numpy, zeros
from fmrl.core.batched import (
    by_run,
    concat,
    one,
    play_from,
    play_scanned,
    play_solved,
    play_tasks,
    solve,
    take,
    taken,
)
from fmrl.core.checks import whole
from fmrl.core.ensemble import Ensemble
from fmrl.core.history import KEEP, History
from fmrl.core.meta_level import State, looked, refuse_nan, together
from fmrl.core.rules.private import each_once, promises, refuse_repeats
from fmrl.core.tasks import ELEMENTS, MOST, Task, Tasks, opened, refuse_others
from fmrl.errors import FMRLError

ENGINES = {"ray": "fmrl.cluster:Ray"}  # name → module:value, imported when it is asked for


class Engine(Protocol):
    """Something that plays tasks as `run` does, elsewhere, with the same numbers."""

    def run(
        self, algo: FMRL, tasks: Any, phi: Array | None = None, *, state: State | None = None,
        meta_batch: int = 1, keep: str = "all", progress: Callable[[int], None] | None = None,
    ) -> History:  # fmt: skip
        """The history of ``tasks``: an iterable of Task, or whatever else the engine reads."""
        ...


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
    """Play tasks one after another and return what happened.

    If anything goes wrong at task t, or you press Ctrl-C, the exception carries ``.history`` with
    all tasks before it (its ``.state`` resumes the run); an FMRLError also has ``.task`` = t and
    ``.state``.

    Args:
        algo: The composition.
        tasks: Any iterable of tasks; a generator is consumed piece by piece.
        phi: Where to start, flat [d]; by default the middle of the domain.
        state: Resume from a saved State instead.
        orders: Integers [S, T]: play the tasks in S orders at once, histories stacked on a first
            axis.
        meta_batch: So many tasks play from the same phi and guess, then one weighted update
            follows; 1 is Algorithm 2.
        engine: "local", or "ray" or an Engine to run on a cluster; ``tasks`` may then be a folder
            of Parquet files (see `fmrl.cluster`).
        keep: "all"; "vectors" drops the losses; "scalars" the vectors too; "totals" keeps memory
            constant whatever T.
        progress: Called with the number of tasks just played.

    >>> import numpy as np
    >>> import fmrl
    >>> tasks = [fmrl.Task([[1.0, 0.0]], [0.5], loss=fmrl.Squared()) for _ in range(10)]
    >>> round(float(run(FMRL(), tasks).tar), 4)
    0.0125
    """
    _check(algo, tasks, phi, state, orders, meta_batch, engine, keep, progress)
    report = progress or (lambda count: None)
    if orders is not None:
        return _run_orders(algo, list(tasks), phi, to_numpy(as_array(orders)), keep, report)
    if not (isinstance(engine, str) and engine == "local"):
        options = {"state": state, "meta_batch": meta_batch, "keep": keep, "progress": progress}
        return find_engine(engine).run(algo, tasks, phi, **options)
    history: History | None = None
    like = phi if state is None else state.phi
    try:
        stream = each_once(algo, tasks) if promises(algo) else tasks
        for window in _windows(stream, like, meta_batch):
            if history is None:
                start = state or algo.init(_start(algo, window[0], phi))
                history = History(algo, start, keep, meta_batch)
            for rounds, after in _play_window(algo, history.state, window, meta_batch):
                refuse_nan(rounds, after)
                history.append(rounds, after)
                report(rounds.regret.shape[-1])
    except BaseException as error:
        _carry(error, history, state)
        raise
    if history is None:
        raise FMRLError("there are no tasks", fix="give at least one Task")
    return history


def find_engine(engine: str | Engine) -> Engine:
    """The engine of that name, or the one given.

    >>> find_engine("abacus")
    Traceback (most recent call last):
        ...
    fmrl.errors.FMRLError: there is no engine called 'abacus'; use one of 'local', 'ray'
    """
    if not isinstance(engine, str):
        if isinstance(engine, type) or not hasattr(engine, "run"):
            fix = "give 'local', 'ray' or a value such as fmrl.cluster.Ray()"
            raise FMRLError(f"{engine!r} is not an engine", fix=fix)
        return engine
    if engine not in ENGINES:
        fix = f"use one of 'local', {', '.join(map(repr, ENGINES))}"
        raise FMRLError(f"there is no engine called {engine!r}", fix=fix)
    module, _, name = ENGINES[engine].partition(":")
    return getattr(import_module(module), name)()


def _check(algo, tasks, phi, state, orders, meta_batch, engine, keep, progress) -> None:
    local = isinstance(engine, str) and engine == "local"
    if not (isinstance(keep, str) and keep in KEEP):
        raise FMRLError(f"keep must be one of {', '.join(map(repr, KEEP))}, not {keep!r}")
    if not isinstance(algo, (FMRL, Ensemble)):
        raise FMRLError(f"algo must be an FMRL, not {type(algo).__name__}", fix="see fmrl.presets")
    if isinstance(tasks, Task) or (local and not hasattr(tasks, "__iter__")):
        raise FMRLError("run takes several tasks", fix="give a list: run(algo, [task])")
    if state is not None and phi is not None:
        raise FMRLError("phi and state exclude each other: a state holds its own phi")
    whole("meta_batch", meta_batch)
    if not (progress is None or callable(progress)):
        raise FMRLError(f"progress must be a function of a number of tasks, not {progress!r}")
    if orders is not None and state is not None:
        fix = "give phi, or run one order with state"
        raise FMRLError("orders start afresh and cannot resume a state", fix=fix)
    if orders is not None and (meta_batch > 1 or not local):
        what = "orders are played on one machine, task after task"
        raise FMRLError(what, fix="leave meta_batch and engine out")
    if isinstance(algo, Ensemble) and meta_batch > 1:
        what = f"{type(algo).__name__} learns from every task before the next, task after task"
        raise FMRLError(what, fix="leave meta_batch out")
    if orders is None and isinstance(tasks, (list, tuple)):
        refuse_repeats(algo, tasks)
    if state is not None:
        algo.check(state)


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
        if as_float(phi, "phi").ndim != 1:
            raise FMRLError("phi must be one vector", fix="give phi [d]")
        return phi
    if not isinstance(task, Task):
        raise FMRLError("a reactive task does not say where to start", fix="give phi")
    return algo.domain.middle(zeros((task.dim,), task.X))


def _windows(tasks: Iterable[Any], phi: Array | None, meta_batch: int) -> Iterator[list[Any]]:
    """Tasks in lists that are played at once: whole meta-batches, not too many rows together.

    What came before a failure is handed out first.
    """
    window: list[Any] = []
    size, like = 0, None if phi is None else as_float(phi, "phi")
    try:
        for task in tasks:
            if isinstance(task, Task):
                namespace(task.X, *(() if like is None else (like,)))
                like = task.X if like is None else like
                size += task.rounds * task.X.shape[1]
            else:
                refuse_others(task)
            window.append(task)
            full = size >= ELEMENTS or len(window) >= MOST
            if len(window) % meta_batch == 0 and (full or not isinstance(task, Task)):
                yield window
                window, size = [], 0
    except (Exception, KeyboardInterrupt):
        if window:
            yield window
        raise
    if window:
        yield window


def _kind(task: Any) -> Any:
    return task.kind if isinstance(task, Task) else id(task)


def _play_window(algo: FMRL, state: State, window: list[Any], meta_batch: int) -> Iterator[Any]:
    batches = [window]
    if meta_batch > 1 and len({_kind(task) for task in window}) > 1:
        batches = [window[i : i + meta_batch] for i in range(0, len(window), meta_batch)]
    for batch in batches:
        blocks = [list(block) for _, block in groupby(batch, key=_kind)]
        mixed = meta_batch > 1 and len(blocks) > 1
        for block in [batch] if mixed else blocks:
            if mixed or not isinstance(block[0], Task):
                pieces: Any = _play_mixed(algo, state, block)
            else:
                pieces = play_tasks(algo, state, Tasks.of(block, state.tasks), meta_batch)
            for piece in pieces:
                state = piece[1]
                yield piece


def _play_mixed(algo: FMRL, state: State, batch: list[Any]) -> Iterator[Any]:
    """One meta-batch of tasks of several kinds: reactive ones, other losses or widths."""
    played = []
    for number, task in enumerate(batch):
        try:
            game = opened(task)
            start = algo.starting(state, game)
            if isinstance(algo, Ensemble):  # one task: an ensemble has no meta-batches
                after, rounds = algo.step_solved(start, game, game.hindsight(algo.domain))
                yield one(rounds), after
                return
            played.append(map(one, algo.play(start, game)))
        except FMRLError as error:
            error.task = state.tasks + number
            raise
    rounds, ends = (concat(column) for column in zip(*played, strict=True))
    yield rounds, together(algo, state, ends)


def _run_orders(algo, tasks: list[Any], phi, orders: np.ndarray, keep, report) -> History:
    """Several orders of the same tasks side by side: optima are solved once, and every position
    is played in all orders at once.
    """
    if not tasks or not all(isinstance(task, Task) for task in tasks):
        fix = "run reactive tasks one order at a time"
        raise FMRLError("orders needs a list of Task values", fix=fix)
    integers = orders.ndim == 2 and orders.size and orders.dtype.kind in "iu"
    if not integers or orders.min() < 0 or orders.max() >= len(tasks):
        raise FMRLError(f"orders must be integers [S, T] below {len(tasks)}")
    refuse_repeats(algo, tasks, orders)
    every = Tasks.of(tasks)
    start = as_float(_start(algo, tasks[0], phi), "phi")
    namespace(start, every.X)
    if start.shape[-1:] != (every.dim,):
        what = f"the tasks need phi of length {every.dim}, but phi has shape {tuple(start.shape)}"
        raise FMRLError(what)
    begun = zeros((orders.shape[0], every.dim), every.X) + start
    state = algo.init(begun)
    history = History(algo, state, keep)
    try:
        best, sigma = solve(algo, every, start)
        several = isinstance(algo, Ensemble)  # whose phi is a mean of where its members begin
        play, begun = (_orders_in_turn, begun) if several else (_orders_at_once, state)
        for rounds, after in play(algo, begun, every, best, sigma, orders):
            refuse_nan(rounds, after)
            history.append(rounds, after)
            report(rounds.regret.shape[-1])
    except BaseException as error:
        _carry(error, history, None)
        raise
    return history


def _orders_at_once(algo, state, every, best, sigma, orders) -> Iterator[Any]:
    size = max(1, MOST // orders.shape[0]) if algo.scanned else 1
    for first in range(0, orders.shape[1], size):
        index = orders.T[first : first + size]  # [n, S]
        if algo.scanned:
            rounds, state = play_scanned(algo, state, every, best, sigma, index)
        else:
            side = looked(algo, every.first)
            if side is not None:
                side = taken(side, index[0])
                phi = algo.meta.begin(algo.domain, state.phi, state.meta, side)
                state = state._replace(phi=phi)
            rounds, end = play_from(algo, state, every, best, sigma, index[0])
            rounds, state = by_run(rounds, index.shape), algo.advance(state, end)
        yield rounds, state


def _orders_in_turn(algo, begun, every, best, sigma, orders) -> Iterator[Any]:
    """Every order by itself from its phi in ``begun``, one position after another."""
    starts = [algo.init(phi) for phi in begun]
    runs = [
        play_solved(algo, start, every.take(order), take(best, order), taken(sigma, order))
        for start, order in zip(starts, orders, strict=True)
    ]
    for position in zip(*runs, strict=True):
        rounds, states = zip(*position, strict=True)
        yield by_run(concat(rounds), (1, len(runs))), stacked(states)
