"""How much of a loss's rise its Hessian at the optimum proves, on the part of the ball at distance
δ.

Let v = θ − θ*, ‖v‖ = δ, x* the optimum seen from the centre, w = −⟨x*, v⟩ and ∇f(θ*) = −λ·x*.
Staying in the ball means w ≥ s = (δ² − B² + ‖x*‖²)/2, and w ≤ t = ‖x*‖·δ always. So (w − s)(t − w)
≥ 0, and for every τ in [0, λ/(s + t)]

    λ·w + ½vᵀHv  ≥  λ·w + ½vᵀHv − τ·(w − s)(t − w)  ≥  λ·s − τ·s² + (δ²/2)·λ_min(H + 2τ·x*x*ᵀ).

τ = 0 is the plain bound (δ²/2)·(λ + λ_min(H)). A larger τ pays τ·s², of order δ⁴, to stiffen the
direction of x*, which is where a loss that wants to leave the ball is flattest. H is ψ(u)·∇²f(θ*),
see `fmrl.theory.growth`."""

from __future__ import annotations

from typing import Any

from fmrl.core.arrays import Array, full, namespace

TAU = 12  # how many values of τ are tried


def damping(u: Array) -> Array:
    """ψ(u) = 2(e^{−u} + u − 1)/u²: what is left of a curvature that may shrink at rate e^{−t} over
    a way of length u.

    >>> import numpy as np
    >>> damping(np.array([0.0, 1.0])).round(6)
    array([1.      , 0.735759])
    """
    xp = namespace(u)
    small = u < 1e-3  # the formula cancels there; the series lies below ψ
    safe = xp.where(small, xp.ones_like(u), u)
    return xp.where(small, 1 - u / 3, 2 * (xp.exp(-safe) + safe - 1) / safe**2)


def stiffened(h: Array, b: Array, tau: Array) -> Array:
    """The smallest eigenvalue of diag(h) + 2τ·bbᵀ from below, for h [..., d] sorted, b [d] and τ
    [...]; shape [...].

    It lies between h_1 and h_2 where 1 + Σ 2τ·b_i²/(h_i − x) changes sign.

    >>> import numpy as np
    >>> round(float(stiffened(np.array([1.0, 3.0]), np.array([0.8, 0.6]), np.array(0.5))), 6)
    1.515114
    """
    xp = namespace(h)
    weight = 2 * tau[..., None] * b**2
    low = h[..., 0] + 0 * tau
    high = low + xp.sum(weight, axis=-1)
    if h.shape[-1] > 1:
        high = xp.minimum(high, h[..., 1] + 0 * tau)
    for _ in range(50):
        middle = (low + high) / 2
        apart = h - middle[..., None]
        apart = xp.where(apart == 0, full((), 1e-150, apart), apart)
        below = 1 + xp.sum(weight / apart, axis=-1) <= 0
        low, high = xp.where(below, middle, low), xp.where(below, high, middle)
    return low


def rise(delta: Array, ball: tuple[float, float, float], h: Any, b: Any) -> Array:
    """The best bound over τ at every distance, shape [K]. ball: (B, ‖x*‖, λ); h [K, d] sorted
    eigenvalues of H, b [d] = x* in their basis; or None and None for H = 0.
    """
    radius, length, multiplier = ball
    xp = namespace(delta)
    s = (delta**2 - radius**2 + length**2) / 2
    if h is None:
        return multiplier * s
    most = multiplier / xp.maximum(s + length * delta, 1e-300 + 0 * delta)
    fractions = xp.concat([xp.zeros_like(delta[:1]), 2.0 ** -xp.arange(TAU, dtype=delta.dtype)])
    tau = most[:, None] * fractions
    bounds = (
        multiplier * s[:, None]
        - tau * s[:, None] ** 2
        + delta[:, None] ** 2 / 2 * stiffened(h[:, None, :], b, tau)
    )
    return xp.max(bounds, axis=-1)
