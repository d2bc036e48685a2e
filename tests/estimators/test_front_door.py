"""What is wrong with a target, a row or a task is named, whichever way it comes in."""

import inspect
import warnings
from copy import deepcopy
from functools import cache

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import csr_array
from sklearn.model_selection import GridSearchCV

import fmrl

from .data import classification, regression

ROW = 7  # of task 1
KINDS = {"regression": fmrl.MetaRegressor, "classification": fmrl.MetaClassifier}


def table(kind):
    X, y, task = (regression if kind == "regression" else classification)(tasks=12, rows=5)
    return X, y if kind == "regression" else np.array(["no", "perhaps", "yes"])[y], task


def new(kind):
    return KINDS[kind](common="linear", environment="stationary")


@cache
def fitted(kind):
    X, y, task = table(kind)
    return new(kind).fit(X, y, task=task)


def known(kind):
    return deepcopy(fitted(kind))


LEARN = {  # ways to give rows and targets, and what is learned from them
    "fit": lambda kind, X, y, task: new(kind).fit(X, y, task=task).coef_,
    "first partial_fit": lambda kind, X, y, task: new(kind).partial_fit(X, y, task="a").coef_,
    "first update": lambda kind, X, y, task: new(kind).update(X, y, task=task).coef_,
    "partial_fit": lambda kind, X, y, task: (
        known(kind).partial_fit(X, y, task="a").model("a").coef_
    ),
    "update": lambda kind, X, y, task: known(kind).update(X, y, task=task).model(1).coef_,
    "adapt": lambda kind, X, y, task: known(kind).adapt(X, y).coef_,
    "adapt_many": lambda kind, X, y, task: known(kind).adapt_many(X, y, task).coef_,
    "refit": lambda kind, X, y, task: known(kind).model(0).fit(X, y).coef_,
    "score": lambda kind, X, y, task: known(kind).score(X, y, task=task),
    "few_shot_score": lambda kind, X, y, task: fmrl.few_shot_score(
        new(kind), X, y, task=task, shots=1, n_splits=2
    )[1],
}
ASK = {  # ways to ask about rows
    "predict": lambda kind, X, task: known(kind).predict(X, task=task),
    "a stream's predict": lambda kind, X, task: np.array(
        list(map(known(kind).stream(0).predict, X))
    ),
    "a model's predict": lambda kind, X, task: known(kind).model(0).predict(X),
    "predict_proba": lambda kind, X, task: known("classification").predict_proba(X, task=task),
    "predict_interval": lambda kind, X, task: known("regression").predict_interval(X, task=task),
}
NAMED = {"first partial_fit": " \\(task 'a'\\)", "partial_fit": " \\(task 'a'\\)"}
NAMED |= dict.fromkeys(("adapt", "refit"), "")  # whose rows are of one task without a name


def masked(values, places):
    return np.ma.array(values, mask=np.isin(np.arange(len(values)), places))


GAPS = {
    "NaN": lambda y: pd.Series(y).where(np.arange(len(y)) != ROW, np.nan).to_numpy(),
    "None": lambda y: [None if i == ROW else v for i, v in enumerate(y.tolist())],
    "NA": lambda y: pd.Series(y).convert_dtypes().where(np.arange(len(y)) != ROW, pd.NA),
    "null": lambda y: pl.Series([None if i == ROW else v for i, v in enumerate(y.tolist())]),
    "masked": lambda y: masked(y, [ROW]),
}


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_target_is_named_by_row_and_task(kind, gap):
    X, y, task = table(kind)
    for way, learn in LEARN.items():
        where = f"y of row {ROW}{NAMED.get(way, ' .task 1.')} is missing; drop"
        with pytest.raises(fmrl.FMRLError, match=where):
            learn(kind, X, GAPS[gap](y), task)


