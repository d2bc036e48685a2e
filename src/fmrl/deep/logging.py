"""Callbacks for `MetaTrainer.fit(each=…)`: TensorBoard scalars, and progress with task-steps per
second and time left.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from fmrl.deep.trainer import MetaTrainer


class TensorBoard:
    """Write the training loss, the step eta, a similarity rule's guess D and any metrics to a
    TensorBoard folder.

    metrics: called with the trainer, returns {name: number}, e.g. an evaluation.
    """

    def __init__(self, folder: str | Path, metrics: Any = None):
        from torch.utils.tensorboard import SummaryWriter

        self.writer, self.metrics, self.seen = SummaryWriter(str(folder)), metrics, 0

    def __call__(self, trainer: MetaTrainer) -> None:
        if len(trainer.losses) > self.seen:
            recent = torch.cat(trainer.losses[self.seen :]).mean(0)
            self.seen = len(trainer.losses)
            for run, value in enumerate(recent.tolist()):
                self.writer.add_scalar(f"loss/{run}", value, trainer.iteration)
        scalars = {"eta": trainer.eta}
        if trainer.similarity is not None:  # with a fixed step nothing is guessed
            scalars["guess"] = trainer.state.guess
        for name, values in scalars.items():
            for run, value in enumerate(values.tolist()):
                self.writer.add_scalar(f"{name}/{run}", value, trainer.iteration)
        for name, value in (self.metrics(trainer) if self.metrics else {}).items():
            self.writer.add_scalar(name, value, trainer.iteration)
        self.writer.flush()


class Progress:
    """Print one line each time: meta-iterations, loss, and from the second line on task-steps per
    second and time left.
    """

    def __init__(self, iterations: int, out: Any = print):
        self.iterations, self.out, self.start = iterations, out, None

    def __call__(self, trainer: MetaTrainer) -> None:
        now, done = time.monotonic(), trainer.iteration
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        line = f"{done:,}/{self.iterations:,}  loss {float(trainer.losses[-1].mean()):.4f}"
        if self.start is None:  # how long it took to come here is not known
            self.start = (now, done)
        elif done > self.start[1]:
            speed = (done - self.start[1]) / max(now - self.start[0], 1e-9)
            rate = speed * trainer.runs * trainer.meta_batch * trainer.loop.steps
            line += f"  {rate:,.0f} task-steps/s  {(self.iterations - done) / speed:.0f} s left"
        self.out(line)
