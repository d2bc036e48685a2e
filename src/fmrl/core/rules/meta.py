"""Meta-updates: how the initialisation phi moves after a task ended with update vector θ_t and
weight sigma_t = G_t·√m_t.

The meta-losses are sigma_t·B_R(θ_t‖·). Each rule has ``init`` and ``update`` over its own small
memory, and ``scan``, which does many updates at once where a formula allows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from fmrl.core.arrays import Array, certain, constant, floats, full, namespace
from fmrl.core.checks import number, vector, whole
from fmrl.core.domains import Domain
from fmrl.core.values import Value
from fmrl.errors import FMRLError


class End(NamedTuple):
    """A finished task, as the meta-level sees it. Several of them are stacked on a first axis."""

    theta: Array  # [..., d] update vector
    optimum: Array  # [..., d] best action in hindsight
    sigma: Array  # [...] G_t·√m_t
    seen: Array | None = None  # [..., k] what a similarity rule asked to observe of the play
    side: Array | None = None  # [..., s] what a meta-update looked at before the play

    @property
    def tasks(self) -> int:
        """How many tasks a stack holds."""
        return self.sigma.shape[0]

    def at(self, t: Any) -> End:
        """The task at place ``t`` of a stack, or a slice of the stack."""
        return End(*(None if a is None else a[t, ...] for a in self))


class MetaUpdate(Value):
    """An online algorithm META on the meta-losses. A rule of your own needs ``update`` alone.

    The tasks of a meta-batch come to ``update`` as their mean, or one by one where the rule keeps
    them ``apart``.
    """

    apart: ClassVar[bool] = False

    def init(self, domain: Domain, phi: Array) -> tuple[Array, Any]:
        """The first initialisation and the memory: a number, an array or a tuple of them."""
        return phi, ()

    def look(self, first: Array) -> Array | None:
        """What the rule looks at before a task is played, [..., s], of the first rows [..., f] of
        tasks: its side information. None where it looks at nothing.
        """
        return None

    def begin(self, domain: Domain, phi: Array, memory: Any, side: Array) -> Array:
        """Where a task with this side information starts."""
        return phi

    def update(self, domain: Domain, phi: Array, memory: Any, end: End) -> tuple[Array, Any]:
        """The next initialisation and memory."""
        raise NotImplementedError

    def scan(self, domain: Domain, phi: Array, memory: Any, ends: End) -> tuple[Array, Array, Any]:
        """phi before each of n tasks [n, ..., d], then phi and the memory after the last."""
        before = []
        for t in range(ends.tasks):
            end = ends.at(t)
            if end.side is not None:
                phi = self.begin(domain, phi, memory, end.side)
            before.append(phi)
            phi, memory = self.update(domain, phi, memory, end)
        return namespace(phi).stack(before), phi, memory

    def merged(self, ends: End) -> End | None:
        """One task that moves phi as all of these do, one after another; None if none does.

        Where there is one, blocks of tasks need not wait for each other.
        """
        return None


def mean_end(ends: End) -> End:
    """Tasks as one: the weighted mean of their vectors and the sum of their weights."""
    xp = namespace(ends.theta)
    total = xp.sum(ends.sigma, axis=0)
    # Tasks of constant losses weigh nothing, and then none of them weighs more than another.
    weight = xp.where(total > 0, ends.sigma, xp.ones_like(ends.sigma))
    share = (weight / xp.sum(weight, axis=0))[..., None]
    return End(xp.sum(share * ends.theta, axis=0), xp.sum(share * ends.optimum, axis=0), total)


def _before(phi: Array, after: Array) -> Array:
    """phi and all but the last of what followed it."""
    return namespace(phi).concat([phi[None, ...], after[:-1, ...]])


@dataclass(frozen=True)
class FollowLeader(MetaUpdate):
    """Follow the leader: phi_{t+1} = argmin Σ_{s≤t} sigma_s·B_R(θ_s‖·), the weighted mean in
    every geometry (Claim A.1).

    >>> import numpy as np
    >>> from fmrl.core.domains import Ball
    >>> rule, end = FollowLeader(), End(np.array([1.0]), np.array([1.0]), np.array(2.0))
    >>> phi, memory = rule.init(Ball(1.0), np.zeros(1))
    >>> phi, memory = rule.update(Ball(1.0), phi, memory, end)
    >>> rule.update(Ball(1.0), phi, memory, End(np.array([0.25]), None, np.array(1.0)))[0]
    array([0.75])
    """

    def init(self, domain, phi):
        """phi itself, and no weight seen yet."""
        return phi, full(phi.shape[:-1], 0.0, phi)

    def update(self, domain, phi, memory, end):
        """The weighted mean moves towards θ_t by its share of the weight."""
        sigma = end.sigma
        if phi.ndim == 1:  # one run: numbers times vectors
            return _mean(memory * phi + sigma * end.theta, memory + sigma, phi)
        moment = memory[..., None] * phi + sigma[..., None] * end.theta
        return _mean(moment, memory + sigma, phi)

    def scan(self, domain, phi, memory, ends):
        """The same recursion to the last bit, without what `update` looks up for every task."""
        total = running(memory, ends.sigma)
        if phi.ndim > 1 or not bool(namespace(phi).all(total[1:] > 0)):
            return super().scan(domain, phi, memory, ends)
        moved, weight, before = ends.sigma[:, None] * ends.theta, floats(total), []
        for t in range(ends.tasks):
            before.append(phi)
            phi = (weight[t] * phi + moved[t, :]) / weight[t + 1]
        return namespace(phi).stack(before), phi, total[-1, ...]

    def merged(self, ends):
        """The mean of means is the mean."""
        return mean_end(ends)


def running(memory: Array, values: Array) -> Array:
    """memory, memory + values[0], memory + values[0] + values[1], …, added in that order."""
    xp = namespace(values)
    return xp.cumulative_sum(xp.concat([memory[None, ...], values]), axis=0)


def _mean(moment: Array, total: Array, phi: Array) -> tuple[Array, Array]:
    """moment/total, or phi where nothing weighs anything; and the total."""
    known = total > 0
    if certain(known):
        return moment / total, total
    xp, known = namespace(phi), known[..., None]
    return xp.where(known, moment / xp.where(known, total[..., None], 1.0), phi), total


@dataclass(frozen=True)
class AdaptiveOGD(MetaUpdate):
    """Projected gradient descent on the meta-losses with step 1/sigma_{1:t} (Definition A.8);
    Euclidean geometry only.

    A step of sigma_t/sigma_{1:t} towards θ_t lands on the weighted mean, inside the convex
    domain."""

    def init(self, domain, phi):
        """phi itself and no weight seen yet; refuses other geometries."""
        if domain.norm != "l2":
            what = f"AdaptiveOGD needs the regulariser ½‖·‖², which {domain!r} does not have"
            raise FMRLError(what, fix="use FollowLeader()")
        return phi, full(phi.shape[:-1], 0.0, phi)

    def update(self, domain, phi, memory, end):
        """One projected gradient step on sigma_t·½‖θ_t − phi‖²."""
        xp = namespace(phi)
        total = memory + end.sigma
        step = 1 / xp.where(total > 0, total, xp.ones_like(total))
        gradient = end.sigma[..., None] * (phi - end.theta)
        return domain.project(phi - step[..., None] * gradient), total

    def merged(self, ends):
        """As `FollowLeader`: the steps land on the weighted mean."""
        return mean_end(ends)


@dataclass(frozen=True)
class LastUpdate(MetaUpdate):
    """The paper's strawman: start the next task where the last one ended, phi_{t+1} = θ_t."""

    def update(self, domain, phi, memory, end):
        """The update vector θ_t itself."""
        return end.theta, ()

    def scan(self, domain, phi, memory, ends):
        """Every task starts where the one before ended."""
        return _before(phi, ends.theta), ends.theta[-1, ...], ()

    def merged(self, ends):
        """The last task."""
        return ends.at(-1)


