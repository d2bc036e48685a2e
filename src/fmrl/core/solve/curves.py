"""How a loss enters the interior-point method: a smooth one by slope and curvature, the hinge by a
path of its own.

Both answer the same questions; ``shift`` is the part of the next slope that does not depend on the
step, ``newton`` the change of the curve's own variables along a step of the margins, ``longest``
how far they can go, ``move`` the curve after it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fmrl.core.arrays import Array, dot, full, namespace
from fmrl.core.domains import Domain, Euclidean
from fmrl.core.samples import Samples


class Smooth(NamedTuple):
    """A differentiable loss: slope and curvature at the margins are all there is.

    At a ``heat`` T > 1 the loss is T·ℓ(z/T): its slopes are as large, its bend T times as wide, so
    that margins of any size can be led to where they belong before the bend is as sharp as it is.
    """

    samples: Samples
    heat: Array  # [B]

    @classmethod
    def start(
        cls, samples: Samples, domain: Domain, phi: Array | None, eta: Array | None
    ) -> Smooth:
        """Heat of a quarter of how far a margin can move, at least 1."""
        xp, one = namespace(samples.X), full(samples.X.shape[:-2], 1.0, samples.X)
        if samples.loss.attained or (eta is None and isinstance(domain, Euclidean)):
            return cls(samples, one)  # (without bounds Newton's method does not see the size of X)
        size = domain.dual(samples.X)
        # B_R ≥ ½‖·‖², so Θ is at most √2·diameter across, and the simplex 2.
        width = one * (2.0 if domain.norm == "l1" else math.sqrt(2) * domain.diameter(samples.dim))
        if (
            phi is not None and eta is not None
        ):  # FTRL moves no further than eta·Σ‖gradient‖, nor than what it can win pays for
            won = eta * dot(
                samples.weight, samples.loss.value(samples.margins(phi), samples.target)
            )
            width = xp.minimum(
                width, eta * samples.loss.steep(domain.norm) * dot(size, samples.weight)
            )
            width = xp.minimum(width, xp.sqrt(2 * won))
        return cls(samples, xp.maximum(xp.max(size, axis=-1) * width / 4, one))

    def value(self, z: Array) -> Array:
        """Σ of the losses at margins z [B, n, outputs]; [B]."""
        return self.heat * dot(
            self.samples.weight, self.samples.loss.value(z / self._wide, self.samples.target)
        )

    def merit(self, mu: Array, z: Array) -> Array:
        """What a step has to lower, [B]."""
        return self.value(z)

    def fall(self, mu: Array, z: Array, dz: Array, step: Any) -> Array:
        """The merit's derivative along a step, [B]."""
        return dot(self.samples.weight, dot(self.slope(z), dz))

    def slope(self, z: Array) -> Array:
        """Slopes at margins z [B, n, outputs]."""
        return self.samples.loss.slope(z / self._wide, self.samples.target)

    def curvature(self, z: Array) -> Array:
        bent = self.samples.loss.curvature(z / self._wide, self.samples.target)
        return bent / (self._wide[..., None] if self.samples.loss.coupled else self._wide)

    @property
    def _wide(self) -> Array:
        return self.heat[..., None, None]

    def bend(self, z: Array, dz: Array) -> Array:
        """The change of the slopes that their curvature foretells for a change dz of the margins."""
        bent = self.curvature(z)
        return (
            namespace(z).matmul(bent, dz[..., None])[..., 0]
            if self.samples.loss.coupled
            else bent * dz
        )

    def shift(self, mu: Array, z: Array) -> Array:
        return namespace(z).zeros_like(z)

    def residual(self, mu: Array, z: Array) -> Array:
        return namespace(mu).zeros_like(mu)

    def complementarity(self) -> tuple[Array, Array]:
        """Σ of the products that are mu on the path, and how many there are; [B]."""
        nothing = full(self.samples.X.shape[:-2], 0.0, self.samples.X)
        return nothing, nothing

    def newton(self, dz: Array, mu: Array, z: Array) -> None:
        return None

    def longest(self, step: Any) -> Array:
        return full((), math.inf, self.samples.X)

    def move(self, step: Any, length: Array) -> Smooth:
        return self

    def settle(self, z: Array) -> Smooth:
        return self


