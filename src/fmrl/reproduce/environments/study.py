"""Which parts the study of environments runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from fmrl.reproduce.environments import runs
from fmrl.reproduce.environments.claims import judge, rows
from fmrl.reproduce.environments.tasks import KINDS, STREAMS, Data
from fmrl.reproduce.parts import Part
from fmrl.reproduce.study import Study

NAME, TITLE = "environments", "tasks that move, jump or come in groups, and real streams"


@dataclass(frozen=True)
class Config:
    """Sizes of a run; ``Config().quick()`` is a look that takes seconds and decides nothing."""

    seed: int = 0
    seeds: int = 5  # draws of every synthetic environment
    tasks: int = 400  # a switch comes after half of them
    rounds: int = 16
    dim: int = 8
    recover: int = 100  # tasks after a switch
    streams: tuple[str, ...] = tuple(STREAMS)
    most: int | None = None  # tasks of a stream

    def quick(self) -> Config:
        """The same study, small: two real streams, and few tasks of those."""
        small = {"seeds": 2, "tasks": 18, "rounds": 10, "dim": 3, "recover": 4, "most": 18}
        return replace(self, **small, streams=self.streams[1:6:4])


def plan(config: Config, data: Data) -> list[Part]:
    """Every part."""
    made = []
    shared = {"tasks": config.tasks, "rounds": config.rounds, "dim": config.dim}
    for kind in KINDS:
        for seed in range(config.seed, config.seed + config.seeds):
            name = f"{NAME}/{kind.replace(' ', '-')}-{seed}"
            asked = shared | {"kind": kind, "recover": config.recover, "seed": seed}
            made.append(Part(name, runs.synthetic, asked, config.tasks / 40))
    for stream, tasks in data.streams.items():
        made_of, name = data.checksum(stream), f"{NAME}/" + re.sub(r"\W+", "-", stream)
        asked, cost = {"name": stream}, len(tasks) / 25
        made.append(Part(name, runs.real, asked, cost, made_of))
        asked = asked | {"shuffled": config.seed}
        made.append(Part(f"{name}-shuffled", runs.real, asked, cost / 2, made_of))
    return made


def study(config: Config, data: Data) -> Study:
    """The study of environments, ready to run."""
    return Study(NAME, TITLE, config, data, plan(config, data), rows, judge)
