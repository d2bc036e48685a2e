"""Tables as they are: text, categories, truth values, dates and gaps, from any library."""

import datetime
import warnings
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import BaseEstimator, clone

import fmrl
from fmrl.errors import TableError
from fmrl.tables import Encoder, read
from fmrl.tables.kinds import as_number

from .data import regression

Regressor = partial(fmrl.MetaRegressor, common="linear")  # no trees: columns are what is tested
ENCODED = ["size", "size is missing", "colour=blue", "colour=green", "colour=red", "new", "day"]


def table(tasks=30, rows=10, seed=0):
    """A polars table with one column of every kind, and what is to be predicted from it."""
    rng = np.random.default_rng(seed)
    n = tasks * rows
    size, days = rng.normal(size=n), rng.integers(0, 365, n)
    colour, new = rng.choice(["red", "green", "blue"], n), rng.random(n) < 0.5
    own = 0.5 * rng.normal(size=tasks).repeat(rows)
    y = size + 2 * (colour == "red") + new + days / 100 + own + 0.1 * rng.normal(size=n)
    start = datetime.date(2024, 1, 1)
    frame = pl.DataFrame(
        {
            "shop": [f"shop {i}" for i in range(tasks) for _ in range(rows)],
            "size": [None if gap else s for s, gap in zip(size, rng.random(n) < 0.1, strict=True)],
            "colour": colour,
            "new": new,
            "day": [start + datetime.timedelta(days=int(d)) for d in days],
        }
    )
    return frame, y


def in_pandas(frame):
    given = pd.DataFrame(frame.to_dict(as_series=False))
    return given.assign(colour=given["colour"].astype("category"), day=pd.to_datetime(given["day"]))


def in_numpy(frame):
    return np.array(frame.drop("shop").rows(), dtype=object)


