"""Verdicts on networks, from records whose answer is known."""

from pathlib import Path

from reproduction.deep import read

from fmrl.reproduce.deep.claims import LOGGED, OURS, Point, first, judge, level, reached, rises
from fmrl.reproduce.deep.settings import compare

from .records import TINY, made

RECORDS = Path(__file__).parents[2] / "results" / "deep"


def test_rules_of_the_verdicts():
    low = Point(0.90, 0.005, curve=[(1000, 0.8)])
    high = Point(0.95, 0.005, curve=[(1000, 0.85), (2000, 0.91)])
    near = Point(0.91, 0.005)
    assert rises([low, high]) and not rises([high, low]) and not rises([low, near])
    assert level([low, Point(0.91, 0.0)]) and not level([low, high])
    assert reached([low, high]) == 2000 and reached([high, low]) is None
    assert first([high, low, low]) and not first([high, low, Point(0.945, 0.005)])


def ours(record, *sweep):
    found = judge(record, "Mini-ImageNet", *sweep)
    return {v.id: v for v in found if v.preset == OURS}


def test_every_claim_is_judged_by_our_runs_and_by_the_log():
    found = judge({})
    mine, logged = found[::2], found[1::2]
    assert {v.preset for v in mine} == {OURS} and {v.preset for v in logged} == {LOGGED}
    assert [v.id for v in mine] == [v.id for v in logged] and len({v.id for v in mine}) == len(mine)
    assert all(v.passed is None for v in mine) and all(v.passed is not None for v in logged)
    below = [v for v in judge({}, "Mini-ImageNet") if "16 and 32" in v.claim and v.preset == LOGGED]
    assert [v.passed for v in below] == [False, True]  # so the paper shows 5 shots


def test_what_the_paper_says_of_mini_imagenet_can_hold_or_not():
    record = made("Mini-ImageNet", TINY, 8000, 16, 0)["runs"]
    told = ours(record)
    assert len(told) == 14 and told["m15.samples"].passed
    assert told["m15.samples"].claim == "15 training samples a class beat 5 training samples"
    record["m15_i8"]["final"]["transductive"]["accuracy"] = 0.3
    record["m15_i8"]["curve"] = [[4000, 0.2], [8000, 0.3]]
    now = ours(record)
    changed = {k for k, v in now.items() if v.passed != told[k].passed}
    assert {now[k].figure for k in changed} == {"5-way 1-shot"}
    assert {"m15.samples", "m15.steps"} <= changed
    sooner = now["m15.samples.sooner"]
    assert sooner.passed is False and sooner.numbers == "not reached"
    record["m15_i8"]["curve"] = [[4000, 0.2], [8000, 0.9]]  # at its end, so not before
    assert not ours(record)["m15.samples.sooner"].passed
    assert set(ours(record, "iterations")) < set(now)


def test_a_run_that_is_not_finished_decides_nothing():
    found = ours(made("Mini-ImageNet", TINY, 8000, 13, 1)["runs"])
    assert {v.passed for v in found.values() if "not finished" in v.numbers} == {None}
    assert found["m55.samples"].passed is None


def test_at_least_29_runs_within_and_none_invented():
    results = read(RECORDS)["omniglot-record"]["runs"]
    rows = compare(results)
    assert len(results) == 32 and sum(r["within"] for r in rows) >= 29
    # Unfinished runs are not counted.
    assert len(rows) == sum("final" in r for r in results.values())
