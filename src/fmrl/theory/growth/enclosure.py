"""The three bounds that enclose ε_δ, for all distances at once: the relaxed program, the curvature
bound and the descent. The mathematics is at the top of `fmrl.growth`; here is how the curvature
bound is sharpened.

Let v = θ − θ*, ‖v‖ = δ, x* the optimum seen from the centre, w = −⟨x*, v⟩ and ∇f(θ*) = −λ·x*.
Staying in the ball means w ≥ s = (δ² − B² + ‖x*‖²)/2, and w ≤ t = ‖x*‖·δ always. So (w − s)(t − w)
≥ 0, and for every τ in [0, λ/(s + t)]

    λ·w + ½vᵀHv  ≥  λ·w + ½vᵀHv − τ·(w − s)(t − w)  ≥  λ·s − τ·s² + (δ²/2)·λ_min(H + 2τ·x*x*ᵀ).

τ = 0 is the plain bound (δ²/2)·(λ + λ_min(H)). A larger τ pays τ·s², of order δ⁴, to stiffen the
direction of x*, which is where a loss that wants to leave the ball is flattest. H is
ψ(u)·∇²f(θ*)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from fmrl.core.arrays import Array, device, dot, full, namespace, norm, unit
from fmrl.core.losses import Logistic, OneVsAll, Squared
from fmrl.core.matrices import eigh
from fmrl.core.samples import Samples
from fmrl.theory.growth.frank_wolfe import Cut, Function, frank_wolfe

TAU = 12  # how many values of τ are tried
DECAY = {Squared: 0.0, Logistic: 1.0, OneVsAll: 1.0}  # r with |ℓ'''| ≤ r·ℓ''; others prove nothing


@dataclass(frozen=True, eq=False)
class Problem:
    """f about the centre of a ball: x = θ − centre, optimum x*, distances δ [K]."""

    samples: Samples
    radius: float
    centre: Array
    point: Array  # x*
    delta: Array

    def value(self, x: Array, smoothing: float = 0.0) -> tuple[Array, Array, Array]:
        """f(x) − f(x*) [K], gradient [K, d], and what rounding the corners of a hinge costs [K]."""
        xp, loss, target = namespace(x), self.samples.loss, self.samples.target
        z = self.samples.margins(x + self.centre)
        losses, weight = loss.value(z, target), self.samples.weight
        value = xp.sum((losses - self.base) * weight, axis=-1)
        if not smoothing:
            return value, self.samples.gather(loss.slope(z, target)), xp.zeros_like(value)
        slope = -target * xp.clip((1 - target * z) / smoothing, 0.0, 1.0)
        excess = losses + loss.conjugate(slope, target) - dot(slope, z)  # Fenchel's inequality
        return value, self.samples.gather(slope), xp.sum(excess * weight, axis=-1)

    @cached_property
    def base(self) -> Array:
        """The losses of the optimum, round by round."""
        return self.samples.losses(self.point + self.centre)

    def smoothness(self, smoothing: float) -> float:
        """Lipschitz constant of the gradient."""
        bend = 1 / smoothing if smoothing else self.samples.loss.bend
        X, xp = self.samples.X, namespace(self.samples.X)
        gram = xp.matmul(X, X.T) if X.shape[0] < X.shape[1] else xp.matmul(X.T, X)
        return bend * float(xp.linalg.eigvalsh(gram)[-1]) * (1 + 1e-9)

    def relax(self, tolerance: float) -> tuple[Array, Array, Array]:
        """The paper's convex program: x [K, d], its value [K] and its Frank–Wolfe gap [K]."""
        xp, length = namespace(self.point), norm(self.point)
        # With x* at the centre the half-space is the whole ball: the distances are that small.
        known = length > 0
        square = self.radius**2 - self.delta**2 + length**2
        half = square / xp.where(known, 2 * length, xp.ones_like(length))
        offset = xp.where(known, half, self.radius + 0 * square)
        cut = Cut(self.radius, unit(self.point), xp.maximum(offset, -self.radius + 0 * offset))
        floor = 1e-9 * float(xp.sum(xp.abs(self.base))) + 1e-12 * self.samples.length
        x = cut.project(self.point + xp.zeros_like(self.point) * self.delta[:, None])
        corners, best = self.samples.loss.bend == math.inf, ()
        for smoothing in (0.1, 0.01, 1e-3, 1e-4) if corners else (0.0,):
            value = lambda x, s=smoothing: self.value(x, s)  # noqa: E731
            good = lambda value, gap: gap <= tolerance * value + floor  # noqa: E731
            f = Function(value, self.smoothness(smoothing), good)
            x, v, gap = best = frank_wolfe(f, cut, x)
            if bool(xp.all(good(v, gap))):
                break
        return best  # type: ignore[return-value]

    def curvature(self) -> tuple[Array, float, Array]:
        """The lower bound from curvature [K], λ, and the directions [n, d] in which f is flattest.

        Proved for the optimum as it was computed: what of ∇f is not −λ·x* is subtracted.
        """
        xp, samples = namespace(self.point), self.samples
        g, square = self.value(self.point[None, :])[1][0, :], float(dot(self.point, self.point))
        held = square >= self.radius**2 * (1 - 1e-6)  # inside the ball λ is 0
        multiplier = max(0.0, -float(dot(g, self.point)) / square) if held else 0.0
        residual = float(norm(g + multiplier * self.point)) * self.delta
        eye = lambda n: xp.eye(n, dtype=g.dtype, device=device(g))  # noqa: E731
        directions, h, b = eye(samples.dim)[:1, :], None, None
        decay = DECAY.get(type(samples.loss))
        if decay is not None:
            outputs, f = samples.loss.outputs, samples.X.shape[-1]
            margins = samples.margins(self.point + self.centre)
            bend = samples.loss.curvature(margins, samples.target)
            weighted = xp.matrix_transpose(bend)[:, :, None] * samples.X  # [C, n, f]
            hessian = xp.matmul(xp.matrix_transpose(weighted), samples.X)
            values, vectors = eigh(hessian)
            flat = eye(outputs)[:, :, None] * vectors[:, None, :, 0]
            directions = xp.reshape(flat, (outputs, outputs * f))
            rounding = 4 * f * xp.finfo(g.dtype).eps * float(xp.max(values))
            values = xp.reshape(xp.maximum(values - rounding, 0 * values), (-1,))
            order = xp.argsort(values)
            rotated = xp.matmul(samples.matrix(self.point)[:, None, :], vectors)
            b = xp.take(xp.reshape(rotated, (-1,)), order, axis=0)
            left = damping(decay * self.delta * float(xp.max(norm(samples.X))))
            h = left[:, None] * xp.take(values, order, axis=0)
        bound = self._rise(math.sqrt(square), multiplier, h, b)
        return bound - residual, multiplier, directions

    def _rise(self, length: float, multiplier: float, h: Array | None, b: Array | None) -> Array:
        """The best bound over τ at every distance [K], for ‖x*‖, λ, the sorted eigenvalues h [K, d]
        of H and b [d] = x* in their basis; h and b are None for H = 0."""
        delta, xp = self.delta, namespace(self.delta)
        s = (delta**2 - self.radius**2 + length**2) / 2
        if h is None:
            return multiplier * s
        most = multiplier / xp.maximum(s + length * delta, 1e-300 + 0 * delta)
        halves = 2.0 ** -xp.arange(TAU, dtype=delta.dtype, device=device(delta))
        tau = most[:, None] * xp.concat([xp.zeros_like(delta[:1]), halves])
        paid = multiplier * s[:, None] - tau * s[:, None] ** 2
        gained = delta[:, None] ** 2 / 2 * stiffened(h[:, None, :], b, tau)
        return xp.max(paid + gained, axis=-1)

    def descend(self, x: Array, flattest: Array, steps: int = 60) -> tuple[Array, Array]:
        """Points at distance δ inside the ball with low f: x [K, d] and f − f* [K].

        The set is a spherical cap, |v| = δ and ⟨a, v⟩ ≤ h for v = x − x*, whose projection is in
        closed form. Every step goes down."""
        xp, length, delta = namespace(x), norm(self.point), self.delta
        known, a = bool(length > 0), unit(self.point)
        j = int(xp.argmin(xp.abs(a)))
        axis = xp.eye(a.shape[0], dtype=a.dtype, device=device(a))[j, :]
        side = unit(axis - a[j] * a)  # across a; 0 in one dimension
        high = self.radius + 0 * delta
        if known:
            high = (self.radius**2 - length**2 - delta**2) / (2 * length)
        smoothing = 1e-2 if self.samples.loss.bend == math.inf else 0.0
        smooth = max(self.smoothness(smoothing), 1e-12)

        def cap(v):
            free = delta[:, None] * _unit_or(v, -a if known else flattest[0, :])
            across = free - dot(free, a)[..., None] * a
            across = xp.where((norm(across) > 1e-12 * delta)[:, None], across, 0 * across)
            height = xp.sqrt(xp.maximum(delta**2 - high**2, 0 * high))
            rim = high[:, None] * a + height[:, None] * _unit_or(across, side)
            short = (norm(rim) < delta * (1 - 1e-9))[:, None]
            rim = xp.where(short, -delta[:, None] * a, rim)
            return xp.where((dot(free, a) <= high)[:, None], free, rim)

        starts = [s * flattest[i, :] + 0 * x for i in range(flattest.shape[0]) for s in (1, -1)]
        best, least = x, full(delta.shape, math.inf, delta)
        for v in [x - self.point, *starts]:
            v = cap(v)
            for _ in range(steps):
                v = cap(v - self.value(v + self.point, smoothing)[1] / smooth)
            value = self.value(v + self.point)[0]
            best = xp.where((value < least)[:, None], v, best)
            least = xp.minimum(value, least)
        return best + self.point, least


def _unit_or(v: Array, otherwise: Array) -> Array:
    """v/‖v‖, or ``otherwise`` where v is 0."""
    return namespace(v).where(norm(v)[..., None] > 0, unit(v), otherwise + 0 * v)


def damping(u: Array) -> Array:
    """ψ(u) = 2(e^{−u} + u − 1)/u²: the least share of a curvature that shrinks like e^{−t}, t ≤ u.

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
    [...]. It lies between h_1 and h_2 where 1 + Σ 2τ·b_i²/(h_i − x) changes sign.

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
        gap = h - middle[..., None]
        gap = xp.where(gap == 0, full((), 1e-150, gap), gap)
        below = 1 + xp.sum(weight / gap, axis=-1) <= 0
        low, high = xp.where(below, middle, low), xp.where(below, high, middle)
    return low
