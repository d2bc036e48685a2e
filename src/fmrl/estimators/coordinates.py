"""The chart: rows of the user's table as rows of a linear model on a ball, and models back in the
user's units.

A row x becomes ((x − centre)/scale, constant), a target y of a regression becomes (y − shift)/unit.
The ball has the radius at which a row of typical length reaches a margin of ``MARGIN``: 10 nats of
evidence, or 10 standard deviations of y. Beyond that a logistic loss is below e⁻¹⁰ and there is
nothing left to learn. A ball treats all columns alike, so where they differ in size, one chart
leaves them as they are and another scales each to deviation 1; the pilot decides (`rule`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fmrl.core.domains import Ball
from fmrl.errors import FMRLError

MARGIN = 10.0
UNEVEN = 3.0


@dataclass(frozen=True, eq=False)
class Chart:
    """An affine change of coordinates, fixed by the first tasks seen.

    >>> import numpy as np
    >>> chart = Chart(np.array([1.0, 2.0]), 0.5, 0.0, 1.0, 4.0)
    >>> chart.rows(np.array([[1.0, 3.0]]))
    array([[0. , 1. , 0.5]])
    >>> coef, intercept = chart.model(np.array([2.0, 1.0, 4.0]), 1)
    >>> coef, intercept, chart.domain
    (array([[2., 1.]]), array([-2.]), Ball(radius=2.5, centre=0.0))
    """

    centre: np.ndarray  # [f]
    constant: float  # what the intercept's column holds; 0 without an intercept
    shift: float  # of y
    unit: float  # of y
    length: float  # root mean square length of the rows, about the centre
    radius: float | None = None  # of the ball, if not the default
    scale: np.ndarray | None = None  # [f]: what columns are divided by; None for nothing

    @property
    def width(self) -> int:
        """Columns after the change."""
        return self.centre.size + (self.constant > 0)

    @property
    def domain(self) -> Ball:
        """The ball of models that are worth considering."""
        return Ball(MARGIN / self.length if self.radius is None else self.radius)

    def rows(self, X: np.ndarray) -> np.ndarray:
        """X [..., f] in the chart's coordinates, [..., width]."""
        X = X - self.centre
        if self.scale is not None:
            X = X / self.scale
        return (
            X
            if not self.constant
            else np.concatenate([X, np.full((*X.shape[:-1], 1), self.constant)], axis=-1)
        )

    def target(self, y: np.ndarray) -> np.ndarray:
        """y of a regression in the chart's units."""
        return (y - self.shift) / self.unit

    def model(self, theta: np.ndarray, outputs: int) -> tuple[np.ndarray, np.ndarray]:
        """theta [..., outputs · width] as coefficients [..., outputs, f] and intercepts [...,
        outputs] in the user's units.
        """
        theta = self.unit * theta.reshape(*theta.shape[:-1], outputs, self.width)
        coef = theta[..., : self.centre.size]
        if self.scale is not None:
            coef = coef / self.scale
        if not self.constant:
            return coef, np.zeros(coef.shape[:-1])
        return coef, self.shift + self.constant * theta[..., -1] - coef @ self.centre


def charts(
    X: np.ndarray, y: np.ndarray | None, weight: np.ndarray | None, intercept: bool
) -> list[Chart]:
    """The charts that may fit these rows, the plainest first. y: of a regression.

    They differ in how freely the intercept moves (its column holds the root mean square of a
    feature, or of a whole row), and in whether columns are scaled, if their deviations differ by
    more than ``UNEVEN``."""
    with np.errstate(over="ignore"):  # what overflows is refused below
        return _charts(X, y, weight, intercept)


def _charts(
    X: np.ndarray, y: np.ndarray | None, weight: np.ndarray | None, intercept: bool
) -> list[Chart]:
    centre = np.average(X, axis=0, weights=weight) if intercept else np.zeros(X.shape[1])
    spread = np.sqrt(np.average((X - centre) ** 2, axis=0, weights=weight))
    shift, unit = 0.0, 1.0
    if y is not None:
        shift = float(np.average(y, weights=weight)) if intercept else 0.0
        unit = math.sqrt(float(np.average((y - shift) ** 2, weights=weight)))
        unit = unit if unit > 1e-12 * max(1e-290, abs(shift)) else 1.0
    if not np.isfinite([*centre, *spread, shift, unit]).all() or 0 < spread.max() < 1e-140:
        raise FMRLError("the numbers are too large or too small to be squared", fix="scale X and y")
    moving = spread > 1e-9 * max(spread.max(), 1e-290)
    uneven = moving.any() and spread[moving].max() > UNEVEN * spread[moving].min()
    found = []
    for scale in (None, np.where(moving, spread, 1.0)) if uneven else (None,):
        length = math.sqrt(float(((spread if scale is None else spread / scale) ** 2).sum())) or 1.0
        free = (length / math.sqrt(X.shape[1]), length) if X.shape[1] > 1 else (length,)
        found += [
            Chart(centre, c, shift, unit, length, None, scale)
            for c in (free if intercept else (0.0,))
        ]
    return found