DAYS = np.datetime64("2024-03-01") + np.arange(60)
NO_NUMBERS = {
    "dates": (DAYS, "2024-03-01"),
    "dates of pandas": (pd.Series(DAYS.astype("M8[ns]")), "2024-03-01"),
    "dates with a zone": (pd.Series(DAYS.astype("M8[ns]")).dt.tz_localize("UTC"), "2024-03-01"),
    "dates of polars": (pl.Series(DAYS.astype(object)), "2024-03-01"),
    "dates as objects": (DAYS.astype(object).tolist(), "2024-03-01"),
    "durations": (np.arange(60).astype("m8[h]"), "0 hours"),
    "text": (np.array(["no", "yes"] * 30), "'no'"),
    "text of pandas": (pd.Series(["no", "yes"] * 30), "'no'"),
    "text of polars": (pl.Series(["no", "yes"] * 30), "'no'"),
    "numbers as text": ([f"{i}.5" for i in range(60)], "'0.5'"),
    "an infinite number": (np.array([np.inf, *range(59)], dtype=object), "inf"),
}


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_a_regressor_says_what_is_no_number(name):
    X, _, task = table("regression")
    y, shown = NO_NUMBERS[name]
    for way, learn in LEARN.items():
        with pytest.raises(fmrl.FMRLError, match=f"y of row 0.*{shown}.*numbers"):
            learn("regression", X, y, task)
            pytest.fail(way)


def test_labels_of_another_kind_are_named():
    X, _, task = table("classification")
    for way in ("partial_fit", "update", "adapt", "adapt_many", "refit"):
        with pytest.raises(fmrl.FMRLError, match=r"row 0: the label .* is not one of the classes"):
            LEARN[way]("classification", X, DAYS, task)


def same(one, other):
    if one.dtype.kind == "f":
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    else:
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_value_is_a_gap(kind):
    X, y, task = table(kind)
    hidden = np.random.default_rng(0).random(X.shape) < 0.2
    gaps, mask = np.where(hidden, np.nan, X), np.ma.array(np.where(hidden, 1e6, X), mask=hidden)
    for learn in LEARN.values():
        same(np.asarray(learn(kind, mask, y, task)), np.asarray(learn(kind, gaps, y, task)))
    for ask in ASK.values():
        same(ask(kind, mask, task), ask(kind, gaps, task))
    whole = np.ma.array(X, mask=False), masked(y, []), masked(task, [])
    same(LEARN["fit"](kind, *whole), fitted(kind).coef_)


def test_masked_texts_and_dates_are_gaps_and_a_masked_task_has_no_name():
    X, y, task = table("regression")
    words, days = np.array(["red", "blue", "green"] * 20), DAYS.astype("M8[ns]")
    for column in (words, days):
        given = masked(column, range(0, 60, 7))[:, None]
        gaps = [[None if i % 7 == 0 else v] for i, v in enumerate(pd.Series(column))]
        gaps = np.array(gaps, dtype=object)
        same(*(new("regression").fit(rows, y, task=task).predict(rows) for rows in (given, gaps)))
    for ids in (masked(task, [ROW]), masked(task.astype(str), [ROW])):
        for way in ("fit", "update", "adapt_many", "few_shot_score"):
            with pytest.raises(fmrl.FMRLError, match=f"row {ROW} has no task id"):
                LEARN[way]("regression", X, y, ids)
        with pytest.raises(fmrl.FMRLError, match=f"row {ROW} has no task id"):
            ASK["predict"]("regression", X, ids)


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_are_no_task_and_a_task_must_be_told(kind):
    X, y, task = table(kind)
    frame = pl.DataFrame(X, schema=list("abcd")).with_columns(who=task)
    est, by_column = known(kind), new(kind).fit(frame, y, task="who")
    for given in ((est, X, task), (by_column, frame, None), (by_column, frame.to_pandas(), "who")):
        one, rows, ids = given
        none = one.adapt_many(rows[:0], y[:0], ids if isinstance(ids, str | None) else ids[:0])
        assert len(none) == 0 and none.coef_.shape[0] == 0
        before = one.tasks_, one.predict(rows, task=ids).tolist()
        one.update(rows[:0], y[:0], ids if isinstance(ids, str | None) else ids[:0])
        assert (one.tasks_, one.predict(rows, task=ids).tolist()) == before
    for one, rows in ((est, X), (by_column, frame.drop("who"))):
        for call in (one.adapt_many, one.update):
            with pytest.raises(fmrl.FMRLError, match=r"task= is missing; give task=: ids"):
                call(rows, y)
    for call in (est.adapt, lambda X, y: est.adapt_many(X, y, [])):
        with pytest.raises(fmrl.FMRLError, match="X is an empty list; no rows are"):
            call([], [])
    with pytest.raises(fmrl.FMRLError, match="no row of the task 0 counts"):
        est.adapt_many(X, y, task, sample_weight=(task > 0).astype(float))


