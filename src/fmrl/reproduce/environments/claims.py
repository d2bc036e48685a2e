"""What the parts say: rows of numbers with their ratio to the best rule in hindsight and to
`FollowLeader`, and the verdicts that follow from them.

The best in hindsight is the rule, of all that are played and all their settings, with the least
mean in that measure and environment; it is not told anything that rules are not told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fmrl.reproduce.environments import runs, tasks
from fmrl.reproduce.parts import Part
from fmrl.reproduce.verdict import (
    DRAWS,
    TASKS,
    Row,
    Rows,
    Verdict,
    compared,
    ratio,
    row,
    said,
    spanned,
)

TAR, HELD, RECOVERY, WAY = "TAR", "held-out loss", "recovery", "way to the known cluster"
SHUFFLED = "TAR, shuffled"
ALIKE, WORSE, NEAR, HEDGED, RECOVERED, HALF, WAYS = 1.005, 1.01, 1.03, 1.05, 1.1, 0.5, 2 / 3
Found = dict[str, dict[str, Any]]  # by rule: "tar" [n], "held" {shots: [n]}


def rows(parts: Iterable[tuple[Part, Any]]) -> list[Row]:
    """One row a measure, environment, rule and number of shots."""
    made: list[Row] = []
    draws: dict[str, list[Found]] = {}
    for part, result in parts:
        if part.work is runs.synthetic:
            draws.setdefault(part.arguments["kind"], []).append(result)
            continue
        measure = TAR if part.arguments.get("shuffled") is None else SHUFFLED
        tars = {rule: r["regret"] for rule, r in result.items()}
        name, real = part.arguments["name"], {"kind": "real"}
        made += _compared(measure, name, None, tars, TASKS, real)
        for k in result[runs.LEADER]["held"]:
            values = {rule: r["held"][k] for rule, r in result.items()}
            made += _compared(HELD, name, int(k), values, TASKS, real)
    drawn = [r for kind, found in draws.items() for r in _drawn(kind, found)]
    return drawn + made


def _drawn(kind: str, draws: list[Found]) -> Iterator[Row]:
    """Rows of an environment that was drawn several times."""

    def values(*names: str) -> dict[str, list[float]]:
        found = {}
        for rule in draws[0]:
            found[rule] = [d[rule][names[0]] for d in draws]
            for name in names[1:]:
                found[rule] = [v[name] for v in found[rule]]
        return found

    yield from _compared(TAR, kind, None, values("tar"), DRAWS, {"kind": kind})
    for k in draws[0][runs.LEADER]["held"]:
        held = values("held", k)
        yield from _compared(HELD, kind, int(k), held, DRAWS, {"kind": kind})
        for rule in (runs.TWO_CENTRES, runs.FIVE_CENTRES) if kind in tasks.CLUSTERS else ():
            one, known, own = (np.array(held[r]) for r in (runs.LEADER, runs.KNOWN, rule))
            way = (one - own) / (one - known)
            yield row(way, DRAWS, WAY, kind, rule, int(k)) | {"kind": kind}
    if kind == tasks.SWITCH:
        before, after = values("before"), values("after")
        for rule in before:
            found = {"kind": kind, "against": "before the switch"}
            found |= compared(after[rule], before[rule])
            yield row(after[rule], DRAWS, RECOVERY, kind, rule, None) | found


def _compared(
    measure: str, within: str, shots: int | None, values: Any, over: str, about: dict[str, Any]
) -> Iterator[Row]:
    rules = [rule for rule in values if rule != runs.KNOWN]
    best = min(rules, key=lambda rule: float(np.mean(values[rule])))
    for rule, own in values.items():
        made = row(own, over, measure, within, rule, shots) | about | {"against": best}
        for name, other in (("", best), ("leader_", runs.LEADER)):
            made |= compared(own, values[other], name)
        yield made | ({"values": list(own)} if over == DRAWS else {})


def summary(rows: list[Row], measure: str = TAR) -> list[str]:
    """What choosing each rule without knowing the environment costs, as sentences."""
    lines = []
    for rule in runs.RULES:
        here = [r for r in rows if (r["preset"], r["method"]) == (measure, rule)]
        if not here:
            continue
        worst = max(here, key=lambda r: r["ratio"])
        near = sum(r["ratio"] <= HEDGED for r in here)
        shots = f" at {worst['shots']} rows" if worst["shots"] else ""
        text = f"{rule}, {measure}: within 5 % of the best rule in hindsight in {near} of "
        text += f"{len(here)}; at worst {worst['ratio']:.2f} times it, {worst['within']}{shots}"
        lines.append(text)
    return lines


def judge(found: list[Row]) -> Iterator[Verdict]:
    """The claims about synthetic environments, and on real streams against `FollowLeader`."""
    by = {m: Rows(found, m, "environments") for m in (TAR, HELD, RECOVERY, WAY, SHUFFLED)}

    def verdict(measure: str, name: str, claim: str, passed: bool, told: dict[str, Any]) -> Verdict:
        numbers = "; ".join(f"{k}: {said(r)}" for k, r in told.items())
        return by[measure].verdict(name, "ours", claim, passed, numbers)

    def against(rule: str, other: str, kinds: Iterable[str], measure: str) -> dict[str, Any]:
        """Ratios of one rule to another, by environment and shots."""
        told = {}
        for kind in kinds:
            for k in by[measure].shots or [None]:
                a, b = (by[measure].at(kind, r, k)["values"] for r in (rule, other))
                told[f"{kind}, {k} rows" if k else kind] = ratio(a, b)
        return told

    def best(names: Iterable[str], kind: str, measure: str) -> str:
        """The one of some rules with the least mean over all numbers of shots."""
        shots = by[measure].shots or [None]
        return min(names, key=lambda n: sum(by[measure].mean(kind, n, k) for k in shots))

    def most(told: dict[str, Any], limit: float) -> bool:
        return all(r[0] <= limit for r in told.values())

    for rule in (runs.MIXTURE, runs.SHARED, runs.HEDGE):
        told = against(rule, runs.LEADER, [tasks.STILL], HELD)
        claim = f"{rule}: at most {ALIKE} of {runs.LEADER}'s loss where nothing moves"
        yield verdict(HELD, f"stationary.{rule}", claim, most(told, ALIKE), told)
    for rule in (runs.SHARED, runs.HEDGE):
        for kind in (tasks.DRIFT, tasks.FAST):
            window = best(runs.WINDOWS, kind, HELD)
            told = against(rule, window, [kind], HELD)
            claim = f"{rule}: at most {NEAR} of the best window in hindsight ({window}), {kind}"
            yield verdict(HELD, f"{kind}.{rule}", claim, most(told, NEAR), told)
    for rule in (runs.DISCOUNTED, runs.WINDOW, runs.SHARED, runs.HEDGE):
        here = by[RECOVERY].at(tasks.SWITCH, rule, None)
        claim = f"{rule}: 100 tasks after a switch at most {RECOVERED} of the regret before it"
        passed = here["ratio"] <= RECOVERED
        yield verdict(RECOVERY, f"switch.{rule}", claim, passed, {tasks.SWITCH: spanned(here)})
    here = by[RECOVERY].at(tasks.SWITCH, runs.LEADER, None)
    claim = f"{runs.LEADER} does not recover from a switch within 100 tasks"
    passed = here["ratio"] > RECOVERED
    yield verdict(RECOVERY, "switch.control", claim, passed, {tasks.SWITCH: spanned(here)})
    for kind, rule in ((tasks.TWO, runs.TWO_CENTRES), (tasks.FIVE, runs.FIVE_CENTRES)):
        ways = {f"{k} rows": by[WAY].at(kind, rule, k) for k in by[WAY].shots}
        told = {k: (r["mean"], r["low"], r["high"]) for k, r in ways.items()}
        claim = f"{rule}: at least two thirds of the way from one phi to the known cluster, {kind}"
        yield verdict(WAY, kind, claim, all(r[0] >= WAYS for r in told.values()), told)
    told = against(runs.CONDITIONAL, runs.LEADER, [tasks.SIDE], TAR)
    claim = f"{runs.CONDITIONAL} has at most {HALF} of {runs.LEADER}'s TAR with side information"
    yield verdict(TAR, "side", claim, most(told, HALF), told)
    told = {tasks.PERIODIC: spanned(by[TAR].at(tasks.PERIODIC, runs.SHARED, None))}
    claim = f"{runs.SHARED}: at most {RECOVERED} of the best rule in hindsight, {tasks.PERIODIC}"
    yield verdict(TAR, "periodic", claim, most(told, RECOVERED), told)
    told = {}
    for kind in dict.fromkeys(r["within"] for r in by[TAR].all if "values" in r):
        told |= against(runs.HEDGE, best(runs.MIXED, kind, TAR), [kind], TAR)
    claim = f"{runs.HEDGE} has at most {HEDGED} of the TAR of the best of its rules, everywhere"
    yield verdict(TAR, "hedge", claim, most(told, HEDGED), told)
    for rule in (runs.SHARED, runs.HEDGE) if any(r["kind"] == "real" for r in found) else ():
        for measure in (TAR, SHUFFLED, HELD):
            here = [r for r in by[measure].all if (r["kind"], r["method"]) == ("real", rule)]
            told = {_place(r): spanned(r, "leader_") for r in here}
            claim = f"Real streams, {rule}: never above {WORSE} of {runs.LEADER}"
            passed = most(told, WORSE)
            if measure != SHUFFLED:
                claim += ", and surely below it somewhere"
                passed = passed and any(high < 1 for *_, high in told.values())
            yield verdict(measure, f"real.{rule}", claim, passed, told)


def _place(r: Row) -> str:
    return f"{r['within']}, {r['shots']} rows" if r["shots"] else r["within"]
