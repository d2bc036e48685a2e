"""The lower-bound adversary: tasks that answer every action, and force regret on any agent.

In round i of task t the adversary sees the action θ_i and answers with

    ℓ_i(θ) = ⟨∇_i, θ − phi*⟩ + c(θ),     c(θ) = (G/2)·max(0, ‖θ − phi*‖₂ − D*/2),
    ‖∇_i‖ = G/2,     ∇_i ⊥ θ_i − phi*,     ∇_i ⊥ ∇_1 + … + ∇_{i−1}.

Such a ∇_i exists in three dimensions or more. The agent pays c(θ_i) ≥ 0. The gradients add up at
right angles, so S = Σ∇_i has norm (G/2)·√m, and the best fixed action is phi* − (D*/2)·S/‖S‖ with
value −(D*/2)·‖S‖: regret at least D*·G·√m/4, every time (Theorem B.2).

The cone starts at distance D*/2, not at D* as the paper prints: Θ* is the ball of *diameter* D*,
and with the printed cone the optimum lies outside it (docs/theory-tools.md). With m = 1 all points
of one ray are optimal; `hindsight` answers with the one in Θ*."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fmrl.core import presets
from fmrl.core.arrays import Array, as_float, constant, device, dot, full, namespace, norm, unit
from fmrl.core.domains import Ball, Box, Domain, Euclidean
from fmrl.core.metric import Metric
from fmrl.core.run import run
from fmrl.core.solve import Solution
from fmrl.errors import FMRLError
from fmrl.theory.bounds import lower, weights


class LowerBound(Sequence):
    """The adversary as a sequence of reactive tasks, for `fmrl.run` or any agent (`force`).

    Args:
        diameter: D* of Θ*, the l2 ball about ``centre`` that holds every optimum.
        lipschitz: G, one number or one per task.
        rounds: m, one integer or one per task.
        tasks: How many, if both are single numbers.
        centre: phi*, flat [d]; arrays live where it lives. Default: the origin.
        dim: d ≥ 3, if no centre is given.
        seed: Of the adversary's free choices.

    >>> import numpy as np, fmrl
    >>> adversary = LowerBound(diameter=0.5, lipschitz=1.0, rounds=16, tasks=10, dim=3)
    >>> history = fmrl.run(fmrl.presets.paper(), adversary, phi=np.zeros(3))
    >>> adversary.tar, round(float(history.tar), 4)
    (0.5, 0.5018)
    """

    def __init__(
        self, diameter: float, lipschitz: Any = 1.0, rounds: Any = 16, *, tasks: int | None = None,
        centre: Any = None, dim: int = 3, seed: int = 0,
    ):  # fmt: skip
        self.centre = as_float(np.zeros(dim) if centre is None else centre, "centre")
        if self.centre.ndim != 1 or self.centre.shape[0] < 3:
            raise FMRLError("the adversary needs at least three dimensions", fix="use dim ≥ 3")
        if not 0 < diameter < math.inf:
            raise FMRLError(f"diameter must be positive and finite, not {diameter}")
        lengths = {np.size(a) for a in (lipschitz, rounds) if np.ndim(a)}
        lengths |= set() if tasks is None else {tasks}
        if len(lengths) > 1 or np.ndim(lipschitz) > 1 or np.ndim(rounds) > 1:
            raise FMRLError("lipschitz, rounds and tasks disagree on how many tasks there are")
        count = int(lengths.pop()) if lengths else 1
        self.lipschitz = np.broadcast_to(np.asarray(lipschitz, float), (count,))
        self.rounds = np.broadcast_to(np.asarray(rounds), (count,))
        if count < 1 or self.rounds.dtype.kind not in "iu" or self.rounds.min() < 1:
            raise FMRLError("rounds must be positive integers, for at least one task")
        if not (np.isfinite(self.lipschitz).all() and self.lipschitz.min() > 0):
            raise FMRLError("lipschitz must be positive and finite")
        self.diameter, self.seed = float(diameter), seed

    def __repr__(self) -> str:
        size = f"tasks={len(self)}, dim={self.centre.shape[0]}"
        return f"LowerBound(diameter={self.diameter}, {size})"

    def __len__(self) -> int:
        return self.rounds.size

    def __getitem__(self, t: int) -> Opponent:
        t = range(len(self))[t]  # negative t, and IndexError at the end
        steepness, rounds = float(self.lipschitz[t]), int(self.rounds[t])
        return Opponent(self.centre, self.diameter / 2, steepness, rounds, (self.seed, t))

    @property
    def tar(self) -> float:
        """The task-averaged regret that every agent must suffer."""
        return lower(self.diameter, self.lipschitz, self.rounds).total


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

    def check(self, domain: Domain) -> None:
        """Refuse a domain that does not hold Θ*: the optimum would not be an action."""
        room = 1e-9 * self.radius
        if isinstance(domain, Ball):
            need = float(norm(self.centre - constant(domain.centre, self.centre))) + self.radius
            fits, fix = need <= domain.radius + room, f"use a ball of radius {need:g} or more"
        elif isinstance(domain, Box):
            step = full(self.centre.shape, self.radius - room, self.centre)
            ends = [domain.contains(self.centre + sign * step, 0.0) for sign in (1, -1)]
            fits, fix = all(map(bool, ends)), "widen the box"
        elif isinstance(domain, Euclidean):
            return
        else:
            raise FMRLError(f"the adversary plays l2 geometry, not {domain!r}", fix="use a Ball")
        if not fits:
            raise FMRLError(f"Θ* (radius {self.radius:g}) does not fit into {domain!r}", fix=fix)


class Duel:
    """An `Opponent` being played: a `Game` whose answers, optimum and leaders are in closed form.

    Leading axes of the actions are separate duels, all with the same free choices.
    """

    def __init__(self, task: Opponent):
        self.task, self.dim, self.length = task, task.centre.shape[0], task.rounds
        self.rounds = full((), float(task.rounds), task.centre)
        self.total = full((self.dim,), 0.0, task.centre)  # S = Σ∇
        self.played, self._rng = 0, np.random.default_rng(task.seed)

    def cone(self, theta: Array) -> Array:
        """c(θ), shape [...]."""
        xp, beyond = namespace(theta), norm(theta - self.task.centre) - self.task.radius
        return self.task.steepness / 2 * xp.maximum(beyond, xp.zeros_like(beyond))

    def loss(self, linear: Array, theta: Array) -> Array:
        """The loss with gradient ``linear`` at the centre, shape [...]."""
        return dot(linear, theta - self.task.centre) + self.cone(theta)

    def reveal(self, i, theta):
        self._in_order(i, "open the task again")
        xp, away = namespace(theta, self.task.centre), theta - self.task.centre
        self.linear = self._answer(away)
        self.total = self.total + self.linear
        self.played += 1
        beyond = norm(away)[..., None] > self.task.radius
        slope = xp.where(beyond, self.task.steepness / 2 * unit(away), xp.zeros_like(away))
        return self.loss(self.linear, theta), self.linear + slope

    def _in_order(self, i: int, fix: str) -> None:
        if i != self.played:
            raise FMRLError(f"the adversary is at round {self.played}", round=i, fix=fix)

    def _answer(self, away: Array) -> Array:
        """∇_i [..., d]: of norm G/2, at right angles to the action and to the sum so far."""
        xp, like, first = namespace(away), self.task.centre, unit(away)
        second = unit(_without(_without(self.total + xp.zeros_like(away), first), first))
        while True:
            draw = self._rng.standard_normal(self.dim)
            free = xp.asarray(draw, dtype=like.dtype, device=device(like)) + xp.zeros_like(away)
            for _ in range(3):  # rounding leaves a trace the first time
                free = _without(_without(free, first), second)
            if bool(xp.all(norm(free) > 1e-3)):
                return self.task.steepness / 2 * unit(free)

    def lipschitz(self, domain):
        self.task.check(domain)
        return full((), self.task.steepness, self.task.centre)

    def hindsight(self, domain):
        self.task.check(domain)
        if self.played < self.length:
            done = f"only {self.played} of {self.length} rounds were played"
            raise FMRLError(f"the optimum is not known yet: {done}")
        value = -self.task.radius * norm(self.total)
        theta = self.task.centre - self.task.radius * unit(self.total)
        return Solution(theta, value, namespace(value).zeros_like(value))

    def leaders(self, domain, phi, eta):
        self.task.check(domain)
        if isinstance(eta, Metric):
            what = "the adversary knows FTRL's leaders where eta is a number, not a metric"
            raise FMRLError(what, fix="use OMD() or OGD(), or a rule that learns a number")

        def leader(i: int) -> Array:
            self._in_order(i, "ask for its leaders in order")
            w = phi - self.task.centre - eta[..., None] * self.total
            weight = eta * (i * self.task.steepness / 2)
            return self.task.centre + self._shrunk(domain, w, weight)

        return leader

    def _shrunk(self, domain: Domain, w: Array, weight: Array) -> Array:
        """argmin over the domain of ½‖v − w‖² + weight·max(0, ‖v‖ − radius), v counted from phi*.

        Without a domain it is w, pulled back by at most ``weight`` but not into Θ*. A ball about a
        adds a multiplier μ in [0, 1): the same pull on (1 − μ)·w + μ·a with weight (1 − μ)·weight,
        and ‖v − a‖ falls as μ grows, so bisection finds it."""
        v = self._pull(w, weight)
        if isinstance(domain, Euclidean):
            return v
        if not isinstance(domain, Ball):
            fix = "use OMD() or OGD()"
            raise FMRLError(f"FTRL needs a Ball or Euclidean() here, not {domain!r}", fix=fix)
        xp, a = namespace(w), constant(domain.centre, w) - self.task.centre
        outside = norm(v - a) > domain.radius
        if not bool(xp.any(outside)):
            return v

        def pulled(mu: Array) -> Array:
            return self._pull((1 - mu)[..., None] * w + mu[..., None] * a, (1 - mu) * weight)

        low, high = xp.zeros_like(weight), xp.ones_like(weight)
        for _ in range(60):
            mu = (low + high) / 2
            far = norm(pulled(mu) - a) > domain.radius
            low, high = xp.where(far, mu, low), xp.where(far, high, mu)
        return xp.where(outside[..., None], pulled(high), v)

    def _pull(self, w: Array, weight: Array) -> Array:
        xp, length = namespace(w), norm(w)
        shorter = xp.minimum(length, xp.maximum(length - weight, full((), self.task.radius, w)))
        return w * (shorter / xp.where(length > 0, length, xp.ones_like(length)))[..., None]


def _without(v: Array, unit: Array) -> Array:
    return v - dot(v, unit)[..., None] * unit


class Move(NamedTuple):
    """One finished round, as the agent may see it."""

    theta: Array  # [d] what was played
    loss: Array  # [] what it cost
    gradient: Array  # [d] a subgradient there
    function: Callable[[Array], Array]  # the whole loss of that round


class Forced(NamedTuple):
    """What the adversary made an agent suffer."""

    regret: np.ndarray  # [T]
    lower: np.ndarray  # [T] D*·G_t·√m_t/4
    optima: Array  # [T, d]

    @property
    def tar(self) -> float:
        """Task-averaged regret."""
        return float(self.regret.mean())

    @property
    def ratio(self) -> float:
        """TAR over the lower bound: at least 1."""
        return self.tar / float(self.lower.mean())


def force(
    agent: Callable[[int, list[Move]], Array], adversary: LowerBound, domain: Domain | None = None
) -> Forced:
    """Play an agent against the adversary.

    Args:
        agent: ``agent(t, past)`` returns its action [d], given this task's finished rounds.
        adversary: The tasks.
        domain: The action set; default: Euclidean().

    >>> import numpy as np
    >>> still = force(lambda t, past: np.zeros(3), LowerBound(0.5, 1.0, 16, tasks=2))
    >>> round(still.tar, 6), round(still.ratio, 6)
    (0.5, 1.0)
    """
    domain = Euclidean() if domain is None else domain
    regret, optima = [], []
    for t, task in enumerate(adversary):
        game, past, suffered = task.open(), [], 0.0
        task.check(domain)
        for i in range(game.length):
            theta, where = as_float(agent(t, past), "the action"), {"task": t, "round": i}
            if tuple(theta.shape) != (game.dim,):
                raise FMRLError(f"the agent's action is not of shape ({game.dim},)", **where)
            if not bool(domain.contains(theta)):
                raise FMRLError(f"the agent left {domain!r}", **where, fix="project the action")
            loss, gradient = game.reveal(i, theta)
            suffered += float(loss)
            past.append(Move(theta, loss, gradient, partial(game.loss, game.linear)))
        best = game.hindsight(domain)
        regret.append(suffered - float(best.value))
        optima.append(best.theta)
    forced = adversary.diameter / 4 * weights(adversary.lipschitz, adversary.rounds)
    return Forced(np.asarray(regret), forced, namespace(*optima).stack(optima))


def sandwich(
    rounds: Sequence = (1, 4, 16, 64, 256), *, tasks: int = 20, dim: int = 10, diameter: float = 0.5
) -> dict:
    """A record for `figure`: TAR of Algorithm 2 between two theorems (G = 1, unit ball).

    ``upper`` is Theorem A.1 for an agent that starts at phi* and knows D*, which is 2√2 times the
    lower bound. ``omd``, ``ogd`` and ``ftrl`` know neither and learn both.

    Args:
        rounds: The m to try.
        tasks: T.
        dim: d ≥ 3.
        diameter: D*.

    >>> record = sandwich([16], tasks=5, dim=3)
    >>> record["lower"], [round(record[name][0], 3) for name in ("omd", "ftrl", "upper")]
    ([0.5], [0.504, 0.5, 1.414])
    """
    learners, rounds = ("omd", "ogd", "ftrl"), [int(m) for m in rounds]
    record: dict = {"rounds": rounds, "tasks": tasks, "dim": dim, "diameter": diameter, "seed": 0}
    record |= {name: [] for name in ("lower", *learners, "upper")}
    for m in rounds:
        adversary = LowerBound(diameter, 1.0, m, tasks=tasks, dim=dim)
        record["lower"].append(adversary.tar)
        record["upper"].append(2 * math.sqrt(2) * adversary.tar)
        for within in learners:
            algo = presets.paper(within, domain=Ball(1.0))
            record[within].append(float(run(algo, adversary, np.zeros(dim), keep="scalars").tar))
    return record


def figure(record: dict) -> Any:
    """Draw what `sandwich` measured: a matplotlib Figure.

    Args:
        record: What `sandwich` returned.
    """
    from matplotlib.figure import Figure

    picture, m = Figure(figsize=(5, 3.6), layout="constrained"), record["rounds"]
    axes = picture.add_subplot(xscale="log", yscale="log")
    axes.set(xlabel="rounds a task, m", ylabel="task-averaged regret")
    axes.fill_between(m, record["lower"], record["upper"], color="0.92")
    axes.plot(m, record["upper"], "k--", lw=1, label="upper bound, phi* and D* known")
    for name, marker in (("omd", "o"), ("ogd", "x"), ("ftrl", "^")):
        axes.plot(m, record[name], marker, ms=6, fillstyle="none", label=f"FMRL, {name.upper()}")
    axes.plot(m, record["lower"], "k-", lw=1, label="lower bound, any agent")
    axes.set_title("D* = {diameter:g}, d = {dim}, T = {tasks}".format_map(record), fontsize=9)
    axes.legend(fontsize=8)
    return picture
