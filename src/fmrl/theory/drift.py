"""Do the optima of tasks move with time, and are there sudden changes?

Neighbouring blocks of tasks are compared with each other, and what lies before a cut with what
lies behind it; then the same in 199 orders of the blocks that are shuffled. Sudden changes are
found by binary segmentation: where the cumulative sum of the optima is farthest from a straight
line, if shuffled blocks are rarely as far and if close by a step fits better than a slope. All
randomness has a fixed seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fmrl.errors import FMRLError

LEVEL, CUT_LEVEL = 0.03, 0.01  # p-values from which on drift, and a sudden change, count as found
FEW = 10  # with fewer tasks nothing is tested
SHUFFLES, BLOCKS, CUTS = 199, 64, 8  # at most, as are the tasks around a change that place it:
NEAR = 1000


class Change(NamedTuple):
    """A sudden change after so many tasks, with the ends of a 95 % interval."""

    after: int
    low: int
    high: int


@dataclass(frozen=True)
class Drift:
    """Whether the optima move with time."""

    p: float  # how often shuffled tasks look as ordered
    path: float = 0.0  # length of the way of a moving mean of the optima, l2 …
    chance: float = 0.0  # … and what noise alone makes of it: that of shuffled tasks
    changes: tuple[Change, ...] = ()  # sudden changes

    @property
    def found(self) -> bool:
        """More than chance."""
        return self.p <= LEVEL


def drift(points: Any, sigma: Any = None) -> Drift:
    """Whether optima move with time.

    Args:
        points: Optima in the order of their tasks, [T, d].
        sigma: Weights of the tasks, [T].

    >>> rng = np.random.default_rng(0)
    >>> still = rng.normal(size=(500, 2))
    >>> found = drift(still + np.linspace(0, 2, 500)[:, None])
    >>> found.found, found.p, found.changes, drift(still).found
    (True, 0.005, (), False)
    """
    x, w = read(points, sigma)
    means = _blocks(x, w)[0]
    if len(x) < FEW or not means.any():
        return Drift(1.0)
    shuffled = _shuffled(means)
    scores = [_cusum(shuffled).max(axis=1)]
    for width in (1, 2, 4, 8):
        coarse = _coarse(shuffled, width)
        if coarse.shape[1] >= 6:
            steps = np.sum(np.diff(coarse, axis=1) ** 2, axis=(1, 2))
            spread = np.sum((coarse - coarse.mean(axis=1, keepdims=True)) ** 2, axis=(1, 2))
            scores.append(-steps / np.where(spread > 0, spread, 1.0))
    p = rank(np.stack(scores, axis=1))
    rng, order = np.random.default_rng(0), np.arange(len(x))
    path = [_path(x[o], w[o]) for o in (order, *(rng.permutation(order) for _ in range(5)))]
    changes = _changes(x, w) if p <= LEVEL else ()
    return Drift(p, path[0], float(np.mean(path[1:])), changes)


def read(points: Any, sigma: Any) -> tuple[np.ndarray, np.ndarray]:
    """Optima [T, d] and weights [T], or what is wrong with them."""
    x = np.asarray(points, dtype=float)
    w = np.ones(len(x)) if sigma is None else np.asarray(sigma, dtype=float)
    if x.ndim != 2 or not x.size or not np.isfinite(x).all() or w.shape != x.shape[:1]:
        what = f"optima must be finite numbers [tasks, d] with a weight each, not {x.shape}"
        raise FMRLError(what, fix="give one row per task")
    return x, w if w.sum() > 0 else np.ones(len(x))


def means_of(x: np.ndarray, w: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted means and weights of the stretches that begin at ``edges``."""
    total = np.add.reduceat(w, edges)
    weight = np.where(np.repeat(total, np.diff([*edges, len(x)])) > 0, w, 1.0)
    means = np.add.reduceat(weight[:, None] * x, edges) / np.add.reduceat(weight, edges)[:, None]
    return means, total


