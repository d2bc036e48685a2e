"""What a service pays: one task, many tasks, rows of many tasks at once, and a store.

    python benchmarks/service.py adapt      # one new task, and many at once
    python benchmarks/service.py rows       # learn_many and predict_many against river
    python benchmarks/service.py store      # memory and time as tasks grow in number

CPU time of one process; set OMP_NUM_THREADS=1. `rows` needs river.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import fmrl

TURNS = 5


def best(call: Callable[[], Any], count: int = 1) -> float:
    """Microseconds of CPU per item: the best of some turns."""
    found = []
    for _ in range(TURNS):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return min(found) / count * 1e6


def table(tasks: int, rows: int, features: int, kind: str, seed: int = 0) -> tuple:
    """X, y, task of linear tasks that scatter around a common one."""
    rng = np.random.default_rng(seed)
    task, X = np.repeat(np.arange(tasks), rows), rng.normal(size=(tasks * rows, features))
    w = rng.normal(size=features) + 0.5 * rng.normal(size=(tasks, features))
    z = (X * w[task]).sum(axis=1) + 0.5 * rng.normal(size=tasks)[task]
    noisy = z + rng.logistic(size=len(z))
    targets = {
        "regression": z + 0.3 * rng.normal(size=len(z)),
        "2 classes": (noisy > 0).astype(int),
        "4 classes": np.digitize(noisy, [-2, 0, 2]),
    }
    return X, targets[kind], task


def fitted(kind: str, X: Any, y: Any, task: Any, **given: Any) -> Any:
    made = fmrl.MetaRegressor if kind == "regression" else fmrl.MetaClassifier
    return made(**given).fit(X, y, task=task)


def adapt() -> None:
    """One task and 5,000, of 4 rows and 8 features."""
    for kind in ("regression", "2 classes", "4 classes"):
        est = fitted(kind, *table(300, 20, 8, kind))
        X, y, task = table(5000, 4, 8, kind, seed=1)
        some = np.arange(0, 400, 4)

        def one(est=est, X=X, y=y, some=some) -> None:
            for i in some:
                est.adapt(X[i : i + 4], y[i : i + 4])

        alone = best(one, len(some))
        many = best(lambda est=est, X=X, y=y, task=task: est.adapt_many(X, y, task), 5000)
        print(f"{kind:<12} adapt {alone / 1e3:.3f} ms a task, adapt_many {many:.1f} µs a task")


def rows() -> None:
    """1,000 tasks × 20 rows of 50 features, a row of every task at a time."""
    from river import linear_model, multiclass

    tasks, rounds = 1000, 20
    for classes in (2, 4):
        kind = f"{classes} classes"
        X, y, task = table(tasks, 2 * rounds, 50, kind)
        early = np.arange(len(y)) % (2 * rounds) < rounds
        est = fitted(kind, X[early], y[early], task[early])
        X, y = (a[~early].reshape(tasks, rounds, *a.shape[1:]) for a in (X, y))
        stream = [
            (dict(enumerate(row)), label)
            for row, label in zip(X.reshape(-1, 50).tolist(), y.ravel().tolist(), strict=True)
        ]
        peer = linear_model.LogisticRegression()
        peer = peer if classes == 2 else multiclass.OneVsRestClassifier(peer)
        began = time.process_time()
        for row, label in stream:
            peer.learn_one(row, label)
        learned = time.process_time()
        for row, _ in stream:
            peer.predict_one(row)
        spent = [learned - began, time.process_time() - learned, 0.0, 0.0]
        ids = np.arange(tasks)
        for i in track(range(rounds), kind, transient=True):
            batch, labels = np.ascontiguousarray(X[:, i]), y[:, i].copy()
            began = time.process_time()
            est.predict_many(batch, ids)
            said = time.process_time()
            est.learn_many(batch, labels, ids)
            spent[2] += time.process_time() - said
            spent[3] += said - began
        a, b, c, d = (s / (tasks * rounds) * 1e6 for s in spent)
        print(
            f"{kind}: µs a row: river learns {a:.2f}, predicts {b:.2f}; learn_many {c:.2f} "
            f"({a / c:.1f} times river), predict_many {d:.1f} (both: {(a + b) / (c + d):.2f} times)"
        )


def store() -> None:
    """200,000 tasks of 4 rows and 8 features, 5,000 at a time."""
    size = os.sysconf("SC_PAGE_SIZE")

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * size / 2**20

    with tempfile.TemporaryDirectory() as folder:
        for where in (Path(folder) / "rows.sqlite", None):
            est = fitted("regression", *table(500, 4, 8, "regression"), store=where)
            held = [resident()]
            for i in track(range(40), "tasks", transient=True):
                X, y, task = table(5000, 4, 8, "regression", seed=i + 1)
                est.learn_many(X, y, task + 5000 * (i + 1))
                est.predict_many(X[::4], task[::4] + 5000 * (i + 1))
                held.append(resident())
            said = ", ".join(f"{held[i]:.0f}" for i in (0, 10, 20, 30, 40))
            print(
                f"{'store' if where else 'memory'}: {said} MB after 0, 50, 100, 150, 200 thousand "
                f"tasks; {est.nbytes_ / len(est.tasks_):.0f} bytes a task"
            )


if __name__ == "__main__":
    {"adapt": adapt, "rows": rows, "store": store}[sys.argv[1]]()
