"""Callbacks for `MetaTrainer.fit(each=…)`: TensorBoard scalars, and lines of progress."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from fmrl.deep.trainer import MetaTrainer


class TensorBoard:
    """Write the training loss, the step eta, a similarity rule's guess D and any metrics.

    Args:
        folder: Where TensorBoard's files go.
        metrics: Called with the trainer, returns {name: number}, e.g. of an evaluation.
    """

    def __init__(self, folder: str | Path, metrics: Any = None):
        from torch.utils.tensorboard import SummaryWriter

        self.writer, self.metrics, self.seen = SummaryWriter(str(folder)), metrics, 0

    def __call__(self, trainer: MetaTrainer) -> None:
        scalars = {"eta": trainer.eta}
        if len(trainer.losses) > self.seen:
            scalars["loss"] = torch.cat(trainer.losses[self.seen :]).mean(0)
            self.seen = len(trainer.losses)
        if trainer.similarity is not None:  # with a fixed step nothing is guessed
            scalars["guess"] = trainer.state.guess
        named = {f"{k}/{run}": v for k, vs in scalars.items() for run, v in enumerate(vs.tolist())}
        for name, value in (named | (self.metrics(trainer) if self.metrics else {})).items():
            self.writer.add_scalar(name, value, trainer.iteration)
        self.writer.flush()


class Progress:
    """Print a line each time: meta-iterations, loss, then task-steps per second and time left.

    Args:
        iterations: Meta-iterations in all.
        out: Called with each line.
    """

    def __init__(self, iterations: int, out: Any = print):
        self.iterations, self.out, self.start = iterations, out, None

    def __call__(self, trainer: MetaTrainer) -> None:
        now, done = time.monotonic(), trainer.iteration
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        line = f"{done:,}/{self.iterations:,}  loss {float(trainer.losses[-1].mean()):.4f}"
        if self.start is None:  # the time before the first call is not known
            self.start = (now, done)
        elif done > self.start[1]:
            speed = (done - self.start[1]) / max(now - self.start[0], 1e-9)
            rate = speed * trainer.runs * trainer.meta_batch * trainer.loop.steps
            line += f"  {rate:,.0f} task-steps/s  {(self.iterations - done) / speed:.0f} s left"
        self.out(line)
