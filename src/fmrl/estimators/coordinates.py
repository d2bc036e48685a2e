"""Coordinates: rows of the user's table in units in which they can be compared, and models back in
the user's units.

A row x becomes ((x − centre)/scale, constant), a target y of a regression becomes (y − shift)/unit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.losses import Squared
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError

MAX_COLUMNS = 256  # tasks of more columns are compared in so many principal directions


@dataclass(frozen=True, eq=False)
class Coordinates:
    """An affine change of coordinates. Every way in goes through it.

    >>> here = Coordinates(np.array([1.0, 2.0]), np.ones(2), 0.5, 0.0, 1.0)
    >>> here.rows(np.array([[1.0, 3.0]]))
    array([[0. , 1. , 0.5]])
    >>> here.model(np.array([2.0, 1.0, 4.0]), 1)
    (array([[2., 1.]]), array([-2.]))
    """

    centre: np.ndarray  # [f]
    scale: np.ndarray  # [f] what columns are divided by
    constant: float  # what the intercept's column holds; 0 without an intercept
    shift: float  # of y
    unit: float  # of y
    basis: np.ndarray | None = None  # [f, r] directions, where there are more columns than that

    @property
    def width(self) -> int:
        """Columns after the change."""
        size = self.centre.size if self.basis is None else self.basis.shape[1]
        return size + (self.constant > 0)

    def rows(self, X: Any) -> np.ndarray:
        """Rows X [..., f] in these coordinates, [..., width]."""
        here = (X - self.centre) / self.scale
        here = here if self.basis is None else here @ self.basis
        out = np.full((*X.shape[:-1], self.width), self.constant)
        out[..., : here.shape[-1]] = here
        return out

    def target(self, y: Any) -> Any:
        """y of a regression in these units."""
        return (y - self.shift) / self.unit

    def prediction(self, z: Any) -> Any:
        """A margin of a regression in the user's units."""
        return self.shift + self.unit * z

    def tasks(self, tasks: Tasks) -> Tasks:
        """The tasks of a table in these coordinates."""
        target = tasks.target
        target = self.target(target) if isinstance(tasks.loss, Squared) else target
        return replace(tasks, X=self.rows(tasks.X), target=target)

    def model(self, theta: np.ndarray, outputs: int) -> tuple[np.ndarray, np.ndarray]:
        """theta [..., outputs · width] as coefficients [..., outputs, f] and intercepts [...,
        outputs] in the user's units.
        """
        theta = self.unit * theta.reshape(*theta.shape[:-1], outputs, self.width)
        coef = theta[..., : self.width - (self.constant > 0)]
        coef = (coef if self.basis is None else coef @ self.basis.T) / self.scale
        if not self.constant:
            return coef, np.zeros(coef.shape[:-1])
        return coef, self.shift + self.constant * theta[..., -1] - coef @ self.centre


class Scales(NamedTuple):
    """How large the columns and the target of some tasks are."""

    centre: np.ndarray  # [f] means, or 0 without an intercept
    spread: np.ndarray  # [f] root mean squares about the centre
    varying: np.ndarray  # [f] whether a column has more than one value, up to rounding
    divisor: np.ndarray  # [f] the spread, or the size of a column that does not vary
    shift: float  # the mean of y
    unit: float  # its deviation; 1 if y does not vary


def scales_of(tasks: Tasks, intercept: bool) -> Scales:
    """Measure columns and target.

    Args:
        tasks: In the user's units.
        intercept: Whether models have an intercept, so that means do not matter.
    """
    X, weight = tasks.X, tasks.weight
    if weight is not None and not weight.sum() > 0:
        fix = "leave those rows out"
        raise FMRLError("all sample weights of the first tasks are zero", fix=fix)
    shift, unit = 0.0, 1.0
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
        centre = np.average(X, axis=0, weights=weight) if intercept else np.zeros(X.shape[1])
        spread = _deviation(X - centre, weight)
        if isinstance(tasks.loss, Squared):
            y = tasks.target[:, 0]
            shift = float(np.average(y, weights=weight)) if intercept else 0.0
            unit = float(_deviation((y - shift)[:, None], weight)[0])
            unit = unit if unit > 1e-12 * abs(shift) else 1.0
    sizes = np.array([*spread, unit])
    odd = ((sizes > 0) & (sizes < 1e-140)) | (sizes > 1e140)
    if not np.isfinite([*centre, *sizes, shift]).all() or odd.any():
        raise FMRLError("the numbers are too large or too small to be squared", fix="scale X and y")
    # A column is constant by its own measure, whatever units the others have; what rounding leaves
    # of it should not count.
    largest = np.abs(X).max(axis=0)
    varying = (np.ptp(X, axis=0) > 0) & (spread > 1e-15 * np.maximum(largest, 1e-290))
    divisor = np.where(varying, spread, np.where(spread > 0, np.maximum(largest, 1e-290), 1.0))
    return Scales(centre, spread, varying, divisor, shift, unit)


def coordinates_of(tasks: Tasks, intercept: bool) -> Coordinates:
    """Coordinates in which every column, and y of a regression, has deviation 1.

    Args:
        tasks: In the user's units.
        intercept: Whether models have an intercept.
    """
    found = scales_of(tasks, intercept)
    shape = float(intercept), found.shift, found.unit
    here = Coordinates(found.centre, found.divisor, *shape)
    if tasks.X.shape[1] <= MAX_COLUMNS:
        return here
    from sklearn.utils.extmath import randomized_svd

    rows = (tasks.X - here.centre) / here.scale
    few = min(MAX_COLUMNS, len(rows))
    return replace(here, basis=randomized_svd(rows, few, random_state=0)[2].T.copy())


def _deviation(X: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Root mean squares of columns, [f], whose squares may underflow."""
    largest = np.abs(X).max(axis=0)
    unit = np.where(largest > 0, largest, 1.0)
    return unit * np.sqrt(np.average((X / unit) ** 2, axis=0, weights=weight))
