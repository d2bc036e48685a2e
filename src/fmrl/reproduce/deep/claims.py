"""The paper's claims about networks, decided from records alone: ours, and the authors' logged runs
by the same rule.

A run beats another when it is ahead by more than two standard errors of the difference; runs end
alike when no two differ by more than that or 1.5 points.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fmrl.reproduce.deep.settings import (
    FAMILIES,
    FEWEST,
    SWEEPS,
    Run,
    families,
    family,
    reference,
)
from fmrl.reproduce.verdict import Verdict

OURS, LOGGED = "ours", "authors' log"


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

    def above(self, other: Point) -> bool:
        """Whether it lies above by more than two standard errors of the difference."""
        return self.accuracy - other.accuracy > 2 * math.hypot(self.error, other.error)


Rule = Callable[[Sequence[Point]], bool]


def ours(results: dict[str, dict]) -> dict[str, Point]:
    """Finished runs of a study's record."""
    points = {}
    for name, run in results.items():
        if "final" in run:
            end, curve = run["final"]["transductive"], run["curve"]
            points[name] = Point(end["accuracy"], end["error"], curve, curve[-1][0], end["tasks"])
    return points


def theirs() -> dict[str, Point]:
    """The authors' logged runs."""
    return {
        name: Point(r["accuracy"]["test"], r["test_se"], r["test_curve"], r["meta_iters"])
        for name, r in reference().items()
    }


def rises(points: Sequence[Point]) -> bool:
    """Whether every point lies above the one before."""
    return all(b.above(a) for a, b in itertools.pairwise(points))


def first(points: Sequence[Point]) -> bool:
    """Whether the first point lies above every other."""
    return all(points[0].above(p) for p in points[1:])


def level(points: Sequence[Point]) -> bool:
    """Whether no two points differ by more than 1.5 points or two standard errors of their
    difference.
    """
    low, high = (pick(points, key=lambda p: p.accuracy) for pick in (min, max))
    return high.accuracy - low.accuracy <= max(0.015, 2 * math.hypot(low.error, high.error))


def reached(points: Sequence[Point]) -> int | None:
    """The first looked-at meta-iteration at which the second run's curve is as high as the first
    run's end.
    """
    few, more = points
    return next((int(i) for i, accuracy in more.curve if accuracy >= few.accuracy), None)


def judge(
    results: dict[str, dict], dataset: str = "Omniglot", sweep: str | None = None
) -> list[Verdict]:
    """What the paper says of ``dataset``'s settings, for all its families; of one sweep, or of
    both. Every claim is judged twice, by our runs and by the authors' log.

    >>> logged = [v for v in judge({}) if v.preset == LOGGED]
    >>> [v.passed for v in logged if "5 training samples" in v.claim]
    [True, False, True, True]
    """
    sources = {OURS: ours(results), LOGGED: theirs()}
    steps = _omniglot_steps if dataset == "Omniglot" else _mini_imagenet_steps
    return [
        verdict
        for name in families(dataset)
        for which, about in (("shots", _samples), ("iterations", steps))
        if sweep in (None, which)
        for verdict in about(_Family(name, family(name, which), sources))
    ]


@dataclass(frozen=True)
class _Family:
    """One family in one sweep: {samples a class or inner steps: run}, and whose points there are,
    by name.
    """

    name: str
    runs: dict[int, Run]
    sources: dict[str, dict[str, Point]]

    def claim(self, tag: str, text: str, values: Sequence[int], rule: Rule) -> Iterator[Verdict]:
        """Whether the runs at ``values`` follow a rule, by ours and by theirs."""

        def decide(points: Sequence[Point | None], few: str) -> tuple[bool | None, str]:
            shown = ("not finished" if p is None else f"{100 * p.accuracy:.1f}" for p in points)
            undecided = few or None in points
            return None if undecided else rule(points), " → ".join(shown) + (few and f"; {few}")

        return self._verdicts(tag, text, values, decide)

    def sooner(self, tag: str, few: int, more: int) -> Iterator[Verdict]:
        """Whether more samples reach sooner what few end with, by ours and by theirs."""

        def decide(points: Sequence[Point | None], too_few: str) -> tuple[bool | None, str]:
            if None in points or too_few:
                return None, "not finished" if None in points else too_few
            at = reached(points)
            if at is None:
                return False, "not reached"
            return at < points[0].last, f"at {at:,}"

        text = f"with {more} samples a class the accuracy that {few} end with is reached before "
        return self._verdicts(tag, f"{text}the last meta-iteration", [few, more], decide)

    def _verdicts(self, tag: str, text: str, values: Sequence[int], decide) -> Iterator[Verdict]:
        for whose, source in self.sources.items():
            points = [source.get(self.runs[v].name) for v in values]
            least = min((p.tasks for p in points if p is not None), default=FEWEST)
            few = f"{least} tasks, too few to judge" if least < FEWEST else ""
            name, title = f"{self.name}.{tag}", FAMILIES[self.name]
            decided = decide(points, few)
            yield Verdict(name, title, whose, "paper", text, *decided, by="standard errors")


def _samples(f: _Family) -> Iterator[Verdict]:
    """More samples a task help, sooner too, up to what the inner steps draw: batch · steps / ways a
    class.
    """
    values = list(f.runs)
    few, enough = values[0], next(v for v, r in f.runs.items() if r.sweep == SWEEPS["iterations"])
    text = f"{enough} training samples a class beat {few} training samples"
    yield from f.claim("samples", text, [few, enough], rises)
    if len(upto := [v for v in values if v <= enough]) > 2:
        text = f"every step from {' to '.join(map(str, upto))} samples a class helps"
        yield from f.claim("samples.each", text, upto, rises)
    yield from f.sooner("samples.sooner", few, enough)
    r, beyond = f.runs[enough], [v for v in values if v >= enough]
    drawn = [min(v, r.batch * r.steps // r.ways) for v in beyond]
    which = f"of which {_listed(drawn)} are drawn"
    which = which if len(set(drawn)) > 1 else "which draw equally many samples"
    text = f"{_listed(beyond)} a class, {which}, end alike"
    yield from f.claim("samples.beyond", text, beyond, level)


def _omniglot_steps(f: _Family) -> Iterator[Verdict]:
    values = list(f.runs)
    text = f"every doubling of the inner steps ({', '.join(map(str, values))}) helps"
    yield from f.claim("steps.each", text, values, rises)
    text = f"{values[-1]} inner steps beat {values[0]}"
    yield from f.claim("steps", text, [values[0], values[-1]], rises)


def _mini_imagenet_steps(f: _Family) -> Iterator[Verdict]:
    """The paper: more than 8 steps reduce performance, and a benefit of more is not clear."""
    few, middle, *more = f.runs
    yield from f.claim("steps", f"{middle} inner steps beat {few}", [few, middle], rises)
    text = f"{_listed(more)} inner steps end below {middle}"
    yield from f.claim("steps.more", text, [middle, *more], first)
    text = f"{more[-1]} inner steps beat {few} (the paper: not clear)"
    yield from f.claim("steps.most", text, [few, more[-1]], rises)


def _listed(values: Sequence[int]) -> str:
    *before, end = map(str, values)
    return f"{', '.join(before)} and {end}"
