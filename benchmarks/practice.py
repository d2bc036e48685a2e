"""The estimators without tuning, against what one would do without them: accuracy, speed of fit,
speed of streams. One thread.

accuracy  held-out tasks at 1, 2, 4, … 32 shots (rows per class; rows of a regression): `adapt`
          against one scikit-learn model per task (LogisticRegressionCV, RidgeCV) and against one
          such model for the rows of all training tasks together.
fit       100,000 tasks × 20 rows × 50 features, 4 classes, against one LogisticRegression per task;
          and the run of Algorithm 2 over them, which is played when it is first asked for.
stream    predict and learn, row by row, against river on the same stream.

    # all, 12 minutes on a busy machine; --quick one minute
    python benchmarks/practice.py
    # some; records go to DIR (default results/practice)
    python benchmarks/practice.py --parts fit,stream --out DIR

Times are CPU seconds of the one thread. Peers get the default settings of their own library.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # read when numpy is imported

import argparse
import copy
import cProfile
import pstats
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV
from sklearn.metrics import r2_score

import fmrl
from fmrl.records import record, write_json
from fmrl.stats import mean_interval

ROOT = Path(__file__).resolve().parents[1]
SHOTS = (1, 2, 4, 8, 16, 32)
POOLED_ROWS = 20_000  # rows of the pooled model, at most, drawn evenly
Rows = tuple[np.ndarray, np.ndarray]


# ---- accuracy
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """Training tasks, and test tasks as (rows to adapt to, rows to score on)."""

    train: list[Rows]
    test: list[tuple[Rows, Rows]]


@dataclass(frozen=True)
class Bench:
    """One line of the table; several draws of training and test tasks count as one longer list of
    test tasks.
    """

    name: str
    what: str
    regression: bool
    similar: bool  # whether the tasks share anything
    draws: Callable[[], Iterator[Draw]]


def held(X: np.ndarray, y: np.ndarray, most: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """A task's rows in random order, split: at most ``most`` of every class to adapt to, the
    others to score on.
    """
    order = rng.permutation(len(y))
    X, y = X[order], y[order]
    rank = np.array([(y[:i] == label).sum() for i, label in enumerate(y)])
    return (X[rank < most], y[rank < most]), (X[rank >= most], y[rank >= most])


def mini_wiki() -> Iterator[Draw]:
    from fmrl.reproduce.convex.data import load

    data = load("mini-wiki-rebuilt")
    X, y = data.arrays(32, "train")
    test = [
        ((data.X[32][t], data.y[32][t]), data.held[t])
        for t in data.index("test").tolist()
        if t in data.held
    ]
    yield Draw(list(zip(X, y, strict=True)), test)


def digit_pairs() -> Iterator[Draw]:
    X, y = load_digits(return_X_y=True)
    pairs = [(a, b) for a in range(10) for b in range(a + 1, 10)]
    for seed in range(3):
        rng = np.random.default_rng(seed)
        mixed, order = rng.permutation(len(y)), rng.permutation(45)

        def task(pair: int, images: np.ndarray, rng: Any = rng) -> tuple[Rows, Rows]:
            a, b = pairs[pair]
            rows = images[np.isin(y[images], (a, b))]
            return held(X[rows], (y[rows] == b).astype(int), 32, rng)

        half = len(y) // 2
        train = [task(p, mixed[:half])[0] for p in order[:30]]
        yield Draw(train, [task(p, mixed[half:]) for p in order[30:]])


def digit_blocks() -> Iterator[Draw]:
    X, y = load_digits(return_X_y=True)
    blocks = [(X[i : i + 85], y[i : i + 85]) for i in range(0, 21 * 85, 85)]
    rng = np.random.default_rng(0)
    for part in range(3):  # every block is tested once, with the others to learn from
        test = [held(*blocks[i], 4, rng) for i in range(part, 21, 3)]
        yield Draw([b for i, b in enumerate(blocks) if i % 3 != part], test)


def regression(spread: float, radius: float) -> Callable[[], Iterator[Draw]]:
    """y = ⟨w_t, x⟩ + noise, w_t Gaussian with deviation ``spread`` about a vector of length
    ``radius``.
    """

    def draws() -> Iterator[Draw]:
        rng = np.random.default_rng(0)
        centre = rng.normal(size=10)
        centre *= radius / np.linalg.norm(centre)

        def task(*sizes: int) -> list[Rows]:
            w = centre + spread * rng.normal(size=10) / np.sqrt(10)
            rows = [rng.normal(size=(n, 10)) for n in sizes]
            return [(X, X @ w + 0.3 * rng.normal(size=len(X))) for X in rows]

        yield Draw([task(16)[0] for _ in range(150)], [tuple(task(32, 200)) for _ in range(60)])

    return draws


def permuted_mixture() -> Iterator[Draw]:
    rng = np.random.default_rng(0)
    classes, dim = 4, 30
    means = rng.normal(size=(classes, dim))

    def task(*shots: int) -> list[Rows]:
        here = rng.permutation(means + rng.normal(size=means.shape))
        labels = [rng.permutation(np.repeat(np.arange(classes), n)) for n in shots]
        return [((here[y] + 3 * rng.normal(size=(len(y), dim))) / np.sqrt(dim), y) for y in labels]

    yield Draw([task(16)[0] for _ in range(150)], [tuple(task(32, 50)) for _ in range(60)])


_PAIRS = "digits, one against another: 30 training pairs, other images and pairs in the test"
_BLOCKS = "digits, all ten, in blocks of 85 consecutive images: 14 training blocks"
_WIKI = "Mini-Wiki (rebuilt): sentences of 517 training tasks, 4 classes"
_NEAR = "regression, optima at half the distance to the origin (spread 0.5)"
_FAR = "regression, optima twice as far apart as from the origin (spread 2)"
_CLOSE = "regression, optima close together (spread 0.1)"
_APART = "regression without a common centre"
_MIXED = "four Gaussians, labels permuted in every task"
BENCHES = (
    Bench("mini-wiki-rebuilt", _WIKI, False, True, mini_wiki),
    Bench("digit-pairs", _PAIRS, False, True, digit_pairs),
    Bench("digit-blocks", _BLOCKS, False, True, digit_blocks),
    Bench("regression-close", _CLOSE, True, True, regression(0.1, 1.0)),
    Bench("regression-near", _NEAR, True, True, regression(0.5, 1.0)),
    Bench("regression-far", _FAR, True, True, regression(2.0, 1.0)),
    Bench("regression-dissimilar", _APART, True, False, regression(2.0, 0.0)),
    Bench("mixture-permuted", _MIXED, False, False, permuted_mixture),
)


def support(rows: Rows, shots: int, regression: bool) -> Rows | None:
    """The first ``shots`` rows (of every class), or None where the task has not that many."""
    X, y = rows
    if regression:
        return (X[:shots], y[:shots]) if len(y) >= shots else None
    rank = np.array([(y[:i] == label).sum() for i, label in enumerate(y)])
    keep = rank < shots
    enough = len(np.unique(y)) * shots == keep.sum()
    return (X[keep], y[keep]) if enough else None


def plain(X: np.ndarray, y: np.ndarray, regression: bool) -> Any:
    """What one would fit without meta-learning: cross-validated where there are rows enough for
    that.
    """
    if regression:
        return (RidgeCV(np.logspace(-4, 4, 17)) if len(y) > 1 else Ridge()).fit(X, y)
    least = int(np.unique(y, return_counts=True)[1].min())
    if least < 2:
        return LogisticRegression(max_iter=1000).fit(X, y)
    folds = min(5, least)
    # Its defaults, made explicit.
    settings = {"scoring": "accuracy", "l1_ratios": (0.0,), "use_legacy_attributes": False}
    return LogisticRegressionCV(cv=folds, max_iter=1000, **settings).fit(X, y)


def score(model: Any, rows: Rows, regression: bool) -> float:
    X, y = rows
    return float(r2_score(y, model.predict(X)) if regression else np.mean(model.predict(X) == y))


def together(tasks: list[Rows]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ids = np.repeat(np.arange(len(tasks)), [len(y) for _, y in tasks])
    return np.concatenate([X for X, _ in tasks]), np.concatenate([y for _, y in tasks]), ids


def compared(bench: Bench, quick: bool) -> dict[str, Any]:
    """Scores of every test task by every method at every number of shots, as means with intervals
    and paired differences.
    """
    scores: dict[int, list[tuple[float, float, float]]] = {k: [] for k in SHOTS}
    rules, began = [], time.process_time()
    for draw in bench.draws():
        X, y, ids = together(draw.train[:40] if quick else draw.train)
        meta = fmrl.MetaRegressor() if bench.regression else fmrl.MetaClassifier()
        meta.fit(X, y, task=ids)
        rules.append([list(choice)[:4] for choice in meta.prior_.rule.choices])
        some = np.random.default_rng(0).permutation(len(y))[: POOLED_ROWS // (10 if quick else 1)]
        pooled = plain(X[some], y[some], bench.regression)
        for rows, queries in draw.test[:4] if quick else draw.test:
            of_pooled = score(pooled, queries, bench.regression)
            for shots in SHOTS:
                if (few := support(rows, shots, bench.regression)) is not None:
                    models = meta.adapt(*few), plain(*few, bench.regression)
                    ours, alone = (score(m, queries, bench.regression) for m in models)
                    scores[shots].append((ours, alone, of_pooled))
    cells = [summary(shots, np.array(found)) for shots, found in scores.items() if found]
    about = {"name": bench.name, "what": bench.what, "similar": bench.similar}
    about["score"] = "R²" if bench.regression else "accuracy"
    seconds = round(time.process_time() - began, 1)
    return about | {"cells": cells, "rules": rules, "seconds": seconds}


def summary(shots: int, scores: np.ndarray) -> dict[str, Any]:
    """One number of shots; scores [tasks, (fmrl, per task, pooled)]."""
    ours, alone, pooled = scores.T
    better = alone if alone.mean() >= pooled.mean() else pooled
    lines = {"fmrl": ours, "per-task": alone, "pooled": pooled, "fmrl − per-task": ours - alone}
    lines |= {"fmrl − pooled": ours - pooled, "fmrl − better": ours - better}
    return {"shots": shots, "tasks": len(ours)} | {
        name: list(mean_interval(values)[:3]) for name, values in lines.items()
    }


def accuracy(quick: bool) -> dict[str, Any]:
    warnings.simplefilter("ignore", ConvergenceWarning)
    sets, skipped = [], []
    for bench in BENCHES:
        try:
            sets.append(compared(bench, quick))
        except fmrl.FMRLError as error:
            if bench.name != "mini-wiki-rebuilt":
                raise
            skipped.append(bench.name)
            print(f"skipped {bench.name}: {error}")
            continue
        found, cells = sets[-1], sets[-1]["cells"]
        what = f"mean {found['score']} over held-out tasks, ± half of a 95 % interval"
        print(f"\n{found['what']} — {what}")
        print(f"{'shots':>16}" + "".join(f"{cell['shots']:>16}" for cell in cells))
        for line in ("fmrl", "per-task", "pooled", "fmrl − better"):
            said = (f"{m:9.3f} ± {high - m:.3f}" for m, _, high in (c[line] for c in cells))
            print(f"{line:>16}" + "".join(said), flush=True)
    each = [(cell, found["name"]) for found in sets for cell in found["cells"]]
    gap, name, shots = min((c["fmrl − better"][0], name, c["shots"]) for c, name in each)
    print(f"\nworst difference to the better of the two: {gap:+.4f} ({name}, {shots} shots)")
    worst = {"difference": gap, "set": name, "shots": shots}
    return {"sets": sets, "skipped": skipped, "worst": worst}


# ---- speed
# ------------------------------------------------------------------------------------------------

ROUNDS, FEATURES, CLASSES = 20, 50, 4


def similar_tasks(tasks: int, seed: int = 0) -> Iterator[Rows]:
    """Four Gaussians whose means differ from task to task by half of what they differ from each
    other; 20 rows.
    """
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(CLASSES, FEATURES))
    for _ in range(tasks):
        here, y = means + 0.5 * rng.normal(size=means.shape), rng.integers(0, CLASSES, ROUNDS)
        yield here[y] / 2 + rng.normal(size=(ROUNDS, FEATURES)), y


def fit(quick: bool) -> dict[str, Any]:
    tasks, sample = (2_000, 50) if quick else (100_000, 400)
    X, y = np.empty((tasks * ROUNDS, FEATURES)), np.empty(tasks * ROUNDS, dtype=int)
    for t, (rows, labels) in enumerate(similar_tasks(tasks)):
        here = slice(t * ROUNDS, (t + 1) * ROUNDS)
        X[here], y[here] = rows, labels
    ids = np.repeat(np.arange(tasks), ROUNDS)
    fmrl.MetaClassifier().fit(X[:2000], y[:2000], task=ids[:2000])  # imports and first calls
    LogisticRegression().fit(X[:ROUNDS], y[:ROUNDS])

    def alone(tasks: np.ndarray) -> float:
        began = time.process_time()
        for t in tasks:
            rows = slice(t * ROUNDS, (t + 1) * ROUNDS)
            LogisticRegression().fit(X[rows], y[rows])
        return time.process_time() - began

    def across() -> float:
        began = time.process_time()
        fmrl.MetaClassifier().fit(X, y, task=ids)
        return time.process_time() - began

    # In turns, so that a machine that changes its pace favours neither.
    some = np.linspace(0, tasks - 1, sample).astype(int)
    theirs, mine = [alone(some[0::3])], []
    for part in (1, 2):
        mine.append(across())
        theirs.append(alone(some[part::3]))
    peer, ours = sum(theirs) * tasks / sample, float(np.mean(mine))
    profile = cProfile.Profile(time.process_time)
    profile.runcall(fmrl.MetaClassifier().fit, X, y, task=ids)
    found = {"tasks": tasks, "rows": ROUNDS, "features": FEATURES, "classes": CLASSES}
    found |= {"fmrl s": ours, "scikit-learn s": peer, "scikit-learn tasks": sample}
    found |= {"ratio": peer / ours}
    found["share"] = shares(profile)
    print(f"\nfit, {tasks:,} tasks × {ROUNDS} rows × {FEATURES} features, {CLASSES} classes")
    print(f"  fmrl.MetaClassifier.fit   {ours:8.1f} s   {1e6 * ours / tasks:8.0f} µs a task")
    print(
        f"  LogisticRegression a task {peer:8.1f} s   {1e6 * peer / tasks:8.0f} µs a task, ", end=""
    )
    print(f"from {sample} tasks, extrapolated\n  ratio {found['ratio']:.1f}")
    stages = ", ".join(f"{k} {v:.0%}" for k, v in found["share"].items())
    print("  of fit's time (profiled, in a second run):", stages, flush=True)
    return found


STAGES = {  # functions that do not call each other: their cumulative times are shares of fit's
    "checking rows": "_tasks",
    "coordinates": "coordinates_of",
    "the common part": "with_common",
    "the environment": "environment_of",
    "the prior and its weights": "calibrate",
    "remembering rows": "add",
}


def shares(profile: cProfile.Profile) -> dict[str, float]:
    """Shares of fit's time by stage."""
    stats: dict = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    spent: dict[str, float] = {}
    for (file, _, name), found in stats.items():
        if "estimators" in file:  # the estimator's own fit is the longest of that name
            spent[name] = max(spent.get(name, 0.0), found[3])
    return {stage: spent[name] / spent["fit"] for stage, name in STAGES.items()}


