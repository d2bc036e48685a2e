"""A verdict: a claim as a sentence, whether it holds, and the numbers it was decided by. And the
rows it is decided from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fmrl.stats import mean_interval

Row = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """``source`` is 'paper' for a claim the paper makes, 'theory' for what its theorems imply,
    'ours' for a control of ours.
    """

    id: str
    figure: str
    preset: str
    source: str
    claim: str
    passed: bool
    numbers: str
    by: str = "means"  # what it is decided by: "intervals" that must lie on one side, "means" or a "single value"

    def plain(self) -> dict[str, Any]:
        """As a dictionary."""
        return asdict(self)


class Rows:
    """Rows of one figure under one preset, looked up by curve and number of shots."""

    def __init__(self, rows: Iterable[Row], preset: str):
        self.preset = preset
        self.all = [r for r in rows if r["preset"] in (preset, "any")]
        self._at = {(r["within"], r["method"], r["shots"]): r for r in self.all}

    @property
    def shots(self) -> list[int]:
        """All numbers of shots, ascending."""
        return sorted({r["shots"] for r in self.all if r["shots"] is not None})

    def methods(self, within: str) -> list[str]:
        """The curves of a panel, in the order of the table."""
        return list(dict.fromkeys(r["method"] for r in self.all if r["within"] == within))

    def at(self, within: str, method: str, shots: int) -> Row:
        """One row."""
        return self._at[within, method, shots]

    def mean(self, within: str, method: str, shots: int) -> float:
        """One number."""
        return self._at[within, method, shots]["mean"]

    def paired(self, within: str, a: str, b: str, shots: int) -> tuple[float, float, float]:
        """Mean and interval of a − b, paired by task order or by test task (unpaired values are
        constants).
        """
        x, y = (np.asarray(self._at[within, m, shots]["values"]) for m in (a, b))
        return mean_interval(x - y)[:3]

    def ratio(self, within: str, a: str, b: str) -> list[float]:
        """mean(a)/mean(b) at every number of shots; NaN where b is not positive, since regret may
        be negative.
        """
        pairs = [(self.mean(within, a, m), self.mean(within, b, m)) for m in self.shots]
        return [x / y if y > 0 else float("nan") for x, y in pairs]


Claim = Callable[[Rows], Iterable[Verdict]]


def listed(shots: Iterable[int], values: Iterable[float], form: str = ".2f") -> str:
    """'1: 0.50, 2: 0.25'.

    >>> listed([1, 2], [0.5, 0.25])
    '1: 0.50, 2: 0.25'
    """
    return ", ".join(f"{m}: {v:{form}}" for m, v in zip(shots, values, strict=True))
