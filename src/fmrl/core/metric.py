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
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from fmrl.core.arrays import Array, anywhere, device, dot, namespace
from fmrl.core.domains import Ball, Box, Domain, Euclidean
from fmrl.core.matrices import T, apply, basis_of, eigh
from fmrl.core.projection import onto_ball, onto_box
from fmrl.errors import FMRLError


class Metric(ABC):
    """A positive definite H [..., d, d] that is never written out unless `dense` is asked for."""

    @abstractmethod
    def times(self, v: Array) -> Array:
        """H·v, [..., d]."""

    @abstractmethod
    def solve(self, v: Array) -> Array:
        """H⁻¹·v, [..., d]."""

    @abstractmethod
    def path(self, v: Array) -> tuple[Callable, Callable]:
        """Where v [..., d] goes as a weight [...] ≥ 0 grows: a function that gives, for a weight,
        n = (I + weight·H)⁻¹·v and what tells nᵀ·H·(I + weight·H)⁻¹·n, and one that turns such an n
        back into the coordinates of v.
        """

    @abstractmethod
    def dense(self) -> Array:
        """H, [..., d, d]."""

    @property
    @abstractmethod
    def mean(self) -> Array:
        """trace(H)/d: the step as one number, [...]."""

    @property
    def diagonal(self) -> Array:
        """The step of every coordinate by itself, [..., d]."""
        return namespace(self.dense()).linalg.diagonal(self.dense())

    def root(self) -> Array:
        """R with R·Rᵀ = H, [..., d, d]."""
        H = self.dense()
        xp = namespace(H)
        values, vectors = eigh(H)
        return vectors * xp.sqrt(xp.maximum(values, xp.zeros_like(values)))[..., None, :]

    def within(self, rows: Array) -> Array:
        """W [..., d, k] with orthonormal columns in ‖·‖_{H⁻¹} whose span holds H·x of every row x
        of rows [..., n, d]: where a regularised leader of these rows lies, seen from phi.
        """
        return self.root()

    def distance(self, v: Array) -> Array:
        """½‖v‖²_{H⁻¹}, [...]."""
        return dot(v, self.solve(v)) / 2

    def energy(self, v: Array) -> Array:
        """½‖v‖²_H, [...]."""
        return dot(v, self.times(v)) / 2

    @property
    def arrays(self) -> dict[str, Array]:
        """What it is made of, by name."""
        made_of = ((n, getattr(self, n)) for n in self.__match_args__)  # type: ignore[attr-defined]
        return {name: a for name, a in made_of if a is not None}

    @property
    def lead(self) -> int:
        """How many leading axes it has."""
        name = self.__match_args__[0]  # type: ignore[attr-defined]
        return getattr(self, name).ndim - _OWN[name]

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

    @property
    def proper(self) -> bool:
        """Whether it is finite and positive; a matrix symmetric and, up to rounding, positive
        definite.
        """
        return bool(self.finite) and not anywhere(self.arrays["steps"] <= 0)

    def project(self, domain: Domain, u: Array, near: Array | None = None) -> Array:
        """The point of ``domain`` nearest to u in ‖·‖_{H⁻¹}, exact to rounding, [..., d].

        Args:
            domain: Euclidean(), a Ball or a Box.
            u: [..., d].
            near: A point of the domain that may be close to the answer, which is then found sooner.
        """
        if isinstance(domain, Euclidean):
            return u
        if isinstance(domain, Ball):
            return onto_ball(self, domain, u)
        if isinstance(domain, Box):
            clipped = domain.project(u)
            if isinstance(self, Diagonal) or not anywhere(clipped != u):
                return clipped
            return onto_box(self.dense(), domain, u, near)
        fix = "use Euclidean(), a Ball or a Box, or a rule that learns a number"
        raise FMRLError(f"{domain!r} has no projection in a metric", fix=fix)


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

    def path(self, v):
        def at(weight: Array) -> tuple[Array, Callable[[], Array]]:
            wide = 1 + weight[..., None] * self.steps
            near = v / wide
            return near, lambda: dot(near, near * self.steps / wide)

        return at, lambda near: near

    def dense(self):
        xp = namespace(self.steps)
        d = self.steps.shape[-1]
        return self.steps[..., None] * xp.eye(d, dtype=self.steps.dtype, device=device(self.steps))

    def within(self, rows):
        if rows.shape[-2] >= rows.shape[-1]:
            return self.root()
        half = namespace(rows).sqrt(self.steps)[..., None]
        return half * basis_of(half * T(rows))

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
        return self._woodbury(self.steps, self.factor)(v)

    def path(self, v):
        def at(weight: Array) -> tuple[Array, Callable[[], Array]]:
            wide = weight[..., None]
            factor = self.factor * namespace(wide).sqrt(wide)[..., None]
            shrink = self._woodbury(1 + wide * self.steps, factor)
            near = shrink(v)
            return near, lambda: dot(near, self.times(shrink(near)))

        return at, lambda near: near

    def _woodbury(self, diagonal: Array, factor: Array) -> Callable[[Array], Array]:
        """v ↦ (diag + F·Fᵀ)⁻¹·v."""
        xp, scaled = namespace(factor), factor / diagonal[..., None]
        eye = xp.eye(factor.shape[-1], dtype=factor.dtype, device=device(factor))
        inner = xp.linalg.inv(xp.matmul(T(factor), scaled) + eye)
        return lambda v: v / diagonal - apply(scaled, apply(inner, apply(T(scaled), v)))

    def dense(self):
        spikes = namespace(self.factor).matmul(self.factor, T(self.factor))
        return Diagonal(self.steps).dense() + spikes

    def within(self, rows):
        xp, d = namespace(rows), rows.shape[-1]
        if rows.shape[-2] >= d:
            return self.root()
        half = xp.sqrt(self.steps)[..., None]  # H = R·Rᵀ with R = [diag(half), factor]
        basis = basis_of(xp.concat([half * T(rows), xp.matmul(T(self.factor), T(rows))], axis=-2))
        return half * basis[..., :d, :] + xp.matmul(self.factor, basis[..., d:, :])

    @property
    def mean(self):
        xp = namespace(self.steps)
        return xp.mean(self.steps + xp.sum(self.factor**2, axis=-1), axis=-1)


