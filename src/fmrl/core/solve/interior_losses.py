"""How a loss enters the interior-point method: a smooth one by slope and curvature, the hinge by
barriers of its own.

Both answer the same questions. ``shift`` is the part of the next slope that does not depend on the
step, ``newton`` the change of the loss's own variables along a step dz of the margins, ``longest``
how far they can go, ``move`` the loss after it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fmrl.core.arrays import Array, dot, full, namespace
from fmrl.core.domains import Euclidean
from fmrl.core.samples import Samples
from fmrl.core.solve.gap import Objective


class Smooth(NamedTuple):
    """A differentiable loss: slope and curvature at the margins are all there is.

    Where margins can be in the thousands a logistic loss is a corner to any Newton step. At a
    ``heat`` T > 1 the loss is T·ℓ(z/T), whose bend is T times as wide: the method starts with T as
    large as the margins and lowers it to 1.
    """

    samples: Samples
    heat: Array  # [B]

    @classmethod
    def begin(cls, problem: Objective) -> Smooth:
        """Heat of a quarter of how far a margin can move, at least 1."""
        samples, domain, phi, eta = problem[:4]
        xp, one = namespace(samples.X), full(samples.X.shape[:-2], 1.0, samples.X)
        if samples.loss.attained or (phi is None and isinstance(domain, Euclidean)):
            return cls(samples, one)  # (without bounds Newton's method does not see the size of X)
        size = domain.dual(samples.X)
        # B_R ≥ ½‖·‖², so Θ is at most √2·diameter across, and the simplex 2.
        width = one * (2.0 if domain.norm == "l1" else math.sqrt(2) * domain.diameter(samples.dim))
        if phi is not None and eta is not None:  # at most eta·Σ‖gradient‖, and paid for by F(phi)
            won = dot(samples.weight, samples.loss.value(samples.margins(phi), samples.target))
            steep = samples.loss.steep(domain.norm) * dot(size, samples.weight)
            width = xp.minimum(width, xp.minimum(eta * steep, xp.sqrt(2 * eta * won)))
        return cls(samples, xp.maximum(xp.max(size, axis=-1) * width / 4, one))

    @property
    def _wide(self) -> Array:
        return self.heat[..., None, None]

    def merit(self, mu: Array | None, z: Array) -> Array:
        """Σ of the losses at margins z [B, n, outputs], which a step has to lower; [B]."""
        loss, target = self.samples.loss, self.samples.target
        return self.heat * dot(self.samples.weight, loss.value(z / self._wide, target))

    def fall(self, mu: Array, z: Array, dz: Array, step: Any) -> Array:
        """The merit's derivative along a step, [B]."""
        return dot(self.samples.weight, dot(self.slope(z), dz))

    def slope(self, z: Array) -> Array:
        """Slopes at margins z, [B, n, outputs]."""
        return self.samples.loss.slope(z / self._wide, self.samples.target)

    def curvature(self, z: Array) -> Array:
        """Curvatures at margins z, in the shape that the loss gives them."""
        wide = self._wide[..., None] if self.samples.loss.coupled else self._wide
        return self.samples.loss.curvature(z / self._wide, self.samples.target) / wide

    def shift(self, mu: Array, z: Array) -> Array:
        return namespace(z).zeros_like(z)

    def products(self) -> tuple[Array, Array]:
        """Σ of the products that are mu on the path, and how many there are; [B]."""
        nothing = full(self.heat.shape, 0.0, self.heat)
        return nothing, nothing

    def newton(self, dz: Array, mu: Array, z: Array) -> None:
        return None

    def longest(self, step: Any) -> Array:
        return full((), math.inf, self.heat)

    def move(self, step: Any, length: Array) -> Smooth:
        return self


