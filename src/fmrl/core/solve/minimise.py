"""min over a domain of summed losses [+ B_R(·‖phi)/eta], batched over tasks, with a duality gap
that proves the answer.

What decides which method runs is `Leaders._solve`:

* linear losses have a closed form;
* smooth losses on a ball, or without bounds, go to `majorise`, or first to its cheap form `descend`
  where there are more rounds than features;
* what these leave unproved, the hinge, boxes and the simplex go to `interior`, and there an optimum
  that is not unique to its `shortest`.

The promise: gap ≤ max(1e-10·|value|, 1e-13·(losses at the domain's middle)), and honest always. A
problem that misses it still returns the gap it proved, and ``Solution.ended`` says why.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import IntEnum
from typing import Any, NamedTuple

from fmrl.core.arrays import Array, as_float, constant, dot, full, namespace, to_numpy, zeros
from fmrl.core.domains import Ball, Domain, Euclidean
from fmrl.core.samples import Samples
from fmrl.core.solve.gap import Columns, Found, Method, Objective
from fmrl.core.solve.interior import interior, shortest
from fmrl.core.solve.majorise import Rotation, descend, majorise
from fmrl.core.solve.unbounded import prove
from fmrl.errors import FMRLError

LARGEST = 1e30  # of a feature, target or phi: far above any use, far below what overflows


class Reason(IntEnum):
    """Why a method ended."""

    PROVED = 0  # the gap keeps the promise
    ROUNDING = 1  # the gap is what float64 leaves of the losses
    LIMIT = 2  # no step made progress any more, or there were too many
    # Nothing bounds theta and the columns of X are dependent up to rounding, so that no gap can be
    # proved: it is the value itself, as no loss is below 0, or infinite.
    NO_PROOF = 3


class Solution(NamedTuple):
    """A minimiser and the proof of how good it is: the minimum lies in [value − gap, value].

    ``ended`` holds 10·method + reason for each problem; ``why`` says it in words.

    >>> import numpy as np
    >>> from fmrl.core.losses import Squared
    >>> from fmrl.core.tasks import Task
    >>> minimise(Task(np.eye(2), [3.0, 4.0], loss=Squared()).open(), Ball(1.0)).why
    'descent: proved'
    """

    theta: Array  # [..., d]
    value: Array  # [...]
    gap: Array  # [...] ≥ 0
    ended: Array | None = None  # [...]: None where no solver took part

    @property
    def why(self) -> Any:
        """Which method ended and why: a sentence, or a nested list of them for a stack."""
        if self.ended is None:
            return "given"

        def text(code: Any) -> Any:
            if isinstance(code, list):
                return [text(c) for c in code]
            names = Method(code // 10).name, Reason(code % 10).name
            return ": ".join(name.lower().replace("_", " ") for name in names)

        return text(to_numpy(self.ended).tolist())


def minimise(
    samples: Any, domain: Domain, phi: Array | None = None, eta: Array | None = None
) -> Solution:
    """argmin over ``domain`` of F = Σ losses, or of F + B_R(·‖phi)/eta.

    Of several minimisers it is the one of least B_R from the origin: on a Ball, a Box and
    Euclidean() the one of least norm; on the simplex not that, but the one of least KL divergence
    from the uniform distribution, where its regulariser is least.

    The gap asked for is the larger of 1e-10 of the value and 1e-13 of the losses at the start. One
    that cannot be reached, or not be proved, is returned as it is, and `Solution.why` says so. On
    `Euclidean()` there is no proof for columns that are dependent up to rounding but not exactly:
    the gap is then as large as the value.

    Args:
        samples: A Task, or rounds with X [..., n, f]; leading axes are separate problems.
        domain: The set of actions, with its B_R.
        phi: Where B_R is taken from, [..., d]; None for the plain optimum.
        eta: Step of B_R, [...]; only with ``phi``.

    Returns:
        The minimisers with their values, gaps and how the solver ended.

    >>> import numpy as np
    >>> from fmrl.core.tasks import Task
    >>> from fmrl.core.losses import Squared
    >>> task = Task(np.eye(2), np.array([3.0, 4.0]), loss=Squared())
    >>> minimise(task.open(), Ball(1.0)).theta.round(6)
    array([0.6, 0.8])
    """
    samples = samples.open() if hasattr(samples, "open") else samples
    if not (isinstance(samples, Samples) and isinstance(domain, Domain)):
        what = f"minimise takes a Task and a domain, not {samples!r:.60} and {domain!r:.60}"
        raise FMRLError(what, fix="give minimise(Task(X, y, loss=…), Ball(1.0))")
    if phi is not None:
        start, step, lead = as_float(phi, "phi"), as_float(eta, "eta"), samples.X.shape[:-2]
        steps = step.shape in ((), lead)
        if start.shape not in ((samples.dim,), (*lead, samples.dim)) or not steps:
            what = f"phi of shape {tuple(start.shape)} with eta of shape {tuple(step.shape)}"
            fix = f"give phi of length {samples.dim}, and a step eta"
            raise FMRLError(f"{what} was given", fix=fix)
        phi, eta = start, step
    return Leaders(samples, domain, phi, eta).solution(samples.length)


class Leaders:
    """FTRL's actions after i = 1, 2, … rounds of one stack of tasks, each started from the one
    before; arguments as for `minimise`.

    The rotation is made anew whenever the number of rounds doubles, so that it fits the rounds
    seen.
    """

    def __init__(
        self, samples: Samples, domain: Domain, phi: Array | None = None, eta: Array | None = None
    ):
        xp, self.lead, dim = namespace(samples.X), samples.X.shape[:-2], samples.dim
        # Everything is solved in double precision: what a float32 solver calls rounding can be a
        # feature.
        self.dtype, self.domain, self.phi, self.eta = samples.X.dtype, domain, None, None
        self.samples = _flat(samples)
        if phi is not None:
            self.phi = self._wide(xp.broadcast_to(phi, (*self.lead, dim)), dim)
            self.eta = self._wide(xp.broadcast_to(constant(eta, phi), self.lead))
        _check(self.samples, self.phi)
        self.smooth = isinstance(domain, (Ball, Euclidean)) and 0 < samples.loss.bend < math.inf
        self.columns: Columns | None = None  # of X, where nothing bounds or regularises
        if phi is None and isinstance(domain, Euclidean) and samples.loss.bend > 0:
            self.columns = Columns.of(self.samples.X, strict=self.smooth)
            self.samples = _scaled(self.samples, self.columns.unit)
        # An optimum moves phi, so it is wanted to the last digit; an action of FTRL only costs its
        # loss.
        self.still = (5e3 if phi is None else 5e6) * xp.finfo(xp.float64).eps
        self.rotation: Rotation | None = None
        self.v: Array | None = None  # the last action, in the rotation's coordinates

    def _wide(self, a: Array, *last: int) -> Array:
        xp = namespace(a)
        return xp.astype(xp.reshape(a, (-1, *last)), xp.float64, copy=False)

    def _narrow(self, a: Array, *last: int) -> Array:
        xp = namespace(a)
        return xp.reshape(xp.astype(a, self.dtype, copy=False), (*self.lead, *last))

    def __call__(self, i: int) -> Array:
        """FTRL's action after i rounds, shape [..., d]."""
        return self._narrow(self._solve(i).theta, self.samples.dim)

    def solution(self, i: int) -> Solution:
        """The minimiser over the first i rounds with its value and gap."""
        xp, problem = namespace(self.samples.X), self._problem(i)
        found = self._solve(i)
        if self.columns is not None and self.smooth and problem.samples.loss.attained:
            found = found._replace(theta=self.columns.refine(problem.samples, found.theta))
        if self.smooth:  # proved in these coordinates: a rotation drops features below its rounding
            found = problem.prove(found)
        found, reason = _honest(problem, found)
        if self.columns is not None:
            _refuse_separable(problem.samples, found.value, reason)
            found, reason = _unbounded(problem, found, reason)
        theta, value, gap, _, method = found
        if self.columns is not None:
            theta = _unscaled(problem.samples, theta, self.columns.unit)
            if problem.samples.loss.coupled:  # softmax does not see what all classes share
                apart = problem.samples.matrix(theta)
                apart = apart - xp.mean(apart, axis=-2, keepdims=True)
                theta = xp.reshape(apart, theta.shape)
        if self.eta is not None:  # solved as eta·F + B_R, which stays finite as eta → 0
            scale = xp.where(self.eta > 0, self.eta, full((), math.inf, value))
            value, gap = value / scale, gap / scale
        theta = self._narrow(theta, problem.samples.dim)
        ended = xp.reshape(10 * method + reason, self.lead)
        return Solution(theta, self._narrow(value), self._narrow(gap), ended)

    def _problem(self, i: int) -> Objective:
        span = None if self.columns is None else self.columns.span
        return Objective(self.samples.first(i), self.domain, self.phi, self.eta, span)

    def _solve(self, i: int) -> Found:
        """F, or eta·F + B_R, minimised on the first i rounds: here it is decided how."""
        if self.samples.loss.bend == 0:
            return _closed_form(self._problem(i))
        if not self.smooth:
            problem = self._problem(i)
            if self.columns is not None:  # columns of like size are easier, but lengths are ours
                size = self.columns.size
                found = interior(problem._replace(samples=_scaled(problem.samples, size)))
                found = found._replace(theta=_unscaled(problem.samples, found.theta, size))
            else:
                found = interior(problem)
            return found if self.phi is not None else shortest(problem, found)
        # Plain descent is fast where a ball holds back; an eigenbasis of few rounds is cheap.
        plain = isinstance(self.domain, Ball) and self.domain.centre == 0.0 and self.phi is None
        if not plain or i < self.samples.X.shape[-1]:
            return self._majorised(i)
        problem = self._problem(i)
        found = descend(problem, self.still)
        done = problem.kept(*found[:3])
        if bool(namespace(done).all(done)):
            return found
        (late,) = namespace(done).nonzero(~done)
        return found.merge(done, Leaders(problem.samples.take(late), self.domain)._majorised(i))

    def _majorised(self, i: int) -> Found:
        """In the eigenbasis, and what does not converge there by the interior-point method, which
        finds the one minimiser that those coordinates have.
        """
        xp = namespace(self.samples.X)
        if self.rotation is None or i > self.rotation.X.shape[-2]:
            last = self.phi if self.rotation is None else self.rotation.up(self.v)
            reach = min(self.samples.length, 1 << (i - 1).bit_length())
            self.rotation = Rotation(self.samples.first(reach), self.domain, self.phi)
            self.v = None if last is None else self.rotation.down(last)
        problem, curvature = self.rotation.objective(i, self.eta)
        if self.columns is not None:
            problem = problem._replace(span=self.columns.span)
        begin = zeros((curvature.shape[0], problem.samples.dim), curvature)
        found = majorise(problem, curvature, begin if self.v is None else self.v, self.still)
        done = problem.kept(*found[:3])
        if not bool(xp.all(done)):
            (late,) = xp.nonzero(~done)
            found = found.merge(done, interior(problem.take(late)).or_lower(found, late))
        self.v = found.theta if self.phi is not None else None
        return found._replace(theta=self.rotation.up(found.theta))