@pytest.mark.parametrize("classes", [2, 4])
def test_huge_numbers_are_refused_or_answered_without_a_warning_before(classes):
    X, y, task = classification(tasks=12, rows=5, classes=classes)
    est = fmrl.MetaClassifier(common="linear").fit(X, y, task=task)
    ways = (
        lambda X: fmrl.MetaClassifier().fit(X, y, task=task),
        lambda X: fmrl.MetaClassifier().partial_fit(X, y),
        lambda X: est.partial_fit(X, y, task="a"),
        lambda X: est.update(X, y, task=task),
        lambda X: est.adapt(X, y),
        lambda X: est.adapt_many(X, y, task),
    )
    for huge in (np.sign(X) * 1e308, np.abs(X) * 1e306, np.full(X.shape, 1e308)):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            for learn in ways:
                with pytest.raises(fmrl.FMRLError, match="scale"):
                    learn(huge)
            for one in (est, est.model(0)):
                with pytest.raises(fmrl.FMRLError, match=r"row 0 .* too large.*scale"):
                    one.predict_proba(huge)
            assert set(est.predict(huge / 1e10)) <= set(y)


def test_a_target_beyond_squaring_is_refused_without_a_warning_before():
    X, y, task = regression(tasks=12)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        big = fmrl.MetaRegressor(common="linear").fit(X * 1e80, y * 1e90, task=task)
        plain = fmrl.MetaRegressor(common="linear").fit(X, y, task=task)
        same(big.predict(X * 1e80, task=task) / 1e90, plain.predict(X, task=task))
        with pytest.raises(fmrl.FMRLError, match="scale"):
            fmrl.MetaRegressor().fit(X * 1e100, y * 1e120, task=task)
        with pytest.raises(fmrl.FMRLError, match="scale"):
            fmrl.MetaRegressor().fit(X, y).adapt(X[:2] * 1e200, [1.7e308, 1.7e308])


@pytest.mark.parametrize("library", [pd, pl])
def test_what_newcomers_give_instead_is_named(library):
    X, y, task = table("regression")
    frame = library.DataFrame(dict(zip("wxyz", X.T, strict=True)))
    est = new("regression").fit(frame, y, task=task)
    for call in (est.predict, lambda row: est.adapt(row, y[:1]), lambda row: est.fit(row, y)):
        with pytest.raises(fmrl.FMRLError, match="X is a Series, one row or column; give a table"):
            call(frame["w"])
    for way, learn in LEARN.items():
        with pytest.raises(fmrl.FMRLError, match=r"y is the text 'days', .*; give the column"):
            learn("regression", frame, "days", task)
            pytest.fail(way)
    for target in (y, np.where(y > 0, "yes", "no")):
        rows = library.DataFrame({"a": X[:, 0], "b": X[:, 1], "t": target})
        kind = "regression" if target is y else "classification"
        with pytest.warns(fmrl.InputWarning, match="column 't' is the target itself: leave it out"):
            new(kind).fit(rows, target, task=task)


TEXTS = ["string", "string[pyarrow]", object]


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_a_gap_of_pandas_in_text_is_a_gap_and_in_a_task_an_error(kind):
    X, y, task = table("regression")
    note = pd.Series(np.where(X[:, 1] > 0, "up", "down")).astype(kind)
    note[ROW] = pd.NA
    frame = pd.DataFrame({"x": X[:, 0], "note": note})
    same_rows = pl.DataFrame({"x": X[:, 0], "note": [None if pd.isna(v) else v for v in note]})
    said = [new("regression").fit(rows, y, task=task).predict(rows) for rows in (frame, same_rows)]
    same(*said)
    ids = pd.Series(task).astype(str).astype(kind)
    ids[ROW] = pd.NA
    for given in (ids, ids.tolist(), ids.to_numpy()):
        for way in ("fit", "update", "adapt_many", "few_shot_score"):
            with pytest.raises(fmrl.FMRLError, match=f"row {ROW} has no task id"):
                LEARN[way]("regression", X, y, given)
    with pytest.raises(fmrl.FMRLError, match=f"row {ROW} has no task id"):
        new("regression").fit(frame.assign(shop=ids), y, task="shop")


