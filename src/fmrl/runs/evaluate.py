"""Does it help on new tasks? FMRL against fitting each task alone and against one pooled model, by
the number of shots.

A training run sets aside some rows of the training tasks (`Reservoir`) and some of the held-out
tasks (`Heldout`), by keys that depend on the seed and on the place or name alone, so a resumed run
sets aside the same. The rows of every held-out task are shuffled once; a third of them is scored
on, k shots of the rest are learned from: k rows for a regression, k rows for each class of the
model for a classification, drawn as they come, so that rare classes stay rare. Accuracy is the
share of rows labelled right. R² of a task is 1 − (its mean squared error) / (the mean over held-out
tasks of the variance of their rows scored on): with one common denominator a task whose few rows
hardly vary cannot outweigh all others.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.tasks import Task, Tasks
from fmrl.estimators.task_models import Prior
from fmrl.report import held_out
from fmrl.tables.frames import id_text

ROWS = 20_000  # of training tasks, for the pooled baseline
LONGEST = 1024  # rows of a held-out task
SHOTS = (1, 2, 4, 8, 16, 32)
STRENGTHS = np.logspace(-2, 2, 5)  # of the baselines' regularisation, chosen by cross-validation
_THIRD = "a third of a task's rows are scored on"
PROTOCOL = {
    "accuracy": f"k shots = k rows per class of the model, drawn as they come; {_THIRD}",
    "r2": "k shots = k rows; R² = 1 − mean squared error / mean variance of the held-out tasks; "
    + _THIRD,
}


@dataclass
class Reservoir:
    """A uniform sample of at most ``most`` rows of all that were added: those with the smallest
    random keys.

    >>> sample = Reservoir(most=3)
    >>> for w in range(4):
    ...     sample.add(np.full((10, 1), w), np.ones((10, 1)), w)
    >>> sample.X.shape
    (3, 1)
    """

    seed: int = 0
    most: int = ROWS
    keys: np.ndarray = field(default_factory=lambda: np.empty(0))
    X: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    target: np.ndarray = field(default_factory=lambda: np.empty((0, 1)))

    def add(self, X: np.ndarray, target: np.ndarray, window: int) -> None:
        """Rows of window number ``window``."""
        keys = np.random.default_rng([self.seed, window]).random(len(target))
        good = np.flatnonzero(keys < (self.keys.max() if len(self.keys) == self.most else 1.0))
        X, target, keys = X[good], target[good], keys[good]
        if len(self.keys):
            X, target = np.concatenate([self.X, X]), np.concatenate([self.target, target])
            keys = np.concatenate([self.keys, keys])
        kept = np.sort(np.argsort(keys, kind="stable")[: self.most])  # in the order of the table
        self.keys, self.X, self.target = keys[kept], X[kept], target[kept]


class Held(NamedTuple):
    """A held-out task, its rows in a random order."""

    name: str
    X: np.ndarray
    target: np.ndarray  # as the loss encodes it


@dataclass
class Heldout:
    """At most ``most`` of the held-out tasks that were added: those whose name hashes lowest."""

    most: int = 100
    seed: int = 0
    seen: int = 0
    kept: list[tuple[int, Held]] = field(default_factory=list)

    def add(self, tasks: list[Task]) -> None:
        """Some more of them."""
        self.seen += len(tasks)
        for task in tasks:
            name = id_text(task.name)
            key = int.from_bytes(hashlib.sha256(f"{self.seed}/{name}".encode()).digest()[:8])
            if len(self.kept) >= self.most and not any(key < other for other, _ in self.kept[-1:]):
                continue
            order = np.random.default_rng([self.seed, key]).permutation(task.rounds)[:LONGEST]
            held = Held(name, task.X[order], task.open().target[order])
            self.kept.append((key, held))
            self.kept = sorted(self.kept, key=lambda pair: pair[0])[: self.most]

    @property
    def tasks(self) -> list[Held]:
        """Those kept."""
        return [held for _, held in self.kept]


def evaluate(
    prior: Prior, tasks: list[Held], pooled: Reservoir, progress: Callable[[int], None]
) -> dict[str, Any]:
    """Scores of the three methods on held-out tasks with 95 % intervals and paired differences, as
    the report reads them.
    """
    regression = prior.classes is None
    metric, outputs = ("r2", 1) if regression else ("accuracy", len(prior.classes))
    tasks = [t for t in tasks if len(t.X) >= 2]
    scored = [max(1, len(t.X) // 3) for t in tasks]
    most = max((len(t.X) - n for t, n in zip(tasks, scored, strict=True)), default=0)
    shots = [k for k in SHOTS if k * outputs <= most]
    if not shots:
        nothing = {"metric": metric, "shots": [], "methods": [], "differences": [], "tasks": 0}
        return nothing | {"protocol": PROTOCOL[metric]}
    centre, spread = pooled.X.mean(axis=0), pooled.X.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    everyone = _fit((pooled.X - centre) / spread, _labels(pooled.target, regression), regression)
    methods = ("FMRL", "per-task", "pooled")
    scores = {name: np.full((len(tasks), len(shots)), np.nan) for name in methods}
    for t, (task, n) in enumerate(zip(tasks, scored, strict=True)):
        y, scaled = _labels(task.target, regression), (task.X - centre) / spread
        for s, m in enumerate(k * outputs for k in shots):
            if m > len(y) - n:
                break
            said = (
                _adapted(prior, task, m, task.X[-n:]),
                _fit(scaled[:m], y[:m], regression)(scaled[-n:]),
                everyone(scaled[-n:]),
            )
            for name, guess in zip(methods, said, strict=True):
                right = (guess - y[-n:]) ** 2 if regression else guess == y[-n:]
                scores[name][t, s] = np.mean(right)
        progress(t + 1)
    if regression:
        unit = [float(np.var(t.target[-n:])) for t, n in zip(tasks, scored, strict=True) if n > 1]
        unit = float(np.mean(unit)) if any(unit) else 1.0
        scores = {name: 1 - error / unit for name, error in scores.items()}
    found = {"protocol": PROTOCOL[metric], "names": [t.name for t in tasks]}
    return {**held_out(scores, shots, metric), **found}


def _labels(target: np.ndarray, regression: bool) -> np.ndarray:
    """Numbers, or positions of classes, as scikit-learn wants them."""
    if target.shape[1] > 1:
        return target.argmax(axis=1)
    return target[:, 0] if regression else target[:, 0].astype(int)


def _adapted(prior: Prior, task: Held, m: int, new: np.ndarray) -> np.ndarray:
    """What FMRL's model of a task, adapted to its first m rows, says of ``new`` rows."""
    few = Tasks(prior.loss, task.X[:m], task.target[:m], np.array([0, m]), [task.name])
    (coef,), (intercept,) = prior.models(few)
    if len(coef) > 1:
        return (new @ coef.T + intercept).argmax(axis=1)
    margin = new @ coef[0] + intercept[0]
    return margin if prior.classes is None else (margin > 0).astype(int)


def _fit(X: np.ndarray, y: np.ndarray, regression: bool) -> Callable[[np.ndarray], np.ndarray]:
    """Ridge or logistic regression; its strength is cross-validated where there are rows enough,
    else 1.
    """
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV

    if regression:
        return (RidgeCV(1 / STRENGTHS) if len(y) > 2 else Ridge(1.0)).fit(X, y).predict
    labels, counts = np.unique(y, return_counts=True)
    if len(labels) == 1:
        return lambda A: np.full(len(A), labels[0])
    folds = int(min(3, counts.min()))
    model = LogisticRegression(max_iter=300)
    if folds > 1:
        model = LogisticRegressionCV(Cs=STRENGTHS, cv=folds, max_iter=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of iterations that ran out, and of defaults to come
        return model.fit(X, y).predict
