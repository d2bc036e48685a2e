"""A task's life: rows come in any order and by any way in, and the task's model is that of all its
rows; tasks are forgotten, kept in a store, and asked for while others learn.
"""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import tracemalloc
import warnings
from concurrent.futures import Future

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import fmrl
from fmrl.core.losses import Squared
from fmrl.core.tasks import Tasks
from fmrl.estimators import meta, prior_fit
from fmrl.estimators.rows import TaskRows
from fmrl.estimators.rows_sqlite import SQLiteRows
from fmrl.tables.targets import group_by_task

from .data import bent, classification, regression

NAMES = np.array(["no", "perhaps", "yes"])


def table(kind, tasks=30, rows=12, seed=0):
    """An estimator and rows for it."""
    if kind == "regression":
        return fmrl.MetaRegressor(), *regression(tasks, rows, seed=seed)
    classes = 2 if kind == "binary" else 3
    X, y, task = classification(tasks, rows, classes=classes, size=1.0, seed=seed)
    return fmrl.MetaClassifier(common="linear"), X, NAMES[y], task


KINDS = pytest.mark.parametrize("kind", ["regression", "binary", "classes"])
STORED = pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])


def begun(kind, stored, tmp_path):
    """Fitted on 20 of 30 tasks, with the first 4 rows of each."""
    est, X, y, task = table(kind)
    est.set_params(store=tmp_path / "rows.sqlite" if stored else None)
    few = (np.arange(len(y)) % 12 < 4) & (task < 20)
    return est.fit(X[few], y[few], task=task[few]), X, y, task


def same(est, X, y, name, task, rtol=0.0):
    """The model of a task is that of all its rows."""
    mine, ours = est.model(name), est.adapt(X[task == name], y[task == name])
    np.testing.assert_allclose(mine.coef_, ours.coef_, rtol=rtol)
    np.testing.assert_allclose(mine.intercept_, ours.intercept_, rtol=rtol)
    np.testing.assert_allclose(mine.coef_std_, ours.coef_std_, rtol=rtol)


@KINDS
@STORED
def test_rows_that_come_in_parts_give_the_model_of_all_of_them(kind, stored, tmp_path):
    est, X, y, task = begun(kind, stored, tmp_path)
    place = np.arange(len(y)) % 12
    for rows in (place == 4, (place == 5) | (place == 6)):
        est.update(X[rows & (task < 20)], y[rows & (task < 20)], task=task[rows & (task < 20)])
    rest = ((place >= 7) & (task < 20)) | (task >= 20)  # known and new tasks together
    est.update(X[rest], y[rest], task=task[rest])
    for name in (0, 7, 19, 25):
        same(est, X, y, name, task)
    assert est.tasks_ == list(range(30))
    said = est.predict(X, task=task)
    alone = np.concatenate([est.model(t).predict(X[task == t]) for t in range(30)])
    if kind == "regression":
        np.testing.assert_allclose(said, alone, rtol=1e-9)
    else:
        assert (said == alone).mean() > 0.99  # probabilities and margins may tie


@STORED
def test_every_way_in_mixes_and_files_keep_it(stored, tmp_path):
    est, X, y, task = begun("classes", stored, tmp_path)
    at = {t: np.flatnonzero(task == t) for t in range(30)}
    for name in (3, 29):
        if name == 3:
            with est.stream(3) as stream:
                for i in at[3][4:7]:
                    stream.learn(X[i], y[i])
        else:
            est.partial_fit(X[at[29][:7]], y[at[29][:7]], task=29)
        est.save(tmp_path / "model")
        est = pickle.loads(pickle.dumps(fmrl.MetaClassifier.load(tmp_path / "model")))
        est.partial_fit(X[at[name][7:9]], y[at[name][7:9]], task=name)
        est.update(X[at[name][9:11]], y[at[name][9:11]], task=name)
        est.update(X[at[name][11:]], y[at[name][11:]], task=[name])
        same(est, X, y, name, task)
    assert est.tasks_ == [*range(20), 29]


