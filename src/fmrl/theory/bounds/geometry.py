"""The constants of a set of points that the theorems need: D*, D̄, the Lipschitz constant of B_R on
their hull, C and β; and the smallest ball around them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.domains import Domain, Simplex
from fmrl.errors import FMRLError
from fmrl.theory.bounds.bound import nonnegative, numbers

MANY = 6000  # points; of more, D* is bounded rather than computed over all pairs


@dataclass(frozen=True)
class Spread:
    """How far points lie from each other in the geometry of a domain, weighted by sigma.

    Args:
        diameter: D*, the largest sqrt(B_R) over the hull of the points.
        deviation: D̄, the root of the weighted mean of B_R(point‖mean).
        lipschitz: G' of B_R(point‖·) on the hull, in the domain's norm.
        width: Diameter of the hull in the domain's norm.
        C: Constant of the moving mean, see `meta_regret`.
        beta: Smoothness of R on the domain.
        nice: Whether B_R(θ‖·) is 1-strongly convex.
        tight: Whether D* was computed over all pairs; otherwise it is an upper bound.
        mean: Weighted mean, [d].
    """

    diameter: float
    deviation: float
    lipschitz: float
    width: float
    C: float
    beta: float
    nice: bool
    tight: bool
    mean: np.ndarray

    @property
    def bounded(self) -> bool:
        """Whether B_R is finite and Lipschitz on the hull."""
        return math.isfinite(self.diameter) and math.isfinite(self.lipschitz)


def spread(domain: Domain, points: Any, sigma: Any = 1.0) -> Spread:
    """D*, D̄, G', C and β of points. B_R is jointly convex, so pairs of points decide for the hull.

    Args:
        domain: Ball, Box, Euclidean or Simplex.
        points: [T, d].
        sigma: Weights, a number or [T].

    >>> from fmrl.core.domains import Ball
    >>> s = spread(Ball(1.0), [[0.0, 0.0], [1.0, 0.0]])
    >>> round(s.diameter, 6), round(s.deviation, 6), s.lipschitz, s.C
    (0.707107, 0.353553, 1.0, 0.5)
    """
    points = numbers(points)
    if points.ndim != 2 or not len(points):
        raise FMRLError(f"points must have shape [tasks, d], not {points.shape}")
    weight = np.broadcast_to(nonnegative(sigma, "sigma"), (len(points),))
    weight = weight if weight.sum() > 0 else np.ones(len(points))
    mean = weight @ points / weight.sum()
    tight = len(points) <= MANY
    deviation = math.sqrt(float(weight @ domain.divergence(points, mean)) / float(weight.sum()))
    if isinstance(domain, Simplex):
        return _entropic(domain, points, mean, deviation, tight)
    if domain.norm != "l2":
        fix = "use Ball, Box, Euclidean or Simplex"
        raise FMRLError(f"no constants are known for {domain!r}", fix=fix)
    if tight:
        width = _widest(points)
    else:
        width = 2 * float(np.max(np.linalg.norm(points - mean, axis=1)))
        if np.all(domain.contains(points)):
            width = min(width, math.sqrt(2) * domain.diameter(points.shape[1]))
    D = width / math.sqrt(2)
    # D̄ ≤ D* always; only rounding can make it larger.
    return Spread(D, min(deviation, D), width, width, width**2 / 2, 1.0, True, tight, mean)


def _largest(points: np.ndarray, rows: int, pairs: Callable) -> tuple[float, int, int]:
    """The largest of ``pairs(block of points)`` [rows, T] over all blocks, and where it is."""
    best = (-math.inf, 0, 0)
    for i in range(0, len(points), rows):
        values = pairs(slice(i, i + rows))
        row, column = divmod(int(np.argmax(values)), len(points))
        best = max(best, (float(values[row, column]), i + row, column), key=lambda found: found[0])
    return best


def _widest(points: np.ndarray) -> float:
    """Largest l2 distance between two points."""
    centred = points - points.mean(axis=0)
    square = np.sum(centred**2, axis=1)
    expanded = lambda at: square[at, None] + square - 2 * centred[at] @ centred.T  # noqa: E731
    _, i, j = _largest(points, 512, expanded)
    # The expansion loses digits but finds the pair, whose distance is at least the largest norm;
    # the distance itself is computed afresh.
    return float(np.linalg.norm(points[i] - points[j]))


def _entropic(
    domain: Simplex, points: np.ndarray, mean: np.ndarray, deviation: float, tight: bool
) -> Spread:
    low, high = points.min(axis=0), points.max(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        safe = np.where(points > 0, np.log(points), 0.0)
        own = np.sum(points * safe, axis=1)
        if np.any((low == 0) & (high > 0)):
            largest = math.inf
        elif tight:
            largest = _largest(points, 512, lambda at: own[at, None] - points[at] @ safe.T)[0]
        else:
            largest = float(np.max(own - points @ np.where(low > 0, np.log(low), 0.0)))
        ratio = np.where(high > 0, points / low, 0.0)
        least = np.where(high > 0, points / np.where(high > 0, high, 1.0), 0.0)
        lipschitz = float(np.max(ratio.max(axis=1) - least.min(axis=1))) / 2
    if tight:
        apart = lambda at: np.sum(np.abs(points[at, None] - points), axis=-1)  # noqa: E731
        width = _largest(points, max(1, (1 << 22) // points.size), apart)[0]
    else:
        width = float(min(2.0, np.sum(high - low)))
    lipschitz = lipschitz if math.isfinite(lipschitz) else math.inf
    D = math.sqrt(max(0.0, largest) + 64 * np.finfo(float).eps) if width else 0.0
    C = 0.0 if width == 0 else lipschitz * width
    beta = max(1.0, 1 / (2 * domain.floor) if domain.floor > 0 else math.inf)
    return Spread(D, min(deviation, D), lipschitz, width, C, beta, False, tight, mean)


def distance(domain: Domain, a: Any, b: Any) -> np.ndarray:
    """½‖a − b‖² in the domain's norm, [T].

    Args:
        domain: Whose norm.
        a: Points, [T, d].
        b: Points, [T, d].

    >>> from fmrl.core.domains import Simplex
    >>> distance(Simplex(), [[1.0, 0.0]], [[0.0, 1.0]])
    array([2.])
    """
    order = 1 if domain.norm == "l1" else 2
    return np.linalg.norm(numbers(a) - numbers(b), ord=order, axis=-1) ** 2 / 2


class Enclosing(NamedTuple):
    """A ball that holds all points; the smallest one has a radius in [radius − gap, radius]."""

    centre: np.ndarray  # [d]
    radius: float
    gap: float


def enclosing_ball(points: np.ndarray, tolerance: float = 1e-9, steps: int = 20_000) -> Enclosing:
    """The smallest enclosing l2 ball of points, with a proof of how small it can be.

        min_c max_i ‖x_i − c‖²  =  max_{u in the simplex} Σ u_i‖x_i‖² − ‖Σ u_i·x_i‖²

    Any centre gives an upper bound and any u a lower one. Frank–Wolfe on u with away steps
    (Yıldırım 2008) closes the gap linearly; now and then the sphere through the points with weight
    is tried as it is, which ends the search exactly.

    Args:
        points: [T, d].
        tolerance: Relative gap to reach.
        steps: Steps at most.

    >>> ball = enclosing_ball(np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 0.5]]))
    >>> ball.centre.round(6), round(ball.radius, 6)
    (array([1., 0.]), 1.0)
    """
    origin = points.mean(axis=0)
    x = points - origin
    far = int(np.argmax(np.sum((x - x[np.argmax(np.sum(x**2, axis=1))]) ** 2, axis=1)))
    u = np.zeros(len(x))
    u[[far, int(np.argmax(np.sum((x - x[far]) ** 2, axis=1)))]] += 0.5
    best, radius, proved = origin, math.inf, 0.0
    for k in range(steps):
        centre = u @ x
        square = np.sum((x - centre) ** 2, axis=1)
        dual = float(u @ square)  # = Σ u‖x‖² − ‖c‖², without the cancellation
        tried = [(centre, square, dual)] + ([_sphere(x, u)] if k % 25 == 0 else [])
        for c, squares, value in tried:
            proved, found = max(proved, value), float(np.sqrt(squares.max()))
            best, radius = (c, found) if found < radius else (best, radius)
        if radius - np.sqrt(proved) <= tolerance * radius or dual <= 0:
            break
        i, j = int(np.argmax(square)), int(np.argmin(np.where(u > 0, square, np.inf)))
        out, back = square[i] / dual - 1, 1 - square[j] / dual
        if out > back:
            step = out / (2 * (1 + out))
            u *= 1 - step
            u[i] += step
        else:
            limit = u[j] / (1 - u[j]) if u[j] < 1 else np.inf
            step = min(back / (2 * (1 - back)) if back < 1 else np.inf, limit)
            u *= 1 + step
            u[j] = 0.0 if step == limit else u[j] - step
    return Enclosing(best + origin, radius, max(0.0, radius - float(np.sqrt(proved))))


def _sphere(x: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """The point of their affine hull that is equidistant from the weighted points, its squared
    distances to all points, and what its weights prove (0 if one is negative)."""
    points, centre, value = x[u > 1e-9], u @ x, 0.0
    if 2 <= len(points) <= 400:
        edges = points[1:] - points[0]
        weight = np.linalg.lstsq(2 * edges @ edges.T, np.sum(edges**2, axis=1), rcond=None)[0]
        weight = np.concatenate([[1 - weight.sum()], weight])
        centre = weight @ points
        if weight.min() >= 0:
            value = float(weight @ np.sum((points - centre) ** 2, axis=1))
    return centre, np.sum((x - centre) ** 2, axis=1), value
