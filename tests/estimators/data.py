"""Small tables of tasks."""

import numpy as np


def classification(tasks=30, rows=12, features=4, classes=3, spread=0.5, size=2.0, seed=0):
    """X, y, task: Gaussian classes whose means scatter around common ones."""
    rng = np.random.default_rng(seed)
    centre = size * rng.normal(size=(classes, features))
    task = np.repeat(np.arange(tasks), rows)
    y = rng.integers(0, classes, tasks * rows)
    means = centre + spread * rng.normal(size=(tasks, classes, features))
    return means[task, y] + rng.normal(size=(tasks * rows, features)), y, task


def regression(tasks=30, rows=12, features=4, spread=0.3, noise=0.2, seed=0):
    """X, y, task: linear models that scatter around a common one, with an intercept of their "
    "own."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(tasks), rows)
    w = rng.normal(size=features) + spread * rng.normal(size=(tasks, features))
    b = 3 + spread * rng.normal(size=tasks)
    X = rng.normal(size=(tasks * rows, features))
    return X, (X * w[task]).sum(axis=1) + b[task] + noise * rng.normal(size=tasks * rows), task


def bent(tasks=60, rows=12, seed=0, binary=False):
    """X, y, task: tasks around a curve, each with its own level."""
    rng = np.random.default_rng(seed)
    task, X = np.repeat(np.arange(tasks), rows), rng.normal(size=(tasks * rows, 3))
    z = 2 * np.abs(X[:, 0]) + X[:, 1] + rng.normal(size=tasks)[task]
    y = (z - 1.5 + rng.logistic(size=len(z)) > 0).astype(int) if binary else z
    return X, y if binary else y + 0.3 * rng.normal(size=len(y)), task
