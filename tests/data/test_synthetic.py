from itertools import islice

import numpy as np
import pytest

from fmrl import FMRLError, Simplex, minimise
from fmrl.datasets import evolving, experts, gaussian_mixtures, linear_regressions


@pytest.mark.parametrize("make", [gaussian_mixtures, linear_regressions, experts])
def test_seeded(make):
    a, b, c = make(3, 12, seed=1), make(3, 12, seed=1), make(3, 12, seed=2)
    assert all(np.array_equal(s.X, t.X) for s, t in zip(a, b, strict=True))
    assert not np.array_equal(a.tasks[0].X, c.tasks[0].X)
    assert len(a) == 3 and [t.name for t in a] == [0, 1, 2]


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.7])
def test_the_similarity_knob_is_the_spread_of_the_optima(spread):
    r = linear_regressions(400, 15, dim=8, spread=spread)
    assert np.sqrt(((r.optima - r.centre) ** 2).sum(axis=1).mean()) == pytest.approx(
        spread, rel=0.1, abs=1e-9
    )
    assert np.linalg.norm(r.centre) == pytest.approx(0.5)


def test_regression_optima_are_stationary():
    r = linear_regressions(5, 30, dim=4, noise=0.3)
    for task, w in zip(r, r.optima, strict=True):
        target = task.open().target[:, 0]
        assert np.allclose(task.X.T @ (task.X @ w - target), 0, atol=1e-10)


def test_expert_optima_are_the_solvers():
    e = experts(20, 25, dim=6)
    for task, w in zip(e, e.optima, strict=True):
        costs = task.X.sum(axis=0)
        assert (
            costs @ w
            == costs.min()
            == pytest.approx(float(costs @ minimise(task.open(), Simplex()).theta), abs=1e-6)
        )
    assert e.centre.sum() == pytest.approx(1)
    alike = experts(50, 200, spread=0.0, gap=0.5)
    assert (alike.optima[:, 0] == 1).all()


def test_mixtures_are_balanced_unit_rows():
    g = gaussian_mixtures(4, 6, dim=20, classes=3)
    for task in g:
        assert np.allclose(np.linalg.norm(task.X, axis=1), 1) and task.rounds == 18
        assert task.open().target.sum(axis=0).tolist() == [6, 6, 6]
    assert g.optima is None and g.centre.shape == (60,)


def test_evolving_moves_and_its_optima_are_exact():
    seen = list(islice(evolving(12, dim=6, spread=0.0, drift=0.05, seed=3), 40))
    for task, w in seen:
        assert np.allclose(task.X @ w, task.open().target[:, 0])
        assert np.linalg.norm(w) <= 0.5 + 1e-9
    steps = np.linalg.norm(np.diff([w for _, w in seen], axis=0), axis=1)
    assert (steps <= 0.05 + 1e-9).all() and steps.max() > 0.02
    jumps = [w for _, w in islice(evolving(12, dim=6, spread=0.0, drift=0.0, jump=10), 30)]
    assert np.array_equal(jumps[0], jumps[9]) and not np.allclose(jumps[9], jumps[10])


def test_impossible_requests():
    for call in (
        lambda: linear_regressions(0, 5),
        lambda: experts(3, 5, gap=0.9),
        lambda: next(evolving(3, dim=10)),
    ):
        with pytest.raises(FMRLError):
            call()


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf")])
def test_no_spread_is_negative(wrong):
    for make in (
        lambda: gaussian_mixtures(2, 2, spread=wrong),
        lambda: linear_regressions(2, 2, spread=wrong),
        lambda: experts(2, 2, spread=wrong),
        lambda: next(evolving(12, spread=wrong)),
    ):
        with pytest.raises(FMRLError, match="spread"):
            make()
