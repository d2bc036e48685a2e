"""Domains: an action set Θ together with its Bregman regulariser B_R. One value is a whole geometry.

R is 1-strongly convex w.r.t. the domain's norm: R = ½‖·‖₂² (norm l2) for Ball, Box and Euclidean, R = ⟨θ, log θ⟩ (norm l1)
for Simplex. Every method reduces over the last axis and broadcasts over the others.

Three groups of methods, and that is all a new domain has to offer:

* geometry — ``divergence``, ``mirror`` (∇R), ``metric`` (diagonal of ∇²R), ``dual`` (the dual norm);
* the set — ``argmin`` (the lazy mirror-descent primitive), ``project``, ``lowest`` (linear minimisation), ``contains``,
  ``middle``, ``reach``, ``diameter``;
* its interior, for the interior-point solver — constraints h(θ) ≥ 0 by ``slack``, ``pull`` = Σ wⱼ∇hⱼ, ``stiffness``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from fmrl.core.arrays import Array, constant, dot, full, namespace, norm, to_numpy, zeros
from fmrl.core.errors import FMRLError


def _vector(value: Any, name: str) -> float | tuple[float, ...]:
    """A number or a tuple of numbers, so that a domain stays hashable and prints itself."""
    values = to_numpy(value).astype(float)
    if values.ndim > 1 or not math.isfinite(float(abs(values).sum())):
        raise FMRLError(f"{name} must be a finite number or a vector of them, not {value!r}")
    return float(values) if values.ndim == 0 else tuple(values.tolist())


class Domain(ABC):
    """What the four domains share; the class is only a name for them, ``argmin`` is the method that matters."""

    norm: str = "l2"

    def divergence(self, theta: Array, phi: Array) -> Array:
        """B_R(theta‖phi), shape [...]; here ½‖theta − phi‖²."""
        step = theta - phi
        return dot(step, step) / 2

    def mirror(self, theta: Array) -> Array:
        """∇R(theta), shape [..., d]."""
        return theta

    def metric(self, theta: Array) -> Array:
        """Diagonal of ∇²R(theta), shape [..., d]."""
        return namespace(theta).ones_like(theta)

    def dual(self, gradient: Array) -> Array:
        """Dual norm of a gradient, shape [...]."""
        return norm(gradient)

    def argmin(self, phi: Array, z: Array) -> Array:
        """argmin over Θ of B_R(·‖phi) + ⟨z, ·⟩, shape [..., d]."""
        return self.project(phi - z)

    @abstractmethod
    def project(self, theta: Array) -> Array:
        """The point of Θ nearest to theta in B_R."""

    @abstractmethod
    def lowest(self, z: Array) -> Array:
        """argmin over Θ of ⟨z, ·⟩; of several, the one of least norm."""

    @abstractmethod
    def middle(self, like: Array) -> Array:
        """A point well inside Θ, in the shape of ``like``: where an untrained phi starts."""

    @abstractmethod
    def reach(self, phi: Array) -> Array:
        """max over Θ of sqrt(B_R(·‖phi)): how far an optimum can be from phi."""

    @abstractmethod
    def diameter(self, dim: int) -> float:
        """max over Θ×Θ of sqrt(B_R): the paper's D in ``dim`` dimensions."""

    @abstractmethod
    def contains(self, theta: Array, slack: float = 1e-6) -> Array:
        """Whether theta lies in Θ up to ``slack`` (relative to the size of Θ), shape [...]."""

    @abstractmethod
    def slack(self, theta: Array) -> Array:
        """Constraint values h(theta), shape [..., k]: Θ is where all are ≥ 0."""

    @abstractmethod
    def pull(self, theta: Array, weight: Array) -> Array:
        """Σⱼ weightⱼ·∇hⱼ(theta), shape [..., d]."""

    @abstractmethod
    def push(self, step: Array) -> Array:
        """∇hⱼᵀstep of the linear constraints, shape [..., k]: the adjoint of ``pull``."""

    @abstractmethod
    def stiffness(self, theta: Array, multiplier: Array, ratio: Array) -> Array:
        """Diagonal of Σⱼ −multiplierⱼ∇²hⱼ + ratioⱼ∇hⱼ∇hⱼᵀ; a curved constraint leaves the last term to ``border``."""

    def regularised(self) -> Domain:
        """This domain under an objective that contains B_R, less the constraints that B_R enforces by itself."""
        return self

    def retract(self, theta: Array, step: Array) -> Array:
        """Move from theta along step; a straight line unless the geometry knows better."""
        return theta + step

    def tangent(self, theta: Array, gradient: Array) -> Array:
        """The part of a gradient that no equality constraint absorbs."""
        return gradient

    def border(self, theta: Array) -> tuple[str, Array] | None:
        """("curved", −∇h) of a single curved constraint, ("equality", a) for ⟨a, θ⟩ = const, or None."""
        return None


