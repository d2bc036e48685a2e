"""The certificate of an estimator: the loss is that of its streams, the bound holds, and what it is
about is said.
"""

import numpy as np
import pytest
from scipy.stats import norm

import fmrl
from fmrl.estimators.prior import interval_factor

KINDS = "numbers", "two", "three"


def table(kind, tasks=60, rows=8, seed=0, noise=1.0):
    """Tasks that differ in one slope."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(tasks), rows)
    X = rng.normal(size=(len(task), 2))
    z = X[:, 0] * rng.normal(size=tasks)[task] + X[:, 1] + noise * rng.logistic(size=len(task))
    return X, {"numbers": 7 * z + 3, "two": z > 0, "three": np.digitize(z, [-1, 1])}[kind], task


def fitted(kind, rows=360, **more):
    X, y, task = table(kind, **more)
    make = fmrl.MetaRegressor if kind == "numbers" else fmrl.MetaClassifier
    own = make(common="linear", environment="stationary")
    return own.fit(X[:rows], y[:rows], task=task[:rows]), (X[rows:], y[rows:], task[rows:])


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_predictions_row_after_row(kind):
    own, (X, y, task) = fitted(kind)
    found = fmrl.certify(own, X, y, task)
    assert found.tasks == len(np.unique(task)) and found.rows == len(y)
    for t, name in enumerate(np.unique(task)[:3]):
        stream, loss = own.stream(), 0.0
        for i, (x, target) in enumerate(zip(X[task == name], y[task == name], strict=True)):
            if kind == "numbers":
                low, high = np.ravel(stream.predict_interval(x, level=0.5))
                wide = interval_factor(own.prior_.rule.at(i), 0.5)
                loss -= norm((low + high) / 2, (high - low) / 2 / wide).logpdf(target)
            else:
                p = np.ravel(stream.predict_proba(x))
                loss -= np.log(p[list(own.classes_).index(target)])
            stream.learn(x, target)
        if kind == "three":  # of each class against the rest: more than the classes' own
            assert found.deployed[t] > loss
        else:
            assert found.deployed[t] == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("noise", [0.3, 30.0])
@pytest.mark.parametrize("kind", KINDS)
def test_no_loss_of_the_mixture_is_above_the_bound(kind, noise):
    own, rows = fitted(kind, noise=noise)
    found = own.certify(*rows)
    terms = found.bound.terms
    assert found.negative_elbo.mean() <= found.bound.total + 1e-9
    assert found.comparator.mean() == pytest.approx(terms["comparator"])
    assert all(value >= -1e-9 for name, value in terms.items() if name != "comparator")
    assert found.bound.holds and found.deployed.mean() <= found.bound.total
    assert "had not seen" in found.reading and "proved" in found.reading
    assert found.to_dict()["regret"] == pytest.approx(found.regret)


def test_labels_that_contradict_the_prior_stay_below_the_bound():
    """Whatever the rows: here every label is the less probable one."""
    own, (X, y, task) = fitted("two")
    found = own.certify(X, ~np.asarray(own.predict(X), bool), task)
    assert found.negative_elbo.mean() <= found.bound.total
    assert found.bound.terms["distance"] > fitted_distance(own, X, y, task)


def fitted_distance(own, X, y, task):
    return own.certify(X, y, task).bound.terms["distance"]


def test_a_certificate_of_folds_says_so():
    own, _ = fitted("numbers", tasks=30, rows=200)
    found = own.certificate_
    assert found.folds == 5 and "priors of 5 folds" in found.reading
    assert found.tasks == len(own.tasks_)


def test_what_has_no_certificate_is_refused():
    own, (X, y, _) = fitted("two")
    with pytest.raises(fmrl.FMRLError, match="learned from"):
        own.certify(X, y, task=np.zeros(len(y), int))
    with pytest.raises(fmrl.FMRLError, match="task="):
        own.certify(X, y)
    one = fmrl.MetaRegressor().fit(X[:8], X[:8, 0], task=np.zeros(8))
    with pytest.raises(fmrl.FMRLError, match="one task"):
        one.certificate_  # noqa: B018


@pytest.mark.parametrize("kind", KINDS)
def test_units_names_order_of_tasks_and_a_saved_model_change_nothing(kind, tmp_path):
    own, (X, y, task) = fitted(kind)
    right = own.certify(X, y, task)
    own.save(tmp_path / "model.safetensors")
    loaded = type(own).load(tmp_path / "model.safetensors").certify(X, y, task)
    renamed = own.certify(X, y, task + 1000)
    turned = np.concatenate([np.flatnonzero(task == t) for t in np.unique(task)[::-1]])
    other = own.certify(X[turned], y[turned], task[turned])
    for found in (loaded, renamed, other):
        assert sorted(found.deployed) == pytest.approx(sorted(right.deployed))
        assert found.bound.total == pytest.approx(right.bound.total)
    scale, (X_all, y_all, t_all) = np.array([1e3, 1e-2]), table(kind)
    new = type(own)(common="linear", environment="stationary")
    new.fit(X_all[:360] * scale, y_all[:360], task=t_all[:360])
    assert new.certify(X * scale, y, task).bound.total == pytest.approx(right.bound.total, rel=1e-3)
