"""Of many minimisers, the one of least norm: Tikhonov's limit, taken where it is still exact.

With a small weight ρ, the minimiser of F + ρ·B_R(·‖origin) is within O(ρ) of the minimiser of F
nearest to the origin, and its F is within O(ρ²) of the minimum (equal to it for losses with corners
on boxes). So ρ = 1e-8 finds it to eight digits while F moves in the sixteenth. What F lost is
measured against the lower bound that the plain solution proved.

Logistic losses may be many orders below those at the start. There F is replaced by its parabola
around the solution in units of its value, which has the same minimisers: those with the same
margins.

The origin is 0 where R = ½‖·‖², and the uniform distribution on the simplex.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from fmrl.core.arrays import Array, dot, full, namespace, zeros
from fmrl.core.losses import Loss
from fmrl.core.samples import Samples
from fmrl.core.solve.gap import TINY, Objective
from fmrl.core.solve.interior import interior

WEIGHT = 1e-8


def shortest(
    problem: Objective, theta: Array, value: Array, gap: Array, tol: float
) -> tuple[Array, Array, Array]:
    """theta [B, d], value [B] and gap [B] of least norm, given any minimisers with their values and
    gaps.
    """
    xp, domain = namespace(theta), problem.domain
    origin = domain.middle(theta) if domain.norm == "l1" else zeros(theta.shape, theta)
    if problem.samples.loss.attained:
        middle, model = domain.middle(theta), problem
        scale = xp.abs(problem.value(middle, problem.samples.margins(middle)))
        spare = 1e-13 * scale
    else:
        model, scale = (
            problem._replace(samples=_parabola(problem.samples, theta, value)),
            xp.ones_like(value),
        )
        spare = zeros(value.shape, value)
    size = domain.divergence(theta, origin)
    known = (scale > 0) & (size > 0)
    eta = xp.where(
        known, size / xp.where(known, WEIGHT * scale, xp.ones_like(size)), xp.ones_like(size)
    )
    near = interior(model._replace(phi=origin, eta=eta), tol).theta
    reached = problem.value(near, problem.samples.margins(near))
    lost = xp.maximum(reached - (value - gap), xp.zeros_like(gap))
    # Where the minimiser is unique the two agree up to the bias of ρ, and the plain solution has
    # none.
    apart = domain.divergence(near, theta) > 1e-10 * size
    exact = known & apart & (lost <= xp.maximum(tol * xp.abs(value), spare))
    return (
        xp.where(exact[..., None], near, theta),
        xp.where(exact, reached, value),
        xp.where(exact, lost, gap),
    )


def _parabola(samples: Samples, theta: Array, value: Array) -> Samples:
    """Samples whose losses are the second-order expansion of these around theta, divided by
    ``value``.
    """
    xp, z = namespace(theta), samples.margins(theta)
    unit = xp.maximum(value, xp.full_like(value, TINY))[..., None, None]
    slope, bent = samples.loss.slope(z, samples.target), samples.loss.curvature(z, samples.target)
    around = samples.margins(theta, offset=False)
    target = xp.concat([slope, xp.reshape(bent, (*z.shape[:-1], -1))], axis=-1)
    target = (
        target * samples.weight[..., None] / unit
    )  # padding has slopes too, which a tiny unit would blow up
    return replace(
        samples,
        loss=_Parabola(samples.loss.outputs, samples.loss.coupled),
        target=target,
        offset=-around,
    )


@dataclass(frozen=True)
class _Parabola(Loss):
    """ℓ = ⟨a, z⟩ + ½⟨z, Az⟩ with target (a, A); A is diagonal, or a full matrix when ``coupled``."""

    outputs: int
    coupled: bool  # type: ignore[misc]
    bend: ClassVar[float] = 0.25
    lowest: ClassVar[float] = -math.inf

    def encode(self, y, like):
        return like

    def value(self, z, target):
        return dot(z, (target[..., : self.outputs] + self.slope(z, target)) / 2)

    def slope(self, z, target):
        xp, a, A = namespace(z), target[..., : self.outputs], self.curvature(z, target)
        return a + (xp.matmul(A, z[..., None])[..., 0] if self.coupled else A * z)

    def curvature(self, z, target):
        A = target[..., self.outputs :]
        return namespace(z).reshape(A, (*z.shape, self.outputs)) if self.coupled else A

    def conjugate(self, u, target):
        """Not asked for: a parabola's slopes are exact, so that what a step foretells proves no
        more.
        """
        return full(u.shape[:-1], math.inf, u)
