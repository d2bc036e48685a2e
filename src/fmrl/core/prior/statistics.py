"""What tasks say about a Gaussian (`Moments`), and the numbers that are all a squared loss asks of
a task (`TaskStatistics`): XᵀX, Xᵀy, yᵀy and how many rows there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.arrays import Array, device, dot, namespace
from fmrl.core.losses import Squared
from fmrl.core.matrices import T, apply, cholesky, eigh
from fmrl.core.prior.padding import pieces
from fmrl.core.prior.small_inverses import eye_like, inverse, plus_identity
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError

BLOCK = 1 << 17  # numbers of statistics that are gone through at a time, so that they stay in cache


class Moments(NamedTuple):
    """What tasks say about a Gaussian, in units R of its directions; adds up over tasks.

    With working rows J [n, d] of a task, residuals r about the mean and Z = J·R, the rows'
    covariance over the noise is K = I + Z·Zᵀ.
    """

    tasks: float
    rounds: float
    pull: Array  # [d] Σ JᵀK⁻¹r
    information: Array  # [d, d] Σ JᵀK⁻¹J, of the mean
    scatter: Array  # [r, r] Σ u·uᵀ, u = ZᵀK⁻¹r the task's place in units of R
    gain: Array  # [r, r] Σ ZᵀK⁻¹Z, how well that is known
    squares: float  # Σ rᵀK⁻¹r, of squared losses

    def __add__(self, other: Any) -> Moments:  # type: ignore[override]
        return Moments(*(a + b for a, b in zip(self, other, strict=True)))


class Slopes(NamedTuple):
    """Sums over tasks with information I = JᵀK⁻¹J each, and p = JᵀK⁻¹r; adds up."""

    logdet: float  # Σ log|K|

    pulls: Array  # [d, d] Σ p·pᵀ
    fisher: Array  # Σ I², entry by entry [d, d], or along some axes [d]
    taken: Any  # [d, d] Σ I·(Σ I)⁻¹·I, where the mean is integrated out; else 0

    def __add__(self, other: Any) -> Slopes:  # type: ignore[override]
        return Slopes(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, eq=False)
class TaskStatistics:
    """Sufficient statistics of tasks with a squared loss.

    Statistics of the same tasks add up over rows (``a + b``), those of different tasks are joined
    (`TaskStatistics.join`): a table, a cluster or a stream needs one pass over its rows.

    Args:
        products: [X y]ᵀ[X y] of every task, [T, w + 1, w + 1].
        rounds: How many rows each task counts for, [T].

    >>> import fmrl
    >>> task = fmrl.Task([[1.0], [2.0]], [1.0, 1.0], loss=fmrl.Squared())
    >>> TaskStatistics.of(Tasks.of([task])).products[0]
    array([[5., 3.],
           [3., 2.]])
    """

    products: Array
    rounds: Array

    @classmethod
    def of(cls, tasks: Tasks) -> TaskStatistics:
        """The statistics of some tasks, from blocks of their rows.

        Args:
            tasks: With a squared loss; weights of rows count.
        """
        if not isinstance(tasks.loss, Squared):
            raise FMRLError(f"{tasks.loss!r} has no sufficient statistics", fix="use Squared")
        xp, found, order = namespace(tasks.X), [], []
        for part, (X, target, weight) in pieces(tasks, 1):
            rows = xp.concat([X, target], axis=-1)
            found.append(T(rows * weight[..., None]) @ rows)
            order.append(np.arange(len(tasks))[part])
        place = np.argsort(np.concatenate(order))
        products = xp.concat(found) if len(found) > 1 else found[0]
        if (np.diff(place) != 1).any():
            products = xp.take(products, xp.asarray(place, device=device(products)), axis=0)
        rounds = xp.asarray(tasks.mass, dtype=products.dtype, device=device(products))
        return cls(products, rounds)

    def __len__(self) -> int:
        return self.products.shape[0]

    def __add__(self, other: TaskStatistics) -> TaskStatistics:
        """The same tasks with the rows of both."""
        return TaskStatistics(self.products + other.products, self.rounds + other.rounds)

    @classmethod
    def join(cls, parts: Sequence[TaskStatistics]) -> TaskStatistics:
        """The tasks of several, one after another."""
        xp = namespace(parts[0].products)
        products = xp.concat([p.products for p in parts])
        return cls(products, xp.concat([p.rounds for p in parts]))

    def take(self, places: Any) -> TaskStatistics:
        """Some of the tasks: a slice or row numbers."""
        return replace(self, products=self.products[places], rounds=self.rounds[places])

    @property
    def width(self) -> int:
        """Columns of X."""
        return self.products.shape[-1] - 1

    @cached_property
    def tells_columns_apart(self) -> bool:
        """Whether no column is a sum of others in all rows."""
        xp, w = namespace(self.products), self.width
        whole = xp.sum(self.products[:, :w, :w], axis=0)
        unit = xp.sqrt(xp.clip(xp.linalg.diagonal(whole), 1e-290, math.inf))
        return float(eigh(whole / (unit[:, None] * unit))[0][0]) > 1e-12

    def blocks(self) -> list[TaskStatistics]:
        """The tasks, so many at a time as stay in cache."""
        size = max(1, BLOCK // (self.width + 1) ** 2)
        if len(self) <= size:
            return [self]
        return [self.take(slice(i, i + size)) for i in range(0, len(self), size)]

    def profile(
        self, mean: Array, R: Array, reml: bool, axes: Callable[[Array], Array] | None
    ) -> tuple[Moments, Array, Slopes]:
        """What the tasks say about N(mean, noise·R·Rᵀ), the mean that is best for R, and how the
        log-likelihood changes with the covariance there.

        Args:
            mean: [w].
            R: [w, r].
            reml: Whether the mean is integrated out, or else set to the best.
            axes: Directions in which Fisher's information is wanted, by the mean's information;
                None for the entries themselves.
        """
        blocks = [UnderGaussian(b, mean, R) for b in self.blocks()]
        told = reduce(add, (b.moments() for b in blocks))
        move = damped_solve(told.information, told.pull)
        unknown = namespace(mean).linalg.inv(told.information) if reml else None
        along = None if axes is None else axes(told.information)
        return told, mean + move, reduce(add, (b.slopes(move, unknown, along) for b in blocks))


class UnderGaussian:
    """Tasks of statistics under one Gaussian: their posteriors.

    Args:
        statistics: Of T tasks.
        mean: [w].
        R: Directions in which tasks differ, [w, r].
    """

    def __init__(self, statistics: TaskStatistics, mean: Array, R: Array):
        w, P = statistics.width, statistics.products
        self.statistics, self.R = statistics, R
        self.A = P[:, :w, :w]  # XᵀX
        off = P[:, :w, w] - self.A @ mean
        self.e = off  # Xᵀ(y − X·mean), [T, w]
        self.squares = P[:, w, w] - dot(P[:, :w, w] + off, mean)  # Σ (y − X·mean)²
        self.AR = self.A @ R  # [T, w, r]
        self.S = posterior_root(self.AR, R)  # (I + RᵀAR)⁻¹
        self.along = off @ R  # [T, r]
        self.u = (self.S @ self.along[..., None])[..., 0]

    def evidence(self, noise: float) -> Array:
        """Log marginal likelihood of each task's rows, without n/2·log(2π·noise), [T]."""
        left = self.squares - dot(self.along, self.u)
        return -(left / noise - self._logdets()) / 2

    def _logdets(self) -> Array:
        """log|S| of every task, [T]."""
        xp, r = namespace(self.S), self.S.shape[-1]
        if r == 1:
            return xp.log(self.S[:, 0, 0])
        if r == 2:
            S = self.S
            return xp.log(S[:, 0, 0] * S[:, 1, 1] - S[:, 0, 1] * S[:, 1, 0])
        return xp.linalg.slogdet(self.S)[1] if r else xp.zeros_like(self.squares)

    @cached_property
    def pull(self) -> Array:
        """What each task wants of the mean, [T, w]."""
        return self.e - (self.AR @ self.u[..., None])[..., 0]

    @cached_property
    def information(self) -> Array:
        """What each task says about the mean, [T, w, w]."""
        return self.A - (self.AR @ self.S) @ T(self.AR)

    def moments(self, shares: Array | None = None) -> Moments:
        """Sums over the tasks.

        Args:
            shares: How much each task counts, [T]; default 1.
        """
        xp, S, u = namespace(self.S), self.S, self.u
        one = xp.ones_like(self.squares) if shares is None else shares
        heavy = one[:, None]
        gain = eye_like(S.shape[-1], S) - S

        def total(each: Array) -> Array:
            """Σ over tasks of [T, a, b]."""
            flat = xp.reshape(each, (each.shape[0], each.shape[1] * each.shape[2]))
            return xp.reshape(one @ flat, each.shape[1:])

        return Moments(
            float(xp.sum(one)),
            float(dot(one, self.statistics.rounds)),
            one @ self.pull,
            total(self.information),
            T(u * heavy) @ u,
            total(gain),
            float(dot(one, self.squares - dot(self.along, u))),
        )

    def slopes(self, move: Array, unknown: Array | None, axes: Array | None) -> Slopes:
        """Sums over the tasks for derivatives in the covariance.

        Args:
            move: To the mean at which they are wanted, [w].
            unknown: Covariance [w, w] of the mean over the noise, where it is integrated out.
            axes: As in `TaskStatistics.profile`, [w, w].
        """
        xp, known = namespace(self.S), self.information
        pull = self.pull - known @ move
        taken = 0.0 if unknown is None else xp.sum(known @ (unknown @ known), axis=0)
        each = known if axes is None else xp.sum((known @ axes) * axes, axis=1)
        logdet = -float(xp.sum(self._logdets()))
        return Slopes(logdet, T(pull) @ pull, xp.sum(each * each, axis=0), taken)


