"""Of many minimisers, the one of least norm: Tikhonov's limit, taken where it is still exact.

With a small weight ρ, the minimiser of F + ρ·B_R(·‖origin) is within O(ρ) of the minimiser of F nearest to the origin, and its
F is within O(ρ²) of the minimum (equal to it for losses with corners on boxes). So ρ = 1e-8 finds it to eight digits while F
moves in the sixteenth. What F lost is measured against the lower bound that the plain solution proved.

The origin is 0 where R = ½‖·‖², and the uniform distribution on the simplex.
"""

from __future__ import annotations

from fmrl.core.arrays import Array, namespace, zeros
from fmrl.core.gap import Objective
from fmrl.core.interior import interior

WEIGHT = 1e-8


def shortest(problem: Objective, theta: Array, value: Array, gap: Array, tol: float) -> tuple[Array, Array, Array]:
    """theta [B, d], value [B] and gap [B] of least norm, given any minimisers with their values and gaps."""
    xp, domain = namespace(theta), problem.domain
    origin = domain.middle(theta) if domain.norm == "l1" else zeros(theta.shape, theta)
    middle = domain.middle(theta)
    scale = xp.abs(problem.value(middle, problem.samples.margins(middle)))
    size = domain.divergence(theta, origin)
    known = (scale > 0) & (size > 0)
    eta = xp.where(known, size / xp.where(known, WEIGHT * scale, xp.ones_like(size)), xp.ones_like(size))
    near = interior(problem._replace(phi=origin, eta=eta), tol)[0]
    reached = problem.value(near, problem.samples.margins(near))
    lost = xp.maximum(reached - (value - gap), xp.zeros_like(gap))
    # Where the minimiser is unique the two agree up to the bias of ρ, and the plain solution has none.
    apart = domain.divergence(near, theta) > 1e-10 * size
    exact = known & apart & (lost <= xp.maximum(tol * xp.abs(value), 1e-13 * scale))
    return xp.where(exact[..., None], near, theta), xp.where(exact, reached, value), xp.where(exact, lost, gap)
