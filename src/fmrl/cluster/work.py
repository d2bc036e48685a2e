"""What a worker does with one block: index, solve, deviate, play; sums, for a prior. Every piece
of work can be done twice with the same result. What it finds is one Parquet file, written whole or
not at all, so that a file that is there is a block that is done.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fmrl.cluster.columns import block_about, read_block, write_block
from fmrl.cluster.groups import Block, index_file
from fmrl.cluster.tables import Skipped, Tables
from fmrl.core.algorithm import FMRL, Round
from fmrl.core.batched import concat, play_from, play_solved, shared
from fmrl.core.batched import solve as solve_tasks
from fmrl.core.checkpoint import load_state, save_state
from fmrl.core.ensemble import Ensemble
from fmrl.core.history import KEEP, OBSERVED, SCALARS
from fmrl.core.meta_level import State, begun, looked, starts_of, together
from fmrl.core.prior.gaussian import Gaussian
from fmrl.core.prior.marginal import sums_of
from fmrl.core.prior.statistics import TaskStatistics
from fmrl.core.rules.meta import End, MetaUpdate
from fmrl.core.solve import Solution
from fmrl.core.tasks import Tasks
from fmrl.core.values import shortcut
from fmrl.errors import FMRLError, TableError

OPTIMA = ("optimum", "value", "gap", "sigma")


@dataclass(frozen=True)
class Job:
    """What is the same for all blocks of a run."""

    algo: FMRL
    out: str
    phi: np.ndarray | None = None  # where the run starts, for its length
    tables: Tables | None = None
    meta_batch: int = 1
    keep: str = "all"
    skip: bool = False
    about: dict[str, Any] = field(default_factory=dict)

    def path(self, kind: str, block: Block) -> Path:
        """The file of a block: kind is 'optima' or 'rounds'."""
        return Path(self.out) / kind / f"{block.number:08d}.parquet"


class Start(NamedTuple):
    """Where the tasks of a block start."""

    phi: np.ndarray  # [d] of the first task
    memory: Any  # of the meta-update, from which the others follow
    guess: Any  # [n], or that of a State where all start together
    together: bool = False  # whether all start at phi, as in a meta-batch


@dataclass
class Done:
    """What came back from a worker for one block."""

    item: Any
    phase: str
    value: Any = None
    tasks: int = 0
    seconds: float = 0.0
    cpu: float = 0.0  # seconds of the processor, which other programs do not lengthen
    worker: str = ""
    read: int = 0
    written: int = 0
    reused: bool = False
    skipped: list[Skipped] = field(default_factory=list)
    error: Exception | None = None


def attend(function: str, job: Job, item: Any, held: Any, *rest: Any) -> Done:
    """Do one piece of work and say who did it and how long it took. A user's mistake comes back
    as a value: it is not retried.
    """
    done = Done(item, function, worker=f"{socket.gethostname()}:{os.getpid()}")
    started, cpu = time.perf_counter(), time.process_time()
    try:
        WORK[function](job, done, held, *rest)
    except FMRLError as error:
        done.error = error
    done.seconds, done.cpu = time.perf_counter() - started, time.process_time() - cpu
    return done


def index(job: Job, done: Done, held: Any) -> None:
    """Row groups of one file."""
    assert job.tables is not None
    done.value = index_file(done.item, job.tables.task)


def solve(job: Job, done: Done, held: Any) -> None:
    """Optima of a block, written down."""
    path = job.path("optima", done.item)
    columns = read_block(path, run=job.about.get("run"))
    if columns is None:
        columns = _solved(job, done, _tasks(job, done.item, held, done))
        note = {"skipped": [vars(s) for s in done.skipped]}
        done.written = write_block(path, columns, job.about | note)
    else:
        done.reused, done.skipped = True, [Skipped(**s) for s in block_about(path)["skipped"]]
    theta, done.tasks = columns["optimum"], len(columns["sigma"])
    if done.tasks:
        ends = End(theta, theta, columns["sigma"])
        merge = shortcut(job.algo.meta, "merged", "update")
        done.value = done.tasks, merge(ends) if merge else None


def _solved(job: Job, done: Done, tasks: Tasks | None) -> dict[str, Any]:
    """Columns of the tasks that could be solved; what could not is skipped, or raised."""
    if tasks is None:
        nothing = {"optimum": np.zeros((0, 1))} | {name: np.zeros(0) for name in OPTIMA[1:]}
        return nothing | {name: np.zeros(0, int) for name in ("position", "task")}
    phi = np.zeros(tasks.dim, tasks.X.dtype) if job.phi is None else job.phi
    found, kept, todo = [], [], [np.arange(len(tasks))]
    while todo:
        places = todo.pop()
        try:
            best, sigma = solve_tasks(job.algo, tasks.take(places), phi)
        except FMRLError as error:
            if len(places) > 1:  # in halves, to find out which
                todo += reversed(np.array_split(places, 2))
                continue
            name = tasks.names[places[0]]
            where = f"task {name.item() if hasattr(name, 'item') else name!r}"
            if not job.skip:
                raise FMRLError(f"{where}: {error.what}", fix=error.fix) from None
            done.skipped.append(Skipped(where, error.what))
            continue
        kept.append(places)
        found.append((best.theta, best.value, best.gap, sigma))
    if not kept:
        return _solved(job, done, None)
    columns = (np.concatenate(parts) for parts in zip(*found, strict=True))
    position = np.concatenate(kept)
    more = {"position": position, "task": np.asarray(tasks.names)[position]}
    if (side := looked(job.algo, tasks.first[position])) is not None:
        more["side"] = side
    return dict(zip(OPTIMA, columns, strict=True)) | more


def deviate(job: Job, done: Done, held: Any, phi: np.ndarray, memory: Any) -> None:
    """What the similarity rule needs to know of a block whose first task starts at ``phi``."""
    ends = ends_of(job, done.item)
    starts, _, _ = starts_of(job.algo, phi, memory, ends)
    done.tasks, done.read = ends.tasks, ends.theta.nbytes + ends.sigma.nbytes
    done.value = job.algo.similarity.measure(job.algo.domain, starts, ends), ends.sigma


def play(job: Job, done: Done, held: Any, start: Start) -> None:
    """Play a block whose tasks know where they start: all at once."""
    rounds = _played(job, done)
    if rounds is None:
        tasks, best, sigma, columns = _ready(job, done, held)
        n, phi, guess = len(sigma), start.phi, start.guess
        if start.together:
            state = State(0, phi, guess, start.memory, ())
            phi, guess = begun(job.algo, state, n, columns.get("side")), shared(guess, n)
        else:
            ends = End(best.theta, best.theta, sigma, None, columns.get("side"))
            phi = starts_of(job.algo, phi, start.memory, ends)[0]
        before = State(0, phi, guess, (), ())
        happened, _ = play_from(job.algo, before, tasks, best, sigma, np.arange(n))
        rounds = _write(job, done, happened, columns)
    done.value = float(rounds["regret"].sum()), float(rounds["gap"].sum())


def turn(job: Job, done: Done, held: Any, state: State) -> None:
    """Play a block meta-batch after meta-batch; the state after it comes back."""
    rounds, several = _played(job, done), isinstance(job.algo, Ensemble)
    after = _after(job, done) if several else None
    if rounds is None or (several and after is None):
        done.reused = False
        tasks, best, sigma, columns = _ready(job, done, held)
        pieces = list(play_solved(job.algo, state, tasks, best, sigma, job.meta_batch))
        state = pieces[-1][1]
        if several:
            save_state(state, _state_path(job, done))
        rounds = _write(job, done, concat([happened for happened, _ in pieces]), columns)
    elif after is not None:
        state = after
    else:  # played before: how its tasks ended says where phi went
        ends = ends_of(job, done.item)
        for first in range(0, ends.tasks, job.meta_batch):
            state = together(job.algo, state, ends.at(slice(first, first + job.meta_batch)))
    done.value = float(rounds["regret"].sum()), float(rounds["gap"].sum()), state


def _state_path(job: Job, done: Done) -> Path:
    return job.path("rounds", done.item).with_suffix(".npz")


def _after(job: Job, done: Done) -> State | None:
    """The state of an ensemble after a block that was played before: how the tasks ended does not
    say where its members went.
    """
    try:
        return load_state(_state_path(job, done))
    except FMRLError:  # gone or damaged: the block is played again
        return None


def moments(job: Job, done: Done, held: Any, gaussian: Gaussian) -> None:
    """What the tasks of a block say about a Gaussian."""
    tasks = _tasks(job, done.item, held, done)
    assert tasks is not None
    (done.value,), done.tasks = sums_of(tasks)([gaussian]), len(tasks)


def statistics(job: Job, done: Done, held: Any, nothing: None) -> None:
    """The sufficient statistics of the tasks of a block."""
    tasks = _tasks(job, done.item, held, done)
    assert tasks is not None
    done.tasks, done.value = len(tasks), TaskStatistics.of(tasks)


def ends_of(job: Job, *blocks: Block) -> End:
    """How the tasks of blocks that were played, or at least solved, ended."""
    found, names = [], [] if job.algo.exact else ["theta"]
    names += ["seen"] if getattr(job.algo.similarity, "observes", None) else []
    wanted = ["optimum", "sigma", *(["side"] if _looks(job) else [])]
    for block in blocks:
        best = read(job, "optima", block, wanted)
        end = End(best["optimum"], best["optimum"], best["sigma"], None, best.get("side"))
        found.append(end._replace(**read(job, "rounds", block, names)) if names else end)
    return concat(found)


def _looks(job: Job) -> bool:
    """Whether the meta-update looks at a task before it is played."""
    return getattr(type(job.algo.meta), "look", MetaUpdate.look) is not MetaUpdate.look


def read(job: Job, kind: str, block: Block, names: list[str] | None = None) -> dict[str, Any]:
    """Columns of a block that must be there."""
    columns = read_block(job.path(kind, block), names, job.about.get("run"))
    if columns is None:
        what = f"the {kind} of block {block.number} are gone or damaged"
        raise FMRLError(what, fix="run it again with resume: only they are made again")
    return columns


def _tasks(job: Job, block: Block, held: Any, done: Done) -> Tasks | None:
    if isinstance(held, Tasks):
        return held
    assert job.tables is not None
    tasks, skipped, size = job.tables.tasks(block.spans, job.skip, held)
    done.skipped, done.read = done.skipped + skipped, done.read + size
    return tasks


def _played(job: Job, done: Done) -> dict[str, Any] | None:
    rounds = read_block(job.path("rounds", done.item), run=job.about.get("run"))
    if rounds is not None:
        done.reused, done.tasks = True, len(rounds["regret"])
    return rounds


def _ready(job: Job, done: Done, held: Any) -> tuple[Tasks, Solution, np.ndarray, dict[str, Any]]:
    """The tasks of a block that were solved, and their optima."""
    columns = read(job, "optima", done.item)
    tasks, kept = _tasks(job, done.item, held, done), columns["position"]
    done.skipped, done.tasks = [], len(kept)  # skipped ones were reported when the block was solved
    same = tasks is not None and (not len(kept) or kept.max() < len(tasks))
    if not same or not np.array_equal(np.asarray(tasks.names)[kept], columns["task"]):  # type: ignore[union-attr]
        what = f"block {done.item.number} is not what it was when it was solved"
        raise TableError(what, fix="start again with resume=False")
    best = Solution(columns["optimum"], columns["value"], columns["gap"])
    return tasks.take(kept), best, columns["sigma"], columns  # type: ignore[union-attr]


def _write(job: Job, done: Done, happened: Round, best: dict[str, Any]) -> dict[str, Any]:
    n = len(best["sigma"])
    columns = {"task": best["task"]} | {name: getattr(happened, name) for name in SCALARS}
    columns |= {"sigma": best["sigma"], "meta_batch": np.full(n, job.meta_batch, np.int32)}
    if not job.algo.exact:
        columns["theta"] = happened.theta
    # Without what was seen, the similarity rule could not be asked again.
    observed = {name: getattr(happened, name) for name in (*OBSERVED, "seen")}
    columns |= {name: a for name, a in observed.items() if a is not None}
    if "optimum" in KEEP[job.keep]:
        columns["optimum"] = best["optimum"]
    if "losses" in KEEP[job.keep]:
        lengths = happened.rounds.astype(int)
        counts = np.arange(happened.losses.shape[1]) < lengths[:, None]
        columns["losses"] = happened.losses[counts], np.concatenate([[0], np.cumsum(lengths)])
    done.written = write_block(job.path("rounds", done.item), columns, job.about)
    return columns


WORK = {
    "index": index, "solve": solve, "deviate": deviate, "play": play, "turn": turn,
    "moments": moments,
    "statistics": statistics,
}  # fmt: skip
