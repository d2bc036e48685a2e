"""Columns won, tied and lost, from records, and the tables that the command prints."""

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


def outside_by_chance(errors: list[float]) -> float:
    """How many columns of exact 90 % intervals would lie outside 87–93 %, given the standard errors
    of their coverage.

    >>> round(outside_by_chance([0.03, 0.01]), 2)
    0.32
    """
    return sum(math.erfc(0.03 / max(e, 1e-12) / math.sqrt(2)) for e in errors)


def calibration_error(bins: np.ndarray) -> float:
    """Expected calibration error: rows fall into bins by probability of class 1; the mean distance
    of the bins' mean probability from their rate, weighted by rows.

    Args:
        bins: [bins, 3]: rows, sum of probabilities, sum of labels.

    >>> calibration_error(np.array([[10, 2.0, 3.0], [10, 8.0, 8.0]]))
    0.05
    """
    return float(np.abs(bins[:, 1] - bins[:, 2]).sum() / bins[:, 0].sum())


def report(
    records: dict[str, dict[str, Record]], shapes: dict[str, Record], ours: str, others: list[str]
) -> str:
    """Columns won / tied / lost by ``ours``, every lost one by name, intervals, calibration, time.

    Args:
        records: By method and set.
        shapes: What scores are divided by, by set.
        ours: The method of the table.
        others: What it is compared with.
    """
    found = {score: columns(records, shapes, score) for score in SCORES}
    heads = [f"{s} ({sum(ours in c.losses for c in found[s])} columns)" for s in SCORES]
    lines = [f"{ours}: columns won / tied / lost (two standard errors of the paired difference)"]
    lines += [f"{'against':<26}" + "".join(f"{head:>26}" for head in heads)]
    lost = []
    for other in others:
        cells = []
        for score in SCORES:
            by = tally(found[score], ours, other)
            total = sum(map(len, by.values()))
            share = f" ({len(by['lost']) / total:.0%})" if total else ""
            cells.append(" / ".join(str(len(v)) for v in by.values()) + share if total else "–")
            lost += [(score, other, c) for c in by["lost"]]
        lines.append(f"{other:<26}" + "".join(f"{cell:>26}" for cell in cells))
    for other in ("mixed, slopes", "LightGBM + shrunken mean"):
        if other in others:
            said = [
                " / ".join(str(len(v)) for v in tally(nonlinear(found[s]), ours, other).values())
                for s in SCORES[:2]
            ]
            lines.append(f"on nonlinear sets against {other}: R² {said[0]}, log-loss {said[1]}")
    lines += ["", "lost columns: score, peer, set, rows to adapt to: ours, theirs (± 2 errors)"]
    for score, other, c in lost:
        gap = c.against(ours, other)
        lines.append(
            f"  {score:<8} {other:<25} {c.name:<28} k={c.shots}: {c.value(ours):.4f} "
            f"{c.value(other):.4f}  ({gap.mean:+.4f} ± {2 * gap.error:.4f})"
        )
    lines += [
        "",
        f"90 % intervals of {ours} outside 87–93 % on sets of at least 50 groups (± 2 errors)",
    ]
    for name, record in records[ours].items():
        if "covered" in record and name in shapes and len(shapes[name]["rows"]) >= 50:
            cover = coverage(record, shapes[name])
            if off := {k: v for k, v in cover.items() if not 0.87 <= v <= 0.93}:
                error = coverage_error(record, shapes[name])
                said = ", ".join(f"k={k}: {v:.3f} ± {2 * error[k]:.3f}" for k, v in off.items())
                lines.append(f"  {name:<28} {said}")
    return "\n".join([*lines, "", *_calibration(records, shapes, [ours, *others])])


