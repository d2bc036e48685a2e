"""What an estimator learns from: every task, by draws of its own."""

import copy
import pickle
import weakref
from dataclasses import replace

import numpy as np
import pytest

import fmrl
from fmrl.core.losses import OneVsAll, Squared
from fmrl.core.prior import marginal, padding
from fmrl.core.prior.mixture_fit import FamilySums, fit_family
from fmrl.estimators import prior_fit
from fmrl.tables.targets import group_by_task

from .data import bent, classification, regression

KINDS = {
    "numbers": (fmrl.MetaRegressor, regression),
    "classes": (fmrl.MetaClassifier, classification),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", [0, 7, 23])
def test_every_task_teaches(kind, which):
    """Other targets of one task are another prior."""
    make, data = KINDS[kind]
    X, y, task = data(tasks=24, rows=8)
    own = np.flatnonzero(task == which)
    other = y.copy()
    other[own] = y[np.roll(own, 1)] if kind == "numbers" else (y[own] + 1) % 3
    assert (other != y).any()
    est = make(common="linear", environment="stationary")
    first, second = (est.fit(X, target, task=task).coef_.copy() for target in (y, other))
    assert np.abs(first - second).max() > 1e-6


@pytest.mark.parametrize(
    ("make", "data", "asked", "where"),
    [
        (fmrl.MetaRegressor, regression, {"common": "linear"}, (1, 101, 199)),
        (fmrl.MetaClassifier, classification, {"common": "linear"}, (1, 101)),
        (fmrl.MetaRegressor, bent, {}, (101,)),
        (fmrl.MetaRegressor, regression, {"environment": fmrl.Window(150)}, (57, 101)),
        (fmrl.MetaClassifier, classification, {"environment": fmrl.Window(150)}, (57,)),
        (fmrl.MetaRegressor, regression, {"environment": 2}, (101,)),
    ],
    ids=["numbers", "classes", "trees", "recent numbers", "recent classes", "centres"],
)
def test_tasks_outside_the_pilot_teach(monkeypatch, make, data, asked, where):
    """The pilot chooses, and what is used is estimated from every task of the environment."""
    monkeypatch.setattr(prior_fit, "pilot_size", lambda *tasks: 90)
    X, y, task = data(tasks=200, rows=8)
    est = make(**asked).fit(X, y, task=task)
    prior, coef = est.prior_, est.coef_.copy()
    window = asked.get("environment")
    kept = 150 if isinstance(window, fmrl.Window) else 200
    assert prior.tasks == kept and all(one.tasks == kept for one in prior.members)
    assert f"learned from {kept} tasks (a pilot of 90 chose families and weights)" in est.describe()
    for which in where:
        assert (
            which not in np.linspace(0, 199, 90).astype(int) and which < 200 - 90
        ) or kept == 200
        own = np.flatnonzero(task == which)
        other = y.copy()
        other[own] = y[np.roll(own, 1)]
        assert np.abs(est.fit(X, other, task=task).coef_ - coef).max() > 1e-7
    if kept == 150:  # and a task before the window says nothing
        own = np.flatnonzero(task == 21)
        other = y.copy()
        other[own] = y[np.roll(own, 1)]
        np.testing.assert_array_equal(est.fit(X, other, task=task).coef_, coef)


def test_ten_thousand_tasks_are_ten_thousand():
    """More of them are a better estimate: the mean of 10,000, not of a pilot."""
    X, y, task = regression(tasks=10_000, rows=3, features=2, spread=1.0)
    est = fmrl.MetaRegressor(common="linear").fit(X, y, task=task)
    assert est.prior_.tasks == 10_000 and est.prior_.pilot == 4000
    w = np.random.default_rng(0)
    truth = w.normal(size=2) + w.normal(size=(10_000, 2)).mean(axis=0)
    np.testing.assert_allclose(est.coef_, truth, atol=0.01)


def test_few_tasks_are_estimated_once(monkeypatch):
    """Where all tasks fit into the pilot, they all choose and teach at once."""
    monkeypatch.setattr(prior_fit, "fit_again", None)
    X, y, task = regression(tasks=40, rows=6)
    est = fmrl.MetaRegressor().fit(X, y, task=task)
    assert est.prior_.tasks == est.prior_.pilot == 40 and "pilot" not in est.describe()


def test_a_common_part_answers_every_task_without_that_task():
    """The pilot's rows fold by fold; it has seen none of the others'."""
    X, y, task = regression(tasks=6, rows=2, features=1)
    tasks = group_by_task(Squared(), X, y, None, task)
    pilot = tasks.take(np.array([1, 4]))
    pilot = replace(pilot, X=np.hstack([pilot.X, np.full((4, 1), -1.0)]))
    wide = prior_fit._with_answers(tasks, pilot, lambda rows: 10 + rows)
    np.testing.assert_array_equal(wide.X[:, :1], tasks.X)
    known = np.isin(np.repeat(np.arange(6), 2), [1, 4])
    assert (wide.X[known, 1] == -1).all() and (wide.X[~known, 1] == 10 + tasks.X[~known, 0]).all()


@pytest.mark.parametrize("centres", [1, 2])
@pytest.mark.parametrize("data", [regression, classification])
def test_sums_over_tasks_hold_one_block_at_a_time(monkeypatch, data, centres):
    """What a block of tasks needs, width² for each, is let go before the next but one; and blocks
    change nothing."""
    X, y, task = data(tasks=60, rows=5, features=12)
    loss = Squared() if data is regression else OneVsAll(3)
    tasks = group_by_task(loss, X, y, None, task)
    one = fit_family(tasks, "alike", False)
    whole = FamilySums(tasks)
    means = np.concatenate([one.mean, one.mean + 0.1])[:centres]
    several = replace(one, mean=means, shares=np.full(centres, 1 / centres)).gaussians
    common = None if centres == 1 else np.array([0.3, 0.7])
    right, alive, most = whole(several, common), weakref.WeakSet(), []

    class Counted(marginal.BatchedPosterior):
        def __init__(self, *given, **named):
            alive.add(self)
            most.append(len(alive))
            super().__init__(*given, **named)

    monkeypatch.setattr(marginal, "BatchedPosterior", Counted)
    monkeypatch.setattr(padding, "NUMBERS", 600)
    found = FamilySums(tasks)(several, common)
    assert len(most) > 4 and max(most) <= 2
    for a, b in zip(found, right, strict=True):
        for left, other in zip(a, b, strict=True):
            np.testing.assert_allclose(left, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", [*KINDS, "trees", "trees of classes"])
def test_the_global_generator_of_numpy_is_not_touched(kind):
    if kind in KINDS:
        make, data = KINDS[kind]
        X, y, task = data(tasks=16, rows=8)
    else:
        make = fmrl.MetaRegressor if kind == "trees" else fmrl.MetaClassifier
        X, y, task = bent(tasks=40, binary=kind != "trees")
    np.random.seed(123)
    before = np.random.get_state()
    est = make(random_state=0).fit(X, y, task=task)
    est.update(X[:5], y[:5], task="new")
    est.predict(X, task=task)
    est.relearn()
    if kind not in KINDS:
        assert est.prior_.common is not None
    after = np.random.get_state()
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    np.random.seed(7)
    again = make(random_state=0).fit(X, y, task=task)
    np.random.seed(8)
    other = make(random_state=0).fit(X, y, task=task)
    np.testing.assert_array_equal(again.coef_, other.coef_)
    np.testing.assert_array_equal(again.predict(X, task=task), other.predict(X, task=task))


def test_a_seed_is_a_number_or_a_generator():
    X, y, task = regression(tasks=16, rows=8)
    fits = {}
    for name, seed in (
        ("none", None), ("0", 0), ("numpy 0", np.int64(0)), ("1", 1),
        ("generator", np.random.default_rng(5)), ("same generator", np.random.default_rng(5)),
        ("state", np.random.RandomState(5)), ("same state", np.random.RandomState(5)),
    ):  # fmt: skip
        fits[name] = fmrl.MetaRegressor(random_state=seed).fit(X, y, task=task).prior_.rule
    assert fits["none"] == fits["0"] == fits["numpy 0"] != fits["1"]
    assert fits["generator"] == fits["same generator"] and fits["state"] == fits["same state"]
    for seed in (-1, "0", 1.5):
        with pytest.raises(fmrl.FMRLError, match="random_state must be a whole number"):
            fmrl.MetaRegressor(random_state=seed).fit(X, y, task=task)


def test_a_generator_that_moved_on_is_stored_as_none(tmp_path):
    X, y, task = regression(tasks=12, rows=6)
    est = fmrl.MetaRegressor(random_state=np.random.default_rng(0)).fit(X, y, task=task)
    est.save(tmp_path / "model")
    again = fmrl.MetaRegressor.load(tmp_path / "model")
    assert again.random_state is None
    np.testing.assert_array_equal(again.predict(X, task=task), est.predict(X, task=task))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda est: pickle.loads(pickle.dumps(est))])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_and_its_original_go_on_by_themselves(kind, copied):
    make, data = KINDS[kind]
    X, y, task = data(tasks=16, rows=8)
    est = make(common="linear").fit(X, y, task=task)
    est.predict(X, task=task)
    other = copied(est)
    est.partial_fit(X[:6], y[:6], task="mine").forget(3)
    assert "mine" not in other.tasks_ and 3 in other.tasks_
    other.partial_fit(X[:6], y[:6], task="theirs").update(X[:3] + 1, y[:3], task=0)
    assert "theirs" not in est.tasks_ and est._rows.take([0]).lengths.tolist() == [8]
    np.testing.assert_array_equal(est.model("mine").coef_, other.model("theirs").coef_)
    assert est._lock is not other._lock
    est.relearn()
    assert other.prior_.tasks == 16 and other.prior_ is not est.prior_
    for one in (est, other):
        again = copied(one)
        np.testing.assert_array_equal(
            again.predict(X, task=task[::-1]), one.predict(X, task=task[::-1])
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_partial_fit_that_begins_an_estimator_is_a_fit_of_one_task(kind):
    make, data = KINDS[kind]
    X, y, _ = data(tasks=3, rows=8)
    given = {"classes": [0, 1, 2]} if kind == "classes" else {}
    part = make(common="linear").partial_fit(X[:8], y[:8], task="a", **given)
    whole = make(common="linear").fit(X[:8], y[:8], task=np.repeat("a", 8))
    assert part.tasks_ == ["a"]
    if kind == "numbers" or {*y[:8]} == {0, 1, 2}:
        np.testing.assert_array_equal(part.coef_, whole.coef_)
