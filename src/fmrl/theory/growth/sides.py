"""The three sides of `fmrl.theory.growth`: the relaxed program, the curvature bound and the
descent, for all distances at once.

The mathematics is at the top of `fmrl.theory.growth`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from fmrl.core.arrays import Array, device, dot, namespace, norm
from fmrl.core.losses import Logistic, OneVsAll, Squared
from fmrl.core.samples import Samples
from fmrl.theory.growth.curvature import damping, rise
from fmrl.theory.growth.program import Cut, Function, frank_wolfe


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
        losses = loss.value(z, target)
        slope = loss.slope(z, target)
        if smoothing:
            slope = -target * xp.clip((1 - target * z) / smoothing, 0.0, 1.0)
        value = xp.sum((losses - self.base) * self.samples.weight, axis=-1)
        corner = xp.zeros_like(value)
        if smoothing:  # Fenchel's inequality at the rounded slopes
            corner = xp.sum(
                (losses + loss.conjugate(slope, target) - dot(slope, z)) * self.samples.weight,
                axis=-1,
            )
        return value, self.samples.gather(slope), corner

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
        """The paper's convex program at every distance: x [K, d], its value [K] and its Frank–Wolfe
        gap [K].
        """
        xp, length = namespace(self.point), norm(self.point)
        square = self.radius**2 - self.delta**2 + length**2
        known = (
            length > 0
        )  # at the centre the half-space is all or nothing, and the distances made sure of all
        normal = self.point / xp.where(known, length, xp.ones_like(length))
        offset = xp.where(
            known,
            square / xp.where(known, 2 * length, xp.ones_like(length)),
            self.radius + 0 * square,
        )
        offset = xp.maximum(offset, -self.radius + 0 * offset)
        cut = Cut(self.radius, normal, offset)
        floor = 1e-9 * float(xp.sum(xp.abs(self.base))) + 1e-12 * self.samples.length
        x, best = cut.project(self.point + xp.zeros_like(normal) * self.delta[:, None]), None
        for smoothing in (0.1, 0.01, 1e-3, 1e-4) if self.samples.loss.bend == math.inf else (0.0,):
            value = lambda x, s=smoothing: self.value(x, s)  # noqa: E731
            good = lambda value, gap: gap <= tolerance * value + floor  # noqa: E731
            x, v, gap = best = frank_wolfe(
                Function(value, self.smoothness(smoothing), good), cut, x
            )
            if bool(xp.all(good(v, gap))):
                break
        return best  # type: ignore[return-value]

    def curvature(self) -> tuple[Array, float, Array]:
        """The lower bound from curvature [K], λ, and directions [n, d] in which f is flattest at
        the optimum.

        Proved for the optimum as it was computed: what of ∇f is not −λ·x* is subtracted.
        """
        xp, loss, f = namespace(self.point), self.samples.loss, self.samples.X.shape[-1]
        _, gradient, _ = self.value(self.point[None, :])
        g, square = gradient[0, :], float(dot(self.point, self.point))
        held = square >= self.radius**2 * (
            1 - 1e-6
        )  # inside the ball λ is 0, and dividing would only make noise of it
        multiplier = max(0.0, -float(dot(g, self.point)) / square) if held else 0.0
        residual = float(norm(g + multiplier * self.point)) * self.delta
        directions, h, b = (
            xp.eye(self.samples.dim, dtype=g.dtype, device=device(g))[:1, :],
            None,
            None,
        )
        decay = {Squared: 0.0, Logistic: 1.0, OneVsAll: 1.0}.get(type(loss))
        if decay is not None:
            bend = loss.curvature(
                self.samples.margins(self.point + self.centre), self.samples.target
            )
            weighted = xp.matrix_transpose(bend)[:, :, None] * self.samples.X  # [C, n, f]
            values, vectors = xp.linalg.eigh(
                xp.matmul(xp.matrix_transpose(weighted), self.samples.X)
            )
            flat = (
                xp.eye(loss.outputs, dtype=g.dtype, device=device(g))[:, :, None]
                * vectors[:, None, :, 0]
            )
            directions = xp.reshape(flat, (loss.outputs, loss.outputs * f))
            rounding = 4 * f * xp.finfo(g.dtype).eps * float(xp.max(values))
            values = xp.reshape(xp.maximum(values - rounding, 0 * values), (-1,))
            order = xp.argsort(values)
            b = xp.take(
                xp.reshape(xp.matmul(self.samples.matrix(self.point)[:, None, :], vectors), (-1,)),
                order,
                axis=0,
            )
            left = damping(decay * self.delta * float(xp.max(norm(self.samples.X))))
            h = left[:, None] * xp.take(values, order, axis=0)
        bound = rise(self.delta, (self.radius, math.sqrt(square), multiplier), h, b)
        return bound - residual, multiplier, directions

    def descend(self, x: Array, flattest: Array, steps: int = 60) -> tuple[Array, Array]:
        """Points at distance δ inside the ball with low f: x [K, d] and f − f* [K]. Every step goes
        down.

        The set is a spherical cap, |v| = δ and ⟨a, v⟩ ≤ h for v = x − x*, whose projection is in
        closed form."""
        xp, length = namespace(x), norm(self.point)
        known = bool(length > 0)
        a = self.point / (length if known else 1.0)
        j = int(xp.argmin(xp.abs(a)))
        side = _unit(
            xp.eye(a.shape[0], dtype=a.dtype, device=device(a))[j, :] - a[j] * a, 0 * a
        )  # across a; 0 in one dimension
        high = (
            (self.radius**2 - length**2 - self.delta**2) / (2 * length)
            if known
            else self.radius + 0 * self.delta
        )
        smoothing = 1e-2 if self.samples.loss.bend == math.inf else 0.0
        smooth = max(self.smoothness(smoothing), 1e-12)

        def cap(v):
            unit = _unit(v, -a if known else flattest[0, :])
            free = self.delta[:, None] * unit
            across = free - dot(free, a)[..., None] * a
            across = xp.where((norm(across) > 1e-12 * self.delta)[:, None], across, 0 * across)
            height = xp.sqrt(xp.maximum(self.delta**2 - high**2, 0 * high))
            rim = high[:, None] * a + height[:, None] * _unit(across, side)
            rim = xp.where(
                (norm(rim) < self.delta * (1 - 1e-9))[:, None], -self.delta[:, None] * a, rim
            )
            return xp.where((dot(free, a) <= high)[:, None], free, rim)

        found = None
        starts = [
            x - self.point,
            *(s * flattest[i, :] + 0 * x for i in range(flattest.shape[0]) for s in (1, -1)),
        ]
        for v in starts:
            v = cap(v)
            for _ in range(steps):
                v = cap(v - self.value(v + self.point, smoothing)[1] / smooth)
            value = self.value(v + self.point)[0]
            if found is None:
                found = v, value
            else:
                lower = value < found[1]
                found = xp.where(lower[:, None], v, found[0]), xp.where(lower, value, found[1])
        return found[0] + self.point, found[1]  # type: ignore[index]


def _unit(v: Array, otherwise: Array) -> Array:
    xp, length = namespace(v), norm(v)[..., None]
    return xp.where(
        length > 0,
        v / xp.where(length > 0, length, xp.ones_like(length)),
        otherwise + xp.zeros_like(v),
    )
