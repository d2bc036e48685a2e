"""Verdicts on made-up rows, where the answer is known."""

import numpy as np
import pytest

from fmrl.reproduce.convex import batch, panels
from fmrl.reproduce.convex.claims import ORIGINAL_RADIUS, judge
from fmrl.reproduce.convex.compositions import BLOCKED, EXACT, SUMMED, TABLE, curves
from fmrl.reproduce.verdict import Rows, listed

SHOTS = (1, 2, 4, 8)
LEVEL = {
    "FAL": 1.0,
    "FLI-Online": 1.2,
    "FLI-Batch": 1.3,
    "strawman": 1.5,
    "single-task": 4.0,
    "omniscient": 0.5,
}


def sample_rows(change=lambda within, method, m, value: value):
    rows = []
    for c in TABLE:
        for m in SHOTS:
            value = change(c.within, c.method, m, LEVEL.get(c.method, 1.0) * m**0.5)
            if c.method == "strawman":
                value += 0.3 / m
            if c.method.startswith("FLI"):
                value += 1 / m
            row = {
                "preset": "paper",
                "within": c.within,
                "method": c.method,
                "shots": m,
                "mean": value,
                "bound": 20.0 * m,
            }
            rows.append(
                row
                | {
                    "low": value,
                    "high": value,
                    "n": 3,
                    "values": [value - 0.01, value, value + 0.01],
                }
            )
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
    found = judge(
        "samples",
        sample_rows(lambda w, k, m, v: fal * m if (w, k) == (f"OGD, {BLOCKED}", "FAL") else v),
    )
    (one,) = (v for v in found if v.id == "samples.blocked.advantage")
    assert not one.passed
    assert ("undefined" in one.numbers) == (fal <= 0)


def test_a_new_curve_changes_no_verdict():
    rows = sample_rows()
    before = verdicts("samples", rows)
    new = [
        r | {"method": f"new {v}", "mean": v}
        for r in rows
        if r["method"] == "FAL"
        for v in (0.001, 19.0)
    ]
    assert verdicts("samples", rows + new) == before


def test_verdicts_say_what_they_are_decided_by():
    by = {v.id: v.by for v in judge("samples", sample_rows())}
    assert {k for k, v in by.items() if v == "intervals"} == {
        "samples.ftrl.strawman",
        "samples.ogd.strawman",
    }


def test_the_guess_is_tested_with_the_optimum_only_where_it_is_not_already():
    assert {c.within for c in curves("paper")} - {c.within for c in curves("released")} == {
        f"OGD, {EXACT}"
    }


def test_negative_regret_has_no_ratio():
    rows = Rows(
        sample_rows(lambda w, k, m, v: -1.0 if (w, k, m) == ("OGD", "FAL", 2) else v), "paper"
    )
    ratio = rows.ratio("OGD", "strawman", "FAL")
    assert np.isnan(ratio[1]) and not np.isnan(ratio[0])


def similarity_rows(real, permuted, centred):
    rows = []
    for variant, values in zip(panels.VARIANTS, (real, permuted, centred), strict=True):
        for m, value in zip((1, 32), values, strict=True):
            row = {
                "preset": "any",
                "within": variant,
                "method": "radius",
                "shots": m,
                "mean": value,
                "from_mean": [value],
            }
            rows.append(row | {"low": value, "high": value, "n": 1})
    return rows


def test_similarity():
    assert all(
        verdicts("similarity", similarity_rows((0.6, 0.3), (0.9, 0.8), (0.6, 0.35))).values()
    )
    found = verdicts(
        "similarity", similarity_rows((0.3, ORIGINAL_RADIUS + 0.01), (0.2, 0.2), (0.9, 0.9))
    )
    assert found == {
        "similarity.shrinks": False,
        "similarity.radius": False,
        "similarity.one-shot": True,
        "similarity.labels": False,
        "similarity.direction": False,
    }


@pytest.mark.parametrize(("power", "linear"), [(1.0, True), (0.5, False), (1.6, False)])
def test_growth(power, linear):
    rows = [
        {
            "preset": "any",
            "within": w,
            "method": "alpha",
            "shots": n,
            "samples": n,
            "mean": 2.0 * n**power,
            "multiplier": n**power,
        }
        for w in (panels.LEFT, panels.RIGHT)
        for n in (4, 8, 16, 32)
    ]
    found = judge("growth", rows)
    assert [v.passed for v in found] == [linear, linear]
    assert "50%" in found[0].numbers


def batch_rows(lead):
    level = {
        batch.AVERAGE: 0.8 + lead,
        batch.LAST: 0.79,
        batch.FIRST: 0.8,
        batch.FULL: 0.8,
        batch.ALONE: 0.7,
        batch.POOLED: 0.5,
    }
    rows = []
    for m in (1, 8, 32):
        for k, v in level.items():
            row = {
                "preset": "paper",
                "within": "x" if "FAL" in k else "",
                "method": k,
                "shots": m,
                "mean": v,
                "n": 3,
            }
            rows.append(row | {"values": [v - 0.01, v, v + 0.01]})
    return rows


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
