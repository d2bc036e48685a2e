"""Rows one at a time: after k of them a stream predicts what `adapt` on these k rows predicts."""

import copy
import pickle
import signal
import sys
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.preprocessing import PolynomialFeatures, QuantileTransformer

import fmrl
from fmrl.estimators.stream import MAX_UPDATED_COLUMNS, NumberStream

from .data import bent, classification, regression

LINEAR = {"common": "linear", "environment": "stationary"}


def centred(binary, tasks=60, rows=8, seed=0):
    """X, y, task: half of the tasks have the opposite slopes."""
    rng = np.random.default_rng(seed)
    task, X = np.repeat(np.arange(tasks), rows), rng.normal(size=(tasks * rows, 2))
    side = np.where(rng.random(tasks) < 0.5, 1.0, -1.0)
    z = 3 * X @ [1.0, -1.0] * side[task] + rng.normal(size=len(X))
    return X, (z > 0).astype(int) if binary else z, task


def wide():
    """More columns than are updated row by row."""
    rng, columns = np.random.default_rng(0), MAX_UPDATED_COLUMNS + 6
    task, X = np.repeat(np.arange(20), 6), rng.normal(size=(120, columns))
    return X, X[:, 0] + rng.normal(size=20)[task] + 0.1 * rng.normal(size=120), task


def mixed(classes):
    """A frame with numbers, text, categories, dates and gaps, y and task."""
    X, y, task = classification(tasks=20, rows=8) if classes else regression(tasks=20, rows=8)
    rng = np.random.default_rng(1)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 90, len(y)), "D")
    frame = pd.DataFrame({
        "size": np.where(rng.random(len(y)) < 0.2, np.nan, X[:, 0]),
        "kind": np.where(X[:, 1] > 0, "up", np.where(X[:, 2] > 0, "down", None)),
        "when": days,
        "other": X[:, 3],
    })  # fmt: skip
    return frame, y, task


def weighted(make, **given):
    X, y, task = make(tasks=20, **given)
    return X, y, task, np.random.default_rng(2).uniform(0.2, 3.0, len(y))


# An estimator's parameters, rows of tasks, and what must be true of the prior so that a case tests
# what its name says.
CASES = {
    "numbers": ({}, lambda: regression(tasks=20), lambda p: True),
    "two classes": (LINEAR, lambda: classification(tasks=20, classes=2), lambda p: True),
    "three classes": (LINEAR, lambda: classification(tasks=20), lambda p: True),
    "no intercept": (LINEAR | {"fit_intercept": False}, lambda: regression(tasks=20),
                     lambda p: p.coordinates.constant == 0),
    "weights": (LINEAR, lambda: weighted(regression), lambda p: True),
    "weights of classes": (LINEAR, lambda: weighted(classification, classes=2), lambda p: True),
    "trees": ({"environment": "stationary"}, bent, lambda p: p.common is not None),
    "trees of classes": ({"environment": "stationary"}, lambda: bent(binary=True),
                         lambda p: p.common is not None),
    "centres": ({"common": "linear", "environment": 2}, lambda: centred(False),
                lambda p: any(len(m.mean) == 2 for m in p.members)),
    "centres of classes": ({"common": "linear", "environment": 2}, lambda: centred(True),
                           lambda p: any(len(m.mean) == 2 for m in p.members)),
    "a window": ({"common": "linear", "environment": fmrl.Window(12)},
                 lambda: regression(tasks=30), lambda p: p.environment.kind == "recent"),
    "features": (LINEAR | {"features": PolynomialFeatures(2, include_bias=False)},
                 lambda: regression(tasks=20), lambda p: p.features == 14),
    "features, as many": (LINEAR | {"features": QuantileTransformer(n_quantiles=20)},
                          lambda: classification(tasks=20), lambda p: p.features == 4),
    "table": (LINEAR, lambda: mixed(False), lambda p: p.encoder is not None),
    "table of classes": (LINEAR, lambda: mixed(True), lambda p: p.encoder is not None),
    "many columns": (LINEAR, wide, lambda p: p.coordinates.width > MAX_UPDATED_COLUMNS),
    "no noise": (LINEAR, lambda: regression(tasks=20, noise=0.0), lambda p: p.noise < 1e-4),
}  # fmt: skip


