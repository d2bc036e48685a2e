"""The models of tasks under all members of a prior at once, in plain NumPy.

This is the MAP of `core.working` (a test holds them together) without the cost of going through
the members, outputs and centres one after another: a service asks for one task at a time, or for
thousands with a few rows each. Members, tasks and outputs are axes [P, B, K].

A task with rows X, a prior N(mean, noise·H) and margins z = X·mean + f is solved for f. With fewer
rows than directions f = G·a, G = X·H·Xᵀ, else f = Z·u, Z = X·R, H = R·Rᵀ. Newton's method goes to
the minimum of Σ ℓ + |u|²/2 = Σ ℓ + a·f/2, which a squared loss reaches in one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import expit

from fmrl.core.losses import Squared
from fmrl.core.tasks import Tasks
from fmrl.core.working import NEWTON, beside, root_of

if TYPE_CHECKING:
    from fmrl.estimators.population import Population

# The third derivative of the logistic loss is at most its second. So a Newton step that moves no
# margin by more than r multiplies curvatures by at most eʳ, and lowers the value where
# (eʳ − 1 − r)/r² < 1, which is r < 1.79. Errors are squared: after CLOSE there is nothing to win.
SAFE, CLOSE = 1.79, 3e-5
MANY = 64  # tasks from which on it pays to tell members apart
SMALL = 6  # rows up to which many systems are eliminated side by side


class Posterior(NamedTuple):
    """Models of some tasks."""

    theta: np.ndarray  # [T, outputs, width]
    spread: np.ndarray | None  # [T, outputs, width, width] their covariance, if it was asked for


class Members(NamedTuple):
    """Members of a prior side by side, one for every centre."""

    mean: np.ndarray  # [P, K, w]
    H: np.ndarray  # [P, w, w]
    R: np.ndarray  # [P, w, d] H = R·Rᵀ, a column for every direction in which tasks differ
    noise: np.ndarray  # [P]


def solved(
    members: Sequence[Population], weights: Sequence[float], tasks: Tasks, spread: bool
) -> list[Posterior | None]:
    """What each member says of some tasks in its coordinates; None where its weight is 0."""
    used = tuple(m for m, weight in zip(members, weights, strict=True) if weight)
    groups = [used]
    if len(tasks) >= MANY:  # members with one direction at most need less work
        plain = tuple(m for m in used if np.count_nonzero(m.covariance.diagonal()) <= 1)
        groups = [g for g in (plain, tuple(m for m in used if m not in plain)) if g]
    said: dict[Population, Posterior] = {}
    for group in groups:
        said.update(zip(group, _solved(group, tasks, spread), strict=True))
    return [said.get(m) for m in members]


def _solved(members: tuple[Population, ...], tasks: Tasks, spread: bool) -> Iterator[Posterior]:
    beside = _beside(members)
    P, (K, w) = len(beside.noise), beside.mean.shape[1:]
    theta = np.empty((P, len(tasks), K, w))
    wide = np.empty((P, len(tasks), K, w, w)) if spread else None
    likely = np.empty((P, len(tasks))) if len(members) < P else None
    squared = isinstance(tasks.loss, Squared)
    for part, X, target, weight in _stacks(tasks):
        found = _Stack(beside, X, target, weight, squared)
        theta[:, part] = found.theta()
        if wide is not None:
            wide[:, part] = found.spread()
        if likely is not None:
            likely[:, part] = found.likely()
    return _each(members, theta, wide, likely)


@lru_cache(maxsize=8)  # a prior has a handful of choices, and members do not change
def _beside(members: tuple[Population, ...]) -> Members:
    pairs = [(m, c) for m in members for c in range(len(m.mean))]
    noise = np.array([m.noise for m, _ in pairs])
    H = np.stack([m.covariance for m, _ in pairs]) / noise[:, None, None]
    roots = [root_of(m.gaussian(0, 0)) for m, _ in pairs]
    R = np.zeros((*H.shape[:2], max(1, *(root.shape[1] for root in roots))))
    for whole, root in zip(R, roots, strict=True):
        whole[:, : root.shape[1]] = root
    return Members(np.stack([m.mean[c] for m, c in pairs]), H, R, noise)


def _each(
    members: tuple[Population, ...], theta: np.ndarray, wide: Any, likely: Any
) -> Iterator[Posterior]:
    """Members around several centres as one: a task's rows say to which it belongs."""
    first = 0
    for member in members:
        own = slice(first, first + len(member.mean))
        first = own.stop
        if len(member.mean) == 1:
            yield Posterior(theta[own.start], None if wide is None else wide[own.start])
            continue
        share = likely[own] + np.log(np.maximum(member.shares, 1e-300))[:, None]
        share = np.exp(share - share.max(axis=0))
        share /= share.sum(axis=0)
        mean = np.einsum("ct,ctkw->tkw", share, theta[own])
        if wide is None:
            yield Posterior(mean, None)
            continue
        off = theta[own] - mean
        between = np.einsum("ct,ctkv,ctkw->tkvw", share, off, off)
        yield Posterior(mean, np.einsum("ct,ctkvw->tkvw", share, wide[own]) + between)