def damped_solve(known: Array, pull: Array) -> Array:
    """known⁻¹·pull, of information [w, w]; nearly 0 in directions of which nothing is known."""
    xp, size = namespace(known), namespace(known).linalg.diagonal(known)
    size = xp.where(size > 0, size, xp.ones_like(size))
    unit = 1 / xp.sqrt(size)
    scaled = known * unit[:, None] * unit + 1e-6 * eye_like(len(size), known)
    return unit * xp.linalg.solve(scaled, (unit * pull)[:, None])[:, 0]


def posterior_root(AR: Array, R: Array) -> Array:
    """(I + RᵀAR)⁻¹, [..., r, r]: a task's covariance in units of R.

    Args:
        AR: Information times R, [..., w, r].
        R: [..., w, r].
    """
    return inverse(plus_identity(T(R) @ AR))


def posterior_spread(H: Array, curvature: Array) -> Array:
    """(H⁻¹ + C)⁻¹ = R·(I + Rᵀ·C·R)⁻¹·Rᵀ with H = R·Rᵀ: what is left to know of a task; [..., d, d].

    Args:
        H: Positive definite, [..., d, d].
        curvature: C ⪰ 0, [..., d, d].
    """
    R = cholesky(H)
    spread = R @ (posterior_root(curvature @ R, R) @ T(R))
    return (spread + T(spread)) / 2


def evidence(H: Array, curvature: Array, pull: Array, noise: Array) -> Array:
    """Log-likelihood of a task's rows under N(phi, s²·H), less what does not depend on H; [...].

    Args:
        H: Positive definite, [..., d, d].
        curvature: C = ∇² of the summed losses, [..., d, d].
        pull: Their −∇ at phi, [..., d].
        noise: s², [...].
    """
    xp = namespace(H)
    R = cholesky(H)
    inner = plus_identity(T(R) @ (curvature @ R))
    along = apply(T(R), pull)
    fit = dot(along, xp.linalg.solve(inner, along[..., None])[..., 0])
    return (fit / noise - xp.linalg.slogdet(inner)[1]) / 2