class Corner(NamedTuple):
    """max(0, t) with t = 1 − y·z as min s subject to s ≥ 0 and r = s − t ≥ 0, whose multipliers are
    1 − a and a.
    """

    samples: Samples
    a: Array  # [B, n] minus the slope, times y
    b: Array  # [B, n] 1 − a, kept apart because it may be far below rounding
    s: Array  # [B, n]
    r: Array  # [B, n]

    @classmethod
    def start(cls, samples: Samples, z: Array) -> Corner:
        xp = namespace(z)
        t = 1 - (samples.target * z)[..., 0]
        s = xp.maximum(t, xp.zeros_like(t)) + 1
        return cls(samples, full(s.shape, 0.5, s), full(s.shape, 0.5, s), s, s - t)

    def merit(self, mu: Array, z: Array) -> Array:
        """Σ s − mu·(log s + log r) with r = s − t; nan where r ≤ 0."""
        r = self.s - self._corner(z)
        xp = namespace(z)
        both = xp.log(self.s) + xp.log(xp.where(r > 0, r, full((), math.nan, r)))
        return dot(self.samples.weight, self.s - mu[..., None] * both)

    def fall(self, mu: Array, z: Array, dz: Array, step: Any) -> Array:
        (_, ds, _), mu = step, mu[..., None]
        along = ds * (1 - mu / self.s) - (ds + (self.samples.target * dz)[..., 0]) * mu / self.r
        return dot(self.samples.weight, along)

    def _corner(self, z: Array) -> Array:
        """t, [B, n]."""
        return 1 - (self.samples.target * z)[..., 0]

    def slope(self, z: Array) -> Array:
        return -self.samples.target * self.a[..., None]

    def _rates(self, mu: Array, dt: Array) -> Array:
        """Newton's change of a when t changes by dt."""
        mu, odds = mu[..., None], self.a / self.b
        return (self.a * dt + mu - self.r * self.a - odds * (mu - self.s * self.b)) / (
            odds * self.s + self.r
        )

    def curvature(self, z: Array) -> Array:
        return (self.a / (self.a / self.b * self.s + self.r))[..., None]

    def shift(self, mu: Array, z: Array) -> Array:
        """The part of the new slope that does not depend on the step: Newton's change when only s −
        r catches up with t.
        """
        return -self.samples.target * self._rates(mu, self._behind(z))[..., None]

    def _behind(self, z: Array) -> Array:
        """t − (s − r): not 0 after a curved step of theta."""
        return self._corner(z) - (self.s - self.r)

    def residual(self, mu: Array, z: Array) -> Array:
        one, two = self.s * self.b - mu[..., None], self.r * self.a - mu[..., None]
        return sum(dot(self.samples.weight, off * off) for off in (one, two, self._behind(z)))

    def complementarity(self) -> tuple[Array, Array]:
        weight = self.samples.weight
        return dot(weight, self.s * self.b + self.r * self.a), 2 * namespace(weight).sum(
            weight, axis=-1
        )

    def newton(self, dz: Array, mu: Array, z: Array) -> tuple[Array, Array, Array]:
        dt = -(self.samples.target * dz)[..., 0] + self._behind(z)
        da = self._rates(mu, dt)
        ds = (mu[..., None] - self.s * self.b + self.s * da) / self.b
        weight = self.samples.weight  # padding stands still, so that it cannot shorten a step
        return weight * da, weight * ds, weight * (ds - dt)

    def longest(self, step: Any) -> Array:
        xp, (da, ds, dr) = namespace(self.a), step
        limits = [(self.a, da), (self.b, -da), (self.s, ds), (self.r, dr)]
        return xp.min(xp.stack([least(room(x, d), x.shape[:-1], x) for x, d in limits]), axis=0)

    def move(self, step: Any, length: Array) -> Corner:
        da, ds, dr = (length[..., None] * d for d in step)
        return self._replace(a=self.a + da, b=self.b - da, s=self.s + ds, r=self.r + dr)

    def settle(self, z: Array) -> Corner:
        """s and r raised to s − r = t again after a curved step of theta, if more than rounding is
        amiss.
        """
        xp, behind = namespace(z), self._behind(z)
        real = xp.abs(behind) > 64 * xp.finfo(z.dtype).eps * (self.s + self.r)
        behind = xp.where(real, behind * self.samples.weight, xp.zeros_like(behind))
        nothing = xp.zeros_like(behind)
        return self._replace(
            s=self.s + xp.maximum(behind, nothing), r=self.r + xp.maximum(-behind, nothing)
        )


def room(x: Array, dx: Array) -> Array:
    """How far x > 0 can move along dx and stay positive, element by element."""
    xp = namespace(x)
    return xp.where(dx < 0, -x / xp.where(dx < 0, dx, full((), -1.0, dx)), full((), math.inf, dx))


def least(x: Array, batch: tuple[int, ...], like: Array) -> Array:
    """Minimum over the last axis; inf where there is nothing to take it of."""
    return namespace(like).min(x, axis=-1) if x.shape[-1] else full(batch, math.inf, like)
