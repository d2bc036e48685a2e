"""Ctrl-C, at any call: an estimator is then what it was before, or what it would have become, the
prior perhaps not learned again yet."""

import signal
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

import fmrl
from fmrl.estimators import meta

from .data import classification, regression

INSIDE = str(Path(fmrl.__file__).parent)
KINDS = {
    "regression": (fmrl.MetaRegressor, regression(tasks=8, rows=5)),
    "classification": (fmrl.MetaClassifier, classification(tasks=8, rows=5)),
}


def stream(est, X, y):
    with est.stream("new") as task:
        for x, label in zip(X, y.tolist(), strict=True):
            task.learn(x, label)


WAYS = {
    "fit": lambda est, X, y, task: est.fit(X, y, task=task + 3),
    "partial_fit": lambda est, X, y, task: est.partial_fit(X[:20], y[:20], task="new"),
    "partial_fit of a known task": lambda est, X, y, task: est.partial_fit(X, y, task=3),
    "update": lambda est, X, y, task: est.update(X, y, task=task + 5),  # some are known
    "update of known tasks": lambda est, X, y, task: est.update(X, y, task=task),
    "predict after update": lambda est, X, y, task: est.predict(X, task=task),
    "stream": lambda est, X, y, task: stream(est, X[:5], y[:5]),
    "relearn": lambda est, X, y, task: est.relearn(),
    "forget": lambda est, X, y, task: est.forget(3),
}


class Press:
    """Press Ctrl-C at a call of the library; counts them."""

    def __init__(self, at):
        self.at, self.calls = at, 0

    def __call__(self, frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(INSIDE):
            self.calls += 1
            if self.calls == self.at:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)


def pressed(way, est, given, at):
    """Whether Ctrl-C came through, and how many calls there were."""
    press = Press(at)
    sys.setprofile(press)
    try:
        way(est, *given)
    except KeyboardInterrupt:
        return True, press.calls
    finally:
        sys.setprofile(None)
    return False, press.calls


def look(est, X):
    """All that is known, as numbers; of an estimator that was not fitted, what it has."""
    if "_prior" not in vars(est):
        return sorted(vars(est).keys() - {"_guard"})
    est, names = deepcopy(est), est.tasks_
    said = [est.predict(X, task=[name] * len(X)).round(9).tolist() for name in names]
    prior = est.prior_.tasks, est.coef_.round(9).tolist()
    return names, est._rows.take(names).lengths.tolist(), said, prior


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("first", [False, True], ids=["fitted", "new"])
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_at_any_call_changes_all_or_nothing(kind, first):
    make, (X, y, task) = KINDS[kind]
    new = make(common="linear", environment="stationary")
    ways = {k: WAYS[k] for k in ("fit", "partial_fit", "update")} if first else WAYS
    begun = new if first else deepcopy(new).fit(X, y, task=task)
    for name, way in ways.items():
        begin = deepcopy(begun)
        if not first:
            begin.predict(X, task=task)  # models are then kept, and must not outlive their rows
        if "after" in name or name == "relearn":
            begin.update(X[:20] + 1, y[:20], task=task[:20])
        done, given = deepcopy(begin), (X[::-1] + 0.0, y[::-1], task)
        _, calls = pressed(way, done, given, 0)
        with pytest.MonkeyPatch.context() as patch:  # rows are there, and the prior is the old one
            patch.setattr(meta, "RELEARN_UP_TO", 0)
            way(between := deepcopy(begin), *given)
        right = look(begin, X), look(done, X), look(between, X)
        assert right[0] != right[1] or "predict" in name
        spread = np.linspace(1, calls, 4 if calls > 5000 else 12).astype(int).tolist()
        came = 0
        for at in sorted(
            {*spread, *range(max(1, calls - 12), calls + 1)} if calls < 5000 else spread
        ):
            est = deepcopy(begin)
            stopped = pressed(way, est, given, at)[0]
            came += stopped
            assert look(est, X) in (right[:1] if stopped and name == "fit" else right), (name, at)
        assert came > 2, name
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
