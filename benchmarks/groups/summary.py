"""Columns won, tied and lost, from records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from groups.protocol import SHOTS
from groups.store import Record

LEAST_GROUPS = 20  # with rows left to score, for a column to count
SCORES = ("R²", "log-loss", "accuracy")


class Difference(NamedTuple):
    """How much better the first is, per scored row, and the standard error over groups."""

    mean: float
    error: float

    @property
    def verdict(self) -> str:
        """Two standard errors decide."""
        if abs(self.mean) <= max(2 * self.error, 1e-9):
            return "tied"
        return "won" if self.mean > 0 else "lost"


def difference(ours: np.ndarray, theirs: np.ndarray, rows: np.ndarray, unit: float) -> Difference:
    """The paired difference of two losses, of all scored rows together; groups are the sample.

    A ratio of sums, Σ(theirs − ours) / Σ rows, with the standard error of a ratio.

    Args:
        ours: Sums of losses by group, [G].
        theirs: The same of the other method.
        rows: Scored rows by group.
        unit: What a row's loss is divided by.

    >>> difference(np.array([1.0, 1.0, 2.0]), np.array([2.0, 3.0, 3.0]), np.ones(3), 1.0).verdict
    'won'
    """
    gain, groups, total = theirs - ours, len(rows), rows.sum()
    mean = float(gain.sum() / total)
    spread = np.sum((gain - mean * rows) ** 2) * groups / (groups - 1)
    return Difference(mean / unit, math.sqrt(spread) / float(total) / unit)


@dataclass(frozen=True, eq=False)
class Column:
    """One set at one number of rows to adapt to."""

    name: str
    shots: int
    score: str
    groups: int
    rows: np.ndarray  # of the groups that have some to score
    unit: float
    losses: dict[str, np.ndarray]

    def value(self, method: str) -> float:
        """R², mean log-loss or accuracy of a method."""
        mean = float(self.losses[method].sum() / self.rows.sum() / self.unit)
        return mean if self.score == "log-loss" else 1 - mean

    def against(self, ours: str, theirs: str) -> Difference:
        """Positive where ours is better."""
        return difference(self.losses[ours], self.losses[theirs], self.rows, self.unit)


def columns(
    records: dict[str, dict[str, Record]], shapes: dict[str, Record], score: str
) -> list[Column]:
    """All columns of a score, of the methods that have a record of the set.

    Args:
        records: By method and set.
        shapes: ``rows`` [G, K] and ``spread`` [K] by set.
        score: One of `SCORES`.
    """
    found = []
    for name, shape in shapes.items():
        here = {m: r[name] for m, r in records.items() if name in r}
        binary = any("right" in r for r in here.values())
        if not here or binary != (score != "R²"):
            continue
        for i, k in enumerate(SHOTS):
            rows = shape["rows"][:, i]
            kept = rows > 0
            if kept.sum() < LEAST_GROUPS:
                continue
            losses = {
                m: (rows - r["right"][:, i] if score == "accuracy" else r["loss"][:, i])[kept]
                for m, r in here.items()
            }
            rows = rows[kept]
            unit = float(shape["spread"][i] / rows.sum()) if score == "R²" else 1.0
            found.append(Column(name, k, score, int(kept.sum()), rows, unit, losses))
    return found


def tally(found: list[Column], ours: str, theirs: str) -> dict[str, list[Column]]:
    """Columns by verdict."""
    out: dict[str, list[Column]] = {"won": [], "tied": [], "lost": []}
    for column in found:
        if ours in column.losses and theirs in column.losses:
            out[column.against(ours, theirs).verdict].append(column)
    return out


def nonlinear(found: list[Column]) -> list[Column]:
    """Columns of the sets on which boosted trees with a shrunken offset beat the linear mixed model
    with slopes in some column: there a linear common part is not enough.
    """
    trees, linear = "LightGBM + shrunken mean", "mixed, slopes"
    names = {c.name for c in tally(found, trees, linear)["won"]}
    return [c for c in found if c.name in names]


def coverage(record: Record, shape: Record) -> dict[int, float]:
    """Share of scored rows inside 90 % intervals, by number of rows to adapt to."""
    found = {}
    for i, k in enumerate(SHOTS):
        kept = shape["rows"][:, i] > 0
        if kept.sum() >= LEAST_GROUPS:
            found[k] = float(record["covered"][kept, i].sum() / shape["rows"][kept, i].sum())
    return found


def coverage_error(record: Record, shape: Record) -> dict[int, float]:
    """The standard error of each `coverage`, with whole groups as what is drawn: rows of a group
    are inside or outside together.
    """
    found = {}
    for k, share in coverage(record, shape).items():
        i = SHOTS.index(k)
        rows = shape["rows"][:, i]
        off = (record["covered"][:, i] - share * rows)[rows > 0]
        found[k] = float(np.sqrt((off**2).sum() * len(off) / (len(off) - 1)) / rows.sum())
    return found


def calibration_error(bins: np.ndarray) -> float:
    """Expected calibration error: rows fall into bins by probability of class 1; the mean distance
    of the bins' mean probability from their rate, weighted by rows.

    Args:
        bins: [bins, 3]: rows, sum of probabilities, sum of labels.

    >>> calibration_error(np.array([[10, 2.0, 3.0], [10, 8.0, 8.0]]))
    0.05
    """
    return float(np.abs(bins[:, 1] - bins[:, 2]).sum() / bins[:, 0].sum())
