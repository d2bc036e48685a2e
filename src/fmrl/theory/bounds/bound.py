"""Bound: a number with its reasons — named terms that add up to it, what it rests on, and where it
is proved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from fmrl.errors import FMRLError

CHECKED, ASSUMED, FALSE = "checked", "assumed", "false"


@dataclass(frozen=True)
class Assumption:
    """One condition of a theorem: ``checked`` (it was tested and holds), ``assumed`` (nobody
    looked) or ``false``.
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


@dataclass(frozen=True)
class Bound:
    """A guarantee, term by term. ``total`` is the sum of ``terms``; ``holds`` is False as soon as
    one assumption is false.

    >>> b = Bound("regret", {"start": 2.0, "steps": 1.0}, (Assumption("convex losses", "checked"),), "Theorem A.1")
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
        return (
            math.fsum(self.terms.values())
            if all(map(math.isfinite, self.terms.values()))
            else math.inf
        )

    @property
    def dominant(self) -> str:
        """The name of the largest term."""
        return max(self.terms, key=lambda key: self.terms[key])

    @property
    def holds(self) -> bool:
        """Whether this may be printed as a guarantee: no assumption is known to be false."""
        return all(a.status != FALSE for a in self.assumptions)

    @property
    def broken(self) -> tuple[Assumption, ...]:
        """The assumptions that are false."""
        return tuple(a for a in self.assumptions if a.status == FALSE)

    def given(self, *assumptions: Assumption) -> Bound:
        """The same bound with these assumptions put in the place of those of the same name, or
        added.
        """
        merged = {a.name: a for a in (*self.assumptions, *assumptions)}
        return replace(self, terms=dict(self.terms), assumptions=tuple(merged.values()))

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
        lines.append(
            f"  {'total':<{width}} {total:>10.6g}" + ("" if self.holds else "   not a guarantee")
        )
        return "\n".join(
            lines + [f"  {a}" for a in self.assumptions] + ([f"  {self.note}"] if self.note else [])
        )

    def __repr__(self):
        terms = " + ".join(f"{name} {value:.4g}" for name, value in self.terms.items())
        warning = (
            ""
            if self.holds
            else ", not a guarantee: " + "; ".join(a.name for a in self.broken) + " false"
        )
        return f"Bound({self.name} = {self.total:.6g}: {terms}{warning})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "name": self.name,
            "total": self.total,
            "terms": dict(self.terms),
            "assumptions": [vars(a) for a in self.assumptions],
            "place": self.place,
            "note": self.note,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Bound:
        """The inverse of `to_dict`."""
        given = tuple(Assumption(**a) for a in record["assumptions"])
        return cls(record["name"], record["terms"], given, record["place"], record["note"])


def numbers(value: Any) -> np.ndarray:
    """Anything array-like as float64 NumPy, torch tensors of any device included."""
    value = value.detach().cpu().numpy() if hasattr(value, "detach") else value
    return np.asarray(value, dtype=float)


def vector(value: Any, name: str, least: float = 0.0) -> np.ndarray:
    """A number or a sequence of them as float64 [n], finite and at least ``least``."""
    out = np.atleast_1d(numbers(value))
    if out.ndim != 1 or out.size == 0 or not np.all(np.isfinite(out)) or not np.all(out >= least):
        raise FMRLError(f"{name} must be finite numbers of at least {least:g}, not {value!r}")
    return out


def positive(**values: float) -> None:
    """Refuse numbers that are not positive and finite."""
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise FMRLError(f"{name} must be positive and finite, not {value}")


def at_least(least: float, **values: float) -> None:
    """Refuse numbers below ``least`` and those that are no finite number."""
    for name, value in values.items():
        if not (value >= least and math.isfinite(value)):
            raise FMRLError(f"{name} must be a finite number of at least {least:g}, not {value}")


def broadcast(names: Iterable[str], *values: Any) -> list[np.ndarray]:
    """Several per-task quantities as vectors of one length."""
    arrays = [vector(value, name) for name, value in zip(names, values, strict=True)]
    try:
        return [np.array(a) for a in np.broadcast_arrays(*arrays)]
    except ValueError:
        raise FMRLError(f"{', '.join(names)} have different lengths") from None
