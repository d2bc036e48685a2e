"""Two example reports from real runs: python scripts/example_report.py FOLDER writes digits.html,
regression.html and their facts; python scripts/example_report.py --picture writes
docs/img/report.png, the first screen of the second on fewer tasks, in Chromium.

digits: scikit-learn's handwritten digits, a task per block of 64 consecutive ones; every fourth
task is held out.
regression: 400 synthetic regressions whose solutions scatter around a mean, three of them planted
far off; 60 more are held out. Both are scored as `fmrl train` does it: log-loss with accuracy and
calibration, or R² with the cover of intervals. This script shows the page, it is no benchmark."""

from __future__ import annotations

import base64
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fmrl
from fmrl import report
from fmrl.datasets.synthetic import linear_regressions
from fmrl.records import checksum, write_json
from fmrl.runs.algorithm_run import AlgorithmRun
from fmrl.runs.evaluate import Held, Reservoir, evaluate
from fmrl.tables.targets import class_positions, group_by_task

ROOT = Path(__file__).parents[1]


class Block(NamedTuple):
    """The rows of one task."""

    name: str
    X: np.ndarray
    y: np.ndarray


def digits_facts(rounds: int = 64, classes: int = 10) -> report.Facts:
    """So many classes, 64 pixels."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X, y = X[y < classes], y[y < classes]
    starts = range(0, len(y) - rounds + 1, rounds)
    tasks = [
        Block(f"digits {i}–{i + rounds - 1}", X[i : i + rounds], y[i : i + rounds]) for i in starts
    ]
    pixels = [f"pixel {row},{column}" for row in range(8) for column in range(8)]
    train, new = [t for i, t in enumerate(tasks) if i % 4], tasks[::4]
    names = [str(c) for c in range(classes)]
    return _facts("Handwritten digits, block by block", train, new, pixels, names)


def regression_facts(tasks: int = 400, seed: int = 0) -> report.Facts:
    """Ten features, with three planted outliers."""
    made = linear_regressions(tasks + 60, 80, dim=10, spread=0.25, radius=1.0, seed=seed)
    rng = np.random.default_rng(seed)
    listed = []
    for t, task in enumerate(made):
        w = -made.centre if t in (37, 181, 302) else made.optima[t]
        rows = 80 if t >= tasks else int(rng.integers(12, 40))
        X = task.X[:rows]
        listed.append(Block(f"sensor {t:03d}", X, X @ w + 0.1 * rng.standard_normal(rows)))
    channels = [f"channel {i}" for i in range(10)]
    return _facts("Synthetic sensors", listed[:tasks], listed[tasks:], channels, None)


def _facts(
    title: str, train: list[Block], new: list[Block], features: list[str], classes: list[str] | None
) -> Any:
    began = time.perf_counter()
    X, y = np.vstack([t.X for t in train]), np.concatenate([t.y for t in train])
    names, lengths = [t.name for t in train], [len(t.y) for t in train]
    learner = fmrl.MetaRegressor() if classes is None else fmrl.MetaClassifier()
    learner.fit(X, y, task=np.repeat(names, lengths))
    places = y if classes is None else class_positions(y, learner.classes_)
    played = group_by_task(learner.prior_.loss, X, places, None, np.repeat(names, lengths))
    run = AlgorithmRun.begin(played, {"similarity": fmrl.AverageDeviation()}, len(played))
    run.play(played)
    made = report.facts_of(run.history, title=title, names=names)
    note = "per unit of the feature"
    made["learned"] = report.coefficients(learner.coef_, features, classes, note=note)
    rows = Reservoir()
    rows.add(X, y[:, None], 0)
    listed = [Held(t.name, t.X, t.y[:, None]) for t in new]
    made["heldout"] = evaluate(learner, listed, rows, lambda done: None)
    data, shots = made["data"], ", ".join(map(str, made["heldout"]["shots"]))
    data["kind"] = "regression" if classes is None else "classification"
    data |= {"heldout_tasks": len(new), "source": title, "features": len(features)}
    data["rows_per_task"] = min(lengths), float(np.median(lengths)), max(lengths)
    data |= {"classes": classes} if classes else {}
    how = {"estimator": repr(learner), "shots": shots, "holdout": len(new)}
    made["run"] |= {"configuration": how, "command": "python scripts/example_report.py FOLDER"}
    made["run"]["data"] = [{"name": title, "rows": len(y), "sha256": checksum(X, y)}]
    made["run"]["seconds"] = time.perf_counter() - began
    del made["missing"]
    return made


def main(folder: str) -> None:
    """Write both reports."""
    for name, made in (("digits", digits_facts()), ("regression", regression_facts())):
        write_json(Path(folder) / f"{name}.json", made)
        print(report.write(made, Path(folder) / f"{name}.html"))


def picture() -> None:
    """Take the picture of a report for the site."""
    sys.path.insert(0, str(ROOT / "tests"))
    from report import chromium

    path = chromium.find()
    if path is None:
        sys.exit("no Chromium: install the package chromium, or name one in FMRL_CHROMIUM")
    with tempfile.TemporaryDirectory() as home:
        page = report.write(regression_facts(tasks=320), Path(home) / "report.html")
        browser = chromium.Browser(path, Path(home) / "profile")
        tab = browser.page(page, width=900, height=1120)
        shot = tab.call("Page.captureScreenshot", format="png")["data"]
        browser.close()
    (ROOT / "docs" / "img" / "report.png").write_bytes(base64.b64decode(shot))


if __name__ == "__main__":
    picture() if sys.argv[1] == "--picture" else main(sys.argv[1])
