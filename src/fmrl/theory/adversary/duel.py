"""One task of the lower-bound adversary: its answers, its optimum and its leaders, all in closed
form.

The mathematics is at the top of `fmrl.theory.adversary`; here it is a `Game`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fmrl.core.arrays import Array, constant, device, dot, full, namespace, norm, zeros
from fmrl.core.domains import Ball, Box, Domain, Euclidean
from fmrl.core.solve.minimise import Solution
from fmrl.errors import FMRLError


@dataclass(frozen=True, eq=False)
class Opponent:
    """One task of the adversary: m rounds, radius D*/2 about the centre, Lipschitz constant G."""

    centre: Array  # [d]
    radius: float
    steepness: float
    rounds: int
    seed: Any = 0

    def open(self) -> Duel:
        """A fresh game; the same actions always meet the same answers."""
        return Duel(self)


class Duel:
    """An `Opponent` being played. Leading axes of the actions are separate duels, all with the same
    free choices.
    """

    def __init__(self, task: Opponent):
        self.task, self.dim, self.length = task, task.centre.shape[0], task.rounds
        self.rounds = full((), float(task.rounds), task.centre)
        self.total = zeros((self.dim,), task.centre)  # S = Σ∇
        self.played, self._rng = 0, np.random.default_rng(task.seed)

    def cone(self, theta: Array) -> Array:
        """c(θ), shape [...]."""
        xp, beyond = namespace(theta), norm(theta - self.task.centre) - self.task.radius
        return self.task.steepness / 2 * xp.maximum(beyond, xp.zeros_like(beyond))

    def reveal(self, i, theta):
        if i != self.played:
            raise FMRLError(
                f"the adversary is at round {self.played}", round=i, fix="open the task again"
            )
        task, xp = self.task, namespace(theta, self.task.centre)
        away = theta - task.centre
        self.linear = self._answer(away)
        self.total = self.total + self.linear
        self.played += 1
        length = norm(away)[..., None]
        outward = away / xp.where(length > 0, length, xp.ones_like(length))
        slope = xp.where(length > task.radius, task.steepness / 2 * outward, xp.zeros_like(away))
        return dot(self.linear, away) + self.cone(theta), self.linear + slope

    def _answer(self, away: Array) -> Array:
        """∇_i: of norm G/2 and at right angles to the action and to the sum so far; shape [..., d]."""
        xp, like = namespace(away), self.task.centre
        first, second = _unit(away), None
        second = _unit(_without(_without(self.total + xp.zeros_like(away), first), first))
        while True:
            draw = xp.asarray(
                self._rng.standard_normal(self.dim), dtype=like.dtype, device=device(like)
            )
            free = draw + xp.zeros_like(away)
            for _ in range(3):  # rounding leaves a trace the first time
                free = _without(_without(free, first), second)
            if bool(xp.all(norm(free) > 1e-3)):
                return self.task.steepness / 2 * _unit(free)

    def lipschitz(self, domain):
        fits(self.task, domain)
        return full((), self.task.steepness, self.task.centre)

    def hindsight(self, domain):
        fits(self.task, domain)
        if self.played < self.length:
            raise FMRLError(
                f"only {self.played} of {self.length} rounds were played", fix="play the task first"
            )
        value = -self.task.radius * norm(self.total)
        return Solution(
            self.task.centre - self.task.radius * _unit(self.total),
            value,
            namespace(value).zeros_like(value),
        )

    def leaders(self, domain, phi, eta):
        fits(self.task, domain)

        def leader(i: int) -> Array:
            if i != self.played:
                raise FMRLError(
                    f"the adversary is at round {self.played}",
                    round=i,
                    fix="ask for its leaders in order",
                )
            weight = eta * (i * self.task.steepness / 2)
            return self.task.centre + self._shrunk(
                domain, phi - self.task.centre - eta[..., None] * self.total, weight
            )

        return leader

    def _shrunk(self, domain: Domain, w: Array, weight: Array) -> Array:
        """argmin over the domain of ½‖v − w‖² + weight·max(0, ‖v‖ − radius), v counted from phi*;
        shape [..., d].

        Without a domain it is w, pulled back by at most ``weight`` but not into Θ*. A ball about a
        adds a multiplier μ in [0, 1): the same pull on (1 − μ)·w + μ·a with weight (1 − μ)·weight,
        and ‖v − a‖ falls as μ grows, so bisection ends it."""
        v = self._pull(w, weight)
        if isinstance(domain, Euclidean):
            return v
        if not isinstance(domain, Ball):
            raise FMRLError(
                f"FTRL against this adversary needs a Ball or Euclidean(), not {domain!r}",
                fix="use OMD() or OGD()",
            )
        xp = namespace(w)
        a = constant(domain.centre, w) - self.task.centre
        outside = norm(v - a) > domain.radius
        if not bool(xp.any(outside)):
            return v
        low, high = xp.zeros_like(weight), xp.ones_like(weight)
        for _ in range(60):
            mu = (low + high) / 2
            v_mu = self._pull((1 - mu)[..., None] * w + mu[..., None] * a, (1 - mu) * weight)
            far = norm(v_mu - a) > domain.radius
            low, high = xp.where(far, mu, low), xp.where(far, high, mu)
        return xp.where(
            outside[..., None],
            self._pull((1 - high)[..., None] * w + high[..., None] * a, (1 - high) * weight),
            v,
        )

    def _pull(self, w: Array, weight: Array) -> Array:
        xp, length = namespace(w), norm(w)
        shorter = xp.minimum(length, xp.maximum(length - weight, full((), self.task.radius, w)))
        return w * (shorter / xp.where(length > 0, length, xp.ones_like(length)))[..., None]


def _unit(v: Array) -> Array:
    """v/‖v‖, or 0."""
    length = norm(v)[..., None]
    return v / namespace(v).where(length > 0, length, namespace(v).ones_like(length))


def _without(v: Array, unit: Array) -> Array:
    return v - dot(v, unit)[..., None] * unit


def fits(task: Opponent, domain: Domain) -> None:
    """Θ* must lie in Θ, or the optimum above is not an action."""
    xp, room = namespace(task.centre), 1e-9 * task.radius
    if isinstance(domain, Ball):
        need = float(norm(task.centre - constant(domain.centre, task.centre))) + task.radius
        if need > domain.radius + room:
            raise FMRLError(
                f"Θ* (radius {task.radius:g}) does not fit into {domain!r}",
                fix=f"use a ball of radius {need:g} or more",
            )
    elif isinstance(domain, Box):
        step = full(task.centre.shape, task.radius - room, task.centre)
        if not bool(
            xp.all(
                domain.contains(task.centre + step, 0.0) & domain.contains(task.centre - step, 0.0)
            )
        ):
            raise FMRLError(
                f"Θ* (radius {task.radius:g} about the centre) does not fit into {domain!r}",
                fix="widen the box",
            )
    elif not isinstance(domain, Euclidean):
        raise FMRLError(
            f"the adversary plays l2 geometry; {domain!r} has norm {domain.norm}", fix="use a Ball"
        )
