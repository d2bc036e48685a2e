"""Verdicts on made-up rows, where the answer is known."""

import numpy as np
import pytest

from fmrl.reproduce.convex import batch, panels
from fmrl.reproduce.convex.claims import ORIGINAL_RADIUS, judge
from fmrl.reproduce.convex.compositions import BLOCKED, EXACT, SUMMED, TABLE, curves
from fmrl.reproduce.verdict import Rows, listed

SHOTS = (1, 2, 4, 8)
LEVEL = {"FAL": 1.0, "FLI-Online": 1.2, "FLI-Batch": 1.3, "strawman": 1.5}
LEVEL |= {"single-task": 4.0, "omniscient": 0.5}


def row(preset, within, method, shots, mean, **more):
    """A row whose three values lie closely around its mean."""
    where = {"preset": preset, "within": within, "method": method, "shots": shots, "mean": mean}
    spread = {"low": mean, "high": mean, "n": 3, "values": [mean - 0.01, mean, mean + 0.01]}
    return where | spread | more


def sample_rows(change=lambda within, method, m, value: value):
    rows = []
    for c in TABLE:
        for m in SHOTS:
            value = change(c.within, c.method, m, LEVEL.get(c.method, 1.0) * m**0.5)
            if c.method == "strawman":
                value += 0.3 / m
            if c.method.startswith("FLI"):
                value += 1 / m
            rows.append(row("paper", c.within, c.method, m, value, bound=20.0 * m))
    return rows


def verdicts(figure, rows):
    return {v.id: v.passed for v in judge(figure, rows)}


def test_all_hold():
    assert all(verdicts("samples", sample_rows()).values())


@pytest.mark.parametrize(
    ("panel", "method", "at", "value", "fails"),
    [
        ("FTRL", "FAL", 4, 9.0, {"samples.ftrl.strawman", "samples.ftrl.single-task"}),
        ("OGD", "strawman", 8, 0.1, {"samples.ogd.strawman"}),
        ("FTRL", "strawman", 8, 11.0, {"samples.ftrl.advantage"}),
        ("OGD", "FLI-Batch", 8, 10.0, {"samples.fli-batch.approaches"}),
        ("OGD", "FLI-Online", 8, 0.9, {"samples.ogd.omniscient"}),
        ("FTRL", "single-task", 1, 0.6, {"samples.ftrl.single-task"}),
        ("FTRL", "omniscient", 2, 3.0, {"samples.ftrl.omniscient"}),
        ("OGD", "single-task", 8, 1000.0, {"samples.bound"}),
        ("OGD", "FLI-Online", 8, 10.0, {"samples.fli-online.approaches"}),
        ("OGD", "single-task", 4, 2.1, {"samples.ogd.single-task"}),
        ("OGD", "strawman", 8, 11.0, {"samples.ogd.advantage"}),
        (SUMMED, "strawman", 8, 11.0, {"samples.summed.advantage"}),
        (f"OGD, {BLOCKED}", "strawman", 8, 11.0, {"samples.blocked.advantage"}),
        (f"OGD, {BLOCKED}", "FAL", 8, -1.0, {"samples.blocked.advantage"}),
    ],
)
def test_each_claim_can_fail(panel, method, at, value, fails):
    def change(within, name, m, old):
        return value if (within, name, m) == (panel, method, at) else old

    found = verdicts("samples", sample_rows(change))
    assert {k for k, passed in found.items() if not passed} == fails


def test_a_lead_inside_the_noise_is_no_lead():
    rows = sample_rows()
    for r in rows:
        if (r["within"], r["method"], r["shots"]) == ("FTRL", "strawman", 2):
            r["values"] = [r["mean"] - 5, r["mean"], r["mean"] + 5]
    assert not verdicts("samples", rows)["samples.ftrl.strawman"]


def test_slower_than_m_can_fail():
    found = verdicts("samples", sample_rows(lambda w, k, m, v: v * m if k in LEVEL else v))
    assert not found["samples.sublinear"]


