"""Majorise–minimise in the eigenbasis: the fast solver for smooth losses on a ball (or on no bound
at all).

A loss with curvature ≤ bend lies below its quadratic model with Hessian M = eta·bend·XᵀX + 1
(Böhning & Lindsay), so minimising the model never goes up. After rotating the features so that XᵀX
is diagonal, M is diagonal and the same for every class, the ball's multiplier solves a scalar
equation, and one step costs two thin matrix products. Features beyond the samples' span fold into
one extra coordinate, so d may be huge. The error shrinks by a constant factor a step, and the
factor is small unless margins saturate; what has not converged in ``LIMIT`` steps is left to the
interior-point method.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fmrl.core.arrays import Array, dot, full, namespace, norm, zeros
from fmrl.core.domains import Ball, Domain, Euclidean
from fmrl.core.matrices import eigh
from fmrl.core.samples import Samples
from fmrl.core.solve.gap import Found, Method, Objective

LIMIT = 60  # steps, the price of about ten of the interior-point method
# Any model above *half* the curvature converges (steps below 2/L). Margins that are learned
# saturate, so for the logistic losses 0.6 of the bound needs the fewest steps.
BOLD = 0.6


class Rotation:
    """An orthonormal basis of the span of a stack's samples in which XᵀX is diagonal."""

    def __init__(self, samples: Samples, domain: Domain, phi: Array | None = None):
        xp, X = namespace(samples.X), samples.X
        n, f = X.shape[-2:]
        self.samples, self.domain = samples, domain
        self.basis, eig = _eigenbasis(X)
        # A direction that no sample sees must stay unseen: there the model is flat and rounding
        # would be magnified. (Its column of X is rounding; the eigenvalue, a square, could not tell
        # it from a faint feature.)
        X = xp.matmul(samples.X, self.basis)
        column = xp.sqrt(xp.sum(X * X, axis=-2, keepdims=True))
        faint = 16 * math.sqrt(n) * xp.finfo(X.dtype).eps * xp.max(column, axis=-1, keepdims=True)
        self.X = xp.where(column > faint, X, xp.zeros_like(X))
        # Rounding moves small eigenvalues by eps·max; adding that much keeps the model above the
        # loss.
        self.eig = xp.maximum(eig, xp.zeros_like(eig)) + 4 * xp.finfo(eig.dtype).eps * eig[..., -1:]
        self.energy: Any = None  # [B, n, r]: diagonal of XᵀX after each round, made when asked for
        self.centre, self.offset = None, samples.offset
        if isinstance(domain, Ball) and domain.centre != 0.0:
            self.centre = domain.middle(zeros((X.shape[0], samples.dim), X))
            self.offset = samples.margins(self.centre)
        # [B, d]: unit vector along what no sample sees of phi, the last coordinate.
        self.rest = None
        if n < f and phi is not None:
            self.rest = self._remainder(phi)
            self.X = xp.concat([self.X, zeros((*self.X.shape[:-1], 1), X)], axis=-1)
            self.eig = xp.concat([self.eig, zeros((*eig.shape[:-1], 1), eig)], axis=-1)
        self.phi = None if phi is None else self.down(phi)

    def objective(self, length: int, eta: Array | None) -> tuple[Objective, Array]:
        """The problem of the first ``length`` rounds in the new coordinates, and the diagonal
        curvature of its model.
        """
        xp, loss = namespace(self.X), self.samples.loss
        samples = replace(self.samples, X=self.X, offset=self.offset).first(length)
        domain = Ball(self.domain.radius) if isinstance(self.domain, Ball) else Euclidean()
        problem = Objective(samples, domain, self.phi, eta)
        scale = loss.bend if eta is None else loss.bend * eta[..., None]
        if length == self.X.shape[-2]:
            return problem, (1.0 if loss.attained else BOLD) * scale * self.eig
        # bend·eta·diag(XᵀX) of the rounds seen, and at least what keeps twice the model above the
        # loss.
        if self.energy is None:
            self.energy = xp.cumulative_sum(self.X**2, axis=-2)
        least = (scale * self.eig - (0 if eta is None else 1)) / 2
        return problem, xp.maximum(scale * self.energy[..., length - 1, :], least)

    def down(self, theta: Array) -> Array:
        """theta [B, C·f] in the new coordinates; what lies outside the span is along phi's own
        remainder.
        """
        xp = namespace(theta)
        theta = theta if self.centre is None else theta - self.centre
        inside = xp.matmul(self.samples.matrix(theta), self.basis)
        if self.rest is not None:
            column = zeros((*inside.shape[:-1], 1), inside)
            column[..., 0, 0] = dot(theta, self.rest)
            inside = xp.concat([inside, column], axis=-1)
        return xp.reshape(inside, (inside.shape[0], -1))

    def up(self, v: Array) -> Array:
        """Back to the original coordinates."""
        xp, r = namespace(v), self.basis.shape[-1]
        inside = xp.reshape(v, (v.shape[0], self.samples.loss.outputs, -1))
        theta = xp.matmul(inside[..., :r], xp.matrix_transpose(self.basis))
        theta = xp.reshape(theta, (v.shape[0], -1))
        if self.rest is not None:
            theta = theta + inside[..., 0, r:] * self.rest
        if self.centre is None:
            return theta
        return theta + self.centre - (0 if self.phi is not None else self._needless(v))

    def _needless(self, v: Array) -> Array:
        """What least norm can take off the centre: its part that no sample sees, as far as the ball
        allows; [B, d].
        """
        xp, radius = namespace(v), self.domain.radius  # type: ignore[attr-defined]
        seen = xp.astype(xp.any(self.X != 0, axis=-2, keepdims=True), v.dtype) * self.basis
        hidden = self._outside(self.centre, seen)
        room = 1 - dot(v, v) / radius**2
        room = xp.where(room > 1e-12, room, xp.zeros_like(room))  # less is the sphere, rounded
        share = radius * xp.sqrt(room) / (norm(hidden) + 1e-290)
        return xp.minimum(share, xp.ones_like(share))[..., None] * hidden

    def _outside(self, theta: Array, basis: Array) -> Array:
        """theta less its part in the span of ``basis``, class by class; [B, d]."""
        xp = namespace(theta)
        inside = xp.matmul(self.samples.matrix(theta), basis)
        return theta - xp.reshape(xp.matmul(inside, xp.matrix_transpose(basis)), theta.shape)

    def _remainder(self, phi: Array) -> Array:
        """Unit vector along the part of phi that no sample sees (zero if there is none)."""
        xp = namespace(phi)
        # Taken off twice: of a phi inside the span the first time leaves rounding, which points
        # anywhere, and the second says so.
        once = self._outside(phi if self.centre is None else phi - self.centre, self.basis)
        rest = self._outside(once, self.basis)
        length = norm(rest)[..., None]
        real = length > norm(once)[..., None] / 2
        unit = rest / xp.where(real, length, xp.ones_like(length))
        return xp.where(real, unit, xp.zeros_like(rest))


