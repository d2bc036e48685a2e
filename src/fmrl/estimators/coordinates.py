"""Coordinates: rows of the user's table as rows of a linear model on a ball, and models back in
the user's units.

A row x becomes ((x − centre)/scale, constant), a target y of a regression becomes (y −
shift)/unit. The ball has the radius at which a row of typical length reaches a margin of
``MARGIN``: 10 nats of evidence, or 10 standard deviations of y. Beyond that a logistic loss is
below e⁻¹⁰ and there is nothing left to learn. A ball treats all columns alike. Where they differ
in size by more than ``UNEVEN``, each is divided by its deviation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fmrl.core.domains import Ball
from fmrl.core.losses import Squared
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError

MARGIN = 10.0
UNEVEN = 3.0
WIDEST = 256  # columns; of more, tasks are compared in so many principal directions


@dataclass(frozen=True, eq=False)
class Coordinates:
    """An affine change of coordinates, fixed by the first tasks seen. Every way in goes through
    it.

    >>> here = Coordinates(np.array([1.0, 2.0]), np.ones(2), 0.5, 0.0, 1.0, 4.0)
    >>> here.rows(np.array([[1.0, 3.0]]))
    array([[0. , 1. , 0.5]])
    >>> coef, intercept = here.model(np.array([2.0, 1.0, 4.0]), 1)
    >>> coef, intercept, here.domain
    (array([[2., 1.]]), array([-2.]), Ball(radius=2.5, centre=0.0))
    """

    centre: np.ndarray  # [f]
    scale: np.ndarray  # [f] what columns are divided by
    constant: float  # what the intercept's column holds; 0 without an intercept
    shift: float  # of y
    unit: float  # of y
    length: float  # root mean square length of the rows, about the centre
    radius: float | None = None  # of the ball, if not the default
    basis: np.ndarray | None = None  # [f, r] directions, where there are more columns than that

    def __post_init__(self):
        # Asked for every row of a stream.
        object.__setattr__(self, "only_centred", bool((self.scale == 1).all()))

    @property
    def width(self) -> int:
        """Columns after the change."""
        size = self.centre.size if self.basis is None else self.basis.shape[1]
        return size + (self.constant > 0)

    @property
    def reach(self) -> float:
        """How far from 0 models are worth considering."""
        return MARGIN / self.length if self.radius is None else float(self.radius)

    @property
    def domain(self) -> Ball:
        """The ball of those models."""
        return Ball(self.reach)

    def features(self, X: Any, out: np.ndarray) -> np.ndarray:
        """Rows X [..., f] centred and scaled into ``out``: the one place where that is done."""
        np.subtract(X, self.centre, out)
        return out if self.only_centred else np.divide(out, self.scale, out)

    def rows(self, X: Any) -> np.ndarray:
        """Rows X [..., f] in these coordinates, [..., width]."""
        out = np.full((*X.shape[:-1], self.width), self.constant)
        if self.basis is None:
            self.features(X, out[..., : self.centre.size])
        else:
            out[..., : self.basis.shape[1]] = self.features(X, np.empty(X.shape)) @ self.basis
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


def _deviation(X: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Root mean squares of columns, [f], whose squares may underflow."""
    most = np.abs(X).max(axis=0)
    unit = np.where(most > 0, most, 1.0)
    return unit * np.sqrt(np.average((X / unit) ** 2, axis=0, weights=weight))


def coordinates_of(
    tasks: Tasks, intercept: bool, radius: float | None = None
) -> tuple[Coordinates, Coordinates]:
    """The coordinates in which Algorithm 2 is played, and those in which tasks are compared.

    The first leave columns as they are, unless their deviations differ by more than ``UNEVEN``, and
    give the intercept the size of a typical feature. In the second every column has deviation 1.
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
    most = np.abs(X).max(axis=0)
    moving = (np.ptp(X, axis=0) > 0) & (spread > 1e-15 * np.maximum(most, 1e-290))
    even = np.where(moving, spread, np.where(spread > 0, np.maximum(most, 1e-290), 1.0))
    uneven = moving.any() and spread[moving].max() > UNEVEN * spread[moving].min()
    scale = even if uneven else np.ones(X.shape[1])
    length = math.sqrt(float(((spread / scale) ** 2).sum())) or 1.0
    constant = length / math.sqrt(X.shape[1]) if intercept else 0.0
    run = Coordinates(centre, scale, constant, shift, unit, length, radius)
    here = Coordinates(centre, even, float(intercept), shift, unit, math.sqrt(X.shape[1]))
    if X.shape[1] > WIDEST:
        from sklearn.utils.extmath import randomized_svd

        rows = here.features(X, np.empty(X.shape))
        few = min(WIDEST, len(X))
        here = replace(here, basis=randomized_svd(rows, few, random_state=0)[2].T.copy())
    return run, here
