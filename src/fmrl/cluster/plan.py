"""The plan of a run: which blocks there are, whether the folder it goes to holds a beginning of the
same run, and which block waits for what.

scanned          solve (map) → phi before each block → deviate (map) → guesses → play (map)
meta-batches     solve (map) → for each meta-batch: play its blocks (map), one weighted update
task after task  solve (map) → each block in turn, on one worker at a time

Where the update rule is exact and the similarity rule observes no play, phi and the guess follow
from the optima alone (`FMRL.scanned`). Where the meta-update can merge a block into
one task and the similarity rule needs one number of a task, vectors stay with the workers. Any
other rule, such as one of the user's own, is scanned by the driver, which reads the optima block
by block while the blocks before are being played.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import fmrl
from fmrl.cluster.groups import (
    TARGET,
    Block,
    Group,
    cut,
    fingerprint,
    index_table,
    join,
    open_file,
    sizes,
)
from fmrl.cluster.tables import Skipped, Tables, named
from fmrl.cluster.work import Job, Start, ends_of
from fmrl.core.losses import Loss, Squared
from fmrl.core.meta_level import State, measured, scan, together
from fmrl.core.metric import Metric
from fmrl.core.rules.meta import End
from fmrl.core.tasks import Task, Tasks
from fmrl.errors import FMRLError, TableError
from fmrl.files import read_json
from fmrl.records import checksum, plain, write_json


@dataclass(frozen=True)
class Plan:
    """Blocks, what each holds in memory (None: its rows lie in files), the length of theta, and
    what the data is known by.
    """

    job: Job
    blocks: list[Block]
    held: Callable[[Block], Any]
    dim: int
    data: Any
    loss: Loss
    dtype: Any = np.float64
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def kind(self) -> Tasks:
        """Tasks of the same kind, without rows."""
        outputs = self.loss.outputs
        X = np.zeros((0, self.dim // outputs), self.dtype)
        return Tasks(self.loss, X, np.zeros((0, outputs), self.dtype), np.zeros(1, int), [])


def plan_of(job: Job, tasks: Any, block: int | None, mapper: Any) -> Plan:
    """The plan for whatever the engine reads."""
    files = isinstance(tasks, (list, tuple)) and tasks
    files = files and all(isinstance(t, (str, Path)) for t in tasks)
    if files or isinstance(tasks, (str, Path)) or type(tasks).__module__.startswith("ray.data"):
        tasks = Tables(tasks)
    make = plan_tables if isinstance(tasks, Tables) else plan_tasks
    return make(job, tasks, block, mapper)


def plan_tables(job: Job, tables: Tables, block: int | None, mapper: Any) -> Plan:
    """Index the files (a map over them, the task column alone) and cut them into blocks of whole
    tasks.
    """
    if type(tables.source).__module__.startswith("ray.data"):
        return _plan_dataset(job, tables, block, mapper)
    files = tables.files()
    mapper.ledger.begin("index", len(files))
    items = ((f, None) for f in files)
    work = mapper.map("index", replace(job, tables=tables), items, ordered=True)
    groups, bad = join([g for done in work for g in done.value], job.skip)
    if not groups:
        why = "; ".join(g.error or "" for g in bad[:3])
        raise TableError("no file of the folder can be read", fix=why)
    readable = list(dict.fromkeys(g.file for g in groups))
    opened = tables.opened(open_file(readable[0]).schema_arrow, readable)
    return _plan(job, opened, groups, bad, block, fingerprint(files), lambda b: None)


def _plan_dataset(job: Job, tables: Tables, block: int | None, mapper: Any) -> Plan:
    """Whatever Ray Data reads: its blocks, in their order, stay where they are; only first and
    last ids come here.
    """
    ray = mapper.ray
    # Rows of a task lie together only in their own order.
    tables.source.context.execution_options.preserve_order = True
    refs = tables.source.to_arrow_refs()

    def look(table: Any, i: int) -> tuple[Group, Any, str]:
        return index_table(table, tables.task, f"block {i}", 0, 0), table.schema, _content(table)

    remote = ray.remote(num_cpus=1)(look)
    found = ray.get([remote.remote(ref, i) for i, ref in enumerate(refs)])
    groups, bad = join([g for g, *_ in found if g.runs], job.skip)
    if not groups:
        raise TableError("the Dataset has no rows", fix="give one with rows")
    held = {f"block {i}": ref for i, ref in enumerate(refs)}
    opened = tables.opened(found[0][1], None)
    data = [(g.file, g.runs, content) for g, _, content in found]

    def own(b: Block) -> dict[str, Any]:
        return {s.file: held[s.file] for s in b.spans}

    return _plan(job, opened, groups, bad, block, data, own)


def _content(table: Any) -> str:
    """A digest of an Arrow table's values, whatever its chunks."""
    digest = hashlib.sha256(str(table.schema).encode())
    for column in table.columns:
        for buffer in column.combine_chunks().buffers():
            digest.update(b"" if buffer is None else memoryview(buffer))
    return digest.hexdigest()


