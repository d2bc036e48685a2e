"""Tasks at their MAP under a Gaussian, a stack at a time, and what they say about it.

A task is working rows J [n, d] with residuals r [n] about the mean: its own rows for squared
losses, and for others the quadratic approximation at its MAP. With H = R·Rᵀ the covariance over
the noise and Z = J·R, the rows' covariance is K = I + Z·Zᵀ. R has a column for every direction in
which tasks differ, so what all tasks share costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple

from fmrl.core.arrays import Array, device, dot, full, namespace
from fmrl.core.losses import Squared
from fmrl.core.matrices import raised
from fmrl.core.metric import T, apply
from fmrl.core.prior import Gaussian
from fmrl.core.samples import Samples
from fmrl.core.tasks import Tasks

NEWTON = 30  # steps of a MAP at most; a handful is usual
TIGHT = 1e-7  # of the value, where it stops: one more step would square what is left
FLAT = 1e-9  # the least curvature of a working row


class Moments(NamedTuple):
    """What tasks say about a Gaussian; adds up over tasks."""

    tasks: float
    rounds: float
    pull: Array  # [d] Σ JᵀK⁻¹r
    information: Array  # [d, d] Σ JᵀK⁻¹J, of the mean
    scatter: Array  # [r, r] Σ u·uᵀ, u = ZᵀK⁻¹r the task's place in units of R
    gain: Array  # [r, r] Σ ZᵀK⁻¹Z, how well that is known
    squares: float  # Σ rᵀK⁻¹r

    def __add__(self, other: Any) -> Moments:  # type: ignore[override]
        return Moments(*(a + b for a, b in zip(self, other, strict=True)))


class Fitted(NamedTuple):
    """A stack of tasks at their MAP under a Gaussian."""

    u: Array  # [B, r] θ = mean + R·u
    spread: Array  # [B, r, r] covariance of u, in units of the noise
    evidence: Array  # [B] log-likelihood of the rows without their parameters, Laplace's for others


class Warm(dict):
    """Where the tasks of each stack were last, so that the next MAP is a step away."""


def root_of(gaussian: Gaussian) -> Array:
    """R [d, r] with R·Rᵀ = covariance/noise, a column for every parameter in which tasks differ.

    It changes little when the covariance does, so that a MAP in units of R is near the last one.
    """
    xp = namespace(gaussian.mean)
    H = gaussian.covariance / gaussian.noise
    size = xp.linalg.diagonal(H)
    some = xp.nonzero(size > 0)[0]
    unit = xp.sqrt(xp.take(size, some))
    H = xp.take(xp.take(H, some, axis=0), some, axis=1) / (unit[:, None] * unit)
    eye = xp.eye(size.shape[0], dtype=size.dtype, device=device(size))
    eye = xp.take(eye, some, axis=1)
    if not bool(xp.any(xp.abs(H) * (1 - xp.take(eye, some, axis=0)) > 0)):
        return eye * unit
    values, vectors = xp.linalg.eigh(H)  # of correlations: units of columns do not matter
    half = xp.sqrt(xp.maximum(values, xp.zeros_like(values)))
    return xp.matmul(eye, unit[:, None] * xp.matmul(vectors * half, T(vectors)))


Stacks = list[tuple[Any, Any, Samples]]  # places, how many rows each task counts for, the game


def stacked(tasks: Tasks) -> Stacks:
    """Tasks as stacks that can be gone through again and again."""
    mass = tasks.mass
    return [(part, mass[part], game) for part, game in tasks.stacks()]


def side_by_side(views: Sequence[Stacks]) -> Stacks:
    """Stacks [K, B, …] of tasks that differ in their targets alone: what rows cost, they cost
    once.

    Args:
        views: K times the same tasks with one output, as `stacked` gives them.
    """
    found = []
    for (part, mass, game), *others in zip(*views, strict=True):
        target = namespace(game.X).stack([game.target, *(other.target for *_, other in others)])
        whole = replace(game, X=game.X[None, ...], target=target, weight=game.weight[None, ...])
        found.append((part, mass, whole))
    return found


def solved(
    stacks: Stacks, gaussian: Gaussian | Sequence[Gaussian], warm: Warm | None = None
) -> list[_Stack]:
    """Stacks at their MAP under a Gaussian, or under one for each of those side by side.

    Args:
        stacks: The tasks, as `stacked` or `side_by_side` gives them.
        gaussian: At which they are looked at; several share covariance and noise.
        warm: Remembers MAPs between calls, each of which then takes one step towards them.
    """
    several = () if isinstance(gaussian, Gaussian) else tuple(gaussian)
    first = several[0] if several else gaussian
    mean, R = first.mean, root_of(first)
    if several:
        mean = namespace(mean).stack([g.mean for g in several])[:, None, :]
    found = []
    for i, (part, mass, game) in enumerate(stacks):
        one = _Stack(game, mean, first.noise, R, part, mass)
        last = None if warm is None else warm.get(i)
        last = None if last is None or last.shape != one.u.shape else last
        one.solve(NEWTON if last is None else 1, last)
        if warm is not None:
            warm[i] = one.u
        found.append(one)
    return found


def moments(stacks: Stacks, gaussian: Gaussian, shares: Any = None) -> Moments:
    """Sums over tasks at the present Gaussian.

    Args:
        stacks: The tasks, as `stacked` gives them.
        gaussian: At which they are looked at.
        shares: How much each task counts [T]; default 1.
    """
    return added(solved(stacks, gaussian), shares)[0]


def added(stacks: list[_Stack], shares: Any = None) -> list[Moments]:
    """Sums over stacks that are `solved`, for each of the Gaussians side by side."""
    each = zip(*(one.moments(shares) for one in stacks), strict=True)
    return [reduce(add, some) for some in each]


def beside(diagonal: Array) -> Array:
    """What stands beside J·Jᵀ, [...]: 1, or so much that it is not lost in rounding."""
    xp = namespace(diagonal)
    if not diagonal.shape[-1]:
        return full(diagonal.shape[:-1], 1.0, diagonal)
    most = xp.max(diagonal, axis=-1)
    return xp.where(most > 1e10, 1 + 1e-12 * most, xp.ones_like(most))


def eye_of(R: Array) -> Array:
    """The identity of R's columns."""
    return namespace(R).eye(R.shape[-1], dtype=R.dtype, device=device(R))


