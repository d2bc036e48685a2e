"""A stack of tasks at their minimum under some members of a prior, in plain NumPy.

Members, tasks and outputs are axes [P, B, K]. A task with rows X, a prior N(mean, noise·H) and
margins z = X·mean + f is solved for f. With fewer rows than directions f = G·a, G = X·H·Xᵀ, else
f = Z·u, Z = X·R, H = R·Rᵀ. Newton's method goes to the minimum of Σ ℓ + |u|²/2 = Σ ℓ + a·f/2,
which a squared loss reaches in one step.

A logistic loss is averaged over the uncertainty N(z, v) of its margin: the minimum is then the mean
of the Gaussian nearest to the posterior, where the mode lies too near to the mean of all tasks. The
minimum and v depend on each other; v is computed again in the first steps, from the prior's on.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, ndtr

from fmrl.core.posterior import NEWTON, Moments
from fmrl.estimators.systems import HUGE, dot, eye, inverse, solve, with_one

# The third derivative of the logistic loss is at most its second. So a Newton step that moves no
# margin by more than r multiplies curvatures by at most eʳ, and lowers the value where
# (eʳ − 1 − r)/r² < 1, which is r < 1.79. Averaged over a margin's uncertainty that holds but on the
# far tails of the Φ below, where rows hardly count. After CLOSE there is nothing to win.
SAFE, CLOSE = 1.79, 1e-3
OVER = 2  # steps in which v is computed; 0: the mode
# A sigmoid is Σ part·Φ(narrow·z) to 5e-4, and the average of Φ over a Gaussian is a Φ again.
PARTS = np.reshape([0.43544115, 0.56455885], (2, 1, 1, 1, 1))
NARROW = np.reshape([0.43526575, 0.76848086], (2, 1, 1, 1, 1))
BELL = 1 / np.sqrt(2 * np.pi)


class Members(NamedTuple):
    """Members of a prior side by side, one for every centre."""

    mean: np.ndarray  # [P, K, w]
    H: np.ndarray  # [P, w, w]
    R: np.ndarray  # [P, w, d] H = R·Rᵀ, a column for every direction in which tasks differ
    noise: np.ndarray  # [P]


class Stack:
    """Tasks of a few lengths under some members, at their minimum.

    Args:
        members: P of them.
        X: Rows [B, n, w].
        target: [B, n, K].
        weight: [B, n], 0 for padding.
        squared: Whether the loss is, or else logistic.
        start: `at` of the same tasks under members that are a little different.
        close: By how much the last step moves a margin, at most; default CLOSE.
    """

    def __init__(
        self, members: Members, X: np.ndarray, target: np.ndarray, weight: np.ndarray,
        squared: bool, start: tuple[Any, Any, Any] | None = None, close: float | None = None,
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
        self._solve(start, close or CLOSE)

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

    def _solve(self, start: tuple[Any, Any, Any] | None, close: float) -> None:
        still = self.squared or self.alike
        f, over, v = np.zeros(self.under.shape), 0 if still else OVER, None
        steps = 0 if still else NEWTON
        if start is not None:
            (self.p, near, v), over = start, 0
            f = _times(self.p, self.F)
            # Margins stay about as they were, whatever the members' size.
            again = (dot(near, f) / np.maximum(dot(f, f), 1e-290))[..., None]
            self.p, f = again * self.p, again * f
        elif over:
            v = self._known(None)
        self.f = f
        self._bend(f, v)
        for i in range(steps):
            aim = self._aim(f, i < over)
            v = self._known(self.inverse) if i < over else self.v
            there = _times(aim, self.F)
            far = np.maximum.reduce(np.abs(there - f), axis=None, initial=0.0)
            if far > SAFE and i:  # from wherever the first step leads, the others go down
                aim, there = self._shorter(f, aim, there)
            self.p, f = aim, there
            self._bend(f, v)
            if far <= close and i >= over:
                break
        self.f = f

    @property
    def at(self) -> tuple[np.ndarray, np.ndarray, Any]:
        """From where it is not far to the minimum under members that are a little different."""
        return self.p, self.f, None if self.v is None else self._known(self.inverse)

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
        return dot(p, f if self.dual else p)

    def _value(self, f: np.ndarray, p: np.ndarray) -> np.ndarray:
        """What is minimised, [P, B, K]."""
        z = self.under + f
        loss = (np.logaddexp(0, z) if self.v is None else self._softplus(z)) - self.target * z
        return dot(self.weight, loss) + 0.5 * self._size(p, f)

    def _softplus(self, z: np.ndarray) -> np.ndarray:
        """log(1 + exp(z)), averaged over margins of variances v."""
        t = self.narrow * z
        first, second = PARTS * (z * ndtr(t) + BELL * np.exp(-0.5 * t * t) / self.narrow)
        return first + second

    def _bend(self, f: np.ndarray, v: np.ndarray | None) -> None:
        """Gradient and curvature of the rows at f, averaged over margins of variances v."""
        z = self.under + f
        vars(self).pop("inverse", None)
        if v is not None and v is not vars(self).get("v"):
            self.narrow = NARROW / np.sqrt(1 + NARROW**2 * v)  # [parts, P, B, K, n]
            self.parts = PARTS * self.weight
            self.steep = BELL * self.parts * self.narrow
        self.v = v
        if self.squared:
            self.slope, self.W = self.weight * (z - self.target), self.weight
            return
        if v is None:
            chance = expit(z)
            heavy = self.weight * chance
            self.slope, self.W = heavy - self.weighed, heavy * (1 - chance)
            return
        t = self.narrow * z
        first, second = self.parts * ndtr(t)
        self.slope = first + second - self.weighed
        first, second = self.steep * np.exp(-0.5 * t * t)
        self.W = first + second

    def _aim(self, f: np.ndarray, inverse: bool = False) -> np.ndarray:
        """Where the quadratic model has its minimum; by `inverse`, where that is needed anyway."""
        b = self.W * f - self.slope
        if not self.dual:
            b = (b[..., None, :] @ self.F[:, :, None])[..., 0, :]
        if inverse:
            return (self.inverse @ b[..., None])[..., 0]
        return solve(self._system(), b)

    def _system(self) -> np.ndarray:
        """I + W·G, or I + ZᵀWZ, [P, B, K, d, d]. The former is less work than I + √W·G·√W, and
        nothing cancels.
        """
        F, W = self.F[:, :, None], self.W[..., None]
        system = W * F if self.dual else (W * F).swapaxes(-1, -2) @ F
        if not self.tame:
            return with_one(system)
        system += eye(system.shape[-1])
        return system

    @cached_property
    def tame(self) -> bool:
        """Whether 1 is not lost beside any of these numbers, which is so but for huge ones."""
        most = float(np.maximum.reduce(np.abs(self.F), axis=None, initial=0.0))
        rows = float(self.weight.sum(axis=-1).max(initial=0.0))
        return rows * (most if self.dual else most * most) <= HUGE

    @cached_property
    def inverse(self) -> np.ndarray:
        """Of `_system`, until curvatures change."""
        return inverse(self._system())

    def _known(self, inverse: np.ndarray | None) -> np.ndarray:
        """Variances of the margins of its own rows, [P, B, K, n]; None: before any was seen."""
        F = self.F[:, :, None]
        if not self.dual:
            known = dot(F if inverse is None else F @ inverse, F)
        elif inverse is None:
            known = F.diagonal(axis1=-2, axis2=-1)
        else:
            known = dot(F, inverse.swapaxes(-1, -2))
        return np.maximum(known, 0.0)

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
            told = rows.swapaxes(-1, -2) @ (self.inverse @ (self.W[..., None] * rows))
            return noise * (self.members.H[:, None, None] - told)
        R = self.members.R[:, None, None]
        return noise * (R @ self.inverse @ R.swapaxes(-1, -2))

    def variance(self, X: np.ndarray) -> np.ndarray:
        """Of the margins of other rows X [B, H, w], [P, B, K, H]."""
        noise = self.members.noise[:, None, None, None]
        if not self.dual:
            Z = (X @ self.members.R[:, None])[:, :, None]  # [P, B, 1, H, d]
            return noise * np.maximum(dot(Z @ self.inverse, Z), 0.0)
        XH = X @ self.members.H[:, None]
        rows = (XH @ self.X.swapaxes(-1, -2))[:, :, None]  # [P, B, 1, H, n]
        told = dot((rows @ self.inverse) * self.W[..., None, :], rows)
        return noise * np.maximum(dot(XH, X)[:, :, None] - told, 0.0)

    def likely(self) -> np.ndarray:
        """How likely the rows are without their parameters, but for what all centres of a member
        have in common; [P, B].
        """
        logdet = np.linalg.slogdet(self._system())[1]
        if not self.squared:  # a lower bound; Laplace's value at the mode
            told = 0.0 if self.v is None else dot(self.W, self._known(self.inverse))
            return (-self._value(self.f, self.p) - (logdet - told) / 2).sum(axis=-1)
        r = self.target - self.under
        fitted = _times(self.p, self.F)
        squares = dot(self.weight * r, r - fitted)
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
        b, W = (self.W * self.f - self.slope).swapaxes(1, 2), np.broadcast_to(self.W, self.f.shape)
        heavier = W.swapaxes(1, 2)[..., None] * self.X  # [P, K, B, n, w]
        rows = self.X[None, None]

        def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
            """Σ leftᵀ·right over tasks and rows, [P, K, w, w]."""
            if shares is not None:
                left = left * heavy[..., None]
            left, right = (a.reshape(*a.shape[:2], -1, a.shape[-1]) for a in (left, right))
            return left.swapaxes(-1, -2) @ right

        F = self.F[:, None]  # [P, 1, B, n, d]
        inverse = None if self.alike else self.inverse.swapaxes(1, 2)
        if inverse is None:
            aim, fitted, u = b, 0.0, self.p.swapaxes(1, 2)
            pull, information = (b[..., None, :] @ self.X)[..., 0, :], product(rows, heavier)
            gain = np.zeros((P, K, *R.shape[-1:] * 2))
        elif self.dual:
            aim, fitted = (inverse @ b[..., None])[..., 0], 0.0
            pull = (aim[..., None, :] @ self.X)[..., 0, :]  # [P, K, B, w]
            information = product(rows, inverse @ heavier)
            gain, u = R.swapaxes(-1, -2) @ information @ R, pull @ R
        else:
            aim, u = b, (inverse @ (b[..., None, :] @ F).swapaxes(-1, -2))[..., 0]
            fitted, pull = _times(u, F, True), (b[..., None, :] @ self.X)[..., 0, :]
            gain = ((eye(F.shape[-1]) - inverse) * heavy[..., None]).sum(axis=2)
            C = F.swapaxes(-1, -2) @ heavier
            pull = pull - (u[..., None, :] @ C)[..., 0, :]
            information = product(rows, heavier) - product(C, inverse @ C)
        scatter = (u * heavy).swapaxes(-1, -2) @ u
        pull, squares = (pull * heavy).sum(axis=2), np.zeros((P, K))
        if self.squared:
            off = (self.target - self.under).swapaxes(1, 2) - fitted
            squares = (dot(aim, off) * one[:, None]).sum(axis=-1)
        sizes = [(float(own.sum()), float(own @ mass)) for own in one]
        each = (pull, information, scatter, gain)
        return [
            Moments(*sizes[p], *(a[p, k] for a in each), float(squares[p, k]))
            for p in range(P)
            for k in range(K)
        ]


def _times(p: np.ndarray, F: np.ndarray, apart: bool = False) -> np.ndarray:
    """F·p, [P, B, K, n], of F [P, B, n, d]; [P, K, B, n] of F [P, 1, B, n, d] where outputs come
    before tasks.
    """
    return (F @ p[..., None])[..., 0] if apart else p @ F.swapaxes(-1, -2)
