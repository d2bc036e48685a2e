"""What the study runs on: Mini-Wiki, the rebuilt one, or a synthetic stand-in, all as the same few
arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fmrl.core.losses import OneVsAll
from fmrl.core.tasks import Task
from fmrl.datasets.fetch import locate
from fmrl.datasets.miniwiki import MiniWiki, load_miniwiki
from fmrl.datasets.synthetic import gaussian_mixtures
from fmrl.errors import FMRLError
from fmrl.records import checksum

SHOTS = (1, 2, 4, 8, 16, 32)
NAMES = ("mini-wiki", "mini-wiki-rebuilt", "synthetic")  # best first
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, eq=False)
class StudySet:
    """Four-class tasks at every number of shots, and samples held out of the dev and test tasks.

    X[m] [T, 4m, f] and y[m] [T, 4m] in file order · split [T] · held[t] = (X, y) of a dev or test
    task's other samples."""

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
        held = [a for t in sorted(self.held) for a in self.held[t]]
        return checksum(
            *(a[m] for m in sorted(self.X) for a in (self.X, self.y)),
            self.split.astype("S5"),
            *held,
        )

    def index(self, split: str) -> np.ndarray:
        """The tasks of a split, or 'all' of them, in file order."""
        return np.arange(len(self.split)) if split == "all" else np.flatnonzero(self.split == split)

    def arrays(self, shots: int, split: str, order: str = "file") -> tuple[np.ndarray, np.ndarray]:
        """X [T, 4m, f] and y [T, 4m]; order 'blocked' puts a task's classes one after another."""
        index = self.index(split)
        X, y = self.X[shots][index], self.y[shots][index]
        if order == "blocked":
            rank = np.argsort(y, axis=1, kind="stable")
            X, y = (
                np.take_along_axis(X, rank[:, :, None], axis=1),
                np.take_along_axis(y, rank, axis=1),
            )
        return X, y

    def tasks(self, shots: int, split: str = "all", order: str = "file") -> list[Task]:
        """The same as Task values."""
        X, y = self.arrays(shots, split, order)
        loss = OneVsAll(self.classes)
        return [
            Task(x, labels, loss=loss, name=int(t))
            for t, x, labels in zip(self.index(split), X, y, strict=True)
        ]

    def reduced(self, train: int, rest: int) -> StudySet:
        """The first tasks of each split, for a quick look."""
        keep = np.sort(
            np.concatenate([self.index(s)[: train if s == "train" else rest] for s in SPLITS])
        )
        held = {new: self.held[old] for new, old in enumerate(keep.tolist()) if old in self.held}
        X, y = ({m: a[keep] for m, a in part.items()} for part in (self.X, self.y))
        return StudySet(self.name, self.title, X, y, self.split[keep], held)


def choose(name: str | None, data: str | Path | None = None) -> str:
    """The set asked for, or the best one that is here; nothing is downloaded."""
    if name is not None:
        if name not in NAMES:
            raise FMRLError(
                f"there is no study set {name!r}", fix=f"choose one of {', '.join(NAMES)}"
            )
        return name
    return next((n for n in NAMES[:2] if locate(n, data)), "synthetic")


def load(name: str | None = None, data: str | Path | None = None, seed: int = 0) -> StudySet:
    """Load a study set by name (default: the best present)."""
    name = choose(name, data)
    if name == "synthetic":
        return synthetic(seed=seed)
    if name == "mini-wiki-rebuilt" and locate(name, data) is None:
        raise FMRLError(
            "Mini-Wiki (rebuilt) is not here",
            fix="build it with `fmrl data build mini-wiki`, or use --dataset synthetic",
        )
    files = {m: load_miniwiki(name=name, split="all", shots=m, data=data) for m in SHOTS}
    raw = load_miniwiki(name=name, split="all", shots=None, data=data)
    most = files[SHOTS[-1]]
    stacked = {m: _stacked(w, m) for m, w in files.items()}
    where = {int(i): t for t, i in enumerate(raw.ids)}
    held = {}
    for t in np.flatnonzero(np.isin(most.splits, ("dev", "test"))).tolist():
        if int(most.ids[t]) in where:
            held[t] = _others(raw, where[int(most.ids[t])], *most.arrays(t))
    return StudySet(
        name,
        most.name,
        {m: s[0] for m, s in stacked.items()},
        {m: s[1] for m, s in stacked.items()},
        most.splits,
        held,
    )


def _stacked(wiki: MiniWiki, m: int) -> tuple[np.ndarray, np.ndarray]:
    rows = m * len(wiki.classes)
    index = {c: k for k, c in enumerate(wiki.classes)}
    y = np.array([index[c] for c in wiki.y.tolist()])
    return wiki.X.reshape(len(wiki), rows, -1), y.reshape(len(wiki), rows)


def _others(raw: MiniWiki, t: int, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The samples of raw task t that are not among the shots (compared by label and features)."""

    def key(x: np.ndarray, label: int) -> tuple[int, bytes]:
        return int(label), np.round(x, 9).tobytes()

    seen = {key(x, label) for x, label in zip(X, y, strict=True)}
    Xr, yr = raw.arrays(t)
    keep = [i for i in range(len(yr)) if key(Xr[i], yr[i]) not in seen]
    index = {c: k for k, c in enumerate(raw.classes)}
    return Xr[keep], np.array([index[c] for c in yr[keep].tolist()])


def synthetic(
    tasks: int = 240, spread: float = 3.0, noise: float = 10.0, seed: int = 0
) -> StudySet:
    """A stand-in for when no text is here: Gaussian mixtures around shared means, 32 shots and 32
    held-out samples a class.
    """
    most, classes = SHOTS[-1], 4
    made = gaussian_mixtures(tasks, 2 * most, spread=spread, noise=noise, seed=seed)
    X = np.stack([task.X for task in made])
    y = np.stack([np.argmax(task.open().target, axis=1) for task in made])
    rank = np.zeros_like(y)  # of a sample among those of its class
    for c in range(classes):
        rank = np.where(y == c, np.cumsum(y == c, axis=1) - 1, rank)

    def part(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return X[rows].reshape(tasks, -1, X.shape[-1]), y[rows].reshape(tasks, -1)

    shots = {m: part(rank < m) for m in SHOTS}
    others = part(rank >= most)
    split = np.array(
        ["dev" if t % 10 == 8 else "test" if t % 10 == 9 else "train" for t in range(tasks)]
    )
    held = {t: (others[0][t], others[1][t]) for t in np.flatnonzero(split != "train").tolist()}
    title = f"synthetic (Gaussian mixtures, spread {spread:g}, noise {noise:g})"
    return StudySet(
        "synthetic",
        title,
        {m: s[0] for m, s in shots.items()},
        {m: s[1] for m, s in shots.items()},
        split,
        held,
    )
