"""The smallest ball around points, with a proof of how small it can be."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


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
