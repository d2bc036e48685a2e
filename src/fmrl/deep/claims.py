"""The paper's claims about networks, decided from records alone: ours, and the authors' logged runs by the same rule."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fmrl.deep.settings import reference

FAMILIES = {"o15": "5-way 1-shot", "o55": "5-way 5-shot", "o120": "20-way 1-shot", "o520": "20-way 5-shot"}
MIDDLE = {"o15": 5, "o55": 5, "o120": 10, "o520": 10}  # inner steps of the runs that vary the samples


@dataclass(frozen=True)
class Point:
    """One run's accuracy, its standard error, and its curve [(meta-iteration, accuracy)]."""

    accuracy: float
    error: float
    curve: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Claim:
    """A claim about one family of runs, with the numbers it was decided by; None where runs are missing."""

    family: str
    text: str
    ours: bool | None
    ours_numbers: str
    theirs: bool | None
    theirs_numbers: str


def ours(results: dict[str, dict]) -> dict[str, Point]:
    """Finished runs of a study's record."""
    ends = {k: r["final"]["transductive"] for k, r in results.items() if "final" in r}
    return {k: Point(e["accuracy"], e["error"], results[k]["curve"]) for k, e in ends.items()}


def theirs() -> dict[str, Point]:
    """The authors' logged runs."""
    return {k: Point(r["accuracy"]["test"], r["test_se"], r["test_curve"]) for k, r in reference().items()}


def rises(points: Sequence[Point | None]) -> bool | None:
    """Whether every point lies above the one before by more than two standard errors of the difference."""
    held = [p for p in points if p is not None]
    if len(held) < 2:
        return None
    return all(b.accuracy - a.accuracy > 2 * math.hypot(a.error, b.error) for a, b in itertools.pairwise(held))


def level(points: Sequence[Point | None]) -> bool | None:
    """Whether no two points differ by more than 1.5 points or two standard errors of their difference."""
    held = [p for p in points if p is not None]
    if len(held) < 2:
        return None
    low, high = min(held, key=lambda p: p.accuracy), max(held, key=lambda p: p.accuracy)
    return high.accuracy - low.accuracy <= max(0.015, 2 * math.hypot(low.error, high.error))


def reached(points: Sequence[Point | None]) -> int | None:
    """The first looked-at meta-iteration at which the second run's curve is as high as the first run's end."""
    few, more = points
    if few is None or more is None:
        return None
    return next((int(i) for i, accuracy in more.curve if accuracy >= few.accuracy), None)


def judge(results: dict[str, dict]) -> list[Claim]:
    """All claims for all families.

    >>> [c.theirs for c in judge({}) if "5 training samples" in c.text]
    [True, False, True, True]
    """
    mine, logged = ours(results), theirs()
    claims = []
    for f, title in FAMILIES.items():
        shots = [f"{f}_s5", f"{f}_i{MIDDLE[f]}"]
        steps = [f"{f}_i{n}" for n in (5, 10, 20, 40)]
        beyond = [f"{f}_i{MIDDLE[f]}", *(f"{f}_s{n}" for n in (15, 20, 25))]
        claims.append(_claim(title, "10 training samples a class beat 5 training samples", shots, mine, logged, rises))
        claims.append(_sooner(title, shots, mine, logged))
        claims.append(
            _claim(title, "10, 15, 20 and 25 a class, which draw equally many samples, end alike", beyond, mine, logged, level)
        )
        claims.append(_claim(title, "every doubling of the inner steps (5, 10, 20, 40) helps", steps, mine, logged, rises))
        claims.append(_claim(title, "40 inner steps beat 5", [steps[0], steps[-1]], mine, logged, rises))
    return claims


def _claim(title: str, text: str, names: Sequence[str], mine: dict, logged: dict, rule: Any) -> Claim:
    found = [[source.get(n) for n in names] for source in (mine, logged)]
    numbers = [" → ".join("not finished" if p is None else f"{100 * p.accuracy:.1f}" for p in points) for points in found]
    missing = None in found[0]
    return Claim(title, text, None if missing else rule(found[0]), numbers[0], rule(found[1]), numbers[1])


def _sooner(title: str, names: Sequence[str], mine: dict, logged: dict) -> Claim:
    at = [reached([source.get(n) for n in names]) for source in (mine, logged)]
    numbers = ["not reached" if i is None else f"at {i:,}" for i in at]
    text = "with 10 samples a class the accuracy that 5 end with is reached before 20,000 meta-iterations"
    holds = [i is not None and i < 20_000 for i in at]
    return Claim(title, text, holds[0] if names[0] in mine else None, numbers[0], holds[1], numbers[1])
