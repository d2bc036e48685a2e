"""Did it help? One function says so in plain words, from what was measured on held-out tasks and
from what is proved.

What was measured decides. It is one paired comparison with each baseline: every held-out task's
mean over all its shots. With the 95 % interval of the gain, FMRL is the same if the interval lies
within 0.01 of 0, better if it lies above 0, worse if below, else unclear. What is proved is about
the worst case, and is said to be: it never turns the answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fmrl.report.facts import METRICS, Difference, HeldOut, called
from fmrl.report.html import as_number, change, count, plural, score

MATTERS = 0.01  # a gain that a reader would act on: of log-loss, of R², or a point of accuracy
UNMEASURED = "Whether meta-learning helps on this data has not been measured."


class Verdict(NamedTuple):
    """What the page says first."""

    answer: str  # a short sentence
    tone: str  # "yes", "no", "mixed" or "unknown"
    reasons: tuple[str, ...]  # sentences, most important first


def verdict(heldout: HeldOut | None, worth: dict[str, Any] | None = None) -> Verdict:
    """Answer, tone and reasons.

    Args:
        heldout: What was measured; None if nothing was.
        worth: What is proved, as `fmrl.report.facts.SimilarityMap` has it.

    >>> whole = {"against": "pooled", "shots": None, "mean": 0.05, "low": 0.02, "high": 0.08}
    >>> found = verdict({"metric": "log_loss", "shots": [1], "methods": [],
    ...                  "differences": [whole], "tasks": 40})
    >>> found.answer
    'Yes: meta-learning helped on these tasks.'
    >>> print(*found.reasons[0].partition(" (")[0].split(", "), sep="\\n")
    On 40 held-out tasks
    averaged over all shots
    the log-loss of FMRL is 0.050 lower than that of one pooled model
    """
    if heldout is None:
        return Verdict(UNMEASURED, "unknown", tuple(proved(worth, "unknown")))
    overall = {d["against"]: d for d in heldout.get("differences", []) if d.get("shots") is None}
    found = {against: side(d) for against, d in overall.items()}
    if not found or "unknown" in found.values():
        answer = "The held-out comparison does not say whether meta-learning helped."
        why = "The intervals below are of each method alone; without paired differences there is no"
        reasons = *_fewest_shots(heldout), f"{why} verdict.", *proved(worth, "unknown")
        return Verdict(answer, "unknown", reasons)
    found |= {a: "some" for a, s in found.items() if s == "unclear" and _ahead(heldout, a)}
    ahead = {a: _ahead(heldout, a) for a, s in found.items() if s == "some"}
    answer, tone = _answer(found, _ours(heldout), ahead)
    reasons = [_reason(heldout, d, first=i == 0) for i, d in enumerate(overall.values())]
    reasons += [*_fewest_shots(heldout), *_behind(heldout), *proved(worth, tone)]
    return Verdict(answer, tone, tuple(reasons))


def _answer(found: dict[str, str], ours: str, ahead: dict[str, str]) -> tuple[str, str]:
    better, worse, same, unclear = (
        " and ".join(called(a) for a, s in found.items() if s == side)
        for side in ("better", "worse", "same", "unclear")
    )
    if worse and better:
        return f"Partly: better than {better}, worse than {worse}.", "mixed"
    if worse:
        return f"No: {worse} did better on these tasks.", "no"
    some = [f"better than {called(a)} only with {shots}" for a, shots in ahead.items()]
    if better and not same and not unclear and not some:
        return "Yes: meta-learning helped on these tasks.", "yes"
    if better or some:
        rest = some + [f"{same} did as well"] * bool(same)
        rest += [f"no clear difference from {unclear}"] * bool(unclear)
        answer = "; ".join(filter(None, (better and f"against {better}", ", ".join(rest))))
        return f"Yes, {answer}.", "mixed"
    if unclear:
        both = " and ".join(filter(None, (unclear, same)))
        return f"No clear difference between {ours} and {both}.", "mixed"
    return f"No: {same} did as well on these tasks.", "no"


def _ours(heldout: HeldOut) -> str:
    methods = heldout.get("methods") or [{"name": "FMRL"}]
    return str(methods[0]["name"])


def side(d: Difference) -> str:
    """better, worse, same, unclear or unknown: where the interval of the gain lies."""
    low, high = as_number(d["low"]), as_number(d["high"])
    if low is None or high is None:
        return "unknown"
    if low > -MATTERS and high < MATTERS:
        return "same"
    return "better" if low > 0 else "worse" if high < 0 else "unclear"


def _reason(heldout: HeldOut, d: Difference, first: bool) -> str:
    metric, gain = heldout["metric"], as_number(d["mean"]) or 0.0
    size, ours = change(abs(gain), metric)[1:], _ours(heldout)
    up = "higher" if (gain >= 0) != (metric == "log_loss") else "lower"
    how = f"the {METRICS[metric]} of {ours} is {size} {up} than that of"
    if metric == "accuracy":
        how = f"{ours} is {size} points {'more' if gain >= 0 else 'less'} accurate than"
    tasks = plural(d.get("tasks", heldout.get("tasks")), "held-out task")
    where = f"On {tasks}, averaged over all shots, " if first else "Likewise "
    span = f"{change(d['low'], metric)} to {change(d['high'], metric)}"
    return f"{where}{how} {called(d['against'])} (95\xa0% interval of the gain {span})."


def _fewest_shots(heldout: HeldOut) -> list[str]:
    """The scores with the fewest shots, where learning across tasks should matter most."""
    shots, metric = heldout.get("shots", []), heldout["metric"]
    if not shots:
        return []
    i = shots.index(min([k for k in shots if k] or shots))
    means = {called(str(m["name"])): m["mean"][i] for m in heldout.get("methods", [])}
    parts = [f"{m} {score(v, metric)}" for m, v in means.items() if as_number(v) is not None]
    said = f"With {plural(shots[i], 'shot')} the {METRICS[metric]} is: {', '.join(parts)}."
    return [said] if parts else []


def _ahead(heldout: HeldOut, against: str) -> str:
    """At which numbers of shots FMRL is clearly better than a baseline, which an average over all
    may hide; nothing where it is worse at others, or better at one alone, which may be chance.
    """
    sides = {d["shots"]: side(d) for d in heldout["differences"] if d["against"] == against}
    better = [k for k in sides if sides[k] == "better"]
    return "" if "worse" in sides.values() or len(better) < 2 else _listed(better)


def _listed(shots: list[int | None]) -> str:
    *some, last = [*map(str, shots)] or [""]
    return f"{', '.join(some)} and {last} shots" if some else last and plural(int(last), "shot")


def _behind(heldout: HeldOut) -> list[str]:
    """Numbers of shots at which a baseline is clearly ahead, which an average would hide."""
    metric, lines = heldout["metric"], []
    worse = [d for d in heldout.get("differences", []) if side(d) == "worse"]
    said = {d["against"] for d in worse if d["shots"] is None}
    for other in dict.fromkeys(d["against"] for d in worse if d["against"] not in said):
        ahead = [d for d in worse if d["against"] == other]
        most = max(-(as_number(d["mean"]) or 0.0) for d in ahead)
        size = change(most, metric)[1:] + (" points" if metric == "accuracy" else "")
        at_most = " at most" * (len(ahead) > 1)
        shots = _listed([d["shots"] for d in ahead])
        lines.append(f"But with {shots} {called(other)} is ahead, by {size}{at_most}.")
    return lines


def proved(worth: dict[str, Any] | None, tone: str) -> list[str]:
    """What the bounds say, in relation to what was measured: they are about the worst case."""
    eventually = as_number((worth or {}).get("eventually"))
    if worth is None or eventually is None:
        return []
    share = f"{100 * eventually:.0f}\xa0% of that of learning each task alone"
    if eventually > 0.95:
        said = f"What is proved is no better: the bound on regret stays at {share}"
        but = ", because the tasks' best models lie far apart. Scores can be better than a bound."
        return [said + (but if tone in ("yes", "mixed") else but.partition(" Scores")[0])]
    said = f"What is proved: the bound on regret comes down to {share} with more tasks like these"
    after, tasks = worth.get("pays_after"), count(worth.get("tasks"))
    if after:
        said += f"; on these {tasks} tasks it is lower in sum from task {count(after)} on."
    else:
        so_far = as_number(worth.get("so_far")) or 1.0
        said += f"; on these {tasks} tasks, learning included, it is at {100 * so_far:.0f}\xa0%."
    if tone == "no":
        said += " That is a promise for the worst case, not a score."
    return [said]