@dataclass(frozen=True)
class Interpolate(MetaUpdate):
    """Reptile's outer step: phi ← phi + ε_t·(θ_t − phi).

    Args:
        start: ε of the first task.
        stop: ε after ``steps`` tasks, and from then on; linear in between.
        steps: Over how many tasks ε changes.

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
        whole("Interpolate: steps", self.steps)
        if not all(0 <= number(e) <= 1 for e in (self.start, self.stop)):
            raise FMRLError(f"{self!r}: start and stop must lie in [0, 1]")

    def init(self, domain, phi):
        """phi itself, no task seen."""
        return phi, 0

    def update(self, domain, phi, memory, end):
        """phi + ε_t·(θ_t − phi)."""
        done = min(memory / self.steps, 1.0)
        epsilon = self.start + done * (self.stop - self.start)
        return phi + epsilon * (end.theta - phi), memory + 1


@dataclass(frozen=True)
class Fixed(MetaUpdate):
    """No meta-learning: every task starts from the same phi.

    Args:
        phi: The start, a vector of numbers; by default where the run started.
    """

    phi: tuple[float, ...] | None = None

    def __post_init__(self):
        if self.phi is not None:
            values = vector("Fixed: phi", self.phi)
            if not isinstance(values, tuple):
                raise FMRLError(f"Fixed(phi) takes one finite vector, not {self.phi!r}")
            object.__setattr__(self, "phi", values)

    def init(self, domain, phi):
        """The phi given, or else the run's own."""
        if self.phi is None:
            return phi, ()
        if len(self.phi) != phi.shape[-1]:
            what = f"Fixed(phi) has {len(self.phi)} numbers but the tasks need {phi.shape[-1]}"
            raise FMRLError(what)
        return namespace(phi).zeros_like(phi) + constant(self.phi, phi), ()

    def update(self, domain, phi, memory, end):
        """phi as it is."""
        return phi, ()

    def scan(self, domain, phi, memory, ends):
        """phi, as often as there are tasks."""
        return full((ends.tasks, *(1,) * phi.ndim), 0.0, phi) + phi, phi, ()

    def merged(self, ends):
        """Any task: none moves phi."""
        return ends.at(-1)
