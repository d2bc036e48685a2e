"""Two example reports from real runs: python scripts/example_report.py FOLDER writes digits.html, regression.html and their facts.

digits: scikit-learn's handwritten digits, a task per block of 64 consecutive ones; every fourth task is held out.
regression: 400 synthetic regressions whose solutions scatter around a mean, three of them planted far off; 60 more are held out.
FMRL is Algorithm 2 from the core; a new task is learned by one pass of its within-task learner from phi, with the learned step.
The baselines here are plain (one regularisation, no tuning): this script shows the page, it is no benchmark.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score

import fmrl
from fmrl import report
from fmrl.data.synthetic import linear_regressions
from fmrl.records import checksum, write_json

SHOTS = (1, 2, 4, 8, 16, 32)


class Block(NamedTuple):
    """The rows of one task."""

    name: str
    X: np.ndarray
    y: np.ndarray


def digits_facts(rounds: int = 64) -> report.Facts:
    """Ten classes, 64 pixels."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    starts = range(0, len(y) - rounds + 1, rounds)
    tasks = [Block(f"digits {i}–{i + rounds - 1}", X[i : i + rounds], y[i : i + rounds]) for i in starts]
    train, new = [t for i, t in enumerate(tasks) if i % 4], tasks[::4]
    pixels = [f"pixel {row},{column}" for row in range(8) for column in range(8)]
    classes = [str(c) for c in range(10)]

    def per_task(A: np.ndarray, b: np.ndarray, C: np.ndarray) -> np.ndarray:
        return LogisticRegression(C=10.0).fit(A, b).predict(C) if len(set(b)) > 1 else np.full(len(C), b[0])

    pooled = LogisticRegression(C=10.0, max_iter=500).fit(np.vstack([t.X for t in train]), np.concatenate([t.y for t in train]))
    return _facts(
        "Handwritten digits, block by block",
        train,
        new,
        metric="accuracy",
        score=lambda truth, said: float(np.mean(truth == said)),
        predict=lambda theta, A: np.argmax(A @ theta.reshape(10, -1).T, axis=1),
        per_task=per_task,
        pooled=pooled.predict,
        features=pixels,
        classes=classes,
        domain=fmrl.Ball(6.0),
        loss=fmrl.OneVsAll(10),
    )


def regression_facts(tasks: int = 400, seed: int = 0) -> report.Facts:
    """Ten features, with three planted outliers."""
    made = linear_regressions(tasks + 60, 80, dim=10, spread=0.25, radius=1.0, seed=seed)
    rng = np.random.default_rng(seed)
    listed = []
    for t, task in enumerate(made):
        odd = t in (37, 181, 302)
        w = -made.centre if odd else made.optima[t]
        rows = 80 if t >= tasks else int(rng.integers(12, 40))
        X = task.X[:rows]
        listed.append(Block(f"sensor {t:03d}", X, X @ w + 0.1 * rng.standard_normal(rows)))
    train, new = listed[:tasks], listed[tasks:]
    pooled = Ridge(alpha=0.1, fit_intercept=False).fit(np.vstack([t.X for t in train]), np.concatenate([t.y for t in train]))
    return _facts(
        "Synthetic sensors",
        train,
        new,
        metric="r2",
        score=lambda truth, said: float(r2_score(truth, said)),
        predict=lambda theta, A: A @ theta,
        per_task=lambda A, b, C: Ridge(alpha=0.1, fit_intercept=False).fit(A, b).predict(C),
        pooled=pooled.predict,
        features=[f"channel {i}" for i in range(10)],
        classes=None,
        domain=fmrl.Ball(2.0),
        loss=fmrl.Squared(),
    )


def _facts(
    title: str, train: list, new: list, *, metric, score, predict, per_task, pooled, features, classes, domain, loss
) -> Any:
    began = time.perf_counter()
    algo = fmrl.FMRL(domain, fmrl.OMD(), fmrl.FAL(), fmrl.FollowLeader(), fmrl.AverageDeviation())
    played = [fmrl.Task(t.X, t.y, loss=loss, name=t.name) for t in train]
    history = fmrl.run(algo, played)
    rows: dict[str, list] = {"FMRL": [], "per-task": [], "pooled": []}
    for task in new:
        half = len(task.y) // 2
        shots = [k if k <= half else None for k in SHOTS]
        A, b, C, d = task.X[:half], task.y[:half], task.X[half:], task.y[half:]
        lone = [None if k is None else score(d, per_task(A[:k], b[:k], C)) for k in shots]
        ours = [
            None if k is None else score(d, predict(_adapt(algo, history, fmrl.Task(A[:k], b[:k], loss=loss)), C))
            for k in shots
        ]
        rows["FMRL"].append(ours)
        rows["per-task"].append(lone)
        rows["pooled"].append([None if k is None else score(d, pooled(C)) for k in shots])
    scores = {key: np.array(value, dtype=float) for key, value in rows.items()}
    lengths = [len(t.y) for t in train]
    made = report.facts_of(history, played, title=title, features=features, outputs=classes)
    del made["missing"]
    made["data"] |= {"kind": "regression" if classes is None else "classification", "heldout_tasks": len(new), "source": title}
    made["data"] |= {"features": len(features), "rows_per_task": (min(lengths), float(np.median(lengths)), max(lengths))}
    made["data"] |= {"classes": classes} if classes else {}
    made["learned"]["note"] = "per unit of the feature"
    made["heldout"] = report.held_out(scores, SHOTS, metric)
    made["run"] |= {
        "configuration": {"domain": repr(domain), "shots": ", ".join(map(str, SHOTS)), "holdout": len(new)},
        "data": [{"name": title, "rows": sum(lengths), "sha256": checksum(*(a for t in train for a in (t.X, t.y)))}],
        "command": "python scripts/example_report.py FOLDER",
        "seconds": time.perf_counter() - began,
    }
    return made


def _adapt(algo: fmrl.FMRL, history: fmrl.History, task: fmrl.Task) -> np.ndarray:
    """The average action of one more task, played from phi with the step of the learned guess."""
    game, state = task.open(), history.state
    eta = state.guess / (game.lipschitz(algo.domain) * np.sqrt(game.length))
    return fmrl.play(algo.within, game, algo.domain, state.phi, eta).average


def main(folder: str) -> None:
    """Write both reports."""
    for name, made in (("digits", digits_facts()), ("regression", regression_facts())):
        write_json(Path(folder) / f"{name}.json", made)
        print(report.write(made, Path(folder) / f"{name}.html"))


if __name__ == "__main__":
    main(sys.argv[1])
