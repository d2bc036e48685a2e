"""What a worker does with one block: index, solve, deviate, play. Every piece of work can be done
twice with the same result.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fmrl.cluster import store
from fmrl.cluster.groups import Block, index_file
from fmrl.cluster.pack import Pack
from fmrl.cluster.playing import OPTIMA, Record, play_in_turn, replay, solve_pack
from fmrl.cluster.prefix import Sums, before_each
from fmrl.cluster.scan import Ends
from fmrl.cluster.tables import Skipped, Tables
from fmrl.core.algorithm import FMRL, State
from fmrl.core.arrays import norm
from fmrl.core.history import KEEP
from fmrl.errors import FMRLError, TableError


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
    """Where the tasks of a block start: the prefix before it, or phi of every task where only the
    driver can say.
    """

    phi: np.ndarray  # [d], or [n, d]
    memory: Any
    guess: np.ndarray  # [n], or [] for one guess


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
    """Do one piece of work and say who did it and how long it took. A user's mistake comes back as
    a value: it is not retried.
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


def _pack(job: Job, block: Block, held: Any, done: Done) -> Pack | None:
    if isinstance(held, Pack):
        return held
    assert job.tables is not None
    pack, skipped, size = job.tables.pack(block.spans, job.skip, held)
    done.skipped, done.read = done.skipped + skipped, done.read + size
    return pack


def solve(job: Job, done: Done, held: Any) -> None:
    """Optima of a block, written down; its sums come back."""
    path = job.path("optima", done.item)
    columns = store.read(path, run=job.about.get("run"))
    if columns is None:
        pack = _pack(job, done.item, held, done)
        if pack is None:
            kept, columns = (
                np.zeros(0, int),
                {"optimum": np.zeros((0, 1))} | {n: np.zeros(0) for n in OPTIMA[1:]},
            )
            names = np.zeros(0, int)
        else:
            phi = np.zeros(pack.dim, pack.X.dtype) if job.phi is None else job.phi
            kept, columns, skipped = solve_pack(job.algo, pack, job.skip, phi)
            names, done.skipped = pack.names[kept], done.skipped + skipped
        columns |= {"position": kept, "task": names}
        note = {"skipped": [vars(s) for s in done.skipped]}
        done.written = store.write(path, columns, job.about | note)
    else:
        done.reused, done.skipped = True, [Skipped(**s) for s in store.about(path)["skipped"]]
    theta, done.tasks = columns["optimum"], len(columns["sigma"])
    done.value = Sums.of(theta, theta, columns["sigma"]) if done.tasks else None


def deviate(job: Job, done: Done, held: Any, phi: np.ndarray, memory: Any) -> None:
    """How far every optimum of a block lies from the phi its task starts at."""
    columns = _optima(job, done.item, ["optimum", "sigma"])
    theta, sigma = columns["optimum"], columns["sigma"]
    starts = before_each(job.algo.meta, phi, memory, theta, sigma)
    done.tasks, done.read = len(sigma), theta.nbytes + sigma.nbytes
    done.value = Ends(job.algo.domain.divergence(theta, starts), norm(theta - starts), sigma)


def play(job: Job, done: Done, held: Any, start: Start) -> None:
    """Play a block whose tasks know where they start: all at once. Its ends and sums come back
    where the driver waits for them.
    """
    algo, rounds = job.algo, _played(job, done)
    best = _optima(job, done.item, None)
    n = len(best["sigma"])
    if rounds is None:
        _, record = _ready(job, done, held, best)
        phi = start.phi
        if phi.ndim == 1 and start.guess.ndim == 0:  # a meta-batch
            phi = np.ascontiguousarray(np.broadcast_to(phi, (n, len(phi))))
        elif phi.ndim == 1:
            phi = before_each(algo.meta, phi, start.memory, best["optimum"], best["sigma"])
        record.play(algo, np.arange(n), phi, np.broadcast_to(start.guess, (n,)), best)
        rounds = _write(job, done, record, best)
    ends = None
    if start.guess.ndim == 0:
        theta = rounds.get("theta", best["optimum"])
        far = norm(best["optimum"] - start.phi)
        ends = (
            Ends(rounds["deviation"], far, best["sigma"]),
            Sums.of(theta, best["optimum"], best["sigma"]),
        )
    done.value = float(rounds["regret"].sum()), float(rounds["gap"].sum()), ends


def turn(job: Job, done: Done, held: Any, state: State) -> None:
    """Play a block meta-batch after meta-batch; the state after it comes back."""
    rounds, best = _played(job, done), _optima(job, done.item, None)
    if rounds is None:
        _, record = _ready(job, done, held, best)
        after = play_in_turn(job.algo, record, state, best, job.meta_batch)
        rounds = _write(job, done, record, best)
    else:
        after = replay(job.algo, state, rounds.get("theta", best["optimum"]), best, job.meta_batch)
    done.value = float(rounds["regret"].sum()), float(rounds["gap"].sum()), after


def _optima(job: Job, block: Block, names: list[str] | None) -> dict[str, Any]:
    columns = store.read(job.path("optima", block), names, job.about.get("run"))
    if columns is None:
        raise FMRLError(
            f"the optima of block {block.number} are gone or damaged",
            fix="run it again: only they are solved again",
        )
    return columns


def _played(job: Job, done: Done) -> dict[str, Any] | None:
    rounds = store.read(job.path("rounds", done.item), run=job.about.get("run"))
    if rounds is not None:
        done.reused, done.tasks = True, len(rounds["regret"])
    return rounds


def _ready(job: Job, done: Done, held: Any, best: dict[str, Any]) -> tuple[Pack, Record]:
    pack = _pack(job, done.item, held, done)
    done.skipped = []  # said when the block was solved
    kept = best["position"]
    if pack is None or (
        len(kept)
        and (kept.max() >= len(pack) or not np.array_equal(pack.names[kept], best["task"]))
    ):
        raise TableError(
            f"block {done.item.number} is not what it was when it was solved",
            fix="start again with resume=False",
        )
    done.tasks = len(kept)
    return pack, Record(pack, kept, job.algo.update.exact)


def _write(job: Job, done: Done, record: Record, best: dict[str, Any]) -> dict[str, Any]:
    n = len(best["sigma"])
    columns = (
        {"task": best["task"]}
        | record.columns
        | {"sigma": best["sigma"], "meta_batch": np.full(n, job.meta_batch, np.int32)}
    )
    if record.theta is not None:
        columns["theta"] = record.theta
    if "optimum" in KEEP[job.keep]:
        columns["optimum"] = best["optimum"]
    if "losses" in KEEP[job.keep]:
        columns["losses"] = record.ragged()
    done.written = store.write(job.path("rounds", done.item), columns, job.about)
    return columns


WORK = {"index": index, "solve": solve, "deviate": deviate, "play": play, "turn": turn}