def test_the_prior_stays_until_rows_have_doubled():
    est, X, y, task = begun("regression", False, None)
    prior = est.prior_
    est.partial_fit(X[4:6], y[4:6], task=0)
    est.update(X[6:8], y[6:8], task=0)
    with est.stream(0) as stream:
        stream.learn(X[8], y[8])
    assert est.prior_ is prior and est.tasks_ == list(range(20))
    same(est, X[:9], y[:9], 0, task[:9])
    rest = (task >= 20) & (task < 26)
    est.update(X[rest], y[rest], task=task[rest])  # 72 rows beside 80
    est.update(X[9:11], y[9:11], task=0)
    assert est.prior_ is prior and len(est.tasks_) == 26
    est.update(X[11:12], y[11:12], task=0)  # 80 rows since fit
    assert est.prior_ is not prior and est.prior_.tasks == 26
    same(est, X[:12], y[:12], 0, task[:12])


WHOLE = {"update": lambda est, X, y, task: est.update(X, y, task=task)}
WHOLE["update row by row"] = lambda est, X, y, task: [
    est.update(X[i : i + 1], y[i : i + 1], task=task[i]) for i in range(len(y))
]
WHOLE["partial_fit by task"] = lambda est, X, y, task: [
    est.partial_fit(X[task == t], y[task == t], task=t) for t in dict.fromkeys(task.tolist())
]
WHOLE["streams"] = lambda est, X, y, task: [
    stream_of(est, X[task == t], y[task == t], t) for t in dict.fromkeys(task.tolist())
]


def stream_of(est, X, y, name):
    with est.stream(name) as stream:
        for x, target in zip(X, y, strict=True):
            stream.learn(x, target)


@pytest.mark.parametrize("common", ["linear", "auto"])
@pytest.mark.parametrize("way", WHOLE)
@pytest.mark.parametrize("kind", ["regression", "binary", "trees"])
def test_rows_that_come_in_any_way_are_fit_once_the_prior_is_learned_again(kind, way, common):
    """fit(first) + rest + relearn() is fit(all), to the last bit."""
    make, data = fmrl.MetaRegressor, regression(tasks=16, rows=6)
    if kind == "binary":
        make, data = fmrl.MetaClassifier, classification(tasks=16, rows=6, classes=2, size=1.0)
    elif kind == "trees":
        if common == "linear" or way != "update":
            pytest.skip("as of a line")
        data = bent(tasks=40)
    X, y, task = data
    first = task < 8
    est = make(common=common).fit(X[first], y[first], task=task[first])
    WHOLE[way](est, X[~first], y[~first], task[~first])
    est.relearn()
    whole = make(common=common).fit(X, y, task=task)
    assert est.tasks_ == whole.tasks_
    assert kind != "trees" or whole.prior_.common is not None
    np.testing.assert_array_equal(est.coef_, whole.coef_)
    for name in (0, 7, 8, 15):
        mine, theirs = (e.adapt(X[task == name], y[task == name]) for e in (est, whole))
        np.testing.assert_array_equal(mine.coef_std_, theirs.coef_std_)
        np.testing.assert_array_equal(est.model(name).coef_, theirs.coef_)
    np.testing.assert_array_equal(est.predict(X, task=task), whole.predict(X, task=task))


def test_relearning_in_the_background_lets_predictions_go_on(monkeypatch):
    est, X, y, task = begun("regression", False, None)
    est.update(X[4:6], y[4:6], task=0)
    before, prior = est.predict(X[:9], task=task[:9]), est.prior_
    began, go_on, learn = threading.Event(), threading.Event(), meta.learn_prior

    def slow(*given):
        began.set()
        assert go_on.wait(60)
        return learn(*given)

    monkeypatch.setattr(meta, "learn_prior", slow)
    future = est.relearn(background=True)
    assert isinstance(future, Future) and began.wait(60) and not future.done()
    np.testing.assert_array_equal(est.predict(X[:9], task=task[:9]), before)
    est.update(X[6:8], y[6:8], task=0)  # and rows may come
    est.model(0), est.adapt(X[:3], y[:3]), pickle.dumps(est)
    with est.stream("new") as stream:
        stream.learn(X[0], y[0])
    assert est.prior_ is prior
    go_on.set()
    assert future.result(60) is est and est.prior_ is not prior
    assert est._rows.take([0]).lengths.tolist() == [8] and "new" in est.tasks_
    same(est, X[:8], y[:8], 0, np.zeros(8))