class Corner(NamedTuple):
    """size·max(0, t) with t = 1 − y·z as min size·s subject to s ≥ 0 and r = s − t ≥ 0, whose
    multipliers are size·(1 − a) and size·a. Barriers are weighed by the size too, so that on the
    path a·r = mu and (1 − a)·s = mu for every round.
    """

    y: Array  # [B, n, 1]
    size: Array  # [B, n]; 0 for padding
    a: Array  # [B, n] minus the slope, times y, over the size
    b: Array  # [B, n] 1 − a, kept apart because it may be far below rounding
    s: Array  # [B, n]
    r: Array  # [B, n]

    @classmethod
    def begin(cls, problem: Objective, z: Array) -> Corner:
        """Halfway between the two sides of every corner."""
        xp, samples = namespace(z), problem.samples
        y, size = samples.loss.corners(samples.target)
        size = size * samples.weight[..., None]
        y = xp.where(size > 0, y, xp.zeros_like(y))  # what does not count stands still
        t = 1 - (y * z)[..., 0]
        s, r = (xp.maximum(x, xp.zeros_like(t)) + 1 for x in (t, -t))
        half = full(t.shape, 0.5, t)
        return cls(y, size[..., 0], half, half, s, r)

    def _corner(self, z: Array) -> Array:
        """t, [B, n]."""
        return 1 - (self.y * z)[..., 0]

    def _behind(self, z: Array) -> Array:
        """t − (s − r): not 0 after a curved step of theta."""
        return self._corner(z) - (self.s - self.r)

    def merit(self, mu: Array, z: Array) -> Array:
        """Σ size·(s − mu·(log s + log r)) with r = s − t; nan where r ≤ 0."""
        xp, r = namespace(z), self.s - self._corner(z)
        both = xp.log(self.s) + xp.log(xp.where(r > 0, r, full((), math.nan, r)))
        return dot(self.size, self.s - mu[..., None] * both)

    def fall(self, mu: Array, z: Array, dz: Array, step: Any) -> Array:
        """The merit's derivative along a step, [B]."""
        (_, ds, _), mu = step, mu[..., None]
        along = ds * (1 - mu / self.s) - (ds + (self.y * dz)[..., 0]) * mu / self.r
        return dot(self.size, along)

    def slope(self, z: Array) -> Array:
        """Slopes at margins z, [B, n, 1]."""
        return -self.y * (self.size * self.a)[..., None]

    def curvature(self, z: Array) -> Array:
        """Curvatures of the path at margins z, [B, n, 1]."""
        return (self.size * self.a / (self.a / self.b * self.s + self.r))[..., None]

    def _rates(self, mu: Array, dt: Array) -> Array:
        """Newton's change of a when t changes by dt."""
        mu, odds = mu[..., None], self.a / self.b
        short = mu - self.r * self.a - odds * (mu - self.s * self.b)
        return (self.a * dt + short) / (odds * self.s + self.r)

    def shift(self, mu: Array, z: Array) -> Array:
        """Newton's change of the slopes when only s − r catches up with t."""
        return -self.y * (self.size * self._rates(mu, self._behind(z)))[..., None]

    def products(self) -> tuple[Array, Array]:
        """Σ of the products that are mu on the path, and how many there are, by size; [B]."""
        both = dot(self.size, self.s * self.b + self.r * self.a)
        return both, 2 * namespace(self.size).sum(self.size, axis=-1)

    def newton(self, dz: Array, mu: Array, z: Array) -> tuple[Array, Array, Array]:
        """Changes of a, s and r; padding stands still, so that it cannot shorten a step."""
        dt = -(self.y * dz)[..., 0] + self._behind(z)
        da = self._rates(mu, dt)
        ds = (mu[..., None] - self.s * self.b + self.s * da) / self.b
        counts = namespace(z).astype(self.size > 0, dt.dtype)
        return counts * da, counts * ds, counts * (ds - dt)

    def longest(self, step: Any) -> Array:
        """The longest step that keeps a, b, s and r positive, [B]."""
        xp, (da, ds, dr) = namespace(self.a), step
        x = xp.concat([self.a, self.b, self.s, self.r], axis=-1)
        return room(x, xp.concat([da, -da, ds, dr], axis=-1))

    def move(self, step: Any, length: Array) -> Corner:
        """The loss after a step of this length [B]."""
        da, ds, dr = (length[..., None] * d for d in step)
        return self._replace(a=self.a + da, b=self.b - da, s=self.s + ds, r=self.r + dr)


def room(x: Array, dx: Array) -> Array:
    """How far x > 0 [B, k] can move along dx and stay positive, [B]; inf if k = 0."""
    xp, forever = namespace(x), full((*x.shape[:-1], 1), math.inf, x)
    falls = dx < 0
    limit = xp.where(falls, -x / xp.where(falls, dx, full((), -1.0, dx)), full((), math.inf, dx))
    return xp.min(xp.concat([limit, forever], axis=-1), axis=-1)
