"""Meta-updates: how the initialisation phi moves after a task ended with update vector θ_t and
weight sigma_t = G_t·√m_t.

The meta-losses are sigma_t·B_R(θ_t‖·). Each rule is a pair (init, update) over its own small
memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fmrl.core.arrays import Array, constant, full, namespace, to_numpy
from fmrl.core.domains import Domain
from fmrl.errors import FMRLError


class End(NamedTuple):
    """A finished task, as the meta-level sees it."""

    theta: Array  # [..., d] update vector
    optimum: Array  # [..., d] best action in hindsight
    sigma: Array  # [...] G_t·√m_t


class MetaUpdate(Protocol):
    """An online algorithm META on the meta-losses."""

    def init(self, domain: Domain, phi: Array) -> tuple[Array, Any]:
        """The first initialisation and the memory."""
        ...

    def update(self, domain: Domain, phi: Array, memory: Any, end: End) -> tuple[Array, Any]:
        """The next initialisation and memory."""
        ...


def _no_weight(phi: Array) -> Array:
    return full(phi.shape[:-1], 0.0, phi)


@dataclass(frozen=True)
class FollowLeader:
    """Follow the leader: phi_{t+1} = argmin Σ_{s≤t} sigma_s·B_R(θ_s‖·), the weighted mean in every
    geometry (Claim A.1).

    >>> import numpy as np
    >>> from fmrl.core.domains import Ball
    >>> rule, end = FollowLeader(), End(np.array([1.0]), np.array([1.0]), np.array(2.0))
    >>> phi, memory = rule.init(Ball(1.0), np.zeros(1))
    >>> phi, memory = rule.update(Ball(1.0), phi, memory, end)
    >>> rule.update(Ball(1.0), phi, memory, end._replace(theta=np.array([0.25]), sigma=np.array(1.0)))[0]
    array([0.75])
    """

    def init(self, domain, phi):
        """phi itself, and no weight seen yet."""
        return phi, _no_weight(phi)

    def update(self, domain, phi, memory, end):
        """The weighted mean moves towards θ_t by its share of the weight."""
        xp = namespace(phi)
        total = memory + end.sigma
        known = xp.where(total > 0, total, xp.ones_like(total))[..., None]
        mean = (memory[..., None] * phi + end.sigma[..., None] * end.theta) / known
        return xp.where(total[..., None] > 0, mean, phi), total


@dataclass(frozen=True)
class AdaptiveOGD:
    """Projected gradient descent on the meta-losses with step 1/sigma_{1:t} (Definition A.8);
    Euclidean geometry only.
    """

    def init(self, domain, phi):
        """phi itself and no weight seen yet; refuses other geometries."""
        if domain.norm != "l2":
            raise FMRLError(
                f"AdaptiveOGD needs the regulariser ½‖·‖², which {domain!r} does not have",
                fix="use FollowLeader()",
            )
        return phi, _no_weight(phi)

    def update(self, domain, phi, memory, end):
        """One projected gradient step on sigma_t·½‖θ_t − phi‖²."""
        xp = namespace(phi)
        total = memory + end.sigma
        step = 1 / xp.where(total > 0, total, xp.ones_like(total))
        gradient = end.sigma[..., None] * (phi - end.theta)
        return domain.project(phi - step[..., None] * gradient), total


@dataclass(frozen=True)
class LastUpdate:
    """The paper's strawman: start the next task where the last one ended, phi_{t+1} = θ_t."""

    def init(self, domain, phi):
        """phi itself; nothing to remember."""
        return phi, ()

    def update(self, domain, phi, memory, end):
        """The update vector θ_t itself."""
        return end.theta, ()


@dataclass(frozen=True)
class Interpolate:
    """Reptile's outer step: phi ← phi + ε_t·(θ_t − phi), ε_t going linearly from ``start`` to
    ``stop`` over ``steps`` tasks.

    >>> import numpy as np
    >>> rule, end = Interpolate(1.0, 0.0, 2), End(np.array([4.0]), None, None)
    >>> phi, memory = rule.update(None, np.zeros(1), 0, end)
    >>> rule.update(None, np.zeros(1), memory, end)
    (array([2.]), 2)
    """

    start: float
    stop: float
    steps: int

    def __post_init__(self):
        if self.steps < 1 or not all(0 <= e <= 1 for e in (self.start, self.stop)):
            raise FMRLError(
                f"{self!r}: start and stop must lie in [0, 1] and steps must be at least 1"
            )

    def init(self, domain, phi):
        """phi itself, no task seen."""
        return phi, 0

    def update(self, domain, phi, memory, end):
        """phi + ε_t·(θ_t − phi)."""
        done = min(memory / self.steps, 1.0)
        epsilon = self.start + done * (self.stop - self.start)
        return phi + epsilon * (end.theta - phi), memory + 1


@dataclass(frozen=True)
class Fixed:
    """No meta-learning: always start from ``phi``, or from where the run started if none is given."""

    phi: tuple[float, ...] | None = None

    def __post_init__(self):
        if self.phi is not None:
            values = to_numpy(self.phi).astype(float)
            if values.ndim != 1 or not math.isfinite(float(abs(values).sum())):
                raise FMRLError("Fixed(phi) takes one finite vector")
            object.__setattr__(self, "phi", tuple(values.tolist()))

    def init(self, domain, phi):
        """The phi given, or else the run's own."""
        if self.phi is None:
            return phi, ()
        xp = namespace(phi)
        if len(self.phi) != phi.shape[-1]:
            raise FMRLError(
                f"Fixed(phi) has {len(self.phi)} numbers but the tasks need {phi.shape[-1]}"
            )
        return xp.zeros_like(phi) + constant(self.phi, phi), ()

    def update(self, domain, phi, memory, end):
        """phi as it is."""
        return phi, ()
