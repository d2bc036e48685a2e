"""Did it help? The held-out comparison in plain words.

The verdict rests on one paired comparison with each baseline (every held-out task's mean over all
its shots), chosen before looking: the same if the 95 % interval of the difference lies within a
point (0.01) of 0, better if it lies above 0, worse if below, else unclear."""

from __future__ import annotations

from typing import Any, NamedTuple

from fmrl.report.facts import Difference, HeldOut
from fmrl.report.text import as_number, change, plural, score

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
    >>> found = verdict({"metric": "accuracy", "shots": [1], "methods": [], "differences": [whole], "tasks": 40})
    >>> found.answer
    'Yes: meta-learning helped on these tasks.'
    >>> found.reasons[0]
    'On 40 held-out tasks, averaged over all shots, FMRL is 5.0 points more accurate than one pooled
    model (95 % interval +2.0 to +8.0).'"""
    ours = _ours(heldout)
    overall = {d["against"]: d for d in heldout.get("differences", []) if d.get("shots") is None}
    found = {against: _side(d) for against, d in overall.items()}
    better, worse, same, unclear = (
        [a for a, s in found.items() if s == side]
        for side in ("better", "worse", "same", "unclear")
    )
    if not found or "unknown" in found.values():
        return Verdict(
            "The held-out comparison does not say whether meta-learning helped.",
            "unknown",
            _means(heldout),
        )
    if worse and better:
        answer, tone = f"Partly: better than {_join(better)}, worse than {_join(worse)}.", "mixed"
    elif worse:
        answer, tone = f"No: {_join(worse)} did better on these tasks.", "no"
    elif better and not same and not unclear:
        answer, tone = "Yes: meta-learning helped on these tasks.", "yes"
    elif better:
        rest = [f"{_join(same)} did as well"] * bool(same) + [
            f"no clear difference from {_join(unclear)}"
        ] * bool(unclear)
        answer, tone = f"Yes, against {_join(better)}; {', '.join(rest)}.", "mixed"
    elif unclear:
        answer, tone = (
            f"No clear difference between {ours} and {_join([*unclear, *same])}.",
            "mixed",
        )
    else:
        answer, tone = f"No: {_join(same)} did as well on these tasks.", "no"
    reasons = [_reason(heldout, d, first=i == 0) for i, d in enumerate(overall.values())]
    return Verdict(answer, tone, (*reasons, *_few(heldout), *_behind(heldout)))


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
    return BASELINES.get(against, against)


def _join(names: list[str]) -> str:
    return " and ".join(map(_called, names))


def _reason(heldout: HeldOut, d: Difference, first: bool) -> str:
    metric, mean = heldout["metric"], as_number(d["mean"]) or 0.0
    size = change(abs(mean), metric)[1:]
    how = (
        f"{size} points {'more' if mean >= 0 else 'less'} accurate than"
        if metric == "accuracy"
        else (f"{size} {'higher' if mean >= 0 else 'lower'} in R² than")
    )
    where = (
        f"On {plural(heldout.get('tasks'), 'held-out task')}, averaged over all shots, "
        if first
        else "Likewise "
    )
    span = f"{change(d['low'], metric)} to {change(d['high'], metric)}"
    return f"{where}{_ours(heldout)} is {how} {_called(d['against'])} (95 % interval {span})."


def _few(heldout: HeldOut) -> tuple[str, ...]:
    """The scores with the fewest shots, where learning across tasks should matter most."""
    methods, shots = heldout.get("methods", []), heldout.get("shots", [])
    if not methods or not shots:
        return ()
    i, metric = min(range(len(shots)), key=lambda i: shots[i]), heldout["metric"]
    parts = [
        f"{_said(m)} {score(m['mean'][i], metric)}"
        for m in methods
        if as_number(m["mean"][i]) is not None
    ]
    what = "accuracy" if metric == "accuracy" else "R²"
    return (f"With {plural(shots[i], 'shot')} the {what} is: {', '.join(parts)}.",) if parts else ()


def _behind(heldout: HeldOut) -> tuple[str, ...]:
    """Numbers of shots at which a baseline is clearly ahead, which an average would hide."""
    metric, lines = heldout["metric"], []
    differences = heldout.get("differences", [])
    said = {d["against"] for d in differences if d["shots"] is None and _side(d) == "worse"}
    for other in dict.fromkeys(d["against"] for d in differences if d["against"] not in said):
        ahead = [
            d
            for d in differences
            if d["against"] == other and d["shots"] is not None and _side(d) == "worse"
        ]
        if ahead:
            most = max(-(as_number(d["mean"]) or 0.0) for d in ahead)
            size = change(most, metric)[1:] + (" points" if metric == "accuracy" else "")
            *some, last = (str(d["shots"]) for d in ahead)
            shots = f"{', '.join(some)} and {last} shots" if some else plural(last, "shot")
            lines.append(
                f"But with {shots} {_called(other)} is ahead, by {size}{' at most' if len(ahead) > 1 else ''}."
            )
    return tuple(lines)


def _means(heldout: HeldOut) -> tuple[str, ...]:
    return (
        *_few(heldout),
        "The intervals below are of each method alone; without paired differences there is no verdict.",
    )


def _said(method: Any) -> str:
    return _called(str(method["name"]))
