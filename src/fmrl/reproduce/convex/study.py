"""From a request to files: parts are run (or found), rows made of them, claims judged, figures
drawn, the record written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fmrl.records import plain, record
from fmrl.reproduce.convex import batch, panels
from fmrl.reproduce.convex.claims import judge
from fmrl.reproduce.convex.data import SPLITS, Config, StudySet
from fmrl.reproduce.parts import Part, run_parts
from fmrl.reproduce.study import usable, write

FIGURES = {  # the parts each needs, and the rows made of their results
    "similarity": (panels.similarity_parts, panels.similarity_rows),
    "growth": (panels.growth_parts, panels.growth_rows),
    "samples": (panels.samples_parts, panels.samples_rows),
    "batch": (batch.parts, batch.rows),
}


def plan(figures: Sequence[str], config: Config) -> list[Part]:
    """Every part the figures need."""
    return [part for figure in figures for part in FIGURES[figure][0](config)]


def reproduce(
    figures: Sequence[str],
    config: Config,
    data: StudySet,
    out: Path,
    jobs: int = 2,
    progress: Callable[[str, float], Any] = lambda name, cost: None,
) -> dict[str, Any]:
    """Run ``figures`` and write, under out/<figure>: results.json, results.csv, verdicts.json,
    record.json and the pictures.

    Finished parts lie under out/parts and are used again; ``progress`` is called with the name and
    the cost of each. Returns {"record": …, "verdicts": [`Verdict`, …], "files": [path, …]}.
    """
    usable(Path(out))
    if config.tasks is not None:
        data = data.reduced(*config.tasks)
    with record("reproduce", figures=",".join(figures), **asdict(config)) as entry:
        splits = {s: len(data.index(s)) for s in SPLITS}
        about = {"name": data.name, "title": data.title, "tasks": len(data.split), **splits}
        entry |= {"data": about | {"sha256": data.sha256}, "jobs": jobs}
        left = run_parts(plan(figures, config), data, Path(out) / "parts", jobs, progress)
        seconds = round(sum(found["cpu_seconds"] for found in left.values()), 1)
        entry["spent"] = {"parts": len(left), "cpu_seconds": seconds}
    results = {name: found["result"] for name, found in left.items()}
    verdicts, files = [], []
    for figure in figures:
        rows = plain(FIGURES[figure][1](config, results))
        found = judge(figure, rows)
        verdicts += found
        files += write(figure, rows, found, entry, Path(out))
    return {"record": entry, "verdicts": verdicts, "files": files}
