"""features=: what the relations over every way in do not ask."""

import numpy as np
import polars as pl
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    SplineTransformer,
    StandardScaler,
)

import fmrl
from fmrl.core.losses import Squared
from fmrl.errors import FMRLError
from fmrl.tables.features import rebuild
from fmrl.tables.targets import group_by_task

TASK = np.repeat(np.arange(12), 10)
RNG = np.random.default_rng(3)
X = RNG.normal(size=(120, 2))
Y = np.sin(3 * X[:, 0]) + RNG.normal(size=12)[TASK] + 0.1 * RNG.normal(size=120)
KINDS = {
    "splines": SplineTransformer(n_knots=4),
    "sparse": SplineTransformer(n_knots=4, sparse_output=True),
    "kernel": make_pipeline(StandardScaler(), Nystroem(n_components=9, random_state=0)),
    "some": ColumnTransformer([("s", SplineTransformer(), [0])], remainder="passthrough"),
    "levels": make_pipeline(  # bins hold a OneHotEncoder
        SimpleImputer(), KBinsDiscretizer(3, encode="onehot-dense"), SelectKBest(f_regression, k=4)
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_transformer_is_stored_with_the_estimator(name, tmp_path):
    est = fmrl.MetaRegressor(features=KINDS[name], common="linear").fit(X, Y, task=TASK)
    est.save(tmp_path / "model")
    again = fmrl.MetaRegressor.load(tmp_path / "model")
    few = X[:3], Y[:3]
    np.testing.assert_array_equal(again.adapt(*few).predict(X), est.adapt(*few).predict(X))
    assert repr(again.features) == repr(est.features) and again.n_features_in_ == 2
    again.update(X[:3] + 1, Y[:3], task="new").save(tmp_path / "again")


def test_a_curve_is_learned():
    plain, curved = (
        fmrl.MetaRegressor(features=f, common="linear").fit(X[:100], Y[:100], task=TASK[:100])
        for f in (None, KINDS["splines"])
    )
    some = slice(100, 104)
    r2 = [e.adapt(X[some], Y[some]).score(X[104:110], Y[104:110]) for e in (plain, curved)]
    assert r2[1] > r2[0] + 0.3


def test_rows_of_a_table_are_encoded_before():
    table = pl.DataFrame({"u": X[:, 0], "v": np.where(X[:, 1] > 0, "a", "b")})
    table = table.with_columns(pl.when(pl.int_range(120) % 7 > 0).then("u").alias("u"))
    est = fmrl.MetaRegressor(features=SplineTransformer(n_knots=3), common="linear").fit(
        table, Y, task=TASK
    )
    assert est.get_feature_names_out()[0] == "u_sp_0" and est.n_features_in_ == 2
    stream = est.stream()
    stream.learn({"u": None, "v": "b"}, 1.0)
    one = est.predict(table[:1])
    np.testing.assert_allclose(est.predict(table)[:1], one)


def test_tasks_that_are_numbers_already_take_none():
    tasks = group_by_task(Squared(), X, Y, None, TASK)
    with pytest.raises(FMRLError, match="numbers already; make the columns before"):
        fmrl.MetaRegressor(features=KINDS["splines"]).learn_tasks(tasks)


def test_what_cannot_be_used_or_stored_is_named(tmp_path):
    with pytest.raises(FMRLError, match="features must be a scikit-learn transformer"):
        fmrl.MetaRegressor(features=["x0"]).fit(X, Y, task=TASK)
    with pytest.raises(FMRLError, match="finite numbers"):
        fmrl.MetaRegressor(features=FunctionTransformer(np.log)).fit(X, Y, task=TASK)
    est = fmrl.MetaRegressor(features=FunctionTransformer(np.tanh), common="linear")
    with pytest.warns(fmrl.InputWarning, match="save will refuse this.*a ufunc"):
        est.fit(X, Y, task=TASK)
    with pytest.raises(FMRLError, match="cannot be stored"):
        est.save(tmp_path / "model")
    with pytest.raises(FMRLError, match="features="):
        est.adapt(X[:1], Y[:1]).to_torch()


def test_a_file_names_no_class_of_another_library():
    for module, name in (("os", "system"), ("sklearn.utils", "Bunch"), ("sklearn.base", "clone")):
        with pytest.raises(ValueError, match="not an estimator"):
            rebuild({"class": [module, name, {"dict": []}]}, {})
        with pytest.raises(ValueError, match="not a score"):
            rebuild({"score": [module, name]}, {})
