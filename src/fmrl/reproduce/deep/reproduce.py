"""The paper's deep experiments: the authors' 48 Reptile runs, ours beside theirs.

Runs that differ only in samples or seed have one shape and are trained as one stack. A study stops
when its time is over and goes on from its checkpoints when called again. Losses are summed over a
mini-batch, as the authors' are: moments carried from training to a test task with mini-batches of
another size make the difference felt."""

from __future__ import annotations

import json
import random
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fmrl.core.rules.meta import Interpolate
from fmrl.core.rules.update import FLIOnline
from fmrl.datasets.episodes import shuffled
from fmrl.deep import checkpoint
from fmrl.deep.checkpoint import load, save
from fmrl.deep.engines.concurrent import Job, train_together
from fmrl.deep.engines.inner import summed_cross_entropy
from fmrl.deep.evaluate import PROTOCOLS, evaluate
from fmrl.deep.models import mini_imagenet_net, omniglot_net
from fmrl.deep.tasks import Pool
from fmrl.deep.trainer import MetaTrainer
from fmrl.deep.within import Adam
from fmrl.errors import FMRLError
from fmrl.records import record, write_json
from fmrl.reproduce.deep.settings import Run, compare, reference, runs

__all__ = ["Plan", "Run", "Study", "compare", "reference", "runs", "split"]

TRAIN_CHARACTERS = 1200


@dataclass(frozen=True)
class Plan:
    """How much of a study is done: curves on ``curve`` test tasks every ``every`` meta-iterations,
    the end on ``final``.
    """

    every: int = 2000
    curve: int = 200
    final: int = 1000
    inductive: int = 500
    iterations: int | None = None
    precision: str = "bf16"


def split(run: Run, names: Sequence[str]) -> tuple[list[int], list[int]]:
    """Training and test classes of Omniglot: 1,200 of the characters ``names`` in four rotations,
    the others as they are.

    Seed 0 is the authors' own split: their characters by alphabet and number, shuffled by Python's
    generator at its seed 0.

    >>> train, test = split(runs()[0], [f"A/character{i:04}" for i in range(1623)])
    >>> len(train), len(test), test[:3]
    (4800, 423, [1062, 1139, 806])
    """
    order = shuffled(len(names), run.seed).tolist()
    if run.seed == 0:
        order = sorted(range(len(names)), key=lambda i: names[i].split("/"))
        random.Random(0).shuffle(order)
    train = [c + turn * len(names) for turn in range(4) for c in order[:TRAIN_CHARACTERS]]
    return train, order[TRAIN_CHARACTERS:]


