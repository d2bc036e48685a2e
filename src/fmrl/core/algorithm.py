"""Algorithm 2: Follow-the-Meta-Regularized-Leader, as five values and one step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fmrl.core.arrays import Array, as_float, constant, faintest, namespace
from fmrl.core.checks import number
from fmrl.core.domains import Ball, Domain
from fmrl.core.meta_level import State, check_state, looked, refuse_nan, refuse_no_state
from fmrl.core.metric import Metric, Relative
from fmrl.core.rules.meta import End, FollowLeader, MetaUpdate
from fmrl.core.rules.observe import OBSERVATIONS, records, terms
from fmrl.core.rules.private import refuse_leaks
from fmrl.core.rules.similarity import AverageDeviation, Doubling, SimilarityRule
from fmrl.core.rules.update import FAL, UpdateRule
from fmrl.core.rules.within import OMD, Learner, Play, play_opened, ran_away
from fmrl.core.samples import Samples, identify
from fmrl.core.solve import Solution
from fmrl.core.tasks import Game, opened
from fmrl.core.values import Value, shortcut, text_of
from fmrl.errors import FMRLError, warn

# What a composition asks of each ingredient, and an example of one.
NEEDS = {
    "domain": (("divergence",), "Ball(1.0)"),
    "within": (("actions",), "OMD()"),
    "update": (("vector",), "FAL()"),
    "meta": (("init", "update"), "FollowLeader()"),
    "similarity": (("init", "update"), "Doubling(0.1, 1.1)"),
}
# Methods that a rule of one's own has to write.
UNWRITTEN = (
    Learner.actions, UpdateRule.vector, MetaUpdate.update, SimilarityRule.init,
    SimilarityRule.update,
)  # fmt: skip


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
    # Where the similarity rule observes or records gradients, and else None:
    distance: Array | None = None  # [...] B_R(θ*‖phi)/eta, or ½‖θ* − phi‖²_{H⁻¹} in a metric
    energy: Array | None = None  # [...] ½·eta·Σ‖∇_i‖², or ½Σ‖∇_i‖²_H
    seen: Array | None = None  # [..., k] what the rule asked for
    # By which a task is known again (`Samples.checksums`), NaN where it is not made of rows:
    row_checksum: Array | None = None  # [...]
    target_checksum: Array | None = None  # [...]
    convex: Array | None = None  # [...] 1 where the losses are the library's own, else 0

    @property
    def bound(self) -> Array:
        """Theorem A.1's bound on this task's regret, shape [...]: distance + energy where gradients
        were observed, else B_R(θ*‖phi)/eta + eta·G²·m.
        """
        if self.distance is not None:
            return self.distance + self.energy
        return bound(self.divergence, self.eta, self.lipschitz, self.rounds)

    @property
    def violated(self) -> Array:
        """Whether the task was further from phi than guessed: D_t < sqrt(B_R(θ_t‖phi_t))."""
        return self.guess < namespace(self.guess).sqrt(self.deviation)


def bound(divergence: Array, eta: Array, lipschitz: Array, rounds: Array) -> Array:
    """B_R(θ*‖phi)/eta + eta·G²·m; with eta = 0 nothing was to be learned: 0 or infinite."""
    xp = namespace(eta)
    moving = eta > 0
    first = divergence / xp.where(moving, eta, xp.ones_like(eta))
    stuck = xp.where(divergence * lipschitz > 0, xp.inf * xp.ones_like(eta), xp.zeros_like(eta))
    square = lipschitz**2  # which a faint G does not have
    each = xp.where(square < faintest(square), eta * lipschitz * lipschitz, eta * square)
    return xp.where(moving, first + each * rounds, stuck)


@dataclass(frozen=True)
class FMRL(Value):
    """Follow-the-Meta-Regularized-Leader: Algorithm 2 of the paper, and every variant of it, as a
    composition.

    For each task t:  eta_t = D_t / (G_t·√m_t);  play the task from phi_t;  take its update vector
    θ_t; then phi_{t+1} = META({sigma_s·B_R(θ_s‖·)}_{s≤t}) with sigma_s = G_s·√m_s, and D_{t+1}
    from the similarity rule.

    Arrays stay in the namespace, dtype and device of phi.

    Args:
        domain: The action set with its regulariser.
        within: The learner inside a task.
        update: Which vector of a finished task moves phi.
        meta: How it moves phi. With a `Tree` phi is differentially private per task.
        similarity: How the guess D_t, and with it the step, follows.
        lipschitz: Replaces the G_t computed from the data.

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
        for name, (methods, example) in NEEDS.items():
            value = getattr(self, name)
            fix = f"give a value such as {example}"
            if isinstance(value, type) or not all(hasattr(value, m) for m in methods):
                raise FMRLError(f"{name}={value!r} is not a {name}", fix=fix)
            missing = [m for m in methods if getattr(type(value), m, None) in UNWRITTEN]
            if missing:
                raise FMRLError(f"{name}={value!r} has no {missing[0]}", fix=f"write it, or {fix}")
        wanted = getattr(self.similarity, "played_by", object)
        if not isinstance(self.within, wanted):
            what = f"{self.similarity!r} learns a prior, which {self.within!r} takes for a step"
            raise FMRLError(what, fix=f"use within={wanted.__name__}()")
        if self.lipschitz is not None and not 1e-150 <= number(self.lipschitz) < math.inf:
            what = f"lipschitz must be positive and finite, not {self.lipschitz!r}"
            raise FMRLError(what, fix="give a number of at least 1e-150, which can be squared")
        refuse_leaks(self)
        rule = self.similarity
        if isinstance(rule, AverageDeviation) and not (rule.epsilon or self.exact):
            what = f"{rule!r} measures how far tasks end from phi, and those of {self.update!r} end"
            what += " only as far as its own guess lets them: it shrinks with every task; "
            warn(what + "give AverageDeviation(epsilon=…), the least guess, or Doubling")

    def init(self, phi: Array) -> State:
        """The state before the first task.

        Args:
            phi: Where the first task starts: flat [d], or [runs, d] for several runs side by
                side.
        """
        phi = as_float(phi, "phi")
        xp = namespace(phi)
        if phi.ndim == 0 or phi.shape[-1] == 0:
            raise FMRLError(f"phi must be a flat vector, not of shape {tuple(phi.shape)}")
        if not bool(xp.all(xp.isfinite(phi))):
            raise FMRLError("phi has a NaN or an infinity")
        if not bool(xp.all(self.domain.contains(phi))):
            fix = "project it: domain.project(phi)"
            raise FMRLError(f"phi lies outside {self.domain!r}", fix=fix)
        wide = self.domain.diameter(phi.shape[-1])
        if math.isfinite(wide) and not faintest(phi) <= wide**2 <= float(xp.finfo(phi.dtype).max):
            what = f"distances in {self.domain!r} cannot be squared in {phi.dtype}"
            raise FMRLError(what, fix="use float64, or scale the data")
        phi, meta = self.meta.init(self.domain, phi)
        if not bool(xp.all(self.domain.contains(phi))):
            raise FMRLError(f"the initialisation of {self.meta!r} lies outside {self.domain!r}")
        guess, similarity = self.similarity.init(self.domain, phi)
        return State(0, phi, guess, meta, similarity, text_of(self))

    def check(self, state: State) -> None:
        """Refuse a state that another composition made, or that is damaged.

        Args:
            state: What shall go on.
        """
        check_state(self, state)

    @property
    def scanned(self) -> bool:
        """Whether phi and the guess follow from the optima alone, so that tasks can be batched."""
        return self.exact and not self._observes

    @property
    def exact(self) -> bool:
        """Whether update vectors are the optima."""
        return self.update.exact

    def step(self, state: State, task: Any) -> tuple[State, Round]:
        """Play one task: the loop body of Algorithm 2.

        Args:
            state: What `init` or the step before left.
            task: A `Task`, or any object whose ``open()`` returns a `Game`.

        Returns:
            The state for the next task, and the record of this one.
        """
        game = opened(task)
        state, round = self.step_solved(self.starting(state, game), game)
        refuse_nan(round, state)
        return state, round

    def step_solved(self, state: State, game: Game, best: Any = None) -> tuple[State, Round]:
        """`step` on an opened task; best: its optimum, where it is known."""
        round, end = self.play(state, game, best)
        return self.advance(state, end), round

    def adapt(self, state: State, task: Any) -> Array:
        """The action after the rounds of a task, [d]: what would be played next. The state stays
        as it is.

        Args:
            state: Where the task starts.
            task: The rows there are of it.

        >>> import fmrl
        >>> algo, task = FMRL(Ball(1.0)), fmrl.Task([[1.0]], [0.5], loss=fmrl.Squared())
        >>> algo.adapt(algo.init([0.0]), task).round(4)
        array([0.269])
        """
        game = opened(task)
        state = self.starting(state, game)
        return self.play_rounds(state, game, record=True)[2].last

    def starting(self, state: State, game: Game) -> State:
        """The state with phi where this task starts, for a meta-update that looks at the task."""
        refuse_no_state(state)
        rule: Any = None
        if getattr(type(self.meta), "look", MetaUpdate.look) is not MetaUpdate.look:
            rule = self.meta
        elif self._observes == "posterior":
            rule = self.similarity
        if rule is not None and not isinstance(game, Samples):
            what = f"{rule!r} looks at the rows of a task, and {game!r} has no rows"
            raise FMRLError(what, fix="give Task(X, y, loss=…)", task=state.tasks)
        side = looked(self, game.X[..., 0, :]) if isinstance(game, Samples) else None
        if side is None:
            return state
        return state._replace(phi=self.meta.begin(self.domain, state.phi, state.meta, side))

    def play(
        self, state: State, game: Game, best: Solution | None = None, sigma: Array | None = None
    ) -> tuple[Round, End]:
        """Play an opened task, or a stack of them, from ``state``, which stays as it is.

        Args:
            state: phi [..., d] and guess [...] of every task.
            game: What is played, with the leading axes of phi.
            best: The optimum in hindsight, where it is known already.
            sigma: G_t·√m_t [...], where it is known already: of stacks, whose tasks are identified
                together afterwards.
        """
        alone = sigma is None
        sigma, eta, played = self.play_rounds(state, game, sigma)
        best = game.hindsight(self.domain) if best is None else best
        theta = self.update.vector(played, best)
        round = self._round(state, game, played, best, theta, sigma, eta)
        if alone:
            round = round._replace(**identify(game, sigma))
        side = looked(self, game.X[..., 0, :]) if isinstance(game, Samples) else None
        return round, End(theta, best.theta, sigma, round.seen, side)

    def play_rounds(
        self, state: State, game: Game, sigma: Array | None = None, record: bool = False
    ) -> tuple[Array, Any, Play]:
        """The rounds of an opened task from ``state``: its weight sigma, its step, and the play."""
        sigma = self.sigma(state.phi, game, state.tasks) if sigma is None else sigma
        eta = self.eta(state.guess, sigma, game)
        played = self.act(state.phi, game, eta, record)
        if state.tasks == 0 and (times := ran_away(game, self.domain, state.phi, played.losses)):
            raise self._too_long(game, eta, times)
        return sigma, eta, played

    def eta(self, guess: Any, sigma: Array, game: Any = None) -> Any:
        """The step: D/sigma, or the guess itself where the similarity rule is absolute; a guess in
        units of the columns is put into those of the game.
        """
        xp, shaped = namespace(sigma), isinstance(guess, Metric)
        if not bool(guess.finite if shaped else xp.all(xp.isfinite(guess))):
            what = f"the guess of {self.similarity!r} is not a finite number"
            raise FMRLError(what, fix="look at what its update returned after the task before")
        if isinstance(guess, Relative) and isinstance(game, Samples):
            return guess.on(game)
        return guess if self._absolute else step_size(guess, sigma)

    def act(self, phi: Array, game: Game, eta: Any, record: bool = False) -> Play:
        """Play the rounds from phi; without the actions where nobody asks for them."""
        arguments, observe = (game, self.domain, phi, eta), records(self.similarity)
        few = self.scanned and not (record or observe)
        if few and (fast := shortcut(self.within, "losses", "actions")):
            return Play(fast(*arguments))
        return play_opened(self.within, *arguments, record, observe)

    def _too_long(self, game: Any, eta: Any, times: float) -> FMRLError:
        xp, step = namespace(game.X), eta.mean if isinstance(eta, Metric) else eta
        size = float(xp.max(step * xp.max(xp.sum(game.X**2, axis=-1), axis=-1))) * game.loss.bend
        what = f"the first step {float(xp.max(step)):.3g} of {self.similarity!r} is too long for "
        what += f"these rows: the actions ran away, to {times:.0e} times the loss of staying at phi"
        first = "epsilon/zeta, or the step given," if self._absolute else "the first guess"
        fix = f"make {first} at least {size:.1g} times smaller, scale the rows, or use Ball(radius)"
        return FMRLError(what, fix=fix)

    @property
    def _observes(self) -> str | None:
        return getattr(self.similarity, "observes", None)

    @property
    def _absolute(self) -> bool:
        return getattr(self.similarity, "absolute", False)

    def advance(self, state: State, end: End) -> State:
        """Move phi and the guess after a task has ended."""
        domain, phi, guess = self.domain, state.phi, state.guess
        guess, similarity = self.similarity.update(domain, phi, guess, state.similarity, end)
        phi, meta = self.meta.update(domain, phi, state.meta, end)
        return State(state.tasks + 1, phi, guess, meta, similarity, state.algo)

    def sigma(self, phi: Array, game: Game, task: int) -> Array:
        """sigma_t = G_t·√m_t, after checking that the task fits phi."""
        dim = getattr(game, "dim", None)
        if dim is not None and dim != phi.shape[-1]:
            what = f"the task needs phi of length {dim}, but phi has {phi.shape[-1]}"
            raise FMRLError(what, task=task)
        xp, G = namespace(phi, game.rounds), self.lipschitz
        try:
            G = game.lipschitz(self.domain) if G is None else constant(G, phi)
        except FMRLError:
            if not (records(self.similarity) and self._absolute):
                raise
            G = 1.0  # the step does not depend on it, and all tasks weigh alike by their rounds
        sigma = G * xp.sqrt(game.rounds)
        if not bool(xp.all(xp.isfinite(sigma))):
            what = "the task's Lipschitz constant is not a finite number"
            raise FMRLError(what, fix="scale its features and targets")
        return sigma

    def _round(
        self, state: State, game: Game, played: Play, best: Solution, theta: Array, sigma: Array,
        eta: Array | Metric,
    ) -> Round:  # fmt: skip
        xp, domain = namespace(theta), self.domain
        number = eta.mean + xp.zeros_like(sigma) if isinstance(eta, Metric) else eta
        guess = number * sigma if self._absolute else state.guess
        divergence = domain.divergence(best.theta, state.phi)
        exact, facts = theta is best.theta, (domain, state.phi, eta, played)
        recorded = terms(best.theta, *facts) if records(self.similarity) else (None, None)
        return Round(
            regret=xp.sum(played.losses, axis=-1) - best.value,
            gap=best.gap,
            guess=guess,
            eta=number,
            losses=played.losses,
            theta=theta,
            optimum=best.theta,
            divergence=divergence,
            deviation=divergence if exact else domain.divergence(theta, state.phi),
            lipschitz=sigma / xp.sqrt(game.rounds),
            rounds=game.rounds,
            distance=recorded[0],
            energy=recorded[1],
            seen=OBSERVATIONS[self._observes](game, *facts) if self._observes else None,
        )


def step_size(guess: Array, sigma: Array) -> Array:
    """eta = D/sigma; 0 for a task whose losses are constant (sigma = 0)."""
    xp = namespace(guess, sigma)
    flat = sigma <= 0
    return xp.where(flat, xp.zeros_like(sigma), guess / xp.where(flat, xp.ones_like(sigma), sigma))
