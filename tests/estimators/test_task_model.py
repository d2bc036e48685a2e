"""The model of one task: kept in a file, and told in words."""

import pickle
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.preprocessing import PolynomialFeatures

import fmrl
from fmrl.estimators import storage

from .data import bent, classification, regression

LINEAR = {"common": "linear", "environment": "stationary"}


def frame_of(X):
    """Columns with names, text and gaps."""
    text = np.where(X[:, 1] > 0, "up", "down")
    return pd.DataFrame({"size": np.where(X[:, 2] > 1.5, np.nan, X[:, 0]), "kind": text})


SQUARES = PolynomialFeatures(2, include_bias=False)
CASES = {
    "numbers": (fmrl.MetaRegressor, LINEAR, lambda: regression(tasks=16, rows=8), None),
    "classes": (fmrl.MetaClassifier, LINEAR, lambda: classification(tasks=16, rows=8), None),
    "trees": (fmrl.MetaRegressor, {}, lambda: bent(tasks=40), None),
    "features": (fmrl.MetaRegressor, LINEAR | {"features": SQUARES},
                 lambda: regression(tasks=16, rows=8), None),
    "centres": (fmrl.MetaRegressor, LINEAR | {"environment": 2},
                lambda: regression(tasks=30, rows=8), None),
    "table": (fmrl.MetaClassifier, LINEAR, lambda: classification(tasks=16, rows=8, classes=2),
              frame_of),
}  # fmt: skip


def adapted(name):
    make, given, data, table = CASES[name]
    X, y, task = data()
    if make is fmrl.MetaClassifier:
        y = np.array(["red", "green", "blue"])[y]
    X = X if table is None else table(X)
    est = make(**given).fit(X, y, task=task)
    return est, est.adapt(X[:5], y[:5]), X, y


@pytest.mark.parametrize("name", CASES)
def test_what_comes_back_says_the_same_to_the_last_bit(name, tmp_path):
    _, model, X, y = adapted(name)
    model.save(tmp_path / "model")
    again = type(model).load(tmp_path / "model")
    ways = ("predict", "predict_interval", "predict_proba", "decision_function")
    for way in ways:
        if hasattr(model, way):
            np.testing.assert_array_equal(getattr(again, way)(X), getattr(model, way)(X))
    for part in ("coef_", "intercept_", "coef_std_", "common_coef_"):
        np.testing.assert_array_equal(getattr(again, part), getattr(model, part))
    assert again.n_features_in_ == model.n_features_in_ and again.describe() == model.describe()
    other = slice(5, 9)  # it is a model like any other: refitted, cloned, pickled, stored again
    for one in (clone(again), pickle.loads(pickle.dumps(again)), again):
        mine = one.fit(X[other], y[other]).predict(X)
        np.testing.assert_array_equal(mine, clone(model).fit(X[other], y[other]).predict(X))
    again.save(tmp_path / "second")
    np.testing.assert_array_equal(type(model).load(tmp_path / "second").predict(X), mine)


def test_models_of_every_kind_of_call_are_stored(tmp_path):
    est, _, X, y = adapted("numbers")
    many = est.adapt_many(X[:8], y[:8], ["a"] * 4 + ["b"] * 4)
    weighed = est.adapt(X[:4], y[:4], sample_weight=[1.0, 2.0, 0.0, 0.5])
    for model in (est.model(3), many["b"], est.adapt(X[:0], y[:0]), weighed):
        model.save(tmp_path / "model")
        again = fmrl.estimators.TaskRegressor.load(tmp_path / "model")
        np.testing.assert_array_equal(again.predict_interval(X), model.predict_interval(X))


def test_a_stored_model_knows_its_columns_and_its_task(tmp_path):
    X, y, task = regression(tasks=12, rows=8)
    frame = pd.DataFrame(X, columns=list("wxyz")).assign(shop=task)
    est = fmrl.MetaRegressor(**LINEAR).fit(frame, y, task="shop")
    est.adapt(frame[:3], y[:3]).save(tmp_path / "model")
    model = fmrl.estimators.TaskRegressor.load(tmp_path / "model")
    with pytest.warns(fmrl.InputWarning, match=r"rows of shop 2 are predicted by .* shop 0"):
        model.predict(frame[16:18])
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["w", "x"]])
    plain = fmrl.MetaRegressor(**LINEAR).fit(frame[list("wxyz")], y, task=task)
    plain.adapt(frame[list("wxyz")][:3], y[:3]).save(tmp_path / "plain")
    again = fmrl.estimators.TaskRegressor.load(tmp_path / "plain")
    assert again.feature_names_in_.tolist() == list("wxyz")
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame[list("zyxw")].rename(columns={"z": "q"}))


