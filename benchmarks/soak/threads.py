"""Every pair of operations on one estimator, from two threads at once, with the interpreter
switching between them every 10 µs.

`pair` runs two of `OPERATIONS` against each other and returns what went wrong: an exception that
the user's calls do not explain, a task lost or counted twice, a prediction that no state of the
estimator gives, a stored file that cannot be read.

    python benchmarks/soak/threads.py predict partial_fit 17      one pair again, with its seed
"""

from __future__ import annotations

import copy
import itertools
import pickle
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fmrl

ROWS, FEATURES = 6, 3


class Shared:
    """One estimator with some tasks, and what the operations need."""

    def __init__(self, seed: int, folder: Path, fitted: bool = True):
        self.rng, self.folder, self.lock = np.random.default_rng(seed), folder, threading.Lock()
        self.estimator = fmrl.MetaRegressor(common="linear")
        self.X, self.y, self.task = self.data(24)
        if fitted:
            self.estimator.fit(self.X, self.y, task=self.task)
        self.names = itertools.count(1000)
        self.new: list[Any] = []  # tasks that were added, once each

    def data(self, tasks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        task = np.repeat(np.arange(tasks), ROWS)
        X = self.rng.normal(size=(len(task), FEATURES))
        w = 1 + 0.1 * self.rng.normal(size=(tasks, FEATURES))
        return X, (X * w[task]).sum(axis=1) + 0.1 * self.rng.normal(size=len(task)), task

    def fresh(self) -> tuple[str, np.ndarray, np.ndarray]:
        """A new task."""
        with self.lock:
            X, y, _ = self.data(1)
            name = f"new{next(self.names)}"
        return name, X, y

    def added(self, name: str) -> None:
        with self.lock:
            self.new.append(name)


def _finite(a: Any) -> None:
    if not np.all(np.isfinite(np.asarray(a, float))):
        raise AssertionError(f"a prediction is {a}")


def predict(s: Shared) -> None:
    _finite(s.estimator.predict(s.X[:3], task=s.task[:3]))


def relearn(s: Shared) -> None:
    s.estimator.relearn(background=True).result()


def model(s: Shared) -> None:
    _finite(s.estimator.model(3).predict(s.X[:3]))


def adapt(s: Shared) -> None:
    _finite(s.estimator.adapt(s.X[:4], s.y[:4]).coef_)


def adapt_many(s: Shared) -> None:
    _finite(s.estimator.adapt_many(s.X[:12], s.y[:12], task=s.task[:12]).coef_)


def partial_fit(s: Shared) -> None:
    name, X, y = s.fresh()
    s.estimator.partial_fit(X, y, task=name)
    s.added(name)


def update(s: Shared) -> None:
    name, X, y = s.fresh()
    s.estimator.update(X, y, task=name)
    s.added(name)


def add_rows(s: Shared) -> None:
    s.estimator.update(s.X[:2], s.y[:2], task=5)


def forget(s: Shared) -> None:
    name, X, y = s.fresh()
    s.estimator.update(X, y, task=name)
    s.estimator.forget(name)


def stream(s: Shared) -> None:
    name, X, y = s.fresh()
    with s.estimator.stream(name) as task:
        for x, target in zip(X, y, strict=True):
            _finite(task.predict(x))
            task.learn(x, target)
    s.added(name)


def save(s: Shared) -> None:
    path = s.folder / "one.fmrl"
    s.estimator.save(path)
    _finite(fmrl.MetaRegressor.load(path).predict(s.X[:3], task=s.task[:3]))


def pickled(s: Shared) -> None:
    _finite(pickle.loads(pickle.dumps(s.estimator)).predict(s.X[:3], task=s.task[:3]))
    _finite(copy.deepcopy(s.estimator).coef_)


def describe(s: Shared) -> None:
    e = s.estimator
    if not (e.describe() and len(e.tasks_) and e.nbytes_):
        raise AssertionError("nothing is known")
    _finite([*np.ravel(e.coef_), e.intercept_])


def fit(s: Shared) -> None:
    s.estimator.fit(s.X, s.y, task=s.task)


Operation = Callable[[Shared], None]
READS: tuple[Operation, ...] = (
    predict, model, adapt, adapt_many, save, pickled, describe,
)  # fmt: skip
WRITES: tuple[Operation, ...] = (partial_fit, update, add_rows, forget, stream, relearn, fit)
OPERATIONS = {operation.__name__: operation for operation in (*READS, *WRITES)}
PAIRS = [
    (a, b)
    for a, b in itertools.combinations_with_replacement(OPERATIONS, 2)
    if OPERATIONS[b] in WRITES or a == b == "save"
]


def pair(one: str, other: str, seed: int, rounds: int = 3) -> list[str]:
    """Two operations at once, some times; what went wrong."""
    wrong: list[str] = []
    before = sys.getswitchinterval()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shared = Shared(seed, Path(folder))
        start = threading.Barrier(2)

        def work(operation: Operation) -> None:
            start.wait()
            for _ in range(rounds):
                try:
                    operation(shared)
                except Exception as error:
                    # A fit forgets what streams and forget hold on to; nobody else may fail.
                    words = {stream: "fitted anew", forget: "was not seen"}.get(operation, "\0")
                    if not ("fit" in (one, other) and words in str(error)):
                        line = traceback.extract_tb(error.__traceback__)[-1]
                        wrong.append(
                            f"{operation.__name__}: {type(error).__name__}: {error} "
                            f"({Path(line.filename).name}:{line.lineno})"
                        )

        threads = [threading.Thread(target=work, args=(OPERATIONS[o],)) for o in (one, other)]
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)
        if "fit" not in (one, other) and not wrong:
            wrong += _lost(shared)
    return wrong


def _lost(s: Shared) -> list[str]:
    """Tasks that were added and are not there, or were counted twice."""
    wrong = []
    known = set(s.estimator.tasks_)
    if missing := [name for name in s.new if name not in known]:
        wrong.append(f"{len(missing)} tasks were lost")
    expected = len(np.unique(s.task)) + len(s.new)
    if len(known) != expected:
        wrong.append(f"{len(known)} tasks are known, not {expected}")
    return wrong


if __name__ == "__main__":
    one, other, seed = sys.argv[1:4]
    print("\n".join(pair(one, other, int(seed), rounds=20)) or "sound")
