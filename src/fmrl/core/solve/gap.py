"""Duality gaps: how far an action can be from the minimum, proved by weak duality.

For F(θ) = Σ ℓ(Xθ), g = B_R(·‖phi)/eta (or 0) and any slopes u, Fenchel's inequality twice gives

    F(θ) + g(θ) − min_Θ (F + g)  ≤  [F(θ) + F*(u) − ⟨u, Xθ⟩]
                                  + [g(θ) + ⟨q, θ⟩ − min_Θ (g + ⟨q, ·⟩)],     q = Xᵀu.

The first bracket is 0 for u = ∇F; the last minimum is the domain's ``lowest`` or ``argmin``, in
closed form. Without bounds (`Euclidean`, no phi) the last minimum is −∞ unless q = 0, so there u
is first projected onto the slopes with Xᵀu = 0.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.arrays import Array, device, dot, full, namespace, norm, to_numpy
from fmrl.core.domains import Domain, Euclidean, Simplex
from fmrl.core.samples import Samples

RELATIVE, ABSOLUTE = 1e-10, 1e-13  # the promise: of the value, and of the loss at the start
FAINT = 1e-12  # of the value, above which a gap includes what rounding of Xᵀu can hide


class Method(IntEnum):
    """What found an answer."""

    CLOSED_FORM, DESCENT, MAJORISE, INTERIOR, LEAST_DIVERGENCE = range(5)

    def everywhere(self, like: Array) -> Array:
        """This method for a whole stack, in the shape of ``like``."""
        xp = namespace(like)
        return xp.full(like.shape, int(self), dtype=xp.int64, device=device(like))


class Found(NamedTuple):
    """What a method ends with; the minimum is not below value − gap."""

    theta: Array  # [B, d]
    value: Array  # [B]
    gap: Array  # [B]
    slopes: Array  # [B, n, outputs]: those that prove the gap
    method: Array  # [B]: a Method

    def merge(self, done: Array, late: Found) -> Found:
        """These where ``done`` [B], and in the other places, in order, those of ``late``."""
        xp = namespace(done)
        (rest,), (early,) = xp.nonzero(~done), xp.nonzero(done)
        place = xp.argsort(xp.concat([early, rest]))
        pairs = zip(self, late, strict=True)
        both = (xp.concat([xp.take(a, early, axis=0), b]) for a, b in pairs)
        return Found(*(xp.take(a, place, axis=0) for a in both))

    def or_lower(self, other: Found, places: Array) -> Found:
        """These, but those at ``places`` of ``other`` where these are not proved and are higher."""
        xp = namespace(self.value)
        other = Found(*(xp.take(a, places, axis=0) for a in other))
        lower = (other.value < self.value) & (self.gap > 1e-6 * xp.abs(self.value))

        def chosen(a: Array, b: Array) -> Array:
            return xp.where(xp.reshape(lower, (-1, *(1,) * (a.ndim - 1))), b, a)

        return Found(*(chosen(a, b) for a, b in zip(self, other, strict=True)))


class Objective(NamedTuple):
    """min over ``domain`` of eta·F + B_R(·‖phi), or of F alone when ``phi`` is None."""

    samples: Samples
    domain: Domain
    phi: Array | None = None  # [B, d]
    eta: Array | None = None  # [B]
    span: Array | None = None  # [B, n, r]: orthonormal basis of X's columns, where nothing is bound

    def take(self, index: Array) -> Objective:
        """The problems at ``index`` of the stack."""
        xp = namespace(index)
        rest = (None if a is None else xp.take(a, index, axis=0) for a in self[2:])
        return Objective(self.samples.take(index), self.domain, *rest)

    def value(self, theta: Array, z: Array) -> Array:
        """Objective at theta with margins z, shape [B]."""
        total = dot(self.samples.weight, self.samples.loss.value(z, self.samples.target))
        if self.phi is None:
            return total
        return self.eta * total + self.domain.divergence(theta, self.phi)

    def start(self, theta: Array) -> Array:
        """Losses at the domain's middle (times eta under FTRL), [B]; theta gives the shape."""
        z = self.samples.margins(self.domain.middle(theta))
        total = dot(self.samples.weight, self.samples.loss.value(z, self.samples.target))
        return namespace(z).abs(total if self.eta is None else self.eta * total)

    def kept(self, theta: Array, value: Array, gap: Array) -> Array:
        """Whether a gap keeps the promise, [B]."""
        xp = namespace(gap)
        gap = self.least(value, gap)
        good = gap <= RELATIVE * xp.abs(value)
        return good if bool(xp.all(good)) else good | (gap <= ABSOLUTE * self.start(theta))

    def gap(self, theta: Array, z: Array, u: Array, own: bool = False) -> Array:
        """Upper bound on value − minimum from slopes u [B, n, outputs]; inf where no loss has them.

        ``own``: u are the slopes of a smooth loss at z itself, whose first bracket is 0; [B].
        """
        xp = namespace(z)
        if self.phi is None and isinstance(self.domain, Euclidean):
            u, rest = self._balanced(theta, u)
            own = False
        else:
            rest = self._rest(theta, self.samples.gather(u))
        gap = xp.maximum(rest, xp.zeros_like(rest))
        if not own:
            gap = gap + self._excess(z, u)
        return xp.where(xp.isnan(gap), full((), math.inf, gap), gap)

    def least(self, value: Array, gap: Array) -> Array:
        """The gap, or the value where it is less and no loss is negative: u = 0 is a proof too."""
        return namespace(gap).minimum(gap, value) if self.samples.loss.lowest == 0 else gap

    def _rest(self, theta: Array, q: Array) -> Array:
        """The second bracket, [B]."""
        if self.phi is None or self.eta is None:
            return dot(q, theta - self.domain.lowest(q))
        best = self.domain.argmin(self.phi, self.eta[..., None] * q)
        moved = self.domain.divergence(theta, self.phi) - self.domain.divergence(best, self.phi)
        return self.eta * dot(q, theta - best) + moved

    def _excess(self, z: Array, u: Array) -> Array:
        """The first bracket, [B]."""
        xp, weight = namespace(z), self.samples.weight
        excess = self.samples.loss.excess(z, u, self.samples.target)
        counts = (weight > 0) & ~(excess <= 0)  # padding may have none, and rounding go below 0
        total = xp.sum(xp.where(counts, excess, xp.zeros_like(excess)), axis=-1)
        return total if self.eta is None else self.eta * total

    def _balanced(self, theta: Array, u: Array) -> tuple[Array, Array]:
        """u without its part along the columns of X, and what rounding leaves of ⟨Xᵀu, θ⟩, [B]."""
        xp, samples, span = namespace(u), self.samples, self.span
        for _ in range(2):  # the second time takes off what rounding left of the first
            u = u - xp.matmul(span, xp.matmul(xp.matrix_transpose(span), u))
        if samples.loss.bend == math.inf:  # a corner's slopes have a limit; a multiple is as good
            most = samples.loss.corners(samples.target)[1]
            u = xp.where(most > 0, u, xp.zeros_like(u))
            over = xp.abs(u) / xp.where(most > 0, most, xp.ones_like(most))
            u = u / xp.maximum(xp.max(over, axis=(-2, -1), keepdims=True), full((), 1.0, u))
        # In units of the columns, so that their scale does not matter. Twice: the optimum may be on
        # the other side of 0.
        unit = xp.sqrt(xp.sum(samples.X**2, axis=-2))[..., None, :]
        unit = xp.where(unit > 0, unit, xp.ones_like(unit))
        left = xp.reshape(samples.matrix(samples.gather(u)) / unit, theta.shape)
        return u, 2 * norm(left) * norm(xp.reshape(samples.matrix(theta) * unit, theta.shape))

    def prove(self, found: Found) -> Found:
        """The same theta, proved by its own slopes, or by those found where they prove more."""
        xp, (theta, _, _, slopes, method) = namespace(found.gap), found
        z = self.samples.margins(theta)
        value = self.value(theta, z)
        gap = self.gap(theta, z, self.samples.loss.slope(z, self.samples.target), own=True)
        if not bool(xp.all(self.kept(theta, value, gap))):
            gap = xp.minimum(gap, self.gap(theta, z, slopes))
        return Found(theta, value, self.least(value, gap), slopes, method)

    def surely(self, theta: Array, value: Array, gap: Array, slopes: Array) -> Array:
        """The gap with what rounding of q = Xᵀu could hide: ⟨δ, θ − v⟩ with |δ| ≤ n·eps/2·|X|ᵀ|u|
        in every place, for any θ and v of a bounded domain; proved again where that is much; [B].
        n are the task's own rows, without the padding of its stack.
        """
        xp, samples = namespace(slopes), self.samples
        simplex = isinstance(self.domain, Simplex)  # whose own diameter may be infinite
        wide = math.sqrt(2) * (1.0 if simplex else self.domain.diameter(samples.dim))
        if not math.isfinite(wide):
            return gap
        size = norm(replace(samples, X=xp.abs(samples.X)).gather(xp.abs(slopes)))
        rows = xp.sum(xp.astype(samples.weight > 0, slopes.dtype), axis=-1)
        size = (rows + 2) * wide * (size if self.eta is None else self.eta * size)
        hidden = float(xp.finfo(slopes.dtype).eps) * size
        matters = hidden > FAINT * xp.abs(value)
        if not bool(xp.any(matters)):
            return gap
        gap = xp.where(matters, gap + hidden, gap)
        doubtful = matters & (gap > ABSOLUTE / 10 * self.start(theta))
        if not bool(xp.any(doubtful)):
            return gap
        z = samples.margins(theta)
        sure = self._sure(theta, slopes, wide) + self._excess(z, slopes)
        if samples.loss.bend < math.inf:
            own = self._sure(theta, samples.loss.slope(z, samples.target), wide)
            sure = xp.minimum(sure, own)
        return xp.where(doubtful, sure + float(np.finfo(np.longdouble).eps) * size, gap)

    def _sure(self, theta: Array, u: Array, wide: float) -> Array:
        """The second bracket with q in NumPy's longest numbers, and what rounding q leaves; [B]."""
        long = [np.asarray(to_numpy(a), dtype=np.longdouble) for a in (u, self.samples.X)]
        q = np.asarray(long[0].swapaxes(-1, -2) @ long[1], dtype=np.float64)
        xp = namespace(theta)
        q = xp.reshape(xp.asarray(q, dtype=theta.dtype, device=device(theta)), theta.shape)
        rest = self._rest(theta, q)
        left = float(xp.finfo(q.dtype).eps) * wide * norm(q)
        left = left if self.eta is None else self.eta * left
        return xp.maximum(rest, xp.zeros_like(rest)) + left

    def rounding(self, theta: Array, z: Array, u: Array) -> Array:
        """What the value changes by when the margins' terms are rounded: no gap below it means
        anything; [B].
        """
        xp, samples = namespace(z), self.samples
        size = replace(samples, X=xp.abs(samples.X)).margins(xp.abs(theta), offset=False)
        if samples.offset is not None:
            size = size + xp.abs(samples.offset)
        total = dot(samples.weight, dot(xp.abs(u), size + xp.abs(u)))
        if self.phi is not None:
            pull = xp.abs(self.domain.mirror(theta) - self.domain.mirror(self.phi))
            total = self.eta * total + dot(pull, xp.abs(theta) + xp.abs(self.phi))
        return 4 * xp.finfo(z.dtype).eps * (total + xp.abs(self.value(theta, z)))


