"""From a request to files: which parts are run, and what is written of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fmrl.records import plain, record
from fmrl.reproduce.convex.study import usable, write
from fmrl.reproduce.geometry import runs
from fmrl.reproduce.geometry.claims import judge, rows
from fmrl.reproduce.geometry.tasks import AXIS, CONTROL, ROTATED, SETS, Data
from fmrl.reproduce.parts import Part, run_parts

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


def reproduce(
    config: Config,
    data: Data,
    out: Path,
    jobs: int = 2,
    progress: Callable[[str, float], Any] = lambda name, cost: None,
) -> dict[str, Any]:
    """Run the study and write, under out/geometry: results.json, results.csv, verdicts.json,
    record.json and the picture.

    Finished parts lie under out/parts and are used again; ``progress`` is called with the name and
    the cost of each. Returns {"record": …, "verdicts": [`Verdict`, …], "files": [path, …]}.
    """
    usable(Path(out))
    folder, parts = Path(out) / "parts", plan(config, data)
    with record("reproduce geometry", **asdict(config)) as entry:
        checksums = {part.name: part.made_of for part in parts if part.made_of}
        about = {"title": TITLE, "sha256": checksums, "skipped": data.skipped}
        entry |= {"data": about, "jobs": jobs}
        left = run_parts(parts, data, folder, jobs, progress)
        left |= run_parts([timing(config)], data, folder, 1, progress)
        seconds = round(sum(found["cpu_seconds"] for found in left.values()), 1)
        entry["spent"] = {"parts": len(left), "cpu_seconds": seconds}
    asked = [(part, left[part.name]["result"]) for part in (*parts, timing(config))]
    made = plain(rows(asked))
    verdicts = judge(made)
    files = write(FIGURE, made, verdicts, entry, Path(out))
    return {"record": entry, "verdicts": verdicts, "files": files, "rows": made}
