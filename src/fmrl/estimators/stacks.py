"""A stack of tasks at their minimum under some members of a prior, in plain NumPy.

Members, tasks and outputs are axes [P, B, K]. A task with rows X, a prior N(mean, noise·H) and
margins z = X·mean + f is solved for f. With fewer rows than directions f = G·a, G = X·H·Xᵀ, else
f = Z·u, Z = X·R, H = R·Rᵀ. Newton's method goes to the minimum of Σ ℓ + |u|²/2 = Σ ℓ + a·f/2,
which a squared loss reaches in one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from fmrl.core.posterior import NEWTON, Moments, beside
from fmrl.core.tasks import Tasks

# The third derivative of the logistic loss is at most its second. So a Newton step that moves no
# margin by more than r multiplies curvatures by at most eʳ, and lowers the value where
# (eʳ − 1 − r)/r² < 1, which is r < 1.79. Errors are squared: after CLOSE there is nothing to win.
SAFE, CLOSE = 1.79, 3e-5
MANY = 64  # tasks from which on it pays to tell members apart
NUMBERS = 1 << 21  # that are held for some tasks under all members and outputs, about
HUGE = 1e10  # beyond, `beside` is more than 1
SMALL = 6  # rows up to which many systems are eliminated side by side


class Members(NamedTuple):
    """Members of a prior side by side, one for every centre."""

    mean: np.ndarray  # [P, K, w]
    H: np.ndarray  # [P, w, w]
    R: np.ndarray  # [P, w, d] H = R·Rᵀ, a column for every direction in which tasks differ
    noise: np.ndarray  # [P]


def stacks(tasks: Tasks) -> Iterator[tuple[Any, np.ndarray, np.ndarray, np.ndarray]]:
    """Places, rows [B, n, w], targets [B, n, K] and weights [B, n] of tasks side by side; padding
    has weight 0.
    """
    if len(tasks) == 1:
        weight = np.ones(len(tasks.X)) if tasks.weight is None else np.asarray(tasks.weight)
        yield slice(0, 1), tasks.X[None], tasks.target[None], weight[None]
        return
    if tasks.weight is None:
        for part, game in tasks.stacks():
            yield part, game.X, game.target, game.weight
        return
    both = np.concatenate([tasks.target, np.asarray(tasks.weight)[:, None]], axis=1)
    for part, game in replace(tasks, target=both, weight=None).stacks():
        yield part, game.X, game.target[..., :-1], game.target[..., -1]


def pieces(tasks: Tasks, times: int) -> Iterator[tuple[Any, np.ndarray, np.ndarray, np.ndarray]]:
    """`stacks`, cut where ``times`` as many numbers as their rows have would be too many."""
    for part, *rows in stacks(tasks):
        size = max(1, NUMBERS // (times * rows[0][0].size or 1))
        if len(rows[0]) <= size:
            yield part, *rows
            continue
        for first in range(0, len(rows[0]), size):
            some = slice(first, first + size)
            yield part[some], *(a[some] for a in rows)


class Stack:
    """Tasks of a few lengths under some members, at their minimum.

    Args:
        members: P of them.
        X: Rows [B, n, w].
        target: [B, n, K].
        weight: [B, n], 0 for padding.
        squared: Whether the loss is, or else logistic.
        start: A ``p`` of the same tasks under other members, near enough for a single step.
        close: By how much the last step from anywhere else moves a margin, at most.
    """

    def __init__(
        self, members: Members, X: np.ndarray, target: np.ndarray, weight: np.ndarray,
        squared: bool, start: np.ndarray | None = None, close: float = CLOSE,
    ):  # fmt: skip
        self.X, self.members, self.weight = X, members, weight[:, None]  # [B, 1, n]
        self.dual = X.shape[1] < members.R.shape[2]
        across = X.swapaxes(-1, -2)
        self.under = members.mean[:, None] @ across  # [P, B, K, n]
        self.target, self.squared = target.swapaxes(-1, -2), squared
        self.weighed = self.weight * self.target
        if self.dual:
            self.XH = X @ members.H[:, None]  # [P, B, n, w]
            self.F = self.XH @ across  # G [P, B, n, n]
        else:
            self.F = X @ members.R[:, None]  # Z [P, B, n, w]
        self._solve(start, close)

    @cached_property
    def p(self) -> np.ndarray:
        """a or u, [P, B, K, d]; of squared losses, which do without it until it is asked for."""
        if self.squared:
            return self._aim(self.f)
        return np.zeros((*self.f.shape[:-1], self.F.shape[-1]))

    @cached_property
    def alike(self) -> bool:
        """Whether no task differs from the others."""
        return self.members.R.shape[-1] == 1 and not self.members.R.any()

    def _solve(self, start: np.ndarray | None, close: float) -> None:
        f, steps = np.zeros(self.under.shape), NEWTON
        if start is not None:
            self.p, steps = start, 1
            f = _times(start, self.F)
        self._bend(f)
        self.f = f
        if self.squared or self.alike:
            return
        for _ in range(steps):
            aim = self._aim(f)
            there = _times(aim, self.F)
            far = np.maximum.reduce(np.abs(there - f), axis=None, initial=0.0)
            if far > SAFE:
                aim, there = self._shorter(f, aim, there)
            self.p, f = aim, there
            self._bend(f)
            if far <= close:
                break
        self.f = f

    def _shorter(self, f: Any, aim: Any, there: Any) -> tuple[np.ndarray, np.ndarray]:
        """Halve steps until none makes a task worse; where that does not help, stay."""
        step, along = aim - self.p, there - f
        best = self._value(f, self.p) * (1 + 1e-12)
        length = np.ones((*best.shape, 1))
        for i in range(31):
            worse = ~(self._value(f + length * along, self.p + length * step) <= best)
            if not worse.any():
                break
            length[worse] = length[worse] / 2 if i < 29 else 0.0
        return self.p + length * step, f + length * along

    def _size(self, p: np.ndarray, f: np.ndarray) -> np.ndarray:
        """|u|²."""
        return _dot(p, f if self.dual else p)

    def _value(self, f: np.ndarray, p: np.ndarray) -> np.ndarray:
        """What is minimised, [P, B, K]."""
        z = self.under + f
        loss = np.logaddexp(0, z) - self.target * z
        return _dot(self.weight, loss) + 0.5 * self._size(p, f)

    def _bend(self, f: np.ndarray) -> None:
        """Gradient and curvature of the rows at f."""
        z = self.under + f
        if self.squared:
            self.slope, self.W = self.weight * (z - self.target), self.weight
            return
        chance = expit(z)
        heavy = self.weight * chance
        self.slope, self.W = heavy - self.weighed, heavy * (1 - chance)

    def _aim(self, f: np.ndarray) -> np.ndarray:
        """Where the quadratic model has its minimum."""
        b = self.W * f - self.slope
        if not self.dual:
            return _solve(self._inner(None), (b[..., None, :] @ self.F[:, :, None])[..., 0, :])
        return _solve(self._outer(), b)

    @cached_property
    def tame(self) -> bool:
        """Whether 1 is not lost beside W·G, which is so but for huge numbers."""
        return (self.weight[:, 0] * self.F.diagonal(axis1=-2, axis2=-1)).max(initial=0.0) <= HUGE

    def _outer(self) -> np.ndarray:
        """I + W·G, [P, B, K, n, n]: less work than I + √W·G·√W, and nothing cancels."""
        outer = self.W[..., None] * self.F[:, :, None]
        if self.tame:
            outer += _eye(outer.shape[-1])
            return outer
        return _with_one(outer)

    def _inner(self, S: np.ndarray | None) -> np.ndarray:
        """I + √W·G·√W, or I + ZᵀWZ, [P, B, K, d, d]."""
        if S is not None:
            inner = S[..., :, None] * self.F[:, :, None] * S[..., None, :]
        else:
            Z = self.F[:, :, None]
            inner = (self.W[..., None] * Z).swapaxes(-1, -2) @ Z
        return _with_one(inner)

    def theta(self) -> np.ndarray:
        """Models [P, B, K, w]."""
        mean = self.members.mean[:, None]
        if self.dual:
            return mean + self.p @ self.XH
        return mean + self.p @ self.members.R[:, None].swapaxes(-1, -2)

    def spread(self) -> np.ndarray:
        """Their covariances [P, B, K, w, w]."""
        noise = self.members.noise[:, None, None, None, None]
        if self.dual:
            rows = self.XH[:, :, None]
            told = rows.swapaxes(-1, -2) @ np.linalg.solve(self._outer(), self.W[..., None] * rows)
            return noise * (self.members.H[:, None, None] - told)
        R = self.members.R[:, None, None]
        return noise * (R @ np.linalg.inv(self._inner(None)) @ R.swapaxes(-1, -2))

    def variance(self, X: np.ndarray) -> np.ndarray:
        """Of the margins of other rows X [B, H, w], [P, B, K, H]."""
        noise = self.members.noise[:, None, None, None]
        if not self.dual:
            Z = (X @ self.members.R[:, None])[:, :, None]  # [P, B, 1, H, d]
            return noise * _dot(Z @ np.linalg.inv(self._inner(None)), Z)
        S, XH = np.sqrt(self.W), X @ self.members.H[:, None]
        rows = S[..., None, :] * (XH @ self.X.swapaxes(-1, -2))[:, :, None]  # [P, B, K, H, n]
        told = _dot(rows @ np.linalg.inv(self._inner(S)), rows)
        return noise * (_dot(XH, X)[:, :, None] - told)

    def likely(self) -> np.ndarray:
        """How likely the rows are without their parameters, but for what all centres of a member
        have in common; [P, B].
        """
        S = np.sqrt(self.W) if self.dual else None
        logdet = np.linalg.slogdet(self._inner(S))[1]
        if not self.squared:
            return (-self._value(self.f, self.p) - logdet / 2).sum(axis=-1)
        r = self.target - self.under
        fitted = _times(self.p, self.F)
        squares = _dot(self.weight * r, r - fitted)
        return (-(squares / self.members.noise[:, None, None] + logdet) / 2).sum(axis=-1)

    def moments(self, mass: np.ndarray, shares: np.ndarray | None = None) -> list[Moments]:
        """What the tasks say about each member's Gaussian of each output, [P·K].

        Args:
            mass: How many rows each task counts for, [B].
            shares: How much it counts for each member, [P, B]; default 1.
        """
        P, B, K, _ = self.under.shape
        R, one = self.members.R[:, None], np.ones((P, B)) if shares is None else shares
        heavy = one[:, None, :, None]  # here axes are [P, K, B], so that sums over tasks are quick
        # Rows times √W have the working residual b/√W.
        b = (self.W * self.f - self.slope).swapaxes(1, 2)
        S = np.sqrt(np.broadcast_to(self.W, self.f.shape))
        root = np.ascontiguousarray(S.swapaxes(1, 2))
        if self.squared and not self.dual and shares is None:
            rows = (np.sqrt(self.weight[:, 0, :, None]) * self.X)[None, None]
        else:
            rows = root[..., None] * self.X  # [P, K, B, n, w]

        def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
            """Σ leftᵀ·right over tasks and rows, [P, K, w, w]."""
            if shares is not None:
                left = left * heavy[..., None]
            flat = (*left.shape[:2], -1, left.shape[-1])
            return left.reshape(flat).swapaxes(-1, -2) @ right.reshape(flat)

        F = self.F[:, None]  # [P, 1, B, n, d]
        if not self.alike:
            inverse = np.linalg.inv(self._inner(S if self.dual else None)).swapaxes(1, 2)
        if self.alike:
            aim, fitted, u = b, 0.0, self.p.swapaxes(1, 2)
            pull, information = (b[..., None, :] @ self.X)[..., 0, :], product(rows, rows)
            gain = np.zeros((P, K, *R.shape[-1:] * 2))
        elif self.dual:
            if self.tame:
                told = (inverse @ (root * _times(b, F, True))[..., None])[..., 0]
                aim = b - root * told
            else:  # where the difference would be rounding
                aim = self._aim(self.f).swapaxes(1, 2)
            fitted = 0.0
            pull = (aim[..., None, :] @ self.X)[..., 0, :]  # [P, K, B, w]
            information = product(rows, inverse @ rows)
            gain, u = R.swapaxes(-1, -2) @ information @ R, pull @ R
        else:
            aim, u = b, (inverse @ (b[..., None, :] @ F).swapaxes(-1, -2))[..., 0]
            fitted, pull = _times(u, F, True), (b[..., None, :] @ self.X)[..., 0, :]
            gain = ((_eye(F.shape[-1]) - inverse) * heavy[..., None]).sum(axis=2)
            C = (self.W.swapaxes(-2, -3)[..., None] * F).swapaxes(-1, -2) @ self.X
            pull = pull - (u[..., None, :] @ C)[..., 0, :]
            information = product(rows, rows) - product(C, inverse @ C)
        scatter = (u * heavy).swapaxes(-1, -2) @ u
        pull, squares = (pull * heavy).sum(axis=2), np.zeros((P, K))
        if self.squared:
            off = (self.target - self.under).swapaxes(1, 2) - fitted
            squares = (_dot(aim, off) * one[:, None]).sum(axis=-1)
        sizes = [(float(own.sum()), float(own @ mass)) for own in one]
        each = (pull, information, scatter, gain)
        return [
            Moments(*sizes[p], *(a[p, k] for a in each), float(squares[p, k]))
            for p in range(P)
            for k in range(K)
        ]


@lru_cache(maxsize=8)
def _eye(d: int) -> np.ndarray:
    return np.eye(d)


def _with_one(A: np.ndarray) -> np.ndarray:
    """A + I, in place; more than I where that would be lost in rounding."""
    diagonal, one = A.diagonal(axis1=-2, axis2=-1), _eye(A.shape[-1])
    if diagonal.max(initial=0.0) <= HUGE:  # `beside` is 1, and most of a small task's time
        A += one
    else:
        A += beside(diagonal)[..., None, None] * one
    return A


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.add.reduce(a * b, axis=-1)


def _times(p: np.ndarray, F: np.ndarray, apart: bool = False) -> np.ndarray:
    """F·p, [P, B, K, n], of F [P, B, n, d]; [P, K, B, n] of F [P, 1, B, n, d] where outputs come
    before tasks.
    """
    return (F @ p[..., None])[..., 0] if apart else p @ F.swapaxes(-1, -2)


def _solve(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A⁻¹·b of A [..., d, d] with positive minors, b [..., d]."""
    d = A.shape[-1]
    if d > SMALL or b[..., 0].size < MANY:
        return np.linalg.solve(A, b[..., None])[..., 0]
    A = np.broadcast_to(A, (*b.shape, d))
    # Gauss, the systems side by side: a LAPACK call each would cost more than its work.
    U = np.moveaxis(A, (-2, -1), (0, 1)).copy()
    x = np.moveaxis(b, -1, 0).copy()
    for i in range(d):
        for j in range(i + 1, d):
            factor = U[j, i] / U[i, i]
            U[j, i + 1 :] -= factor * U[i, i + 1 :]
            x[j] -= factor * x[i]
    for i in reversed(range(d)):
        for j in range(i + 1, d):
            x[i] -= U[i, j] * x[j]
        x[i] /= U[i, i]
    return np.moveaxis(x, 0, -1)
