"""Verdicts on the paper's claims, the rows of numbers they are decided from, and their table on the
screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fmrl.stats import mean_interval

Row = dict[str, Any]
DRAWS = "95% t interval over draws of the environment"
TASKS = "95% t interval over tasks"
LEVEL = 0.015  # a difference of accuracies that counts as none
HOLDS = {True: "[green]yes[/green]", False: "[red]no[/red]", None: "–"}


@dataclass(frozen=True)
class Verdict:
    """Whether one claim holds, with the numbers that decide it."""

    id: str  # short name, the same for every preset
    figure: str  # of the convex study, or kind of task of the deep one
    preset: str  # reading of Algorithm 2 ("any": none plays), whose networks, or what is measured
    source: str  # "paper", "theory" for what its theorems imply, "ours" for controls
    claim: str  # as a sentence
    passed: bool | None  # None where runs are missing or rest on too few test tasks
    numbers: str  # as text
    by: str = "means"  # or "intervals" on one side, "medians", "single value", "standard errors"


@dataclass(frozen=True)
class Point:
    """An accuracy, its standard error, and the test tasks it rests on."""

    accuracy: float
    error: float
    tasks: int

    def above(self, other: Point) -> bool:
        """Whether it lies above by more than two standard errors of the difference."""
        return self.accuracy - other.accuracy > 2 * math.hypot(self.error, other.error)

    def level(self, other: Point) -> bool:
        """Whether the two differ by no more than 1.5 points or two standard errors."""
        most = max(LEVEL, 2 * math.hypot(self.error, other.error))
        return abs(self.accuracy - other.accuracy) <= most


def row(
    values: Sequence[float], over: str, preset: str, within: str, method: str, shots: int | None
) -> Row:
    """One point of a curve: where it stands, its mean, and the interval of ``values``."""
    mean, low, high, _ = mean_interval(values)
    where = {"preset": preset, "within": within, "method": method, "shots": shots}
    return where | {"mean": mean, "low": low, "high": high, "n": len(values), "interval": over}


def ratio(a: Any, b: Any) -> tuple[float, float, float]:
    """mean(a)/mean(b) and its interval, paired.

    >>> tuple(round(v, 2) for v in ratio([1.0, 2.0, 3.0], [2.0, 4.1, 5.9]))
    (0.5, 0.47, 0.53)
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    found = float(a.mean() / b.mean())
    _, low, high, _ = mean_interval((a - found * b) / b.mean())
    return found, found + low, found + high


def compared(a: Any, b: Any, prefix: str = "") -> Row:
    """`ratio` as columns of a row."""
    names = (f"{prefix}ratio", f"{prefix}ratio_low", f"{prefix}ratio_high")
    return dict(zip(names, ratio(a, b), strict=True))


def spanned(r: Row, prefix: str = "") -> tuple[float, float, float]:
    """What `compared` has put into a row."""
    return r[f"{prefix}ratio"], r[f"{prefix}ratio_low"], r[f"{prefix}ratio_high"]


def said(numbers: tuple[float, float, float]) -> str:
    """A number with its interval.

    >>> said((1.0, 0.5, 1.5))
    '1.000 [0.500, 1.500]'
    """
    return "{:.3f} [{:.3f}, {:.3f}]".format(*numbers)


class Rows:
    """Rows of one figure under one preset, looked up by panel, curve and number of shots.

    ``one_panel`` puts all curves in the panel "".
    """

    def __init__(self, rows: Iterable[Row], preset: str, figure: str = "", one_panel: bool = False):
        self.preset, self.figure = preset, figure
        panel = {"within": ""} if one_panel else {}
        self.all = [r | panel for r in rows if r["preset"] in (preset, "any")]
        self._at = {(r["within"], r["method"], r["shots"]): r for r in self.all}

    @property
    def shots(self) -> list[int]:
        return sorted({r["shots"] for r in self.all if r["shots"] is not None})

    def methods(self, within: str) -> list[str]:
        """The curves of a panel, in the order of the rows."""
        return list(dict.fromkeys(r["method"] for r in self.all if r["within"] == within))

    def at(self, within: str, method: str, shots: int) -> Row:
        return self._at[within, method, shots]

    def mean(self, within: str, method: str, shots: int) -> float:
        return self._at[within, method, shots]["mean"]

    def means(self, within: str, method: str) -> list[float]:
        return [self.mean(within, method, m) for m in self.shots]

    def paired(self, within: str, a: str, b: str, shots: int) -> tuple[float, float, float]:
        """Mean and interval of a − b, paired by task order or by test task."""
        x, y = (np.asarray(self._at[within, m, shots]["values"]) for m in (a, b))
        return mean_interval(x - y)[:3]

    def ratio(self, within: str, a: str, b: str) -> list[float]:
        """mean(a)/mean(b) by shots; NaN where b is not positive, since regret may be negative."""
        pairs = zip(self.means(within, a), self.means(within, b), strict=True)
        return [x / y if y > 0 else float("nan") for x, y in pairs]

    def verdict(
        self, name: str, source: str, claim: str, passed: bool, numbers: str, by: str = "means"
    ) -> Verdict:
        """A verdict on this figure under this preset."""
        where = f"{self.figure}.{name}", self.figure, self.preset
        return Verdict(*where, source, claim, bool(passed), numbers, by)


def listed(shots: Iterable[int], values: Iterable[float], form: str = ".2f") -> str:
    """Numbers by shots, for a sentence.

    >>> listed([1, 2], [0.5, 0.25])
    '1: 0.50, 2: 0.25'
    """
    return ", ".join(f"{m}: {v:{form}}" for m, v in zip(shots, values, strict=True))


def show(verdicts: Sequence[Verdict], title: str, columns: dict[str, str]) -> None:
    """Print verdicts as a table: ``columns`` {head: attribute}, then claim, holds, numbers."""
    table = Table(*columns, "claim", "holds", "numbers", title=title, show_lines=True)
    table.title_justify = "left"
    for v in verdicts:
        where = (getattr(v, name) for name in columns.values())
        cells = ("" if cell == "any" else cell for cell in where)
        table.add_row(*cells, v.claim, HOLDS[v.passed], v.numbers)
    Console(width=max(110, Console().width)).print(table)
