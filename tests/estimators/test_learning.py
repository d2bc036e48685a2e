"""What an estimator learns from: every task, by draws of its own."""

import copy
import pickle

import numpy as np
import pytest

import fmrl

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