def _plan(
    job: Job, tables: Tables, groups: list[Group], bad: list[Group], block: int | None,
    data: Any, held: Any,
) -> Plan:  # fmt: skip
    assert tables.encoder is not None and tables.loss is not None
    blocks = cut(groups, block, job.meta_batch)
    if not blocks:
        raise TableError("the table has no whole task", fix="give a table with rows")
    skipped = [Skipped(g.place, g.error or "", -1) for g in bad]
    what = {"files": data, "task": tables.task, "target": tables.target, "loss": repr(tables.loss)}
    what |= {"encoder": tables.encoder.to_json(), "one_class": tables.one_class}
    if tables.share < 1:
        what["share"] = tables.share
    if tables.coordinates is not None:  # an affine map is known by what it does to a basis
        width = len(tables.encoder.names)
        basis = np.eye(width), np.arange(width)[:, None], np.array([0, width])
        moved = tables.coordinates.tasks(Tasks(Squared(), *basis, [0]))
        what["coordinates"] = checksum(moved.X, moved.target)
    dim = tables.loss.outputs * tables.width
    job = replace(job, tables=tables)
    return Plan(job, blocks, held, dim, what, tables.loss, skipped=skipped)


def plan_tasks(job: Job, tasks: Iterable[Any], block: int | None, mapper: Any) -> Plan:
    """Task values, put into the object store block by block as they come."""
    source, blocks, held, digests, first, dim = iter(tasks), [], [], [], 0, 0
    for size, batch in sizes(block or TARGET, job.meta_batch):
        some = list(itertools.islice(source, size))
        if not some:
            break
        for i, task in enumerate(some):
            if not (isinstance(task, Task) and isinstance(task.X, np.ndarray)):
                what = f"{type(task).__name__} cannot be sent to a cluster"
                fix = "give Task values of NumPy arrays, or use engine='local'"
                raise FMRLError(what, task=first + i, fix=fix)
        stack = named(Tasks.of(some, first))
        if dim and stack.dim != dim:
            what = "tasks that are played together need one loss, width and dtype"
            raise FMRLError(what, task=first)
        dim = stack.dim
        digests.append([checksum(stack.X, stack.target, stack.starts), repr(some[0].loss)])
        blocks.append(Block(len(blocks), first, len(some), batch))
        held.append(mapper.put(stack))
        first += len(some)
    if not blocks:
        raise FMRLError("there are no tasks", fix="give at least one Task")
    return Plan(job, blocks, lambda b: held[b.number], dim, digests, stack.loss, stack.X.dtype)


def settle(plan: Plan, start: State, out: Path, resume: bool, alone: bool = True) -> Job:
    """The job with its folder ready: new, or the beginning of this very run. alone: whether a
    folder that holds other files is refused.
    """
    job = replace(plan.job, phi=np.asarray(start.phi))
    if start.phi.shape != (plan.dim,):
        shape = tuple(start.phi.shape)
        raise FMRLError(f"the tasks need phi of length {plan.dim}, but phi has shape {shape}")
    about = {"fmrl": fmrl.__version__, "algo": repr(job.algo)}
    about |= {name: getattr(job, name) for name in ("meta_batch", "keep", "skip")}
    blocks = [
        (b.first, b.tasks, b.batch, [(s.file, s.group, s.low, s.high) for s in b.spans])
        for b in plan.blocks
    ]
    guess = start.guess.arrays if isinstance(start.guess, Metric) else start.guess
    begin = plain(list(start._replace(guess=guess)))
    key = json.dumps([about, plan.data, blocks, begin], default=str)
    run = hashlib.sha256(key.encode()).hexdigest()
    mark = about | {"run": run, "tasks": sum(b.tasks for b in plan.blocks)}
    manifest = out / "run.json"
    if manifest.exists() and resume:
        held = _manifest(manifest)
        if held["run"] != mark["run"]:
            names = [n for n in about if held.get(n) != mark[n]] or ["data, blocks or start"]
            what = f"{out} holds another run: it differs in {', '.join(names)}"
            raise FMRLError(what, fix="choose another folder, or resume=False to overwrite it")
    elif manifest.exists():
        for kind in ("optima", "rounds"):
            shutil.rmtree(out / kind, ignore_errors=True)
    elif alone and out.exists() and any(out.iterdir()):
        what = f"{out} is not empty, and what it holds is not a run"
        raise FMRLError(what, fix="choose another folder")
    for kind in ("optima", "rounds"):
        (out / kind).mkdir(parents=True, exist_ok=True)
    write_json(manifest, mark)
    return replace(job, about=mark)


