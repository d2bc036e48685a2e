"""Whole tasks are held out, k rows of each revealed, the rest scored; in all of scikit-learn's
loops, and to the end of a pipeline.
"""

import warnings
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fmrl

from .data import classification, regression

# Without trees: what is tested is which rows are revealed and scored.
Regressor = partial(fmrl.MetaRegressor, common="linear")
Classifier = partial(fmrl.MetaClassifier, common="linear")


@pytest.fixture
def routed():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def by_hand(make, X, y, task, shots, loss, split):
    """What the scores are at each number of shots, in a loop: a task's first rows are revealed."""
    out = {k: [] for k in shots}
    for train, test in split.split(X, y, task):
        estimator = make().fit(X[train], y[train], task=task[train])
        for k, scores in out.items():
            said, true = [], []
            for name in np.unique(task[test]):
                rows = test[task[test] == name]
                model = estimator.adapt(X[rows[:k]], y[rows[:k]])
                said.append(getattr(model, loss[0])(X[rows[k:]]))
                true.append(y[rows[k:]])
            scores.append(-loss[1](np.concatenate(true), np.concatenate(said)))
    return out


@pytest.mark.parametrize(
    ("make", "data", "loss"),
    [
        (fmrl.MetaRegressor, regression, ("predict", mean_squared_error)),
        (Classifier, classification, ("predict_proba", log_loss)),
    ],
    ids=["MetaRegressor", "MetaClassifier"],
)
def test_the_score_is_that_of_a_plain_loop(make, data, loss, routed):
    X, y, task = data(tasks=15, features=2)
    split = fmrl.FewShotSplit((1, 4), n_splits=3, random_state=None)
    found = fmrl.few_shot_score(
        make(), X, y, task=task, shots=(1, 4), n_splits=3, random_state=None
    )
    wanted = by_hand(make, X, y, task, (1, 4), loss, split)
    scoring = {str(k): fmrl.FewShotScorer(k, random_state=None) for k in wanted}
    each = cross_validate(make(), X, y, cv=split, scoring=scoring, params={"task": task})
    for k, scores in wanted.items():
        np.testing.assert_allclose(found[k], scores)
        np.testing.assert_allclose(each[f"test_{k}"], scores)


def test_every_task_is_held_out_whole_and_once():
    X, y, task = regression(tasks=11, rows=5)
    held = []
    for train, test in fmrl.FewShotSplit(4, n_splits=3).split(X, y, task):
        assert not set(task[train]) & set(task[test])
        np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(55))
        held += sorted(set(task[test]))
    assert sorted(held) == list(range(11))
    assert fmrl.FewShotSplit(n_splits=3).get_n_splits() == 3


def test_order_and_names_do_not_matter_and_the_seed_does():
    X, y, task = classification(tasks=24)
    given = {"shots": (2,), "n_splits": 3}
    score = lambda X, y, task, **kw: fmrl.few_shot_score(  # noqa: E731
        LogisticRegression(), X, y, task=task, **(given | kw)
    )[2]
    wanted = score(X, y, task)
    order = np.random.default_rng(0).permutation(len(y))
    np.testing.assert_allclose(score(X[order], y[order], task[order]), wanted, rtol=1e-5)
    names = np.random.default_rng(1).permutation(24).astype(str)[task]
    np.testing.assert_allclose(score(X, y, names), wanted, rtol=1e-5)
    frame = pd.DataFrame(X, columns=list("abcd"))
    for same in (frame, pd.DataFrame(X), pl.DataFrame(frame), frame.to_numpy().tolist()):
        np.testing.assert_allclose(score(same, y, task), wanted, rtol=1e-5)
    assert not np.allclose(score(X, y, task, random_state=1), wanted)
    estimator = fmrl.MetaClassifier().fit(X, y, task=task)
    scorer = fmrl.FewShotScorer(3)
    wanted = scorer(estimator, X, y, task=task)
    assert scorer(estimator, X[order], y[order], task=names[order]) == pytest.approx(wanted)
    assert fmrl.FewShotScorer(3, random_state=1)(estimator, X, y, task=task) != wanted


def test_k_rows_of_each_task_are_revealed_and_none_of_them_is_scored():
    X, y, task = regression(tasks=6, rows=8)
    seen = []

    class Spy(fmrl.MetaRegressor):
        def adapt(self, X, y, sample_weight=None):
            seen.append(X)
            return super().adapt(X, y)

    scored = []

    def scorer(estimator, X, y):
        scored.extend(zip(estimator.parts, [len(y)] * len(estimator.parts), strict=True))
        return 0.0

    fmrl.FewShotScorer(3, scorer)(Spy().fit(X, y, task=task), X, y, task=task)
    assert [len(few) for few in seen] == [3] * 6 and scored[0][1] == 6 * 5
    for few, (rest, _) in zip(seen, scored, strict=True):
        both = np.concatenate([few, rest])
        assert len(rest) == 5 and len(np.unique(both, axis=0)) == 8
        (owner,) = {int(task[np.flatnonzero((row == X).all(axis=1))[0]]) for row in both}
        assert owner in range(6)