LABELS = {"boolean": bool, "bool[pyarrow]": bool, "Int64": int, "int64[pyarrow]": int}
LABELS |= {"UInt8": np.uint8, "objects": bool}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_pandas_own_kinds_stay_what_they_are(kind):
    X, _, task = table("classification")
    plain = (X[:, 0] > 0).astype(LABELS[kind])
    y = pd.Series(plain).astype(object if kind == "objects" else kind)
    clf, wanted = new("classification").fit(X, y, task=task), [LABELS[kind](0), LABELS[kind](1)]
    few = slice(0, 5)
    model = clf.adapt(X[few], y[few])
    for found in (clf.classes_, model.classes_, np.unique(clf.predict(X))):
        assert found.dtype == np.dtype(LABELS[kind]) and found.tolist() == wanted
    before = model.coef_
    same(before, clf.adapt(X[few], plain[few]).coef_)
    clf.update(X[few], y[few], task=task[few])
    with clf.stream(task[0]) as stream:
        stream.learn(X[0], y[0])
    clf.partial_fit(X[few], y[few], task="one more")
    assert clf.score(X, y, task=task) == clf.score(X, plain, task=task) > 0.5
    assert fmrl.few_shot_score(new("classification"), X, y, task=task, shots=1, n_splits=2)


def test_what_newcomers_give_as_tasks_is_taken_or_named():
    X, y, task = table("regression")
    frame = pd.DataFrame(X, columns=list("wxyz"))
    shop = pd.Series(task, name="shop").map("S{:03}".format)
    est = new("regression").fit(frame, y, task=shop)
    for ids in (shop.to_frame(), shop.to_numpy()[:, None], pl.DataFrame({"shop": shop.tolist()})):
        again = new("regression").fit(frame, y, task=ids)
        same(again.coef_, est.coef_)
        same(again.predict(frame, task=ids), est.predict(frame, task=shop))
        again.update(frame[:5], y[:5], task=ids[:5])
    keys = list(zip(shop, task, strict=True))
    for ids in (keys, pd.DataFrame(keys)):
        with pytest.raises(fmrl.FMRLError, match="join the keys into one name"):
            new("regression").fit(frame, y, task=ids)
    for names in (["S000", "S001"], np.array(["S000", "S001"]), pd.Series(["S000"])):
        with pytest.raises(fmrl.FMRLError, match="is not one name; call it for each"):
            est.forget(names)
    for library in (pd, pl):
        alone = library.DataFrame({"shop": shop.tolist()})
        with pytest.raises(fmrl.FMRLError, match="no feature beside the task 'shop'; give another"):
            new("regression").fit(alone, y, task="shop")
    code = pd.DataFrame({"code": [f"c{i}" for i in range(len(y))]})
    with (
        pytest.warns(fmrl.InputWarning, match="'code' holds text that differs"),
        pytest.raises(fmrl.FMRLError, match="no feature is left: every column is text"),
    ):
        new("regression").fit(code, y, task=shop)


@pytest.mark.parametrize("common", ["linear", "auto"])
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_no_rows_to_predict_have_no_answers(classes, common):
    X, y, task = regression() if not classes else classification(classes=classes)
    est = (fmrl.MetaClassifier if classes else fmrl.MetaRegressor)(common=common)
    model = est.fit(X, y, task=task).adapt(X[:4], y[:4])
    shapes = {"predict": (0,), "predict_interval": (0, 2), "predict_proba": (0, classes)}
    shapes["decision_function"] = (0,) if classes == 2 else (0, classes)
    for name, shape in shapes.items():
        if hasattr(est, name):
            answers = [getattr(est, name)(X[:0], task=task[:0]), getattr(est, name)(X[:0])]
            assert [a.shape for a in (*answers, getattr(model, name)(X[:0]))] == [shape] * 3
    with pytest.raises(ValueError, match="3 features"):
        est.predict(X[:0, :3])