def _flat(samples: Samples) -> Samples:
    """The samples in float64 with one leading axis."""
    xp = namespace(samples.X)
    wide = {}
    for name, keep in {"X": 2, "target": 2, "weight": 1, "rounds": 0, "offset": 2}.items():
        a = getattr(samples, name)
        if a is not None:
            a = xp.reshape(a, (-1, *a.shape[a.ndim - keep :]))
            wide[name] = xp.astype(a, xp.float64, copy=False)
    return replace(samples, **wide)


def _scaled(samples: Samples, unit: Array) -> Samples:
    return replace(samples, X=samples.X / unit)


def _unscaled(samples: Samples, theta: Array, unit: Array) -> Array:
    """The action for X of the one that was found for X / unit."""
    return namespace(theta).reshape(samples.matrix(theta) / unit, theta.shape)


def _check(samples: Samples, phi: Array | None) -> None:
    """Refuse numbers whose powers are no numbers."""
    xp = namespace(samples.X)
    for name, a in {"features": samples.X, "targets": samples.target, "phi": phi}.items():
        if a is not None and not bool((xp.max(a) <= LARGEST) & (xp.min(a) >= -LARGEST)):
            what = f"{name} above {LARGEST:g} are too large for the solver"
            raise FMRLError(what, fix="scale them down")


