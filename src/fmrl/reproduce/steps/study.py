"""The study: every method trained on every data set with several seeds side by side, then tried on
test tasks under both protocols. Each finished evaluation leaves its rows in the record, and stopped
trainings leave checkpoints: the same folder goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fmrl import FLIOnline, FMRLError, Interpolate
from fmrl.deep import BothProtocols, MetaTrainer, checkpoint, evaluate, gradient_norm
from fmrl.deep.adaptation import Start
from fmrl.deep.engines.iteration import Job, train_together
from fmrl.records import record, write_json
from fmrl.reproduce.deep.settings import TINY, DataSet, Run
from fmrl.reproduce.deep.study import network, read_record, test_tasks, train_tasks
from fmrl.reproduce.steps import methods
from fmrl.reproduce.steps.methods import ARUBA, METHODS, PLUS, WEIGHTS, Environment, Plan, Scale
from fmrl.reproduce.verdict import Row

KEPT = 5  # checkpoints of a training on its way
Pools = Callable[[DataSet], tuple[Any, Any, Any]]
Progress = Callable[[str, int], Any]


class Study:
    """All methods in all environments. ``pools`` gives the tables of a data set
    (`fmrl.reproduce.deep.study.pools`); the same ``folder`` goes on from record and checkpoints.
    """

    def __init__(
        self, environments: Sequence[Environment], pools: Pools, folder: Path, plan: Plan,
        device: Any,
    ):  # fmt: skip
        self.environments, self.pools = list(environments), pools
        self.folder, self.plan, self.device = Path(folder), plan, torch.device(device)
        self.path = self.folder / "results.json"
        held = read_record(self.path)
        if held and held.get("plan") != asdict(plan):
            fix = "go on with the same options, or choose another --out"
            raise FMRLError(f"{self.path} was begun with {held.get('plan')}", fix=fix)
        self.rows: list[Row] = held.get("rows", [])
        self.seconds: dict[str, float] = held.get("seconds", {})
        self.chosen: dict[str, float] = held.get("weights", {})
        self.failed: dict[str, list[str]] = held.get("failed", {})
        # Measured once: a resumed training must have the same rules to the last digit.
        self.met: dict[str, float] = held.get("met", {})

    def finished(self, environment: Environment) -> bool:
        """Whether all its rows are there."""
        return not any(self._missing(setting) for setting in environment.settings)

    def cost(self) -> int:
        """Task-steps of what is not finished."""
        return sum(self._training(e) + self._judging(e) for e in self._left())

    def go(self, seconds: float | None = None, progress: Progress = lambda name, n: None) -> bool:
        """Train and try what is not finished; True when everything is. progress(name, task-steps)
        is called as work is done.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        cuda = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if cuda else "CPU"
        before, entry = read_record(self.folder / "record.json").get("spent", 0.0), {}
        try:
            with record("reproduce steps", plan=self.plan, device=name) as entry:
                for environment in self._left():
                    if not self._environment(environment, deadline, progress):
                        break
        finally:  # also when it was stopped by an error or Ctrl-C
            spent = round(before + entry.get("seconds", 0.0), 1)
            about = {"environments": [asdict(e) for e in self.environments], "spent": spent}
            about["finished"] = not self._left()
            write_json(self.folder / "record.json", entry | about)
        return about["finished"]

    def _left(self) -> list[Environment]:
        return [e for e in self.environments if not self.finished(e)]

    def _missing(self, setting: str) -> list[tuple[str, str]]:
        """Methods and pairs of start and step that have not been tried in a setting."""
        there = {(r["method"], r["learned"]) for r in self.rows if r["run"] == setting}
        asked = [(name, pair) for name, method in METHODS.items() for pair in method.pairs]
        asked += [(PLUS, pair) for pair in methods.FADED]
        return [key for key in asked if key not in there]

    def _training(self, environment: Environment) -> int:
        run = environment.run(environment.settings[0], 0, self.plan)
        each = run.meta_batch * run.steps * self.plan.seeds * self.plan.length(environment.on)
        return each * len(METHODS)

    def _judging(self, environment: Environment) -> int:
        run = environment.run(environment.settings[0], 0, self.plan)
        pairs = sum(len(self._missing(setting)) for setting in environment.settings)
        return pairs * self.plan.seeds * self.plan.tasks * run.eval_steps

    def _environment(
        self, environment: Environment, deadline: float | None, progress: Progress
    ) -> bool:
        """Train all methods, then try them; False when time is over."""
        started, tables = time.monotonic(), self.pools(environment.on)
        seeds = range(self.plan.seeds)
        group = [environment.run(environment.settings[0], s, self.plan) for s in seeds]
        trainers = self._trainers(environment, group, tables)
        try:
            if not self._train(environment, trainers, group, tables, deadline, progress):
                return False
            for setting in environment.settings:
                tried = [environment.run(setting, s, self.plan) for s in seeds]
                if not self._try(environment, trainers, tried, tables, deadline, progress):
                    return False
        finally:
            spent = self.seconds.get(environment.name, 0.0) + time.monotonic() - started
            self.seconds[environment.name] = round(spent, 1)
            self._write()
        for name in METHODS:
            self._checkpoint(environment, name).unlink(missing_ok=True)
        return True

    def _trainers(
        self, environment: Environment, group: list[Run], tables: Any
    ) -> dict[str, MetaTrainer]:
        """A trainer of each method, where its checkpoint left it."""
        pool, _, classes = tables
        tasks = train_tasks(group[0], pool, classes)
        nets = [network(q, pool).to(self.device) for q in group]
        if (met := self.met.get(environment.name)) is None:
            met = gradient_norm(nets[0], tasks, 20) * math.sqrt(group[0].steps)
            self.met[environment.name] = met
        size = sum(p.numel() for p in nets[0].parameters())
        scale, found = Scale(environment.step, met, size, group[0].rate), {}
        outer = Interpolate(1.0, 0.0, self.plan.length(environment.on))
        for name, method in METHODS.items():
            within, rule = method.rules(scale)
            how = {"meta_batch": group[0].meta_batch, "loss": method.loss, "device": self.device}
            how["precision"] = self.plan.precision
            found[name] = MetaTrainer(nets, within, FLIOnline(), outer, rule, **how)
            if (path := self._checkpoint(environment, name)).exists():
                checkpoint.load(found[name], path)
        return found

    def _checkpoint(self, environment: Environment, name: str) -> Path:
        number = list(METHODS).index(name)
        return self.folder / f"{environment.name}-{number}.safetensors"

    def _train(
        self, environment: Environment, trainers: dict[str, MetaTrainer], group: list[Run],
        tables: Any, deadline: float | None, progress: Progress,
    ) -> bool:  # fmt: skip
        pool, _, classes = tables
        tasks = [train_tasks(q, pool, classes) for q in group]
        length = self.plan.length(environment.on)
        every = max(1, length // KEPT)
        keep = {name: partial(self._keep, environment, name) for name in trainers}
        jobs = [Job(t, tasks, length, every, keep[name]) for name, t in trainers.items()]
        each = sum(q.meta_batch * q.steps for q in group)
        progress(environment.name, each * sum(t.iteration for t in trainers.values()))
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return train_together(
                [j for j in jobs if not j.done], left,
                lambda job, n: progress(f"{environment.name}, training", n * each),
            )  # fmt: skip
        finally:  # also when it was stopped by an error or Ctrl-C
            for name, trainer in trainers.items():
                keep[name](trainer)
                if not bool(torch.isfinite(trainer.phi).all()):
                    failed = self.failed.setdefault(environment.name, [])
                    failed += [] if name in failed else [name]

    def _keep(self, environment: Environment, name: str, trainer: MetaTrainer) -> None:
        """A checkpoint; none of a training that ran away, which begins anew."""
        with suppress(FMRLError):
            checkpoint.save(trainer, self._checkpoint(environment, name))

    def _try(
        self, environment: Environment, trainers: dict[str, MetaTrainer], tried: list[Run],
        tables: Any, deadline: float | None, progress: Progress,
    ) -> bool:  # fmt: skip
        """Judge all that is missing in one setting; starts with one inner rule go together."""
        run, missing = tried[0], self._missing(tried[0].name)
        groups: dict[tuple, list[tuple[str, str, Start]]] = {}
        for name in dict.fromkeys(name for name, _ in missing):
            if name == PLUS:
                weight = self._weight(trainers[ARUBA], tried, tables)
                found = methods.fading(trainers[ARUBA], weight)
            else:
                found = methods.starts(name, trainers[name])
            for pair, start in found.items():
                if (name, pair) in missing:
                    groups.setdefault(methods.alike(start), []).append((name, pair, start))
        for entries in groups.values():
            if deadline is not None and time.monotonic() > deadline:
                return False
            starts = [start for _, _, start in entries]
            judged = self._judge(starts, tried, tables, 1, self.plan.tasks)
            for (name, pair, _), seeds in zip(entries, judged, strict=True):
                where = {"setting": environment.title(run), "run": run.name}
                where |= {"method": name, "learned": pair}
                self.rows += [
                    row for seed, both in enumerate(seeds) for row in _rows(both, seed, where)
                ]
            self._write()
            done = len(entries) * len(tried) * self.plan.tasks * run.eval_steps
            progress(f"{environment.title(run)}, test tasks", done)
        return True

    def _judge(
        self, starts: list[Start], tried: list[Run], tables: Any, which: int, count: int
    ) -> list[list[Any]]:
        """Both protocols for every start and seed, on tasks of test (1) or training classes (0)."""
        pool, test, classes = tables
        source = [test_tasks(q, test if which else pool, classes, which) for q in tried]
        how = {"protocol": "both", "count": count, "compare": False, "progress": False}
        steps, seeds = tried[0].eval_steps, len(tried)
        found = evaluate(methods.stacked(starts), source * len(starts), steps, **how)
        return [found[i : i + seeds] for i in range(0, len(found), seeds)]

    def _weight(self, trainer: MetaTrainer, tried: list[Run], tables: Any) -> float:
        """The weight of ARUBA++ with the best accuracy on tasks of training classes."""
        if (name := tried[0].name) not in self.chosen:
            starts = [methods.fading(trainer, weight)[methods.BOTH] for weight in WEIGHTS]
            judged = self._judge(starts, tried, tables, 0, self.plan.search)
            means = [sum(both.transductive.accuracy for both in seeds) for seeds in judged]
            self.chosen[name] = WEIGHTS[means.index(max(means))]
        return self.chosen[name]

    def _write(self) -> None:
        about = {"title": f"Omniglot and {TINY}", "plan": asdict(self.plan), "rows": self.rows}
        about |= {"seconds": self.seconds, "weights": self.chosen, "failed": self.failed}
        write_json(self.path, about | {"met": self.met})


def _rows(both: BothProtocols, seed: int, where: Row) -> Iterator[Row]:
    for found in both:
        facts = where | {"seed": seed, "protocol": found.protocol, "tasks": len(found.tasks)}
        yield facts | {"accuracy": round(found.accuracy, 5), "error": round(found.error, 5)}
