"""The constants of a set of points that the theorems speak of: D*, D̄, the Lipschitz constant of
B_R on their hull, C, β.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fmrl.core.domains import Domain, Simplex
from fmrl.errors import FMRLError
from fmrl.theory.bounds.bound import numbers, vector

BLOCK, MANY = 512, 6000


@dataclass(frozen=True)
class Spread:
    """How far points [T, d] lie from each other in the geometry of a domain, weighted by sigma."""

    diameter: float  # D* = max sqrt(B_R) over the hull of the points
    deviation: float  # D̄ = sqrt of the weighted mean of B_R(point‖mean)
    lipschitz: float  # G': of B_R(point‖·) on the hull, in the domain's norm
    width: float  # diameter of the hull in the domain's norm
    C: float  # constant of the moving mean, see `meta_regret`
    beta: float  # smoothness of R on the domain
    nice: bool  # B_R(θ‖·) is 1-strongly convex
    tight: bool  # D* was computed over all pairs; otherwise it is an upper bound
    mean: np.ndarray  # [d] weighted mean

    @property
    def bounded(self) -> bool:
        """Whether B_R is finite and Lipschitz on the hull."""
        return math.isfinite(self.diameter) and math.isfinite(self.lipschitz)


def spread(domain: Domain, points: Any, sigma: Any = 1.0) -> Spread:
    """D*, D̄, G', C and β of ``points`` [T, d]. B_R is jointly convex here, so pairs of points
    decide about their hull.

    >>> from fmrl.core.domains import Ball
    >>> s = spread(Ball(1.0), [[0.0, 0.0], [1.0, 0.0]])
    >>> round(s.diameter, 6), round(s.deviation, 6), s.lipschitz, s.C
    (0.707107, 0.353553, 1.0, 0.5)
    """
    points = numbers(points)
    if points.ndim != 2 or not len(points):
        raise FMRLError(f"points must have shape [tasks, d], not {points.shape}")
    weight = np.broadcast_to(vector(sigma, "sigma"), (len(points),))
    weight = weight if weight.sum() > 0 else np.ones(len(points))
    mean = weight @ points / weight.sum()
    tight = len(points) <= MANY
    deviation = math.sqrt(float(weight @ domain.divergence(points, mean)) / float(weight.sum()))
    if isinstance(domain, Simplex):
        return _entropic(domain, points, mean, deviation, tight)
    if domain.norm != "l2":
        raise FMRLError(
            f"no constants are known for {domain!r}", fix="use Ball, Box, Euclidean or Simplex"
        )
    if tight:
        width = _widest(points)
    else:
        around = 2 * float(np.max(np.linalg.norm(points - mean, axis=1)))
        width = (
            min(around, math.sqrt(2) * domain.diameter(points.shape[1]))
            if np.all(domain.contains(points))
            else around
        )
    deviation = min(deviation, width / math.sqrt(2))  # always so; rounding alone can say otherwise
    return Spread(
        width / math.sqrt(2), deviation, width, width, width**2 / 2, 1.0, True, tight, mean
    )


def _widest(points: np.ndarray) -> float:
    """Largest l2 distance between two points."""
    centred = points - points.mean(axis=0)
    square = np.sum(centred**2, axis=1)
    best, pair = -1.0, (0, 0)
    for i in range(0, len(points), BLOCK):
        distance = (
            square[i : i + BLOCK, None] + square[None, :] - 2 * centred[i : i + BLOCK] @ centred.T
        )
        k = int(np.argmax(distance))
        row, column = divmod(k, len(points))
        if distance[row, column] > best:
            best, pair = float(distance[row, column]), (i + row, column)
    # The largest distance is no smaller than the largest norm, so the expansion picks right; the
    # pair itself is taken afresh.
    return float(np.linalg.norm(points[pair[0]] - points[pair[1]]))


def _entropic(
    domain: Simplex, points: np.ndarray, mean: np.ndarray, deviation: float, tight: bool
) -> Spread:
    low, high = points.min(axis=0), points.max(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(points)
        own = np.sum(np.where(points > 0, points * logs, 0.0), axis=1)
        if np.any((low == 0) & (high > 0)):
            largest = math.inf
        elif tight:
            safe = np.where(points > 0, logs, 0.0)
            blocks = range(0, len(points), BLOCK)
            largest = max(
                float(np.max(own[i : i + BLOCK, None] - points[i : i + BLOCK] @ safe.T))
                for i in blocks
            )
        else:
            largest = float(np.max(own - points @ np.where(low > 0, np.log(low), 0.0)))
        ratio = np.where(high > 0, points / low, 0.0)
        least = np.where(high > 0, points / np.where(high > 0, high, 1.0), 0.0)
        lipschitz = float(np.max(ratio.max(axis=1) - least.min(axis=1))) / 2
    width = _widest_l1(points) if tight else float(min(2.0, np.sum(high - low)))
    lipschitz = lipschitz if math.isfinite(lipschitz) else math.inf
    constant = 0.0 if width == 0 else lipschitz * width
    beta = 1 / (2 * domain.floor) if domain.floor > 0 else math.inf
    diameter = math.sqrt(max(0.0, largest) + 64 * np.finfo(float).eps) if width else 0.0
    return Spread(
        diameter,
        min(deviation, diameter),
        lipschitz,
        width,
        constant,
        max(1.0, beta),
        False,
        tight,
        mean,
    )


def _widest_l1(points: np.ndarray) -> float:
    rows = max(1, (1 << 22) // points.size)
    blocks = range(0, len(points), rows)
    return max(
        float(np.max(np.sum(np.abs(points[i : i + rows, None] - points[None]), axis=-1)))
        for i in blocks
    )


def distance(domain: Domain, a: Any, b: Any) -> np.ndarray:
    """½‖a − b‖² in the domain's norm, [T].

    >>> from fmrl.core.domains import Simplex
    >>> distance(Simplex(), [[1.0, 0.0]], [[0.0, 1.0]])
    array([2.])
    """
    step = numbers(a) - numbers(b)
    size = np.sum(np.abs(step), axis=-1) if domain.norm == "l1" else np.linalg.norm(step, axis=-1)
    return size**2 / 2