def test_a_fit_meanwhile_wins_over_relearning_in_the_background(monkeypatch):
    est, X, y, task = begun("binary", False, None)
    began, go_on, learn = threading.Event(), threading.Event(), meta.learn_prior

    def slow(*given):
        began.set()
        assert go_on.wait(60)
        return learn(*given)

    monkeypatch.setattr(meta, "learn_prior", slow)
    future = est.relearn(background=True)
    assert began.wait(60)
    monkeypatch.setattr(meta, "learn_prior", learn)
    est.fit(X[:, :2], np.where(y == "no", "a", "b"), task=task)
    prior = est.prior_
    go_on.set()
    assert future.result(60) is est and est.prior_ is prior
    assert set(est.predict(X[:, :2], task=task)) == {"a", "b"}


def test_relearning_needs_rows():
    with pytest.raises(ValueError, match="not fitted"):
        fmrl.MetaRegressor().relearn()
    with pytest.raises(ValueError, match="not fitted"):
        fmrl.MetaRegressor().relearn(background=True).result(60)
    X, y, task = regression(tasks=12)
    est = fmrl.MetaRegressor(common="linear")
    est.learn_tasks(group_by_task(Squared(), X, y, None, task))
    assert est.tasks_ == [] and est.prior_.tasks == 12
    with pytest.raises(fmrl.FMRLError, match="no task is known by its rows"):
        est.relearn()
    whole = fmrl.MetaRegressor(common="linear").fit(X, y, task=task)
    np.testing.assert_array_equal(est.coef_, whole.coef_)
    est.update(X[:5], y[:5], task="new")
    np.testing.assert_array_equal(est.model("new").coef_, whole.adapt(X[:5], y[:5]).coef_)


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_tasks_that_are_numbers_already_teach_as_fit_does(kind):
    est, X, y, task = table(kind, tasks=16, rows=8)
    X[:, 0] *= 100
    whole = clone(est).fit(X, y, task=task)
    loss = whole.prior_.loss
    answers = y if kind == "regression" else np.searchsorted(whole.classes_, y)
    tasks = group_by_task(loss, X, answers, None, task)
    given = {} if kind == "regression" else {"classes": whole.classes_}
    est.learn_tasks(tasks, columns=list("abcd"), **given)
    np.testing.assert_array_equal(est.coef_, whole.coef_)
    assert est.get_feature_names_out().tolist() == list("abcd")
    frame = pd.DataFrame(X[:6], columns=list("abcd"))
    np.testing.assert_array_equal(est.adapt(frame, y[:6]).coef_, whole.adapt(X[:6], y[:6]).coef_)


@STORED
def test_a_refused_batch_changes_nothing(stored, tmp_path):
    est, X, y, _task = begun("binary", stored, tmp_path)
    prior, rows = est.prior_, est._rows.take([0]).X.copy()
    ids = np.array([0, 99, 0])
    bad = [
        ({"X": X[:3, :2]}, "features"),
        ({"y": np.array(["no", "never", "no"])}, "never"),
        ({"task": ids[:2]}, "ids"),
        ({"task": None}, "task= is missing"),
        ({"sample_weight": [1.0, -1.0, 1.0]}, "[Nn]egative"),
        ({"X": np.where(X[:3] > 9, 0, np.inf)}, "infinity|finite|large"),
    ]
    if stored:
        bad.append(({"task": np.array(["2020-01-01"] * 3, dtype="M8[D]")}, "neither a number"))
    for change, message in bad:
        with pytest.raises(ValueError, match=message):
            est.update(**{"X": X[:3], "y": y[:3], "task": ids} | change)
    assert est.prior_ is prior and 99 not in est.tasks_
    np.testing.assert_array_equal(est._rows.take([0]).X, rows)


