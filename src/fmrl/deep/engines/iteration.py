"""One meta-iteration on fixed buffers, captured once and replayed for every drawn meta-batch; and
several trainings that are replayed on one device at a time.

On CUDA each training keeps a stream of its own busy, so that small stacks fill the device too."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fmrl.deep.engines.inner import InnerLoop, capture
from fmrl.deep.engines.threads import alone
from fmrl.deep.meta_level import MetaLevel, MetaState, Played
from fmrl.deep.ranks import Ranks, shared
from fmrl.deep.tasks import Tasks

if TYPE_CHECKING:
    from fmrl.deep.trainer import MetaTrainer

CHUNK = 1024  # meta-iterations whose tasks are drawn at once, or fewer where that takes more than
TABLES = 2**28  # bytes, or makes more than
WORK = 2**16  # steps of tasks: a fraction of a second on a GPU, which is lost with Ctrl-C
STRETCH = 2**32  # task numbers between the first tasks of two seeds
AHEAD = 3.0  # seconds of work a training may have waiting, for the time others are evaluated
LEAD = 0.1  # of its meta-iterations that a training may be ahead of the others
LAUNCHES = 512  # kernels in a slice: a longer queue would block the host and the other trainings


class MetaIteration:
    """``meta_batch`` tasks of R runs, played by ``loop`` in one go.

    They are played in turn where Adam's moments pass from task to task. ``load`` draws the tasks of
    up to ``chunk`` meta-iterations into tables on the device, ``replay`` then runs that many of
    them without the host. The state is moved in place; ``losses`` [chunk, R] are the mean losses of
    those replayed."""

    def __init__(
        self, level: MetaLevel, state: MetaState, loop: InnerLoop, meta_batch: int,
        rates: torch.Tensor, ranks: Ranks | None = None,
    ):  # fmt: skip
        self.level, self.state, self.loop, self.rates = level, state, loop, rates
        self.meta_batch, self.ranks, (self.mine, self.own) = (
            meta_batch, ranks, shared(ranks, meta_batch),
        )  # fmt: skip
        self.runs, self.size = state.phi.shape
        self.carried = bool(level.within.carry)
        self.turns = self.runs * self.own // loop.tasks  # 1, or meta_batch if played in turn
        device, dtype = loop.theta.device, loop.theta.dtype
        drawn = self.turns * loop.index.numel()  # samples of a meta-iteration
        most = min(TABLES // (16 * drawn), WORK * loop.batch // drawn)
        self.chunk = chunk = max(1, min(CHUNK, most))

        def table(*shape, dtype=dtype):
            return torch.zeros(chunk, *shape, dtype=dtype, device=device)

        self.index = table(self.turns, *loop.index.shape, dtype=torch.int64)
        self.label = table(self.turns, *loop.label.shape, dtype=loop.label.dtype)
        self.bias = table(self.turns, loop.steps) + 1
        self.number = table(self.turns, loop.tasks, dtype=torch.int64)
        self.fraction, self.losses = table(self.runs), table(self.runs)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        shape = self.runs, meta_batch, self.size
        self.ends = loop.theta.new_zeros(shape) if self.turns > 1 else None
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.memories: list[Any] = []  # the meta-update's counters after each meta-iteration loaded
        self.kept = [t.clone() for t in state.tensors()]
        # Kernels that wait for each other have little else to wait for than the next graph.
        few = loop.plan is not None and device.type == "cuda"
        self.group = max(1, LAUNCHES // (self.turns * loop.launches)) if few else 1
        try:
            self.once = self.several = capture(self.body, device)
            if self.group > 1:
                several = partial(_repeat, self.body, self.group)
                self.several = capture(several, device, tried=True)
        finally:  # capturing moved them
            _restore(state.tensors(), self.kept)

    def load(self, sources: Sequence[Tasks], first: Sequence[int], count: int) -> None:
        """Draw the tasks of the next ``count`` meta-iterations, without waiting for the device.

        first: each run's first task number.
        """
        done, K, steps, turns = self.state.iteration, self.meta_batch, self.loop.steps, self.turns
        with self._aside():
            drawn = [s.draw(f + done * K, count * K) for s, f in zip(sources, first, strict=True)]
        for table, parts in zip((self.index, self.label), zip(*drawn, strict=True), strict=True):
            mine = [p.unflatten(0, (count, K))[:, self.mine] for p in parts]
            mine = [p.unflatten(1, (turns, self.own // turns)) for p in mine]
            stacked = torch.stack(mine, 2)  # [count, turns, R, K', steps, batch]
            table[:count].copy_(stacked.flatten(2, 3).transpose(2, 3))
        if self.loop.number is not None:
            at = torch.arange(done * K, (done + count) * K).view(count, K)[:, self.mine]
            own = torch.stack([at.view(count, turns, -1) + f for f in first], 2)
            self._send(self.number, own.flatten(2))
        if not self.label.is_cuda:  # there it would wait for the device, and tasks are checked once
            self.loop.check(self.label[:count])
        if self.side is not None:  # the next draw may use this memory again once it has been copied
            self.side.wait_stream(torch.cuda.current_stream(self.at.device))
        if isinstance(self.state.meta, int):
            fractions, memory, self.memories = [], self.state.meta, []
            for _ in range(count):
                fraction, memory = self.level.fraction(memory, K)
                fractions.append(fraction)
                self.memories.append(memory)
            column = torch.tensor(fractions, dtype=torch.float64)[:, None]
            self._send(self.fraction, column.expand(-1, self.runs))
        before = torch.arange(count * turns).view(count, turns) * (K // turns * steps)
        before = (self.state.taken + before) * self.carried
        self._send(self.bias, self.loop.bias_at(before[..., None]))
        if self.level.similarity is None:  # else with every meta-iteration
            self._step()
        self.at.zero_()

    def replay(self, count: int) -> None:
        """Run the next ``count`` of those loaded; whatever stops it, whole ones have been made."""
        group = count if self.at.is_cuda else 1  # on a GPU they take no time: all or none
        with alone() if self.loop.threads > 1 else nullcontext():
            for start in range(0, count, group):
                self._some(min(group, count - start))

    def _some(self, count: int) -> None:
        state = self.state
        _restore(self.kept, state.tensors())
        before, taken, memory = state.iteration, state.taken, state.meta
        try:
            _repeat(self.several, count // self.group)
            _repeat(self.once, count % self.group)
            state.iteration += count
            state.taken += count * self.meta_batch * self.loop.steps
            if self.memories:
                state.meta, self.memories = self.memories[count - 1], self.memories[count:]
        except BaseException:
            if self.at.is_cuda:
                torch.cuda.synchronize(self.at.device)
            _restore(state.tensors(), self.kept)
            state.iteration, state.taken, state.meta = before, taken, memory
            raise

    def body(self) -> None:
        """One meta-iteration, on buffers alone, so that it can be captured."""
        loop, state, level, R, K = self.loop, self.state, self.level, self.runs, self.own
        per = K // self.turns
        tables = [(self.index, loop.index), (self.label, loop.label), (self.bias, loop.bias)]
        tables += [] if loop.number is None else [(self.number, loop.number)]
        if level.similarity is not None:
            self._step()
        losses = None
        for turn in range(self.turns):
            for table, buffer in tables:
                torch.index_select(table[:, turn], 0, self.at, out=buffer[None])
            loop.play(partial(self._begin, turn == 0))
            average = None if loop.average is None else loop.average / loop.steps
            ends = level.update.vector(Played(loop.theta, average), None).view(R, per, -1)
            if self.ends is not None:
                self.ends[:, turn : turn + 1].copy_(ends)
            mean = loop.losses.view(loop.steps, R, per).mean((0, 2))
            losses = mean if losses is None else losses + mean
        scheduled = isinstance(state.meta, int)
        fraction = self.fraction.index_select(0, self.at)[0] if scheduled else None
        if self.ends is not None:
            ends, losses = self.ends, losses / self.turns
        # Adam alone is played in turns, and of its tasks nothing is observed.
        squares = None if loop.squares is None else loop.squares.view(R, K, -1)
        seen = level.seen(squares, loop.theta, state)
        kept = None if loop.frozen is None else state.phi.clone()
        if self.ranks is not None and self.turns == 1:
            second = loop.second.view(R, K, -1) if self.carried else None
            sizes = self.meta_batch, loop.steps
            facts = ends, seen, second, K * losses
            losses = self.ranks.advance(level, state, facts, *sizes, fraction)
        else:
            level.advance(state, ends, fraction, seen)
            if self.carried and self.turns > 1:
                state.second.copy_(loop.second)
            elif self.carried:
                level.carry(state.second, loop.second.view(R, K, -1), loop.steps)
        if kept is not None:  # means of equal numbers may differ in the last bit
            state.phi.copy_(torch.where(loop.frozen, kept, state.phi))
        self.losses.index_copy_(0, self.at, losses[None])
        self.at += 1

    def _step(self) -> None:
        """The inner step of each run for all its tasks."""
        eta = self.level.eta(self.state.guess, self.size, self.rates).view(self.runs, 1, -1)
        per = self.own // self.turns
        self.loop.eta.view(self.runs, per, -1).copy_(eta.expand(-1, per, -1))

    def _begin(self, first: bool, rows: slice) -> None:
        """Put tasks ``rows`` where they start, in the first turn or a later one."""
        loop, state, per = self.loop, self.state, self.loop.tasks // self.runs
        pairs = [(loop.theta, state.phi)]
        pairs += [(loop.second, state.second)] if self.carried and first else []
        for buffer, value in pairs:
            if len(buffer[rows]) == len(buffer):  # on a GPU one call
                buffer.view(self.runs, per, -1).copy_(value[:, None].expand(-1, per, -1))
                continue
            for task in range(rows.start, rows.stop):
                buffer[task].copy_(value[task // per])
        for buffer in (loop.average, loop.squares, None if self.carried else loop.second):
            if buffer is not None:
                buffer[rows].zero_()

    def _send(self, table: torch.Tensor, values: torch.Tensor) -> None:
        values = values.to(table.dtype).contiguous()
        values = values.pin_memory() if table.is_cuda else values
        table[: len(values)].copy_(values, non_blocking=True)

    @contextmanager
    def _aside(self):
        """A stream of its own for drawing tasks, which would else wait for the training."""
        if self.side is None:
            yield
            return
        with torch.cuda.stream(self.side):
            yield
        torch.cuda.current_stream(self.at.device).wait_stream(self.side)


def _repeat(body: Callable[[], None], times: int) -> None:
    for _ in range(times):
        body()


def _restore(tensors: Iterable[torch.Tensor], kept: Iterable[torch.Tensor]) -> None:
    for tensor, value in zip(tensors, kept, strict=True):
        tensor.copy_(value)


@dataclass
class Job:
    """One training: go on to ``iterations``, and call ``each`` after every ``every`` of them."""

    trainer: MetaTrainer
    tasks: Sequence[Any]
    iterations: int
    every: int
    each: Callable[[MetaTrainer], None]
    waiting: deque = field(default_factory=deque)
    began: float = field(default_factory=time.monotonic)
    ended: int = 0  # slices that the device has finished
    stream: Any = None
    loaded: int = 0  # meta-iterations drawn and not yet replayed
    chunk: int = 0  # meta-iterations drawn last
    due: bool = False  # a call of ``each`` that was missed when the training was stopped

    @property
    def done(self) -> bool:
        """Whether all meta-iterations were enqueued and looked at."""
        return self.trainer.iteration >= self.iterations and not self.due

    @property
    def share(self) -> float:
        """How much of it was enqueued."""
        return self.trainer.iteration / self.iterations

    def ready(self) -> bool:
        """Whether the device has nearly finished what it was given."""
        while self.waiting and self.waiting[0].query():
            self.waiting.popleft()
            self.ended += 1
        pace = self.ended / (time.monotonic() - self.began + 1e-9)  # slices a second so far
        return len(self.waiting) < max(2, AHEAD * pace)

    def advance(self) -> None:
        """One slice of a chunk, and what is due after it."""
        trainer = self.trainer
        if self.due:
            self.each(trainer)
            self.due = False
            return
        stop = min(self.iterations, (trainer.iteration // self.every + 1) * self.every)
        trainer._prepare(self.tasks)
        if self.loaded == 0:
            self.loaded = self.chunk = min(trainer.engine.chunk, stop - trainer.iteration)
            trainer.engine.load(self.tasks, trainer.firsts(self.tasks), self.chunk)
        launches = trainer.loop.launches * trainer.engine.turns  # in one meta-iteration
        count = 1 if self.stream is None else min(self.loaded, max(1, LAUNCHES // launches))
        trainer.engine.replay(count)
        self.loaded -= count
        if self.loaded == 0:
            trainer.losses.append(trainer.engine.losses[: self.chunk].clone())
        if self.stream is not None:
            self.waiting.append(torch.cuda.Event())
            self.waiting[-1].record(self.stream)
        if trainer.iteration == stop:
            self.each(trainer)


def train_together(
    jobs: Sequence[Job], seconds: float | None = None,
    tick: Callable[[Job, int], None] | None = None,
) -> bool:  # fmt: skip
    """Run all jobs, side by side on CUDA and in turn on a CPU; False if ``seconds`` ended first.

    tick: called with a job and the meta-iterations it has just been given, after every slice.
    """
    started = time.monotonic()
    longest = sorted({job.tasks[0].steps for job in jobs}, reverse=True)
    for job in jobs:
        device = job.trainer.device
        if device.type == "cuda":  # those with most steps to take one after the other go first
            priority = min(0, longest.index(job.tasks[0].steps) - 3)
            job.stream = torch.cuda.Stream(device, priority=priority)
            with torch.cuda.stream(job.stream):
                job.trainer._prepare(job.tasks)
    while unfinished := [job for job in jobs if not job.done]:
        last = min(job.share for job in unfinished)
        if seconds is not None and time.monotonic() - started > seconds:
            return False
        moved = False
        for job in unfinished:
            if job.stream is not None and not (job.share <= last + LEAD and job.ready()):
                continue
            before, moved = job.trainer.iteration, True
            with torch.cuda.stream(job.stream):  # None: nothing
                job.advance()
            if tick is not None:
                tick(job, job.trainer.iteration - before)
        if not moved:
            time.sleep(0.0005)
    return True
