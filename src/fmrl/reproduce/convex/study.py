"""The convex figures: which parts each needs, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fmrl.reproduce.convex import batch, panels
from fmrl.reproduce.convex.claims import judge
from fmrl.reproduce.convex.data import SPLITS, Config, StudySet
from fmrl.reproduce.parts import Part
from fmrl.reproduce.study import Figure, Study

FIGURES = {  # the parts each needs, and the rows made of their results
    "similarity": (panels.similarity_parts, panels.similarity_rows),
    "growth": (panels.growth_parts, panels.growth_rows),
    "samples": (panels.samples_parts, panels.samples_rows),
    "batch": (batch.parts, batch.rows),
}


def plan(figures: Sequence[str], config: Config) -> list[Part]:
    """Every part that some figures need."""
    return [part for figure in figures for part in FIGURES[figure][0](config)]


def study(figures: Sequence[str], config: Config, data: StudySet) -> Study:
    """Some of the figures, ready to run."""
    data = data if config.tasks is None else data.reduced(*config.tasks)
    about = {"name": data.name, "tasks": len(data.split), "sha256": data.sha256}
    about |= {split: len(data.index(split)) for split in SPLITS}
    made = {}
    for figure in figures:
        parts, rows = FIGURES[figure]
        made[figure] = Figure(parts(config), rows, partial(judge, figure))
    return Study(data.title, config, data, about, made)