def test_sparse_rows_are_refused_with_what_to_do():
    X, y, task = table("regression")
    est, sparse = known("regression"), csr_array(X)
    for call in (
        lambda: new("regression").fit(sparse, y, task=task),
        lambda: est.predict(sparse),
        lambda: est.adapt(sparse, y),
    ):
        with pytest.raises(fmrl.FMRLError, match=r"sparse.*OneHotEncoder\(sparse_output=False\)"):
            call()


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_to_learn_from_are_named(kind):
    X, y, task = table(kind)
    frame = pd.DataFrame(X, columns=list("wxyz")).assign(shop=task.astype(str))
    none = y[:0]
    for rows, ids in ((X, task[:0]), (frame, frame["shop"][:0]), (frame, "shop")):
        with pytest.raises(fmrl.FMRLError, match="there are no rows"):
            new(kind).fit(rows[:0], none, task=ids)
    with pytest.raises(fmrl.FMRLError, match="there are no rows"):
        new(kind).partial_fit(X[:0], none, task="a")
    est = known(kind)  # which has rows already: none more change nothing
    assert est.partial_fit(X[:0], none, task="a").tasks_ == fitted(kind).tasks_


def test_two_columns_of_one_name_are_named():
    X, y, task = table("regression")
    twice = pd.DataFrame(X, columns=list("wxxz"))
    est = new("regression").fit(twice.set_axis(list("wxyz"), axis=1), y, task=task)
    for call in (lambda: est.fit(twice, y, task=task), lambda: est.predict(twice)):
        with pytest.raises(fmrl.FMRLError, match="two columns are called 'x'; give every"):
            call()


def test_warnings_point_at_the_line_of_the_user_and_say_what_happens():
    X, y, task = table("regression")
    shop = pd.Series(task).map("S{:03}".format)
    frame = pd.DataFrame(X, columns=list("wxyz")).assign(shop=shop)
    est = new("regression").fit(X, y, task=task)
    search = GridSearchCV(new("regression"), {"fit_intercept": [True]}, cv=2)
    cases = {
        "'shop' is the task itself: .*counts as a feature.* or give task='shop'": lambda: new(
            "regression"
        ).fit(frame, y, task=shop),
        "takes all rows as one task": lambda: search.fit(X, y),  # by way of scikit-learn
        "was not seen": lambda: est.predict(X[:1], task=["nobody"]),
        "has gaps": lambda: est.adapt(np.where(X > 2, np.nan, X), y),
        "are not scored": lambda: fmrl.few_shot_score(
            new("regression"), X[1:], y[1:], task=task[1:], shots=4, n_splits=2
        ),
    }
    for message, call in cases.items():
        with pytest.warns(fmrl.InputWarning, match=message) as caught:
            call()
        ours = [w for w in caught if issubclass(w.category, fmrl.InputWarning)]
        assert {w.filename for w in ours} == {__file__}, message


@pytest.mark.parametrize("stored", [False, True])
def test_a_task_by_the_same_name_of_another_kind_is_named(stored, tmp_path):
    """Ids from a CSV file or JSON are text where those of fit were numbers, or the other way."""
    X, y, task = regression(tasks=20)
    given = {"store": str(tmp_path / "a.sqlite")} if stored else {}
    reg = fmrl.MetaRegressor(**given).fit(X, y, task=task)
    with pytest.warns(fmrl.InputWarning, match="'3' was not seen, but 3, a number, is known"):
        reg.predict(X[:1], task=["3"])
    with pytest.warns(fmrl.InputWarning, match="'4' is new, but 4, a number, is known"):
        reg.update(X[:2], y[:2], task="4")
    text = fmrl.MetaRegressor().fit(X, y, task=task.astype(str))
    with pytest.warns(fmrl.InputWarning, match="3 was not seen, but '3', text, is known"):
        text.predict(X[:1], task=[3])
    with pytest.warns(fmrl.InputWarning, match="'new' was not seen: predicted"):
        fmrl.MetaRegressor().fit(X, y, task=task).predict(X[:1], task=["new"])


