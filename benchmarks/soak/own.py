"""Ingredients of a user's own, honest and dishonest ones, for the adversary.

A class that breaks a condition of the theorems names it in ``lies``: a certificate may call such a
condition false or assumed, never checked. The library must not read ``lies``; it is what the
adversary knows and a certificate does not.

    domain     R is 1-strongly convex and the set is convex
    convex     losses are convex
    lipschitz  G is at least what the rounds have
    learner    a regret bound is known for the learner
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import fmrl
from fmrl.core.losses import Weighted
from fmrl.core.metric import Metric


@dataclass(frozen=True)
class Weak(fmrl.Ball):
    """A ball whose divergence is ``strength`` times ½‖·‖²: too weak for the theorems below 1."""

    strength: float = 1e-3
    lies: ClassVar[tuple[str, ...]] = ("domain",)

    def divergence(self, theta, phi):
        return self.strength * super().divergence(theta, phi)


@dataclass(frozen=True)
class Stiff(fmrl.Box):
    """A box with R = (strength/2)·‖·‖² and the steps that belong to it: 1-strongly convex."""

    strength: float = 2.0
    lies: ClassVar[tuple[str, ...]] = ()

    def divergence(self, theta, phi):
        return self.strength * super().divergence(theta, phi)

    def mirror(self, theta):
        return self.strength * theta

    def metric(self, theta):
        return self.strength * super().metric(theta)

    def argmin(self, phi, z):
        return self.project(phi - z / self.strength)

    def reach(self, phi):
        return self.strength**0.5 * super().reach(phi)

    def diameter(self, dim):
        return self.strength**0.5 * super().diameter(dim)


@dataclass(frozen=True)
class Renamed(fmrl.Ball):
    """A ball under another name: nothing is different, and the library cannot know that."""

    lies: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Cap(fmrl.Logistic):
    """min(logistic, most): not convex."""

    most: float = 0.7
    lies: ClassVar[tuple[str, ...]] = ("convex",)

    def value(self, z, target):
        return np.minimum(super().value(z, target), self.most)

    def slope(self, z, target):
        under = super().value(z, target) < self.most
        return np.where(under[..., None], super().slope(z, target), 0.0)


@dataclass(frozen=True)
class Plain(fmrl.Logistic):
    """The logistic loss under another name."""

    lies: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class HeavyCap(Weighted):
    """`Cap` with weights: the weights are the library's, what they weigh is not."""

    lies: ClassVar[tuple[str, ...]] = ("convex",)


@dataclass(frozen=True)
class Lagging(fmrl.Learner):
    """Descent by every second gradient: nothing is known about it."""

    lies: ClassVar[tuple[str, ...]] = ("learner",)

    def actions(self, game, domain, phi, eta):
        total, i = np.zeros_like(phi), 0
        while True:
            if isinstance(eta, Metric):
                gradient = yield phi
            else:
                gradient = yield domain.argmin(phi, np.asarray(eta)[..., None] * total)
            total, i = total + (i % 2) * gradient, i + 1


@dataclass(frozen=True)
class Hidden(fmrl.OMD):
    """`OMD` under another name."""

    lies: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Middle(fmrl.UpdateRule):
    """Half way between the optimum and the last action."""

    def vector(self, play, best):
        return (best.theta + play.last) / 2


@dataclass(frozen=True)
class Slow(fmrl.MetaUpdate):
    """phi moves a quarter of the way to the update vector."""

    def update(self, domain, phi, memory, end):
        return domain.project(phi + (end.theta - phi) / 4), memory


@dataclass(frozen=True)
class Leaning(fmrl.FollowLeader):
    """Half way between the leader and the newest optimum."""

    def update(self, domain, phi, memory, end):
        leader, memory = super().update(domain, phi, memory, end)
        return (leader + end.optimum) / 2, memory


@dataclass(frozen=True)
class Fading(fmrl.SimilarityRule):
    """A guess that shrinks like 1/t."""

    first: float = 1.0

    def init(self, domain, phi):
        start = np.full(phi.shape[:-1], self.first, phi.dtype)
        return start, np.zeros_like(start)

    def update(self, domain, phi, guess, memory, end):
        return guess * (memory + 1) / (memory + 2), memory + 1


@dataclass(frozen=True, eq=False)
class Reactive:
    """A task whose rounds answer the actions: ``game`` is one of the classes below."""

    game: type[Answers]
    rounds: int
    dim: int
    scale: float
    loss: Any = None  # an attribute that anyone can set: it says nothing of the game

    @property
    def lies(self) -> tuple[str, ...]:
        """Those of the game."""
        return self.game.lies

    def open(self) -> Answers:
        """A fresh game."""
        return self.game(self.rounds, self.dim, self.scale)


class Answers:
    """A game of ``length`` rounds at scale G."""

    lies: tuple[str, ...] = ()

    def __init__(self, length: int, dim: int, scale: float):
        self.length, self.dim, self.scale = length, dim, scale
        self.rounds = np.asarray(float(length))
        self.costs: list[np.ndarray] = []

    def lipschitz(self, domain):
        return np.asarray(float(self.scale))


class Opposing(Answers):
    """Linear losses that point along the action just played."""

    def reveal(self, i, theta):
        cost = np.where(theta >= 0, 1.0, -1.0) * (1 + np.arange(self.dim) == 1 + i % self.dim)
        cost = self.scale * cost
        self.costs.append(cost)
        return theta @ cost, cost

    def hindsight(self, domain):
        game = fmrl.Task(np.array(self.costs), loss=fmrl.Linear()).open()
        return fmrl.minimise(game, domain)

    def leaders(self, domain, phi, eta):
        if isinstance(eta, Metric):
            raise fmrl.FMRLError("this game has no leaders in a metric")
        return lambda i: domain.argmin(phi, eta[..., None] * np.sum(self.costs[:i], axis=0))


class Understated(Opposing):
    """The same, but it says a tenth of its G."""

    lies = ("lipschitz",)

    def lipschitz(self, domain):
        return np.asarray(self.scale / 10)


class Pit(Answers):
    """ℓ(θ) = −G·max(0, θ_0 − edge): flat where one starts, and deep where nobody is told of. It is
    not convex. ``edge`` is a twentieth of the way from the middle to the end of the domain.
    """

    lies = ("convex",)

    edge = 0.0

    def _deep(self, domain):
        z = np.zeros(self.dim)
        z[0] = -1.0
        return domain.lowest(z)

    def lipschitz(self, domain):
        middle, far = domain.middle(np.zeros(self.dim)), self._deep(domain)
        self.edge = float(middle[0] + 0.05 * (far[0] - middle[0]))
        return super().lipschitz(domain)

    def reveal(self, i, theta):
        beyond, gradient = theta[..., 0] - self.edge, np.zeros_like(theta)
        gradient[..., 0] = np.where(beyond > 0, -self.scale, 0.0)
        return -self.scale * np.maximum(beyond, 0.0), gradient

    def hindsight(self, domain):
        far = self._deep(domain)
        value = -self.scale * max(0.0, float(far[0]) - self.edge) * self.length
        return fmrl.Solution(far, np.asarray(value), np.asarray(0.0))

    def leaders(self, domain, phi, eta):
        return lambda i: phi