@cache
def case(name):
    """A fitted estimator and rows of a task that it does not know."""
    given, make, holds = CASES[name]
    X, y, task, *weight = make()
    old, new = task < task.max(), np.flatnonzero(task == task.max())
    kind = fmrl.MetaRegressor if y.dtype.kind == "f" else fmrl.MetaClassifier
    heavy = weight[0] if weight else np.ones(len(y))
    given_weight = heavy[old] if weight else None
    est = kind(**given).fit(X[old], y[old], task=task[old], sample_weight=given_weight)
    assert holds(est.prior_), name
    rows = X.iloc[new] if hasattr(X, "iloc") else X[new]
    return est, rows, y[new], heavy[new]


def walk(rows):
    return [row for _, row in rows.iterrows()] if hasattr(rows, "iterrows") else list(rows)


def same_answers(stream, model, rows):
    """What the stream says of every row is what the model says of them."""
    if hasattr(model, "classes_"):
        said = np.array([stream.predict_proba(x) for x in walk(rows)])
        np.testing.assert_allclose(said, expected := model.predict_proba(rows), atol=1e-6, rtol=0)
        top = np.sort(expected, axis=1)
        sure = top[:, -1] - top[:, -2] > 1e-5
        labels = np.array([stream.predict(x) for x in walk(rows)])
        assert (labels == model.predict(rows))[sure].all()
        return
    scale = np.abs(expected := model.predict(rows)).max()
    said = [stream.predict(x) for x in walk(rows)]
    np.testing.assert_allclose(said, expected, atol=1e-9 * scale, rtol=0)
    for level in (0.5, 0.9):
        ends = [stream.predict_interval(x, level=level) for x in walk(rows)]
        expected = model.predict_interval(rows, level=level)
        np.testing.assert_allclose(ends, expected, atol=1e-8 * scale, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_after_every_row_a_stream_is_adapt_on_the_rows_so_far(name):
    est, rows, y, heavy = case(name)
    ahead, before = rows[-3:], est.coef_.copy()
    stream = est.stream()
    for k in range(len(y) - 2):
        same_answers(stream, est.adapt(rows[:k], y[:k], sample_weight=heavy[:k]), ahead)
        stream.learn(walk(rows)[k], y[k], sample_weight=heavy[k])
    assert stream.rounds == len(y) - 2
    stream.close()
    np.testing.assert_array_equal(est.coef_, before)  # nobody was told


@pytest.mark.parametrize("name", CASES)
def test_a_stream_goes_on_with_a_task_that_is_known_and_closing_it_is_update(name):
    est, rows, y, heavy = case(name)
    est, other = copy.deepcopy(est), copy.deepcopy(est)
    names = est.tasks_
    for one in (est, other):
        one.update(rows[:3], y[:3], task="new", sample_weight=heavy[:3])
    with est.stream("new") as stream:
        same_answers(stream, est.model("new"), rows[-2:])
        for k in range(3, 6):
            stream.learn(walk(rows)[k], y[k], sample_weight=heavy[k])
            model = est.adapt(rows[: k + 1], y[: k + 1], sample_weight=heavy[: k + 1])
            same_answers(stream, model, rows[-2:])
        assert est._rows.take(["new"]).lengths.tolist() == [3]  # until it is closed
    other.update(rows[3:6], y[3:6], task="new", sample_weight=heavy[3:6])
    assert est.tasks_ == other.tasks_ == [*names, "new"]
    for part in ("X", "target", "weight"):
        mine, theirs = (getattr(e._rows.take(["new"]), part) for e in (est, other))
        assert (mine is theirs is None) or np.array_equal(mine, theirs)
    for mine, theirs in zip(*(vars(e.model("new")).items() for e in (est, other)), strict=True):
        if isinstance(mine[1], np.ndarray):
            np.testing.assert_array_equal(mine[1], theirs[1])


def test_numbers_are_updated_row_by_row_and_classes_solved():
    kinds = {name: isinstance(case(name)[0].stream(), NumberStream) for name in CASES}
    assert kinds["numbers"] and kinds["trees"] and kinds["centres"] and kinds["table"]
    assert not any(kinds[n] for n in ("two classes", "many columns"))


def test_weights_that_add_up_to_where_the_rule_changes():
    """Ten rows of weight 0.1 are one row for `adapt`; added one by one they are 0.9999999999999999:
    both must average the members alike."""
    est, rows, y, _ = case("numbers")
    sizes = [c.rounds for c in est.prior_.rule.choices if c.rounds]
    weights = [0.1, 0.3, 0.7, 1.1, np.sqrt(2), np.sqrt(8), np.sqrt(32)]
    for weight in [*weights, *(size / 10 for size in sizes)]:
        stream, heavy = est.stream(), np.full(10, weight)
        for x, target in zip(rows[:10], y[:10], strict=True):
            stream.learn(x, target, sample_weight=weight)
        same_answers(stream, est.adapt(rows[:10], y[:10], sample_weight=heavy), rows[10:])


def test_a_row_of_weight_zero_is_no_row():
    for name in ("numbers", "three classes"):
        est, rows, y, _ = case(name)
        stream = est.stream("nobody")
        stream.learn(rows[0], y[0], sample_weight=0.0)
        assert stream.rounds == 0
        same_answers(stream, est, rows[:3])
        stream.close()
        assert "nobody" not in est.tasks_
        for weight in (-1.0, np.nan, np.inf):
            with pytest.raises(fmrl.FMRLError, match="sample_weight"):
                est.stream().learn(rows[0], y[0], sample_weight=weight)


def test_many_open_at_once_close_in_any_order():
    X, y, task = classification(tasks=40, classes=2)
    one = fmrl.MetaClassifier(**LINEAR).fit(X, y, task=task)
    a, b = one, copy.deepcopy(one)
    rng = np.random.default_rng(0)
    for clf in (a, b):
        streams = [clf.stream(f"new {k}") for k in range(150)]
        for i in range(3):
            for k, s in enumerate(streams):
                s.learn(X[(k + i) % len(y)], y[(k + i) % len(y)])
        for k in rng.permutation(150) if clf is b else range(150):
            streams[k].close()
    assert len(a.tasks_) == 190 and set(a.tasks_) == set(b.tasks_) and a.tasks_ != b.tasks_
    for k in (0, 17, 149):
        mine, theirs = (e.model(f"new {k}").predict_proba(X) for e in (a, b))
        np.testing.assert_array_equal(mine, theirs)
        rows = slice(k, k + 3)
        np.testing.assert_array_equal(mine, one.adapt(X[rows], y[rows]).predict_proba(X))


@pytest.mark.parametrize("kind", [fmrl.MetaClassifier, fmrl.MetaRegressor])
def test_an_estimator_that_was_not_fitted_has_no_stream(kind):
    with pytest.raises(ValueError, match="not fitted"):
        kind().stream("a")


def test_an_exception_inside_leaves_no_trace():
    est, rows, y, _ = case("three classes")
    before, names = est.prior_, est.tasks_
    with pytest.raises(ZeroDivisionError), est.stream("torn") as stream:
        stream.learn(rows[0], y[0])
        _ = 1 / 0
    assert est.prior_ is before and est.tasks_ == names and not stream.open
    stream.close()
    assert est.tasks_ == names


BAD = [
    [1.0, 2.0],
    [np.nan, np.inf, 0.0, 0.0],
    "text",
    ["1"] * 4,
    [1j] * 4,
    [[1.0] * 4],
    3.0,
    [np.inf] * 4,
]
PLAIN = ("numbers", "two classes", "three classes")


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("row", [*BAD, np.full(4, 1e120), np.ones((4, 1)), np.ones(5)])
def test_bad_rows_are_refused_and_change_nothing(row, name):
    est, rows, y, _ = case(name)
    stream = est.stream()
    stream.learn(rows[0], y[0])
    stream.predict(rows[1])
    with pytest.raises(fmrl.FMRLError):
        stream.learn(row, y[0])
    with pytest.raises(fmrl.FMRLError):
        stream.predict(row)
    if name != "numbers":
        with pytest.raises(fmrl.FMRLError, match="not one of the classes"):
            stream.learn(rows[0], "nobody")
    assert stream.rounds == 1
    same_answers(stream, est.adapt(rows[:1], y[:1]), rows)
    stream.learn(rows[1], y[1])
    same_answers(stream, est.adapt(rows[:2], y[:2]), rows)


def test_rows_are_copied_and_questions_change_nothing():
    est, rows, y, _ = case("three classes")
    plain, asked = est.stream(), est.stream()
    row = np.empty_like(rows[0])  # one buffer for all rows, as readers of sensors do
    for i in range(8):
        plain.learn(rows[i].tolist(), y[i])
        row[:] = rows[i + 1] if i % 2 else rows[i]
        asked.predict(row)
        row[:] = rows[i]
        if i % 3 == 0:
            asked.predict_proba(rows[i + 2])
        asked.learn(row, y[i])
    for x in rows:
        np.testing.assert_array_equal(asked.predict_proba(x), plain.predict_proba(x))
    asked.close()
    for call in (lambda: asked.predict(row), lambda: asked.learn(row, y[0])):
        with pytest.raises(fmrl.FMRLError, match="closed"):
            call()
    asked.close()  # twice does nothing


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_a_row_is_the_same_row_in_any_kind_of_array(classes):
    """Integers, float32, a stride, the other order of bytes, a list, a tensor, a series."""
    X, y, task = regression(20) if classes == 0 else classification(20, classes=classes)
    X = np.round(4 * X) * np.array([1.0, 100.0, 1.0, 1.0])
    est = (fmrl.MetaClassifier if classes else fmrl.MetaRegressor)(**LINEAR).fit(X, y, task=task)
    stride = np.repeat(X, 2, axis=1)
    kinds = [
        lambda i: X[i].astype(int),
        lambda i: X[i].astype(np.float32),
        lambda i: stride[i, ::2],
        lambda i: X[i].astype(">f8"),
        lambda i: X[i].tolist(),
        lambda i: pytest.importorskip("torch").tensor(X[i]),
        lambda i: pd.Series(X[i]),
    ]
    for number, kind in enumerate(kinds):
        plain, other = est.stream(f"plain {number}"), est.stream(f"other {number}")
        for i in range(4):
            assert plain.predict(X[i]) == other.predict(kind(i))
            plain.learn(X[i], y[i])
            other.learn(kind(i), y[i])
        if classes:
            np.testing.assert_array_equal(plain.predict_proba(X[5]), other.predict_proba(kind(5)))
        for stream in (plain, other):
            stream.close()
            np.testing.assert_array_equal(est._rows.take([stream.name]).X, X[:4])


def test_a_stream_left_open_over_a_new_fit_is_refused():
    X, y, task = classification(tasks=12)
    clf = fmrl.MetaClassifier(**LINEAR).fit(X, y, task=task)
    stream, other = clf.stream("ann"), clf.stream("bob")
    for one in (stream, other):
        one.learn(X[0], y[0])
    clf.fit(1e6 * X, y, task=task)
    calls = stream.close, lambda: stream.predict(X[0]), lambda: stream.learn(X[0], y[0])
    for call in calls:
        with pytest.raises(fmrl.FMRLError, match="fitted anew"):
            call()
    clf.fit(X[:, :2], np.array(["x", "y", "z"])[y], task=task)
    with pytest.raises(fmrl.FMRLError, match="fitted anew"):
        other.close()
    assert clf.tasks_ == list(range(12))


def test_relearning_lets_open_streams_go_on_and_takes_their_rows():
    X, y, task = regression(tasks=20)
    reg = fmrl.MetaRegressor(**LINEAR).fit(X, y, task=task)
    model = reg.adapt(X[:2], y[:2])
    stream = reg.stream("ann")
    stream.learn(X[0], y[0])
    reg.update(X + 1, y, task=task).relearn()
    stream.learn(X[1], y[1])
    same_answers(stream, model, X[:5])  # by the prior that it was opened with
    stream.close()
    with reg.stream("ann") as again:
        same_answers(again, reg.adapt(X[:2], y[:2]), X[:5])


@pytest.mark.parametrize("name", PLAIN)
def test_threads_lose_no_row_and_no_task(name):
    est, rows, y, _ = case(name)
    est = copy.deepcopy(est)
    together = est.stream("together")

    def work(i):
        with est.stream(f"own {i}") as stream:
            for k in range(8):
                stream.learn(rows[k], y[k])
                together.learn(rows[k], y[k])
                together.predict(rows[-1])
        together.predict(rows[0])

    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(old)
    together.close()
    assert together.rounds == 32 and est._rows.take(["together"]).lengths.tolist() == [32]
    for i in range(4):
        np.testing.assert_array_equal(est._rows.take([f"own {i}"]).X, rows[:8])
    held = est._rows.take(["together"]).X
    assert sorted(map(tuple, held)) == sorted(map(tuple, np.repeat(rows[:8], 4, axis=0)))
    for x in (rows[0], rows[-1]):
        at = np.array([x]), ["together"]
        np.testing.assert_allclose(est.model("together").coef_,
                                   est.adapt(held, est_targets(est, "together")).coef_)  # fmt: skip
        assert len(est.predict(at[0], task=at[1])) == 1


def est_targets(est, name):
    """The targets that a task has, in the user's words."""
    target = est._rows.take([name]).target
    if not hasattr(est, "classes_"):
        return target[:, 0]
    return est.classes_[target.argmax(1) if target.shape[1] > 1 else (target[:, 0] > 0) * 1]


def test_a_row_and_its_target_stay_together_between_threads():
    X, y, task = regression(tasks=20, features=2)
    est = fmrl.MetaRegressor(**LINEAR).fit(X, y, task=task)
    stream = est.stream("ann")

    def work(i):
        for k in range(60):
            stream.learn(np.array([60.0 * i + k, 1.0]), 60.0 * i + k)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    stream.close()
    rows = est._rows.take(["ann"])
    assert sorted(rows.X[:, 0].tolist()) == list(range(240))
    np.testing.assert_array_equal(rows.X[:, 0], rows.target[:, 0])


@pytest.mark.parametrize("label", [[1, 2], np.array([1, 2]), None])
@pytest.mark.parametrize("name", PLAIN)
def test_labels_that_are_none(label, name):
    with pytest.raises(fmrl.FMRLError):
        case(name)[0].stream().learn(np.zeros(4), label)


def test_what_a_stream_does_not_answer_is_said():
    with pytest.raises(fmrl.FMRLError, match="no probabilities; use predict"):
        case("numbers")[0].stream().predict_proba(np.zeros(4))
    with pytest.raises(fmrl.FMRLError, match="no intervals; use predict_proba"):
        case("two classes")[0].stream().predict_interval(np.zeros(4))
    for level in (0.0, 90, 1.0):
        with pytest.raises(fmrl.FMRLError, match="level"):
            case("numbers")[0].stream().predict_interval(np.zeros(4), level=level)


def test_a_table_is_no_row_and_a_stream_says_what_it_is():
    est, rows, y, _ = case("three classes")
    stream = est.stream("ann")
    for table in (pd.DataFrame(rows[:1]), pl.DataFrame(rows[:1])):
        with pytest.raises(fmrl.FMRLError, match="takes a row, not a table"):
            stream.predict(table)
    stream.learn(rows[0], y[0])
    assert repr(stream) == "TaskStream(name='ann', open, 1 rows)"
    assert stream.rounds == 1 and stream.open
    with pytest.raises(fmrl.FMRLError, match="of one task"):
        est.stream(["ann", "bob"])


def test_a_row_of_a_frame_may_name_its_task():
    X, y, task = classification(tasks=20)
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame.insert(1, "shop", task.astype(str))
    stream = fmrl.MetaClassifier(**LINEAR).fit(frame, y, task="shop").stream()
    with pytest.raises(fmrl.FMRLError, match=r"frame.iloc\[0\] or frame.row\(0, named=True\)"):
        stream.predict(frame[:1])
    rows = frame.iloc[0], frame.iloc[0].to_dict(), frame.drop(columns="shop").iloc[0], X[0]
    said = [stream.predict_proba(row) for row in rows]
    assert all((s == said[0]).all() for s in said)
    stream.learn(frame.iloc[0], y[0])
    with pytest.raises(fmrl.FMRLError, match="no column 'd'; the columns are 'a', 'b', 'c'"):
        stream.learn(frame.iloc[0].drop("d"), y[0])
    moved = frame.iloc[1][["shop", "d", "b", "c", "a"]]  # values are found by their names
    np.testing.assert_array_equal(stream.predict_proba(moved), stream.predict_proba(X[1]))


def test_rows_of_a_frame_with_columns_of_several_kinds():
    est, rows, y, _ = case("three classes")
    frame = pd.DataFrame({"a": rows[:3, 0], "b": [1, 2, 3], "c": [True, False, True],
                          "d": rows[:3, 1]})  # fmt: skip
    plain, mixed_ = est.stream(), est.stream()
    for i in range(3):
        row = frame.iloc[i]
        assert row.dtype == object
        mixed_.learn(row, y[i])
        plain.learn(row.to_numpy(float), y[i])
    np.testing.assert_array_equal(mixed_.predict_proba(rows[5]), plain.predict_proba(rows[5]))


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("kind", [fmrl.MetaClassifier, fmrl.MetaRegressor])
def test_a_gap_is_the_same_gap_in_every_way_in(kind, seen):
    """Rows with gaps, where fit had some or had none: predict, adapt, update and streams, whose
    rows may be arrays, lists with None or rows of a frame."""
    X, y, task = classification(20) if kind is fmrl.MetaClassifier else regression(20)
    rows, targets, mean = X[:6].copy(), y[:6], X.mean(axis=0)
    rows[[0, 2, 4], [1, 3, 0]], rows[5] = np.nan, np.nan
    if seen:
        X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    est = kind(**LINEAR).fit(X, y, task=task)
    assert est.encoder_.plain is not seen
    frame = pd.DataFrame(rows)
    ways = {
        "array": list(rows),
        "list": [[None if np.isnan(v) else v for v in row] for row in rows.tolist()],
        "frame": [frame.iloc[i] for i in range(len(rows))],
    }
    streams, said = {way: est.stream(way) for way in ways}, []
    for way, each in ways.items():
        stream, answers = streams[way], []
        for x, target in zip(each, targets.tolist(), strict=True):
            answers.append(stream.predict(x))
            stream.learn(x, target)
        said.append(answers)
    assert said[0] == said[1] == said[2]
    model = est.adapt(rows, targets)
    same_answers(streams["list"], model, rows)
    for stream in streams.values():
        stream.close()
    est.update(rows, targets, task="update")
    est.update(rows, targets, task=["many"] * 6)
    for name in (*ways, "update", "many"):
        np.testing.assert_allclose(est.model(name).coef_, model.coef_, rtol=1e-9)
        np.testing.assert_allclose(est.predict(rows, task=[name] * 6), model.predict(rows))
    if not seen:
        filled, one, two = np.where(np.isnan(rows), mean, rows), est.stream(), est.stream()
        for x, full, target in zip(rows, filled, targets, strict=True):
            one.learn(x, target)
            two.learn(full, target)
        if kind is fmrl.MetaRegressor:
            np.testing.assert_allclose(one.predict(rows[0]), two.predict(filled[0]), rtol=1e-9)
        else:
            np.testing.assert_allclose(one.predict_proba(rows[0]), two.predict_proba(filled[0]))


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_no_stream_is_pickled_or_copied(way):
    for name in PLAIN:
        stream = case(name)[0].stream("ann")
        with pytest.raises(fmrl.FMRLError, match="pickled") as e:
            way(stream)
        assert e.value.fix == "close it first"
        stream.close()
        with pytest.raises(fmrl.FMRLError, match="its rows are in the estimator"):
            way(stream)


@pytest.mark.parametrize("far", [1e5, 1e9, 1e20, 1e99, 1e160])
@pytest.mark.parametrize("name", PLAIN)
def test_a_stream_that_has_met_far_rows_goes_on(far, name):
    """Such rows are refused and change nothing, or what comes after them still counts: the model is
    that of `adapt` on the rows that were taken."""
    est, rows, y, _ = case(name)
    stream, taken, refused = est.stream(), [], 0
    for i in range(6):
        for x in ([far * rows[i]] if i % 2 else []) + [rows[i]]:
            try:
                stream.learn(x, y[i])
                taken.append((x, y[i]))
            except fmrl.FMRLError:
                refused += 1
    assert refused in ((3,) if far > 1e100 else (0,))
    model = est.adapt(np.array([x for x, _ in taken]), np.array([t for _, t in taken]))
    same_answers(stream, model, rows[-3:])


def test_a_stream_of_one_class():
    X, _, task = classification(tasks=12)
    clf = fmrl.MetaClassifier(**LINEAR).fit(X, np.zeros(len(X)), task=task)
    with clf.stream() as stream:
        for x in X[:10]:
            assert stream.predict(x) == 0.0
            np.testing.assert_allclose(stream.predict_proba(x), clf.predict_proba(x[None])[0])
            stream.learn(x, 0.0)


def test_a_masked_value_of_a_row_is_a_gap_and_text_is_no_number():
    est, rows, *_ = case("numbers")
    row = np.ma.array(rows[0].copy(), mask=[True] + [False] * 3)
    gap = rows[0].copy()
    gap[0] = np.nan
    said = [est.stream().predict(x) for x in (row, gap, rows[0])]
    assert said[0] == said[1] != said[2]
    with pytest.raises(fmrl.FMRLError, match="finite number"):
        est.stream().learn(rows[0], "1.0")


INSIDE = str(Path(fmrl.__file__).parent)


def pressed(call, at):
    """Press Ctrl-C at a call inside the library, or right after it; whether it came through, and
    how many places there were. The interpreter closes a ``with`` whole, which a profiler does not
    know."""
    places = 0

    def press(frame, event, arg):
        nonlocal places
        if event == "return" or not frame.f_code.co_filename.startswith(INSIDE):
            return
        if event != "call" and arg.__name__ in ("__enter__", "__exit__"):
            return
        places += 1
        if places == at:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(press)
    try:
        call()
    except KeyboardInterrupt:
        return True, places
    finally:
        sys.setprofile(None)
    return False, places


@pytest.mark.parametrize("name", [*PLAIN, "centres"])
def test_a_row_that_is_interrupted_is_learned_whole_or_not_at_all(name):
    est, rows, y, _ = case(name)
    model = [est.adapt(rows[:k], y[:k]) for k in range(len(y))]
    _, last = pressed(lambda: est.stream().learn(rows[0], y[0]), 0)
    came = []
    for at in range(1, last + 1):
        stream = est.stream("torn")
        for i in range(3):
            stream.learn(rows[i], y[i])
        if pressed(lambda s=stream: s.learn(rows[3], y[3]), at)[0]:
            came.append(stream.rounds)
        assert not stream._guard.locked()
        for i in range(stream.rounds, 6):
            stream.learn(rows[i], y[i])
        same_answers(stream, model[6], rows[-1:])
        np.testing.assert_array_equal(stream._new_rows().X, rows[:6])
        stream.open = False  # its rows go nowhere
    assert {*came} == {3, 4} and len(came) > 10
