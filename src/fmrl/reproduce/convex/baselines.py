"""Methods that the figures compare with and the library does not offer: the released code's FTRL,
and MAML.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fmrl import Ball

RADIUS = 1.0  # of MAML's ball


@dataclass(frozen=True)
class SummedFTRL:
    """FTRL as the released code computes it: not the losses so far but one logistic of their summed
    rows. Kept so that the paper's left panel can be drawn with it; NumPy only.

    After i rounds it plays the minimiser over a ball about 0 of

        ½‖θ − phi‖² + eta·Σ_c log(1 + exp(−⟨θ_c, v_c⟩)),   v_c = Σ_{s≤i} ±x_s (+ where y_s = c),

    which is FTRL for i = 1 only. With the multiplier λ of the ball, (1 + λ)·θ_c = phi_c +
    eta·s_c·v_c where s_c = sigmoid(−⟨θ_c, v_c⟩): one scalar equation a class, solved by safeguarded
    Newton steps inside a bracketing search for λ.
    """

    def actions(self, game, domain, phi, eta):
        """As in every learner: yields an action and is sent a gradient, which this one ignores."""
        if not isinstance(domain, Ball) or domain.centre != 0.0:
            raise TypeError("SummedFTRL plays on a ball about 0")
        start = game.matrix(phi)
        total = np.zeros_like(start)
        yield phi
        for i in range(game.length):
            sign = (2 * game.target[..., i, :] - 1) * game.weight[..., i, None]
            total = total + sign[..., :, None] * game.X[..., i, None, :]
            yield leader(start, total, np.asarray(eta), domain.radius).reshape(phi.shape)


def leader(phi: np.ndarray, v: np.ndarray, eta: np.ndarray, radius: float) -> np.ndarray:
    """The minimiser; phi and v [..., C, f], eta [...]."""
    shape = phi.shape
    phi, v = (a.reshape(-1, *shape[-2:]) for a in (phi, v))
    eta = np.broadcast_to(eta, shape[:-2]).reshape(-1, 1)
    p, q = (phi * v).sum(-1), eta * (v * v).sum(-1)
    base = (phi * phi).sum((-2, -1))
    a, s = _margins(p, q, np.ones_like(eta))
    square = base + (2 * eta * s * p + eta * q * s**2).sum(-1)  # ‖θ‖² without the ball
    scale = np.ones_like(base)
    out = np.flatnonzero(square > radius**2)
    if out.size:
        p, q, weight, base, a = p[out], q[out], eta[out], base[out], a[out]

        def length(s: np.ndarray) -> np.ndarray:
            square = base + (2 * weight * s * p + weight * q * s**2).sum(-1)
            return np.sqrt(np.maximum(square, 0.0))

        low = np.ones(out.size)  # of 1 + λ
        high = (np.sqrt(base) + np.sqrt((weight * q).sum(-1))) / radius  # since s ≤ 1
        over = np.sqrt(square[out]) - radius
        under = length(_margins(p, q, high[:, None])[1]) / high - radius - 1e-300
        last = np.zeros(out.size)
        for _ in range(60):  # regula falsi; a side that stays put twice is halved (Illinois rule)
            middle = (low * under - high * over) / (under - over)
            a, found = _margins(p, q, middle[:, None], a)
            miss = length(found) / middle - radius
            if np.abs(miss).max() <= 1e-9 * radius:
                break
            up = miss > 0
            under = np.where(up, np.where(last > 0, under / 2, under), miss)
            over = np.where(up, miss, np.where(last < 0, over / 2, over))
            low, high = np.where(up, middle, low), np.where(up, high, middle)
            last = np.where(up, 1.0, -1.0)
        s[out] = found
        scale[out] = length(found) / radius
    return ((phi + (eta * s)[..., None] * v) / scale[:, None, None]).reshape(shape)


def _margins(
    p: np.ndarray, q: np.ndarray, mass: np.ndarray, a: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """a and s = sigmoid(−a) with mass·a = p + q·s, by Newton's method kept inside a bracket."""
    low, high = p / mass, (p + q) / mass
    a = (low + high) / 2 if a is None else np.clip(a, low, high)
    step = high - low
    for _ in range(80):
        s = 0.5 - 0.5 * np.tanh(a / 2)
        miss = mass * a - p - q * s
        if (np.abs(miss) <= 1e-11 * (1 + np.abs(p) + q)).all():
            break
        low, high = np.where(miss < 0, a, low), np.where(miss > 0, a, high)
        new = a - miss / (mass + q * s * (1 - s))
        # Newton may jump back and forth over the steep middle of the sigmoid: bisect unless steps
        # shrink.
        good = (new >= low) & (new <= high) & (np.abs(new - a) <= 0.5 * np.abs(step))
        new = np.where(good, new, (low + high) / 2)
        step, a = new - a, new
    return a, 0.5 - 0.5 * np.tanh(a / 2)


