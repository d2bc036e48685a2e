"""Bound: a number with its reasons. It has named terms that add up to it, the assumptions it rests
on, and the place where it is proved. The checks that all bounds make of their arguments are here
too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from fmrl.core.arrays import to_numpy
from fmrl.errors import FMRLError

CHECKED, ASSUMED, FALSE = "checked", "assumed", "false"
NEAR = 1 + 1e-9  # room for rounding in comparisons


@dataclass(frozen=True)
class Assumption:
    """One condition of a theorem.

    Args:
        name: The condition.
        status: "checked" (tested, and it holds), "assumed" (not tested) or "false".
        detail: What was found.
    """

    name: str
    status: str = ASSUMED
    detail: str = ""

    def __post_init__(self):
        if self.status not in (CHECKED, ASSUMED, FALSE):
            raise FMRLError(f"status must be checked, assumed or false, not {self.status!r}")

    def __str__(self):
        return f"{self.name}: {self.status}" + (f" ({self.detail})" if self.detail else "")


def decide(name: str, condition: bool, detail: str = "") -> Assumption:
    """An assumption that the numbers at hand decide."""
    return Assumption(name, CHECKED if condition else FALSE, detail)


CONVEX = Assumption("convex losses")
STEEP = "G² is at least the mean square of the rounds' constants"
LIPSCHITZ = Assumption("Lipschitz losses", detail=STEEP)
HULL_OF_OPTIMA = Assumption("B_R(θ‖·) is Lipschitz on the hull of the optima")
HULL_OF_UPDATES = Assumption("B_R(θ‖·) is Lipschitz on the hull of the update vectors")


@dataclass(frozen=True)
class Bound:
    """A guarantee, term by term.

    Args:
        name: Which bound.
        terms: Named parts; the bound is their sum.
        assumptions: What it rests on.
        place: Where it is proved.
        note: One more sentence for the table.

    >>> given = (Assumption("convex losses", "checked"),)
    >>> b = Bound("regret", {"start": 2.0, "steps": 1.0}, given, "Theorem A.1")
    >>> b.total, b.dominant, b.holds
    (3.0, 'start', True)
    >>> print(b.table())
    regret (Theorem A.1)
      start                 2    67 %
      steps                 1    33 %
      total                 3
      convex losses: checked
    """

    name: str
    terms: Mapping[str, float]
    assumptions: tuple[Assumption, ...] = ()
    place: str = ""
    note: str = ""

    def __post_init__(self):
        clean = {key: float(value) for key, value in self.terms.items()}
        object.__setattr__(self, "terms", MappingProxyType(clean))
        object.__setattr__(self, "assumptions", tuple(self.assumptions))

    @property
    def total(self) -> float:
        """The bound: the sum of its terms."""
        values = self.terms.values()
        return math.fsum(values) if all(map(math.isfinite, values)) else math.inf

    @property
    def dominant(self) -> str:
        """The name of the largest term."""
        return max(self.terms, key=lambda key: self.terms[key])

    @property
    def share(self) -> float:
        """The largest term over the total."""
        return self.terms[self.dominant] / self.total if self.total > 0 else 0.0

    @property
    def holds(self) -> bool:
        """Whether this may be printed as a guarantee: no assumption is known to be false."""
        return not self.broken

    @property
    def broken(self) -> tuple[Assumption, ...]:
        """The assumptions that are false."""
        return tuple(a for a in self.assumptions if a.status == FALSE)

    def given(self, *assumptions: Assumption) -> Bound:
        """The same bound with ``assumptions`` added; one of the same name is replaced."""
        merged = {a.name: a for a in (*self.assumptions, *assumptions)}
        return replace(self, assumptions=tuple(merged.values()))

    def plus(self, name: str, value: float) -> Bound:
        """The same bound with one more term."""
        return replace(self, terms={**self.terms, name: value})

    def table(self) -> str:
        """Plain text: the terms with their shares, the total, the assumptions."""
        total, width = self.total, max(12, *(len(name) for name in self.terms))
        lines = [f"{self.name} ({self.place})" if self.place else self.name]
        for name, value in self.terms.items():
            share = f"{100 * value / total:5.0f} %" if 0 < total < math.inf else ""
            lines.append(f"  {name:<{width}} {value:>10.6g} {share}".rstrip())
        warning = "" if self.holds else "   not a guarantee"
        lines.append(f"  {'total':<{width}} {total:>10.6g}{warning}")
        lines += [f"  {a}" for a in self.assumptions]
        return "\n".join(lines + ([f"  {self.note}"] if self.note else []))

    def __repr__(self):
        terms = " + ".join(f"{name} {value:.4g}" for name, value in self.terms.items())
        broken = "; ".join(a.name for a in self.broken)
        warning = f", not a guarantee: {broken} false" if broken else ""
        return f"Bound({self.name} = {self.total:.6g}: {terms}{warning})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        plain = {"name": self.name, "total": self.total, "terms": dict(self.terms)}
        given = [vars(a) for a in self.assumptions]
        return {**plain, "assumptions": given, "place": self.place, "note": self.note}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Bound:
        """The inverse of `to_dict`."""
        given = tuple(Assumption(**a) for a in record["assumptions"])
        return cls(record["name"], record["terms"], given, record["place"], record["note"])


def average(name: str, sums: dict[str, float], tasks: int, given: tuple, place: str) -> Bound:
    """A bound on the task-averaged regret from terms that are sums over the tasks."""
    return Bound(name, {key: value / tasks for key, value in sums.items()}, given, place)


def numbers(value: Any) -> np.ndarray:
    """Anything array-like as float64 NumPy, torch tensors of any device included."""
    try:
        return to_numpy(value).astype(float)
    except (TypeError, ValueError, OverflowError):
        raise FMRLError(f"numbers are needed, not {value!r}") from None


def nonnegative(value: Any, name: str, *, infinite: bool = False) -> np.ndarray:
    """A number or a sequence of them as float64 [n], not negative, finite unless allowed."""
    out = np.atleast_1d(numbers(value))
    finite = infinite or np.all(np.isfinite(out))
    if out.ndim != 1 or out.size == 0 or not finite or not np.all(out >= 0):
        raise FMRLError(f"{name} must be finite numbers of at least 0, not {value!r}")
    return out


def positive_if_given(**values: float | None) -> None:
    """Refuse numbers that are not positive and finite; None was not given."""
    for name, value in values.items():
        if value is not None and not 0 < float(numbers(value)) < math.inf:
            raise FMRLError(f"{name} must be positive and finite, not {value}")


def at_least(least: float, **values: float | None) -> None:
    """Refuse numbers below ``least`` and those that are not finite; None was not given."""
    for name, value in values.items():
        if value is not None and not least <= float(numbers(value)) < math.inf:
            raise FMRLError(f"{name} must be a finite number of at least {least:g}, not {value}")


def probability(delta: Any) -> None:
    """Refuse a chance of failure that is not above 0 and below 1."""
    if not 0 < float(numbers(delta)) < 1:
        raise FMRLError(f"delta must lie between 0 and 1, not {delta}")


def smooth(beta: Any) -> None:
    """Refuse a β below 1: R is 1-strongly convex."""
    if not 1 <= float(numbers(beta)) < math.inf:
        raise FMRLError(f"beta must be at least 1, not {beta}: R is 1-strongly convex")


def same_length(**values: Any) -> list[np.ndarray]:
    """Numbers, or one per task, as vectors of one length; only distances may be infinite."""
    far = ("divergence", "distance")
    arrays = [nonnegative(value, name, infinite=name in far) for name, value in values.items()]
    try:
        return [np.array(a) for a in np.broadcast_arrays(*arrays)]
    except ValueError:
        raise FMRLError(f"{', '.join(values)} have different lengths") from None
