"""The posterior of a batch of tasks under some Gaussians at once.

Members (Gaussians), tasks and outputs are axes [P, B, K]. A task with rows X, a prior N(mean,
noise·H) and margins z = X·mean + f is solved for f. With fewer rows than directions f = G·a,
G = X·H·Xᵀ, else f = Z·u, Z = X·R, H = R·Rᵀ. Newton's method minimises Σ ℓ(z) + |u|²/2 =
Σ ℓ(z) + a·f/2, which a squared loss reaches in one step. Of the loss it asks value, slope and
curvature in the margins, nothing else.

``refine=0`` gives the mode. ``refine=2`` averages the logistic loss over the uncertainty N(z, v) of
every margin: the minimum is then the mean of the Gaussian nearest to the posterior, where the mode
lies too near to the mean of all tasks. The minimum and v depend on each other; v is computed again
in the first steps, beginning with the prior's.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.arrays import Array, device, dot, namespace, zeros
from fmrl.core.losses import Logistic, Loss, OneVsAll, Squared
from fmrl.core.losses.basic import Weighted
from fmrl.core.matrices import eigh
from fmrl.core.prior.normal import normal_cdf_and_density
from fmrl.core.prior.padding import Rows
from fmrl.core.prior.small_inverses import HUGE, eye_like, inverse, plus_identity, solve
from fmrl.core.prior.statistics import Moments

NEWTON = 30  # Newton steps at most; a handful is usual
# The third derivative of the logistic loss is at most its second. So a Newton step that moves no
# margin by more than r multiplies curvatures by at most eʳ, and lowers the value where
# (eʳ − 1 − r)/r² < 1, which is r < 1.79. Averaged over a margin's uncertainty that holds but on the
# far tails of the Φ below, where rows hardly count. After CLOSE there is nothing to win.
SAFE, CLOSE = 1.79, 1e-3
REFINE = 2  # steps in which v is computed, where the nearest Gaussian is wanted
# A sigmoid is Σ part·Φ(narrow·z) to 5e-4, and the average of Φ over a Gaussian is a Φ again.
PARTS = np.reshape([0.43544115, 0.56455885], (2, 1, 1, 1, 1))
NARROW = np.reshape([0.43526575, 0.76848086], (2, 1, 1, 1, 1))


class Members(NamedTuple):
    """Gaussians side by side."""

    mean: Array  # [P, K, w]
    H: Array  # [P, w, w] covariance over noise
    R: Array  # [P, w, d] H = R·Rᵀ, a column for every direction in which tasks differ
    noise: Array  # [P]


def root_of(gaussian: Any) -> Array:
    """R [d, r] with R·Rᵀ = covariance/noise, a column for every parameter in which tasks differ.

    It changes little when the covariance does, so that a mode in units of R is near the last one.

    Args:
        gaussian: A Gaussian.
    """
    xp = namespace(gaussian.mean)
    H = gaussian.covariance / gaussian.noise
    size = xp.linalg.diagonal(H)
    some = xp.nonzero(size > 0)[0]
    unit = xp.sqrt(xp.take(size, some))
    H = xp.take(xp.take(H, some, axis=0), some, axis=1) / (unit[:, None] * unit)
    eye = xp.take(eye_like(size.shape[0], size), some, axis=1)
    if not bool(xp.any(xp.abs(H) * (1 - xp.take(eye, some, axis=0)) > 0)):
        return eye * unit
    values, vectors = eigh(H)  # of correlations: units of columns do not matter
    half = xp.sqrt(xp.maximum(values, xp.zeros_like(values)))
    return eye @ (unit[:, None] * ((vectors * half) @ vectors.mT))


def joint_rows(loss: Loss, rows: Rows) -> tuple[Loss, Rows]:
    """Return all outputs of a loss as one problem: a row for every round and output.

    Args:
        loss: With k outputs.
        rows: Of B tasks, targets as the loss encodes them.

    Returns:
        The loss, and rows X [B, n·k, k·f] of the flat parameters, targets [B, n·k, 1], weights
        [B, n·k].
    """
    X, target, weight = rows
    xp = namespace(X)
    if isinstance(loss, Weighted):
        loss, weight, target = loss.loss, weight * target[..., -1], target[..., :-1]
    if (k := loss.outputs) == 1:
        return loss, Rows(X, target, weight)
    B, n, f = X.shape
    wide = X[:, :, None, None, :] * eye_like(k, X)[:, :, None]  # [B, n, k, k, f]
    weight = xp.reshape(xp.broadcast_to(weight[..., None], (B, n, k)), (B, n * k))
    target = xp.reshape(target, (B, n * k, 1))
    return loss, Rows(xp.reshape(wide, (B, n * k, k * f)), target, weight)


class AveragedLogistic:
    """The logistic loss averaged over margins N(z, v), by normal distribution functions.

    Args:
        target: [B, K, n].
        weight: [B, 1, n].
    """

    def __init__(self, target: Array, weight: Array):
        self.target, self.positive = target, weight * target
        self.parts, self.near = PARTS, NARROW
        if not isinstance(weight, np.ndarray):
            like = {"dtype": weight.dtype, "device": device(weight)}
            self.parts, self.near = (namespace(weight).asarray(a, **like) for a in (PARTS, NARROW))
        self.squares, self.weighed = self.near * self.near, self.parts * weight

    def spread(self, v: Array) -> None:
        """Set the variances of the margins, [P, B, K, n]."""
        self.narrow = self.near / namespace(v).sqrt(1 + self.squares * v)  # [parts, P, B, K, n]
        self.steep = self.weighed * self.narrow

    def value(self, z: Array) -> Array:
        """The averaged loss at margins z, without weights, [P, B, K, n]."""
        chance, bell = normal_cdf_and_density(self.narrow * z)
        both = self.parts * (z * chance + bell / self.narrow)
        return both[0, ...] + both[1, ...] - self.target * z

    def slope_and_curvature(self, z: Array) -> tuple[Array, Array]:
        """Its first two derivatives at z, weighted."""
        chance, bell = normal_cdf_and_density(self.narrow * z)
        chance *= self.weighed
        bell *= self.steep
        slope = chance[0, ...] + chance[1, ...] - self.positive
        return slope, bell[0, ...] + bell[1, ...]


class BatchedPosterior:
    """Tasks of a few lengths under some members, at their minimum.

    Args:
        members: P Gaussians.
        rows: Of B tasks with K targets: every output is a problem of its own, or K = 1.
        loss: Of one row; with k > 1 outputs the rows are those of `joint_rows`, or K = k and the
            loss is a sum over the outputs.
        refine: In how many steps the uncertainty of margins of two classes is computed; 0 gives the
            mode, default REFINE.
        start: `at` of the same tasks under members that are a little different.
        close: By how much the last step moves a margin, at most; default CLOSE.
    """

    def __init__(
        self, members: Members, rows: Rows, loss: Loss,
        refine: int | None = None, start: tuple[Any, Any, Any] | None = None,
        close: float | None = None,
    ):  # fmt: skip
        X, target, weight = rows
        self.xp = np if isinstance(X, np.ndarray) else namespace(X)  # wrappers take time
        self.X, self.members = X, members
        self.weight = weight[:, None]  # [B, 1, n]
        self.dual = X.shape[1] < members.R.shape[2]
        across = X.mT
        self.under = members.mean[:, None] @ across  # [P, B, K, n]
        self.target, self.squared = target.mT, isinstance(loss, Squared)
        # Outputs of one-vs-all are binary problems of their own.
        self.loss = Logistic() if isinstance(loss, OneVsAll) and not loss.coupled else loss
        self.group, self.coupled = self.loss.outputs, self.loss.coupled
        self.logistic = isinstance(self.loss, Logistic)
        if self.dual:
            self.XH = X @ members.H[:, None]  # [P, B, n, w]
            self.F = self.XH @ across  # G [P, B, n, n]
        else:
            self.F = X @ members.R[:, None]  # Z [P, B, n, d]
        if self.logistic:
            self.average = AveragedLogistic(self.target, self.weight)
        refine = REFINE if refine is None else refine
        self._solve(start, close or CLOSE, refine if self.logistic else 0)

    @cached_property
    def p(self) -> Array:
        """a or u, [P, B, K, d]; of squared losses, which do without it until it is asked for."""
        if self.squared:
            return self._aim(self.f)
        return zeros((*self.f.shape[:-1], self.F.shape[-1]), self.X)

    @cached_property
    def alike(self) -> bool:
        """Whether no task differs from the others."""
        R = self.members.R
        return R.shape[-1] == 1 and not bool(self.xp.any(R != 0))

    def _solve(self, start: tuple[Any, Any, Any] | None, close: float, refine: int) -> None:
        still = self.squared or self.alike
        f, over, v = 0 * self.under, 0 if still else refine, None
        steps = 0 if still else NEWTON
        if start is not None and not still:
            (self.p, near, v), over = start, 0
            f = _times(self.p, self.F)
            # Margins stay about as they were, whatever the members' size.
            size = dot(f, f)
            again = (dot(near, f) / self.xp.where(size > 1e-290, size, 1e-290))[..., None]
            self.p, f = again * self.p, again * f
        elif over:
            v = self._variances(None)
        self.f = f
        self._bend(f, v)
        for i in range(steps):
            aim = self._aim(f, i < over)
            v = self._variances(self.inverse) if i < over else self.v
            there = _times(aim, self.F)
            far = _largest(there - f)
            if not self.logistic or (far > SAFE and i):
                # From wherever the first step leads, the others of a logistic loss go down.
                aim, there = self._shorter(f, aim, there)
            self.p, f = aim, there
            self._bend(f, v)
            if far <= close and i >= over:
                break
        self.f = f

    @property
    def at(self) -> tuple[Array, Array, Any]:
        """From where it is not far to the minimum under members that are a little different."""
        return self.p, self.f, None if self.v is None else self._variances(self.inverse)

    def _shorter(self, f: Array, aim: Array, there: Array) -> tuple[Array, Array]:
        """Halve steps until none makes a task worse; where that does not help, stay."""
        xp, step, along = self.xp, aim - self.p, there - f
        best = self._value(f, self.p)
        best = best + 1e-12 * xp.abs(best)
        length = xp.ones_like(best)[..., None]
        for i in range(31):
            worse = ~(self._value(f + length * along, self.p + length * step) <= best)[..., None]
            if not bool(xp.any(worse)):
                break
            length = xp.where(worse, length / 2 if i < 29 else xp.zeros_like(length), length)
        return self.p + length * step, f + length * along

    def _value(self, f: Array, p: Array) -> Array:
        """What is minimised, [P, B, K]."""
        z = self.under + f
        if self.v is not None:
            losses = self.average.value(z)
        else:
            losses = self.loss.value(self._grouped(z), self._grouped(self.target))
        return dot(self.weight[..., :: self.group], losses) + 0.5 * dot(p, f if self.dual else p)

    def _grouped(self, z: Array) -> Array:
        """Margins [..., n·k] as [..., n, k]."""
        return self.xp.reshape(z, (*z.shape[:-1], z.shape[-1] // self.group, self.group))

    def _bend(self, f: Array, v: Array | None) -> None:
        """Slope and curvature of the rows at f, averaged over margins of variances v."""
        z = self.under + f
        vars(self).pop("inverse", None)
        if v is not None and v is not vars(self).get("v"):
            self.average.spread(v)
        self.v = v
        if self.squared:
            self.slope, self.W = self.weight * (z - self.target), self.weight
        elif v is not None:
            self.slope, self.W = self.average.slope_and_curvature(z)
        else:
            z, target = self._grouped(z), self._grouped(self.target)
            slope, bend = self.loss.slope(z, target), self.loss.curvature(z, target)
            self.slope = self.weight * self.xp.reshape(slope, f.shape)
            if self.coupled:  # [P, B, K, n, k, k]
                self.W = self._grouped(self.weight)[..., None] * bend
            else:
                self.W = self.weight * self.xp.reshape(bend, f.shape)

    def _weighed(self, rows: Array) -> Array:
        """W·rows, for rows [..., n, c]."""
        if not self.coupled:
            return self.W[..., None] * rows
        n, k = self.W.shape[-3:-1]
        parts = self.xp.reshape(rows, (*rows.shape[:-2], n, k, rows.shape[-1]))
        found = self.W @ parts
        return self.xp.reshape(found, (*found.shape[:-3], n * k, rows.shape[-1]))

    def _residual(self, f: Array) -> Array:
        """W·f − slope, [P, B, K, n]: what the quadratic model fits."""
        return self._weighed(f[..., None])[..., 0] - self.slope

    def _aim(self, f: Array, inverse: bool = False) -> Array:
        """The minimum of the quadratic model; by `inverse`, where that is needed anyway."""
        b = self._residual(f) if self.coupled else self.W * f - self.slope
        if not self.dual:
            b = (b[..., None, :] @ self.F[:, :, None])[..., 0, :]
        if inverse:
            return (self.inverse @ b[..., None])[..., 0]
        if self.coupled:  # minors need not be positive
            return self.xp.linalg.solve(self._system(), b[..., None])[..., 0]
        return solve(self._system(), b)

    def _system(self) -> Array:
        """I + W·G, or I + ZᵀWZ, [P, B, K, d, d]. The former is less work than I + √W·G·√W, and
        nothing cancels.
        """
        F = self.F[:, :, None]
        heavy = self._weighed(F) if self.coupled else self.W[..., None] * F
        system = heavy if self.dual else heavy.mT @ F
        if not self.tame:
            return plus_identity(system)
        system += eye_like(system.shape[-1], system)
        return system

    @cached_property
    def tame(self) -> bool:
        """Whether 1 is not lost beside any of these numbers, which is so but for huge ones."""
        if not self.squared and not self.logistic:
            return False
        most, rows = _largest(self.F), _largest(self.weight) * self.X.shape[1]
        return rows * (most if self.dual else most * most) <= HUGE

    @cached_property
    def inverse(self) -> Array:
        """Of `_system`, until curvatures change."""
        return self.xp.linalg.inv(self._system()) if self.coupled else inverse(self._system())

    def _variances(self, inverse: Array | None) -> Array:
        """Variances of the margins of its own rows, [P, B, K, n]; None: before any was seen."""
        F = self.F[:, :, None]
        if not self.dual:
            known = dot(F if inverse is None else F @ inverse, F)
        elif inverse is None:
            known = self.xp.linalg.diagonal(F)
        else:
            known = dot(F, inverse.mT)
        return self._positive(known)

    def _positive(self, a: Array) -> Array:
        """Without what rounding leaves below 0."""
        if isinstance(a, np.ndarray):
            return np.maximum(a, 0.0)
        return self.xp.where(a > 0, a, self.xp.zeros_like(a))

    def theta(self) -> Array:
        """Parameters of the tasks, [P, B, K, w]."""
        mean = self.members.mean[:, None]
        return mean + (self.p @ self.XH if self.dual else self.p @ self.members.R[:, None].mT)

    def spread(self) -> Array:
        """Their covariances [P, B, K, w, w]."""
        noise = self.members.noise[:, None, None, None, None]
        if self.dual:
            rows = self.XH[:, :, None]
            told = rows.mT @ (self.inverse @ self._weighed(rows))
            return noise * (self.members.H[:, None, None] - told)
        R = self.members.R[:, None, None]
        return noise * (R @ self.inverse @ R.mT)

    def variance(self, X: Array) -> Array:
        """Variances of the margins of other rows X [B, H, w], [P, B, K, H]; of one output."""
        noise = self.members.noise[:, None, None, None]
        if not self.dual:
            Z = (X @ self.members.R[:, None])[:, :, None]  # [P, B, 1, H, d]
            known = dot(Z @ self.inverse, Z)
            return noise * self._positive(known)
        XH = X @ self.members.H[:, None]
        rows = (XH @ self.X.mT)[:, :, None]  # [P, B, 1, H, n]
        told = dot((rows @ self.inverse) * self.W[..., None, :], rows)
        known = dot(XH, X)[:, :, None] - told
        return noise * self._positive(known)

    def evidence(self) -> Array:
        """Log marginal likelihood of the rows up to what all members of one noise share, [P, B];
        for ``refine`` > 0 a lower bound, for the mode Laplace's approximation.
        """
        logdet = self.xp.linalg.slogdet(self._system())[1]
        if not self.squared:
            told = 0.0 if self.v is None else dot(self.W, self._variances(self.inverse))
            return self.xp.sum(-self._value(self.f, self.p) - (logdet - told) / 2, axis=-1)
        r = self.target - self.under
        squares = dot(self.weight * r, r - _times(self.p, self.F))
        each = squares / self.members.noise[:, None, None] + logdet
        return self.xp.sum(-each / 2, axis=-1)

    def moments(self, mass: Array, shares: Array | None = None) -> list[Moments]:
        """What the tasks say about each member's Gaussian of each output, [P·K].

        Args:
            mass: How many rows each task counts for, [B].
            shares: How much it counts for each member, [P, B]; default 1.
        """
        xp, X, R = self.xp, self.X, self.members.R[:, None]
        P, B, K, n = self.under.shape
        one = xp.ones_like(self.under[..., 0, 0]) if shares is None else shares
        heavy = one[:, None, :, None]  # here axes are [P, K, B], so that sums over tasks are quick
        told, aim = self._weighed(X[None, :, None]), _outputs_first(self._residual(self.f))
        told = _outputs_first(xp.broadcast_to(told, (P, B, K, *X.shape[1:])))
        if not self.alike:  # K⁻¹X, K⁻¹r; K⁻¹ = (I + WG)⁻¹·W, or W − WZ·(I + ZᵀWZ)⁻¹·ZᵀW
            right = inverse = _outputs_first(self.inverse)
            if not self.dual:
                F = self.F[:, :, None]
                WF = _outputs_first(xp.broadcast_to(self._weighed(F), (P, B, K, *F.shape[3:])))
                right = WF @ inverse
            told, aim = (
                right @ v if self.dual else v - right @ (self.F[:, None].mT @ v)
                for v in (told, aim[..., None])
            )
            aim = aim[..., 0]
        pull = (aim[..., None, :] @ X)[..., 0, :]
        rows = X if shares is None else X * heavy[..., None]
        rows, told = (xp.reshape(a, (*a.shape[:-3], B * n, a.shape[-1])) for a in (rows, told))
        information = rows.mT @ told  # Σ over tasks and rows, [P, K, w, w]
        gain, u = R.mT @ information @ R, pull @ R
        scatter = (u * heavy).mT @ u
        pull, squares = xp.sum(pull * heavy, axis=2), xp.zeros_like(aim[..., 0, 0])
        if self.squared:
            off = _outputs_first(self.target - self.under)
            squares = xp.sum(dot(aim, off) * one[:, None], axis=-1)
        tasks = [float(xp.sum(one[p, :])) for p in range(P)]
        rounds = [float(dot(one[p, :], mass)) for p in range(P)]
        return [
            Moments(
                tasks[p], rounds[p], pull[p, k, ...], information[p, k, ...],
                scatter[p, k, ...], gain[p, k, ...], float(squares[p, k]),
            )
            for p in range(P)
            for k in range(K)
        ]  # fmt: skip


def _largest(a: Array) -> float:
    """The largest absolute value; 0 of nothing."""
    if isinstance(a, np.ndarray):
        return float(np.maximum.reduce(np.abs(a), axis=None, initial=0.0))
    return float(namespace(a).max(namespace(a).abs(a))) if math.prod(a.shape) else 0.0


def _times(p: Array, F: Array) -> Array:
    """F·p, [P, B, K, n], of F [P, B, n, d]."""
    return p @ F.mT


def _outputs_first(a: Array) -> Array:
    """[P, B, K, …] as [P, K, B, …]."""
    return namespace(a).permute_dims(a, (0, 2, 1, *range(3, a.ndim)))
