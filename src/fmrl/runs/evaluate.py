"""Does it help on new tasks? FMRL against fitting each task alone and against one pooled model, by
the number of shots.

The rows of every held-out task are shuffled once; a third of them is scored on, k shots of the rest
are learned from: k rows for a regression, k rows for each class of the model for a classification,
drawn as they come, so that rare classes stay rare. Accuracy is the share of rows labelled right. R²
of a task is 1 − (its mean squared error) / (the mean over held-out tasks of the variance of their
rows scored on): with one common denominator a task whose few rows hardly vary cannot outweigh all
others. """

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from fmrl.estimators.pack import Table
from fmrl.estimators.task_models import Prior
from fmrl.report import held_out
from fmrl.runs.samples import Held, Reservoir

SHOTS = (1, 2, 4, 8, 16, 32)
STRENGTHS = np.logspace(-2, 2, 5)  # of the baselines' regularisation, chosen by cross-validation
PROTOCOL = {
    "accuracy": "k shots = k rows per class of the model, drawn as they come; a third of a task's rows are scored on",
    "r2": "k shots = k rows; R² = 1 − mean squared error / mean variance of the held-out tasks; a third of a task's rows are scored on",
}
Predict = Callable[[np.ndarray], np.ndarray]


def evaluate(
    prior: Prior, tasks: list[Held], pooled: Reservoir, progress: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Scores of the three methods on held-out tasks with 95 % intervals and paired differences, as
    the report reads them.
    """
    outputs = 1 if prior.classes is None else len(prior.classes)
    tasks = [t for t in tasks if len(t.y) >= 2]
    scored = [max(1, len(t.y) // 3) for t in tasks]
    most = max((len(t.y) - n for t, n in zip(tasks, scored, strict=True)), default=0)
    shots = [k for k in SHOTS if k * outputs <= most]
    metric = "accuracy" if prior.classes is not None else "r2"
    if not shots:
        return {"metric": metric, "shots": [], "methods": [], "differences": [], "tasks": 0, "protocol": PROTOCOL[metric]}
    centre, spread = _scale(pooled.X)
    everyone = _fit((pooled.X - centre) / spread, pooled.y, prior.classes is None)
    scores = {name: np.full((len(tasks), len(shots)), np.nan) for name in ("FMRL", "per-task", "pooled")}
    for t, (task, n) in enumerate(zip(tasks, scored, strict=True)):
        test, truth = task.X[-n:], task.y[-n:]
        scaled, rows = (task.X - centre) / spread, len(task.y) - n
        for s, k in enumerate(shots):
            m = k * outputs
            if m > rows:
                break
            alone = _fit(scaled[:m], task.y[:m], prior.classes is None)
            scores["FMRL"][t, s] = _score(_adapted(prior, task.X[:m], task.y[:m])(test), truth, metric)
            scores["per-task"][t, s] = _score(alone(scaled[-n:]), truth, metric)
            scores["pooled"][t, s] = _score(everyone(scaled[-n:]), truth, metric)
        if progress:
            progress(1)
    if metric == "r2":
        spread_of = [float(np.var(t.y[-n:])) for t, n in zip(tasks, scored, strict=True) if n > 1]
        unit = float(np.mean(spread_of)) if spread_of else 0.0
        unit = unit if unit > 0 else 1.0
        scores = {name: 1 - error / unit for name, error in scores.items()}
    return {**held_out(scores, shots, metric), "protocol": PROTOCOL[metric], "names": [t.name for t in tasks]}


def _score(said: np.ndarray, truth: np.ndarray, metric: str) -> float:
    """Accuracy, or the mean squared error."""
    return float(np.mean(said == truth)) if metric == "accuracy" else float(np.mean((said - truth) ** 2))


def _adapted(prior: Prior, X: np.ndarray, y: np.ndarray) -> Predict:
    """FMRL's model of a new task."""
    theta = prior.adapt(Table(X, y, None, np.array([0]), np.array([len(y)])))[0]
    coef, intercept = prior.chart.model(theta, prior.loss.outputs)
    if prior.classes is None:
        return lambda A: A @ coef[0] + intercept[0]
    if len(prior.classes) == 2:
        return lambda A: (A @ coef[0] + intercept[0] > 0).astype(int)
    return lambda A: (A @ coef.T + intercept).argmax(axis=1)


def _scale(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    spread = X.std(axis=0)
    return X.mean(axis=0), np.where(spread > 0, spread, 1.0)


def _fit(X: np.ndarray, y: np.ndarray, regression: bool) -> Predict:
    """Ridge or logistic regression, its strength cross-validated where there are rows enough, else
    1.
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
