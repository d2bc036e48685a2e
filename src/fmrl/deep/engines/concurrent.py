"""Several trainings on one device at a time, and threads that each play their own tasks.

On CUDA each training keeps a stream of its own busy, so that small stacks fill the device too. On a
CPU, threads with tasks of their own beat splitting every small product between the cores."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fmrl.deep.trainer import MetaTrainer

AHEAD = 2  # slices a training may have waiting
LAUNCHES = 512  # kernels in a slice: a longer queue would block the host and the other trainings


@cache
def _pool(count: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
    list(pool.map(lambda i: torch.zeros(1) + i, range(count)))
    return pool


def share(jobs: Sequence[Callable[[], None]], threads: int) -> None:
    """Run the jobs, at most ``threads`` at a time, each on one thread; one thread is this one.

    >>> done = []
    >>> share([lambda: done.append(1), lambda: done.append(2)], 2)
    >>> sorted(done)
    [1, 2]
    """
    if threads == 1 or len(jobs) == 1:
        for job in jobs:
            job()
        return
    mine = torch.get_num_threads()
    futures = [_pool(threads).submit(job) for job in jobs]
    try:
        for future in futures:
            future.result()
    finally:  # stopped or not, nobody goes on writing to what the caller will use again
        wait(futures)
    if torch.get_num_threads() != mine:
        torch.set_num_threads(mine)


@dataclass
class Job:
    """One training: go on to ``iterations``, and call ``each`` after every ``every`` of them."""

    trainer: MetaTrainer
    tasks: Sequence[Any]
    iterations: int
    every: int
    each: Callable[[MetaTrainer], None]
    waiting: deque = field(default_factory=deque)
    stream: Any = None
    loaded: int = 0  # meta-iterations drawn and not yet replayed
    chunk: int = 0  # meta-iterations drawn last
    due: bool = False  # a call of ``each`` that was missed when the training was stopped

    @property
    def done(self) -> bool:
        """Whether all meta-iterations were enqueued and looked at."""
        return self.trainer.iteration >= self.iterations and not self.due

    def ready(self) -> bool:
        """Whether the device has nearly finished what it was given."""
        while self.waiting and self.waiting[0].query():
            self.waiting.popleft()
        return len(self.waiting) < AHEAD

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
        if seconds is not None and time.monotonic() - started > seconds:
            return False
        moved = False
        for job in unfinished:
            if job.stream is not None and not job.ready():
                continue
            before, moved = job.trainer.iteration, True
            with torch.cuda.stream(job.stream):  # None: nothing
                job.advance()
            if tick is not None:
                tick(job, job.trainer.iteration - before)
        if not moved:
            time.sleep(0.0005)
    return True
