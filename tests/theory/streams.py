"""Small random streams of tasks for the theorems: domains × losses × learners, scales from tame
to awkward.
"""

import numpy as np

import fmrl

LOSSES = ("squared", "logistic", "hinge", "linear", "onevsall", "softmax")


def domain_of(kind, rng, dim):
    if kind == "ball":
        return fmrl.Ball(float(10 ** rng.uniform(-1, 1)))
    if kind == "box":
        low = -(10 ** rng.uniform(-1, 1, dim))
        return fmrl.Box(low, low + 10 ** rng.uniform(-1, 1, dim))
    return fmrl.Simplex(floor=float(rng.uniform(0.02, 0.9) / dim))


def task_of(loss, rng, m, dim, truth, noise, scale):
    X = scale * rng.normal(size=(m, dim))
    z = X @ truth + noise * scale * rng.normal(size=m)
    if loss == "linear":
        return fmrl.Task(X - truth, loss=fmrl.Linear())
    if loss == "squared":
        return fmrl.Task(X, z, loss=fmrl.Squared())
    if loss in ("onevsall", "softmax"):
        kind = fmrl.OneVsAll(2) if loss == "onevsall" else fmrl.Softmax(2)
        return fmrl.Task(X[:, : dim // 2], (z > 0).astype(int), loss=kind)
    return fmrl.Task(
        X, (z > 0).astype(int), loss=fmrl.Logistic() if loss == "logistic" else fmrl.Hinge()
    )


def stream(rng, loss, tasks, dim, *, ragged=True):
    """Tasks around a common truth; spread, noise and scale vary by two orders of magnitude."""
    spread, noise, scale = 10 ** rng.uniform(-2, 0.5, 3)
    centre = rng.normal(size=dim)
    rounds = rng.integers(1, 6, tasks) if ragged else np.full(tasks, rng.integers(1, 6))
    scales = scale * 10 ** (rng.uniform(-1, 1, tasks) if ragged else np.zeros(tasks))
    return [
        task_of(loss, rng, int(m), dim, centre + spread * rng.normal(size=dim), noise, s)
        for m, s in zip(rounds, scales, strict=True)
    ]
