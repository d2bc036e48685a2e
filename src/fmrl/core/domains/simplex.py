"""The probability simplex with the entropic regulariser: learning with experts from a prior phi."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fmrl.core.arrays import Array, device, full, namespace
from fmrl.core.checks import number
from fmrl.core.domains.base import Domain
from fmrl.errors import FMRLError


@dataclass(frozen=True)
class Simplex(Domain):
    """The probability simplex {θ ≥ floor, Σθ = 1} with the entropic R = ⟨θ, log θ⟩; B_R is the KL
    divergence.

    Args:
        floor: The least mass of an expert, in [0, 1/d). Above 0 the divergence is bounded and
            Lipschitz on the set, as the paper's bounds require; with 0 a phi that gives an expert
            no mass can be infinitely far from an optimum.

    >>> import numpy as np
    >>> Simplex().argmin(np.array([0.5, 0.5]), np.array([np.log(3.0), 0.0]))
    array([0.25, 0.75])
    """

    floor: float = 0.0
    norm: str = field(default="l1", init=False, repr=False)

    def __post_init__(self):
        if not 0 <= number(self.floor) < 1:
            raise FMRLError(f"Simplex floor must lie in [0, 1/d), not {self.floor!r}")

    @property
    def additive(self) -> bool:  # type: ignore[override]
        """Whether no floor lifts what a step has made small, so that logarithms just add up."""
        mine = type(self).argmin is Simplex.argmin and type(self).project is Simplex.project
        return mine and self.floor == 0

    def _room(self, dim: int) -> float:
        """The mass left after every coordinate has its floor."""
        room = 1.0 - self.floor * dim
        if room <= 0:
            what = f"Simplex floor {self.floor} leaves no mass in {dim} dimensions"
            raise FMRLError(what, fix=f"use less than 1/{dim}")
        return room

    def divergence(self, theta, phi):
        xp = namespace(theta, phi)
        one = full((), 1.0, theta)
        ratio = xp.log(xp.where(theta > 0, theta, one)) - xp.log(xp.where(phi > 0, phi, one))
        infinite = xp.where(phi > 0, xp.zeros_like(phi), full((), math.inf, phi))
        # + phi − theta sums to zero on the simplex; it keeps every term non-negative, so rounding
        # cannot make a divergence < 0.
        terms = xp.where(theta > 0, theta * ratio + infinite, xp.zeros_like(theta)) + phi - theta
        # Near phi the terms cancel to the second order: phi·((1 + x)·log(1 + x) − x) with x =
        # theta/phi − 1 has all its digits.
        near = xp.abs(theta - phi) < 0.1 * phi
        x = xp.where(near, (theta - phi) / xp.where(near, phi, one), xp.zeros_like(phi))
        series = x * x * (1 / 2 - x * (1 / 6 - x * (1 / 12 - x * (1 / 20 - x / 30))))
        exact = xp.where(xp.abs(x) < 1e-3, series, (1 + x) * xp.log1p(x) - x)
        terms = xp.where(near, phi * exact, terms)
        total = xp.sum(terms, axis=-1)
        return xp.maximum(total, xp.zeros_like(total))

    def mirror(self, theta):
        return namespace(theta).log(_positive(theta))

    def metric(self, theta):
        return 1 / _positive(theta)

    def dual(self, gradient):
        xp = namespace(gradient)
        return xp.max(xp.abs(gradient), axis=-1)

    def argmin(self, phi, z):
        xp, some = namespace(phi, z), phi > 0
        log = xp.log(xp.where(some, phi, full((), 1.0, phi)))
        log = xp.where(some, log, full((), -math.inf, phi)) - z
        return self.project(xp.exp(log - xp.max(log, axis=-1, keepdims=True)))

    def project(self, theta):
        """KL projection of a non-negative vector: normalise, then lift what is below the floor."""
        xp = namespace(theta)
        theta = theta / xp.sum(theta, axis=-1, keepdims=True)
        dim = theta.shape[-1]
        self._room(dim)
        if self.floor == 0:
            return theta
        # The projection is max(floor, τ·theta); with the k largest free, τ = (1 − (d − k)·floor) /
        # (their sum).
        descending = xp.sort(theta, axis=-1, descending=True)
        free = xp.arange(1, dim + 1, dtype=theta.dtype, device=device(theta))
        tau = (1 - (dim - free) * self.floor) / xp.cumulative_sum(descending, axis=-1)
        k = xp.sum(xp.astype(tau * descending > self.floor, theta.dtype), axis=-1, keepdims=True)
        tau = xp.sum(xp.where(free == k, tau, xp.zeros_like(tau)), axis=-1, keepdims=True)
        return xp.maximum(tau * theta, full((), self.floor, theta))

    def lowest(self, z):
        xp = namespace(z)
        best = xp.astype(z == xp.min(z, axis=-1, keepdims=True), z.dtype)
        return self.floor + self._room(z.shape[-1]) * best / xp.sum(best, axis=-1, keepdims=True)

    def middle(self, like):
        return full(like.shape, 1.0 / like.shape[-1], like)

    def reach(self, phi):
        xp = namespace(phi)
        dim = phi.shape[-1]
        top = self.floor + self._room(dim)
        if self.floor == 0:
            if not bool(xp.all(phi > 0)):
                return full(phi.shape[:-1], math.inf, phi)
            return xp.sqrt(-xp.log(xp.min(phi, axis=-1)))
        # KL is convex in its first argument, so the maximum is at a vertex: `top` on one
        # coordinate, the floor on the rest.
        at_floor = self.floor * (math.log(self.floor) - xp.log(phi))
        at_top = top * (math.log(top) - xp.log(phi))
        vertices = xp.sum(at_floor, axis=-1, keepdims=True) - at_floor + at_top
        return xp.sqrt(xp.max(vertices, axis=-1))

    def diameter(self, dim):
        top = self.floor + self._room(dim)
        if self.floor == 0:
            return math.inf
        return math.sqrt((top - self.floor) * math.log(top / self.floor))

    def contains(self, theta, slack=1e-6):
        xp = namespace(theta)
        above = xp.all(theta >= self.floor - slack / theta.shape[-1], axis=-1)
        return above & (xp.abs(xp.sum(theta, axis=-1) - 1) <= slack)

    def face(self, phi):
        """The experts to which phi gives mass; no other can ever get any."""
        return self if bool(namespace(phi).all(phi > 0)) else _Face(self.floor, phi > 0)

    def slack(self, theta):
        return theta - self.floor

    def pull(self, theta, weight):
        return weight

    def push(self, step):
        return step

    def stiffness(self, theta, multiplier, ratio):
        return ratio

    def tangent(self, theta, gradient):
        return gradient - namespace(gradient).mean(gradient, axis=-1, keepdims=True)

    def border(self, theta):
        return "equality", namespace(theta).ones_like(theta)


@dataclass(frozen=True)
class _Face(Simplex):
    """The face of those experts to which phi gives mass, for each problem of a stack. The others
    stay at 0, where the curvature of R holds them, and a constant stands for their constraint.
    """

    alive: Array = True  # [B, d]

    def middle(self, like):
        xp = namespace(like)
        return self.project(xp.astype(self.alive, like.dtype) + xp.zeros_like(like))

    def slack(self, theta):
        return namespace(theta).where(self.alive, theta, full((), 1.0, theta))

    def retract(self, theta, step):
        moved = theta + step
        return namespace(theta).where(self.alive, moved, full((), 0.0, theta))


def _positive(theta: Array) -> Array:
    """theta with zeros lifted to where their logarithm exists."""
    return namespace(theta).maximum(theta, full((), 1e-300, theta))