def test_rows_are_named_by_a_column_or_one_name_and_read_like_those_of_fit():
    X, y, task = regression(tasks=12)
    frame = pl.DataFrame({"size": X[:, 0], "kind": np.where(X[:, 1] > 0, "a", "b"),
                          "shop": [f"s{t}" for t in task]})  # fmt: skip
    est = fmrl.MetaRegressor().fit(frame, y, task="shop")
    for given in ({"task": "shop"}, {}, {"task": frame["shop"][:3]}, {"task": "s0"}):
        again = pickle.loads(pickle.dumps(est)).update(frame[:3], y[:3], **given)
        assert again._rows.take(["s0"]).lengths.tolist() == [15]
    est.update(frame[:2], y[:2], task="s77")
    assert est.tasks_[-1] == "s77"
    many = est.adapt_many(frame, y, task="shop")
    np.testing.assert_allclose(many.coef_[3], est.model("s3").coef_, rtol=1e-9)
    for given in ({"task": "shop"}, {}, {"task": frame["shop"][:4]}):
        np.testing.assert_array_equal(est.predict(frame[:4], **given), est.predict(frame)[:4])
    rows = frame[:3].to_dicts()  # and as mappings, in a list
    with est.stream("s1") as stream:
        for row, target in zip(rows, y, strict=False):
            stream.learn(row, target)
    assert est._rows.take(["s1"]).lengths.tolist() == [15]


def test_weights_of_some_rows_count_as_copies():
    est, X, y, _ = begun("regression", False, None)
    other = pickle.loads(pickle.dumps(est))
    est.update(X[4:7], y[4:7], task=0, sample_weight=[2.0, 0.0, 1.0])
    other.update(X[[4, 4, 6]], y[[4, 4, 6]], task=0)
    np.testing.assert_allclose(est.model(0).coef_, other.model(0).coef_, rtol=1e-9)
    same(other, X[[0, 1, 2, 3, 4, 4, 6]], y[[0, 1, 2, 3, 4, 4, 6]], 0, np.zeros(7))