class Sample(NamedTuple):
    """Samples of tasks: X [..., n, f], target [..., n, C] one-hot."""

    X: np.ndarray
    target: np.ndarray

    def rows(self, part: slice) -> Sample:
        """Some of the n samples."""
        return Sample(self.X[..., part, :], self.target[..., part, :])


def gradient(phi: np.ndarray, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Gradient [..., C, f] of the mean one-vs-all loss, and the probabilities [..., n, C]."""
    p = 0.5 + 0.5 * np.tanh(sample.X @ np.swapaxes(phi, -1, -2) / 2)
    return np.swapaxes(p - sample.target, -1, -2) @ sample.X / sample.X.shape[-2], p


def project(theta: np.ndarray) -> np.ndarray:
    """Onto MAML's ball in the Frobenius norm."""
    length = np.sqrt((theta * theta).sum((-2, -1), keepdims=True))
    return theta * (RADIUS / np.maximum(length, RADIUS))


def adapt(phi: np.ndarray, sample: Sample, rate: np.ndarray) -> np.ndarray:
    """One projected gradient step from phi with step ``rate`` [...]."""
    return project(phi - np.asarray(rate)[..., None, None] * gradient(phi, sample)[0])


def meta_gradient(
    phi: np.ndarray, support: Sample, query: Sample, rate: np.ndarray, full: bool
) -> np.ndarray:
    """MAML's direction [..., C, f]: with θ = P(phi − a·∇L_support(phi)), P the projection onto the
    ball and L the mean loss, ∇L_query(θ) (first-order) or Jᵀ∇L_query(θ), J = ∂θ/∂phi (full).

    >>> rng = np.random.default_rng(0)
    >>> data = Sample(rng.standard_normal((6, 3)), np.eye(2)[rng.integers(2, size=6)])
    >>> support, query = data.rows(slice(3)), data.rows(slice(3, 6))
    >>> phi, rate, h = 0.1 * rng.standard_normal((2, 3)), np.array(0.5), 1e-6
    >>> def risk(phi):
    ...     z = query.X @ adapt(phi, support, rate).T
    ...     return float(np.mean((np.log1p(np.exp(z)) - query.target * z).sum(1)))
    >>> step = np.zeros((2, 3)); step[1, 2] = h
    >>> numeric = (risk(phi + step) - risk(phi - step)) / (2 * h)
    >>> exact = meta_gradient(phi, support, query, rate, full=True)[1, 2]
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


def train_maml(
    phi: np.ndarray,
    tasks: Sample,
    order: np.ndarray,
    rates: tuple[np.ndarray, np.ndarray],
    full: bool,
) -> np.ndarray:
    """One pass of MAML over the tasks, many runs side by side: phi ← P(phi − b·direction).

    phi [R, C, f]; tasks X [T, n, f]; order [R, T] or [T]; rates (a, b), each [R]. The first half of
    a task's samples is the support, the second half the query, as in the authors' code.
    """
    inner, meta = (np.asarray(r) for r in rates)
    half = tasks.X.shape[1] // 2
    for t in np.moveaxis(np.asarray(order), -1, 0):
        task = Sample(tasks.X[t], tasks.target[t])
        support, query = task.rows(slice(half)), task.rows(slice(half, None))
        phi = project(phi - meta[:, None, None] * meta_gradient(phi, support, query, inner, full))
    return phi
