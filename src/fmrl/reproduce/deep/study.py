"""A study of the authors' Reptile runs: trained, evaluated under both protocols, recorded.

Runs that differ only in samples or seed have one shape and are trained as one stack. A study stops
when its time is over and goes on from its checkpoints when called again. Losses are summed over a
mini-batch, as the authors' are: moments carried from training to a test task with mini-batches of
another size make the difference felt.
"""

from __future__ import annotations

import json
import random
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fmrl import FLIOnline, FMRLError, Interpolate
from fmrl.datasets.episodes import shuffled
from fmrl.datasets.images import load_mini_imagenet, load_omniglot, load_tiny_imagenet_100
from fmrl.deep import Adam, FewShot, MetaTrainer, Pool, checkpoint, evaluate
from fmrl.deep.engines.iteration import Job, train_together
from fmrl.deep.evaluate import PROTOCOLS
from fmrl.deep.losses import summed_cross_entropy
from fmrl.deep.networks import mini_imagenet_net, omniglot_net
from fmrl.records import record, write_json
from fmrl.reproduce.deep.settings import DataSet, Plan, Run, reference

TRAIN_CHARACTERS = 1200
Classes = Callable[[Run], tuple[Any, Any]]


def pools(on: DataSet, data: Path | None, device: str) -> tuple[Pool, Pool, Classes]:
    """Training and test tables, and the training and test classes of a run (None for all)."""
    if on is DataSet.omniglot:
        images, kept = load_omniglot(data=data), {}
        pool = Pool.of_images(images.rotated(), device)

        def classes(run: Run) -> tuple[list[int], list[int]]:
            if run.seed not in kept:
                kept[run.seed] = split(run, images.names)
            return kept[run.seed]

        return pool, pool, classes
    load = load_tiny_imagenet_100 if on is DataSet.tiny else load_mini_imagenet
    images = [load(split=s, size=84, data=data) for s in ("train", "test")]
    train, test = (Pool.of_images(i, device, scale=1 / 255) for i in images)
    return train, test, lambda run: (None, None)


def split(run: Run, names: Sequence[str]) -> tuple[list[int], list[int]]:
    """Training and test classes of Omniglot: 1,200 of the characters ``names`` in four rotations,
    the others as they are.

    Seed 0 is the authors' own split: their characters by alphabet and number, shuffled by Python's
    generator at its seed 0.

    >>> from fmrl.reproduce.deep.settings import runs
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


def network(run: Run, pool: Pool) -> nn.Module:
    """The run's network, at its own random start."""
    channels, side, *_ = pool.inputs.shape[1:]
    build = omniglot_net if run.dataset == "Omniglot" else mini_imagenet_net
    return build(run.ways, channels=channels, side=side, seed=_number(run))


def train_tasks(run: Run, pool: Pool, classes: Classes) -> FewShot:
    """The run's training tasks."""
    chosen = classes(run)[0]
    # The authors ask for 25 samples of classes that have 20.
    shots = min(run.train_shots, pool.smallest(chosen))
    drawn = {"batch": run.batch, "steps": run.steps, "seed": _number(run), "classes": chosen}
    return pool.tasks(run.ways, shots, **drawn)


def test_tasks(run: Run, pool: Pool, classes: Classes, which: int = 1) -> FewShot:
    """The run's test tasks; with ``which`` = 0 tasks like them of training classes."""
    drawn = {"batch": run.eval_batch, "steps": run.eval_steps, "queries": 1}
    drawn |= {"seed": 10_000 + _number(run), "classes": classes(run)[which]}
    return pool.tasks(run.ways, run.shots, **drawn)


