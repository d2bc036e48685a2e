"""The domains with R = ½‖·‖²: Ball, Box and Euclidean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fmrl.core.arrays import constant, dot, full, namespace, norm, zeros
from fmrl.core.checks import number, vector
from fmrl.core.domains.base import Domain
from fmrl.errors import FMRLError

LARGEST, SMALLEST = 1e150, 1e-150  # of a side or a radius, whose square is to be a number


@dataclass(frozen=True)
class Ball(Domain):
    """The l2 ball {θ : ‖θ − centre‖₂ ≤ radius} with R = ½‖·‖₂².

    Args:
        radius: Positive and finite.
        centre: A number for all coordinates, or a vector [d].

    >>> import numpy as np
    >>> Ball(1.0).argmin(np.zeros(2), np.array([3.0, 4.0]))
    array([-0.6, -0.8])
    >>> round(float(Ball(1.0).reach(np.zeros(2))), 3)
    0.707
    """

    radius: float
    centre: float | tuple[float, ...] = 0.0

    def __post_init__(self):
        if not 0 < number(self.radius) < math.inf:
            what = f"Ball radius must be positive and finite, not {self.radius!r}"
            raise FMRLError(what, fix="use Euclidean() for no bound")
        if not SMALLEST <= self.radius <= LARGEST:
            what = f"the radius {self.radius} cannot be squared"
            raise FMRLError(what, fix="use Euclidean() for no bound, or scale the data")
        object.__setattr__(self, "radius", float(self.radius))
        object.__setattr__(self, "centre", vector("Ball centre", self.centre))

    def project(self, theta):
        xp, shifted = namespace(theta), self.centre != 0.0
        offset = theta - constant(self.centre, theta) if shifted else theta
        length = norm(offset)[..., None]
        inside = offset * (self.radius / xp.maximum(length, full((), self.radius, theta)))
        return constant(self.centre, theta) + inside if shifted else inside

    def lowest(self, z):
        xp = namespace(z)
        size = xp.max(xp.abs(z), axis=-1, keepdims=True)  # the squares of a faint z could underflow
        z = z / xp.where(size > 0, size, xp.ones_like(size))
        length = xp.where(size > 0, norm(z)[..., None], xp.ones_like(size))
        furthest = constant(self.centre, z) - self.radius * z / length
        if self.centre == 0.0:
            return furthest
        return xp.where(size > 0, furthest, self.project(xp.zeros_like(z)))

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

    def stiffness(self, theta, multiplier, ratio):
        return multiplier + zeros(theta.shape, theta)

    def border(self, theta):
        return "curved", theta - constant(self.centre, theta)


@dataclass(frozen=True)
class Box(Domain):
    """The box {θ : low ≤ θ ≤ high} with R = ½‖·‖₂².

    Args:
        low: A finite number for all coordinates, or a vector [d].
        high: The same, above ``low`` everywhere.

    >>> import numpy as np
    >>> Box(-1.0, 1.0).argmin(np.zeros(2), np.array([3.0, -0.5]))
    array([-1. ,  0.5])
    """

    low: float | tuple[float, ...]
    high: float | tuple[float, ...]

    def __post_init__(self):
        object.__setattr__(self, "low", vector("Box low", self.low))
        object.__setattr__(self, "high", vector("Box high", self.high))
        try:
            proper = bool(np.all(np.asarray(self.low) < np.asarray(self.high)))
        except ValueError:
            raise FMRLError("Box low and high have different lengths") from None
        if not proper:
            raise FMRLError(f"Box needs low < high everywhere, not {self.low} and {self.high}")
        widest = np.max(np.asarray(self.high) - np.asarray(self.low))
        if max(np.abs(self.low).max(), np.abs(self.high).max()) > LARGEST or widest < SMALLEST:
            what = f"a side of Box beyond {SMALLEST:g} to {LARGEST:g} cannot be squared"
            raise FMRLError(what, fix="use Euclidean() for no bound, or scale the data")

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
    """All of R^d with R = ½‖·‖₂².

    Nothing bounds an optimum here, so the first guess of D must be given explicitly.

    >>> import numpy as np
    >>> Euclidean().argmin(np.zeros(2), np.array([3.0, 4.0]))
    array([-3., -4.])
    """

    def project(self, theta):
        return theta

    def lowest(self, z):
        what = "a linear function has no minimum on Euclidean()"
        raise FMRLError(what, fix="use a bounded domain such as Ball(radius)")

    def middle(self, like):
        return zeros(like.shape, like)

    def reach(self, phi):
        return full(phi.shape[:-1], math.inf, phi)

    def diameter(self, dim):
        return math.inf

    def contains(self, theta, slack=1e-6):
        return namespace(theta).all(namespace(theta).isfinite(theta), axis=-1)
