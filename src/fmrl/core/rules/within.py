"""Within-task learners: each yields an action and is sent the gradient of the loss it met there.

    OMD    θ_i = argmin_Θ B_R(·‖phi) + eta·Σ_{s<i} ⟨∇_s, ·⟩          lazy mirror descent (Definition A.6)
    OGD    θ_i = argmin_Θ B_R(·‖θ_{i−1}) + eta·⟨∇_{i−1}, ·⟩          the eager one; projects each step
    FTRL   θ_i = argmin_Θ B_R(·‖phi) + eta·Σ_{s<i} ℓ_s               meta-regularisation (Definition A.5)

On a Ball or Box the regulariser is ½‖·‖² and OMD and OGD are the two kinds of online gradient
descent."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fmrl.core.arrays import Array, namespace
from fmrl.core.domains import Domain
from fmrl.core.tasks import Game
from fmrl.errors import FMRLError

Actions = Generator[Array, Array, None]


class Learner(Protocol):
    """A within-task online algorithm TASK_{eta, phi}."""

    def actions(self, game: Game, domain: Domain, phi: Array, eta: Array) -> Actions:
        """Yield θ_1; then, for every gradient sent, the next action. phi [..., d], eta [...]."""
        ...


@dataclass(frozen=True)
class OMD:
    """Lazy (linearised) online mirror descent, Algorithm 2's choice."""

    def actions(self, game, domain, phi, eta):
        """One mirror step from phi along all gradients so far."""
        total = namespace(phi).zeros_like(phi)
        while True:
            gradient = yield domain.argmin(phi, eta[..., None] * total)
            total += gradient


@dataclass(frozen=True)
class OGD:
    """Eager mirror descent: a projected gradient step from the last action, as in the authors'
    released code.
    """

    def actions(self, game, domain, phi, eta):
        """One mirror step from the last action along the last gradient."""
        theta = phi
        while True:
            gradient = yield theta
            theta = domain.argmin(theta, eta[..., None] * gradient)


@dataclass(frozen=True)
class FTRL:
    """Follow the regularised leader: every action minimises the losses so far, exactly."""

    def actions(self, game, domain, phi, eta):
        """phi, then the regularised leader of the rounds so far."""
        leader = game.leaders(domain, phi, eta)
        yield phi
        for i in range(1, game.length + 1):
            yield leader(i)


class Play(NamedTuple):
    """What happened inside one task (or a stack of them)."""

    losses: Array  # [..., length] suffered, 0 in padded rounds
    last: Array  # [..., d] the action after the last round
    average: Array  # [..., d] mean of the actions played
    actions: Array | None  # [..., length, d] every action, if recorded


def _watched(learner: Learner, game: Game, domain: Domain, phi: Array, eta: Array) -> Actions:
    """The learner's actions. One that is not the library's is held to its word: an action in the
    domain for every round.
    """
    actions = learner.actions(game, domain, phi, eta)
    return (
        actions
        if type(learner) in (OMD, OGD, FTRL)
        else _held_to_its_word(learner, actions, domain, phi)
    )


def _held_to_its_word(learner: Learner, actions: Actions, domain: Domain, phi: Array) -> Actions:
    xp, i = namespace(phi), 0
    gradient: Any = None
    if not (hasattr(actions, "send") and hasattr(actions, "__next__")):
        raise FMRLError(
            f"{learner!r} gave {actions!r}, which is no generator of actions",
            fix="yield them from actions()",
        )
    while True:
        try:
            theta = next(actions) if i == 0 else actions.send(gradient)
        except StopIteration:
            fix = "yield an action for every gradient, and one after the last"
            raise FMRLError(f"{learner!r} stopped", round=i, fix=fix) from None
        if getattr(theta, "shape", None) != phi.shape:
            raise FMRLError(
                f"{learner!r} played {theta!r}, which is not an array of phi's shape", round=i
            )
        if not bool(xp.all(domain.contains(theta))):
            raise FMRLError(
                f"{learner!r} left {domain!r}",
                round=i,
                fix="end with domain.project or domain.argmin",
            )
        gradient = yield theta
        i += 1


def play(
    learner: Learner, game: Game, domain: Domain, phi: Array, eta: Array, record: bool = False
) -> Play:
    """Play all rounds of ``game`` from phi [..., d] with step eta [...].

    >>> import numpy as np
    >>> from fmrl.core.losses import Linear
    >>> from fmrl.core.domains import Simplex
    >>> from fmrl.core.tasks import Task
    >>> game = Task([[1.0, 0.0], [1.0, 0.0]], loss=Linear()).open()
    >>> play(OMD(), game, Simplex(), np.array([0.5, 0.5]), np.array(np.log(3.0))).losses
    array([0.5 , 0.25])
    """
    xp = namespace(phi)
    actions = _watched(learner, game, domain, phi, eta)
    theta, losses, played = next(actions), [], []
    ragged = bool(xp.any(game.rounds != game.length))
    total, last = xp.zeros_like(phi), theta
    for i in range(game.length):
        loss, gradient = game.reveal(i, theta)
        counts = (i < game.rounds)[..., None]
        losses.append(loss)
        total += xp.where(counts, theta, xp.zeros_like(theta)) if ragged else theta
        if record:
            played.append(theta)
        theta = actions.send(gradient)
        last = xp.where(counts, theta, last) if ragged else theta
    recorded = xp.stack(played, axis=-2) if record else None
    return Play(xp.stack(losses, axis=-1), last, total / game.rounds[..., None], recorded)
