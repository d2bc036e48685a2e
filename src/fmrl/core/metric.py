"""Metrics: steps that differ by direction. A learner whose step is H ≻ 0 instead of a number eta
plays with the regulariser ½‖θ − phi‖²_{H⁻¹} in place of ½‖θ − phi‖²/eta.

Three shapes of H, each a value with the same few methods; all arrays broadcast over leading axes:

* `Diagonal`: a step for every coordinate;
* `Spiked`: a diagonal and a few directions, diag(steps) + F·Fᵀ;
* `Full`: any positive definite matrix.

A number stays a plain array, and everything written for numbers stays as it is: `descend` is where
both meet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from fmrl.core.arrays import Array, device, dot, full, namespace, norm
from fmrl.core.domains import Ball, Box, Domain, Euclidean
from fmrl.errors import FMRLError

NEWTON = 100  # steps at most of a search for a multiplier; a dozen is usual


class Metric(ABC):
    """A positive definite H [..., d, d] that is never written out unless `dense` is asked for."""

    @abstractmethod
    def times(self, v: Array) -> Array:
        """H·v, [..., d]."""

    @abstractmethod
    def solve(self, v: Array) -> Array:
        """H⁻¹·v, [..., d]."""

    @abstractmethod
    def shrink(self, weight: Array, v: Array) -> Array:
        """(I + weight·H)⁻¹·v with weight [...] ≥ 0, [..., d]."""

    @abstractmethod
    def dense(self) -> Array:
        """H, [..., d, d]."""

    @property
    @abstractmethod
    def mean(self) -> Array:
        """trace(H)/d: the step as one number, [...]."""

    def root(self) -> Array:
        """R with R·Rᵀ = H, [..., d, d]."""
        H = self.dense()
        xp = namespace(H)
        values, vectors = xp.linalg.eigh(H)
        return vectors * xp.sqrt(xp.maximum(values, xp.zeros_like(values)))[..., None, :]

    def distance(self, v: Array) -> Array:
        """½‖v‖²_{H⁻¹}, [...]."""
        return dot(v, self.solve(v)) / 2

    def energy(self, v: Array) -> Array:
        """½‖v‖²_H, [...]."""
        return dot(v, self.times(v)) / 2

    @property
    def arrays(self) -> dict[str, Array]:
        """What it is made of, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]

    @property
    def lead(self) -> int:
        """How many leading axes it has."""
        name, a = next(iter(self.arrays.items()))
        return a.ndim - _OWN[name]

    def at(self, places: Any) -> Self:
        """The metrics at ``places`` of the first leading axis; itself where it has none."""
        if not self.lead:
            return self
        return replace(self, **{n: a[places, ...] for n, a in self.arrays.items()})  # type: ignore[type-var]

    def flat(self) -> Self:
        """With its leading axes as one; itself where it has none."""
        if not self.lead:
            return self
        parts = {n: (a, a.shape[a.ndim - _OWN[n] :]) for n, a in self.arrays.items()}
        one = {n: namespace(a).reshape(a, (-1, *own)) for n, (a, own) in parts.items()}
        return replace(self, **one)  # type: ignore[type-var]

    @property
    def finite(self) -> Array:
        """Whether every number of it is finite."""
        ok = [namespace(a).all(namespace(a).isfinite(a)) for a in self.arrays.values()]
        return ok[0] if len(ok) == 1 else ok[0] & ok[1]

    def project(self, domain: Domain, u: Array) -> Array:
        """The point of ``domain`` nearest to u [..., d] in ‖·‖_{H⁻¹}, exact to rounding."""
        if isinstance(domain, Euclidean):
            return u
        if isinstance(domain, Ball):
            return _onto_ball(self, domain, u)
        if isinstance(domain, Box):
            return _onto_box(self, domain, u)
        what = f"{domain!r} has no projection in a metric"
        raise FMRLError(
            what, fix="use Euclidean(), a Ball or a Box, or a rule that learns a number"
        )


@dataclass(frozen=True, eq=False)
class Diagonal(Metric):
    """diag(steps).

    Args:
        steps: A step for every coordinate, [..., d].

    >>> import numpy as np
    >>> Diagonal(np.array([4.0, 1.0])).project(Ball(1.0), np.array([2.0, 2.0])).round(4)
    array([0.359 , 0.9333])
    """

    steps: Array  # [..., d]

    def times(self, v):
        return self.steps * v

    def solve(self, v):
        return v / self.steps

    def shrink(self, weight, v):
        return v / (1 + weight[..., None] * self.steps)

    def dense(self):
        xp = namespace(self.steps)
        d = self.steps.shape[-1]
        return self.steps[..., None] * xp.eye(d, dtype=self.steps.dtype, device=device(self.steps))

    @property
    def mean(self):
        return namespace(self.steps).mean(self.steps, axis=-1)


