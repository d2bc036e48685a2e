"""FTRL as the released code computes it: not the losses so far but one logistic of their summed rows. An experiment, not a method.

Per class c the released objective after i rounds is log(1 + exp(−⟨θ_c, v_c⟩)) with v_c = Σ_{s≤i} ±x_s (+ where y_s = c), which
agrees with the sum of the i losses for i = 1 only. It is kept here so that the paper's left panel can be drawn with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fmrl.core.domains import Ball


@dataclass(frozen=True)
class SummedFTRL:
    """θ = argmin over a ball about 0 of ½‖θ − phi‖² + eta·Σ_c log(1 + exp(−⟨θ_c, v_c⟩)); NumPy only.

    With multiplier λ of the ball, (1 + λ)·θ_c = phi_c + eta·s_c·v_c where s_c = sigmoid(−⟨θ_c, v_c⟩): two scalar equations a
    class and a row, solved by safeguarded Newton steps inside a bisection on λ.
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
    phi, v, eta = phi.reshape(-1, *shape[-2:]), v.reshape(-1, *shape[-2:]), np.broadcast_to(eta, shape[:-2]).reshape(-1, 1)
    p, q = (phi * v).sum(-1), eta * (v * v).sum(-1)
    base = (phi * phi).sum((-2, -1))
    a, s = _margins(p, q, np.ones_like(eta))
    square = base + (2 * eta * s * p + eta * q * s**2).sum(-1)
    scale = np.ones_like(base)
    out = np.flatnonzero(square > radius**2)
    if out.size:
        p, q, eta_, base, a = p[out], q[out], eta[out], base[out], a[out]
        low, high = np.ones(out.size), (np.sqrt(base) + np.sqrt((eta_ * q).sum(-1))) / radius  # of 1 + λ, since s ≤ 1
        for _ in range(48):
            middle = (low + high) / 2
            a, s_ = _margins(p, q, middle[:, None], a)
            large = base + (2 * eta_ * s_ * p + eta_ * q * s_**2).sum(-1) > (radius * middle) ** 2
            low, high = np.where(large, middle, low), np.where(large, high, middle)
        s[out] = _margins(p, q, high[:, None], a)[1]
        # What bisection leaves is rounding; scale it away so that the action lies in the ball.
        scale[out] = np.sqrt(base + (2 * eta_ * s[out] * p + eta_ * q * s[out] ** 2).sum(-1)) / radius
    theta = (phi + (eta * s)[..., None] * v) / scale[:, None, None]
    return theta.reshape(shape)


def _margins(p: np.ndarray, q: np.ndarray, mass: np.ndarray, a: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """a and s = sigmoid(−a) with mass·a = p + q·s, by Newton's method kept inside a bracket."""
    low, high = p / mass, (p + q) / mass
    a = (low + high) / 2 if a is None else np.clip(a, low, high)
    for _ in range(60):
        s = 0.5 - 0.5 * np.tanh(a / 2)
        miss = mass * a - p - q * s
        if np.abs(miss).max(initial=0.0) <= 1e-12 * (1 + np.abs(p).max(initial=0.0) + q.max(initial=0.0)):
            break
        low, high = np.where(miss < 0, a, low), np.where(miss > 0, a, high)
        new = a - miss / (mass + q * s * (1 - s))
        a = np.where((new > low) & (new < high), new, (low + high) / 2)
    return a, 0.5 - 0.5 * np.tanh(a / 2)
