"""Several trainings on one device at the same time: each keeps a stream of its own busy, so that
small stacks fill the device too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fmrl.deep.trainer import MetaTrainer

AHEAD = 2  # slices a training may have waiting
LAUNCHES = (
    512  # kernels in a slice: a longer queue would block the host, and with it the other trainings
)


@dataclass
class Job:
    """One training: go on to ``iterations`` and call ``each`` after every ``every`` meta-iterations
    and at the end.
    """

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
    jobs: Sequence[Job],
    seconds: float | None = None,
    tick: Callable[[Job, int], None] | None = None,
) -> bool:
    """Run all jobs, side by side on CUDA and in turn on a CPU; True when all are done, False when
    ``seconds`` were over first.

    tick: called with a job and the meta-iterations it has just been given, after every slice.
    """
    started = time.monotonic()
    longest = sorted({job.tasks[0].steps for job in jobs}, reverse=True)
    for job in jobs:
        if (
            job.trainer.device.type == "cuda"
        ):  # those with most steps to take one after the other go first
            job.stream = torch.cuda.Stream(
                job.trainer.device, priority=min(0, longest.index(job.tasks[0].steps) - 3)
            )
            with torch.cuda.stream(job.stream):
                job.trainer._prepare(job.tasks)
    while open_ := [job for job in jobs if not job.done]:
        if seconds is not None and time.monotonic() - started > seconds:
            return False
        moved = False
        for job in open_:
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
