"""The chart: rows of the user's table as rows of a linear model on a ball, and models back in the user's units.

A row x becomes (x − centre, constant), a target y of a regression becomes (y − shift)/unit. The ball has the radius at which a
row of typical length reaches a margin of ``MARGIN``: 10 nats of evidence, or 10 standard deviations of y. Beyond that a
logistic loss is below e⁻¹⁰ and there is nothing left to learn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fmrl.core.domains import Ball

MARGIN = 10.0


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
        return X if not self.constant else np.concatenate([X, np.full((*X.shape[:-1], 1), self.constant)], axis=-1)

    def target(self, y: np.ndarray) -> np.ndarray:
        """y of a regression in the chart's units."""
        return (y - self.shift) / self.unit

    def model(self, theta: np.ndarray, outputs: int) -> tuple[np.ndarray, np.ndarray]:
        """theta [..., outputs · width] as coefficients [..., outputs, f] and intercepts [..., outputs] in the user's units."""
        theta = self.unit * theta.reshape(*theta.shape[:-1], outputs, self.width)
        coef = theta[..., : self.centre.size]
        if not self.constant:
            return coef, np.zeros(coef.shape[:-1])
        return coef, self.shift + self.constant * theta[..., -1] - coef @ self.centre


def charts(X: np.ndarray, y: np.ndarray | None, weight: np.ndarray | None, intercept: bool) -> list[Chart]:
    """The charts that fit these rows: one, or two that differ in how freely the intercept moves. y: of a regression.

    The intercept's column holds the root mean square of a feature (it moves like one of them) or of a whole row (like all of
    them together).
    """
    centre = np.average(X, axis=0, weights=weight) if intercept else np.zeros(X.shape[1])
    length = math.sqrt(np.average(((X - centre) ** 2).sum(axis=1), weights=weight))
    size = math.sqrt(float(((X - centre) ** 2).sum()) / max(len(X), 1))
    length = length if length > 1e-150 and size > 0 else 1.0
    shift, unit = 0.0, 1.0
    if y is not None:
        shift = float(np.average(y, weights=weight)) if intercept else 0.0
        unit = math.sqrt(float(np.average((y - shift) ** 2, weights=weight)))
        unit = unit if unit > 1e-12 * max(1e-290, abs(shift)) else 1.0
    constants = (length / math.sqrt(X.shape[1]), length) if intercept and X.shape[1] > 1 else (length,) if intercept else (0.0,)
    return [Chart(centre, c, shift, unit, length) for c in constants]
