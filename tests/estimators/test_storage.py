"""Models on disk."""

import json
import pickle

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.ensemble import HistGradientBoostingRegressor

import fmrl
from fmrl.estimators import storage
from fmrl.tables.targets import group_by_task

from .data import classification, regression


@pytest.fixture
def fitted(tmp_path):
    X, y, task = classification()
    clf = fmrl.MetaClassifier(environment=fmrl.Window(20)).fit(
        X, np.array(["x", "y", "z"])[y], task=task
    )
    clf.save(tmp_path / "model")
    return clf, X, task, tmp_path / "model"


def test_what_comes_back_predicts_and_learns_the_same(fitted, tmp_path):
    clf, X, task, path = fitted
    again = fmrl.MetaClassifier.load(path)
    assert repr(again) == repr(clf)
    np.testing.assert_array_equal(
        again.predict_proba(X, task=task), clf.predict_proba(X, task=task)
    )
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert again.environment_ == clf.environment_ and again.describe() == clf.describe()
    for est in (clf, again):
        est.partial_fit(X[:9], np.repeat(["x", "y", "z"], 3))
        with est.stream(3) as t:
            t.learn(X[0], "x")
    again.save(tmp_path / "second")
    third = fmrl.MetaClassifier.load(tmp_path / "second")
    assert third.tasks_ == clf.tasks_ == [*range(30), 30]
    for est in (clf, again, third):
        est.relearn()
    for est in (again, third):
        np.testing.assert_array_equal(est.coef_, clf.coef_)
        np.testing.assert_array_equal(est.model(3).coef_, clf.model(3).coef_)


def test_partial_fit_goes_on_after_loading_as_if_nothing_had_happened(tmp_path):
    X, y, task = regression(tasks=9)
    whole, parts = fmrl.MetaRegressor(), fmrl.MetaRegressor()
    for t in range(9):
        whole.partial_fit(X[task == t], y[task == t])
        parts.partial_fit(X[task == t], y[task == t])
        parts.save(tmp_path / "model")
        parts = fmrl.MetaRegressor.load(tmp_path / "model")
    assert parts.prior_.rule == whole.prior_.rule
    np.testing.assert_array_equal(parts.coef_, whole.coef_)
    assert parts.tasks_ == whole.tasks_


def test_every_flipped_byte_is_noticed(fitted):
    *_, path = fitted
    body, rng = path.read_bytes(), np.random.default_rng(0)
    for place in rng.integers(0, len(body), 300):
        damaged = bytearray(body)
        damaged[place] ^= 1 << rng.integers(0, 8)
        path.write_bytes(bytes(damaged))
        with pytest.raises(fmrl.FMRLError):
            fmrl.MetaClassifier.load(path)
    for cut in rng.integers(0, len(body), 30):
        path.write_bytes(body[:cut])
        with pytest.raises(fmrl.FMRLError):
            fmrl.MetaClassifier.load(path)


def test_foreign_files_are_refused(fitted, tmp_path):
    *_, path = fitted
    with pytest.raises(fmrl.FMRLError, match="holds a MetaClassifier"):
        fmrl.MetaRegressor.load(path)
    with pytest.raises(fmrl.FMRLError, match="there is no file"):
        fmrl.MetaClassifier.load(tmp_path / "nothing")
    (tmp_path / "pickle").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(fmrl.FMRLError, match="not a stored FMRL model"):
        fmrl.MetaClassifier.load(tmp_path / "pickle")