def _blocks(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centred means of blocks of tasks [n, ≤ n], turned into few coordinates; where they begin."""
    edges = np.linspace(0, len(x), min(len(x), BLOCKS), endpoint=False).astype(int)
    means = means_of(x, w, edges)[0]
    left, scale, _ = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)
    return left * np.where(scale > 1e-9 * np.abs(x).max(), scale, 0.0), edges


def _path(x: np.ndarray, w: np.ndarray) -> float:
    """The way that the means of sixteen stretches go."""
    edges = np.linspace(0, len(x), min(len(x), 16), endpoint=False).astype(int)
    return float(np.linalg.norm(np.diff(means_of(x, w, edges)[0], axis=0), axis=1).sum())


def _shuffled(means: np.ndarray) -> np.ndarray:
    """The blocks as they are, then in other orders, [1 + shuffles, n, r]."""
    rng = np.random.default_rng(0)
    others = (rng.permutation(len(means)) for _ in range(SHUFFLES))
    return means[np.stack([np.arange(len(means)), *others])]


def _coarse(blocks: np.ndarray, width: int) -> np.ndarray:
    """Means of ``width`` blocks each."""
    P, n, r = blocks.shape
    return blocks[:, : n // width * width].reshape(P, n // width, width, r).mean(axis=2)


def rank(scores: np.ndarray) -> float:
    """How often the largest of some scores, each in its own units, is at least that of row 0."""
    deviation = scores.std(axis=0)
    scaled = (scores - scores.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    most = scaled.max(axis=1, initial=0.0)
    return float(np.mean(most >= most[0] - 1e-9))


def _cusum(x: np.ndarray) -> np.ndarray:
    """How far apart the means before and after each cut are, of sequences [P, n, r]: [P, n − 1].
    Cuts near the ends do not count."""
    n = x.shape[1]
    before, place = np.cumsum(x - x.mean(axis=1, keepdims=True), axis=1)[:, :-1], np.arange(1, n)
    trim = max(2, n // 20)
    counts = (place >= trim) & (place <= n - trim)
    return np.sum(before**2, axis=2) * counts / (place * (n - place))


def _changes(x: np.ndarray, w: np.ndarray) -> tuple[Change, ...]:
    """Binary segmentation; then each cut once more, between its neighbours."""
    cuts, parts = [], [(0, len(x))]
    while parts and len(cuts) < CUTS:
        a, b = parts.pop(0)
        if cut := _cut(x[a:b], w[a:b]):
            cuts.append(a + cut)
            parts += [(a, a + cut), (a + cut, b)]
    cuts.sort()
    ends = zip([0, *cuts], cuts, [*cuts[1:], len(x)], strict=False)
    return tuple(_placed(x[a:b], w[a:b], a, c - a) for a, c, b in ends)


def _line(x: np.ndarray, w: np.ndarray, cut: int) -> np.ndarray:
    """The optima along the direction from the mean before the cut to that after it."""
    before, after = means_of(x, w, np.array([0, cut]))[0]
    return x @ (after - before)


def _cut(x: np.ndarray, w: np.ndarray) -> int | None:
    """Where the largest change is, if it is more than chance and sudden."""
    if len(x) < FEW:
        return None
    means, edges = _blocks(x, w)
    score = _cusum(_shuffled(means))
    if rank(score.max(axis=1, keepdims=True)) > CUT_LEVEL:
        return None
    line = _line(x, w, edges[int(np.argmax(score[0])) + 1])
    cut = int(np.argmax(_cusum(line[None, :, None]))) + 1
    for part in (2, 4):  # near by, a step must fit better than a straight line
        width = max(2, min(cut, len(x) - cut) // part)
        near = line[cut - width : cut + width] - line[cut - width : cut + width].mean()
        slope = np.arange(2 * width) - width + 0.5
        if (slope @ near) ** 2 / (slope @ slope) > np.sum(np.sign(slope) * near) ** 2 / (2 * width):
            return None
    return cut


def _placed(x: np.ndarray, w: np.ndarray, start: int, cut: int) -> Change:
    """The cut and an interval: where it falls when the tasks of either side are drawn again."""
    line, rng = _line(x, w, cut), np.random.default_rng(0)
    low = max(0, cut - NEAR)
    line, cut = line[low : cut + NEAR], cut - low
    sides = [s[rng.integers(len(s), size=(SHUFFLES, len(s)))] for s in (line[:cut], line[cut:])]
    at = np.argmax(_cusum(np.concatenate(sides, axis=1)[..., None]), axis=1) + 1
    ends = np.quantile(at, [0.025, 0.975]).round().astype(int)
    start += low
    return Change(start + cut, start + min(int(ends[0]), cut), start + max(int(ends[1]), cut))