@dataclass(frozen=True, eq=False)
class Full(Metric):
    """Any symmetric positive definite matrix.

    Args:
        matrix: H, [..., d, d].
        inverse_root: W with W·Wᵀ = H⁻¹ where one is known, [..., d, d]: nothing is solved then.

    >>> import numpy as np
    >>> H = Full(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> H.project(Ball(1.0), np.array([2.0, 0.0])).round(4), float(H.mean)
    (array([ 0.9635, -0.2676]), 2.0)
    """

    matrix: Array  # [..., d, d]
    inverse_root: Array | None = None  # [..., d, d]
    kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def times(self, v):
        return apply(self.matrix, v)

    def solve(self, v):
        if self.inverse_root is not None:
            return apply(self.inverse_root, apply(T(self.inverse_root), v))
        return namespace(v).linalg.solve(self.matrix, v[..., None])[..., 0]

    def path(self, v):
        values, vectors = self._eigen
        at, _ = Diagonal(values).path(apply(T(vectors), v))
        return at, lambda near: apply(vectors, near)

    @property
    def _eigen(self) -> tuple[Array, Array]:
        """Eigenvalues [..., d] and eigenvectors [..., d, d], found once."""
        if "eigen" not in self.kept:
            self.kept["eigen"] = tuple(eigh(self.matrix))
        return self.kept["eigen"]

    @property
    def proper(self):
        xp = namespace(self.matrix)
        small = 1e-9 * xp.max(xp.abs(self.matrix))
        if not bool(self.finite) or anywhere(xp.abs(self.matrix - T(self.matrix)) > small):
            return False
        return not anywhere(self._eigen[0] < -small)

    def dense(self):
        return self.matrix

    @property
    def mean(self):
        xp = namespace(self.matrix)
        return xp.linalg.trace(self.matrix) / self.matrix.shape[-1]


class Relative(Full):
    """A matrix in units of one over the mean squares of a task's columns, so that the units of
    columns do not matter; `on` says what it is for a task.

    Args:
        matrix: [..., d, d].

    >>> import numpy as np, fmrl
    >>> task = fmrl.Task([[1.0, 10.0], [-1.0, 30.0]], [0.0, 1.0], loss=fmrl.Squared())
    >>> Relative(np.eye(2)).on(task.open()).matrix
    array([[1.   , 0.   ],
           [0.   , 0.002]])
    """

    def on(self, samples: Any) -> Full:
        """The metric for these rows. A column of zeros counts as an average one."""
        xp, squares = namespace(samples.X), namespace(samples.X).sum(samples.X**2, axis=-2)
        size = squares / samples.rounds[..., None]
        mean = xp.mean(size, axis=-1, keepdims=True)
        size = xp.where(size > 0, size, xp.where(mean > 0, mean, xp.ones_like(mean)))
        unit = xp.concat([xp.sqrt(size)] * samples.loss.outputs, axis=-1)
        return Full(self.matrix / (unit[..., :, None] * unit[..., None, :]))


# Axes of an array that are not leading.
_OWN = {"steps": 1, "factor": 2, "matrix": 2, "inverse_root": 2}
METRICS = {kind.__name__: kind for kind in (Diagonal, Spiked, Full, Relative)}


def mean_step(step: Any) -> float:
    """A step, or a metric's mean step, as a float."""
    return float(step.mean if isinstance(step, Metric) else step)


def descend(domain: Domain, theta: Array, eta: Array | Metric, gradient: Array) -> Array:
    """argmin over the domain of B_R(·‖theta) + eta·⟨gradient, ·⟩, or of ½‖· − theta‖²_{H⁻¹} +
    ⟨gradient, ·⟩ where eta is a metric H; [..., d].
    """
    if isinstance(eta, Metric):
        return eta.project(domain, theta - eta.times(gradient), theta)
    return domain.argmin(theta, eta[..., None] * gradient)