def _eigenbasis(X: Array) -> tuple[Array, Array]:
    """Orthonormal eigenvectors [B, f, r] of XᵀX, r = min(n, f), and their eigenvalues [B, r]."""
    xp, (n, f) = namespace(X), X.shape[-2:]
    XT = xp.matrix_transpose(X)
    if n >= f:
        eig, V = eigh(xp.matmul(XT, X))
        return V, eig
    # The eigenvectors of XXᵀ are the other side of X's, if rounding leaves them.
    eig, V = eigh(xp.matmul(X, XT))
    if bool(xp.all(eig[..., 0] > 1e-4 * eig[..., -1])):
        return xp.matmul(XT, V) / xp.sqrt(eig)[..., None, :], eig
    Q, _ = xp.linalg.qr(XT)
    X = xp.matmul(X, Q)
    eig, V = eigh(xp.matmul(xp.matrix_transpose(X), X))
    return xp.matmul(Q, V), eig


def descend(problem: Objective, still: float) -> Found:
    """Majorise without a rotation, which is projected gradient descent; what shrinks slowly is
    given up at once.

    With multiplier λ and curvatures h of the loss, a step of 1/s shrinks the error by |s − h|/(s +
    λ): fast when the ball holds back far more than the loss bends, as it does on a small ball. s =
    bend·‖XᵀX‖_F/2 is safe, for 2s ≥ h.
    """
    samples, X = problem.samples, problem.samples.X
    xp = namespace(X)
    gram = xp.reshape(xp.matmul(xp.matrix_transpose(X), X), (X.shape[0], -1))
    start = zeros((X.shape[0], samples.dim), X)
    bend = samples.loss.bend / 2 * norm(gram)[..., None]
    found = majorise(problem, bend, start, still, pace=0.45)
    return found._replace(method=Method.DESCENT.everywhere(found.value))


