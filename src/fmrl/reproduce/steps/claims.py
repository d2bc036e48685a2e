"""Verdicts on learned steps: the order that ARUBA's table prints, and what the start and the step
are worth apart. Decided from rows alone.

A method is ahead of another when the mean over seeds is, by more than two standard errors of the
difference, and so is every seed. The table is of Khodak, Balcan, Talwalkar, NeurIPS 2019,
transductive; its pictures are those of Mini-ImageNet, where ours are of Tiny ImageNet-100, and its
trainings are longer than ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fmrl.reproduce import verdict
from fmrl.reproduce.deep.settings import FEWEST
from fmrl.reproduce.steps.methods import (
    ADAM,
    ARUBA,
    BOTH,
    DISTANCE,
    FIXED,
    META,
    METHODS,
    NEITHER,
    ONE,
    PLUS,
    START,
    STEP,
    THEORY,
)  # fmt: skip
from fmrl.reproduce.verdict import Row, Verdict

CLEAR = 0.005  # a printed difference that counts as one
# In percent, by setting: Omniglot 20-way 1-shot and 5-shot, Mini-ImageNet 5-way 1-shot and 5-shot.
PRINTED = {
    "o120_i10": {ADAM: 89.4, ARUBA: 86.7, PLUS: 89.7, META: 95.9},
    "o520_i10": {ADAM: 97.1, ARUBA: 96.6, PLUS: 97.5, META: 99.0},
    "m15_i8": {ADAM: 50.0, ARUBA: 50.7, PLUS: 50.4, META: 50.5},
    "m55_i8": {ADAM: 66.0, ARUBA: 65.7, PLUS: 65.9, META: 64.0},
}
COMPARED = ((PLUS, ADAM), (PLUS, ARUBA), (ARUBA, ADAM), (META, PLUS))
TRANSDUCTIVE, INDUCTIVE = "transductive", "inductive"


@dataclass(frozen=True)
class Point(verdict.Point):
    """Accuracy of one method in one setting: mean over seeds, and each seed's."""

    seeds: tuple[float, ...]

    def ahead(self, other: Point) -> bool:
        pairs = zip(self.seeds, other.seeds, strict=True)
        return self.above(other) and all(a > b for a, b in pairs)


Points = dict[tuple[str, str], Point]


def points(rows: Sequence[Row], run: str, protocol: str) -> Points:
    """By method and by what of it was learned."""
    held: dict[tuple[str, str], list[Row]] = {}
    for r in rows:
        if r["run"] == run and r["protocol"] == protocol:
            held.setdefault((r["method"], r["learned"]), []).append(r)
    found = {}
    for key, same in held.items():
        same = sorted(same, key=lambda r: r["seed"])
        seeds = tuple(r["accuracy"] for r in same)
        error = math.sqrt(sum(r["error"] ** 2 for r in same)) / len(same)
        tasks = sum(r["tasks"] for r in same)
        found[key] = Point(sum(seeds) / len(seeds), error, tasks, seeds)
    return found


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """Verdicts on every setting of which there are rows."""
    found = []
    for run, title in dict.fromkeys((r["run"], r["setting"]) for r in rows):
        judged = points(rows, run, TRANSDUCTIVE)
        few = min(p.tasks for p in judged.values()) < FEWEST
        claims = [*_printed(run, judged), *_apart(judged), *_orders(judged, rows, run)]
        for tag, source, claim, passed, numbers in claims:
            passed, told = (
                (None, f"{numbers}; too few tasks to judge") if few else (passed, numbers)
            )
            where = f"{run}.{tag}", title, TRANSDUCTIVE, source
            found.append(Verdict(*where, claim, passed, told, by="standard errors"))
    return found


Claims = Iterator[tuple[str, str, str, bool | None, str]]  # tag, source, claim, passed, numbers


def _numbers(*both: Point) -> str:
    return " and ".join(f"{100 * p.accuracy:.1f} ± {196 * p.error:.1f}" for p in both)