def _stacks(tasks: Tasks) -> Iterator[tuple[Any, np.ndarray, np.ndarray, np.ndarray]]:
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


class _Stack:
    """Tasks of a few lengths under some members, at their minimum."""

    def __init__(
        self, members: Members, X: np.ndarray, target: np.ndarray, weight: np.ndarray, squared: bool
    ):
        self.members, self.weight = members, weight[:, None]  # [B, 1, n]
        self.dual = X.shape[1] < members.R.shape[2]
        across = X.swapaxes(-1, -2)
        self.under = members.mean[:, None] @ across  # [P, B, K, n]
        self.target, self.squared = target.swapaxes(-1, -2), squared
        if self.dual:
            self.XH = X @ members.H[:, None]  # [P, B, n, w]
            self.F = self.XH @ across  # G [P, B, n, n]
        else:
            self.F = X @ members.R[:, None]  # Z [P, B, n, w]
        self._solve()

    def _solve(self) -> None:
        f = np.zeros(self.under.shape)
        self.p = np.zeros((*f.shape[:-1], self.F.shape[-1]))
        self._bend(f)
        if self.squared:
            self.p = self._aim(f)
            return
        for _ in range(NEWTON):
            step = self._aim(f) - self.p
            along = _times(step, self.F)
            far = np.abs(along).max(initial=0.0)
            if far > SAFE:
                step, along = self._shorter(f, step, along)
            self.p, f = self.p + step, f + along
            self._bend(f)
            if far <= CLOSE:
                break
        self.f = f

    def _shorter(self, f: Any, step: Any, along: Any) -> tuple[np.ndarray, np.ndarray]:
        """Halve steps until none makes a task worse; where that does not help, stay."""
        best = self._value(f, self.p) * (1 + 1e-12)
        length = np.ones((*best.shape, 1))
        for i in range(31):
            worse = ~(self._value(f + length * along, self.p + length * step) <= best)
            if not worse.any():
                break
            length[worse] = length[worse] / 2 if i < 29 else 0.0
        return length * step, length * along

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
        self.slope = self.weight * (chance - self.target)
        self.W = self.weight * (chance * (1 - chance))

    def _aim(self, f: np.ndarray) -> np.ndarray:
        """Where the quadratic model has its minimum."""
        b = self.W * f - self.slope
        if self.dual:
            S = np.sqrt(self.W)
            return b - S * _solve(self._inner(S), S * _times(b, self.F))
        return _solve(self._inner(None), (b[..., None, :] @ self.F[:, :, None])[..., 0, :])

    def _inner(self, S: np.ndarray | None) -> np.ndarray:
        """I + √W·G·√W, or I + ZᵀWZ, [P, B, K, d, d]."""
        if S is not None:
            inner = S[..., :, None] * self.F[:, :, None] * S[..., None, :]
        else:
            Z = self.F[:, :, None]
            inner = (self.W[..., None] * Z).swapaxes(-1, -2) @ Z
        inner += beside(np.diagonal(inner, axis1=-2, axis2=-1))[..., None, None] * _eye(
            self.F.shape[-1]
        )
        return inner

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
            S = np.sqrt(self.W)
            rows = S[..., None] * self.XH[:, :, None]
            told = rows.swapaxes(-1, -2) @ (np.linalg.inv(self._inner(S)) @ rows)
            return noise * (self.members.H[:, None, None] - told)
        R = self.members.R[:, None, None]
        return noise * (R @ np.linalg.inv(self._inner(None)) @ R.swapaxes(-1, -2))

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


@lru_cache(maxsize=8)
def _eye(d: int) -> np.ndarray:
    return np.eye(d)


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.add.reduce(a * b, axis=-1)


def _times(p: np.ndarray, F: np.ndarray) -> np.ndarray:
    """F·p, [P, B, K, n], of F [P, B, n, d]."""
    return p @ F.swapaxes(-1, -2)


def _solve(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A⁻¹·b of positive definite A [..., d, d], b [..., d]."""
    d = A.shape[-1]
    if d > SMALL or b[..., 0].size < MANY:
        return np.linalg.solve(A, b[..., None])[..., 0]
    A = np.broadcast_to(A, (*b.shape, d))
    # Gauss, the systems side by side: a LAPACK call each would cost more than its work.
    U = np.moveaxis(A, (-2, -1), (0, 1)).copy()
    x = np.moveaxis(b, -1, 0).copy()
    for i in range(d):
        for j in range(i + 1, d):
            factor = U[i, j] / U[i, i]  # symmetric: the upper half is enough
            U[j, j:] -= factor * U[i, j:]
            x[j] -= factor * x[i]
    for i in reversed(range(d)):
        for j in range(i + 1, d):
            x[i] -= U[i, j] * x[j]
        x[i] /= U[i, i]
    return np.moveaxis(x, 0, -1)