def _manifest(path: Path) -> dict[str, Any]:
    """What a run in a folder was begun with."""
    try:
        held = read_json(path)
        if isinstance(held, dict) and isinstance(held["run"], str):
            return held
    except (OSError, ValueError, KeyError):
        pass
    what = f"{path} is damaged, so it cannot be said whether this is the same run"
    raise FMRLError(what, fix="bring it back, or resume=False to begin anew")


@dataclass
class Totals:
    """What a run adds up to."""

    state: State
    regret: float = 0.0
    gap: float = 0.0


class Driver:
    """One run: a job, its blocks with what they hold in memory, a map, and a callable to tell
    about played tasks.
    """

    def __init__(
        self, job: Job, blocks: list[Block], held: Callable[[Block], Any], mapper: Any,
        progress: Any = None,
    ):  # fmt: skip
        self.job, self.algo, self.mapper = job, job.algo, mapper
        self.blocks, self.held, self.progress = blocks, held, progress or (lambda n: None)
        self.skipped: list[Skipped] = []
        self.sizes: dict[int, int] = {}  # tasks of each block that could be solved
        self.merged: dict[int, End | None] = {}

    def solve(self) -> None:
        """All optima; blocks whose tasks are all unusable are left out from here on."""
        self.mapper.ledger.begin("solve", len(self.blocks))
        skipped: dict[int, list[Skipped]] = {}
        for done in self.mapper.map("solve", self.job, ((b, self.held(b)) for b in self.blocks)):
            skipped[done.item.number] = done.skipped
            if done.tasks:
                self.sizes[done.item.number], self.merged[done.item.number] = done.value
        self.skipped += [s for number in sorted(skipped) for s in skipped[number]]
        self.blocks = [b for b in self.blocks if b.number in self.sizes]
        if not self.blocks:
            why = "; ".join(s.what for s in self.skipped[:3])
            raise FMRLError("no task is left to play", fix=f"look at what was skipped: {why}")

    def run(self, state: State) -> Totals:
        """Play all blocks from ``state``."""
        self.totals = Totals(state)
        if self.algo.scanned and self.job.meta_batch == 1:
            self.mapper.ledger.begin("play", len(self.blocks))
            merged = all(self.merged[b.number] is not None for b in self.blocks)
            alone = merged and measured(self.algo.similarity)
            items = self._measured(state) if alone else self._scanned(state)
            for done in self.mapper.map("play", self.job, items):
                self._count(done)
        elif self.blocks[0].batch is not None:
            self._in_meta_batches(state)
        else:
            self._in_turn(state)
        return self.totals

    def _measured(self, state: State) -> Iterator[tuple]:
        """Where each block starts and what its tasks guess, from merged tasks and numbers alone."""
        algo, befores = self.algo, []
        phi, memory = state.phi, state.meta
        for block in self.blocks:
            befores.append((block, None, phi, memory))
            phi, memory = algo.meta.update(algo.domain, phi, memory, self.merged[block.number])
        self.mapper.ledger.begin("deviate", len(self.blocks))
        found = self.mapper.map("deviate", self.job, iter(befores), ordered=True)
        guess, seen = state.guess, state.similarity
        for (block, _, start, weight), done in zip(befores, found, strict=True):
            guesses, guess, seen = algo.similarity.follow(guess, seen, *done.value)
            yield block, self.held(block), Start(start, weight, guesses)
        tasks = state.tasks + sum(self.sizes[b.number] for b in self.blocks)
        self.totals.state = State(tasks, phi, guess, memory, seen, self.totals.state.algo)

    def _scanned(self, state: State) -> Iterator[tuple]:
        """The same, through all the optima."""
        for block in self.blocks:
            before, after = scan(self.algo, state, ends_of(self.job, block))
            yield block, self.held(block), Start(state.phi, state.meta, before.guess)
            state = self.totals.state = after

    def _in_turn(self, state: State) -> None:
        self.mapper.ledger.begin("turn", len(self.blocks))
        for block in self.blocks:
            (done,) = self.mapper.map("turn", self.job, [(block, self.held(block), state)])
            state = self.totals.state = done.value[2]
            self._count(done)

    def _in_meta_batches(self, state: State) -> None:
        """The blocks of one meta-batch are played at once, then phi moves."""
        self.mapper.ledger.begin("play", len(self.blocks))
        for _, group in groupby(self.blocks, key=lambda b: b.batch):
            blocks = list(group)
            start = Start(state.phi, state.meta, state.guess, together=True)
            items = [(b, self.held(b), start) for b in blocks]
            for done in self.mapper.map("play", self.job, items, ordered=True):
                self._count(done)
            state = self.totals.state = together(self.algo, state, ends_of(self.job, *blocks))

    def _count(self, done: Any) -> None:
        self.totals.regret += done.value[0]
        self.totals.gap += done.value[1]
        self.progress(done.tasks)
