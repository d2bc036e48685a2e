"""``task=`` in the constructor: tools of scikit-learn that know no tasks need no routing."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import StackingClassifier, StackingRegressor, VotingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import (
    KFold,
    StratifiedKFold,
    cross_val_predict,
    cross_val_score,
    learning_curve,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import fmrl

from .data import classification, regression

LINEAR = {"common": "linear", "environment": "stationary"}


def frame_of(X, task):
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame.insert(2, "shop", pd.Series(task).map("S{:02}".format))
    return frame


def classes(**given):
    """A frame whose column names the tasks, labels, and an estimator that knows the column."""
    X, y, task = classification(tasks=12, rows=10, classes=2, spread=1.5, size=0.7)
    y = np.array(["no", "yes"])[y]
    return frame_of(X, task), y, task, fmrl.MetaClassifier("shop", **LINEAR | given)


def numbers(**given):
    X, y, task = regression(tasks=12, rows=10, spread=1.0)
    return frame_of(X, task), y, task, fmrl.MetaRegressor(task="shop", **LINEAR | given)


@pytest.mark.parametrize("make", [classes, numbers])
def test_a_column_in_the_constructor_is_a_column_in_fit(make):
    frame, y, _, est = make()
    by_fit = type(est)(**LINEAR).fit(frame, y, task="shop")
    est.fit(frame, y)
    assert est.tasks_ == by_fit.tasks_ == [f"S{t:02}" for t in range(12)]
    np.testing.assert_array_equal(est.coef_, by_fit.coef_)
    np.testing.assert_array_equal(est.predict(frame), by_fit.predict(frame))
    assert est.score(frame, y) == by_fit.score(frame, y, task="shop")
    assert list(est.get_feature_names_out()) == list("abcd")
    new = frame[:5].assign(shop="S99")
    est.update(new[:3], y[:3]).partial_fit(new[3:], y[3:5])
    by_fit.update(new, y[:5])
    for one in (est, by_fit):
        assert one._rows.take(["S99"]).lengths.tolist() == [5]
    np.testing.assert_array_equal(est.model("S99").coef_, by_fit.model("S99").coef_)
    given = {} if make is numbers else {"classes": ["no", "yes"]}
    for first in (clone(est).update(frame[:20], y[:20]), clone(est)):
        first.partial_fit(frame[:20], y[:20], **given)
        assert first.tasks_ == ["S00", "S01"]
    assert repr(clone(est)) == repr(est) and clone(est).task == "shop"


@pytest.mark.parametrize("make", [classes, numbers])
def test_an_array_in_fit_and_predict_overrides(make):
    frame, y, task, est = make()
    X, other = frame[list("abcd")], task % 3
    est.fit(X, y, task=other)
    assert est.tasks_ == [0, 1, 2]
    plain = type(est)(**LINEAR).fit(X, y, task=other)
    np.testing.assert_array_equal(est.coef_, plain.coef_)
    np.testing.assert_array_equal(est.predict(X, task=other), plain.predict(X, task=other))
    by_column = clone(est).fit(frame, y)
    moved = frame["shop"].to_numpy()[::-1]
    np.testing.assert_array_equal(
        by_column.predict(frame, task=moved), by_column.predict(frame.assign(shop=moved))
    )


@pytest.mark.parametrize("make", [classes, numbers])
def test_a_table_without_the_column_is_named(make):
    frame, y, _, est = make()
    with pytest.raises(ValueError, match="shop"):
        est.fit(frame.drop(columns="shop"), y)
    with pytest.raises(ValueError, match="shop"):
        est.fit(frame.drop(columns="shop").to_numpy(), y)


@pytest.mark.parametrize("make", [classes, numbers])
def test_cross_validation_is_that_of_a_loop(make):
    frame, y, _, est = make()
    split = KFold(3, shuffle=True, random_state=0)
    by_hand, said = [], np.empty_like(y)
    for train, test in split.split(frame):
        one = clone(est).fit(frame.iloc[train], y[train])
        by_hand.append(one.score(frame.iloc[test], y[test]))
        said[test] = one.predict(frame.iloc[test])
    with warnings.catch_warnings():
        warnings.simplefilter("error", fmrl.InputWarning)
        np.testing.assert_array_equal(cross_val_score(est, frame, y, cv=split), by_hand)
        np.testing.assert_array_equal(cross_val_predict(est, frame, y, cv=split), said)
    one_task = cross_val_score(type(est)(**LINEAR), frame.drop(columns="shop"), y, cv=split)
    assert np.mean(by_hand) > one_task.mean() + 0.03  # the tasks were used


def test_a_learning_curve():
    frame, y, _, est = classes()
    split = StratifiedKFold(2, shuffle=True, random_state=0)
    sizes, train, test = learning_curve(
        est, frame, y, train_sizes=[0.5, 1.0], cv=split, shuffle=True, random_state=0
    )
    assert sizes.tolist() == [30, 60] and np.isfinite(train).all() and np.isfinite(test).all()
    first, second = next(iter(split.split(frame, y)))
    whole = clone(est).fit(frame.iloc[first], y[first])
    # Rows in another order are tasks in another order, of which others are held out together.
    assert test[1, 0] == pytest.approx(whole.score(frame.iloc[second], y[second]), abs=0.05)


def test_calibration_votes_and_stacks():
    frame, y, _, est = classes()
    split = StratifiedKFold(2, shuffle=True, random_state=0)
    line = make_pipeline(
        FunctionTransformer(lambda X: X[list("abcd")]), LogisticRegression()
    )  # fmt: skip
    alone = cross_val_score(line, frame, y, cv=split).mean()
    tools = {
        "calibrated": CalibratedClassifierCV(est, cv=split),
        "voting": VotingClassifier([("meta", est), ("line", line)], voting="soft"),
        "stacking": StackingClassifier([("meta", est), ("line", line)], cv=split),
    }
    for name, tool in tools.items():
        tool.fit(frame, y)
        chances = tool.predict_proba(frame)
        assert chances.shape == (len(y), 2) and np.isfinite(chances).all(), name
        assert tool.score(frame, y) > alone, name
        assert set(tool.predict(frame)) == {"no", "yes"}
    meta = tools["voting"].named_estimators_["meta"]  # of labels as numbers
    assert meta.tasks_ == [f"S{t:02}" for t in range(12)]
    alone = clone(est).fit(frame, y)
    np.testing.assert_array_equal(meta.predict_proba(frame), alone.predict_proba(frame))


def test_targets_are_transformed_and_numbers_stacked():
    frame, y, _, est = numbers()
    scaled = TransformedTargetRegressor(est, func=lambda v: v / 10, inverse_func=lambda v: v * 10)
    np.testing.assert_allclose(
        scaled.fit(frame, y).predict(frame), est.fit(frame, y).predict(frame), rtol=1e-6
    )
    stack = StackingRegressor(
        [("meta", est)],
        final_estimator=LinearRegression(),
        cv=KFold(3, shuffle=True, random_state=0),
    )
    assert stack.fit(frame, y).score(frame, y) > 0.9


def test_a_pipeline_keeps_what_scikit_learn_stores_on_its_last_step():
    """fit replaced everything that the estimator had, and pipelines failed."""
    frame, y, task, est = classes()
    X = frame[list("abcd")].to_numpy()
    pipe = make_pipeline(FunctionTransformer(), est).fit(frame, y)
    assert pipe[-1].tasks_ == [f"S{t:02}" for t in range(12)]
    with config_context(enable_metadata_routing=True):
        asked = fmrl.MetaClassifier(**LINEAR).set_fit_request(sample_weight=True)
        before = asked.get_metadata_routing().fit.requests
        assert before["sample_weight"] is True
        assert asked.fit(X, y, task=task).get_metadata_routing().fit.requests == before
    assert len(asked.fit(X[:60], y[:60]).tasks_) == 1  # what an earlier fit learned is forgotten


@pytest.mark.parametrize("make", [classes, numbers])
def test_it_is_stored_with_the_estimator(make, tmp_path):
    frame, y, _, est = make()
    est.fit(frame, y).save(tmp_path / "model")
    again = type(est).load(tmp_path / "model")
    assert again.task == "shop" and repr(again) == repr(est)
    np.testing.assert_array_equal(again.predict(frame), est.predict(frame))
    new = frame[:4].assign(shop="S77")
    assert again.update(new, y[:4]).tasks_[-1] == "S77"


def test_a_clone_says_that_it_leaves_the_store_out(tmp_path):
    _, _, _, est = numbers(store=tmp_path / "rows")
    with pytest.warns(fmrl.InputWarning, match="a store= belongs to one estimator"):
        assert clone(est).store is None
    with warnings.catch_warnings():
        warnings.simplefilter("error", fmrl.InputWarning)
        assert clone(est.set_params(store=None)).store is None


def test_verbose_says_what_is_done_on_standard_error(capsys):
    for verbose in (False, True):
        frame, y, _, est = numbers(verbose=verbose)
        est.fit(frame, y)
        out, err = capsys.readouterr()
        lines = err.splitlines()
        assert not out and len(lines) == (3 if verbose else 0)
        assert all(line.startswith("[MetaRegressor ") for line in lines)