class _Stack:
    """Working rows of a stack of tasks [B, …], or of several side by side [K, B, …], at their MAP.

    Args:
        game: Their rows.
        mean: [d], or [K, 1, d].
        noise: s² of squared losses.
        R: As `root_of` gives it.
        part: Which tasks they are.
        mass: How many rows each counts for.
    """

    def __init__(self, game: Samples, mean: Array, noise: float, R: Array, part: Any, mass: Any):
        self.game, self.noise, self.R, self.part, self.mass = game, noise, R, part, mass
        lead, r = game.target.shape[:-2], R.shape[-1]
        self.rows = self._by_output(R)  # [..., n, outputs, r]
        self.flat = self._flat(self.rows)
        phi = mean + full((*lead, mean.shape[-1]), 0.0, game.X)
        self.under_mean = game.margins(phi)  # [..., n, outputs]
        self.u = full((*lead, r), 0.0, game.X)
        self.squared = isinstance(game.loss, Squared)
        self.xp = namespace(game.X)

    def _by_output(self, R: Array) -> Array:
        """How margins move along the columns of R, [..., n, outputs, r]."""
        xp, k, f = namespace(R), self.game.loss.outputs, self.game.X.shape[-1]
        if k > 1:
            split = xp.reshape(R, (k, f, R.shape[-1]))
            return xp.moveaxis(xp.matmul(self.game.X[..., None, :, :], split), -3, -2)
        size = xp.linalg.diagonal(R) if R.shape[0] == R.shape[1] else None
        if size is not None and bool(xp.all(xp.sum(xp.abs(R), axis=0) == xp.abs(size))):
            return (self.game.X * size)[..., None, :]
        return xp.matmul(self.game.X, R)[..., None, :]

    def _flat(self, rows: Array) -> Array:
        """Rows and outputs [..., n, outputs, r] as one axis."""
        shape = (*rows.shape[:-3], rows.shape[-3] * rows.shape[-2], rows.shape[-1])
        return namespace(rows).reshape(rows, shape)

    def solve(self, steps: int, u: Array | None = None) -> None:
        """Newton's method from u, at most so many steps."""
        if not self.squared:
            self.u = self.u if u is None else u
            value = self._value(self.u)
            for _ in range(steps):
                self._model()
                if self._step(value):
                    break
                value = self.value
        self._model(last=True)
        self.u = self.aim if self.squared else self.u

    def _step(self, value: Array) -> bool:
        """One step, halved until it makes no task worse; whether it was the last."""
        xp, step = self.xp, self.aim - self.u
        along = apply(self.Z, step)
        fall = dot(step, step) + dot(along, along)
        new = self._value(self.aim)
        best, moved = value + 1e-12 * xp.abs(value), self.aim
        if bool(xp.any(short := ~(new <= best))):
            length = full(value.shape, 1.0, value)
            for _ in range(30):
                length = xp.where(short, length / 2, length)
                new = self._value(self.u + length[..., None] * step)
                if not bool(xp.any(short := ~(new <= best))):
                    break
            length = xp.where(short, xp.zeros_like(length), length)
            shorter = self.u + length[..., None] * step
            moved = xp.where((length < 1)[..., None], shorter, self.aim)
            new = xp.where(short, value, new)
        self.u, self.value = moved, new
        return bool(xp.all(fall <= TIGHT * (1 + xp.abs(new))))

    def _margins(self, u: Array) -> Array:
        moved = self.xp.matmul(self.flat, u[..., None])
        return self.under_mean + self.xp.reshape(moved, self.under_mean.shape)

    def _value(self, u: Array) -> Array:
        losses = self.game.loss.value(self._margins(u), self.game.target) * self.game.weight
        return self.xp.sum(losses, axis=-1) + dot(u, u) / 2

    def _weigh(self) -> None:
        """What turns rows into working rows, and working residuals [B, N] about the mean."""
        xp, game = self.xp, self.game
        shape = (*game.target.shape[:-2], game.target.shape[-2] * game.loss.outputs)
        self.turn = None
        if self.squared:
            self.r = xp.reshape((game.target - self.under_mean) * game.weight[..., None], shape)
            return
        z = self._margins(self.u)
        slope = game.loss.slope(z, game.target) * game.weight[..., None]
        bend, moved = game.loss.curvature(z, game.target), z - self.under_mean
        if game.loss.coupled:  # W = L·Lᵀ over the outputs of a round
            values, vectors = xp.linalg.eigh(bend * game.weight[..., None, None])
            root = xp.sqrt(xp.maximum(values, full((), FLAT, values)))
            along = xp.matrix_transpose(vectors)
            moved, slope = (apply(along, v) for v in (moved, slope))
            self.turn = root[..., None] * along
        else:
            root = xp.sqrt(xp.maximum(bend, full((), FLAT, bend)))
            self.turn = (root * game.weight[..., None])[..., None]
        off = root * moved - slope / root
        self.r = xp.reshape(off * game.weight[..., None], shape)

    def _working(self, rows: Array) -> Array:
        """Rows [..., n, outputs, r] as working rows [..., N, r]."""
        if self.turn is not None:
            coupled = self.game.loss.coupled
            rows = self.xp.matmul(self.turn, rows) if coupled else self.turn * rows
        return self._flat(rows)

    def _model(self, last: bool = False) -> None:
        """The minimiser of the quadratic model here: ``aim`` [..., r] and, for the last one, what
        it took.
        """
        xp = self.xp
        self._weigh()
        self.Z = Z = self._working(self.rows)
        n, r = Z.shape[-2:]
        self.dual = n < r
        inner = xp.matmul(Z, T(Z)) if self.dual else xp.matmul(T(Z), Z)
        self.inner = raised(inner, beside(xp.linalg.diagonal(inner))[..., None])
        right = self.r if self.dual else apply(T(Z), self.r)
        if last:
            self.inverse = xp.linalg.inv(self.inner)
            right = apply(self.inverse, right)
        else:  # a third of the price
            right = xp.linalg.solve(self.inner, right[..., None])[..., 0]
        self.q = right  # K⁻¹r where it is dual
        self.aim = apply(T(Z), right) if self.dual else right

    def moments(self, shares: Any = None) -> list[Moments]:
        """Sums over the stack, each task counting as much as its share [T] says; one for each of
        those side by side.
        """
        xp, game, inverse, R = self.xp, self.game, self.inverse, self.R
        every = xp.eye(R.shape[0], dtype=game.X.dtype, device=device(game.X))
        J = self._working(self._by_output(every)) if game.loss.outputs > 1 else self._single()
        count = full((J.shape[-3],), 1.0, J) if shares is None else xp.asarray(shares)[self.part]
        one = count[..., None]

        def product(a: Array, b: Array) -> Array:
            """Σ aᵀb over tasks and rows, [..., d, d]."""
            a = a if shares is None else a * one[..., None]
            a, b = (xp.reshape(v, (*v.shape[:-3], -1, v.shape[-1])) for v in (a, b))
            return xp.matmul(T(a), b)

        if self.dual:
            pull, squares = apply(T(J), self.q), dot(self.r, self.q)
            information = product(J, xp.matmul(inverse, J))
            gain = xp.matmul(T(R), xp.matmul(information, R))  # Z = J·R
        else:
            seen = apply(T(self.Z), self.r)
            pull, squares = apply(T(J), self.r), dot(self.r, self.r) - dot(self.aim, seen)
            information, gain = product(J, J), xp.sum((eye_of(R) - inverse) * one[..., None], -3)
            if R.shape[-1]:
                C = xp.matmul(T(self.Z), J)  # [..., r, d]
                pull = pull - apply(T(C), self.aim)
                information = information - product(C, xp.matmul(inverse, C))
        mass = xp.asarray(self.mass, dtype=J.dtype, device=device(J))
        totals = (
            xp.sum(pull * one, axis=-2),
            information,
            xp.matmul(T(self.aim * one), self.aim),
            gain,
            xp.sum(squares * count, axis=-1),
        )
        sizes = float(xp.sum(count)), float(xp.sum(mass * count))
        if squares.ndim == 1:
            return [Moments(*sizes, *totals[:-1], float(totals[-1]))]
        return [
            Moments(*sizes, *(total[k, ...] for total in totals[:-1]), float(totals[-1][k]))
            for k in range(squares.shape[0])
        ]

    def _single(self) -> Array:
        """Working rows of a loss with one output, [..., n, d]."""
        return self.game.X if self.turn is None else self.turn[..., 0, :] * self.game.X

    def fitted(self) -> Fitted:
        """Where the tasks are, how surely, and how likely their rows were."""
        xp, Z = self.xp, self.Z
        spread = eye_of(self.R) - xp.matmul(T(Z), xp.matmul(self.inverse, Z)) if self.dual else self.inverse
        logdet = xp.linalg.slogdet(self.inner)[1]
        if not self.squared:
            return Fitted(self.u, spread, -self._value(self.u) - logdet / 2)
        squares = dot(self.r, self.r) - dot(self.aim, apply(T(Z), self.r))
        mass = xp.asarray(self.mass, dtype=Z.dtype, device=device(Z))
        level = mass * math.log(2 * math.pi * self.noise)
        return Fitted(self.u, spread, -(squares / self.noise + logdet + level) / 2)
