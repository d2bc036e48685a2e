"""The smallest ball that encloses a set of points, with a proof of how small it can be.

    min_c max_i ‖x_i − c‖²  =  max_{u in the simplex} Σ u_i‖x_i‖² − ‖Σ u_i·x_i‖²                      (Lagrangian duality)

Any centre gives an upper bound and any u a lower one. Frank–Wolfe on u with away steps (Yıldırım
2008) closes the gap linearly; now and then the sphere through the points with weight is tried as it
is, which ends the search exactly."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Enclosing(NamedTuple):
    """A ball that holds all points; the smallest one has a radius in [radius − gap, radius]."""

    centre: np.ndarray  # [d]
    radius: float
    gap: float


def enclosing_ball(points: np.ndarray, tolerance: float = 1e-9, steps: int = 20_000) -> Enclosing:
    """The smallest enclosing l2 ball of points [T, d], to a relative gap of ``tolerance`` if
    ``steps`` suffice.

    >>> ball = enclosing_ball(np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 0.5]]))
    >>> ball.centre.round(6), round(ball.radius, 6)
    (array([1., 0.]), 1.0)
    """
    origin = points.mean(axis=0)
    x = points - origin
    far = int(np.argmax(np.sum((x - x[np.argmax(np.sum(x**2, axis=1))]) ** 2, axis=1)))
    u = np.zeros(len(x))
    u[[far, int(np.argmax(np.sum((x - x[far]) ** 2, axis=1)))]] += 0.5
    best = Enclosing(np.zeros(x.shape[1]), np.inf, np.inf)
    proved = 0.0
    for k in range(steps):
        centre = u @ x
        square = np.sum((x - centre) ** 2, axis=1)
        dual = float(u @ square)  # = Σ u‖x‖² − ‖c‖², without the cancellation
        proved = max(proved, dual)
        best = _better(best, centre, square)
        if k % 25 == 0:
            guess, value = _sphere(x, u)
            proved = max(proved, value)
            best = _better(best, guess, np.sum((x - guess) ** 2, axis=1))
        if best.radius - np.sqrt(proved) <= tolerance * best.radius or dual <= 0:
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
    return Enclosing(
        best.centre + origin, best.radius, max(0.0, best.radius - float(np.sqrt(proved)))
    )


def _better(best: Enclosing, centre: np.ndarray, square: np.ndarray) -> Enclosing:
    radius = float(np.sqrt(square.max()))
    return Enclosing(centre, radius, np.inf) if radius < best.radius else best


def _sphere(x: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, float]:
    """The point equidistant from the weighted points in their affine hull, and what its weights
    prove (0 if one is < 0).
    """
    points = x[u > 1e-9]
    if len(points) < 2 or len(points) > 400:
        return u @ x, 0.0
    edges = points[1:] - points[0]
    weights = np.linalg.lstsq(2 * edges @ edges.T, np.sum(edges**2, axis=1), rcond=None)[0]
    weights = np.concatenate([[1 - weights.sum()], weights])
    centre = weights @ points
    if weights.min() < 0:
        return centre, 0.0
    return centre, float(weights @ np.sum((points - centre) ** 2, axis=1))
