"""Which parts the study of shapes runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from fmrl.reproduce.geometry import runs
from fmrl.reproduce.geometry.claims import judge, rows
from fmrl.reproduce.geometry.tasks import AXIS, CONTROL, ROTATED, SETS, Data
from fmrl.reproduce.parts import Part
from fmrl.reproduce.study import Study

FIGURE = "geometry"
TITLE = "tasks that differ in a few directions, and real ones"


@dataclass(frozen=True)
class Config:
    """Sizes of a run; ``Config().quick()`` is a look that takes seconds and decides nothing."""

    seed: int = 0
    seeds: int = 5  # draws of every synthetic environment
    tasks: int = 600
    held: int = 100
    dim: int = 50
    rounds: tuple[int, int] = (60, 10)  # many, and too few to know an optimum
    late: int = 200  # tasks after these are "late"
    cost_dim: int = 64
    cost_tasks: int = 40
    repeats: int = 15  # of the timing
    wiki: bool = True
    sets: tuple[str, ...] = tuple(SETS)

    def quick(self) -> Config:
        """The same study, small: two real sets, and no Mini-Wiki."""
        small = {"seeds": 2, "tasks": 40, "held": 10, "dim": 12, "rounds": (15, 3), "late": 14}
        small |= {"cost_dim": 12, "cost_tasks": 10, "repeats": 3, "wiki": False}
        return replace(self, **small, sets=self.sets[2:5:2])


def plan(config: Config, data: Data) -> list[Part]:
    """Every part but the timing."""
    made = []
    shared = {"tasks": config.tasks, "held": config.held, "dim": config.dim, "late": config.late}
    for kind in (AXIS, ROTATED, CONTROL):
        for rounds in config.rounds:
            for seed in range(config.seed, config.seed + config.seeds):
                name = f"geometry/{kind}-{rounds}-{seed}"
                asked = {"kind": kind, "rounds": rounds, "seed": seed}
                made.append(Part(name, runs.synthetic, shared | asked, 2 + rounds / 2))
    for name, tasks in data.sets.items():
        part, cost = "geometry/" + re.sub(r"\W+", "-", name), len(tasks) / 50
        made.append(Part(part, runs.real, {"name": name}, cost, data.checksum(name)))
    if data.wiki is not None:
        made.append(Part("geometry/mini-wiki", runs.wiki, {}, 90, data.wiki.sha256))
    return made


def timing(config: Config) -> Part:
    """What rules cost; it is run alone."""
    arguments = {"tasks": config.cost_tasks, "dim": config.cost_dim, "rounds": config.rounds[0]}
    arguments |= {"repeats": config.repeats, "seed": config.seed}
    return Part("geometry/costs", runs.costs, arguments, 10)


def study(config: Config, data: Data) -> Study:
    """The study of shapes, ready to run."""
    parts, alone = plan(config, data), [timing(config)]
    return Study(FIGURE, TITLE, config, data, parts, rows, judge, alone)