@KINDS
def test_no_rows_give_the_population_and_many_tasks_what_each_gives(kind):
    est, X, y, task = begun(kind, False, None)
    none = est.adapt(X[:0], y[:0])
    np.testing.assert_allclose(none.coef_, est.coef_)
    np.testing.assert_allclose(none.intercept_, est.intercept_)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nobody = est.predict(X[:9], task=np.full(9, 999))
    if kind == "regression":
        np.testing.assert_allclose(none.predict(X[:9]), nobody, rtol=1e-12)
    else:
        np.testing.assert_array_equal(none.predict(X[:9]), nobody)
    with pytest.raises(ValueError, match="features"):
        est.adapt(X[:0, :2], y[:0])
    many = est.adapt_many(X, y, task)
    assert list(many) == list(range(30)) and len(many) == 30
    for t in (0, 13, 29):
        alone = est.adapt(X[task == t], y[task == t])
        np.testing.assert_array_equal(many[t].coef_, alone.coef_)
        np.testing.assert_allclose(many.coef_[t], alone.coef_, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(many.intercept_[t], alone.intercept_, rtol=1e-6, atol=1e-9)
        np.testing.assert_array_equal(many[np.int64(t)].predict(X[:5]), alone.predict(X[:5]))
    with pytest.raises(KeyError):
        many["nobody"]
    assert est.tasks_ == list(range(20))


@KINDS
def test_micro_batches_are_one_row_at_a_time(kind):
    est, X, y, task = begun(kind, False, None)
    alone = pickle.loads(pickle.dumps(est))
    place = np.arange(len(y)) % 12
    for i in range(4, 8):
        rows = np.flatnonzero((place == i) & (task < 20))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            many = est.predict(X[rows], task=task[rows])
        one = [alone.predict(X[r : r + 1], task=task[r : r + 1])[0] for r in rows]
        if kind == "regression":
            np.testing.assert_allclose(many, one, rtol=1e-9)
        else:
            np.testing.assert_array_equal(many, one)
        own = [est.model(task[r]).predict(X[r : r + 1])[0] for r in rows]  # from all rows so far
        if kind == "regression":
            np.testing.assert_allclose(own, many, rtol=1e-9)
        else:
            margins = np.abs(est.decision_function(X[rows], task=task[rows]).reshape(len(rows), -1))
            sure = margins.min(axis=1) > 1e-6
            assert (many == own)[sure].mean() > 0.95
        est.update(X[rows], y[rows], task=task[rows])
        for r in rows[::-1]:
            alone.update(X[r : r + 1], y[r : r + 1], task=int(task[r]))
    for t in range(20):
        np.testing.assert_array_equal(est.model(t).coef_, alone.model(t).coef_)


@STORED
def test_a_task_is_forgotten(stored, tmp_path):
    est, X, y, task = begun("regression", stored, tmp_path)
    coef = est.coef_
    size = est.nbytes_
    est.forget(np.int64(3))
    assert 3 not in est.tasks_ and len(est.tasks_) == 19 and est.nbytes_ <= size
    assert est.describe().startswith("learned from 20 tasks, 19 known by name; one task")
    with pytest.raises(fmrl.FMRLError, match="3 was not seen"):
        est.model(3)
    with pytest.raises(fmrl.FMRLError, match="3 was not seen"):
        est.forget(3)
    with pytest.warns(UserWarning, match="3 was not seen"):
        est.predict(X[:1], task=[3])
    np.testing.assert_array_equal(est.coef_, coef)
    est.update(X[task == 3][:2], y[task == 3][:2], task=3)  # it begins anew
    same(est, X[task == 3][:2], y[task == 3][:2], 3, np.full(2, 3))


def one_task(name, rows, weight=None):
    X = np.asarray(rows, dtype=float)
    heavy = 1.0 if weight is None else max(weight)
    given = None if weight is None else np.array(weight, dtype=float)
    return Tasks(Squared(), X, X[:, :1], np.array([0, len(X)]), [name], given, heavy)


@STORED
def test_rows_are_those_that_came_in_their_order_whatever_happens(stored, tmp_path):
    """Against a plain dict of lists."""
    rng, plain = np.random.default_rng(0), {}
    rows = SQLiteRows(str(tmp_path / "rows"), Squared(), 2) if stored else TaskRows(Squared(), 2)
    names = [None, "a", "1", 1, 2.5, "ü \0 '", -7, 10**30]
    for _ in range(300):
        some = [names[i] for i in rng.permutation(len(names))[: rng.integers(1, 5)]]
        lengths = rng.integers(1, 4, len(some))
        X = rng.normal(size=(lengths.sum(), 2))
        X[0, 0] = [0.0, -0.0, 5e-324, 1e307][rng.integers(4)]
        weight = rng.choice([1.0, 2.5], len(X)) if rng.random() < 0.2 else None
        starts = np.concatenate([[0], np.cumsum(lengths)])
        target = X[:, :1] * 2
        rows.add(Tasks(Squared(), held := X.copy(), target, starts, some, weight, 2.5))
        held[:], target[:] = np.nan, np.nan  # they are the caller's
        for name, a, b in zip(some, starts, starts[1:], strict=False):
            heavy = np.ones(b - a) if weight is None else weight[a:b]
            plain.setdefault(name, []).extend(np.c_[X[a:b], X[a:b, :1] * 2, heavy].tolist())
        if rng.random() < 0.1:
            gone = list(plain)[rng.integers(len(plain))]
            rows.forget(gone)
            del plain[gone]
        asked = [n for n in names if n in plain][:: 1 if rng.random() < 0.5 else -1]
        assert rows.known(names).tolist() == [n in plain for n in names] and len(rows) == len(plain)
        if not asked or rng.random() < 0.7:
            continue
        found = rows.take(asked)
        weight = np.ones(len(found.X)) if found.weight is None else found.weight
        whole = np.c_[found.X, found.target, weight]
        for name, a, b in zip(asked, found.starts, found.starts[1:], strict=False):
            np.testing.assert_array_equal(whole[a:b], plain[name])
    assert set(rows) == set(plain)


def test_what_was_taken_stays_when_rows_are_added():
    rows = TaskRows(Squared(), 2)
    rows.add(one_task("a", [[1.0, 2.0]]))
    taken = rows.take(["a"])
    for i in range(50):
        rows.add(one_task("a", [[i, i]]))
        rows.add(one_task(i, [[i, i]]))
    rows.forget(3)
    assert taken.X.tolist() == [[1.0, 2.0]]


def test_copies_for_searches_leave_the_store_alone(tmp_path):
    """They shared its file, and the second was refused."""
    X, y, task = regression(tasks=12)
    est = fmrl.MetaRegressor(common="linear", store=str(tmp_path / "rows.sqlite"))
    found = fmrl.few_shot_score(make_pipeline(est), X, y, task=task, shots=2, n_splits=2)[2]
    assert np.isfinite(found).all() and not any(tmp_path.iterdir())
    est.fit(X, y, task=task)
    again = clone(est).fit(X, y, task=task)
    assert again.store is None and again.common == "linear" and est.store is not None
    np.testing.assert_allclose(again.model(3).coef_, est.model(3).coef_, rtol=1e-9)
    assert len(est.tasks_) == 12


def test_a_store_belongs_to_one_estimator(tmp_path):
    est, X, y, task = begun("regression", True, tmp_path)
    path = tmp_path / "rows.sqlite"
    est.save(tmp_path / "model")
    assert (tmp_path / "model").stat().st_size < 100_000
    for other in (type(est)(store=str(path)), fmrl.MetaClassifier(store=str(path))):
        with pytest.raises(fmrl.FMRLError, match="20 tasks of another estimator"):
            other.fit(X, (y > 3) if isinstance(other, fmrl.MetaClassifier) else y, task=task)
    assert len(est.tasks_) == 20
    est.fit(X[:24], y[:24], task=task[:24])  # its own: what an earlier fit learned is forgotten
    assert est.tasks_ == [0, 1]
    with pytest.raises(fmrl.FMRLError, match="rows of another estimator"):
        fmrl.MetaRegressor.load(tmp_path / "model")
    est.save(tmp_path / "model")
    os.rename(path, tmp_path / "moved")
    with pytest.raises(fmrl.FMRLError, match="is gone"):
        fmrl.MetaRegressor.load(tmp_path / "model")
    for beside in tmp_path.glob("rows.sqlite*"):
        beside.unlink()
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(fmrl.FMRLError, match=r"rows\.sqlite"):
        fmrl.MetaRegressor.load(tmp_path / "model")


def test_another_process_adds_rows_and_is_killed(tmp_path):
    est, X, y, task = begun("regression", True, tmp_path)
    est.save(tmp_path / "model")
    before = est.predict(X[:5], task=task[:5])
    code = """
import sys, numpy as np, fmrl
est = fmrl.MetaRegressor.load(sys.argv[1])
X = np.load(sys.argv[2])
for i in range(10**6):
    est.update(X[:4] + i, X[:4, 0], task=[0, 0, 1000 + i, 1000 + i])
    print(i, flush=True)
"""
    np.save(tmp_path / "X.npy", X)
    given = [sys.executable, "-c", code, tmp_path / "model", tmp_path / "X.npy"]
    other = subprocess.Popen(given, stdout=subprocess.PIPE, text=True)
    for _ in range(20):
        last = int(other.stdout.readline())
        est.update(X[:1], y[:1], task=5)  # both write
    other.send_signal(signal.SIGKILL)
    last = max([last, *map(int, other.communicate()[0].split())])
    names = est.tasks_
    rows = est._rows.take([0])
    assert len(names) in (20 + last + 1, 20 + last + 2)
    assert len(rows.X) - 4 == 2 * (len(names) - 20)  # whole batches only
    assert est._rows.take([5]).lengths[0] == 24
    assert not np.allclose(before, est.predict(X[:5], task=task[:5]))
    same(est, rows.X, rows.target[:, 0], 0, np.zeros(len(rows.X)))


def test_memory_is_flat_in_the_number_of_tasks(tmp_path, monkeypatch):
    """The tasks from which it learns across them are soon as many as they may be."""
    monkeypatch.setattr(prior_fit, "PILOT_TASKS", 100)
    monkeypatch.setattr(prior_fit, "PILOT_ROWS", 400)
    X, y, task = regression(tasks=50, rows=6)
    est = fmrl.MetaRegressor(store=tmp_path / "rows", common="linear").fit(X, y, task=task)
    rng, used = np.random.default_rng(0), []
    tracemalloc.start()
    for i in range(1, 5):
        ids = np.repeat(np.arange(i * 1600, (i + 1) * 1600), 4)
        rows = rng.normal(size=(6400, 4))
        est.update(rows, rows.sum(axis=1) + rng.normal(size=6400), task=ids)
        est.predict(rows, task=ids)
        if i % 2 == 0:
            gc.collect()
            used.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert len(est._rows) == 6_450
    assert used[1] < used[0] + 50_000, used  # 3,200 tasks later; their rows are 600 kB


@STORED
def test_threads_ask_while_another_updates(stored, tmp_path):
    est, X, y, task = begun("binary", stored, tmp_path)
    ours = est.predict_proba(X[:8])
    errors, stop = [], threading.Event()

    def ask(what):
        try:
            while not stop.is_set():
                what()
        except Exception as error:
            errors.append(error)

    def whole():
        rows = est._rows  # a batch of two rows a task is seen whole or not at all
        with est._lock:
            lengths = rows.take(list(range(20))).lengths
        assert (lengths % 2 == 0).all()

    def known():
        est.predict(X[task < 20][::12], task=np.arange(20))
        est.model(7).predict_proba(X[:3])
        est.predict_proba(X[:20], task=np.arange(20))

    asked = [known, known, whole, lambda: est.predict(X[:5]), lambda: pickle.dumps(est)]
    asked.append(lambda: est.adapt(X[:4], y[:4]))
    threads = [threading.Thread(target=ask, args=(what,)) for what in asked]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for t in threads:
            t.start()
        streams = [est.stream(("s", i) if not stored else f"s{i}") for i in range(30)]

        def close():
            for i, s in enumerate(streams):
                s.learn(X[i], y[i])
                s.close()

        closing = threading.Thread(target=close)
        closing.start()
        for i in range(25):
            ids = np.repeat(np.arange(20), 2)
            est.update(X[:40], y[:40], task=ids)
            est.partial_fit(X[:6], y[:6], task=1000 + i)
        closing.join()
    finally:
        stop.set()
        for t in threads:
            t.join()
        sys.setswitchinterval(before)
    assert not errors, errors[0]
    assert len(est.tasks_) == 20 + 30 + 25 and ours.shape == (8, 2)


def test_two_threads_right_after_fit_both_get_answers():
    est, X, _y, task = begun("binary", False, None)
    for _ in range(4):
        again, found = pickle.loads(pickle.dumps(est)), []

        def ask(again=again, found=found):
            found.append(again.predict(X[task < 20], task=task[task < 20]))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(found) == 4 and all((f == found[0]).all() for f in found)


def test_how_tasks_differ_is_said_in_the_users_units():
    X, y, task = regression(tasks=200, spread=0.5, noise=0.2)
    frame = pl.DataFrame({"price": X[:, 0] / 10, "stock": X[:, 1]})
    y = y - X[:, 2:] @ np.linalg.lstsq(X, y, rcond=None)[0][2:]
    est = fmrl.MetaRegressor(common="linear").fit(frame, y, task=task)
    said = dict(line.strip().split(": ") for line in est.describe().splitlines()[1:5])
    assert list(said) == ["a typical row", "price", "stock", "rows around their task's model"]
    assert 3.5 < float(said["price"]) < 7 and 0.35 < float(said["stock"]) < 0.7
    np.testing.assert_allclose(float(said["price"]), est.prior_.coef_std[0][0, 0], rtol=1e-2)
    assert str(est.environment_) in est.describe() and "not linear" not in est.describe()
    far = fmrl.MetaRegressor(common="linear").fit(X[:, :2] + 100, y, task=task)
    same = float(far.describe().splitlines()[1].split(": ")[1])
    np.testing.assert_allclose(same, float(said["a typical row"]), rtol=1e-2)  # not at 0
    assert "two rows or more" in est.fit(frame, y, task=np.zeros(len(y))).describe()


@pytest.mark.parametrize("way", ["update", "partial_fit", "stream"])
def test_a_task_that_came_later_is_forgotten_whole(way):
    X, y, task = regression(tasks=20)
    est = fmrl.MetaRegressor().fit(X, y, task=task)
    if way == "update":
        est.update(X[:4], y[:4], task=900)
    elif way == "partial_fit":
        est.partial_fit(X[:4], y[:4], task=900)
    else:
        with est.stream(900) as stream:
            stream.learn(X[0], y[0])
    est.forget(900)
    assert 900 not in est.tasks_
    assert 900 not in est.relearn().tasks_ and est.prior_.tasks == 20
    fresh = fmrl.MetaRegressor().fit(X, y, task=task)
    np.testing.assert_array_equal(est.coef_, fresh.coef_)  # as if it had never been there
    alone = fmrl.MetaRegressor().partial_fit(X[:4], y[:4], task="a").forget("a")
    assert alone.tasks_ == []
    with pytest.raises(fmrl.FMRLError, match="no task is known"):
        alone.relearn()
    np.testing.assert_array_equal(alone.update(X[:4], y[:4], task="b").tasks_, ["b"])


def test_a_large_batch_that_is_refused_changes_nothing():
    X, y, task = regression(tasks=20)
    est = fmrl.MetaRegressor().fit(X, y, task=task)
    rng = np.random.default_rng(0)
    many, ids = rng.normal(size=(2200, X.shape[1])), np.repeat(np.arange(1100), 2) + 1000
    many[-1] = 1e101
    before = est.prior_, est.tasks_, est.nbytes_
    with pytest.raises(fmrl.FMRLError):
        est.update(many, rng.normal(size=2200), task=ids)
    assert (est.prior_, est.tasks_, est.nbytes_) == before


def test_rows_are_those_that_were_given():
    """A caller who writes into an array afterwards changes nothing."""
    rng = np.random.default_rng(0)
    X, ids = rng.normal(size=(45_000, 20)), np.repeat(np.arange(450), 100)
    est = fmrl.MetaRegressor(common="linear", environment="stationary")
    est.fit(X, X[:, 0], task=ids)
    coef = est.model(7).coef_.copy()
    X[:] = 0
    np.testing.assert_array_equal(est.model(7).coef_, coef)
    est = pickle.loads(pickle.dumps(est))
    np.testing.assert_array_equal(est.model(7).coef_, coef)


def test_numbers_beyond_squaring_are_refused_everywhere():
    X, y, task = regression(tasks=20)
    est = fmrl.MetaRegressor().fit(X, y, task=task)
    big = np.full((1, X.shape[1]), 1e200)
    for call in (lambda: est.adapt(big, [1.0]), lambda: est.update(big, [1.0], task=3)):
        with pytest.raises(fmrl.FMRLError, match="beyond"):
            call()
    for A, b in ((X * 1e-200, y), (X, y * 1e-200)):
        with pytest.raises(fmrl.FMRLError, match="too small"):
            fmrl.MetaRegressor().fit(A, b, task=task)


def test_tasks_that_are_numbers_already_leave_the_store_in_use(tmp_path):
    """Rows that came afterwards were in memory, and not in the store."""
    X, y, task = regression(tasks=20)
    tasks = group_by_task(Squared(), X, y, None, task)
    est = fmrl.MetaRegressor(common="linear", store=tmp_path / "rows").learn_tasks(tasks)
    est.save(tmp_path / "empty")
    for file in tmp_path.glob("rows*"):
        file.rename(tmp_path / f"gone {file.name}")
    loaded = fmrl.MetaRegressor.load(tmp_path / "empty")  # which writes nothing, whatever it says
    loaded.predict(X[:1], task=["new"])
    assert loaded.tasks_ == [] and not (tmp_path / "rows").exists()
    loaded.update(X[:3], y[:3], task="new")
    assert (tmp_path / "rows").exists() and loaded.tasks_ == ["new"]
    for file in tmp_path.glob("rows*"):
        file.unlink()
    est = fmrl.MetaRegressor(common="linear", store=tmp_path / "rows").learn_tasks(tasks)
    est.update(X[:3], y[:3], task="new").save(tmp_path / "model")
    again = fmrl.MetaRegressor.load(tmp_path / "model")
    est.update(X[3:5], y[3:5], task="new")
    assert isinstance(est._rows, SQLiteRows) and again._rows.take(["new"]).lengths.tolist() == [5]
    assert est.learn_tasks(tasks).tasks_ == []  # what an earlier fit kept is forgotten
