"""min over a domain of summed losses [+ B_R(·‖phi)/eta], batched over tasks, with a duality gap
that proves the answer.

Three ways, chosen by what the problem is: linear losses have a closed form; smooth losses on a ball
(or without bounds) go to `majorise`, and what saturates there, like everything else, to `interior`.

The gap asked for is 1e-10 of the *value*, however far that is below the losses at the start
(separable samples on a ball of radius 100 leave e^−100 and less) and however large the margins.
Three floors remain, all of float64: what rounding Xᵀu changes across the domain, about
1e-16·Σ|u|‖x‖·diameter; values below 1e-290, which underflow; and for squared and hinge losses,
whose least value may be 0, 1e-13 of the losses at the start. A problem that misses it still returns
the gap it proved."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from fmrl.core.arrays import Array, constant, dot, full, namespace, zeros
from fmrl.core.domains import Ball, Domain, Euclidean
from fmrl.core.samples import Samples
from fmrl.core.solve.gap import Objective
from fmrl.core.solve.interior import interior
from fmrl.core.solve.least_norm import shortest
from fmrl.core.solve.majorise import Rotation, descend, majorise
from fmrl.errors import FMRLError


class Solution(NamedTuple):
    """A minimiser and the proof of how good it is: the minimum lies in [value − gap, value]."""

    theta: Array  # [..., d]
    value: Array  # [...]
    gap: Array  # [...] ≥ 0


def tolerance(like: Array) -> float:
    """Relative gap asked of the solver: 1e-10 in float64, 1e-5 in float32."""
    return 1e-10 if like.dtype == namespace(like).float64 else 1e-5


def minimise(
    samples: Samples, domain: Domain, phi: Array | None = None, eta: Array | None = None
) -> Solution:
    """argmin over ``domain`` of F = Σ losses, or of F + B_R(·‖phi)/eta; of several minimisers, the
    one of least norm.

    Leading axes of ``samples`` [..., n, f], ``phi`` [..., d] and ``eta`` [...] are separate
    problems.

    >>> import numpy as np
    >>> from fmrl.core.tasks import Task
    >>> from fmrl.core.losses import Squared
    >>> task = Task(np.eye(2), np.array([3.0, 4.0]), loss=Squared())
    >>> minimise(task.open(), Ball(1.0)).theta.round(6)
    array([0.6, 0.8])
    """
    return Leaders(samples, domain, phi, eta).solution(samples.length)


def _flatten(samples: Samples, lead: tuple[int, ...]) -> Samples:
    if len(lead) == 1:
        return samples
    xp = namespace(samples.X)
    keep = {"X": 2, "target": 2, "weight": 1, "rounds": 0} | (
        {} if samples.offset is None else {"offset": 2}
    )
    arrays = {name: (getattr(samples, name), k) for name, k in keep.items()}
    return replace(
        samples,
        **{name: xp.reshape(a, (-1, *a.shape[a.ndim - k :])) for name, (a, k) in arrays.items()},
    )


class Leaders:
    """FTRL's actions after i = 1, 2, … rounds of one stack of tasks [B, …], each started from the
    one before.

    The rotation is made anew whenever the number of rounds doubles, so that it fits the rounds
    seen."""

    def __init__(
        self, samples: Samples, domain: Domain, phi: Array | None = None, eta: Array | None = None
    ):
        xp, self.lead = namespace(samples.X), samples.X.shape[:-2]
        self.samples, self.domain, self.phi, self.eta = (
            _flatten(samples, self.lead),
            domain,
            None,
            None,
        )
        if phi is not None:
            self.phi = xp.reshape(
                xp.broadcast_to(phi, (*self.lead, samples.dim)), (-1, samples.dim)
            )
            self.eta = xp.reshape(xp.broadcast_to(constant(eta, phi), self.lead), (-1,))
        # Everything is solved in double precision: what a float32 solver calls rounding can be a
        # feature.
        self.dtype = samples.X.dtype
        self.samples, _, self.phi, self.eta = Objective(
            self.samples, domain, self.phi, self.eta
        ).double()
        self.smooth = isinstance(domain, (Ball, Euclidean)) and 0 < samples.loss.bend < math.inf
        # An optimum moves phi, so it is wanted to the last digit; an action of FTRL only costs its
        # loss.
        self.still = (5e3 if phi is None else 5e6) * xp.finfo(self.samples.X.dtype).eps
        self.rotation: Rotation | None = None
        self.v: Array | None = None  # the last action, in the rotation's coordinates

    def __call__(self, i: int) -> Array:
        """FTRL's action after i rounds, shape [..., d]."""
        theta = namespace(self.samples.X).astype(self._solve(i)[0], self.dtype, copy=False)
        return namespace(theta).reshape(theta, (*self.lead, self.samples.dim))

    def solution(self, i: int) -> Solution:
        """The minimiser over the first i rounds with its value and gap."""
        xp, (theta, value, gap, *slopes) = namespace(self.samples.X), self._solve(i)
        if self.smooth:  # proved in the user's own coordinates: a rotation drops features too faint for its rounding
            problem = Objective(self.samples.first(i), self.domain, self.phi, self.eta)
            theta, value, gap = problem.prove(theta, slopes[0], tolerance(value))
        if self.eta is not None:  # solved as eta·F + B_R, which stays finite as eta → 0
            scale = xp.where(self.eta > 0, self.eta, full((), math.inf, value))
            value, gap = value / scale, gap / scale
        theta, value, gap = (xp.astype(a, self.dtype, copy=False) for a in (theta, value, gap))
        return Solution(
            xp.reshape(theta, (*self.lead, self.samples.dim)),
            xp.reshape(value, self.lead),
            xp.reshape(gap, self.lead),
        )

    def _solve(self, i: int) -> tuple[Array, ...]:
        """theta [B, d], value [B] and gap [B] of F, or of eta·F + B_R, on the first i rounds, and
        the slopes that prove it.
        """
        if self.samples.loss.bend == 0:
            return self._linear(i)
        if self.smooth:
            return self._descended(i) if self.phi is None else self._majorised(i)
        return self._robust(Objective(self.samples.first(i), self.domain, self.phi, self.eta))

    def _linear(self, i: int) -> tuple[Array, ...]:
        xp, samples = namespace(self.samples.X), self.samples.first(i)
        total = xp.sum(samples.X * samples.weight[..., None], axis=-2)
        if self.phi is None:
            theta = self.domain.lowest(total)
            value = dot(total, theta)
        else:
            theta = self.domain.argmin(self.phi, self.eta[..., None] * total)  # type: ignore[index]
            value = self.eta * dot(total, theta) + self.domain.divergence(theta, self.phi)
        return theta, value, xp.zeros_like(value)

    def _descended(self, i: int) -> tuple[Array, ...]:
        """Plain descent where the ball makes it fast, and the eigenbasis for what it leaves."""
        samples = self.samples.first(i)
        few = i < samples.X.shape[-1]  # then the eigenbasis is small and cheap
        if few or not isinstance(self.domain, Ball) or self.domain.centre != 0.0:
            return self._majorised(i)
        problem = Objective(samples, self.domain)
        found = descend(problem, self.still)
        done = _certified(problem, *found[:3])
        if bool(namespace(done).all(done)):
            return found
        (late,) = namespace(done).nonzero(~done)
        return _merge(done, found, Leaders(samples.take(late), self.domain)._majorised(i))

    def _majorised(self, i: int) -> tuple[Array, ...]:
        xp = namespace(self.samples.X)
        if self.rotation is None or i > self.rotation.X.shape[-2]:
            last = self.phi if self.rotation is None else self.rotation.up(self.v)
            reach = min(self.samples.length, 1 << (i - 1).bit_length())
            self.rotation = Rotation(self.samples.first(reach), self.domain, self.phi)
            self.v = None if last is None else self.rotation.down(last)
        problem, curvature = self.rotation.objective(i, self.eta)
        start = (
            zeros((curvature.shape[0], problem.samples.dim), curvature)
            if self.v is None
            else self.v
        )
        found = majorise(problem, curvature, start, self.still)
        done = _certified(problem, *found[:3])
        if not bool(xp.all(done)):
            found = _merge(done, found, self._rescue(problem, done))
        self.v = found[0] if self.phi is not None else None
        return self.rotation.up(found[0]), *found[1:]

    def _rescue(self, problem: Objective, done: Array) -> tuple[Array, ...]:
        """Solve the stragglers of a stack by the interior-point method."""
        xp = namespace(done)
        (late,) = xp.nonzero(~done)
        phi = None if problem.phi is None else xp.take(problem.phi, late, axis=0)
        eta = None if problem.eta is None else xp.take(problem.eta, late, axis=0)
        rest = Objective(problem.samples.take(late), problem.domain, phi, eta)
        return self._robust(rest)

    def _robust(self, problem: Objective) -> tuple[Array, ...]:
        """The interior-point method, and of many minimisers the one of least norm."""
        tol = tolerance(problem.samples.X)
        found = interior(problem, tol)
        self._insist(found.done, found.gap, found.value)
        if problem.phi is None and not self.smooth and not isinstance(problem.domain, Euclidean):
            # (In a rotation's coordinates a smooth loss has one minimiser.)
            return shortest(problem, found.theta, found.value, found.gap, tol)
        return found.theta, found.value, found.gap, found.slopes

    def _insist(self, done: Array, gap: Array, value: Array) -> None:
        """Stop where no optimum exists; elsewhere an honest gap is enough."""
        xp = namespace(gap)
        if self.phi is not None or not isinstance(self.domain, Euclidean):
            return
        if not self.samples.loss.attained:
            done = done & (value > 1e-6 * self.samples.length)
        if not bool(xp.all(done)):
            raise FMRLError(
                "the task has no finite optimum on Euclidean(): its classes are separable",
                fix="use Ball(radius)",
            )


def _certified(problem: Objective, theta: Array, value: Array, gap: Array) -> Array:
    """Which problems of a stack the gap proves solved, [B]."""
    xp = namespace(gap)
    gap = problem.proved(value, gap)
    done = gap <= tolerance(gap) * xp.abs(value)
    if not bool(xp.all(done)):  # an optimum of value 0 leaves only the rounding of its margins
        z = problem.samples.margins(theta)
        done = done | (
            gap <= problem.rounding(theta, z, problem.samples.loss.slope(z, problem.samples.target))
        )
    return done


def _merge(done: Array, old: tuple[Array, ...], new: tuple[Array, ...]) -> tuple[Array, ...]:
    """What was done of ``old``, and in the other places ``new``."""
    xp = namespace(done)
    (late,), (early,) = xp.nonzero(~done), xp.nonzero(done)
    place = xp.argsort(xp.concat([early, late]))
    return tuple(
        xp.take(xp.concat([xp.take(a, early, axis=0), b]), place, axis=0)
        for a, b in zip(old, new, strict=True)
    )