def test_the_same_day_in_nanoseconds_is_the_same_task(recwarn):
    """Dates as pandas made them before its version 3, as arrays and one by one."""
    task, X = np.repeat(np.arange(30), 8), np.random.default_rng(0).normal(size=240)
    day = (pd.Timestamp("2024-01-01") + pd.to_timedelta(task, "D")).astype("datetime64[ns]")
    frame = pd.DataFrame({"a": X, "day": day})
    reg = fmrl.MetaRegressor().fit(frame, 2 * X, task="day")
    model = reg.adapt(frame[:3], 2 * X[:3])
    model.predict(frame[3:8])
    reg.predict(frame[:20])
    first = frame["day"].to_numpy()[0]
    same = reg.predict(frame[["a"]][:8], task=first), reg.model(first).predict(frame[["a"]][:8])
    np.testing.assert_allclose(*same)
    assert len(reg.update(frame[["a"]][:4], 2 * X[:4], task=first).tasks_) == 30
    assert not recwarn.list
    with pytest.warns(fmrl.InputWarning, match="rows of day .* are predicted by the model of day"):
        model.predict(frame[8:10])


def test_one_row_that_is_no_table_is_named():
    X, y, task = regression(tasks=20)
    reg = fmrl.MetaRegressor().fit(X, y, task=task)
    for call in (lambda: reg.adapt(X[0], y[0]), lambda: reg.update(X[0], y[0], task="a")):
        with pytest.raises(ValueError, match="Expected 2D array"):
            call()


def test_a_model_says_when_it_is_given_rows_of_another_group():
    X, y, task = table("regression")
    frame = pd.DataFrame(X, columns=list("wxyz")).assign(shop=task)
    est = new("regression").fit(frame, y, task="shop")
    for model in (est.adapt(frame[:3], y[:3]), est.model(0), est.adapt_many(frame[:9], y[:9])[0]):
        with pytest.warns(fmrl.InputWarning, match="rows of shop 2 are predicted by .* shop 0"):
            model.predict(frame[10:12])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.predict(frame[3:5])
            model.predict(frame[10:12].drop(columns="shop"))


def test_one_warning_does_not_hide_another():
    X, y, task = table("regression")
    frame = pd.DataFrame(X, columns=list("wxyz")).assign(shop=task)
    est = new("regression").fit(frame, y, task="shop")
    rows = frame[:1].drop(columns="shop")
    for times in (2, 0):  # each is said once
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            est.predict(rows.assign(shop=99))
            est.predict(rows)
        assert len(told) == times


@pytest.mark.parametrize("kind", ["string", "category", object])
def test_a_gap_among_tasks_is_named_beside_columns_of_text(kind):
    """The columns were compared with the ids first: 'boolean value of NA is ambiguous'."""
    X, y, task = table("regression")
    ids = pd.Series(task).map("S{:03}".format)
    frame = pd.DataFrame({"x": X[:, 0], "note": np.where(X[:, 1] > 0, "up", "down"), "n": task})
    est = new("regression").fit(frame.assign(shop=ids), y, task="shop")
    ids = ids.astype(kind)
    ids[ROW] = pd.NA
    gap = frame.assign(shop=ids)
    for call in (
        lambda: new("regression").fit(frame, y, task=ids),
        lambda: new("regression").fit(gap, y, task="shop"),
        lambda: est.update(gap, y),
        lambda: est.adapt(gap[5:10], y[5:10]),
        lambda: est.predict(gap),
    ):
        with pytest.raises(fmrl.FMRLError, match=r"row \d has no task id"):
            call()


def rows_of(frame):
    return frame.to_dict(orient="records")


def test_rows_may_be_mappings_in_any_order_of_names():
    X, y, task = table("regression")
    frame = pd.DataFrame({"x": X[:, 0], "note": np.where(X[:, 1] > 0, "up", "down"), "shop": task})
    frame.loc[::7, "x"] = np.nan
    est = new("regression").fit(frame, y, task="shop")
    rows = rows_of(frame)
    same(new("regression").fit(rows, y, task="shop").coef_, est.coef_)
    mixed = [{"more": 1} | dict(reversed(row.items())) for row in rows]
    for given in (rows, mixed, tuple(rows)):
        same(est.predict(given), est.predict(frame))
    few, model = mixed[:3], est.adapt(frame[:3], y[:3])
    same(est.adapt(few, y[:3]).coef_, model.coef_)
    same(model.predict(few), model.predict(frame[:3]))
    same(est.adapt_many(mixed[:10], y[:10]).coef_, est.adapt_many(frame[:10], y[:10]).coef_)
    by_frame, by_rows = deepcopy(est).update(frame, y), deepcopy(est).update(mixed, y)
    same(by_rows.predict(frame), by_frame.predict(frame))
    numbers = fitted("regression").predict([{f"x{i}": v for i, v in enumerate(x)} for x in X])
    same(numbers, fitted("regression").predict(X))


