"""The paper's claims about networks, decided from records alone: ours, and the authors' logged runs
by the same rule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fmrl.reproduce.deep.settings import FAMILIES, FEWEST, SWEEPS, Run, family, reference


@dataclass(frozen=True)
class Point:
    """One run's accuracy, its standard error, its curve [(meta-iteration, accuracy)], its last
    meta-iteration, its test tasks.
    """

    accuracy: float
    error: float
    curve: Sequence[Sequence[float]]
    last: int = 20_000
    tasks: int = 1000


@dataclass(frozen=True)
class Claim:
    """A claim about one family of runs, with the numbers it was decided by; None where runs are
    missing or their test tasks too few.
    """

    family: str
    text: str
    ours: bool | None
    ours_numbers: str
    theirs: bool | None
    theirs_numbers: str


Points = Sequence[Point | None]
Rule = Callable[[Points], bool | None]


def ours(results: dict[str, dict]) -> dict[str, Point]:
    """Finished runs of a study's record."""
    ends = {k: r["final"]["transductive"] for k, r in results.items() if "final" in r}
    return {
        k: Point(
            e["accuracy"], e["error"], results[k]["curve"], results[k]["curve"][-1][0], e["tasks"]
        )
        for k, e in ends.items()
    }


def theirs() -> dict[str, Point]:
    """The authors' logged runs."""
    return {
        k: Point(r["accuracy"]["test"], r["test_se"], r["test_curve"], r["meta_iters"])
        for k, r in reference().items()
    }


def rises(points: Points) -> bool | None:
    """Whether every point lies above the one before by more than two standard errors of the
    difference.
    """
    held = [p for p in points if p is not None]
    if len(held) < 2:
        return None
    return all(_above(b, a) for a, b in itertools.pairwise(held))


def first(points: Points) -> bool | None:
    """Whether the first point lies above every other by more than two standard errors of the
    difference.
    """
    held = [p for p in points if p is not None]
    if len(held) < 2:
        return None
    return all(_above(held[0], p) for p in held[1:])


def level(points: Points) -> bool | None:
    """Whether no two points differ by more than 1.5 points or two standard errors of their
    difference.
    """
    held = [p for p in points if p is not None]
    if len(held) < 2:
        return None
    low, high = min(held, key=lambda p: p.accuracy), max(held, key=lambda p: p.accuracy)
    return high.accuracy - low.accuracy <= max(0.015, 2 * math.hypot(low.error, high.error))


def reached(points: Points) -> int | None:
    """The first looked-at meta-iteration at which the second run's curve is as high as the first
    run's end.
    """
    few, more = points
    if few is None or more is None:
        return None
    return next((int(i) for i, accuracy in more.curve if accuracy >= few.accuracy), None)


def judge(
    results: dict[str, dict], dataset: str = "Omniglot", sweep: str | None = None
) -> list[Claim]:
    """What the paper says of ``dataset``'s settings, for all its families; of one sweep, or of
    both.

    >>> [c.theirs for c in judge({}) if "5 training samples" in c.text]
    [True, False, True, True]
    >>> [c.theirs for c in judge({}, "Mini-ImageNet") if "16 and 32" in c.text]  # so the paper shows 5 shots
    [False, True]
    """
    sources = ours(results), theirs()
    steps = _omniglot_steps if dataset == "Omniglot" else _mini_imagenet_steps
    claims = []
    for name in (f for f in FAMILIES if reference()[f"{f}_s5"]["dataset"] == dataset):
        for which, about in (("shots", _samples), ("iterations", steps)):
            if sweep in (None, which):
                claims += about(_Family(FAMILIES[name], family(name, which), sources))
    return claims


@dataclass(frozen=True)
class _Family:
    """One family in one sweep: {samples a class or inner steps: run}, and the points of ours and
    theirs by name.
    """

    title: str
    runs: dict[int, Run]
    sources: tuple[dict[str, Point], dict[str, Point]]

    def points(self, values: Sequence[int]) -> list[list[Point | None]]:
        return [[source.get(self.runs[v].name) for v in values] for source in self.sources]

    def claim(self, text: str, values: Sequence[int], rule: Rule) -> Claim:
        mine, logged = self.points(values)
        numbers = [
            " → ".join("not finished" if p is None else f"{100 * p.accuracy:.1f}" for p in s)
            for s in (mine, logged)
        ]
        ours = None if None in mine or _few(mine) else rule(mine)
        return Claim(self.title, text, ours, numbers[0] + _few(mine), rule(logged), numbers[1])

    def sooner(self, few: int, more: int) -> Claim:
        text = f"with {more} samples a class the accuracy that {few} end with is reached before the last meta-iteration"
        told = []
        for pair in self.points([few, more]):
            at = reached(pair)
            if None in pair:
                told += [None, "not finished"]
            elif few_tasks := _few(pair):
                told += [None, few_tasks.removeprefix("; ")]
            else:
                told += [
                    at is not None and at < pair[0].last,
                    "not reached" if at is None else f"at {at:,}",
                ]
        return Claim(self.title, text, *told)


def _samples(f: _Family) -> Iterator[Claim]:
    """More samples a task help, sooner too, up to what the inner steps draw: batch · steps / ways a
    class.
    """
    values = list(f.runs)
    few, enough = values[0], next(v for v, r in f.runs.items() if r.sweep == SWEEPS["iterations"])
    r = f.runs[enough]
    yield f.claim(
        f"{enough} training samples a class beat {few} training samples", [few, enough], rises
    )
    if len(upto := [v for v in values if v <= enough]) > 2:
        yield f.claim(
            f"every step from {' to '.join(map(str, upto))} samples a class helps", upto, rises
        )
    yield f.sooner(few, enough)
    beyond = [v for v in values if v >= enough]
    drawn = [min(v, r.batch * r.steps // r.ways) for v in beyond]
    which = (
        "which draw equally many samples"
        if len(set(drawn)) == 1
        else f"of which {_listed(drawn)} are drawn"
    )
    yield f.claim(f"{_listed(beyond)} a class, {which}, end alike", beyond, level)


def _omniglot_steps(f: _Family) -> Iterator[Claim]:
    values = list(f.runs)
    yield f.claim(
        f"every doubling of the inner steps ({', '.join(map(str, values))}) helps", values, rises
    )
    yield f.claim(f"{values[-1]} inner steps beat {values[0]}", [values[0], values[-1]], rises)


def _mini_imagenet_steps(f: _Family) -> Iterator[Claim]:
    """The paper: more than 8 steps reduce performance, and a benefit of more is not clear."""
    few, middle, *more = f.runs
    yield f.claim(f"{middle} inner steps beat {few}", [few, middle], rises)
    yield f.claim(f"{_listed(more)} inner steps end below {middle}", [middle, *more], first)
    yield f.claim(
        f"{more[-1]} inner steps beat {few} (the paper: not clear)", [few, more[-1]], rises
    )


def _few(points: Points) -> str:
    """Words to add to the numbers where they rest on too few test tasks; none where they do not."""
    least = min((p.tasks for p in points if p is not None), default=FEWEST)
    return f"; {least} tasks, too few to judge" if least < FEWEST else ""


def _above(high: Point, low: Point) -> bool:
    return high.accuracy - low.accuracy > 2 * math.hypot(high.error, low.error)


def _listed(values: Sequence[int]) -> str:
    *before, end = map(str, values)
    return f"{', '.join(before)} and {end}"
