"""A primal–dual interior-point method: the robust solver, for any convex loss (corners included) on
any domain.

It walks the central path (`path`) and keeps the action whose gap is least. The gap is that of the
problem itself, proved by the slopes at theta or by those that the Newton step foretold, which
balance the constraints better than rounding lets theta do."""

from __future__ import annotations

import math
from typing import NamedTuple

from fmrl.core.arrays import Array, full, namespace
from fmrl.core.solve.central_path import Path
from fmrl.core.solve.gap import Objective

LIMIT = 400


class Found(NamedTuple):
    """What the interior-point method ends with."""

    theta: Array  # [B, d]
    value: Array  # [B]
    gap: Array  # [B]
    slopes: Array  # [B, n, outputs]: those that prove the gap
    done: Array  # [B]: whether it converged


def interior(problem: Objective, tol: float) -> Found:
    """Minimise until the gap is ``tol`` of the value, and on until rounding ends it."""
    path = Path(problem)
    xp = namespace(path.theta)
    best, value, gap = (
        path.theta,
        full(path.batch, math.inf, path.theta),
        full(path.batch, math.inf, path.theta),
    )
    slopes = xp.zeros_like(problem.samples.margins(best))
    if problem.phi is not None:
        value, gap, slopes = problem.home()
        best = xp.where((gap < math.inf)[..., None], problem.phi, best)
    floor, stalled, finished, done = (
        xp.zeros_like(value),
        xp.zeros_like(value),
        value < 0,
        value < 0,
    )
    least = xp.full_like(gap, math.inf)  # gap of the path
    for _ in range(LIMIT):
        theta, new_value, new_gap, new_floor, new_slopes = _certificate(path)
        better = (
            (new_gap < gap) | (new_value < value) & (gap == math.inf)
        ) & ~finished  # a finished one keeps its answer
        waited = xp.where(
            path.length > 0.4, xp.ones_like(stalled), full((), 0.25, stalled)
        )  # short steps may be on their way
        stalled = xp.where(
            (new_gap < 0.9 * least) | path.hot, xp.zeros_like(stalled), stalled + waited
        )
        least = xp.minimum(least, new_gap)
        best = xp.where(better[..., None], theta, best)
        slopes = xp.where(better[..., None, None], new_slopes, slopes)
        value, gap, floor = (
            xp.where(better, *pair)
            for pair in ((new_value, value), (new_gap, gap), (new_floor, floor))
        )
        # Past the tolerance there is more to gain (theta is only as exact as √gap), until rounding
        # stops the descent.
        proved = problem.proved(value, gap)
        enough = proved <= tol * xp.abs(value)
        done = done & finished | (enough | (proved <= floor)) & ~finished
        finished = finished | enough & ((stalled >= 3) | (proved <= floor)) | (stalled >= 15)
        if bool(xp.all(finished)):
            break
        path.advance()
    return Found(best, value, problem.proved(value, gap), slopes, done)


def _certificate(path: Path) -> tuple[Array, Array, Array, Array, Array]:
    """An action, its value, gap (infinite while the path is hot) and rounding [B], and the slopes
    that prove the gap.
    """
    xp, problem, samples, theta = path.xp, path.problem, path.problem.samples, path.theta
    z = samples.margins(theta)
    u = path.curve.slope(z)
    value, path.gap = problem.value(theta, z), problem.gap(theta, z, u, samples.gather(u))
    path.floor = problem.rounding(theta, z, u)
    path.noise = path.floor / path.unit(theta)
    gap = xp.where(path.hot, full((), math.inf, value), path.gap)
    if path.foretold is not None:
        other = problem.bound(theta, z, path.foretold)
        closer = ~path.hot & (other < gap)
        gap, u = xp.where(closer, other, gap), xp.where(closer[..., None, None], path.foretold, u)
        path.gap = xp.where(closer, gap, path.gap)
    floor = path.floor
    if problem.phi is not None:
        near, near_value, near_gap, z = problem.answered(u)
        closer = ~path.hot & (near_gap < gap)
        theta = xp.where(closer[..., None], near, theta)
        value, gap = xp.where(closer, near_value, value), xp.where(closer, near_gap, gap)
        floor = xp.where(closer, problem.rounding(near, z, u), floor)
    return theta, value, gap, floor, u
