"""Algorithm 2: Follow-the-Meta-Regularized-Leader, as five values and one step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fmrl.core.arrays import Array, as_float, constant, namespace
from fmrl.core.domains import Ball, Domain
from fmrl.core.rules.meta import End, FollowLeader, MetaUpdate
from fmrl.core.rules.similarity import Doubling, SimilarityRule
from fmrl.core.rules.update import FAL, UpdateRule
from fmrl.core.rules.within import OMD, Learner, Play, play
from fmrl.core.solve.minimise import Solution
from fmrl.core.tasks import Game
from fmrl.errors import FMRLError


class State(NamedTuple):
    """All that the next task needs, hence a checkpoint. Leading axes are runs side by side."""

    tasks: int  # how many tasks were played
    phi: Array  # [..., d] initialisation of the next task
    guess: Array  # [...] D_t of the next task
    meta: Any  # memory of the meta-update
    similarity: Any  # memory of the similarity rule


class Round(NamedTuple):
    """What happened in one task. The true regret lies in [regret, regret + gap]."""

    regret: Array  # [...] Σ losses − value of the best action found
    gap: Array  # [...] duality gap of that action
    guess: Array  # [...] D_t
    eta: Array  # [...] step
    losses: Array  # [..., m] suffered, round by round
    theta: Array  # [..., d] update vector θ_t
    optimum: Array  # [..., d] best action in hindsight
    divergence: Array  # [...] B_R(optimum‖phi_t)
    deviation: Array  # [...] B_R(θ_t‖phi_t); the guess is violated where D_t² is less
    lipschitz: Array  # [...] G_t
    rounds: Array  # [...] m_t

    @property
    def bound(self) -> Array:
        """Theorem A.1's bound on this task's regret: B_R(θ*‖phi)/eta + eta·G²·m, shape [...]."""
        return bound(self.divergence, self.eta, self.lipschitz, self.rounds)

    @property
    def violated(self) -> Array:
        """Whether the task was further from phi than guessed: D_t < sqrt(B_R(θ_t‖phi_t))."""
        return self.guess < namespace(self.guess).sqrt(self.deviation)


def bound(divergence: Array, eta: Array, lipschitz: Array, rounds: Array) -> Array:
    """B_R(θ*‖phi)/eta + eta·G²·m; with eta = 0 there was nothing to learn and the bound is 0 or
    infinite.
    """
    xp = namespace(eta)
    moving = eta > 0
    first = divergence / xp.where(moving, eta, xp.ones_like(eta))
    stuck = xp.where(divergence * lipschitz > 0, xp.inf * xp.ones_like(eta), xp.zeros_like(eta))
    return xp.where(moving, first + eta * lipschitz**2 * rounds, stuck)


@dataclass(frozen=True)
class FMRL:
    """Follow-the-Meta-Regularized-Leader: Algorithm 2 of the paper, and every variant of it, as a
    composition.

    For each task t:  eta_t = D_t / (G_t·√m_t);  play the task from phi_t;  take its update vector
    θ_t; then phi_{t+1} = META({sigma_s·B_R(θ_s‖·)}_{s≤t}) with sigma_s = G_s·√m_s, and D_{t+1} from
    the similarity rule.

    ``lipschitz`` replaces the G_t computed from the data. Arrays stay in the namespace, dtype and
    device of phi.

    >>> import numpy as np
    >>> from fmrl.core.losses import Squared
    >>> from fmrl.core.tasks import Task
    >>> algo = FMRL(domain=Ball(1.0), similarity=Doubling(0.1, 1.1))
    >>> state = algo.init(np.zeros(2))
    >>> state, round = algo.step(state, Task([[1.0, 0.0]], [0.5], loss=Squared()))
    >>> state.phi, float(state.guess), float(round.regret)
    (array([0.5, 0. ]), 0.1, 0.125)
    """

    domain: Domain = field(default_factory=lambda: Ball(1.0))
    within: Learner = field(default_factory=OMD)
    update: UpdateRule = field(default_factory=FAL)
    meta: MetaUpdate = field(default_factory=FollowLeader)
    similarity: SimilarityRule = field(default_factory=lambda: Doubling(0.1, 1.1))
    lipschitz: float | None = None

    def __post_init__(self):
        needs = {
            "domain": "divergence",
            "within": "actions",
            "update": "vector",
            "meta": "init",
            "similarity": "init",
        }
        for name, method in needs.items():
            value = getattr(self, name)
            if isinstance(value, type) or not hasattr(value, method):
                raise FMRLError(
                    f"{name}={value!r} is not a {name}",
                    fix=f"give a value such as FMRL(…).{name}, e.g. OMD()",
                )
        if self.lipschitz is not None and not 0 < self.lipschitz < math.inf:
            raise FMRLError(f"lipschitz must be positive and finite, not {self.lipschitz}")

    def init(self, phi: Array) -> State:
        """The state before the first task. phi: flat [d], or [runs, d] for several runs side by
        side.
        """
        phi = as_float(phi, "phi")
        xp = namespace(phi)
        if phi.ndim == 0 or phi.shape[-1] == 0:
            raise FMRLError(f"phi must be a flat vector, not of shape {tuple(phi.shape)}")
        if not bool(xp.all(xp.isfinite(phi))):
            raise FMRLError("phi has a NaN or an infinity")
        if not bool(xp.all(self.domain.contains(phi))):
            raise FMRLError(
                f"phi lies outside {self.domain!r}", fix="project it: domain.project(phi)"
            )
        phi, meta = self.meta.init(self.domain, phi)
        if not bool(xp.all(self.domain.contains(phi))):
            raise FMRLError(f"the initialisation of {self.meta!r} lies outside {self.domain!r}")
        guess, similarity = self.similarity.init(self.domain, phi)
        return State(0, phi, guess, meta, similarity)

    def check(self, state: State) -> None:
        """Refuse a state that another composition made: its phi, or the memories of its rules, do
        not fit.
        """
        if not bool(namespace(state.phi).all(self.domain.contains(state.phi))):
            raise FMRLError(
                f"the phi of this state lies outside {self.domain!r}",
                fix="resume with the domain it was made in",
            )
        meta = self.meta.init(self.domain, state.phi)[1]
        similarity = self.similarity.init(self.domain, state.phi)[1]
        for name, fresh, found in (
            ("meta", meta, state.meta),
            ("similarity", similarity, state.similarity),
        ):
            if _form(fresh) != _form(found):
                raise FMRLError(
                    f"this state was made by another {name} than {getattr(self, name)!r}",
                    fix="resume with the composition it was made by",
                )

    def step(self, state: State, task: Any) -> tuple[State, Round]:
        """Play one task: Algorithm 2's loop body."""
        return self.meet(state, task.open())

    def meet(self, state: State, game: Game, best: Solution | None = None) -> tuple[State, Round]:
        """``step`` with a task already opened, and its optimum in hindsight if that is known."""
        sigma = self.sigma(state.phi, game, state.tasks)
        eta = _step_size(state.guess, sigma)
        played = play(self.within, game, self.domain, state.phi, eta)
        best = game.hindsight(self.domain) if best is None else best
        theta = self.update.vector(played, best)
        return self.advance(state, End(theta, best.theta, sigma)), self.record(
            state, game, played, best, theta, sigma
        )

    def sigma(self, phi: Array, game: Game, task: int) -> Array:
        """sigma_t = G_t·√m_t, after checking that the task fits phi."""
        dim = getattr(game, "dim", None)
        if dim is not None and dim != phi.shape[-1]:
            raise FMRLError(
                f"the task needs phi of length {dim}, but phi has {phi.shape[-1]}", task=task
            )
        xp = namespace(phi, game.rounds)
        constant_ = (
            game.lipschitz(self.domain) if self.lipschitz is None else constant(self.lipschitz, phi)
        )
        sigma = constant_ * xp.sqrt(game.rounds)
        if not bool(xp.all(xp.isfinite(sigma))):
            raise FMRLError(
                "the task's Lipschitz constant is not a finite number",
                fix="scale its features and targets",
            )
        return sigma

    def advance(self, state: State, end: End) -> State:
        """Move phi and the guess after a task has ended."""
        phi, meta = self.meta.update(self.domain, state.phi, state.meta, end)
        guess, similarity = self.similarity.update(
            self.domain, state.phi, state.guess, state.similarity, end
        )
        return State(state.tasks + 1, phi, guess, meta, similarity)

    def record(
        self, state: State, game: Game, played: Play, best: Solution, theta: Array, sigma: Array
    ) -> Round:
        """The record of a task played from ``state``."""
        xp = namespace(theta)
        divergence = self.domain.divergence(best.theta, state.phi)
        return Round(
            regret=xp.sum(played.losses, axis=-1) - best.value,
            gap=best.gap,
            guess=state.guess,
            eta=_step_size(state.guess, sigma),
            losses=played.losses,
            theta=theta,
            optimum=best.theta,
            divergence=divergence,
            deviation=divergence
            if theta is best.theta
            else self.domain.divergence(theta, state.phi),
            lipschitz=sigma / xp.sqrt(game.rounds),
            rounds=game.rounds,
        )


def _form(memory: Any) -> Any:
    """What a memory is made of: its tuples, counts and shapes of arrays."""
    if isinstance(memory, tuple):
        return tuple(map(_form, memory))
    return ("array", memory.shape) if hasattr(memory, "shape") else type(memory)


def _step_size(guess: Array, sigma: Array) -> Array:
    """eta = D/sigma; 0 for a task whose losses are constant (sigma = 0)."""
    xp = namespace(guess, sigma)
    flat = sigma <= 0
    return xp.where(flat, xp.zeros_like(sigma), guess / xp.where(flat, xp.ones_like(sigma), sigma))