def paired(records: dict[str, Record], frozen: dict[str, Record], shapes: dict[str, Record]) -> str:
    """Compare one method after a change with itself before it, on the same rows.

    Columns won / tied / lost at two standard errors of the difference paired by group, the
    geometric mean of the loss after over the loss before by rows known (below 1: better), fit's
    time, coverage, and every lost column by name.

    Args:
        records: After the change, by set.
        frozen: Before it.
        shapes: What scores are divided by, by set.
    """
    both = {"after": records, "before": frozen}
    here = {name: s for name, s in shapes.items() if all(name in r for r in both.values())}
    found = {score: columns(both, here, score) for score in SCORES}
    verdicts = {score: tally(some, "after", "before") for score, some in found.items()}
    counts = {v: sum(len(by[v]) for by in verdicts.values()) for v in ("won", "tied", "lost")}
    share = counts["lost"] / max(sum(counts.values()), 1)
    lines = [f"{len(here)} sets; columns won / tied / lost against the records before"]
    for score, by in verdicts.items():
        lines.append(f"  {score:<18}" + " / ".join(str(len(some)) for some in by.values()))
    lines.append(f"  {'in all':<18}{' / '.join(map(str, counts.values()))} ({share:.1%} lost)")
    lines.append("loss after over before, geometric mean at k=" + ", ".join(map(str, SHOTS)))
    for kinds in (SCORES[:1], SCORES[1:2], SCORES[:2]):
        some = [c for score in kinds for c in found[score]]
        means = [geometric_mean([c for c in some if c.shots == k]) for k in SHOTS]
        lines.append(f"  {' and '.join(kinds):<18}" + " ".join(f"{mean:.4f}" for mean in means))
    seconds = [np.median([r[name]["seconds"][0] for name in here]) for r in both.values()]
    lines.append(f"fit, median of sets: {seconds[0]:.3f} s, before {seconds[1]:.3f} s")
    lines += [f"90 % intervals {when}: {_covered(r, here)}" for when, r in both.items()]
    for score, by in verdicts.items():
        for c in by["lost"]:
            gap = c.against("after", "before")
            lines.append(
                f"  lost {score:<8} {c.name:<30} k={c.shots}: {c.value('after'):.4f}, before "
                f"{c.value('before'):.4f}  ({gap.mean:+.4f} ± {2 * gap.error:.4f})"
            )
    return "\n".join(lines)


def geometric_mean(found: list[Column]) -> float:
    """Of the loss after a change over that before it, column by column; nan of none."""
    ratios = [c.losses["after"].sum() / max(c.losses["before"].sum(), 1e-300) for c in found]
    return float(np.exp(np.mean(np.log(np.maximum(ratios, 1e-300))))) if ratios else math.nan


def _covered(records: dict[str, Record], shapes: dict[str, Record]) -> str:
    """Mean coverage over sets of 50 groups or more, where every row of a set counts once and where
    every group does, and how many sets lie outside 87–93 % by either.
    """
    cells = []
    for i, k in enumerate(SHOTS):
        by_row, by_group = [], []
        for name, shape in shapes.items():
            rows = shape["rows"][:, i]
            if "covered" in records[name] and len(rows) >= 50 and (rows > 0).sum() >= LEAST_GROUPS:
                inside = records[name]["covered"][:, i][rows > 0]
                by_row.append(float(inside.sum() / rows.sum()))
                by_group.append(float(np.mean(inside / rows[rows > 0])))
        off = [sum(not 0.87 <= share <= 0.93 for share in some) for some in (by_row, by_group)]
        cells.append(
            f"k={k} rows {_mean(by_row)} ({off[0]} off), groups {_mean(by_group)} ({off[1]} off)"
        )
    return "; ".join(cells)


def scores(records: dict[str, dict[str, Record]], shapes: dict[str, Record]) -> str:
    """R² and log-loss of every method on every set."""
    lines = []
    for score in SCORES[:2]:
        found = columns(records, shapes, score)
        for name in dict.fromkeys(c.name for c in found):
            here = [c for c in found if c.name == name]
            lines.append(f"{name}, {score}" + "".join(f"  k={c.shots}" for c in here))
            for method in here[0].losses:
                lines.append(f"  {method:<26}" + "".join(f"{c.value(method):8.4f}" for c in here))
    return "\n".join(lines)


def _calibration(
    records: dict[str, dict[str, Record]], shapes: dict[str, Record], methods: list[str]
) -> list[str]:
    lines = [
        f"{'':<26}{'90 % intervals cover, k=1,2,4,8':>34}{'outside 87–93 %':>18}"
        f"{'calibration error, k=1,2,4,8':>34}{'fit s':>9}{'adapt ms':>10}"
    ]
    for method in methods:
        here = {n: r for n, r in records[method].items() if n in shapes}
        cover = {
            n: coverage(r, shapes[n])
            for n, r in here.items()
            if "covered" in r and len(shapes[n]["rows"]) >= 50
        }
        means = [_mean([c[k] for c in cover.values() if k in c]) for k in SHOTS]
        cells = [v for c in cover.values() for v in c.values()]
        outside = sum(not 0.87 <= v <= 0.93 for v in cells)
        errors = [
            _mean([
                calibration_error(r["bins"][i])
                for n, r in here.items()
                if "bins" in r and (shapes[n]["rows"][:, i] > 0).sum() >= 20
            ])
            for i in range(len(SHOTS))
        ]  # fmt: skip
        seconds = np.array([r["seconds"] for r in here.values()]).reshape(-1, 3)
        lines.append(
            f"{method:<26}{' '.join(means):>34}"
            f"{f'{outside} of {len(cells)}' if cells else '–':>18}{' '.join(errors):>34}"
            f"{np.median(seconds[:, 0]):>9.3f}{1e3 * np.median(seconds[:, 2]):>10.3f}"
        )
    return lines


def _mean(values: list[float]) -> str:
    return f"{np.mean(values):.3f}" if values else "–"