def test_more_rows_help_and_adapting_beats_one_model_for_all():
    X, y, task = regression(tasks=60, spread=1.0)
    ours = fmrl.few_shot_score(Regressor(), X, y, task=task, shots=(1, 8))
    pooled = fmrl.few_shot_score(Ridge(), X, y, task=task, shots=(1, 8))
    assert ours[8].mean() > ours[1].mean() and ours[8].mean() > pooled[8].mean()
    r2 = fmrl.few_shot_score(Regressor(), X, y, task=task, shots=8, scoring="r2")[8]
    assert (r2 < 1).all() and r2.mean() > 0.5


def test_a_grid_is_searched_by_what_new_tasks_get(routed):
    X, y, task = regression(tasks=40, spread=1.0)
    y = y + 5.0
    grid = {"fit_intercept": [False, True], "environment": ["stationary", fmrl.Window(20)]}
    scorer, split = fmrl.FewShotScorer(8), fmrl.FewShotSplit(8, n_splits=3)
    search = GridSearchCV(Regressor(), grid, scoring=scorer, cv=split, error_score="raise")
    search.fit(X, y, task=task)
    assert search.best_params_["fit_intercept"]  # y lies around 5
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    given = {"scoring": scorer, "cv": split, "params": {"task": task}}
    one = cross_val_score(search.best_estimator_, X, y, **given)
    assert one.mean() == pytest.approx(search.best_score_)
    model = fmrl.adapt(search, X[:8], y[:8])
    assert model.score(X[:12], y[:12]) > 0.5


def test_a_column_names_the_tasks_with_and_without_routing():
    X, y, task = classification(tasks=15, classes=2)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(shop=task)
    wanted = fmrl.few_shot_score(Classifier(), X, y, task=task, shots=4, n_splits=2)[4]
    np.testing.assert_allclose(
        fmrl.few_shot_score(Classifier(), frame, y, task="shop", shots=4, n_splits=2)[4],
        wanted,
    )
    split, scorer = fmrl.FewShotSplit(4, 2), fmrl.FewShotScorer(4)
    given = {"cv": split, "scoring": scorer, "params": {"task": "shop"}, "error_score": "raise"}
    legacy = cross_validate(Classifier(), frame, y, groups=frame["shop"], **given)
    with sklearn.config_context(enable_metadata_routing=True):
        now = cross_validate(Classifier(), frame, y, **given)
    np.testing.assert_allclose(now["test_score"], wanted)
    assert np.isfinite(legacy["test_score"]).all()


def test_small_tasks_are_learned_from_never_scored_and_counted_once():
    X, y, task = regression(tasks=12, rows=6)
    few = np.concatenate([np.flatnonzero(task >= 3), np.flatnonzero(task < 3)[::3]])
    X, y, task = X[few], y[few], task[few]
    with pytest.warns(fmrl.InputWarning, match="3 of 12 tasks have no more than 4 rows") as caught:
        fmrl.few_shot_score(fmrl.MetaRegressor(), X, y, task=task, shots=(1, 4), n_splits=3)
    assert sum("rows: they are not scored" in str(w.message) for w in caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fmrl.InputWarning)
        for train, test in fmrl.FewShotSplit(4, n_splits=3).split(X, y, task):
            assert set(task[train]) >= {0, 1, 2} and not {0, 1, 2} & set(task[test])


def test_requests_that_make_no_sense_are_refused():
    X, y, task = regression(tasks=6, rows=6)
    split = fmrl.FewShotSplit
    for given, groups, message in [
        ({"shots": 3, "n_splits": 7}, task, "6 tasks with more than 3 rows make no 7 folds"),
        ({"shots": 3, "n_splits": 1}, task, "make no 1 folds"),
        ({"shots": -1}, task, "is not a number of rows"),
        ({"shots": ()}, task, "is not a number of rows"),
        ({"shots": 3}, None, "every row; .*only .*metadata_routing=True.*params={'task': task}"),
    ]:
        with pytest.raises(fmrl.FMRLError, match=message):
            list(split(**given).split(X, y, groups))
    reg = fmrl.MetaRegressor().fit(X, y, task=task)
    with pytest.raises(fmrl.FMRLError, match=r"enable_metadata_routing.*; groups= does not"):
        fmrl.FewShotScorer()(reg, X, y)
    with pytest.warns(fmrl.InputWarning, match="FewShotSplit only holds tasks out.*FewShotScorer"):
        reg.predict(X[:1], task=["new"])
    with pytest.raises(fmrl.FMRLError, match="no task has more than 6 rows"):
        fmrl.FewShotScorer(6)(reg, X, y, task=task)
    with pytest.warns(UserWarning, match=r"no scoring= \(use FewShotScorer there\)"):
        cross_val_score(reg, X, y, cv=2, params={"task": task}, scoring=fmrl.few_shot_score)
    with pytest.warns(fmrl.InputWarning, match=r"shots=\(1, 3\)\) gives the mean score over all"):
        mean = fmrl.FewShotScorer((1, 3))(reg, X, y, task=task)
    each = [fmrl.FewShotScorer(k)(reg, X, y, task=task) for k in (1, 3)]
    assert mean == pytest.approx(np.mean(each))
    with pytest.raises(fmrl.FMRLError, match="Ridge cannot adapt"):
        fmrl.adapt(Ridge().fit(X, y), X, y)


