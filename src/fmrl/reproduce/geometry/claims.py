"""What the parts say: rows of numbers with their ratio to the rule that learns no shape, and the
verdicts that follow from them.

A ratio is that of two means, and its interval the t interval of the residuals a − ratio·b, paired
by draw of the environment or by task. The thresholds were set before the study was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fmrl.reproduce.geometry import runs
from fmrl.reproduce.geometry.tasks import AXIS, CONTROL, ROTATED, WIKI
from fmrl.reproduce.parts import Part
from fmrl.reproduce.verdict import DRAWS, TASKS, Row, Rows, Verdict, compared, row, said, spanned

TAR, LATE, HELD, COST = "TAR", "late TAR", "held-out loss", "cost"  # what a row measures
HALF, QUARTER, FEW, LITTLE = 0.5, 0.25, 1.02, 1.05
CHEAP, DEAR = 1.3, 3.0
Found = dict[str, dict[str, Any]]  # by rule: "tar" and "late" [n], "held" {shots: [n]}


def base(rule: str) -> str:
    """The rule without a shape that this one is compared with."""
    return runs.BEST if rule.startswith("FTRL") else runs.SCALAR


def rows(parts: Iterable[tuple[Part, Any]]) -> list[Row]:
    """One row a measure, environment, rule and number of shots."""
    made: list[Row] = []
    draws: dict[tuple[str, int], list[Found]] = {}
    for part, result in parts:
        if part.work is runs.synthetic:
            draws.setdefault((part.arguments["kind"], part.arguments["rounds"]), []).append(result)
        elif part.work is runs.costs:
            made += _costs(result, part.arguments["dim"])
        else:
            made += _real(part, result)
    drawn = []
    for (kind, rounds), found in draws.items():
        about = {"kind": kind, "rounds": rounds}
        drawn += _compared(f"{kind}, {rounds} rounds", DRAWS, _together(found), about)
    return drawn + made


def _together(draws: list[Found]) -> Found:
    """Results of several draws as arrays over them."""
    return {
        rule: {
            "tar": [d[rule]["tar"] for d in draws],
            "late": [d[rule]["late"] for d in draws],
            "held": {k: [d[rule]["held"][k] for d in draws] for k in first["held"]},
            "strength": [d[rule]["strength"] for d in draws],
        }
        for rule, first in draws[0].items()
    }


def _real(part: Part, result: dict[str, Any]) -> list[Row]:
    """Rows of a set of tasks that exists once: late is after the first quarter of them."""
    about = {k: v for k, v in result.items() if not isinstance(v, dict)}
    late = about["tasks"] // 4
    found = {}
    for rule, r in result.items():
        if isinstance(r, dict):
            regret = r.get("regret")
            found[rule] = r | ({} if regret is None else {"tar": regret, "late": regret[late:]})
    kind = "Mini-Wiki" if part.work is runs.wiki else "real"
    within = WIKI if part.work is runs.wiki else part.arguments["name"]
    return _compared(within, TASKS, found, about | {"kind": kind})


def _compared(within: str, over: str, found: Found, about: dict[str, Any]) -> list[Row]:
    made = []

    def add(measure: str, rule: str, shots: int | None, values: Any, beside: Any) -> None:
        where = row(values, over, measure, within, rule, shots) | about
        where |= {"against": base(rule)} | compared(values, beside)
        made.append(where | ({"strength": strength} if rule == runs.BEST else {}))

    for rule, r in found.items():
        other, strength = found[base(rule)], r.get("strength")
        for measure, name in ((TAR, "tar"), (LATE, "late")):
            if name in r:
                add(measure, rule, None, r[name], other[name])
        for k, losses in r["held"].items():
            add(HELD, rule, int(k), losses, other["held"][k])
    return made


def _costs(took: dict[str, list[float]], dim: int) -> list[Row]:
    """Milliseconds a task; ratios are medians over repeats, with the quartiles."""
    made = []
    for rule, times in took.items():
        pairs = np.asarray(times) / np.asarray(took[runs.SCALAR])
        low, middle, high = np.quantile(pairs, [0.25, 0.5, 0.75])
        where = row(times, "95% t interval over repeats", COST, f"d = {dim}", rule, None)
        where |= {"kind": COST, "against": runs.SCALAR, "ratio": middle}
        made.append(where | {"ratio_low": low, "ratio_high": high})
    return made


def summary(rows: list[Row], measure: str = TAR) -> list[str]:
    """Where a learned shape loses, as sentences: the interval of its ratio lies above 1."""
    lines = []
    for rule in (*runs.SHAPES, runs.COVARIANCE, runs.PRIOR):
        here = [r for r in rows if (r["preset"], r["method"]) == (measure, rule)]
        if not here:
            continue
        wins = sum(r["ratio_high"] < 1 for r in here)
        lost: dict[str, list[str]] = {}
        for r in here:
            if r["ratio_low"] > 1:
                shots = f" at {r['shots']}" if r["shots"] else ""
                lost.setdefault(r["within"], []).append(f"{r['ratio']:.3f}{shots}")
        told = "; ".join(f"{within} ({', '.join(found)})" for within, found in lost.items())
        count = sum(map(len, lost.values()))
        name = f"{rule}, {measure} against {base(rule)}: wins {wins} of {len(here)}"
        lines.append(f"{name}, loses {count}" + (f": {told}" if told else ""))
    return lines


def judge(found: list[Row]) -> Iterator[Verdict]:
    """The claims about synthetic tasks and about costs; real data has no prior claim."""
    by = {measure: Rows(found, measure, "geometry") for measure in (TAR, LATE, COST)}
    many = max(r["rounds"] for r in found if "rounds" in r)
    few = min(r["rounds"] for r in found if "rounds" in r)

    def at(measure: str, kind: str, rounds: int, rule: str) -> Row:
        return by[measure].at(f"{kind}, {rounds} rounds", rule, None)

    def verdict(measure: str, name: str, claim: str, passed: bool, told: dict[str, Row]) -> Verdict:
        numbers = "; ".join(f"{k}: {said(spanned(r))}" for k, r in told.items())
        decided = "medians" if measure == COST else "means"
        return by[measure].verdict(name, "ours", claim, passed, numbers, decided)

    def most(told: dict[str, Row], limit: float) -> bool:
        return all(r["ratio"] <= limit for r in told.values())

    here = at(TAR, AXIS, many, runs.DIAGONAL)
    claim = f"{runs.DIAGONAL} has at most {HALF} of {runs.SCALAR}'s TAR where directions are axes"
    yield verdict(TAR, "diagonal.axis", claim, here["ratio"] <= HALF, {AXIS: here})
    for rule, tag in ((runs.FULL, "full"), (runs.LOW, "low-rank")):
        told = {kind: at(TAR, kind, many, rule) for kind in (AXIS, ROTATED)}
        claim = f"{rule} has at most {HALF} of {runs.SCALAR}'s TAR, also where they are rotated"
        yield verdict(TAR, f"{tag}.rotated", claim, most(told, HALF), told)
    here = at(TAR, ROTATED, many, runs.DIAGONAL)
    claim = f"{runs.DIAGONAL} does not reach {HALF} where directions are rotated"
    yield verdict(TAR, "diagonal.rotated", claim, here["ratio"] > HALF, {ROTATED: here})
    told = {kind: at(TAR, kind, many, runs.COVARIANCE) for kind in (AXIS, ROTATED)}
    known = {f"{k}, truth known": at(TAR, k, many, runs.TRUTH) for k in (AXIS, ROTATED)}
    claim = f"{runs.COVARIANCE}: at most {QUARTER} of the best isotropic strength in hindsight"
    yield verdict(TAR, "covariance", claim, most(told, QUARTER), told | known)
    told = {f"{s}, {k}": at(TAR, k, few, s) for k in (AXIS, ROTATED) for s in runs.SHAPES}
    claim = f"{few} rounds: no learned shape is worse than {runs.SCALAR} by more than 2 %"
    yield verdict(TAR, "few rounds", claim, most(told, FEW), told)
    told = {f"{s}, {m} rounds": at(LATE, CONTROL, m, s) for m in (many, few) for s in runs.SHAPES}
    claim = f"Nothing to learn: at most {LITTLE} of {runs.SCALAR} on late tasks of the control"
    yield verdict(LATE, "control", claim, most(told, LITTLE), told)
    told = {f"{m} rounds": at(LATE, CONTROL, m, runs.COVARIANCE) for m in (many, few)}
    claim = f"The same for {runs.COVARIANCE} against the best isotropic strength"
    yield verdict(LATE, "control.covariance", claim, most(told, LITTLE), told)
    for rule, limit in ((runs.DIAGONAL, CHEAP), (runs.FULL, DEAR)):
        here = next(r for r in by[COST].all if r["method"] == rule)
        claim = f"A task with {rule} costs at most {limit} times one with {runs.SCALAR}"
        name = f"cost.{rule}"
        yield verdict(COST, name, claim, here["ratio"] <= limit, {here["within"]: here})
