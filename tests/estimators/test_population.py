"""What the population of tasks is taken to be."""

import numpy as np
import pytest

import fmrl
from fmrl.core.prior.mixture_fit import fit_family
from fmrl.estimators.averaging import SHARP, HeldOut, best_sharpness, probabilities
from fmrl.estimators.environment_choice import rough
from fmrl.estimators.prior import loss_of
from fmrl.tables.targets import group_by_task

from .data import classification, regression


def noisy(binary, tasks=40, rows=6, columns=25, seed=0):
    """Tasks whose answers depend on one of many columns; and many rows of the same."""
    rng = np.random.default_rng(seed)
    some = []
    for count in (tasks * rows, 4000):
        X = rng.normal(size=(count, columns))
        z = 1.5 * X[:, 0] + (rng.logistic if binary else rng.normal)(size=count)
        some.append((np.hstack([X, np.ones((count, 1))]), 1.0 * (z > 0) if binary else z))
    (X, y), later = some
    loss = loss_of(np.arange(2) if binary else None)
    return group_by_task(
        loss, X, y.astype(int) if binary else y, None, np.repeat(range(tasks), rows)
    ), later


@pytest.mark.parametrize("binary", [True, False])
def test_slopes_of_columns_that_say_nothing_are_drawn_to_0(binary):
    """As far as the tasks themselves say: with free columns it is what it was before."""
    tasks, (X, y) = noisy(binary)

    def loss(found):
        z = X @ found.mean[0, 0]
        return (np.logaddexp(0, z) - y * z if binary else (z - y) ** 2).mean()

    drawn, free = (fit_family(tasks, "none", True, free=n) for n in (0, 25))
    best = 0.42 if binary else 1.0  # of the truth, about
    assert loss(drawn) - best < 0.85 * (loss(free) - best)
    others = [np.abs(found.mean[0, 0, 1:25]).mean() for found in (drawn, free)]
    assert others[0] < 0.97 * others[1]


@pytest.mark.parametrize("columns", [150, 200])
def test_noise_pays_for_what_the_mean_takes_from_rows(columns):
    """Not for every column where the mean is drawn to 0: noise came out at ten times and more."""
    tasks, (X, y) = noisy(False, tasks=40, rows=7, columns=columns)
    found = fit_family(tasks, "none", True)
    assert 0.4 < found.noise < 1.6
    assert ((X @ found.mean[0, 0] - y) ** 2).mean() < 0.75 * y.var()


def test_intervals_of_more_columns_than_rows_have_ends():
    """Rounding left variances below 0."""
    rng, task = np.random.default_rng(0), np.repeat(np.arange(30), 8)
    X = rng.normal(size=(240, 300))
    y = X[:, 0] + rng.normal(size=30)[task] + 0.3 * rng.normal(size=240)
    reg = fmrl.MetaRegressor(common="linear").fit(X, y, task=task)
    ends = reg.adapt(X[:4], y[:4]).predict_interval(X), reg.predict_interval(X, task=task)
    assert np.isfinite(ends).all() and (np.diff(ends, axis=-1) > 0).all()


def test_what_is_only_compared_is_not_drawn_to_0():
    """A mean that is small beside the spread of tasks still says where drift goes."""
    tasks, _ = noisy(False)
    free, found = fit_family(tasks, "none", True, free=25), rough(tasks, "none", True)
    np.testing.assert_allclose(found.mean, free.mean, atol=1e-3)
    assert np.abs(fit_family(tasks, "none", True).mean - found.mean).max() > 0.01


def test_softmax_is_as_sharp_as_labels_say():
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(1, 400, 6, 3))
    target = np.eye(3)[(z[0] + rng.gumbel(size=z[0].shape)).argmax(axis=-1)]
    for times, sharp in ((1.0, 1.0), (2.0, 0.5)):
        sheet = HeldOut(times * z, np.zeros(z.shape), target, np.full((400, 6), 1 / 6))
        assert best_sharpness([sheet], np.ones(1), 1.0) == sharp


@pytest.mark.parametrize("binary", [True, False])
def test_slopes_that_are_known_stay(binary):
    tasks, _ = noisy(binary, tasks=400, rows=10, columns=2)
    drawn, free = (fit_family(tasks, "none", True, free=n).mean for n in (0, 2))
    np.testing.assert_allclose(drawn, free, atol=0.03)


def test_several_classes_are_a_softmax_as_sharp_as_held_out_tasks_say():
    """Sigmoids, normalised, were too flat: a pooled softmax was 0.04 better on such rows."""
    rng = np.random.default_rng(1)
    B, task = 2 * rng.normal(size=(4, 4)), np.repeat(np.arange(300), 16)
    X = rng.normal(size=(4800, 4))
    y = np.argmax(X @ B + [1, 0, 0, -1] + rng.gumbel(size=(4800, 4)), axis=1)
    old = task < 150
    clf = fmrl.MetaClassifier(common="linear").fit(X[old], y[old], task=task[old])
    assert {c.sharpness for c in clf.prior_.rule.choices} <= set(SHARP)
    found = clf.predict_proba(X[~old])
    flat = probabilities(clf.decision_function(X[~old]), 4)
    right = np.arange(2400), y[~old]
    assert np.log(found[right]).mean() > np.log(flat[right]).mean() + 0.015
    np.testing.assert_array_equal(found.argmax(axis=1), clf.predict(X[~old]))


def test_a_common_part_that_no_choice_uses_goes():
    """Then models are linear, and say so."""
    X, y, task = classification(tasks=120, rows=12, classes=2, size=0.6)
    auto = fmrl.MetaClassifier().fit(X, y, task=task)
    line = fmrl.MetaClassifier(common="linear").fit(X, y, task=task)
    assert auto.prior_.common is None and "linear" not in auto.describe()
    np.testing.assert_allclose(auto.coef_, line.coef_, atol=1e-12)
    X, y, task = regression(tasks=60)
    bent = fmrl.MetaRegressor().fit(X, y + 3 * np.abs(X[:, 0]), task=task)
    assert bent.prior_.common is not None and "linear" in bent.describe()


@pytest.mark.parametrize("kind", ["regression", "classes"])
def test_a_column_without_a_value_changes_nothing(kind):
    make, est = (regression, fmrl.MetaRegressor) if kind == "regression" else (
        classification, fmrl.MetaClassifier)  # fmt: skip
    X, y, task = make(tasks=60, rows=8)
    wide = np.hstack([X, np.full((len(X), 1), 7.0)])
    one, two = (est(common="linear").fit(A, y, task=task) for A in (X, wide))
    said = [getattr(e, "predict_proba", e.predict)(A[:50]) for e, A in ((one, X), (two, wide))]
    np.testing.assert_allclose(*said, atol=0.01)
    slopes, levels = two.prior_.coef_std
    assert (slopes[:, -1] == 0).all()
    np.testing.assert_allclose(levels, one.prior_.coef_std[1], rtol=0.05)


def test_partial_fit_refuses_what_update_refuses():
    """A row of 1e200 in a task that is known made all models 0 when the prior was learned again."""
    X, y, task = regression()
    est = fmrl.MetaRegressor().fit(X, y, task=task)
    for name in (3, "new"):
        with pytest.raises(fmrl.FMRLError, match="beyond"):
            est.partial_fit(X[:4] * 1e200, y[:4], task=name)
        with pytest.raises(fmrl.FMRLError, match="beyond"):
            est.partial_fit(X[:4], y[:4] * 1e200, task=name)
    with pytest.raises(fmrl.FMRLError, match="beyond"):
        est.adapt(X[:4], y[:4] * 1e200)
