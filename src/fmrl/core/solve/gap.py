"""Duality gaps: how far an action can be from the minimum, proved by weak duality.

For F(θ) = Σ ℓ(Xθ), g = B_R(·‖phi)/eta (or 0) and any slopes u, Fenchel's inequality twice gives

    F(θ) + g(θ) − min_Θ (F + g)  ≤  [F(θ) + F*(u) − ⟨u, Xθ⟩]  +  [g(θ) + ⟨q, θ⟩ − min_Θ (g + ⟨q, ·⟩)],     q = Xᵀu.

The first bracket is 0 for u = ∇F; the last minimum is the domain's ``lowest`` or ``argmin``, in
closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from fmrl.core.arrays import Array, device, dot, full, namespace
from fmrl.core.domains import Domain, Euclidean
from fmrl.core.samples import Samples

TINY = 1e-300  # a value below it has underflowed, and one below 1e-290 is on its way: float64 has no relative gap there


class Objective(NamedTuple):
    """min over ``domain`` of eta·F + B_R(·‖phi), or of F alone when ``phi`` is None."""

    samples: Samples
    domain: Domain
    phi: Array | None = None  # [B, d]
    eta: Array | None = None  # [B]

    def double(self) -> Objective:
        """The same problem in float64."""
        xp, samples = namespace(self.samples.X), self.samples
        names = ("X", "target", "weight", "rounds") + (
            () if samples.offset is None else ("offset",)
        )
        wide = {name: xp.astype(getattr(samples, name), xp.float64, copy=False) for name in names}
        phi, eta = (
            None if a is None else xp.astype(a, xp.float64, copy=False)
            for a in (self.phi, self.eta)
        )
        return Objective(replace(samples, **wide), self.domain, phi, eta)

    def value(self, theta: Array, z: Array) -> Array:
        """Objective at theta with margins z, shape [B]."""
        total = namespace(z).sum(
            self.samples.loss.value(z, self.samples.target) * self.samples.weight, axis=-1
        )
        return (
            total
            if self.phi is None
            else self.eta * total + self.domain.divergence(theta, self.phi)
        )

    def gap(self, theta: Array, z: Array, u: Array, q: Array) -> Array:
        """Upper bound on value − minimum from the slopes u [B, n, outputs] at z and their gather q
        [B, d]; shape [B].
        """
        if self.phi is None and isinstance(self.domain, Euclidean):
            return self._free(z, u)
        rest = self._rest(theta, q)
        if self.samples.loss.bend == math.inf:
            rest = rest + self._excess(z, u)
        return namespace(rest).maximum(rest, namespace(rest).zeros_like(rest))

    def bound(self, theta: Array, z: Array, u: Array) -> Array:
        """The same from any slopes u, such as those a Newton step foretells; inf where no u has a
        conjugate; shape [B].
        """
        if self.phi is None and isinstance(self.domain, Euclidean):
            return self._free(z, u)
        rest = self._rest(theta, self.samples.gather(u))
        return namespace(rest).maximum(rest, namespace(rest).zeros_like(rest)) + self._excess(z, u)

    def answered(self, u: Array) -> tuple[Array, Array, Array, Array]:
        """The action that answers slopes u, argmin B_R(·‖phi) + eta·⟨q, ·⟩, its value and gap (the
        excess alone) and margins.

        Where losses are far below the rounding of phi this is phi itself, which no step in theta
        would find."""
        theta = self.domain.argmin(self.phi, self.eta[..., None] * self.samples.gather(u))  # type: ignore[index]
        z = self.samples.margins(theta)
        return theta, self.value(theta, z), self._excess(z, u), z

    def home(self) -> tuple[Array, Array, Array]:
        """Value and gap of phi itself [B], infinite if it lies outside, and its slopes."""
        xp, z = namespace(self.phi), self.samples.margins(self.phi)
        u = self.samples.loss.slope(z, self.samples.target)
        value = self.value(self.phi, z)  # type: ignore[arg-type]
        gap = self.proved(value, self.gap(self.phi, z, u, self.samples.gather(u)))  # type: ignore[arg-type]
        outside = xp.where(
            self.domain.contains(self.phi, slack=1e-15),
            xp.zeros_like(gap),
            xp.full_like(gap, math.inf),
        )  # type: ignore[arg-type]
        return value + outside, gap + outside, u

    def _rest(self, theta: Array, q: Array) -> Array:
        """The second bracket, [B]."""
        if self.phi is None or self.eta is None:
            return dot(q, theta - self.domain.lowest(q))
        best = self.domain.argmin(self.phi, self.eta[..., None] * q)
        rest = self.eta * dot(q, theta - best)
        return (
            rest + self.domain.divergence(theta, self.phi) - self.domain.divergence(best, self.phi)
        )

    def _excess(self, z: Array, u: Array) -> Array:
        """The first bracket, [B]."""
        xp, weight, excess = (
            namespace(z),
            self.samples.weight,
            self.samples.loss.excess(z, u, self.samples.target),
        )
        total = xp.sum(
            weight * xp.where((weight > 0) & (excess > 0), excess, xp.zeros_like(excess)), axis=-1
        )  # padding may have none, rounding go below
        return total if self.eta is None else self.eta * total

    def prove(self, theta: Array, slopes: Array, tol: float) -> tuple[Array, Array, Array]:
        """theta [B, d], value and gap [B] by its own slopes; where that is more than ``tol`` of the
        value, by those given.
        """
        xp, z = namespace(theta), self.samples.margins(theta)
        u = self.samples.loss.slope(z, self.samples.target)
        value, gap = self.value(theta, z), self.gap(theta, z, u, self.samples.gather(u))
        rough = gap > tol * xp.abs(value)
        if bool(xp.any(rough)):
            gap = xp.where(rough, xp.minimum(gap, self.bound(theta, z, slopes)), gap)
            others = (
                []
                if self.phi is None
                else [(self.phi, *self.home()[:2]), self.answered(slopes)[:3]]
            )
            for near, near_value, near_gap in others:
                closer = rough & (near_gap < gap)
                theta = xp.where(closer[..., None], near, theta)
                value, gap = xp.where(closer, near_value, value), xp.where(closer, near_gap, gap)
        return theta, value, self.proved(value, gap)

    def proved(self, value: Array, gap: Array) -> Array:
        """The gap, or the value where it is less and no loss is negative: u = 0 is a proof too."""
        return namespace(gap).minimum(gap, value) if self.samples.loss.lowest == 0 else gap

    def rounding(self, theta: Array, z: Array, u: Array) -> Array:
        """What the value changes by when the margins' terms are rounded: no gap below it means
        anything; shape [B].

        To first order Σ |u|·δ with δ = 4·eps·(|X||θ| + |u|), so about eps·|z| of the value where
        losses are small; to second order Σ ½ℓ″δ², all that is left of squared losses of value 0.
        """
        xp, samples = namespace(z), self.samples
        eps = 4 * xp.finfo(z.dtype).eps
        bent = samples.loss.curvature(z, samples.target)
        bent = xp.linalg.diagonal(bent) if samples.loss.coupled else bent
        off = eps * (
            replace(samples, X=xp.abs(samples.X)).margins(xp.abs(theta), offset=False) + xp.abs(u)
        )
        if samples.offset is not None:
            off = off + eps * xp.abs(samples.offset)
        off = xp.minimum(off, full((), 1e100, off))  # a finished problem of a stack may be anywhere
        total = dot(samples.weight, xp.sum(xp.abs(u) * off + bent * off**2 / 2, axis=-1)) + TINY
        if self.phi is not None:
            pull = xp.abs(self.domain.mirror(theta) - self.domain.mirror(self.phi))
            total = self.eta * total + eps * dot(pull, xp.abs(theta) + xp.abs(self.phi))
        return total + eps * xp.abs(self.value(theta, z))

    def _free(self, z: Array, u: Array) -> Array:
        """Without bounds only slopes with Xᵀu = 0 prove anything: project u onto them first."""
        xp, X = namespace(z), self.samples.X * self.samples.weight[..., None]
        gram = xp.matmul(xp.matrix_transpose(X), X)
        ridge = (
            1e-14
            * (1e-290 + xp.linalg.trace(gram))[..., None, None]
            * xp.eye(gram.shape[-1], dtype=z.dtype, device=device(z))
        )
        for _ in range(2):  # the second pass removes what rounding left of the first
            u = u - xp.matmul(
                X, xp.linalg.solve(gram + ridge, xp.matmul(xp.matrix_transpose(X), u))
            )
        if (
            self.samples.loss.bend == math.inf
        ):  # a corner's slopes are at most 1, and a multiple is as good
            u = u / xp.maximum(xp.max(xp.abs(u), axis=(-2, -1), keepdims=True), full((), 1.0, u))
        return xp.minimum(self._excess(z, u), self.value(u, z))  # u = 0 is a proof too