class Study:
    """All runs of one data set.

    The record in ``folder`` holds curves and final accuracies; checkpoints of stacks that are not
    finished lie beside it.

    Args:
        runs: The settings.
        pool: Table of the training tasks.
        test: Table of the test tasks.
        classes: Gives the training and the test classes of a run.
        folder: Where the record and the checkpoints are; the same folder goes on.
        plan: How much is done.
        device: "cuda" or "cpu".
    """

    def __init__(
        self, runs: Sequence[Run], pool: Pool, test: Pool, classes: Classes, folder: Path,
        plan: Plan, device: Any,
    ):  # fmt: skip
        self.runs, self.pool, self.test, self.classes = list(runs), pool, test, classes
        self.folder, self.plan, self.device = Path(folder), plan, torch.device(device)
        self.path = self.folder / "record.json"
        held = read_record(self.path)
        self.results: dict[str, dict] = held.get("runs", {})
        self.seconds: float = held.get("training seconds", 0.0)
        for name, value in (("plan", repr(plan)), ("data", repr(pool))):
            if held and held.get(name) != value:
                fix = "go on with the same, or choose another folder"
                begun = f"{self.path} was begun with {held.get(name)}, this is {value}"
                raise FMRLError(begun, fix=fix)
        self.groups: dict[tuple, list[Run]] = {}
        for run in self.runs:
            self.groups.setdefault((*run.shape, run.rate), []).append(run)

    def work(self) -> int:
        """Task-steps of training and evaluation in the stacks that are not finished."""
        total, plan = 0, self.plan
        for group, iterations in self._unfinished():
            looks = plan.curve * (iterations // min(plan.every, iterations) - 1)
            looks += plan.final + plan.inductive
            total += _steps(group) * iterations + sum(looks * q.eval_steps for q in group)
        return total

    def training(self) -> tuple[int, int]:
        """Task-steps of training in the stacks that are not finished: done, and in all."""
        done = total = 0
        for group, iterations in self._unfinished():
            done += _steps(group) * checkpoint.iteration(self._checkpoint(group))
            total += _steps(group) * iterations
        return done, total

    def speed(self, seconds: float = 1.0) -> float:
        """Task-steps a second of the first unfinished stack alone, measured for ``seconds``."""
        group, iterations = next(self._unfinished())
        trainer, tasks = self._trainer(group, iterations), self._tasks(group)
        trainer.fit(tasks, 1)
        started = time.monotonic()
        trainer.fit(tasks, iterations + 1, seconds=seconds)
        return (trainer.iteration - 1) * _steps(group) / (time.monotonic() - started)

    def go(self, seconds: float | None = None, progress: Any = None, tick: Any = None) -> bool:
        """Train and evaluate what is not finished; True when everything is.

        progress(group, iteration, iterations) is called after every look at the test tasks,
        tick(task_steps) after every slice.
        """
        self._clock = time.monotonic() - self.seconds
        cuda = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if cuda else "CPU"
        with record("deep study", plan=self.plan, runs=len(self.runs), device=name) as self._entry:
            jobs = [(self._job(g, n, progress), g) for g, n in self._unfinished()]
            steps = {id(job): _steps(group) for job, group in jobs}
            advance = tick and (lambda job, n: tick(n * steps[id(job)]))
            try:
                return train_together([job for job, _ in jobs], seconds, advance)
            finally:  # also when stopped by an error or Ctrl-C
                for job, group in jobs:
                    if not self._finished(group):
                        checkpoint.save(job.trainer, self._checkpoint(group))
                self._write()

    def _unfinished(self) -> Iterator[tuple[list[Run], int]]:
        """Stacks that are not finished, with their meta-iterations."""
        for group in self.groups.values():
            if not self._finished(group):
                yield group, self.plan.iterations or group[0].iterations

    def _finished(self, group: list[Run]) -> bool:
        ends = (self.results.get(run.key, {}).get("final", {}) for run in group)
        return all(set(PROTOCOLS) <= end.keys() for end in ends)

    def _checkpoint(self, group: list[Run]) -> Path:
        """Named after its runs, so that other runs of the same shape have another."""
        r, runs = group[0], zlib.crc32(" ".join(q.key for q in group).encode())
        return self.folder / f"{r.ways}-way-{r.steps}-steps-{runs:08x}.safetensors"

    def _trainer(self, group: list[Run], iterations: int) -> MetaTrainer:
        r, nets = group[0], [network(q, self.pool) for q in group]
        rules = Adam(r.rate, carry=True), FLIOnline(), Interpolate(1.0, 0.0, iterations)
        how = {"device": self.device, "precision": self.plan.precision}
        loss = summed_cross_entropy
        return MetaTrainer(nets, *rules, meta_batch=r.meta_batch, loss=loss, **how)

    def _job(self, group: list[Run], iterations: int, progress: Any) -> Job:
        """A stack where its checkpoint left it; looks at phis that were lost are taken again."""
        trainer, looked = self._trainer(group, iterations), True
        if self._checkpoint(group).exists():
            checkpoint.load(trainer, self._checkpoint(group))
        every, at = min(self.plan.every, iterations), trainer.iteration
        for q in group:
            held = self.results.get(q.key, {"curve": []})
            held["curve"] = [point for point in held["curve"] if point[0] <= at]
            looked = looked and any(point[0] == at for point in held["curve"])

        def each(trainer: MetaTrainer) -> None:
            self._look(trainer, group, last=trainer.iteration == iterations)
            if progress is not None:
                progress(group, trainer.iteration, iterations)

        due = at > 0 and (at % every == 0 or at == iterations) and not looked
        return Job(trainer, self._tasks(group), iterations, every, each, due=due)

    def _tasks(self, group: list[Run]) -> list[FewShot]:
        return [train_tasks(q, self.pool, self.classes) for q in group]

    def _look(self, trainer: MetaTrainer, group: list[Run], last: bool) -> None:
        """Evaluate the runs of a stack, those of equal test shape together."""
        plan, looks = self.plan, {q.key: {} for q in group}
        counts = {"transductive": plan.final, "inductive": plan.inductive}
        counts = counts if last else {"transductive": plan.curve}
        for shape in dict.fromkeys((q.shots, q.eval_batch) for q in group):
            chosen = [i for i, q in enumerate(group) if (q.shots, q.eval_batch) == shape]
            test = [test_tasks(group[i], self.test, self.classes) for i in chosen]
            steps = group[0].eval_steps
            for protocol, count in counts.items():
                how = {"protocol": protocol, "count": count, "runs": chosen}
                how |= {"compare": False, "progress": False}
                for i, found in zip(chosen, evaluate(trainer, test, steps, **how), strict=True):
                    look = {"accuracy": round(found.accuracy, 5), "error": round(found.error, 5)}
                    looks[group[i].key][protocol] = look | {"tasks": count}
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
            checkpoint.save(trainer, self._checkpoint(group))

    def _write(self) -> None:
        self.seconds = time.monotonic() - self._clock
        begun = {"plan": repr(self.plan), "data": repr(self.pool)}
        done = {"training seconds": round(self.seconds, 1), "runs": self.results}
        write_json(self.path, self._entry | begun | done)


def read_record(path: Path) -> dict[str, Any]:
    """A record, or nothing where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except json.JSONDecodeError as error:
        fix = "choose another folder, or delete it to start again"
        raise FMRLError(f"{path} is not a record ({error})", fix=fix) from None


def _steps(group: list[Run]) -> int:
    """Task-steps of a meta-iteration of a stack."""
    return sum(q.meta_batch * q.steps for q in group)


def _number(run: Run) -> int:
    """A seed for every run, so that runs of one setting are independent."""
    return 1000 * run.seed + sorted(reference()).index(run.name)