@dataclass(frozen=True, eq=False)
class Spiked(Metric):
    """diag(steps) + factor·factorᵀ, at a cost linear in d.

    Args:
        steps: The diagonal, [..., d].
        factor: A few directions, [..., d, r].

    >>> import numpy as np
    >>> H = Spiked(np.array([1.0, 1.0]), np.array([[1.0], [1.0]]))
    >>> H.times(np.array([1.0, 0.0])), H.solve(H.times(np.array([1.0, 0.0]))).round(9)
    (array([2., 1.]), array([1., 0.]))
    """

    steps: Array  # [..., d]
    factor: Array  # [..., d, r]

    def times(self, v):
        return self.steps * v + apply(self.factor, apply(T(self.factor), v))

    def solve(self, v):
        return self._woodbury(self.steps, self.factor, v)

    def shrink(self, weight, v):
        wide = weight[..., None]
        factor = self.factor * namespace(wide).sqrt(wide)[..., None]
        return self._woodbury(1 + wide * self.steps, factor, v)

    def _woodbury(self, diagonal: Array, factor: Array, v: Array) -> Array:
        """(diag + F·Fᵀ)⁻¹·v."""
        xp = namespace(v)
        scaled = factor / diagonal[..., None]
        r = factor.shape[-1]
        inner = xp.matmul(T(factor), scaled) + xp.eye(r, dtype=v.dtype, device=device(v))
        along = xp.linalg.solve(inner, apply(T(scaled), v)[..., None])[..., 0]
        return v / diagonal - apply(scaled, along)

    def dense(self):
        return Diagonal(self.steps).dense() + namespace(self.factor).matmul(
            self.factor, T(self.factor)
        )

    @property
    def mean(self):
        xp = namespace(self.steps)
        return xp.mean(self.steps + xp.sum(self.factor**2, axis=-1), axis=-1)


@dataclass(frozen=True, eq=False)
class Full(Metric):
    """Any symmetric positive definite matrix.

    Args:
        matrix: [..., d, d].

    >>> import numpy as np
    >>> H = Full(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> H.shrink(np.array(1.0), np.array([1.0, 0.0])).round(4), float(H.mean)
    (array([ 0.375, -0.125]), 2.0)
    """

    matrix: Array  # [..., d, d]
    kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def times(self, v):
        return apply(self.matrix, v)

    def solve(self, v):
        return namespace(v).linalg.solve(self.matrix, v[..., None])[..., 0]

    def shrink(self, weight, v):
        values, vectors = self._eigen
        return apply(vectors, apply(T(vectors), v) / (1 + weight[..., None] * values))

    @property
    def _eigen(self) -> tuple[Array, Array]:
        """Eigenvalues [..., d] and eigenvectors [..., d, d], found once."""
        if "eigen" not in self.kept:
            self.kept["eigen"] = tuple(namespace(self.matrix).linalg.eigh(self.matrix))
        return self.kept["eigen"]

    def dense(self):
        return self.matrix

    @property
    def mean(self):
        xp = namespace(self.matrix)
        return xp.linalg.trace(self.matrix) / self.matrix.shape[-1]


_OWN = {"steps": 1, "factor": 2, "matrix": 2}  # axes of an array that are not leading
METRICS = {kind.__name__: kind for kind in (Diagonal, Spiked, Full)}


def mean_step(step: Any) -> float:
    """A step, or a metric's mean step, as a float."""
    return float(step.mean if isinstance(step, Metric) else step)


def stacked(steps: list[Any]) -> Any:
    """Numbers [...] or metrics side by side on a new first axis."""
    first = steps[0]
    if not isinstance(first, Metric):
        return namespace(first).stack(steps)
    parts = {n: [s.arrays[n] for s in steps] for n in first.arrays}
    return type(first)(**{n: namespace(a[0]).stack(a) for n, a in parts.items()})


def T(matrix: Array) -> Array:
    """The transpose of the last two axes."""
    return namespace(matrix).matrix_transpose(matrix)


def apply(matrix: Array, v: Array) -> Array:
    """matrix [..., k, d] times v [..., d]."""
    xp = namespace(v)
    if matrix.ndim == 2:
        return xp.matmul(v, T(matrix))
    return xp.matmul(matrix, v[..., None])[..., 0]