def test_a_mapping_without_a_column_is_named():
    X, y, task = table("regression")
    frame = pd.DataFrame({"x": X[:, 0], "note": np.where(X[:, 1] > 0, "up", "down"), "shop": task})
    est, rows = new("regression").fit(frame, y, task="shop"), rows_of(frame)
    del rows[ROW]["note"]
    for call in (est.predict, lambda r: est.update(r, y), lambda r: est.adapt(r[5:8], y[5:8])):
        with pytest.raises(fmrl.FMRLError, match=r"row \d has no column 'note'; the columns are"):
            call(rows)
    with pytest.raises(fmrl.FMRLError, match=f"row {ROW} has no column 'note'"):
        new("regression").fit(rows, y, task="shop")
    odd = rows_of(frame)
    odd[ROW]["colour"] = "red"
    with pytest.raises(fmrl.FMRLError, match="row 0 has no column 'colour'"):
        new("regression").fit(odd, y, task="shop")
    shopless = rows_of(frame)
    del shopless[ROW]["shop"]
    with pytest.raises(fmrl.FMRLError, match=f"row {ROW} has no task id"):
        est.predict(shopless)
    with pytest.raises(fmrl.FMRLError, match=r"X is one row, a mapping; give a list"):
        est.predict(rows[0])


def warnings_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if issubclass(w.category, fmrl.InputWarning)]


def test_what_cannot_be_learned_is_said():
    X, y, task = table("regression")
    n = len(y)
    cases = {
        "y holds 'Yes', 'YES', which count as 2 classes: write them alike": (
            np.array(["Yes", "YES", "No"] * (n // 3)),
            task,
        ),
        "y has only the class 'a': nothing can be learned": (np.full(n, "a"), task),
        "y holds 30 whole numbers from 0 to 29, which are taken for classes": (
            np.arange(n) % 30,
            task,
        ),
        "3 tasks say next to nothing about how tasks differ": (X[:, 0] > 0, np.arange(n) % 3),
        "all rows are of one task": (X[:, 0] > 0, np.zeros(n)),
    }
    for message, (labels, ids) in cases.items():
        told = warnings_of(lambda y=labels, ids=ids: new("classification").fit(X, y, task=ids))
        assert [m for m in told if message in m], (message, told)
    assert not warnings_of(lambda: new("classification").fit(X, X[:, 0] > 0, task=task))
    assert any(
        "3 tasks" in m for m in warnings_of(lambda: new("regression").fit(X, y, task=task % 3))
    )


def test_free_text_is_not_called_an_id():
    X, y, task = table("regression")
    note = [f"came {i} times, liked it" for i in range(len(y))]
    told = warnings_of(
        lambda: new("regression").fit(pd.DataFrame({"x": X[:, 0], "note": note}), y, task=task)
    )
    assert len(told) == 1 and "column 'note' holds text that differs in nearly every row" in told[0]
    assert "looks like an id" not in told[0] and "it is left out" in told[0]


def test_two_columns_as_task_are_named():
    X, y, task = table("regression")
    frame = pd.DataFrame(X, columns=list("wxyz")).assign(school=task // 2, room=task)
    with pytest.raises(fmrl.FMRLError, match=r"task has 2 ids but .* the name of one column"):
        new("regression").fit(frame, y, task=["school", "room"])


def test_hints_for_names_of_other_libraries():
    X, _, task = table("regression")
    with pytest.raises(TypeError, match=r"groups.*task="):
        new("classification").fit(X, X[:, 0] > 0, groups=task)
    with pytest.raises(TypeError, match=r"class_weight.*sample_weight"):
        fmrl.MetaClassifier(class_weight="balanced")
    with pytest.raises(TypeError, match="nonsense"):
        fmrl.MetaClassifier(nonsense=1)
    asked = [*inspect.signature(fmrl.MetaClassifier).parameters]  # what an editor shows
    assert asked[0] == "task" and {*asked} == {*fmrl.MetaClassifier().get_params()}