KINDS = {
    "polars": lambda f: f,
    "lazy": lambda f: f.lazy(),
    "polars of objects": lambda f: f.with_columns(
        pl.Series(n, np.array(f[n].to_list(), dtype=object)) for n in f.columns[1:]
    ),
    "pandas": in_pandas,
    "pandas with NA": lambda f: in_pandas(f).convert_dtypes(),
    "pandas of objects": lambda f: in_pandas(f).astype(object),
    "pandas on Arrow": lambda f: in_pandas(f).convert_dtypes(dtype_backend="pyarrow"),
    "Arrow": lambda f: f.to_arrow(),
    "Arrow batch": lambda f: f.to_arrow().to_batches()[0],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_library_gives_the_same_model(kind):
    frame, y = table()
    first, some = KINDS[kind](frame), KINDS[kind](frame[:5])
    one = Regressor().fit(frame, y, task="shop")
    reg = Regressor().fit(first, y, task="shop")
    assert reg.feature_names_in_.tolist() == ["size", "colour", "new", "day"]
    assert reg.n_features_in_ == 4 and reg.get_feature_names_out().tolist() == ENCODED
    np.testing.assert_array_equal(reg.predict(first), one.predict(frame))
    model = reg.adapt(some, y[:5])
    assert model.coef_.shape == (7,) and model.n_features_in_ == 4
    np.testing.assert_array_equal(model.predict(first), one.adapt(frame[:5], y[:5]).predict(frame))
    assert reg.score(first, y) > 0.9


def test_arrays_and_lists_of_objects_are_tables_too():
    frame, y = table()
    shop, one = frame["shop"], Regressor().fit(frame, y, task="shop")
    for rows in (in_numpy(frame), in_numpy(frame).tolist()):
        reg = Regressor().fit(rows, y, task=shop)
        assert reg.get_feature_names_out()[:2].tolist() == ["x0", "x0 is missing"]
        np.testing.assert_array_equal(reg.predict(rows, task=shop), one.predict(frame))


def test_an_array_of_text_keeps_its_numbers():
    frame, y = table()
    texts = np.array([[f"{s or 0.0:.17g}", c] for s, c in frame.select("size", "colour").rows()])
    reg = Regressor().fit(texts, y, task=frame["shop"])
    assert reg.get_feature_names_out().tolist() == ["x0", *(f"x1={c}" for c in ENCODED_COLOURS)]
    same = np.column_stack(
        [texts[:, 0].astype(float), *(texts[:, 1] == c for c in ENCODED_COLOURS)]
    )
    np.testing.assert_allclose(
        reg.predict(texts), Regressor().fit(same, y, task=frame["shop"]).predict(same)
    )
    reg.predict(np.array([["1", "7"]]))  # a level that looks like a number is still a level


ENCODED_COLOURS = ("blue", "green", "red")


def test_a_level_never_seen_counts_as_none_and_a_gap_as_the_mean():
    frame, y = table()
    reg = Regressor().fit(frame.drop("shop"), y, task=frame["shop"])
    row = frame[:1].drop("shop")
    code = {n: i for i, n in enumerate(ENCODED)}
    for method in (reg, reg.adapt(frame[:4].drop("shop"), y[:4])):
        red = method.predict(row.with_columns(colour=pl.lit("red")))
        for other in ("pink", None):
            odd = method.predict(row.with_columns(colour=pl.lit(other, dtype=pl.String)))
            np.testing.assert_allclose(red - odd, method.coef_[code["colour=red"]])
        full = method.predict(row.with_columns(size=pl.lit(frame["size"].mean())))
        gap = method.predict(row.with_columns(size=pl.lit(None, dtype=pl.Float64)))
        np.testing.assert_allclose(gap - full, method.coef_[code["size is missing"]])


def test_a_gap_that_training_never_had_is_filled_with_the_mean():
    X, y, task = regression()
    frame = pd.DataFrame(X, columns=list("abcd"))
    for rows in (X, frame):
        reg = Regressor().fit(rows, y, task=task)
        gap, mean = X[:3].copy(), X[:3].copy()
        gap[1, 2], mean[1, 2] = np.nan, X[:, 2].mean()
        kind = (lambda a: pd.DataFrame(a, columns=list("abcd"))) if rows is frame else np.asarray
        np.testing.assert_allclose(reg.predict(kind(gap)), reg.predict(kind(mean)))
        model = reg.adapt(kind(gap), y[:3])
        np.testing.assert_allclose(model.coef_, reg.adapt(kind(mean), y[:3]).coef_)


def test_gaps_in_numbers_have_a_column_of_their_own():
    X, y, task = regression()
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    X[:, 0] = np.nan_to_num(X[:, 0])
    reg = Regressor().fit(X, y, task=task)
    names = reg.get_feature_names_out().tolist()
    assert names[:3] == ["x0", "x1", "x1 is missing"] and len(names) == 7
    filled = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    by_hand = np.column_stack(
        [filled[:, 0], *(c for i in (1, 2, 3) for c in (filled[:, i], np.isnan(X[:, i])))]
    )
    other = Regressor().fit(by_hand, y, task=task)
    np.testing.assert_allclose(reg.predict(X, task=task), other.predict(by_hand, task=task))


def test_numbers_without_gaps_are_left_as_they_are():
    X, y, task = regression()
    frame = pl.DataFrame(X.round(2), schema=list("abcd")).with_columns(pl.col("d") > 0)
    plain = frame.to_numpy().astype(float)
    reg = Regressor().fit(frame, y, task=task)
    other = Regressor().fit(plain, y, task=task)
    np.testing.assert_allclose(reg.coef_, other.coef_, rtol=1e-12)
    assert reg.encoder_.plain and not hasattr(other, "feature_names_in_")


def test_dates_do_not_depend_on_where_a_calendar_begins():
    frame, y = table()
    later = frame.with_columns(pl.col("day").dt.offset_by("31y"))
    hours = frame.with_columns(pl.col("day").cast(pl.Datetime("ms")))
    one = Regressor().fit(frame, y, task="shop")
    for other in (later, hours):
        said = Regressor().fit(other, y, task="shop").predict(other)
        np.testing.assert_allclose(said, one.predict(frame), atol=0.02)
    np.testing.assert_array_equal(one.predict(hours), one.predict(frame))
    day = one.encoder_.transform(frame)[:, -1]
    np.testing.assert_allclose([day.mean(), day.std()], [0, 1], atol=1e-9)


def test_dates_as_text_are_dates():
    frame, y = table()
    day = pl.col("day").cast(pl.Datetime("ms"))
    one = fmrl.MetaRegressor(common="linear").fit(frame, y, task="shop")
    for how in ("%Y-%m-%d", "%Y/%m/%d", "%Y-%m-%dT00:00:00Z", "%Y.%m.%d 00:00"):
        text = frame.with_columns(day.dt.strftime(how))
        other = fmrl.MetaRegressor(common="linear").fit(text, y, task="shop")
        np.testing.assert_array_equal(other.predict(text), one.predict(frame))
        np.testing.assert_array_equal(other.predict(frame), one.predict(text))  # either way
    with pytest.raises(TableError, match="'day' holds '2024-02-30' in row 0, which is no date"):
        one.predict(text.with_columns(pl.lit("2024-02-30").alias("day")))
    for odd in ("2024-01-01T25:00", "2024-01-01 10:75", "2024-01-01 10:00+10:75"):
        wrong = text.with_columns(
            pl.when(pl.int_range(300) == 7).then(pl.lit(odd)).otherwise("day").alias("day")
        )
        with pytest.raises(TableError, match="'day' holds dates as text.*" + odd.replace("+", ".")):
            Regressor().fit(wrong, y, task="shop")
        with pytest.raises(TableError, match="in row 7, which is no date"):
            one.predict(wrong)
    hour = pl.Series(["2024-01-01T01:30:00+01:30", "2024-01-01 12:00:30.5", None])
    np.testing.assert_allclose(
        as_number(hour, hour.dtype).to_numpy(), [19723, 19723.5 + 30.5 / 86400, np.nan]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (pl.lit(float("inf")).alias("size"), "'size' is infinite in row 0"),
        (pl.lit(3).alias("colour"), "'colour' is Int32 here"),
        (pl.lit(3).alias("day"), "'day' is Int32 here.*give a date"),
        (pl.lit("x").alias("new"), "'new' is String here"),
    ],
)
def test_errors_name_the_column(change, message):
    frame, y = table()
    reg = Regressor().fit(frame, y, task="shop")
    for ask in (lambda f: reg.predict(f), lambda f: reg.adapt(f[:1], y[:1])):
        with pytest.raises(TableError, match=message):
            ask(frame.with_columns(change))