class Study:
    """All runs of one data set: trained, evaluated under both protocols, recorded.

    pools: (train, test) tables and the classes to draw from, by run. The record in ``folder`` holds
    curves and final accuracies; checkpoints of stacks that are not finished lie beside it."""

    def __init__(
        self,
        runs: Sequence[Run],
        pool: Pool,
        test: Pool,
        classes: Any,
        folder: Path,
        plan: Plan,
        device: Any,
    ):
        self.runs, self.pool, self.test, self.classes = list(runs), pool, test, classes
        self.folder, self.plan, self.device = Path(folder), plan, torch.device(device)
        self.path = self.folder / "record.json"
        held = _read(self.path)
        self.results: dict[str, dict] = held.get("runs", {})
        self.seconds: float = held.get("training seconds", 0.0)
        for name, value in (("plan", repr(plan)), ("data", repr(pool))):
            if held and held.get(name) != value:
                raise FMRLError(
                    f"{self.path} was begun with {held.get(name)}, this is {value}",
                    fix="go on with the same, or choose another folder",
                )
        self.groups: dict[tuple, list[Run]] = {}
        for run in self.runs:
            self.groups.setdefault((*run.shape, run.rate), []).append(run)

    def work(self) -> int:
        """Task-steps of training and evaluation that are left, with those of stacks that were
        begun.
        """
        total = 0
        for group in (g for g in self.groups.values() if not self._finished(g)):
            iterations = self.plan.iterations or group[0].iterations
            looks = (
                self.plan.curve * (iterations // min(self.plan.every, iterations) - 1)
                + self.plan.final
                + self.plan.inductive
            )
            total += sum(iterations * q.meta_batch * q.steps + looks * q.eval_steps for q in group)
        return total

    def training(self) -> tuple[int, int]:
        """Task-steps of training in the stacks that are not finished: done, as their checkpoints
        say, and in all.
        """
        done = total = 0
        for group in (g for g in self.groups.values() if not self._finished(g)):
            once = sum(q.meta_batch * q.steps for q in group)  # task-steps of a meta-iteration
            done += once * checkpoint.iteration(self._checkpoint(group))
            total += once * (self.plan.iterations or group[0].iterations)
        return done, total

    def speed(self, seconds: float = 2.0) -> float:
        """Task-steps a second of the first unfinished stack alone, measured for about ``seconds``."""
        group = next(g for g in self.groups.values() if not self._finished(g))
        job = self._job(group, None, fresh=True)
        job.trainer.fit(job.tasks, 1)
        started, done = time.monotonic(), 0
        while time.monotonic() - started < seconds:
            done += 1
            job.trainer.fit(job.tasks, 1 + done)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        return (
            done * len(group) * group[0].meta_batch * group[0].steps / (time.monotonic() - started)
        )

    def go(self, seconds: float | None = None, progress: Any = None, tick: Any = None) -> bool:
        """Train and evaluate what is not finished; True when everything is.

        progress(group, iteration, iterations) is called after every look at the test tasks,
        tick(task_steps) after every slice."""
        started, before = time.monotonic(), self.seconds
        with record(
            "deep study", plan=self.plan, runs=len(self.runs), device=_device_name(self.device)
        ) as entry:
            jobs = [
                self._job(group, progress)
                for group in self.groups.values()
                if not self._finished(group)
            ]
            self._clock = (started, before)
            self._entry = entry
            steps = (
                None
                if tick is None
                else lambda job, n: tick(n * sum(q.meta_batch * q.steps for q in job.trainer.group))
            )
            try:
                return train_together(jobs, seconds, steps)
            finally:  # also when stopped by an error or Ctrl-C
                for job in jobs:
                    if not self._finished(job.trainer.group):
                        save(job.trainer, self._checkpoint(job.trainer.group))
                self._write()

    def _finished(self, group: list[Run]) -> bool:
        return all(
            set(PROTOCOLS) <= self.results.get(run.key, {}).get("final", {}).keys() for run in group
        )

    def _checkpoint(self, group: list[Run]) -> Path:
        """Named after its runs, so that other runs of the same shape have another."""
        r, runs = group[0], zlib.crc32(" ".join(q.key for q in group).encode())
        return self.folder / f"{r.ways}-way-{r.steps}-steps-{runs:08x}.safetensors"

    def _job(self, group: list[Run], progress: Any, fresh: bool = False) -> Job:
        r, plan = group[0], self.plan
        iterations = plan.iterations or r.iterations
        shape = tuple(self.pool.inputs.shape[1:])
        build = omniglot_net if r.dataset == "Omniglot" else mini_imagenet_net
        nets = [build(q.ways, channels=shape[0], side=shape[1], seed=_number(q)) for q in group]
        trainer = MetaTrainer(
            nets, Adam(r.rate, carry=True), FLIOnline(), Interpolate(1.0, 0.0, iterations), meta_batch=r.meta_batch,
            device=self.device, precision=plan.precision, loss=summed_cross_entropy,
        )  # fmt: skip
        trainer.group = group
        tasks = [self._train(q) for q in group]
        if not fresh:
            if self._checkpoint(group).exists():
                load(trainer, self._checkpoint(group))
            for q in group:  # looks at phis that were lost
                held = self.results.get(q.key, {"curve": []})
                held["curve"] = [point for point in held["curve"] if point[0] <= trainer.iteration]

        def each(trainer: MetaTrainer) -> None:
            self._look(trainer, group, iterations)
            if progress is not None:
                progress(group, trainer.iteration, iterations)

        every, at = min(plan.every, iterations), trainer.iteration
        looked = all(
            any(point[0] == at for point in self.results.get(q.key, {}).get("curve", []))
            for q in group
        )
        due = at > 0 and (at % every == 0 or at == iterations) and not looked
        return Job(trainer, tasks, iterations, every, each, due=due)

    def _look(self, trainer: MetaTrainer, group: list[Run], iterations: int) -> None:
        """Evaluate the runs of a stack, those of equal test shape together."""
        last, looks = trainer.iteration == iterations, {q.key: {} for q in group}
        for shape in dict.fromkeys((q.shots, q.eval_batch) for q in group):
            chosen = [i for i, q in enumerate(group) if (q.shots, q.eval_batch) == shape]
            test = [self._test(group[i]) for i in chosen]
            for protocol in PROTOCOLS if last else PROTOCOLS[:1]:
                count = (
                    self.plan.curve
                    if not last
                    else self.plan.final
                    if protocol == "transductive"
                    else self.plan.inductive
                )
                found = evaluate(
                    trainer, test, group[0].eval_steps, protocol=protocol, count=count, runs=chosen
                )
                for i, result in zip(chosen, found, strict=True):
                    looks[group[i].key][protocol] = {
                        "accuracy": round(result.accuracy, 5), "error": round(result.error, 5), "tasks": count,
                    }  # fmt: skip
        for key, look in looks.items():  # all or none, whenever it is stopped
            held = self.results.setdefault(key, {"curve": []})
            before = [point for point in held["curve"] if point[0] < trainer.iteration]
            held["curve"] = [*before, [trainer.iteration, look["transductive"]["accuracy"]]]
            if last:
                held["final"] = look
        self._write()  # first: looks beyond the checkpoint are taken again
        if last:
            self._checkpoint(group).unlink(missing_ok=True)
        else:
            save(trainer, self._checkpoint(group))

    def _train(self, q: Run):
        classes = self.classes(q)[0]
        shots = min(
            q.train_shots, self.pool.smallest(classes)
        )  # the authors ask for 25 samples of classes that have 20
        return self.pool.tasks(
            q.ways, shots, batch=q.batch, steps=q.steps, seed=_number(q), classes=classes
        )

    def _test(self, q: Run):
        return self.test.tasks(
            q.ways, q.shots, batch=q.eval_batch, steps=q.eval_steps, queries=1, seed=10_000 + _number(q), classes=self.classes(q)[1]
        )  # fmt: skip

    def _write(self) -> None:
        started, before = self._clock
        self.seconds = before + time.monotonic() - started
        extra = {
            "plan": repr(self.plan),
            "data": repr(self.pool),
            "training seconds": round(self.seconds, 1),
            "runs": self.results,
        }
        write_json(self.path, self._entry | extra)


def _read(path: Path) -> dict[str, Any]:
    """A record, or nothing where there is none."""
    try:
        held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except json.JSONDecodeError as error:
        raise FMRLError(
            f"{path} is no record ({error})",
            fix="choose another folder, or delete it to start again",
        ) from None
    return held


def _number(run: Run) -> int:
    """A seed for every run, so that runs of one setting are independent."""
    return 1000 * run.seed + sorted(reference()).index(run.name)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
