"""What the study runs on (`StudySet`: Mini-Wiki, the rebuilt one, or a synthetic stand-in) and how
much of it (`Config`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from fmrl import FMRLError, OneVsAll, Task
from fmrl.datasets.fetch import locate
from fmrl.datasets.miniwiki import MiniWiki, load_miniwiki
from fmrl.datasets.synthetic import gaussian_mixtures
from fmrl.records import checksum

SHOTS = (1, 2, 4, 8, 16, 32)
NAMES = ("mini-wiki", "mini-wiki-rebuilt", "synthetic")  # best first
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Config:
    """Sizes of a run; ``Config().quick()`` is a look that takes under a minute."""

    presets: tuple[str, ...] = ("paper", "released")
    shots: tuple[int, ...] = SHOTS
    orders: int = 20  # random task orders
    ftrl_orders: int = 5  # the same for FTRL, which costs more
    seed: int = 0
    repeats: int = 40  # of the growth figure
    passes: int = 4  # of MAML over the training tasks
    tasks: tuple[int, int] | None = None  # train and dev/test tasks kept, None for all

    def __post_init__(self):
        for preset in self.presets:
            if preset not in ("paper", "released"):
                fix = "choose paper, released or both"
                raise FMRLError(f"there is no preset {preset!r}", fix=fix)
        if self.seed < 0:
            raise FMRLError(f"a seed is 0 or more, not {self.seed}", fix="give --seed 0 or more")
        if min(self.orders, self.ftrl_orders) < 2:
            fix = "give --orders 2 or more"
            raise FMRLError("an interval needs at least two task orders", fix=fix)

    def quick(self) -> Config:
        small = {"shots": (1, 4, 8), "ftrl_orders": 3, "repeats": 4, "passes": 2, "tasks": (72, 12)}
        return replace(self, orders=min(self.orders, 4), **small)


@dataclass(frozen=True, eq=False)
class StudySet:
    """Four-class tasks at every number of shots, and samples held out of the dev and test tasks.

    X[m] [T, 4m, f] and y[m] [T, 4m] in file order · split [T] · held[t] = (X, y) of a dev or test
    task's other samples.
    """

    name: str
    title: str
    X: dict[int, np.ndarray]
    y: dict[int, np.ndarray]
    split: np.ndarray
    held: dict[int, tuple[np.ndarray, np.ndarray]]

    @property
    def classes(self) -> int:
        """How many labels every task has."""
        return int(next(iter(self.y.values())).max()) + 1

    @cached_property
    def sha256(self) -> str:
        """Checksum of everything a number can depend on."""
        shots = [a[m] for m in sorted(self.X) for a in (self.X, self.y)]
        held = [a for t in sorted(self.held) for a in self.held[t]]
        return checksum(*shots, self.split.astype("S5"), *held)

    def index(self, split: str) -> np.ndarray:
        """The tasks of a split, or 'all' of them, in file order."""
        return np.arange(len(self.split)) if split == "all" else np.flatnonzero(self.split == split)

    def arrays(self, shots: int, split: str, order: str = "file") -> tuple[np.ndarray, np.ndarray]:
        """X [T, 4m, f] and y [T, 4m]; order 'blocked' puts a task's classes one after another."""
        index = self.index(split)
        X, y = self.X[shots][index], self.y[shots][index]
        if order == "blocked":
            rank = np.argsort(y, axis=1, kind="stable")
            X = np.take_along_axis(X, rank[:, :, None], axis=1)
            y = np.take_along_axis(y, rank, axis=1)
        return X, y

    def tasks(self, shots: int, split: str = "all", order: str = "file") -> list[Task]:
        """The same as Task values."""
        loss, names = OneVsAll(self.classes), self.index(split).tolist()
        rows = zip(*self.arrays(shots, split, order), names, strict=True)
        return [Task(X, y, loss=loss, name=t) for X, y, t in rows]

    def reduced(self, train: int, rest: int) -> StudySet:
        """The first tasks of each split, for a quick look."""
        first = [self.index(s)[: train if s == "train" else rest] for s in SPLITS]
        keep = np.sort(np.concatenate(first))
        held = {new: self.held[old] for new, old in enumerate(keep.tolist()) if old in self.held}
        X, y = ({m: a[keep] for m, a in part.items()} for part in (self.X, self.y))
        return StudySet(self.name, self.title, X, y, self.split[keep], held)