def test_rows_of_several_tasks_are_no_one_task():
    frame, y = table()
    reg = Regressor().fit(frame, y, task="shop")
    with pytest.raises(fmrl.FMRLError, match="several tasks"):
        reg.adapt(frame, y)
    assert len(reg.adapt_many(frame, y)) == frame["shop"].n_unique()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pl.lit(None).alias("size"), "'size' has no value at all"),
        (pl.lit(float("inf")).alias("size"), "'size' has an infinite value"),
        (pl.Series("day", ["31/01/2024"] * 300), "'day' holds dates as text.*2024-12-31"),
        (pl.Series("size", [[1.0]] * 300), "'size' is of type List"),
        (pl.Series("size", ["1", "2", "NA"] * 100), "'size' looks like numbers but holds 'NA'"),
    ],
)
def test_columns_that_cannot_be_learned_from_are_named(column, message):
    frame, y = table()
    with pytest.raises(TableError, match=message):
        Regressor().fit(frame.with_columns(column), y, task="shop")


def test_an_object_that_mixes_kinds_is_named():
    rows = np.array([[1.0, "a"], [2.0, 3]] * 15, dtype=object)
    with pytest.raises(TableError, match="'x1' mixes int and str"):
        Regressor().fit(rows, np.arange(30.0), task=np.arange(30) // 5)


def test_the_column_of_tasks_is_no_feature_anywhere():
    frame, y = table()
    rows, shop = frame.drop("shop"), frame["shop"].to_numpy()
    one = Regressor().fit(rows, y, task=shop)
    two = Regressor().fit(frame, y, task="shop")
    np.testing.assert_array_equal(one.predict(rows, task=shop), two.predict(frame))
    np.testing.assert_array_equal(two.predict(frame, task="shop"), two.predict(frame))
    np.testing.assert_array_equal(one.predict(rows), two.predict(rows))  # no column: the start
    few = two.adapt(frame[:4], y[:4])
    np.testing.assert_array_equal(few.predict(frame), one.adapt(rows[:4], y[:4]).predict(rows))
    model = two.model("shop 3")
    np.testing.assert_allclose(model.predict(frame[30:40]), two.predict(frame[30:40]))
    with pytest.raises(TableError, match="no column 'store'; the columns are 'shop', 'size'"):
        Regressor().fit(frame, y, task="store")
    with pytest.raises(fmrl.FMRLError, match="X has no names"):
        Regressor().fit(in_numpy(frame), y, task="shop")


def test_one_more_task_is_named_by_its_column():
    frame, y = table()
    reg = Regressor().fit(frame[:280], y[:280], task="shop")
    other = clone(reg).fit(frame[:280], y[:280], task="shop")
    reg.partial_fit(frame[280:290], y[280:290])
    other.partial_fit(frame[280:290].drop("shop"), y[280:290], task="shop 28")
    np.testing.assert_array_equal(reg.predict(frame[:290]), other.predict(frame[:290]))
    reg.partial_fit(frame[290:300], y[290:300])  # also of a task that follows
    assert reg.tasks_ == frame["shop"][:300].unique(maintain_order=True).to_list()
    first = Regressor().partial_fit(frame[:10], y[:10], task="shop")
    first.partial_fit(frame[10:20], y[10:20])
    assert len(first.tasks_) == 2 and len(first.predict(frame[:20])) == 20


def test_saved_and_refitted_models_read_tables_as_before(tmp_path):
    frame, y = table()
    clf = fmrl.MetaClassifier().fit(frame, np.where(y > 2, "much", "little"), task="shop")
    clf.save(tmp_path / "m")
    back = fmrl.MetaClassifier.load(tmp_path / "m")
    np.testing.assert_array_equal(back.predict_proba(frame), clf.predict_proba(frame))
    labels = np.where(y > 2, "much", "little")
    model = back.adapt(frame[:5], labels[:5])
    again = clone(model).fit(frame[:5], labels[:5])
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))