class Columns(NamedTuple):
    """What an unbounded problem needs to know of its X [B, n, f].

    A column counts as dependent where it is so up to the rounding of its entries.
    """

    size: Array  # [B, 1, f]: their sizes as powers of two, so that dividing by them is exact
    unit: Array  # [B, 1, f]: the same where the minimiser is unique, so that no scale changes it
    span: Array  # [B, n, r]: an orthonormal basis of their span, zero where there is none
    inverse: Array  # [B, f, n]: a pseudo-inverse of X / unit

    @classmethod
    def of(cls, X: Array, strict: bool = True) -> Columns:
        """The columns of X, by a singular value decomposition of X with columns of like size.

        ``strict``: the loss has one minimiser where the columns are independent.
        """
        xp: Any = namespace(X)
        n, f = X.shape[-2:]
        size = xp.max(xp.abs(X), axis=-2, keepdims=True)  # whose square could underflow
        size = xp.where(size > 0, size, xp.ones_like(size))
        size = full((), 2.0, X) ** xp.round(xp.log2(size))
        U, strength, V = xp.linalg.svd(X / size, full_matrices=False)
        real = strength > max(n, f) * xp.finfo(X.dtype).eps * strength[..., :1]
        span = xp.where(real[..., None, :], U, xp.zeros_like(U))
        weaker = span / xp.where(real, strength, xp.ones_like(strength))[..., None, :]
        unique = (xp.all(real, axis=-1) & (strict and n >= f))[..., None, None]
        unit = xp.where(unique, size, xp.ones_like(size))
        inverse = xp.matrix_transpose(xp.matmul(weaker, V) * (unit / size))
        return cls(size, unit, span, inverse)

    def refine(self, samples: Samples, theta: Array) -> Array:
        """Least squares: what nearly dependent columns left undone; samples are in these units."""
        for _ in range(2):  # the second time takes off what rounding left of the first
            error = samples.margins(theta) - samples.target
            theta = theta - namespace(theta).matmul(self.inverse, error)[..., 0]
        return theta