def majorise(
    problem: Objective, curvature: Array, v: Array, still: float, pace: float = math.inf
) -> Found:
    """Step from v [B, C·r] until a step is below ``still``·‖v‖, or longer than ``pace`` times the
    one before; the gap is infinite where it was given up.

    curvature: [B, r] or [B, 1], of the model.
    """
    samples, phi, eta = problem.samples, problem.phi, problem.eta
    xp, count = namespace(v), (v.shape[0],)
    wide = (v.shape[0], samples.loss.outputs, samples.X.shape[-1])
    radius = problem.domain.radius if isinstance(problem.domain, Ball) else math.inf
    model = curvature + (1e-150 if phi is None else 1.0)  # whose square does not vanish
    multiplier, step = zeros(count, v), full(count, math.inf, v)
    done = slow = step < 0
    noise = max(still, 4e6 * xp.finfo(v.dtype).eps)
    for i in range(LIMIT):
        z = samples.margins(v)
        q = samples.gather(samples.loss.slope(z, samples.target))
        pull = q if eta is None else eta[..., None] * q - phi
        target = curvature[..., None, :] * xp.reshape(v, wide) - xp.reshape(pull, wide)
        multiplier = _multiplier(xp.sum(target * target, axis=-2), model, radius, multiplier)
        new = xp.reshape(target / (model + multiplier[..., None])[..., None, :], v.shape)
        before, step = step, norm(new - v)
        v = xp.where(done[..., None], v, new) if bool(xp.any(done)) else new
        size = norm(v)
        # A tiny step that no longer shrinks is rounding noise.
        done = done | (step <= still * size) | ((step >= 0.9 * before) & (step <= noise * size))
        if i > 2 and pace < math.inf:
            slow = slow | (~done & (step > pace * before))
            done = done | slow
        if bool(xp.all(done)):
            break
    v = problem.domain.project(v)
    z = samples.margins(v)
    u = samples.loss.slope(z, samples.target)
    value, gap = problem.value(v, z), problem.gap(v, z, u, own=True)
    gap = xp.where(slow | ~done, xp.full_like(gap, math.inf), gap)
    return Found(v, value, gap, u, Method.MAJORISE.everywhere(value))


def _multiplier(square: Array, model: Array, radius: float, start: Array) -> Array:
    """λ ≥ 0 with Σ square/(model + λ)² = radius² (0 if the sum is less at λ = 0): Newton on 1/‖·‖;
    shapes [B, r] to [B].
    """
    xp = namespace(square)
    if radius == math.inf:
        return start
    inside = xp.sum(square / model**2, axis=-1) <= radius**2
    if bool(xp.all(inside)):
        return xp.zeros_like(start)
    multiplier = start
    for _ in range(40):
        shifted = model + multiplier[..., None]
        terms = square / shifted**2
        length2 = xp.sum(terms, axis=-1)
        excess = xp.sqrt(length2) / radius - 1
        if bool(xp.all(inside | (xp.abs(excess) <= 1e-14))):
            break
        change = excess * length2 / (xp.sum(terms / shifted, axis=-1) + 1e-290)
        multiplier = xp.maximum(multiplier + change, xp.zeros_like(change))
    return xp.where(inside, xp.zeros_like(multiplier), multiplier)
