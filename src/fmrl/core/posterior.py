"""Tasks at their MAP under a Gaussian, a stack at a time, and what they say about it.

A task is working rows J [n, d] with residuals r [n] about the mean: its own rows for squared
losses, and for others the quadratic approximation at its MAP. With H = R·Rᵀ the covariance over
the noise and Z = J·R, the rows' covariance is K = I + Z·Zᵀ. R has a column for every direction in
which tasks differ, so what all tasks share costs nothing.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any, NamedTuple

from fmrl.core.arrays import Array, device, dot, full, namespace
from fmrl.core.losses import Squared
from fmrl.core.matrices import T, apply, eigh
from fmrl.core.prior import Gaussian
from fmrl.core.samples import Samples
from fmrl.core.solve.newton import newton
from fmrl.core.tasks import Tasks

NEWTON = 30  # steps of a MAP at most; a handful is usual
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
    values, vectors = eigh(H)  # of correlations: units of columns do not matter
    half = xp.sqrt(xp.maximum(values, xp.zeros_like(values)))
    return xp.matmul(eye, unit[:, None] * xp.matmul(vectors * half, T(vectors)))


Stacks = list[tuple[Any, Any, Samples]]  # places, how many rows each task counts for, the game


def stacked(tasks: Tasks) -> Stacks:
    """Tasks as stacks that can be gone through again and again."""
    mass = tasks.mass
    return [(part, mass[part], game) for part, game in tasks.stacks()]


def solved(stacks: Stacks, gaussian: Gaussian) -> list[_Stack]:
    """Stacks at their MAP under a Gaussian.

    Args:
        stacks: The tasks, as `stacked` gives them.
        gaussian: At which they are looked at.
    """
    R = root_of(gaussian)
    found = [_Stack(game, gaussian, R, part, mass) for part, mass, game in stacks]
    for one in found:
        one.solve()
    return found


def moments(stacks: Stacks, gaussian: Gaussian) -> Moments:
    """Sums over tasks at the present Gaussian.

    Args:
        stacks: The tasks, as `stacked` gives them.
        gaussian: At which they are looked at.
    """
    return reduce(add, (one.moments() for one in solved(stacks, gaussian)))


def beside(diagonal: Array) -> Array:
    """What stands beside J·Jᵀ, [...]: 1, or so much that it is not lost in rounding."""
    xp = namespace(diagonal)
    if not diagonal.shape[-1]:
        return full(diagonal.shape[:-1], 1.0, diagonal)
    most = xp.max(diagonal, axis=-1)
    return xp.where(most > 1e10, 1 + 1e-12 * most, xp.ones_like(most))


class _Stack:
    """Working rows of a stack of tasks, and their MAP."""

    def __init__(self, game: Samples, gaussian: Gaussian, R: Array, part: Any, mass: Any):
        self.game, self.gaussian, self.R, self.part, self.mass = game, gaussian, R, part, mass
        xp = self.xp = namespace(game.X)
        B, n, k, r = game.X.shape[0], game.X.shape[1], game.loss.outputs, R.shape[-1]
        self.rows = self._by_output(R)  # [B, n, outputs, r]
        self.flat = xp.reshape(self.rows, (B, n * k, r))
        phi = gaussian.mean + full((B, gaussian.mean.shape[-1]), 0.0, game.X)
        self.under_mean = game.margins(phi)  # [B, n, outputs]
        self.u = full((B, r), 0.0, game.X)
        self.squared = isinstance(game.loss, Squared)

    def _by_output(self, R: Array) -> Array:
        """How margins move along the columns of R, [B, n, outputs, r]."""
        xp, k, f = self.xp, self.game.loss.outputs, self.game.X.shape[-1]
        if k == 1:
            return xp.matmul(self.game.X, R)[..., None, :]
        split = xp.reshape(R, (k, f, R.shape[-1]))
        return xp.moveaxis(xp.matmul(self.game.X[..., None, :, :], split), -3, -2)

    def solve(self) -> None:
        """Newton's method from the mean, which reaches the minimum of squared losses in a step."""
        if not self.squared:
            self.u = newton(self.u, self._value, self._step, NEWTON)
        self._model(self.u)
        if self.squared:
            self.u = self.aim

    def _step(self, u: Array) -> tuple[Array, Array]:
        self._model(u)
        step = self.aim - u
        along = apply(self.Z, step)
        return step, dot(step, step) + dot(along, along)

    def _margins(self, u: Array) -> Array:
        moved = self.xp.matmul(self.flat, u[..., None])
        return self.under_mean + self.xp.reshape(moved, self.under_mean.shape)

    def _value(self, u: Array) -> Array:
        losses = self.game.loss.value(self._margins(u), self.game.target) * self.game.weight
        return self.xp.sum(losses, axis=-1) + dot(u, u) / 2

    def _weigh(self, u: Array) -> None:
        """What turns rows into working rows, and working residuals [B, N] about the mean."""
        xp, game = self.xp, self.game
        shape = (game.X.shape[0], game.X.shape[1] * game.loss.outputs)
        self.turn = None
        if self.squared:
            self.r = xp.reshape((game.target - self.under_mean) * game.weight[..., None], shape)
            return
        z = self._margins(u)
        slope = game.loss.slope(z, game.target) * game.weight[..., None]
        bend, moved = game.loss.curvature(z, game.target), z - self.under_mean
        if game.loss.coupled:  # W = L·Lᵀ over the outputs of a round
            values, vectors = eigh(bend * game.weight[..., None, None])
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
        """Rows [B, n, outputs, …] as working rows [B, N, …]."""
        xp, turn = self.xp, self.turn
        if turn is not None:
            rows = xp.matmul(turn, rows) if self.game.loss.coupled else turn * rows
        return xp.reshape(rows, (rows.shape[0], rows.shape[1] * rows.shape[2], rows.shape[3]))

    def _model(self, u: Array) -> None:
        """The minimiser of the quadratic model at u: ``aim`` [B, r] and what it took."""
        self._weigh(u)
        xp = self.xp
        self.Z = Z = self._working(self.rows)
        n, r = Z.shape[-2:]
        self.dual = n < r
        inner = xp.matmul(Z, T(Z)) if self.dual else xp.matmul(T(Z), Z)
        eye = xp.eye(min(n, r), dtype=Z.dtype, device=device(Z))
        self.inner = inner + eye * beside(xp.linalg.diagonal(inner))[..., None, None]
        self.inverse = xp.linalg.inv(self.inner)
        if self.dual:
            self.q = apply(self.inverse, self.r)  # K⁻¹r
            self.aim = apply(T(Z), self.q)
        else:
            self.aim = apply(self.inverse, apply(T(Z), self.r))

    def moments(self) -> Moments:
        """Sums over the stack."""
        xp, game, inverse = self.xp, self.game, self.inverse
        dim = self.R.shape[0]
        every = xp.eye(dim, dtype=game.X.dtype, device=device(game.X))
        J = self._working(self._by_output(every)) if game.loss.outputs > 1 else self._single()
        if self.dual:
            pull, squares = apply(T(J), self.q), dot(self.r, self.q)
            left, right = J, xp.matmul(inverse, J)
        else:
            C = xp.matmul(T(self.Z), J)  # [B, r, d]
            pull = apply(T(J), self.r) - apply(T(C), self.aim)
            squares = dot(self.r, self.r) - dot(self.aim, apply(T(self.Z), self.r))
            left, right = (
                xp.concat([J, C], axis=-2),
                xp.concat([J, -xp.matmul(inverse, C)], axis=-2),
            )
        flat = (left.shape[0] * left.shape[1], dim)
        information = xp.matmul(T(xp.reshape(left, flat)), xp.reshape(right, flat))
        return Moments(
            float(J.shape[0]),
            float(xp.sum(xp.asarray(self.mass, dtype=J.dtype, device=device(J)))),
            xp.sum(pull, axis=0),
            information,
            xp.matmul(T(self.aim), self.aim),
            xp.matmul(T(self.R), xp.matmul(information, self.R)),  # Z = J·R
            float(xp.sum(squares)),
        )

    def _single(self) -> Array:
        """Working rows of a loss with one output, [B, n, d]."""
        X = self.game.X
        return X if self.turn is None else self.turn[..., 0, :] * X