@dataclass(frozen=True)
class Ball(Domain):
    """The l2 ball {θ : ‖θ − centre‖₂ ≤ radius} with R = ½‖·‖₂².

    >>> import numpy as np
    >>> Ball(1.0).argmin(np.zeros(2), np.array([3.0, 4.0]))
    array([-0.6, -0.8])
    >>> round(float(Ball(1.0).reach(np.zeros(2))), 3)
    0.707
    """

    radius: float
    centre: float | tuple[float, ...] = 0.0

    def __post_init__(self):
        if not (self.radius > 0 and math.isfinite(self.radius)):
            raise FMRLError(f"Ball radius must be positive and finite, not {self.radius}", fix="use Euclidean() for no bound")
        object.__setattr__(self, "radius", float(self.radius))
        object.__setattr__(self, "centre", _vector(self.centre, "Ball centre"))

    def project(self, theta):
        xp = namespace(theta)
        centred = self.centre != 0.0
        offset = theta - constant(self.centre, theta) if centred else theta
        length = norm(offset)[..., None]
        inside = offset * (self.radius / xp.maximum(length, full((), self.radius, theta)))
        return constant(self.centre, theta) + inside if centred else inside

    def lowest(self, z):
        xp = namespace(z)
        size = xp.max(xp.abs(z), axis=-1, keepdims=True)  # the squares of a faint z could underflow
        z = z / xp.where(size > 0, size, xp.ones_like(size))
        length = norm(z)[..., None]
        furthest = constant(self.centre, z) - self.radius * z / xp.where(length > 0, length, xp.ones_like(length))
        return furthest if self.centre == 0.0 else xp.where(length > 0, furthest, self.project(xp.zeros_like(z)))

    def middle(self, like):
        return zeros(like.shape, like) + constant(self.centre, like)

    def reach(self, phi):
        return (norm(phi - constant(self.centre, phi)) + self.radius) / math.sqrt(2)

    def diameter(self, dim):
        return math.sqrt(2) * self.radius

    def contains(self, theta, slack=1e-6):
        return norm(theta - constant(self.centre, theta)) <= self.radius * (1 + slack)

    def slack(self, theta):
        offset = theta - constant(self.centre, theta)
        return ((self.radius**2 - dot(offset, offset)) / 2)[..., None]

    def pull(self, theta, weight):
        return -weight * (theta - constant(self.centre, theta))

    def push(self, step):
        return step[..., :0]

    def stiffness(self, theta, multiplier, ratio):
        return multiplier + zeros(theta.shape, theta)

    def retract(self, theta, step):
        # A straight step along the sphere leaves the ball at once. Let the slack change as its linear model says, within a half.
        xp, offset = namespace(theta), theta - constant(self.centre, theta)
        model = self.slack(theta) - dot(offset, step)[..., None]
        moved = offset + step
        square = dot(moved, moved)[..., None]
        most = self.radius**2 - model
        bent = (square > most) & (most > 0) & (model > 0)
        scale = xp.sqrt(xp.where(bent, most / xp.where(square > 0, square, xp.ones_like(square)), xp.ones_like(square)))
        return constant(self.centre, theta) + scale * moved

    def border(self, theta):
        return "curved", theta - constant(self.centre, theta)