def _printed(run: str, judged: Points) -> Claims:
    """The printed numbers, and the printed order."""
    printed = PRINTED.get(run, {})
    stand_in = run.startswith("m")
    for method, value in printed.items():
        if stand_in or (method, BOTH) not in judged:
            continue  # of another data set
        mine = judged[method, BOTH]
        near = abs(mine.accuracy - value / 100) <= max(verdict.LEVEL, 2 * mine.error)
        yield f"value.{method}", "printed", f"{method} has {value}", near, _numbers(mine)
    for a, b in COMPARED:
        if a not in printed or not {(a, BOTH), (b, BOTH)} <= judged.keys():
            continue
        one, other, gap = judged[a, BOTH], judged[b, BOTH], (printed[a] - printed[b]) / 100
        if abs(gap) < CLEAR:
            claim, passed = f"{a} and {b} are level", one.level(other)
        else:
            (x, first), (y, second) = ((a, one), (b, other))[:: 1 if gap > 0 else -1]
            claim, passed = f"{x} is ahead of {y}", first.ahead(second)
        claim += f" (printed {printed[a]} and {printed[b]}{', Mini-ImageNet' * stand_in})"
        yield f"order.{a}.{b}", "printed", claim, passed, _numbers(one, other)


def _apart(judged: Points) -> Claims:
    """What the start and the step are worth by themselves."""
    asked = [
        ("start", "a learned start helps without a learned step", (FIXED, START), (FIXED, NEITHER)),
        ("step", "ARUBA's step helps without a learned start", (ARUBA, STEP), (FIXED, NEITHER)),
        ("both", "ARUBA's step helps from ARUBA's start", (ARUBA, BOTH), (ARUBA, START)),
        ("order", "a learned start is worth more than ARUBA's step", (FIXED, START), (ARUBA, STEP)),
        ("fixed", "ARUBA is ahead of Reptile with one fixed step", (ARUBA, BOTH), (FIXED, START)),
        ("each", "a step for every parameter is ahead of one for all", (ARUBA, BOTH), (ONE, BOTH)),
        ("theory", "D/(G√m) with observed gradients is ahead of one fixed step", (THEORY, BOTH),
         (FIXED, START)),
        ("fade", "ARUBA++'s step helps without a learned start", (PLUS, STEP), (FIXED, NEITHER)),
        ("meta", "Meta-SGD's step helps from its own start", (META, BOTH), (META, START)),
        ("dog", "the learned D helps DoG", (DISTANCE, BOTH), (DISTANCE, START)),
        ("moments", "Adam's carried moments help from its start", (ADAM, BOTH), (ADAM, START)),
    ]  # fmt: skip
    for tag, claim, a, b in asked:
        if a in judged and b in judged:
            one, other = judged[a], judged[b]
            yield f"apart.{tag}", "ours", claim, one.ahead(other), _numbers(one, other)


def _orders(judged: Points, rows: Sequence[Row], run: str) -> Claims:
    """Whether no step had to be chosen, and whether the other protocol agrees."""
    if {(DISTANCE, BOTH), (ADAM, BOTH)} <= judged.keys():
        one, other = judged[DISTANCE, BOTH], judged[ADAM, BOTH]
        passed = one.level(other) or one.ahead(other)
        claim = "DoG from D, which has no step to choose, is level with Reptile + Adam or ahead"
        yield "dog.adam", "ours", claim, passed, _numbers(one, other)
    alone = points(rows, run, INDUCTIVE)
    names = [m for m, pair in judged if pair == BOTH and (m, BOTH) in alone]
    if len(names) > 1:
        first = max(names, key=lambda m: judged[m, BOTH].accuracy)
        best = max(names, key=lambda m: alone[m, BOTH].accuracy)
        passed = not alone[best, BOTH].ahead(alone[first, BOTH])
        numbers = f"inductive: {_numbers(alone[first, BOTH], alone[best, BOTH])} ({best})"
        claim = f"{first}, the best transductive, is not behind another in the inductive protocol"
        yield "protocol", "ours", claim, passed, numbers


def table(rows: Sequence[Row], protocol: str) -> list[list[str]]:
    """Lines of accuracies in percent: method and what was learned, then one cell a setting."""
    settings = list(dict.fromkeys(r["run"] for r in rows))
    each = {run: points(rows, run, protocol) for run in settings}
    order = [name for m in METHODS for name in ((m, PLUS) if m == ARUBA else (m,))]
    pairs = (BOTH, START, STEP, NEITHER)
    keys = {key for found in each.values() for key in found}
    keys = sorted(keys, key=lambda key: (order.index(key[0]), pairs.index(key[1])))
    cells = []
    for method, pair in keys:
        line = [method, pair]
        for run in settings:
            p = each[run].get((method, pair))
            said = "–" if p is None else f"{100 * p.accuracy:.1f} ± {196 * p.error:.1f}"
            value = PRINTED.get(run, {}).get(method) if pair == BOTH else None
            shown = value is not None and protocol == TRANSDUCTIVE and not run.startswith("m")
            line.append(f"{said} ({value})" if shown else said)
        cells.append(line)
    return cells