def descend(domain: Domain, theta: Array, eta: Array | Metric, gradient: Array) -> Array:
    """argmin over the domain of B_R(·‖theta) + eta·⟨gradient, ·⟩, or of ½‖· − theta‖²_{H⁻¹} +
    ⟨gradient, ·⟩ where eta is a metric H; [..., d].
    """
    if isinstance(eta, Metric):
        return eta.project(domain, theta - eta.times(gradient))
    return domain.argmin(theta, eta[..., None] * gradient)


def _onto_ball(metric: Metric, ball: Ball, u: Array) -> Array:
    """θ − c = (I + weight·H)⁻¹(u − c), with the weight that brings it onto the sphere.

    1/‖θ(weight)‖ is concave, so Newton's method on it rises to the solution from 0.
    """
    xp, middle = namespace(u), ball.middle(u)
    offset = u - middle
    out = norm(offset) > ball.radius
    if not bool(xp.any(out)):
        return u
    weight = full(out.shape, 0.0, u)
    near, radius = offset, ball.radius
    for _ in range(NEWTON):
        size = norm(near)
        if not bool(xp.any(out & (size > radius * (1 + 1e-14)))):
            break
        fall = dot(near, metric.times(metric.shrink(weight, near)))
        step = (size / radius - 1) * size**2 / xp.where(fall > 0, fall, xp.ones_like(fall))
        weight = weight + xp.where(out & (size > radius), step, xp.zeros_like(step))
        near = metric.shrink(weight, offset)
    near = near * (radius / xp.maximum(norm(near), full((), radius, u)))[..., None]
    return xp.where(out[..., None], middle + near, u)


def _onto_box(metric: Metric, box: Box, u: Array) -> Array:
    """A diagonal metric clips. Any other solves a quadratic programme: by a barrier until the
    bounds that hold are told apart, then exactly on the others.
    """
    xp = namespace(u)
    clipped = box.project(u)
    if isinstance(metric, Diagonal) or bool(xp.all(clipped == u)):
        return clipped
    d = u.shape[-1]
    lead = u.shape[:-1]
    H = xp.broadcast_to(metric.dense(), (*lead, d, d))
    flat, M = xp.reshape(u, (-1, d)), xp.linalg.inv(xp.reshape(H, (-1, d, d)))
    return xp.reshape(_quadratic(box, M, flat), u.shape)


def _quadratic(box: Box, M: Array, u: Array) -> Array:
    """argmin over the box of ½(θ − u)ᵀM(θ − u), M [B, d, d] and u [B, d]."""
    xp = namespace(u)
    low, high = (a + xp.zeros_like(u) for a in box._bounds(u))
    width, theta = high - low, (low + high) / 2
    scale = xp.max(xp.abs(apply(M, theta - u)) * width, axis=-1)[:, None] + 1e-300
    eye = xp.eye(u.shape[-1], dtype=u.dtype, device=device(u))
    mu = scale / 10
    for _ in range(25):
        below, above = theta - low, high - theta
        slope = apply(M, theta - u) - mu / below + mu / above
        bend = M + eye * (mu / below**2 + mu / above**2)[..., None]
        step = -xp.linalg.solve(bend, slope[..., None])[..., 0]
        room = xp.where(step < 0, below, above) / (xp.abs(step) + 1e-300)
        length = xp.minimum(0.95 * xp.min(room, axis=-1, keepdims=True), xp.ones_like(mu))
        theta, mu = theta + length * step, mu / 3
    return _settled(M, u, low, high, theta)


def _settled(M: Array, u: Array, low: Array, high: Array, theta: Array) -> Array:
    """Exact: what presses against a bound is put there, the rest is solved, until nothing
    changes; at worst the barrier's answer, clipped.
    """
    xp, kept = namespace(u), theta
    eye = xp.eye(u.shape[-1], dtype=u.dtype, device=device(u))
    at_low, at_high = (xp.abs(theta - edge) < 1e-7 * (high - low) for edge in (low, high))
    for _ in range(20):
        free = ~(at_low | at_high)
        fixed = xp.where(at_low, low, high)
        mask = xp.astype(free, u.dtype)
        right = mask * (apply(M, u) - apply(M, (1 - mask) * fixed)) + (1 - mask) * fixed
        system = mask[..., :, None] * M * mask[..., None, :] + eye * (1 - mask)[..., None]
        theta = xp.linalg.solve(system, right[..., None])[..., 0]
        slope = apply(M, theta - u)
        new_low = (at_low & (slope >= 0)) | (free & (theta < low))
        new_high = (at_high & (slope <= 0)) | (free & (theta > high))
        same = xp.all((new_low == at_low) & (new_high == at_high))
        at_low, at_high = new_low, new_high
        if bool(same):
            return xp.minimum(xp.maximum(theta, low), high)
    return xp.minimum(xp.maximum(kept, low), high)
