"""Of many minimisers, the one of least norm: Tikhonov's limit, taken where it is still exact.

With a small weight ρ, the minimiser of F + ρ·B_R(·‖origin) is within O(ρ) of the minimiser of F
nearest to the origin, and its F is within O(ρ²) of the minimum (equal to it for losses with corners
on boxes). So ρ = 1e-8 finds it to eight digits while F moves in the sixteenth. What F lost is
measured against the lower bound that the plain solution proved. The origin is 0 where R = ½‖·‖²,
and the uniform distribution on the simplex.
"""

from __future__ import annotations

from fmrl.core.arrays import namespace, zeros
from fmrl.core.solve.gap import ABSOLUTE, RELATIVE, Found, Method, Objective
from fmrl.core.solve.interior import interior

WEIGHT = 1e-8  # ρ, of F over B_R: its square is below rounding


def shortest(problem: Objective, found: Found) -> Found:
    """The minimisers of least norm, given any with their values and gaps."""
    theta, value, gap, slopes, method = found
    xp, domain = namespace(theta), problem.domain
    origin = domain.middle(theta) if domain.norm == "l1" else zeros(theta.shape, theta)
    spare = ABSOLUTE * problem.start(theta)
    size, known = domain.divergence(theta, origin), value > spare
    if problem.samples.loss.attained:  # the least value may be 0
        scale, known = spare / ABSOLUTE, spare > 0
    else:  # far below the start any action is as good, and a tiny F would drown in ρ·B_R
        scale, spare = value, xp.zeros_like(value)
    known = known & (size > 0)
    if not bool(xp.any(known)):
        return found
    eta = size / xp.where(known, WEIGHT * scale, xp.ones_like(size))
    eta = xp.where(known, eta, xp.ones_like(eta))
    near = interior(problem._replace(phi=origin, eta=eta), straight=True).theta
    reached = problem.value(near, problem.samples.margins(near))
    lost = xp.maximum(reached - (value - gap), xp.zeros_like(gap))
    # Where the minimiser is unique the two agree up to the bias of ρ, and the plain solution has
    # none.
    apart = domain.divergence(near, theta) > 1e-10 * size
    exact = known & apart & (lost <= xp.maximum(RELATIVE * xp.abs(value), spare))
    return Found(
        xp.where(exact[..., None], near, theta),
        xp.where(exact, reached, value),
        xp.where(exact, lost, gap),
        slopes,
        xp.where(exact, Method.LEAST_NORM.everywhere(value), method),
    )