@pytest.mark.parametrize("fal", [-1.0, 0.0, 100.0])
def test_no_advantage_is_not_largest_anywhere(fal):
    """Undefined at every m, or below 1 at every m with its peak at the smallest."""
    where = f"OGD, {BLOCKED}", "FAL"
    rows = sample_rows(lambda w, k, m, v: fal * m if (w, k) == where else v)
    (one,) = (v for v in judge("samples", rows) if v.id == "samples.blocked.advantage")
    assert not one.passed
    assert ("undefined" in one.numbers) == (fal <= 0)


def test_a_new_curve_changes_no_verdict():
    rows = sample_rows()
    before = verdicts("samples", rows)
    fal = [r for r in rows if r["method"] == "FAL"]
    new = [r | {"method": f"new {v}", "mean": v} for r in fal for v in (0.001, 19.0)]
    assert verdicts("samples", rows + new) == before


def test_verdicts_say_what_they_are_decided_by():
    by = [v.id for v in judge("samples", sample_rows()) if v.by == "intervals"]
    assert sorted(by) == ["samples.ftrl.strawman", "samples.ogd.strawman"]


def test_the_guess_is_tested_with_the_optimum_only_where_it_is_not_already():
    paper, released = ({c.within for c in curves(name)} for name in ("paper", "released"))
    assert paper - released == {f"OGD, {EXACT}"}


def test_negative_regret_has_no_ratio():
    rows = sample_rows(lambda w, k, m, v: -1.0 if (w, k, m) == ("OGD", "FAL", 2) else v)
    ratio = Rows(rows, "paper").ratio("OGD", "strawman", "FAL")
    assert np.isnan(ratio[1]) and not np.isnan(ratio[0])


def similarity_rows(*values):
    """The radius at 1 and at 32 shots of every variant."""
    return [
        row("any", variant, "radius", m, value, from_mean=[value])
        for variant, pair in zip(panels.VARIANTS, values, strict=True)
        for m, value in zip((1, 32), pair, strict=True)
    ]


def test_similarity():
    good = similarity_rows((0.6, 0.3), (0.9, 0.8), (0.6, 0.35))
    assert all(verdicts("similarity", good).values())
    bad = similarity_rows((0.3, ORIGINAL_RADIUS + 0.01), (0.2, 0.2), (0.9, 0.9))
    found = verdicts("similarity", bad)
    assert [k for k, passed in found.items() if passed] == ["similarity.one-shot"]
    assert len(found) == 5


@pytest.mark.parametrize(("power", "linear"), [(1.0, True), (0.5, False), (1.6, False)])
def test_growth(power, linear):
    rows = [
        row("any", w, "alpha", n, 2.0 * n**power, samples=n, multiplier=n**power)
        for w in (panels.LEFT, panels.RIGHT)
        for n in (4, 8, 16, 32)
    ]
    found = judge("growth", rows)
    assert [v.passed for v in found] == [linear, linear]
    assert "50%" in found[0].numbers


def batch_rows(lead):
    level = {batch.AVERAGE: 0.8 + lead, batch.LAST: 0.79, batch.FIRST: 0.8, batch.FULL: 0.8}
    level |= {batch.ALONE: 0.7, batch.POOLED: 0.5}
    within = {k: "x" if "FAL" in k else "" for k in level}
    return [row("paper", within[k], k, m, v) for m in (1, 8, 32) for k, v in level.items()]


def test_batch():
    assert verdicts("batch", batch_rows(0.01)) == {
        "batch.average.near": True,
        "batch.average.above": True,
        "batch.last.near": True,
        "batch.last.above": False,
        "batch.single-task": True,
    }
    assert not verdicts("batch", batch_rows(-0.03))["batch.average.near"]


def test_listed():
    assert listed((1, 2), (0.123, float("nan"))) == "1: 0.12, 2: nan"