def choose(name: str | None, data: str | Path | None = None) -> str:
    """The set asked for, or the best one that is here; nothing is downloaded."""
    if name is None:
        return next((n for n in NAMES[:2] if locate(n, data)), "synthetic")
    if name not in NAMES:
        raise FMRLError(f"there is no study set {name!r}", fix=f"choose one of {', '.join(NAMES)}")
    return name


def load(name: str | None = None, data: str | Path | None = None, seed: int = 0) -> StudySet:
    """Load a study set by name (default: the best present)."""
    name = choose(name, data)
    if name == "synthetic":
        return synthetic(seed=seed)
    if name == "mini-wiki-rebuilt" and locate(name, data) is None:
        fix = "build it with `fmrl data build mini-wiki`, or use --dataset synthetic"
        raise FMRLError("Mini-Wiki (rebuilt) is not here", fix=fix)
    files = {m: load_miniwiki(name=name, split="all", shots=m, data=data) for m in SHOTS}
    raw, most = load_miniwiki(name=name, split="all", shots=None, data=data), files[SHOTS[-1]]
    X = {m: w.X.reshape(len(w), m * len(w.classes), -1) for m, w in files.items()}
    y = {m: _numbers(w, w.y).reshape(len(w), -1) for m, w in files.items()}
    where = {int(i): t for t, i in enumerate(raw.ids)}
    held = {}
    for t in np.flatnonzero(np.isin(most.splits, ("dev", "test"))).tolist():
        if int(most.ids[t]) in where:
            held[t] = _others(raw, where[int(most.ids[t])], *most.arrays(t))
    return StudySet(name, most.name, X, y, most.splits, held)


def _numbers(wiki: MiniWiki, labels: np.ndarray) -> np.ndarray:
    index = {c: k for k, c in enumerate(wiki.classes)}
    return np.array([index[c] for c in labels.tolist()])


def _others(raw: MiniWiki, t: int, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The samples of raw task t that are not among the shots (compared by label and features)."""

    def key(x: np.ndarray, label: int) -> tuple[int, bytes]:
        return int(label), np.round(x, 9).tobytes()

    seen = {key(x, label) for x, label in zip(X, y, strict=True)}
    Xr, yr = raw.arrays(t)
    keep = [i for i in range(len(yr)) if key(Xr[i], yr[i]) not in seen]
    return Xr[keep], _numbers(raw, yr[keep])


def synthetic(
    tasks: int = 240, spread: float = 3.0, noise: float = 10.0, seed: int = 0
) -> StudySet:
    """A stand-in for texts: Gaussian mixtures, 32 shots and 32 held-out samples a class."""
    most, classes = SHOTS[-1], 4
    made = gaussian_mixtures(tasks, 2 * most, spread=spread, noise=noise, seed=seed)
    X = np.stack([task.X for task in made])
    y = np.stack([np.argmax(task.open().target, axis=1) for task in made])
    rank = np.zeros_like(y)  # of a sample among those of its class
    for c in range(classes):
        rank = np.where(y == c, np.cumsum(y == c, axis=1) - 1, rank)
    shots = {m: rank < m for m in SHOTS}
    kept = (
        {m: a[rows].reshape(tasks, classes * m, *a.shape[2:]) for m, rows in shots.items()}
        for a in (X, y)
    )
    split = np.array([{8: "dev", 9: "test"}.get(t % 10, "train") for t in range(tasks)])
    rest = np.flatnonzero(split != "train").tolist()
    held = {t: (X[t][rank[t] >= most], y[t][rank[t] >= most]) for t in rest}
    title = f"synthetic (Gaussian mixtures, spread {spread:g}, noise {noise:g})"
    return StudySet("synthetic", title, *kept, split, held)
