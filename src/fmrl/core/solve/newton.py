"""FTRL in a metric: argmin over the domain of Σ losses + ½‖θ − phi‖²_{H⁻¹}, batched over tasks.

With H = R·Rᵀ and θ = phi + R·u the regulariser is ½‖u‖², so the problem is 1-strongly convex in u
whatever H, and the gradient proves the answer: F − min F ≤ ½‖∇_u F‖². Squared losses without bounds
are solved exactly, a row at a time; other smooth losses by Newton's method, each from the minimiser
before it.

Without bounds θ − phi lies in the span of H·x over the rows x. With fewer rows than features R
needs as many columns as there are rows, so that nothing of size d² is made for a diagonal metric.
On a bounded domain this free leader is the answer where it lies inside; else each Newton step is
taken by a projection in the metric of that step, with a square R.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

from fmrl.core.arrays import Array, anywhere, device, dot, full, namespace
from fmrl.core.domains import Domain, Euclidean
from fmrl.core.losses import Squared
from fmrl.core.matrices import definite_solve, root_solve
from fmrl.core.metric import Full, Metric, T, apply, descend
from fmrl.core.samples import Samples
from fmrl.errors import FMRLError

MOST = 60  # Newton steps; a handful is usual
TIGHT = 1e-12  # of the value, where Newton's method stops


def newton(
    u: Array,
    value: Callable[[Array], Array],
    model: Callable[[Array], tuple[Array, Array]],
    most: int = MOST,
) -> Array:
    """The minimisers of convex functions side by side, [..., k].

    Args:
        u: Where to begin.
        value: What is minimised at u, [...].
        model: The step [..., k] from u to the minimum of a quadratic model, and its slope there
            downwards, [...]: at least how much is left to win, where the step is free.
        most: Steps.
    """
    xp, now = namespace(u), value(u)
    tight = max(TIGHT, 100 * float(xp.finfo(u.dtype).eps))
    for _ in range(most):
        step, fall = model(u)
        if not anywhere(fall > tight * (1 + xp.abs(now))):
            return u + step  # which squares what is left
        length = full(now.shape, 1.0, now)
        for _ in range(40):  # halve the step until it pays
            new = value(u + length[..., None] * step)
            short = ~(new <= now - 1e-4 * length * fall + 1e-14 * xp.abs(now))
            if not anywhere(short):
                break
            length = xp.where(short, length / 2, length)
        better = new <= now
        u = xp.where(better[..., None], u + length[..., None] * step, u)
        now = xp.where(better, new, now)
    return u


class MetricLeaders:
    """FTRL's actions after i = 1, 2, … rounds of a task, or of a stack [B] of them.

    Memory is linear in d with a diagonal or low-rank metric as long as no action touches the border
    of the domain: a free leader lies in the span of H·x of the rows seen. On the border it does
    not, and the step to it is a projection in the metric (∇²Σℓ + H⁻¹)⁻¹, which is written out: d².
    On a ball that could be avoided (the border adds a multiple of I to H⁻¹); in a box every bound
    that holds brings a column of that matrix, and there are up to d of them.

    Args:
        samples: Rounds with X [..., n, f].
        domain: Where actions lie; Euclidean(), a Ball or a Box.
        phi: Where the task starts, [..., d].
        metric: H.
    """

    def __init__(self, samples: Samples, domain: Domain, phi: Array, metric: Metric):
        loss = samples.loss
        if loss.bend == math.inf:
            what = f"a regularised leader in a metric needs a smooth loss, and {loss!r} has corners"
            raise FMRLError(what, fix="use Logistic(), or OMD() with a rule such as PerCoordinate")
        self.xp, self.samples, self.domain = namespace(phi), samples, domain
        self.phi, self.metric = phi, metric
        self.under_phi = samples.margins(phi)  # [..., n, outputs]
        self.u: Any = 0.0  # [..., k] once there is one
        self.spread: Array | None = None  # (I + ΣJᵀJ)⁻¹ of the rows taken in, for squared losses
        self.taken = 0
        self.bounded = not isinstance(domain, Euclidean)
        self.free = MetricLeaders(samples, Euclidean(), phi, metric) if self.bounded else None
        self.inside = False  # whether the last answer was the free leader

    @cached_property
    def root(self) -> Array:
        """R [..., d, k]."""
        if self.bounded or isinstance(self.metric, Full):
            return self.metric.root()
        xp, X, outputs = self.xp, self.samples.X, self.samples.loss.outputs
        eye = xp.eye(outputs, dtype=X.dtype, device=device(X))
        rows = eye[:, None, :, None] * X[..., None, :, None, :]  # [..., outputs, n, outputs, f]
        return self.metric.within(xp.reshape(rows, (*X.shape[:-2], -1, self.samples.dim)))

    @cached_property
    def rows(self) -> Array:
        """How the margin of a round and an output moves with u, [..., n, outputs, k]."""
        xp, X, root = self.xp, self.samples.X, self.root
        shape = (*root.shape[:-2], self.samples.loss.outputs, X.shape[-1], root.shape[-1])
        return xp.moveaxis(xp.matmul(X[..., None, :, :], xp.reshape(root, shape)), -3, -2)

    def __call__(self, i: int) -> Array:
        """The action after i rounds, [..., d]."""
        loss = self.samples.loss
        if loss.bend == 0:
            slopes = loss.slope(self.samples.target[..., :1], self.samples.target)
            total = self.xp.sum((self.samples.X * slopes)[..., :i, :], axis=-2)
            return descend(self.domain, self.phi, self.metric, total)
        if self.free is not None:
            theta = self.free(i)
            self.inside = not anywhere(~self.domain.contains(theta, slack=0.0))
            if self.inside:
                return theta
        if isinstance(loss, Squared) and not self.bounded:
            while self.taken < i:
                self._take_in(self.taken)
        else:
            self._newton(i)
        return self.phi + apply(self.root, self.u)

    def _take_in(self, i: int) -> None:
        """One more row of a squared loss: recursive least squares."""
        xp, x = self.xp, self.rows[..., i, 0, :]
        if self.spread is None:
            eye = xp.eye(x.shape[-1], dtype=x.dtype, device=device(x))
            self.spread, self.u = eye + xp.zeros_like(x)[..., None], xp.zeros_like(x)
        along = apply(self.spread, x)
        gain = along / (1 + dot(x, along))[..., None]
        off = self.samples.target[..., i, 0] - self.under_phi[..., i, 0] - dot(x, self.u)
        self.u = self.u + gain * off[..., None]
        self.spread = self.spread - gain[..., :, None] * along[..., None, :]
        self.taken += 1

    def value(self, i: int, u: Array) -> Array:
        """F of the first i rounds, [...]."""
        samples = self.samples.first(i)
        z = self._margins(i, u)
        losses = samples.loss.value(z, samples.target) * samples.weight
        return self.xp.sum(losses, axis=-1) + dot(u, u) / 2

    def curvature(self, i: int, u: Array) -> Array:
        """∇²F in u without the regulariser, [..., d, d]."""
        xp, samples = self.xp, self.samples.first(i)
        bend = samples.loss.curvature(self._margins(i, u), samples.target)
        J = self.rows[..., :i, :, :]
        weight = samples.weight[..., None]
        if samples.loss.coupled:
            bent = xp.matmul(bend * weight[..., None], J)
        else:
            bent = (bend * weight)[..., None] * J
        wide = (*J.shape[:-3], J.shape[-3] * J.shape[-2], J.shape[-1])
        return xp.matmul(T(xp.reshape(J, wide)), xp.reshape(bent, wide))

    def _margins(self, i: int, u: Array) -> Array:
        J = self.rows[..., :i, :, :]
        return self.under_phi[..., :i, :] + dot(J, u[..., None, None, :])

    def _gradient(self, i: int, u: Array) -> Array:
        samples = self.samples.first(i)
        slope = samples.loss.slope(self._margins(i, u), samples.target)
        slope = slope * samples.weight[..., None]
        return self.xp.sum(slope[..., None] * self.rows[..., :i, :, :], axis=(-3, -2)) + u

    def _newton(self, i: int) -> None:
        xp, u = self.xp, self.u + self.xp.zeros_like(self.rows[..., 0, 0, :])
        eye = xp.eye(u.shape[-1], dtype=u.dtype, device=device(u))

        def model(u: Array) -> tuple[Array, Array]:
            gradient, bend = self._gradient(i, u), self.curvature(i, u) + eye
            step = -definite_solve(bend, gradient[..., None])[..., 0]
            step = self._inside(u, step, bend)
            return step, -dot(gradient, step)

        self.u = newton(u, lambda u: self.value(i, u), model)

    def _inside(self, u: Array, step: Array, bend: Array) -> Array:
        """The step to the minimiser of the quadratic model over the domain."""
        if not self.bounded:
            return step
        xp, aim = self.xp, self.phi + apply(self.root, u + step)
        out = ~self.domain.contains(aim, slack=1e-12)
        if not bool(xp.any(out)):
            return step
        model = xp.matmul(self.root, definite_solve(bend, T(self.root)))
        aim = Full((model + T(model)) / 2).project(self.domain, aim)
        inner = root_solve(self.root, (aim - self.phi)[..., None])[..., 0]
        return xp.where(out[..., None], inner - u, step)

    def gap(self, i: int) -> Array:
        """An upper bound on F − min F at the last action, [...]."""
        if self.inside and self.free is not None:
            return self.free.gap(i)
        gradient = self._gradient(i, self.u)
        proved = dot(gradient, gradient) / 2
        if not self.bounded:
            return proved
        plain = root_solve(T(self.root), gradient[..., None])[..., 0]
        theta = self.phi + apply(self.root, self.u)
        edge = dot(plain, theta - self.domain.lowest(plain))
        return self.xp.minimum(proved, edge)
