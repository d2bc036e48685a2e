"""Time to fit and to adapt, on regressions with a random intercept and random slopes drawn as the
mixed model assumes. One thread, CPU seconds, same run.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

ROWS, FEATURES = 20, 8


def drawn(tasks: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y = ⟨w_t, x⟩ + b_t + noise; w_t and b_t vary from task to task by half their size."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(tasks), ROWS)
    X = rng.normal(size=(len(group), FEATURES))
    w = 1 + 0.5 * rng.normal(size=(tasks, FEATURES))
    y = np.einsum("ij,ij->i", X, w[group]) + 0.5 * rng.normal(size=tasks)[group]
    return X, y + rng.normal(size=len(y)), group


def clocked(call: Callable[[], Any], turns: int = 1) -> float:
    """The median of some turns."""
    found = []
    for _ in range(turns):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return float(np.median(found))


def fits(quick: bool) -> list[dict[str, Any]]:
    """`fit` of some hundred tasks against gpboost, and of ten thousand against the mixed model with
    slopes: a thousand of them, and ten thousand unless ``quick``.
    """
    import fmrl
    from groups.peers import gpboost_trees, gpboost_untuned, mixed_slopes

    lines = []
    races = [(300, "gpboost, tuned", gpboost_trees), (300, "gpboost, 100 trees", gpboost_untuned)]
    races += [(300, "mixed, slopes", mixed_slopes)]
    races += [(1_000 if quick else 10_000, "mixed, slopes", mixed_slopes)]
    for tasks, name, peer in races:
        X, y, group = drawn(tasks)
        ours = clocked(lambda: fmrl.MetaRegressor().fit(X, y, task=group), 3)  # noqa: B023
        theirs = clocked(lambda: peer(X, y, group, False))  # noqa: B023
        lines.append({"tasks": tasks, "peer": name, "fmrl s": ours, "peer s": theirs})
        print(
            f"fit, {tasks:,} × {ROWS} × {FEATURES}: fmrl {ours:.2f} s, {name} {theirs:.2f} s, "
            f"ratio {theirs / ours:.2f}",
            flush=True,
        )
    return lines


def adaptations() -> list[dict[str, Any]]:
    """Adapting one task, and many at once where the estimator can."""
    import fmrl

    X, y, group = drawn(600)
    binary = (y > 0).astype(int)
    old, lines = group < 300, []
    for kind, target in (("regression", y), ("binary", binary)):
        estimator = fmrl.MetaRegressor() if kind == "regression" else fmrl.MetaClassifier()
        fitted = estimator.fit(X[old], target[old], task=group[old])
        rows = [np.flatnonzero(group == t)[:8] for t in range(300, 600)]

        def each(fitted=fitted, target=target, rows=rows):
            for r in rows:
                fitted.adapt(X[r], target[r])

        line = {"kind": kind, "one ms": 1e3 * clocked(each, 3) / len(rows)}
        if hasattr(fitted, "adapt_many"):
            index = np.concatenate(rows)
            many = clocked(
                lambda: fitted.adapt_many(X[index], target[index], task=group[index]),  # noqa: B023
                3,
            )
            line["many µs"] = 1e6 * many / len(rows)
        lines.append(line)
        print(", ".join(f"{k} {v}" for k, v in line.items()), flush=True)
    return lines


def streams(quick: bool) -> list[dict[str, Any]]:
    """`update` of many tasks against river's learn_one, two and four classes: in turns, so that a
    machine that changes its pace favours none; medians.
    """
    from river import linear_model, multiclass

    import fmrl

    rng, lines, tasks, rounds = np.random.default_rng(0), [], 100 if quick else 500, ROWS
    for classes in (2, 4):
        centres = rng.normal(size=(classes, FEATURES))
        group = np.tile(np.arange(tasks), rounds)  # all tasks in turn
        y = rng.integers(0, classes, len(group))
        X = centres[y] + rng.normal(size=(len(y), FEATURES))
        clf = fmrl.MetaClassifier().fit(X, y, task=group)

        def many(clf, X=X, y=y, group=group):
            for i in range(0, len(y), tasks):
                part = slice(i, i + tasks)
                clf.update(X[part], y[part], task=group[part])
            clf.nbytes_  # noqa: B018 - what waits is sorted in, and its time counts

        model = linear_model.LogisticRegression()
        model = model if classes == 2 else multiclass.OneVsRestClassifier(model)
        pair, seconds = (clf, model), []
        dictionaries = [dict(enumerate(x)) for x in X.tolist()]

        def theirs(model, rows=dictionaries, y=y):
            for x, label in zip(rows, y.tolist(), strict=True):
                model.learn_one(x, label)

        for _ in range(2 if quick else 7):
            ours, peer = copy.deepcopy(pair)
            seconds.append((clocked(partial(many, ours)), clocked(partial(theirs, peer))))
        mine, river = len(y) / np.median(seconds, axis=0)
        line = {"classes": classes, "update rows/s": float(mine), "river rows/s": float(river)}
        lines.append(line)
        said = ", ".join(f"{k} {v:,.0f}" for k, v in line.items())
        print(f"{said}, ratio {mine / river:.1f}", flush=True)
    return lines


def measured(quick: bool) -> dict[str, Any]:
    return {"fits": fits(quick), "adaptations": adaptations(), "streams": streams(quick)}
