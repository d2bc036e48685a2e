"""Similarity rules: the guess D_t of how far optima lie from phi, which sets the step eta_t = D_t /
(G_t·√m_t).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from fmrl.core.arrays import Array, full, namespace, norm
from fmrl.core.domains import Domain
from fmrl.core.rules.meta import End
from fmrl.errors import FMRLError


class SimilarityRule(Protocol):
    """A pair (init, update) over its own memory, like a meta-update."""

    def init(self, domain: Domain, phi: Array) -> tuple[Array, Any]:
        """D_1 [...] and the memory."""
        ...

    def update(
        self, domain: Domain, phi: Array, guess: Array, memory: Any, end: End
    ) -> tuple[Array, Any]:
        """D_{t+1} and memory after a task that started at ``phi`` with ``guess``."""
        ...


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise FMRLError(f"{name} must be positive and finite, not {value}")


def _first(domain: Domain, phi: Array, given: float | None) -> Array:
    """The reach of the domain, or what the user gave instead."""
    if given is not None:
        return full(phi.shape[:-1], given, phi)
    xp, reach = namespace(phi), domain.reach(phi)
    if not bool(xp.all(xp.isfinite(reach))):
        raise FMRLError(
            f"{domain!r} puts no bound on the distance from phi to an optimum",
            fix="give the first guess, e.g. first=1.0",
        )
    return reach


@dataclass(frozen=True)
class Doubling:
    """Algorithm 2's guess: D_1 = max_Θ sqrt(B_R(·‖phi_1)) + epsilon, then D_{t+1} = gamma^k·epsilon
    after k violations.

    A task violates the guess when D_t < sqrt(B_R(θ_t‖phi_t)). ``first`` replaces the maximum where
    there is none."""

    epsilon: float
    gamma: float
    first: float | None = None

    def __post_init__(self):
        _positive("epsilon", self.epsilon)
        if not (self.gamma >= 1 and math.isfinite(self.gamma)):
            raise FMRLError(f"gamma must be at least 1, not {self.gamma}")
        if self.first is not None:
            _positive("first", self.first)

    def init(self, domain, phi):
        """max_Θ sqrt(B_R(·‖phi)) + epsilon, and no violation yet."""
        violations = full(phi.shape[:-1], 0.0, phi)
        return _first(domain, phi, self.first) + self.epsilon, violations

    def update(self, domain, phi, guess, memory, end):
        """Count a violation; the guess is gamma^k·epsilon."""
        xp = namespace(phi)
        violated = guess < xp.sqrt(domain.divergence(end.theta, phi))
        violations = memory + xp.astype(violated, memory.dtype)
        return self.epsilon * self.gamma**violations, violations


@dataclass(frozen=True)
class ReleasedDoubling:
    """The guess as the authors' released code makes it: epsilon from the first task on, no test
    there, and the test is D_t < ‖θ*_t − phi_t‖₂, with the exact optimum whatever the update rule.
    """

    epsilon: float
    gamma: float

    def __post_init__(self):
        Doubling(self.epsilon, self.gamma)  # same conditions

    def init(self, domain, phi):
        """epsilon, and −1 violations: the first task is not tested."""
        return full(phi.shape[:-1], self.epsilon, phi), -full(phi.shape[:-1], 1.0, phi)

    def update(self, domain, phi, guess, memory, end):
        """Count a violation of the plain distance, from the second task on."""
        xp = namespace(phi)
        first = memory < 0
        violated = xp.astype(~first & (guess < norm(end.optimum - phi)), memory.dtype)
        violations = xp.where(first, xp.zeros_like(memory), memory + violated)
        return self.epsilon * self.gamma**violations, violations


@dataclass(frozen=True)
class Known:
    """D_t = D throughout: the similarity is known in advance."""

    D: float

    def __post_init__(self):
        _positive("D", self.D)

    def init(self, domain, phi):
        """D; nothing to remember."""
        return full(phi.shape[:-1], self.D, phi), ()

    def update(self, domain, phi, guess, memory, end):
        """D as it is."""
        return guess, ()


@dataclass(frozen=True)
class AverageDeviation:
    """The remark after the first theorem, made causal: D_{t+1}² = Σ_{s≤t} sigma_s·B_R(θ_s‖phi_s) /
    sigma_{1:t}.

    This D minimises Σ sigma_s·(B_R(θ_s‖phi_s)/D + D), the regret bound summed over the tasks seen.
    Under FollowLeader it exceeds the deviation D̄ from the final mean only by the meta-regret,
    which is O(log T / T)."""

    first: float | None = None

    def __post_init__(self):
        if self.first is not None:
            _positive("first", self.first)

    def init(self, domain, phi):
        """The reach of the domain (or ``first``), and empty sums."""
        nothing = full(phi.shape[:-1], 0.0, phi)
        return _first(domain, phi, self.first), (nothing, nothing)

    def update(self, domain, phi, guess, memory, end):
        """The root of the weighted mean deviation; the guess stands until something deviates."""
        xp = namespace(phi)
        total = memory[0] + end.sigma
        far = domain.divergence(end.theta, phi)
        # An optimum where phi has no mass is infinitely far; no finite step helps it, so it has no
        # say in the step.
        spread = memory[1] + end.sigma * xp.where(xp.isfinite(far), far, xp.zeros_like(far))
        known = (
            spread > 0
        )  # D = 0 would mean eta = 0, a step from which no update vector ever deviates again
        return xp.where(
            known, xp.sqrt(spread / xp.where(known, total, xp.ones_like(total))), guess
        ), (total, spread)
