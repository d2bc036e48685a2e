"""FTRL as the released code computes it: not the losses so far but one logistic of their summed
rows. An experiment, not a method.

Per class c the released objective after i rounds is log(1 + exp(−⟨θ_c, v_c⟩)) with v_c = Σ_{s≤i}
±x_s (+ where y_s = c), which agrees with the sum of the i losses for i = 1 only. It is kept here so
that the paper's left panel can be drawn with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fmrl.core.domains import Ball


@dataclass(frozen=True)
class SummedFTRL:
    """θ = argmin over a ball about 0 of ½‖θ − phi‖² + eta·Σ_c log(1 + exp(−⟨θ_c, v_c⟩)); NumPy
    only.

    With multiplier λ of the ball, (1 + λ)·θ_c = phi_c + eta·s_c·v_c where s_c = sigmoid(−⟨θ_c,
    v_c⟩): two scalar equations a class and a row, solved by safeguarded Newton steps inside a
    bracketing search for λ."""

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
    phi, v, eta = (
        phi.reshape(-1, *shape[-2:]),
        v.reshape(-1, *shape[-2:]),
        np.broadcast_to(eta, shape[:-2]).reshape(-1, 1),
    )
    p, q = (phi * v).sum(-1), eta * (v * v).sum(-1)
    base = (phi * phi).sum((-2, -1))
    a, s = _margins(p, q, np.ones_like(eta))
    square = base + (2 * eta * s * p + eta * q * s**2).sum(-1)
    scale = np.ones_like(base)
    out = np.flatnonzero(square > radius**2)
    if out.size:
        p, q, eta_, base, a = p[out], q[out], eta[out], base[out], a[out]
        length = lambda s: np.sqrt(
            np.maximum(base + (2 * eta_ * s * p + eta_ * q * s**2).sum(-1), 0.0)
        )  # noqa: E731
        low, high = (
            np.ones(out.size),
            (np.sqrt(base) + np.sqrt((eta_ * q).sum(-1))) / radius,
        )  # of 1 + λ, since s ≤ 1
        over, under = (
            np.sqrt(square[out]) - radius,
            length(_margins(p, q, high[:, None])[1]) / high - radius - 1e-300,
        )
        last = np.zeros(out.size)
        for _ in range(
            60
        ):  # regula falsi; a side that stays put twice is halved (the Illinois rule)
            middle = (low * under - high * over) / (under - over)
            a, found = _margins(p, q, middle[:, None], a)
            miss = length(found) / middle - radius
            if np.abs(miss).max() <= 1e-9 * radius:
                break
            up = miss > 0
            under = np.where(up, np.where(last > 0, under / 2, under), miss)
            over = np.where(up, miss, np.where(last < 0, over / 2, over))
            low, high, last = (
                np.where(up, middle, low),
                np.where(up, high, middle),
                np.where(up, 1.0, -1.0),
            )
        s[out] = found
        scale[out] = length(found) / radius
    theta = (phi + (eta * s)[..., None] * v) / scale[:, None, None]
    return theta.reshape(shape)


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
