"""Did it help? The held-out comparison in plain words.

The verdict rests on one paired comparison with each baseline: every held-out task's mean over all
its shots. With the 95 % interval of the difference, FMRL is the same if the interval lies within a
point (0.01) of 0, better if it lies above 0, worse if below, else unclear.
"""

from __future__ import annotations

from typing import NamedTuple

from fmrl.report.facts import Difference, HeldOut
from fmrl.report.html import as_number, change, plural, score

MATTERS = 0.01  # a difference that a reader would act on: one point of accuracy, or of R²
BASELINES = {"per-task": "fitting each task alone", "pooled": "one pooled model"}


class Verdict(NamedTuple):
    """What the page says first."""

    answer: str  # a short sentence
    tone: str  # "yes", "no", "mixed" or "unknown"
    reasons: tuple[str, ...]  # sentences, most important first


def verdict(heldout: HeldOut) -> Verdict:
    """Answer, tone and reasons.

    >>> whole = {"against": "pooled", "shots": None, "mean": 0.05, "low": 0.02, "high": 0.08}
    >>> found = verdict({"metric": "accuracy", "shots": [1], "methods": [],
    ...                  "differences": [whole], "tasks": 40})
    >>> found.answer
    'Yes: meta-learning helped on these tasks.'
    >>> print(*found.reasons[0].split(", "), sep="\\n")
    On 40 held-out tasks
    averaged over all shots
    FMRL is 5.0 points more accurate than one pooled model (95\xa0% interval +2.0 to +8.0).
    """
    overall = {d["against"]: d for d in heldout.get("differences", []) if d.get("shots") is None}
    found = {against: _side(d) for against, d in overall.items()}
    if not found or "unknown" in found.values():
        answer = "The held-out comparison does not say whether meta-learning helped."
        why = "The intervals below are of each method alone; without paired differences there is no"
        return Verdict(answer, "unknown", (*_fewest_shots(heldout), f"{why} verdict."))
    reasons = [_reason(heldout, d, first=i == 0) for i, d in enumerate(overall.values())]
    reasons += [*_fewest_shots(heldout), *_behind(heldout)]
    return Verdict(*_answer(found, _ours(heldout)), tuple(reasons))


def _answer(found: dict[str, str], ours: str) -> tuple[str, str]:
    better, worse, same, unclear = (
        " and ".join(_called(a) for a, s in found.items() if s == side)
        for side in ("better", "worse", "same", "unclear")
    )
    if worse and better:
        return f"Partly: better than {better}, worse than {worse}.", "mixed"
    if worse:
        return f"No: {worse} did better on these tasks.", "no"
    if better and not same and not unclear:
        return "Yes: meta-learning helped on these tasks.", "yes"
    if better:
        rest = [f"{same} did as well"] * bool(same)
        rest += [f"no clear difference from {unclear}"] * bool(unclear)
        return f"Yes, against {better}; {', '.join(rest)}.", "mixed"
    if unclear:
        both = " and ".join(filter(None, (unclear, same)))
        return f"No clear difference between {ours} and {both}.", "mixed"
    return f"No: {same} did as well on these tasks.", "no"


def _ours(heldout: HeldOut) -> str:
    methods = heldout.get("methods") or [{"name": "FMRL"}]
    return str(methods[0]["name"])


def _side(d: Difference) -> str:
    low, high = as_number(d["low"]), as_number(d["high"])
    if low is None or high is None:
        return "unknown"
    if low > -MATTERS and high < MATTERS:
        return "same"
    return "better" if low > 0 else "worse" if high < 0 else "unclear"


def _called(against: str) -> str:
    return BASELINES.get(against, str(against))


def _reason(heldout: HeldOut, d: Difference, first: bool) -> str:
    metric, mean = heldout["metric"], as_number(d["mean"]) or 0.0
    size, more = change(abs(mean), metric)[1:], mean >= 0
    how = f"{size} {'higher' if more else 'lower'} in R² than"
    if metric == "accuracy":
        how = f"{size} points {'more' if more else 'less'} accurate than"
    tasks = plural(heldout.get("tasks"), "held-out task")
    where = f"On {tasks}, averaged over all shots, " if first else "Likewise "
    span = f"{change(d['low'], metric)} to {change(d['high'], metric)}"
    return f"{where}{_ours(heldout)} is {how} {_called(d['against'])} (95\xa0% interval {span})."


def _fewest_shots(heldout: HeldOut) -> list[str]:
    """The scores with the fewest shots, where learning across tasks should matter most."""
    shots, metric = heldout.get("shots", []), heldout["metric"]
    if not shots:
        return []
    i = shots.index(min(shots))
    means = {_called(str(m["name"])): m["mean"][i] for m in heldout.get("methods", [])}
    parts = [f"{m} {score(v, metric)}" for m, v in means.items() if as_number(v) is not None]
    what = "accuracy" if metric == "accuracy" else "R²"
    said = f"With {plural(shots[i], 'shot')} the {what} is: {', '.join(parts)}."
    return [said] if parts else []


def _behind(heldout: HeldOut) -> list[str]:
    """Numbers of shots at which a baseline is clearly ahead, which an average would hide."""
    metric, lines = heldout["metric"], []
    worse = [d for d in heldout.get("differences", []) if _side(d) == "worse"]
    said = {d["against"] for d in worse if d["shots"] is None}
    for other in dict.fromkeys(d["against"] for d in worse if d["against"] not in said):
        ahead = [d for d in worse if d["against"] == other]
        most = max(-(as_number(d["mean"]) or 0.0) for d in ahead)
        size = change(most, metric)[1:] + (" points" if metric == "accuracy" else "")
        *some, last = (str(d["shots"]) for d in ahead)
        shots = f"{', '.join(some)} and {last} shots" if some else plural(last, "shot")
        at_most = " at most" if some else ""
        lines.append(f"But with {shots} {_called(other)} is ahead, by {size}{at_most}.")
    return lines