def _closed_form(problem: Objective) -> Found:
    """The minimiser of linear losses, which the domain knows."""
    samples, domain, phi, eta = problem[:4]
    xp = namespace(samples.X)
    slopes = samples.loss.slope(samples.target[..., :1], samples.target)  # the same everywhere
    total = xp.sum(samples.X * (samples.weight[..., None] * slopes), axis=-2)
    if phi is None or eta is None:
        theta = domain.lowest(total)
        value = dot(total, theta)
    else:
        theta = domain.argmin(phi, eta[..., None] * total)
        value = eta * dot(total, theta) + domain.divergence(theta, phi)
    return Found(theta, value, xp.zeros_like(value), slopes, Method.CLOSED_FORM.everywhere(value))


def _honest(problem: Objective, found: Found) -> tuple[Found, Array]:
    """The answer, or the domain's middle where arithmetic failed, and the Reason it ended; [B]."""
    theta, value, gap, slopes, _ = found
    xp, samples = namespace(theta), problem.samples
    sound = xp.isfinite(value) & problem.domain.contains(theta) & ~xp.isnan(gap)
    if not bool(xp.all(sound)):
        theta = xp.where(sound[..., None], theta, problem.domain.middle(theta))
        value = xp.where(sound, value, problem.value(theta, samples.margins(theta)))
        gap = xp.where(sound, gap, full((), math.inf, gap))
    gap = problem.least(value, problem.surely(theta, value, gap, slopes))
    reason = xp.zeros_like(found.method)
    proved = problem.kept(theta, value, gap)
    if not bool(xp.all(proved)):
        floor = 16 * problem.rounding(theta, samples.margins(theta), slopes)
        rounding, limit, none = (xp.full_like(reason, int(code)) for code in list(Reason)[1:])
        why = xp.where(gap <= floor, rounding, xp.where(xp.isfinite(gap), limit, none))
        reason = xp.where(proved, reason, why)
    return found._replace(theta=theta, value=value, gap=gap), reason


def _refuse_separable(samples: Samples, value: Array, reason: Array) -> None:
    """A loss of classes whose infimum lies at infinity has no optimum to return."""
    missing = (reason != int(Reason.PROVED)) | (value <= 1e-6 * samples.length)
    if not samples.loss.attained and bool(namespace(value).any(missing)):
        what = "the task has no finite optimum on Euclidean(): its classes are separable"
        raise FMRLError(f"{what}, or nearly so", fix="use Ball(radius)")


def _unbounded(problem: Objective, found: Found, reason: Array) -> tuple[Found, Array]:
    """The answer with what can be proved where theta has no bound, and the Reason; [B]."""
    xp = namespace(found.value)
    value, proved = prove(problem.samples, found.theta, found.slopes)
    gap = problem.least(value, proved)
    lost = ~problem.kept(found.theta, value, gap)
    none, limit = (xp.full_like(reason, int(r)) for r in (Reason.NO_PROOF, Reason.LIMIT))
    worse = xp.where(proved == math.inf, none, xp.where(reason == 0, limit, reason))
    return found._replace(value=value, gap=gap), xp.where(lost, worse, xp.zeros_like(reason))
