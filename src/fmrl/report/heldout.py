"""The comparison on held-out tasks: from scores to facts, and the section of the page that shows
them, with what stands beside the scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fmrl.errors import FMRLError
from fmrl.records import plain
from fmrl.report.facts import CHECKS, METRICS, Facts, HeldOut
from fmrl.report.html import as_number, change, count, escape, figure, name, score, table
from fmrl.stats import LEVEL, mean_interval
from fmrl.theory.bounds.bound import numbers


def held_out(
    scores: Mapping[str, Any],
    shots: Sequence[int],
    metric: Literal["log_loss", "r2", "accuracy"],
    level: float = LEVEL,
    weight: Any = None,
) -> HeldOut:
    """Means over held-out tasks with Student intervals, and what the first method (FMRL) gains on
    each other one, paired by task.

    Args:
        scores: By method, [tasks, shots]; NaN where a task has too few rows, or a method no answer.
        shots: What the columns are.
        metric: What the scores are.
        level: Of the intervals.
        weight: Of every task, [tasks]: its rows, for the mean over all rows (default: all alike).

    Returns:
        What `HeldOut` describes. A gain is positive where FMRL is better, also for log-loss. That
        with shots None is of the tasks' own means over all shots they have, one number for the
        whole comparison.

    >>> scores = {"FMRL": [[0.8], [0.9], [0.7]], "pooled": [[0.6], [0.8], [0.5]]}
    >>> d = held_out(scores, [4], "accuracy")["differences"][0]
    >>> d["against"], round(d["mean"], 3), round(d["low"], 3), round(d["high"], 3)
    ('pooled', 0.167, 0.023, 0.31)
    """
    table = {key: numbers(value).reshape(-1, len(shots)) for key, value in scores.items()}
    ours, *others = table
    if len({value.shape for value in table.values()}) > 1:
        fix = "score every method on the same held-out tasks"
        raise FMRLError("the methods were scored on different tasks", fix=fix)
    weight = np.ones(len(table[ours])) if weight is None else numbers(weight)
    methods = []
    for key, value in table.items():
        ends = np.array([_interval(column, weight, level) for column in value.T]).T
        # A mean of accuracies or losses is one; Student's interval may reach beyond.
        if metric != "r2":
            ends = np.clip(ends, 0.0, 1.0 if metric == "accuracy" else np.inf)
        found = dict(zip(("mean", "low", "high"), ends, strict=True))
        methods.append({"name": key, **found, "tasks": (~np.isnan(value)).sum(axis=0)})
    differences = []
    for other in others:
        gain = (table[ours] - table[other]) * (-1.0 if metric == "log_loss" else 1.0)
        there = ~np.isnan(gain)
        some = there.any(axis=1)
        whole = np.where(there, gain, 0.0).sum(axis=1)[some] / there.sum(axis=1)[some]
        for when, column in [(None, whole), *zip(shots, gain.T, strict=True)]:
            own = weight[some] if when is None else weight
            found = dict(zip(("mean", "low", "high"), _interval(column, own, level), strict=True))
            tasks = np.count_nonzero(~np.isnan(column))
            differences.append({"against": other, "shots": when, **found, "tasks": tasks})
    found = {"metric": metric, "shots": list(shots), "methods": methods, "differences": differences}
    return plain({**found, "tasks": len(table[ours])})


def _interval(column: np.ndarray, weight: np.ndarray, level: float) -> tuple[float, float, float]:
    """Weighted mean and interval of what is not NaN; a single value has no interval."""
    there = ~np.isnan(column)
    column, weight = column[there], weight[there]
    if column.size < 2:
        return (float(column[0]) if column.size else np.nan), np.nan, np.nan
    # To first order a ratio of two sums over tasks varies as the mean of these does.
    mean = np.average(column, weights=weight)
    found = mean_interval(mean + weight / weight.mean() * (column - mean), level)
    return found.mean, found.low, found.high


def heldout(facts: Facts) -> str:
    """Held-out score against shots, and the table of it."""
    found = facts["heldout"]
    metric, methods = found["metric"], found["methods"]
    gains = {(d["against"], d["shots"]): d for d in found.get("differences", [])}
    others = list(dict.fromkeys(against for against, _ in gains))
    head = ["shots", "tasks", *(name(m["name"]) for m in methods)]
    head += [f"gain over {name(other)}" for other in others]
    rows = []
    for i, shots in enumerate([*found["shots"], None]):
        row = ["all" if shots is None else count(shots), tasks_scored(found, i)]
        row += ["" if shots is None else _mean(m, i, metric) for m in methods]
        for d in (gains.get((other, shots)) for other in others):
            ends = () if d is None else (d["mean"], d["low"], d["high"])
            row.append(_with_span(*ends, change, metric) if ends else "")
        if shots is not None or any(row[2:]):
            rows.append(row)
    what = METRICS[metric]
    unit = "percentage points" if metric == "accuracy" else what
    better = " Lower is better." if metric == "log_loss" else ""
    note = f"{what[0].upper()}{what[1:]} of held-out tasks with 95 % intervals.{better} "
    note += f"Gains are paired by task, in {unit}, above 0 where {name(methods[0]['name'])} is "
    note += "better; “all” is each task's mean over its shots."
    nothing = "0 shots, before any row of a task is known, are in the table."
    drawn = figure("heldout", f"Held-out {what} against shots", nothing * (0 in found["shots"]))
    said = f'<p class="quiet">{escape(found["protocol"], 500)}.</p>' if "protocol" in found else ""
    return drawn + table(head, rows, range(1, len(head)), note) + _checks(found) + said


def tasks_scored(found: Any, i: int) -> str:
    """How many tasks are behind a row of the table."""
    if i == len(found["shots"]):
        return count(found["tasks"]) if "tasks" in found else ""
    listed = [m["tasks"][i] for m in found["methods"] if "tasks" in m]
    return count(listed[0]) if listed else ""


def _checks(found: Any) -> str:
    """What stands beside the scores: accuracy and calibration, or coverage and width."""
    checks = found.get("checks", ())
    if not checks:
        return ""
    kinds = list(dict.fromkeys(c["what"] for c in checks))
    if len({c["method"] for c in checks}) == 1:
        return _check_table(
            found, checks, [CHECKS.get(c["what"], c["what"]) for c in checks], kinds
        )
    made = ""
    for what in kinds:  # a table each: one of all would be too wide
        some = [c for c in checks if c["what"] == what]
        made += _check_table(found, some, [c["method"] for c in some], [what])
    return made


def _check_table(found: Any, checks: Any, heads: Any, kinds: list[str]) -> str:
    head = ["shots", "tasks", *map(name, heads)]
    rows = [
        [count(shots), tasks_scored(found, i), *(score(c["mean"][i], c["what"]) for c in checks)]
        for i, shots in enumerate(found["shots"])
    ]
    notes = {
        "accuracy": "Accuracy: the share of rows whose likeliest class is the right one.",
        "calibration": "Calibration error: how far a probability is from the share of rows that "
        "come true, over ten bins of all rows scored on.",
        "coverage": "Intervals are made to cover 90 % of the rows of new tasks; their width is in "
        "the units of the target.",
    }
    said = " ".join(text for what, text in notes.items() if what in kinds)
    return table(head, rows, range(1, len(head)), said)


def _mean(method: Any, i: int, metric: str) -> str:
    low, high = (method[end][i] if end in method else None for end in ("low", "high"))
    return _with_span(method["mean"][i], low, high, score, metric)


def _with_span(value: Any, low: Any, high: Any, shown: Any, metric: str) -> str:
    span = f" <small>{shown(low, metric)} to {shown(high, metric)}</small>"
    return shown(value, metric) + ("" if as_number(low) is None else span)