def test_streams_take_rows_of_a_table():
    frame, y = table()
    reg = Regressor().fit(frame, y, task="shop")
    rows = frame.drop("shop")
    plain = Regressor().fit(reg.encoder_.transform(rows), y, task=frame["shop"])
    by_name, in_order, encoded = reg.stream(), reg.stream(), plain.stream()
    for i, row in enumerate(rows[:8].iter_rows(named=True)):
        x = reg.encoder_.transform(rows[i : i + 1])[0]
        wanted = encoded.predict(x)
        encoded.learn(x, y[i])
        for stream, given in ((by_name, row), (in_order, tuple(row.values()))):
            assert stream.predict(given) == pytest.approx(wanted)
            stream.learn(given, y[i])
    assert np.isfinite(by_name.predict(row | {"size": None, "colour": "pink"}))
    with pytest.raises(TableError, match="no column 'size'"):
        by_name.predict({"colour": "red"})
    with pytest.raises(fmrl.FMRLError, match="a row has 2 values"):
        by_name.predict([1.0, "red"])
    with pytest.raises(TableError, match="'size' is String"):
        by_name.predict(row | {"size": "large"})


def test_forgetting_the_tasks_is_said_once():
    X, y, task = regression()
    with pytest.warns(fmrl.InputWarning, match="without task=") as caught:
        Regressor().fit(X, y)
    assert len(caught) == 1
    with pytest.warns(fmrl.InputWarning, match="every row is a task of its own"):
        Regressor().fit(X, y, task=np.arange(len(y)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Regressor().fit(X, y, task=task).adapt(X[:3], y[:3])
        frame, y = table()
        Regressor().fit(frame, y, task="shop").adapt(frame[:3], y[:3])


def test_columns_that_look_like_ids_are_named():
    frame, y = table()
    n, rest = len(y), frame.drop("shop")
    cases = {
        "'ticket' holds text that differs in nearly every row.*300 texts.*left out": pl.Series(
            "ticket", [f"t{i}" for i in range(n)]
        ),
        "'row' looks like an id: 300 different whole numbers": pl.Series(
            "row", np.random.default_rng(0).permutation(n) + 7
        ),
        "'store' is the task itself": frame["shop"].alias("store"),
        "'number' is the task itself": None,
    }
    for message, column in cases.items():
        task = frame["shop"] if column is not None else pl.Series(np.arange(n) // 10)
        given = rest.with_columns(task.alias("number") if column is None else column)
        for kind in (given, in_pandas(given)):
            with pytest.warns(fmrl.InputWarning, match=message):
                reg = Regressor().fit(kind, y, task=task)
            if "ticket" in message:
                assert reg.get_feature_names_out().tolist() == ENCODED


def test_a_column_left_out_as_an_id_is_not_asked_for():
    """A new row has no ticket: it was demanded by name."""
    frame, y = table()
    given = frame.insert_column(2, pl.Series("ticket", [f"t{i}" for i in range(len(y))]))
    for kind in (pl.DataFrame, in_pandas):
        rows, bare = kind(given), kind(given.drop("ticket"))
        with pytest.warns(fmrl.InputWarning, match="'ticket' holds text that differs"):
            reg = Regressor().fit(rows, y, task="shop")
        np.testing.assert_array_equal(reg.predict(bare), reg.predict(rows))
        models = [reg.adapt(X[:5], y[:5]) for X in (rows, bare)]
        said = [model.predict(X[:3]) for model in models for X in (rows, bare)]
        assert all((s == said[0]).all() for s in said)
        reg.update(bare[:5], y[:5], task="tenth")
        np.testing.assert_allclose(reg.model("tenth").predict(bare[:3]), said[0], rtol=1e-9)
        with pytest.raises(ValueError, match="colour"):
            reg.predict(bare[[n for n in bare.columns if n != "colour"]])
        with pytest.raises(ValueError, match="order"):
            reg.predict(bare[bare.columns[::-1]])
    stream, row = reg.stream(), given.row(0, named=True)
    whole = stream.predict(row)
    del row["ticket"]
    assert stream.predict(row) == stream.predict(bare.iloc[0]) == whole
    assert stream.predict(rows.drop(columns="shop").iloc[0]) == whole
    with pytest.raises(fmrl.FMRLError, match="no column 'size'"):
        stream.predict({"colour": "red"})


@pytest.mark.parametrize("make", [fmrl.MetaRegressor, fmrl.MetaClassifier])
def test_a_table_without_the_column_of_the_tasks_is_named(make):
    """All rows were predicted as of a task of which nothing is known, in silence."""
    frame, y = table()
    y = y if make is fmrl.MetaRegressor else y > 2
    bare, message = frame.drop("shop"), "X has no column 'shop', .* there is no task=: predicted as"
    for method in ("predict", "predict_interval", "predict_proba", "decision_function", "score"):
        est = make(common="linear").fit(frame, y, task="shop")
        if hasattr(est, method):
            given = (bare, y) if method == "score" else (bare,)
            with pytest.warns(fmrl.InputWarning, match=message):
                getattr(est, method)(*given)
    est = make(common="linear").fit(frame, y, task="shop")
    with warnings.catch_warnings():
        warnings.simplefilter("error", fmrl.InputWarning)
        est.predict(frame), est.predict(bare, task=frame["shop"]), est.predict(frame, task="shop")
        est.adapt(bare[:0], y[:0]).predict(bare)
        assert np.isfinite(fmrl.FewShotScorer(0)(est, frame, y))
        make(common="linear").fit(bare, y, task=frame["shop"]).predict(bare)


def test_no_rows_have_no_answers():
    frame, y = table()
    for kind in (lambda f: f, in_pandas):
        rows = kind(frame)
        reg = Regressor().fit(rows, y, task="shop")
        for model in (reg, reg.adapt(rows[:4], y[:4])):
            assert model.predict(rows[:0]).shape == (0,)
            assert model.predict_interval(rows[:0]).shape == (0, 2)
        assert reg.predict(rows[:0]).shape == (0,)


def test_of_too_many_levels_the_most_frequent_count():
    rng = np.random.default_rng(0)
    place = np.concatenate([np.repeat(np.arange(256), 10), 300 + np.arange(300)]).astype(str)
    frame = pl.DataFrame({"x": rng.normal(size=len(place)), "place": rng.permutation(place)})
    y, task = frame["x"].to_numpy(), np.arange(len(place)) // 10
    with pytest.warns(fmrl.InputWarning, match="'place' has 556 levels; the 256 most frequent"):
        reg = Regressor().fit(frame, y, task=task)
    assert set(reg.get_feature_names_out()[1:]) == {f"place={i}" for i in range(256)}


def test_columns_may_come_in_other_units_and_levels_in_other_names():
    frame, y = table()
    one = Regressor().fit(frame, y, task="shop")
    names = {"red": "zinnober", "green": "grass", "blue": "azure"}
    other = frame.with_columns(pl.col("colour").replace(names), pl.col("shop") + "!")
    two = Regressor().fit(other, y, task="shop")
    np.testing.assert_allclose(two.predict(other), one.predict(frame), atol=1e-6)


def test_pandas_without_names_and_categories_of_numbers():
    frame, y = table()
    bare = pd.DataFrame(in_numpy(frame))
    reg = Regressor().fit(bare, y, task=frame["shop"])
    assert not hasattr(reg, "feature_names_in_") and len(reg.get_feature_names_out()) == 7
    bare[4] = np.arange(300) % 7  # whole numbers may be ids: they are looked at by their name
    assert Regressor().fit(bare, y, task=frame["shop"]).n_features_in_ == 5
    kinds = pd.DataFrame({"a": pd.Categorical(np.arange(300) % 3), "x": np.arange(300) % 7})
    assert Regressor().fit(kinds, y, task=frame["shop"]).get_feature_names_out()[:2].tolist() == [
        "a=0",
        "a=1",
    ]


def test_arrow_columns_serve_as_targets_and_tasks():
    frame, y = table()
    rows = frame.drop("shop").to_arrow()
    ids, target = frame["shop"].to_arrow(), pa.chunked_array([pa.array(y)])
    reg = Regressor().fit(rows, target, task=ids)
    same = Regressor().fit(frame, y, task="shop")
    np.testing.assert_array_equal(reg.predict(rows, task=ids), same.predict(frame))


def test_marks_of_gaps_among_dates_are_gaps():
    """One of them made every date a category."""
    rng, task = np.random.default_rng(0), np.repeat(np.arange(30), 6)
    days = rng.integers(0, 900, 180)
    dates = np.array([str(np.datetime64("2021-01-01") + int(d)) for d in days], dtype=object)
    y, last = days / 100 + rng.normal(0, 0.1, 180), pd.DataFrame({"when": ["2023-06-01", "NA"]})
    found = []
    for mark in (None, "NA", "", "?"):
        given = dates.copy()
        given[5] = mark
        model = Regressor().fit(pd.DataFrame({"when": given}), y, task=task)
        found.append(model.adapt(last[:0], []).predict(last))
    assert all(np.allclose(f, found[0]) for f in found[1:]) and abs(found[0][0] - 8.81) < 0.5


@pytest.mark.parametrize("seed", [6, 7])
def test_all_levels_of_a_text_are_as_good_as_all_but_one(seed):
    """All of them sum to a constant, so one direction of the coefficients is never seen."""
    rng, tasks = np.random.default_rng(seed), 200
    sizes = np.append(rng.integers(3, 21, tasks), np.full(50, 12))
    task = np.repeat(np.arange(len(sizes)), sizes)
    x, drug, sex, smokes = (
        rng.uniform(0, 10, len(task)),
        *rng.integers(0, (3, 2, 2), (len(task), 3)).T,
    )
    level, slope = rng.normal(0, 4, len(sizes))[task], rng.normal(1.5, 0.8, len(sizes))[task]
    y = 20 + level + slope * x + np.array([0, 3, -3])[drug] + rng.normal(0, 2, len(task))
    texts = {"drug": np.array(list("abc"))[drug], "sex": np.array(list("mf"))[sex]}
    texts |= {"smokes": np.array(list("yn"))[smokes]}
    numbers = {"b": drug == 1, "c": drug == 2, "f": sex == 1, "n": smokes == 1}
    errors = []
    for columns in (texts, {k: v.astype(float) for k, v in numbers.items()}):
        X = pd.DataFrame({"x": x} | columns)
        known, new = task < tasks, range(tasks, len(sizes))
        model = Regressor().fit(X[known], y[known], task=task[known])
        assert model.environment_.kind == "stationary"
        rows = [np.flatnonzero(task == t) for t in new]
        found = [model.adapt(X.iloc[r[:4]], y[r[:4]]).predict(X.iloc[r[4:]]) for r in rows]
        errors.append(
            np.mean([np.mean((f - y[r[4:]]) ** 2) for f, r in zip(found, rows, strict=True)])
        )
    assert errors[0] < 1.02 * errors[1] and errors[1] < 9


@pytest.mark.parametrize("kind", [in_pandas, lambda f: f.to_arrow(), lambda f: f.to_dicts()])
def test_a_table_is_read_once(kind, monkeypatch):
    """Each call read its rows up to four times, and adapt all of it twice."""
    frame, y = table()
    rows, few, count = kind(frame), kind(frame[:4]), []
    for module, name in ((read, "_table"), (Encoder, "encode")):
        own = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, own=own: count.append(1) or own(*a))
    reg = Regressor().fit(rows, y, task="shop")
    for call in (lambda: reg.predict(rows), lambda: reg.adapt(few, y[:4])):
        count.clear()
        call()
        assert len(count) == 2  # one reading, one encoding


class Named(BaseEstimator):
    """As an estimator whose parameter names the column of the tasks."""

    def __init__(self, task=None, features=None):
        self.task = task
        self.features = features


def test_a_parameter_may_name_the_column_of_tasks():
    frame, y = table()
    model, told = Named("shop"), frame["shop"].to_list()
    X, _, ids = read.validate_fit(model, frame, y, reset=True, y_numeric=True)
    assert ids.tolist() == told and model.encoder_.task == "shop" and X.shape == (300, 7)
    other = np.arange(300) // 30  # an array overrides it
    _, _, ids = read.validate_fit(model, frame, y, other, reset=True, y_numeric=True)
    assert ids.tolist() == other.tolist() and "shop" in model.feature_names_in_
    assert read.split_task(frame, None, "shop")[1].tolist() == told
    with pytest.raises(TableError, match="no column 'store'"):
        read.validate_fit(Named("store"), frame, y, reset=True, y_numeric=True)
