"""Similarity rules: the guess D_t of how far optima lie from phi, which sets the step
eta_t = D_t / (G_t·√m_t).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fmrl.core.arrays import Array, anywhere, certain, full, namespace, norm, stacked
from fmrl.core.checks import number, positive, positive_or_none
from fmrl.core.domains import Domain
from fmrl.core.rules.meta import End, running
from fmrl.core.values import Value
from fmrl.errors import FMRLError


class SimilarityRule(Value):
    """How the guess follows from the tasks seen. A rule of your own needs ``init`` and
    ``update``.

    ``observes`` names what the rule wants to know of a task's play (`fmrl.core.rules.observe`);
    tasks are then played one after another. The guess of an ``absolute`` rule is the step itself,
    a number or a metric, whatever G and m of the next task. A run ``records`` the terms of Theorem
    A.1 with the gradients as they were met where a rule observes them, or says so.
    """

    observes: ClassVar[str | None] = None
    absolute: ClassVar[bool] = False
    records: ClassVar[bool] = False

    def init(self, domain: Domain, phi: Array) -> tuple[Array, Any]:
        """D_1 [...] and the memory: a number, an array or a tuple of them."""
        raise NotImplementedError

    def update(
        self, domain: Domain, phi: Array, guess: Array, memory: Any, end: End
    ) -> tuple[Array, Any]:
        """D_{t+1} and memory after a task that started at ``phi`` with ``guess``."""
        raise NotImplementedError

    def scan(
        self, domain: Domain, phi: Array, guess: Array, memory: Any, ends: End
    ) -> tuple[Any, Any, Any]:
        """D_t of each of n tasks [n, ...] that started at phi [n, ..., d], then the guess and the
        memory after the last.
        """
        guesses = []
        for t in range(ends.tasks):
            guesses.append(guess)
            guess, memory = self.update(domain, phi[t, ...], guess, memory, ends.at(t))
        return stacked(guesses), guess, memory

    def violated(self, guess: Array, after: Array, deviation: Array) -> Array:
        """Which tasks lay farther off than guessed, [..., T].

        Args:
            guess: With which each task was played, [..., T].
            after: The guess after each task, [..., T].
            deviation: B_R(θ_t‖phi_t) of the update vectors, [..., T].
        """
        return (guess < namespace(guess).sqrt(deviation)) & (not self.absolute)


class Measured(SimilarityRule):
    """A rule that needs one number of a finished task. Then many tasks can be looked at in any
    order, on any machine (``measure``), and only the numbers have to be gone through in order
    (``follow``).
    """

    def measure(self, domain: Domain, phi: Array, end: End) -> Array:
        """What the rule needs to know of tasks that started at phi [..., d], [...]."""
        raise NotImplementedError

    def follow(
        self, guess: Array, memory: Any, measured: Array, sigma: Array
    ) -> tuple[Array, Array, Any]:
        """D_t of each of n tasks [n, ...], then the guess and the memory after the last."""
        raise NotImplementedError

    def scan(self, domain, phi, guess, memory, ends):
        """Measure all, then follow."""
        return self.follow(guess, memory, self.measure(domain, phi, ends), ends.sigma)


def _first(domain: Domain, phi: Array, given: float | None) -> Array:
    """The reach of the domain, or what the user gave instead."""
    if given is not None:
        return full(phi.shape[:-1], given, phi)
    xp, reach = namespace(phi), domain.reach(phi)
    if not bool(xp.all(xp.isfinite(reach))):
        what = f"{domain!r} puts no bound on the distance from phi to an optimum"
        raise FMRLError(what, fix="give the first guess, e.g. first=1.0")
    return reach


class _Counting(Measured):
    """gamma^k·epsilon after k violations; what a violation is, `Doubling` and `ReleasedDoubling`
    say.
    """

    epsilon: float
    gamma: float

    def __post_init__(self):
        positive(epsilon=self.epsilon)
        if not 1 <= number(self.gamma) < math.inf:
            raise FMRLError(f"gamma must be at least 1, not {self.gamma}")

    def update(self, domain, phi, guess, memory, end):
        """Count a violation; the guess is gamma^k·epsilon."""
        return self._count(guess, memory, self.measure(domain, phi, end))

    def follow(self, guess, memory, measured, sigma):
        """The guess moves after the first task and where it is violated, and only there."""
        xp, n, at, guesses = namespace(guess), measured.shape[0], 0, []
        while at < n:
            stop = at + 1 if at == 0 or guess.ndim else _violation(measured, at, guess)
            guesses.append(xp.broadcast_to(guess, (stop - at, *guess.shape)))
            guess, memory = self._count(guess, memory, measured[stop - 1, ...])
            at = stop
        return xp.concat(guesses), guess, memory

    def _count(self, guess: Array, violations: Array, distance: Array) -> tuple[Array, Array]:
        violations = violations + namespace(guess).astype(guess < distance, violations.dtype)
        return self.epsilon * self.gamma**violations, violations


def _violation(measured: Array, at: int, guess: Array) -> int:
    """One past the next task from ``at`` on that violates the guess, or the end."""
    xp, n, size = namespace(measured), measured.shape[0], 64
    while at < n:
        found = measured[at : min(at + size, n)] > guess
        if bool(xp.any(found)):
            return at + int(xp.argmax(xp.astype(found, xp.int64))) + 1
        at, size = at + size, 2 * size
    return n


@dataclass(frozen=True)
class Doubling(_Counting):
    """Algorithm 2's guess: D_1 = max_Θ sqrt(B_R(·‖phi_1)) + epsilon, then
    D_{t+1} = gamma^k·epsilon after k violations.

    A task violates the guess when D_t < sqrt(B_R(θ_t‖phi_t)).

    Args:
        epsilon: The smallest guess.
        gamma: By what a violation multiplies the guess, at least 1.
        first: Replaces the maximum over Θ, which an unbounded domain does not have.
    """

    epsilon: float
    gamma: float
    first: float | None = None

    def __post_init__(self):
        super().__post_init__()
        positive_or_none(first=self.first)

    def init(self, domain, phi):
        """max_Θ sqrt(B_R(·‖phi)) + epsilon, and no violation yet."""
        violations = full(phi.shape[:-1], 0.0, phi)
        return _first(domain, phi, self.first) + self.epsilon, violations

    def measure(self, domain, phi, end):
        """sqrt(B_R(θ_t‖phi_t))."""
        return namespace(phi).sqrt(domain.divergence(end.theta, phi))


@dataclass(frozen=True)
class ReleasedDoubling(_Counting):
    """The guess as the authors' released code makes it: epsilon from the first task on, which is
    not tested, and the test is D_t < ‖θ*_t − phi_t‖₂ with the exact optimum whatever the update
    rule.

    Args:
        epsilon: The smallest guess.
        gamma: By what a violation multiplies the guess, at least 1.
    """

    epsilon: float
    gamma: float

    def init(self, domain, phi):
        """epsilon, and −1 violations: the first task is not tested."""
        return full(phi.shape[:-1], self.epsilon, phi), -full(phi.shape[:-1], 1.0, phi)

    def measure(self, domain, phi, end):
        """‖θ*_t − phi_t‖₂."""
        return norm(end.optimum - phi)

    def violated(self, guess, after, deviation):
        """Those after which the guess grew: the distance it is compared with is no B_R."""
        return after > guess

    def _count(self, guess, violations, distance):
        # Before the first task there are −1 violations, and it always counts: that makes 0.
        distance = namespace(guess).where(violations < 0, guess + 1, distance)
        return super()._count(guess, violations, distance)


@dataclass(frozen=True)
class Known(Measured):
    """D_t = D throughout: the similarity is known in advance.

    Args:
        D: The guess, in units of √divergence.
    """

    D: float

    def __post_init__(self):
        positive(D=self.D)

    def init(self, domain, phi):
        """D; nothing to remember."""
        return full(phi.shape[:-1], self.D, phi), ()

    def update(self, domain, phi, guess, memory, end):
        """D as it is."""
        return guess, ()

    def measure(self, domain, phi, end):
        """Nothing: 0."""
        return namespace(phi).zeros_like(end.sigma)

    def follow(self, guess, memory, measured, sigma):
        """D, as often as there are tasks."""
        return measured + guess, guess, ()


@dataclass(frozen=True)
class AverageDeviation(Measured):
    """The remark after the first theorem, made causal:
    D_{t+1}² = epsilon² + Σ_{s≤t} sigma_s·B_R(θ_s‖phi_s) / sigma_{1:t}.

    With epsilon = 0 this D minimises Σ sigma_s·(B_R(θ_s‖phi_s)/D + D), the regret bound summed
    over the tasks seen. Under FollowLeader it exceeds the deviation D̄ from the final mean only by
    the meta-regret, which is O(log T / T).

    The remark speaks of optima, so of `FAL`. The last action (`FLIOnline`) or the mean action
    (`FLIBatch`) of a task lies only as far from phi as the step D/(G·√m) took it: D is then
    measured by itself, and without epsilon it shrinks with every task, about like T^(−1/2), and
    never grows back. Give epsilon there, which has the part that it has in Algorithm 2; `FMRL`
    warns of a composition without.

    Args:
        first: D_1, in units of √divergence; by default the reach of the domain. It stands until a
            task ends further than rounding from phi.
        epsilon: What D does not fall below, in units of √divergence; 0 for update vectors that are
            optima.

    >>> import numpy as np
    >>> from fmrl.core.domains import Ball
    >>> rule, phi, theta = AverageDeviation(epsilon=0.4), np.zeros(1), np.array([0.3 * 2**0.5])
    >>> guess, memory = rule.init(Ball(1.0), phi)
    >>> end = End(theta, theta, np.array(2.0))
    >>> round(float(rule.update(Ball(1.0), phi, guess, memory, end)[0]), 6)
    0.5
    """

    first: float | None = None
    epsilon: float = 0.0

    def __post_init__(self):
        positive_or_none(first=self.first)
        if number(self.epsilon) != 0:
            positive(epsilon=self.epsilon)

    def init(self, domain, phi):
        """The reach of the domain (or ``first``), and empty sums."""
        nothing = full(phi.shape[:-1], 0.0, phi)
        return _first(domain, phi, self.first), (nothing, nothing)

    def update(self, domain, phi, guess, memory, end):
        """The root of the weighted mean deviation; the guess stands until something deviates."""
        total, far = memory[0] + end.sigma, self.measure(domain, phi, end)
        begun = (memory[1] > 0) | (far > rounding(guess))
        if not certain(begun):
            far = namespace(guess).where(begun, far, 0.0)
        spread = memory[1] + end.sigma * far
        return self._root(guess, total, spread), (total, spread)

    def measure(self, domain, phi, end):
        """B_R(θ_t‖phi_t), and 0 where it is infinite.

        An optimum where phi has no mass is infinitely far. No finite step helps it, so it has no
        say in the step."""
        far = domain.divergence(end.theta, phi)
        if isinstance(far, float) and math.isfinite(far):  # of one task, quickly
            return far
        xp = namespace(phi)
        near = xp.isfinite(far)
        return far if certain(near) else xp.where(near, far, 0.0)

    def follow(self, guess, memory, measured, sigma):
        """The roots of growing sums."""
        if anywhere(
            memory[1] == 0
        ):  # a task ends at phi up to rounding: it does not begin the mean
            xp, far = namespace(guess), measured > rounding(guess)
            begun = xp.cumulative_sum(xp.astype(far, measured.dtype), axis=0) > 0
            measured = xp.where(begun | (memory[1] > 0), measured, xp.zeros_like(measured))
        total = running(memory[0], sigma)[1:, ...]
        spread = running(memory[1], sigma * measured)[1:, ...]
        after = self._root(guess, total, spread)
        before = namespace(guess).concat([guess[None, ...], after[:-1, ...]])
        return before, after[-1, ...], (total[-1, ...], spread[-1, ...])

    def _root(self, guess: Array, total: Array, spread: Array) -> Array:
        # D = 0 would mean eta = 0, a step from which no update vector ever deviates again.
        known = spread > 0
        if certain(known):
            return np.asarray(np.sqrt(spread / total + self.epsilon**2))
        xp = namespace(guess)
        mean = spread / xp.where(known, total, 1.0)
        return xp.where(known, xp.sqrt(mean + self.epsilon**2), guess)


def rounding(guess: Array) -> Array:
    """B_R up to which a task that was guessed at D_1 ends where it started: (1e-12·D_1)², which is
    what a solver leaves; [...].

    Args:
        guess: D_1, [...].
    """
    eps = float(namespace(guess).finfo(guess.dtype).eps)
    return (guess * max(1e-12, 16 * eps)) ** 2