def stream(quick: bool) -> dict[str, Any]:
    import river
    from river import linear_model, multiclass

    tasks = 50 if quick else 1000
    data = [(X, y.tolist()) for X, y in similar_tasks(tasks + 100)]
    seen, stream_ = data[:100], data[100:]
    # river's own form, made before the clock starts
    rows = [[dict(enumerate(x)) for x in X.tolist()] for X, _ in stream_]
    binary = [[label % 2 for label in y] for _, y in stream_]
    found: dict[str, Any] = {"river": river.__version__, "tasks": tasks, "rounds": ROUNDS}
    found |= {"features": FEATURES, "lines": []}

    def race(classes: int, runners: dict[str, tuple[Any, Callable]]) -> dict[str, float]:
        """Rounds a second of all of them, in turns, so that a machine that changes its pace
        favours none; medians.
        """
        speeds: dict[str, list[float]] = {how: [] for how in runners}
        right = {}
        for _ in range(1 if quick else 5):
            for how, (model, play) in runners.items():
                again = copy.deepcopy(model)  # every run meets the stream for the first time
                began = time.process_time()
                right[how] = play(again)
                speeds[how].append(tasks * ROUNDS / (time.process_time() - began))
        for how, all_ in speeds.items():
            speed, accuracy = float(np.median(all_)), right[how] / (tasks * ROUNDS)
            line = {"classes": classes, "how": how, "rounds/s": speed, "accuracy": accuracy}
            found["lines"].append(line)
            said = f"{speed:>8,.0f} rounds/s   accuracy {accuracy:.3f}"
            print(f"  {classes} classes, {how:<48} {said}", flush=True)
        theirs = np.array([*speeds.values()][-1])
        return {how: float(np.median(np.array(mine) / theirs)) for how, mine in speeds.items()}

    def ours(labels: list, clf: fmrl.MetaClassifier) -> int:
        right = 0
        for (X, _), y in zip(stream_, labels, strict=True):
            with clf.stream() as task:
                for x, label in zip(X, y, strict=True):
                    right += task.predict(x) == label
                    task.learn(x, label)
        return right

    def theirs(model: Any, labels: list, anew: Callable[[], Any] | None = None) -> int:
        right = 0
        for X, y in zip(rows, labels, strict=True):
            model = anew() if anew else model
            for x, label in zip(X, y, strict=True):
                right += model.predict_one(x) == label
                model.learn_one(x, label)
        return right

    about = f"predict, then learn (median of {1 if quick else 5} turns)"
    print(f"\nstream, {tasks} tasks × {ROUNDS} rounds, {FEATURES} features: {about}")
    X, _, ids = together(seen)
    for classes, labels in ((CLASSES, [y for _, y in stream_]), (2, binary)):
        past = np.concatenate([np.array(y) % classes for _, y in seen])
        clf = fmrl.MetaClassifier().fit(X, past, task=ids)
        one = "LogisticRegression" if classes == 2 else "OneVsRestClassifier(LogisticRegression)"

        def peer(classes: int = classes) -> Any:
            model = linear_model.LogisticRegression()
            return model if classes == 2 else multiclass.OneVsRestClassifier(model)

        runners = {"fmrl: t.predict(x), t.learn(x, y)": (clf, partial(ours, labels))}
        runners |= {
            f"river: {one}, a model a task": (None, partial(theirs, labels=labels, anew=peer)),
            f"river: {one}": (peer(), partial(theirs, labels=labels)),
        }
        names = ("predict, learn",)
        ratios = dict(zip(names, race(classes, runners).values(), strict=False))
        found[f"ratio, {classes} classes"] = ratios
        said = [f"{ratio:.2f} ({name})" for name, ratio in ratios.items()]
        print(f"  {classes} classes, times river: {', '.join(said)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default="accuracy,fit,stream", help="which, separated by commas")
    quick = "a small look; writes no record unless --out is given"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--out", type=Path, help="folder of the records (default results/practice)")
    args = parser.parse_args()
    parts = {"accuracy": accuracy, "fit": fit, "stream": stream}
    chosen = args.parts.split(",")
    if wrong := set(chosen) - set(parts):
        parser.error(f"there is no part {', '.join(sorted(wrong))}")
    for part in chosen:
        with record(f"practice-{part}", quick=args.quick) as entry:
            entry["results"] = parts[part](args.quick)
        entry["versions"]["river"] = version("river") if part == "stream" else None
        out = args.out or (None if args.quick else ROOT / "results" / "practice")
        if out:
            out.mkdir(parents=True, exist_ok=True)
            write_json(out / f"{part}.json", entry)
            print(f"wrote {part}.json")


if __name__ == "__main__":
    main()