def test_a_full_disk_leaves_the_old_file(fitted, monkeypatch):
    clf, *_, path = fitted
    old = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(fmrl.FMRLError, match="No space left"):
        clf.save(path)
    assert path.read_bytes() == old and [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_file_is_plain_safetensors(fitted):
    *_, path = fitted
    assert load_file(path)["tasks.starts"].shape == (31,)
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    assert json.loads(header["__metadata__"]["fmrl"])["format"] == storage.FORMAT


def test_a_stored_model_knows_its_tasks_rows():
    """So that it can be given more of them."""
    X, y, task = regression(tasks=5, rows=10)
    reg = pickle.loads(pickle.dumps(fmrl.MetaRegressor().fit(X, y, task=task)))
    np.testing.assert_allclose(reg._rows.take([3]).X, X[task == 3])


def test_a_file_of_another_format_is_named(fitted, tmp_path, monkeypatch):
    clf, *_ = fitted
    monkeypatch.setattr(storage, "FORMAT", storage.FORMAT + 1)
    clf.save(tmp_path / "newer")
    monkeypatch.undo()
    said = f"has format {storage.FORMAT + 1}, this version reads {storage.FORMAT}"
    with pytest.raises(fmrl.FMRLError, match=said):
        fmrl.MetaClassifier.load(tmp_path / "newer")


def test_an_estimator_without_rows_is_stored(tmp_path):
    X, y, task = regression(tasks=9)
    loss = fmrl.Squared()
    reg = fmrl.MetaRegressor().learn_tasks(group_by_task(loss, X, y, None, task))
    reg.save(tmp_path / "model")
    again = fmrl.MetaRegressor.load(tmp_path / "model")
    assert again.tasks_ == [] and again.prior_.tasks == 9
    np.testing.assert_array_equal(again.adapt(X[:4], y[:4]).coef_, reg.adapt(X[:4], y[:4]).coef_)
    with pytest.raises(fmrl.FMRLError, match="not fitted"):
        fmrl.MetaRegressor().save(tmp_path / "model")


def test_a_text_that_can_be_in_no_file_is_named(tmp_path):
    X, y, task = regression(tasks=5, rows=4)
    names = np.array([f"n{i}" for i in task], dtype=object)
    names[task == 3] = "\ud800 bar"
    odd = r"'\\ud800 bar' is a text that UTF-8 cannot encode; rename it"
    reg = fmrl.MetaRegressor(common="linear").fit(X, y, task=names)
    labels = fmrl.MetaClassifier(common="linear").fit(X, np.where(y > 3, "a", names[-5]), task=task)
    with pytest.raises(fmrl.FMRLError, match=odd):
        labels.save(tmp_path / "model")
    reg.save(tmp_path / "model")  # names of tasks are written as escapes
    assert fmrl.MetaRegressor.load(tmp_path / "model").tasks_ == reg.tasks_
    reg = fmrl.MetaRegressor(common="linear", store=tmp_path / "rows").fit(X, y, task=names)
    assert "\ud800 bar" in reg.tasks_  # and so in a store


def test_names_of_tasks_are_data(tmp_path):
    """Millions of them in the header could be read by no library."""
    X, y, task = regression(tasks=5, rows=4)
    names = np.array([f"{'n' * 30}{i}é" for i in task], dtype=object)
    fmrl.MetaRegressor(common="linear").fit(X, y, task=names).save(tmp_path / "model")
    header = int.from_bytes((tmp_path / "model").read_bytes()[:8], "little")
    held = (tmp_path / "model").read_bytes()[: 8 + header]
    assert header < 20_000 and held.count(b"nnnnn") <= 6 * 5  # those of the pilot, at most
    assert fmrl.MetaRegressor.load(tmp_path / "model").tasks_ == list(dict.fromkeys(names))


def test_what_cannot_be_stored_is_named_by_its_place(tmp_path):
    X, y, task = regression(tasks=12, rows=8)
    reg = fmrl.MetaRegressor(common=HistGradientBoostingRegressor(max_iter=3)).fit(X, y, task=task)
    with pytest.raises(fmrl.FMRLError, match=r"prior\.common holds a .*; use .* or pickle"):
        reg.save(tmp_path / "model")
    reg.common = object()
    with pytest.raises(fmrl.FMRLError, match=r"^common= holds a object, which cannot be stored"):
        reg.save(tmp_path / "model")
    assert [*tmp_path.iterdir()] == []
