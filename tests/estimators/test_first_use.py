"""What newcomers stumbled over: units, streams from nothing, rows with names, names of rules."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

import fmrl

from .data import classification, regression


def test_a_column_of_any_size_does_not_hide_the_others():
    X, y, task = regression(tasks=40)
    plain = fmrl.MetaRegressor().fit(X, y, task=task).score(X, y, task=task)
    stamps = 1.7e18 + 2.6e15 * np.random.default_rng(0).random(len(y))
    wide = np.column_stack([X, stamps])
    assert fmrl.MetaRegressor().fit(wide, y, task=task).score(wide, y, task=task) > plain - 0.02


def test_streams_alone_teach_new_tasks():
    X, y, task = classification()
    few = [np.flatnonzero(task == t)[:2] for t in range(5)]
    first = task < 6
    clf = fmrl.MetaClassifier().fit(X[first], y[first], task=task[first])
    after = []
    for t in np.unique(task)[6:]:
        with clf.stream(t) as stream:
            for i in np.flatnonzero(task == t):
                stream.learn(X[i], y[i])
        after.append(clf.adapt(X[few[0]], y[few[0]]).coef_)
    assert len(clf.tasks_) == 30 and clf.prior_.tasks > 6
    assert not np.allclose(after[0], after[-1])  # what was learned since has a say
    clf.relearn()
    whole = fmrl.MetaClassifier().fit(X, y, task=task)
    np.testing.assert_array_equal(clf.coef_, whole.coef_)


def test_a_row_with_names_must_have_those_of_fit():
    X, y, task = classification()
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    clf = fmrl.MetaClassifier().fit(frame, y, task=task)
    stream = clf.stream()
    np.testing.assert_array_equal(stream.predict_proba(frame.iloc[0]), stream.predict_proba(X[0]))
    moved = frame.iloc[0][frame.columns[::-1]]  # values are found by their names
    np.testing.assert_array_equal(stream.predict_proba(moved), stream.predict_proba(X[0]))
    for row in (moved.rename({"x0": "z"}), moved.iloc[1:]):
        with pytest.raises(fmrl.FMRLError, match="column"):
            stream.predict(row)


def test_a_class_of_ones_own_does_not_take_a_name_of_the_library():
    @dataclass(frozen=True)
    class Known(fmrl.AverageDeviation):
        """Another rule of that name."""

    assert type(fmrl.parse("Known(0.5)")) is fmrl.Known is not Known


def test_a_guess_that_is_not_a_number_is_an_error():
    class Broken(fmrl.Known):
        def update(self, domain, phi, guess, memory, end):
            return guess * np.nan, ()

    tasks = [fmrl.Task([[1.0]], [0.5], loss=fmrl.Squared()) for _ in range(3)]
    with pytest.raises(fmrl.FMRLError, match=r"task 0: .*the guess is no number") as caught:
        fmrl.run(fmrl.FMRL(similarity=Broken(0.5)), tasks)
    assert len(caught.value.history) == 0  # its end is no start of another


def test_fit_twice_forgets_the_first():
    X, y, task = regression(tasks=10)
    once = fmrl.MetaRegressor().fit(X, y, task=task)
    twice = fmrl.MetaRegressor().fit(-3 * X[::-1], y, task=task).fit(X, y, task=task)
    np.testing.assert_array_equal(once.coef_, twice.coef_)
    np.testing.assert_array_equal(once.predict(X, task=task), twice.predict(X, task=task))
    assert twice.tasks_ == list(range(10)) and twice.prior_.tasks == 10


def test_estimators_and_models_print_on_two_lines():
    X, y, task = classification()
    clf = fmrl.MetaClassifier("shop", environment=fmrl.Window(20), fit_intercept=False)
    clf.fit(X, y, task=task)
    for value in (clf, clf.adapt(X[:4], y[:4])):
        assert len(str(value).splitlines()) <= 2, str(value)


@pytest.mark.parametrize(
    ("slot", "base", "method"),
    [
        ("within", fmrl.Learner, "actions"),
        ("update", fmrl.UpdateRule, "vector"),
        ("meta", fmrl.MetaUpdate, "update"),
        ("similarity", fmrl.SimilarityRule, "init"),
    ],
)
def test_a_rule_that_lacks_its_method_is_named_at_once(slot, base, method):
    class Unwritten(base):
        """Nothing of its own."""

    with pytest.raises(fmrl.FMRLError, match=f"{slot}=.* has no {method}; write it"):
        fmrl.FMRL(**{slot: Unwritten()})