@dataclass(frozen=True)
class Box(Domain):
    """The box {θ : low ≤ θ ≤ high} with R = ½‖·‖₂²; bounds are numbers or vectors.

    >>> import numpy as np
    >>> Box(-1.0, 1.0).argmin(np.zeros(2), np.array([3.0, -0.5]))
    array([-1. ,  0.5])
    """

    low: float | tuple[float, ...]
    high: float | tuple[float, ...]

    def __post_init__(self):
        object.__setattr__(self, "low", _vector(self.low, "Box low"))
        object.__setattr__(self, "high", _vector(self.high, "Box high"))
        try:
            proper = bool(np.all(np.asarray(self.low) < np.asarray(self.high)))
        except ValueError:
            raise FMRLError("Box low and high have different lengths") from None
        if not proper:
            raise FMRLError(f"Box needs low < high everywhere, not {self.low} and {self.high}")

    def _bounds(self, like):
        shape = zeros(like.shape[-1:], like)
        return shape + constant(self.low, like), shape + constant(self.high, like)

    def project(self, theta):
        xp = namespace(theta)
        low, high = self._bounds(theta)
        return xp.minimum(xp.maximum(theta, low), high)

    def lowest(self, z):
        xp = namespace(z)
        low, high = self._bounds(z)
        nearest_zero = self.project(xp.zeros_like(z))
        return xp.where(z > 0, low, xp.where(z < 0, high, nearest_zero))

    def middle(self, like):
        low, high = self._bounds(like)
        return zeros(like.shape, like) + (low + high) / 2

    def reach(self, phi):
        xp = namespace(phi)
        low, high = self._bounds(phi)
        return norm(xp.maximum(phi - low, high - phi)) / math.sqrt(2)

    def diameter(self, dim):
        width = np.broadcast_to(np.asarray(self.high) - np.asarray(self.low), (dim,))
        return float(np.linalg.norm(width) / math.sqrt(2))

    def contains(self, theta, slack=1e-6):
        xp = namespace(theta)
        low, high = self._bounds(theta)
        room = slack * (high - low)
        return xp.all((theta >= low - room) & (theta <= high + room), axis=-1)

    def slack(self, theta):
        low, high = self._bounds(theta)
        return namespace(theta).concat([theta - low, high - theta], axis=-1)

    def pull(self, theta, weight):
        d = theta.shape[-1]
        return weight[..., :d] - weight[..., d:]

    def push(self, step):
        return namespace(step).concat([step, -step], axis=-1)

    def stiffness(self, theta, multiplier, ratio):
        d = theta.shape[-1]
        return ratio[..., :d] + ratio[..., d:]


@dataclass(frozen=True)
class Euclidean(Domain):
    """All of R^d with R = ½‖·‖₂². Nothing bounds an optimum here, so the first guess of D must be given explicitly.

    >>> import numpy as np
    >>> Euclidean().argmin(np.zeros(2), np.array([3.0, 4.0]))
    array([-3., -4.])
    """

    def project(self, theta):
        return theta

    def lowest(self, z):
        raise FMRLError("a linear function has no minimum on Euclidean()", fix="use a bounded domain such as Ball(radius)")

    def middle(self, like):
        return zeros(like.shape, like)

    def reach(self, phi):
        return full(phi.shape[:-1], math.inf, phi)

    def diameter(self, dim):
        return math.inf

    def contains(self, theta, slack=1e-6):
        return namespace(theta).all(namespace(theta).isfinite(theta), axis=-1)

    def slack(self, theta):
        return theta[..., :0]

    def pull(self, theta, weight):
        return zeros(theta.shape, theta)

    def push(self, step):
        return step[..., :0]

    def stiffness(self, theta, multiplier, ratio):
        return zeros(theta.shape, theta)
