"""First-order and full MAML for one-vs-all linear models, many runs side by side.

    θ = P(phi − a·∇L_support(phi)),   phi ← P(phi − b·∇L_query(θ))             first-order: ∇ taken at θ and carried to phi
                                      phi ← P(phi − b·Jᵀ∇L_query(θ))           full: J = ∂θ/∂phi, projection included

L is the mean loss, P the projection onto the unit ball. Leading axes are runs: rates of a grid,
task orders, tasks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

RADIUS = 1.0


class Sample(NamedTuple):
    """Samples of tasks: X [..., n, f], target [..., n, C] one-hot."""

    X: np.ndarray
    target: np.ndarray


def _sigmoid(z: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.tanh(z / 2)


def gradient(phi: np.ndarray, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Gradient [..., C, f] of the mean one-vs-all loss at phi [..., C, f], and the probabilities
    [..., n, C].
    """
    p = _sigmoid(sample.X @ np.swapaxes(phi, -1, -2))
    return np.swapaxes(p - sample.target, -1, -2) @ sample.X / sample.X.shape[-2], p


def project(theta: np.ndarray, radius: float = RADIUS) -> np.ndarray:
    """Onto the ball in the Frobenius norm."""
    length = np.sqrt((theta * theta).sum((-2, -1), keepdims=True))
    return theta * (radius / np.maximum(length, radius))


def adapt(phi: np.ndarray, sample: Sample, rate: np.ndarray) -> np.ndarray:
    """One projected gradient step from phi with step ``rate`` [...]."""
    return project(phi - np.asarray(rate)[..., None, None] * gradient(phi, sample)[0])


def meta_gradient(
    phi: np.ndarray, support: Sample, query: Sample, rate: np.ndarray, full: bool
) -> np.ndarray:
    """The direction of the meta-step, [..., C, f].

    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.standard_normal((6, 3)), np.eye(2)[rng.integers(2, size=6)]
    >>> phi, rate, h = 0.1 * rng.standard_normal((2, 3)), np.array(0.5), 1e-6
    >>> def risk(phi):
    ...     z = X[3:] @ adapt(phi, Sample(X[:3], Y[:3]), rate).T
    ...     return float(np.mean((np.log1p(np.exp(z)) - Y[3:] * z).sum(1)))
    >>> step = np.zeros((2, 3)); step[1, 2] = h
    >>> numeric = (risk(phi + step) - risk(phi - step)) / (2 * h)
    >>> exact = meta_gradient(phi, Sample(X[:3], Y[:3]), Sample(X[3:], Y[3:]), rate, full=True)[1, 2]
    >>> bool(abs(numeric - exact) < 1e-8)
    True
    """
    a = np.asarray(rate)[..., None, None]
    g, p = gradient(phi, support)
    step = phi - a * g
    outer = gradient(project(step), query)[0]
    if not full:
        return outer
    length = np.sqrt((step * step).sum((-2, -1), keepdims=True))
    beyond = length > RADIUS
    safe = np.where(beyond, length, 1.0)
    radial = (step * outer).sum((-2, -1), keepdims=True) / safe**2
    outer = np.where(beyond, RADIUS / safe * (outer - radial * step), outer)
    bend = p * (1 - p) * (support.X @ np.swapaxes(outer, -1, -2))
    return outer - a * (np.swapaxes(bend, -1, -2) @ support.X) / support.X.shape[-2]


def train(
    phi: np.ndarray,
    tasks: Sample,
    order: np.ndarray,
    rates: tuple[np.ndarray, np.ndarray],
    full: bool,
) -> np.ndarray:
    """One pass over the tasks. phi [R, C, f]; tasks X [T, n, f]; order [R, T] or [T]; rates (inner,
    meta), each [R].

    The first half of a task's samples is the support, the second half the query, as in the authors'
    code."""
    inner, meta = (np.asarray(r) for r in rates)
    half = tasks.X.shape[1] // 2
    for t in np.moveaxis(np.asarray(order), -1, 0):
        X, target = tasks.X[t], tasks.target[t]
        support, query = (
            Sample(X[..., :half, :], target[..., :half, :]),
            Sample(X[..., half:, :], target[..., half:, :]),
        )
        phi = project(phi - meta[:, None, None] * meta_gradient(phi, support, query, inner, full))
    return phi