def test_damaged_and_foreign_files_are_refused(tmp_path):
    est, model, *_ = adapted("numbers")
    path = tmp_path / "model"
    model.save(path)
    body, rng = path.read_bytes(), np.random.default_rng(0)
    kind = type(model)
    for place in rng.integers(0, len(body), 150):
        damaged = bytearray(body)
        damaged[place] ^= 1 << rng.integers(0, 8)
        path.write_bytes(bytes(damaged))
        with pytest.raises(fmrl.FMRLError):
            kind.load(path)
    header = body[: 8 + int.from_bytes(body[:8], "little")]
    ends = [found.end() - 1 for found in re.finditer(rb"[0-9]{15}(?=[,\]])", header)]
    for place in ends[:30]:  # last digits, which may read as the same number
        path.write_bytes(body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :])
        with pytest.raises(fmrl.FMRLError):
            kind.load(path)
    assert len(ends) > 5
    for cut in rng.integers(0, len(body), 20):
        path.write_bytes(body[:cut])
        with pytest.raises(fmrl.FMRLError):
            kind.load(path)
    path.write_bytes(body)
    with pytest.raises(fmrl.FMRLError, match=r"holds a TaskRegressor; .*TaskRegressor\.load"):
        fmrl.estimators.TaskClassifier.load(path)
    with pytest.raises(fmrl.FMRLError, match="holds a TaskRegressor"):
        fmrl.MetaRegressor.load(path)
    est.save(tmp_path / "estimator")
    with pytest.raises(fmrl.FMRLError, match="holds a MetaRegressor"):
        kind.load(tmp_path / "estimator")
    with pytest.raises(fmrl.FMRLError, match="there is no file"):
        kind.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="not fitted"):
        clone(model).save(path)


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    _, model, *_ = adapted("numbers")
    model.save(tmp_path / "model")
    old = (tmp_path / "model").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(fmrl.FMRLError, match="No space left"):
        model.save(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_model_is_described_by_its_coefficients():
    X, y, task = regression(tasks=30, rows=10)
    frame = pd.DataFrame(X, columns=["price", "stock", "age", "size"])
    model = fmrl.MetaRegressor(**LINEAR).fit(frame, y, task=task).adapt(frame[:6], y[:6])
    head, *lines = model.describe().splitlines()
    said = {name: words for name, words in (line.strip().split(": ") for line in lines)}
    assert head == "estimate ± standard deviation"
    assert list(said) == ["intercept", "price", "stock", "age", "size"]
    for name, coef, std in zip(frame.columns, model.coef_, model.coef_std_, strict=True):
        assert said[name] == f"{coef:.3g} ± {std:.2g}"
    assert said["intercept"].startswith(f"{model.intercept_:.3g} ± ")
    assert 0 < float(said["intercept"].split(" ± ")[1]) < 1


def test_classes_and_trees_are_described_too():
    _, two, *_ = adapted("table")
    assert two.describe().startswith("estimate ± standard deviation (log-odds of 'red')")
    assert "kind" in two.describe() and "size" in two.describe()
    _, three, *_ = adapted("classes")
    head, *lines = three.describe().splitlines()
    assert head.endswith("by class ['blue', 'green', 'red']") and len(lines) == 5
    assert all(line.count(" ± ") == 3 for line in lines) and lines[1].startswith("  x0: ")
    _, trees, *_ = adapted("trees")
    assert trees.describe().splitlines()[-1].strip().startswith("beside these, the model holds")
    _, features, *_ = adapted("features")
    assert "x0 x1: " in features.describe() and "x0^2: " in features.describe()
    with pytest.raises(ValueError, match="not fitted"):
        clone(two).describe()