def mixed():
    X, y, task = classification(tasks=15, classes=2)
    frame = pd.DataFrame(X, columns=list("abcd"))
    return frame.assign(kind=np.where(X[:, 3] > 0, "up", "down")).drop(columns="d"), y, task


def test_a_pipeline_with_transformed_columns_adapts():
    frame, y, task = mixed()
    kinds = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
    columns = [("numbers", StandardScaler(), list("abc")), ("kinds", kinds, ["kind"])]
    pipe = Pipeline([("prep", ColumnTransformer(columns)), ("meta", Classifier())])
    pipe.fit(frame, y, meta__task=task)
    model = fmrl.adapt(pipe, frame[:4], y[:4])
    rows = pipe["prep"].transform(frame)
    wanted = pipe["meta"].adapt(rows[:4], y[:4]).predict_proba(rows)
    np.testing.assert_array_equal(model.predict_proba(frame), wanted)
    with sklearn.config_context(enable_metadata_routing=True):
        last = Classifier().set_fit_request(task=True)
        for meta in (last, Classifier()):  # asked for, or as it comes
            again = Pipeline([("prep", ColumnTransformer(columns)), ("meta", meta)])
            again.fit(frame, y, task=task)
            said = fmrl.adapt(again, frame[:4], y[:4]).predict_proba(frame)
            np.testing.assert_array_equal(said, wanted)
            seen = again.predict(frame, task=task)
            np.testing.assert_array_equal(seen, again["meta"].predict(rows, task=task))
        search = GridSearchCV(
            again, {"meta__fit_intercept": [True, False]}, cv=fmrl.FewShotSplit(4, 3),
            scoring=fmrl.FewShotScorer(4), error_score="raise",
        )  # fmt: skip
        search.fit(frame, y, task=task)
    scores = fmrl.few_shot_score(again, frame, y, task=task, shots=4, n_splits=3)[4]
    assert scores.mean() == pytest.approx(search.cv_results_["mean_test_score"][0])


def test_a_table_needs_no_pipeline():
    frame, y, task = mixed()
    ours = fmrl.few_shot_score(Classifier(), frame, y, task=task, shots=4, n_splits=2)[4]
    kinds = OneHotEncoder(sparse_output=False)
    prepared = make_pipeline(
        ColumnTransformer([("kinds", kinds, ["kind"])], remainder="passthrough"),
        Classifier(),
    )
    by_steps = fmrl.few_shot_score(prepared, frame, y, task=task, shots=4, n_splits=2)[4]
    np.testing.assert_allclose(ours, by_steps, rtol=0.02)


def test_the_column_of_the_constructor_names_the_tasks():
    """It asked for task= again."""
    X, y, task = regression(tasks=12, rows=8)
    frame = pd.DataFrame(X).add_prefix("x").assign(shop=task)
    given = {"shots": 2, "n_splits": 3}
    named = fmrl.few_shot_score(fmrl.MetaRegressor("shop", common="linear"), frame, y, **given)
    told = fmrl.few_shot_score(fmrl.MetaRegressor(common="linear"), X, y, task=task, **given)
    np.testing.assert_allclose(named[2], told[2])


def test_a_transformed_target_adapts():
    """A target that is learned as its logarithm: adapting was refused."""
    X, y, task = regression(tasks=12, rows=8)
    plain = fmrl.MetaRegressor(common="linear").fit(X, y, task=task)
    logs = TransformedTargetRegressor(fmrl.MetaRegressor(common="linear"), func=np.log,
                                      inverse_func=np.exp)  # fmt: skip
    logs.fit(X, np.exp(y), task=task)
    for few in (0, 4):
        adapted = fmrl.adapt(logs, X[:few], np.exp(y[:few]))
        expected = np.exp(plain.adapt(X[:few], y[:few]).predict(X))
        np.testing.assert_allclose(adapted.predict(X), expected, rtol=1e-9)
    before = np.exp(plain.predict(X[:5], task=task[:5]))
    np.testing.assert_allclose(logs.regressor_.predict(X[:5], task=task[:5]), np.log(before))
