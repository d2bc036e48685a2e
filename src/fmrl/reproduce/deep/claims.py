"""The paper's claims about networks, decided from records alone: ours, and the authors' logged runs
by the same rule.

A run beats another when it is ahead by more than two standard errors of the difference; runs end
alike when no two differ by more than that or 1.5 points.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fmrl.reproduce import verdict
from fmrl.reproduce.deep import settings
from fmrl.reproduce.deep.settings import FAMILIES, FEWEST, SWEEPS, Run, reference
from fmrl.reproduce.verdict import Verdict
from fmrl.theory.environment import listed

OURS, LOGGED = "ours", "authors' log"


@dataclass(frozen=True)
class Point(verdict.Point):
    """One run at its end, and on its way there."""

    tasks: int = 1000
    curve: Sequence[Sequence[float]] = ()  # (meta-iteration, accuracy)
    last: int = 20_000  # meta-iteration


Rule = Callable[[Sequence[Point]], bool]
Claims = Iterator[tuple[str, str, Sequence[int], Rule]]  # tag, claim, runs it is about, rule


def ours(results: dict[str, dict]) -> dict[str, Point]:
    """Finished runs of a study's record."""
    points = {}
    for name, run in results.items():
        if "final" in run:
            end, curve = run["final"]["transductive"], run["curve"]
            points[name] = Point(end["accuracy"], end["error"], end["tasks"], curve, curve[-1][0])
    return points


def theirs() -> dict[str, Point]:
    """The authors' logged runs."""
    return {
        name: Point(r["accuracy"]["test"], r["test_se"], 1000, r["test_curve"], r["meta_iters"])
        for name, r in reference().items()
    }


def rises(points: Sequence[Point]) -> bool:
    """Whether every point lies above the one before."""
    return all(b.above(a) for a, b in itertools.pairwise(points))


def first(points: Sequence[Point]) -> bool:
    """Whether the first point lies above every other."""
    return all(points[0].above(p) for p in points[1:])


def level(points: Sequence[Point]) -> bool:
    """Whether the lowest and the highest are level."""
    low, high = (pick(points, key=lambda p: p.accuracy) for pick in (min, max))
    return low.level(high)


def reached(points: Sequence[Point]) -> int | None:
    """The first look at which the second run is as high as the first run's end."""
    few, more = points
    return next((int(i) for i, accuracy in more.curve if accuracy >= few.accuracy), None)


def sooner(points: Sequence[Point]) -> bool:
    """Whether that is before the first run's last meta-iteration."""
    at = reached(points)
    return at is not None and at < points[0].last


def judge(
    results: dict[str, dict], dataset: str = "Omniglot", sweep: str | None = None
) -> list[Verdict]:
    """What the paper says of ``dataset``'s settings, for all its families; of one sweep, or of
    both. Every claim is judged twice, by our runs and by the authors' log.

    >>> logged = [v for v in judge({}) if v.preset == LOGGED]
    >>> [v.passed for v in logged if "5 training samples" in v.claim]
    [True, False, True, True]
    """
    sources, found = {OURS: ours(results), LOGGED: theirs()}, []
    steps = _omniglot_steps if dataset == "Omniglot" else _mini_imagenet_steps
    about = {"shots": _samples, "iterations": steps}
    for name in settings.families(dataset):
        for which in [sweep] if sweep else about:
            runs = settings.family(name, which)
            for tag, claim, values, rule in about[which](runs):
                for whose, points in sources.items():
                    decided = decide([points.get(runs[v].name) for v in values], rule)
                    where = f"{name}.{tag}", FAMILIES[name], whose, "paper"
                    found.append(Verdict(*where, claim, *decided, by="standard errors"))
    return found


def decide(points: Sequence[Point | None], rule: Rule) -> tuple[bool | None, str]:
    """Whether runs follow a rule (None: one is missing or rests on few tasks), and the numbers."""
    numbers = ("not finished" if p is None else f"{100 * p.accuracy:.1f}" for p in points)
    numbers, there = " → ".join(numbers), [p for p in points if p is not None]
    if (least := min((p.tasks for p in there), default=FEWEST)) < FEWEST:
        return None, f"{numbers}; {least} tasks, too few to judge"
    if len(there) < len(points):
        return None, numbers
    if rule is sooner:
        at = reached(there)
        numbers = "not reached" if at is None else f"at {at:,}"
    return rule(there), numbers


def _samples(runs: dict[int, Run]) -> Claims:
    """More samples a task help, sooner too, up to what the inner steps draw."""
    values = list(runs)
    few, enough = values[0], next(v for v, r in runs.items() if r.sweep == SWEEPS["iterations"])
    claim = f"{enough} training samples a class beat {few} training samples"
    yield "samples", claim, [few, enough], rises
    if len(upto := [v for v in values if v <= enough]) > 2:
        claim = f"every step from {' to '.join(map(str, upto))} samples a class helps"
        yield "samples.each", claim, upto, rises
    claim = f"with {enough} samples a class the accuracy that {few} end with is reached before the "
    yield "samples.sooner", f"{claim}last meta-iteration", [few, enough], sooner
    r, beyond = runs[enough], [v for v in values if v >= enough]
    drawn = [min(v, r.batch * r.steps // r.ways) for v in beyond]
    several = f"of which {listed(drawn)} are drawn"
    which = several if len(set(drawn)) > 1 else "which draw equally many samples"
    yield "samples.beyond", f"{listed(beyond)} a class, {which}, end alike", beyond, level


def _omniglot_steps(runs: dict[int, Run]) -> Claims:
    few, *_, most = values = list(runs)
    claim = f"every doubling of the inner steps ({', '.join(map(str, values))}) helps"
    yield "steps.each", claim, values, rises
    yield "steps", f"{most} inner steps beat {few}", [few, most], rises


def _mini_imagenet_steps(runs: dict[int, Run]) -> Claims:
    """The paper: more than 8 steps reduce performance, and a benefit of more is not clear."""
    few, middle, *more = runs
    yield "steps", f"{middle} inner steps beat {few}", [few, middle], rises
    yield "steps.more", f"{listed(more)} inner steps end below {middle}", [middle, *more], first
    claim = f"{more[-1]} inner steps beat {few} (the paper: not clear)"
    yield "steps.most", claim, [few, more[-1]], rises
