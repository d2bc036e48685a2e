"""Within-task learners: each yields an action and is sent the gradient of the loss it met there.

    OMD    θ_i = argmin_Θ B_R(·‖phi) + eta·Σ_{s<i} ⟨∇_s, ·⟩       lazy mirror descent (A.6)
    OGD    θ_i = argmin_Θ B_R(·‖θ_{i−1}) + eta·⟨∇_{i−1}, ·⟩       the eager one; projects each step
    FTRL   θ_i = argmin_Θ B_R(·‖phi) + eta·Σ_{s<i} ℓ_s            meta-regularisation (A.5)

On a Ball or Box the regulariser is ½‖·‖² and OMD and OGD are the two kinds of online gradient
descent. The step eta is a number, or a metric H (`fmrl.core.metric`): B_R(·‖phi)/eta is then
½‖· − phi‖²_{H⁻¹}.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fmrl.core.arrays import Array, anywhere, as_float, dot, full, namespace
from fmrl.core.domains import Ball, Domain, Euclidean
from fmrl.core.metric import Metric, descend
from fmrl.core.samples import Samples
from fmrl.core.values import Value
from fmrl.errors import FMRLError

if TYPE_CHECKING:
    from fmrl.core.tasks import Game

Actions = Generator[Array, Array, None]
RUNAWAY = 1e6  # times what staying at phi costs: no step of a fitting length comes near


class Learner(Value):
    """A within-task online algorithm TASK_{eta, phi}. One of your own needs ``actions`` alone."""

    def actions(self, game: Game, domain: Domain, phi: Array, eta: Array | Metric) -> Actions:
        """Yield θ_1; then, for every gradient sent, the next action. phi [..., d], eta [...]."""
        raise NotImplementedError

    def losses(self, game: Game, domain: Domain, phi: Array, eta: Array) -> Array:
        """What is suffered [..., length], for those who do not ask for the actions."""
        return play_opened(self, game, domain, phi, eta).losses


@dataclass(frozen=True)
class OMD(Learner):
    """Lazy (linearised) online mirror descent, Algorithm 2's choice."""

    def actions(self, game, domain, phi, eta):
        """One mirror step from phi along all gradients so far."""
        total = namespace(phi).zeros_like(phi)
        while True:
            gradient = yield descend(domain, phi, eta, total)
            total += gradient

    def losses(self, game, domain, phi, eta):
        """On a ball around 0 the losses follow from inner products of rows alone.

        The actions are s·(phi − eta·Σ_j g_j ⊗ x_j), s what keeps them in the ball, so a round
        needs ⟨θ_i, x_i⟩ = s·(⟨phi, x_i⟩ − eta·Σ_{j<i} g_j·⟨x_j, x_i⟩), and ‖θ_i‖ from the same
        products. With fewer rows than features that is less work than the actions are."""
        if not (isinstance(domain, Ball) and isinstance(game, Samples) and phi.ndim == 2):
            return super().losses(game, domain, phi, eta)
        if isinstance(eta, Metric):
            return super().losses(game, domain, phi, eta)
        if not _by_products(domain, game):
            return super().losses(game, domain, phi, eta)
        xp = namespace(phi)
        products = xp.matmul(game.X, xp.matrix_transpose(game.X))  # [B, n, n]
        under_phi = game.margins(phi)  # [B, n, outputs]
        slopes, margins = xp.zeros_like(under_phi), xp.zeros_like(under_phi)
        # ‖phi − eta·total‖² = start − 2·eta·cross + eta²·square
        start, cross, square = dot(phi, phi), xp.zeros_like(eta), xp.zeros_like(eta)
        for i in range(game.length):
            along = xp.matmul(products[:, i : i + 1, :i], slopes[:, :i, :])[:, 0, :]
            size = start - 2 * eta * cross + eta**2 * square
            size = xp.sqrt(xp.maximum(size, xp.zeros_like(size)))
            shrink = domain.radius / xp.maximum(size, full((), domain.radius, size))
            z = (under_phi[:, i, :] - eta[:, None] * along) * shrink[:, None]
            g = game.loss.slope(z, game.target[:, i, :])
            margins[:, i, :], slopes[:, i, :] = z, g
            cross = cross + dot(g, under_phi[:, i, :])
            square = square + 2 * dot(g, along) + dot(g, g) * products[:, i, i]
        return game.loss.value(margins, game.target) * game.weight


def _by_products(domain: Ball, game: Samples) -> bool:
    """Whether the losses of lazy descent follow from products of rows, and so come cheaper."""
    few = game.length <= game.X.shape[-1]
    return domain.centre == 0.0 and game.offset is None and game.loss.bend > 0 and few


@dataclass(frozen=True)
class OGD(Learner):
    """Eager mirror descent: a projected gradient step from the last action, as in the authors'
    released code.

    On ``Simplex()`` nothing is projected but by normalising, and eager descent is lazy descent: it
    adds up gradients, which are differences of logarithms, so that a mass below the smallest number
    comes back when its expert does well again.
    """

    def actions(self, game, domain, phi, eta):
        """One mirror step from the last action along the last gradient."""
        if domain.additive:
            yield from OMD().actions(game, domain, phi, eta)
        theta = phi
        while True:
            gradient = yield theta
            theta = descend(domain, theta, eta, gradient)


@dataclass(frozen=True)
class FTRL(Learner):
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
    last: Array | None = None  # [..., d] the action after the last round
    average: Array | None = None  # [..., d] mean of the actions played
    actions: Array | None = None  # [..., length, d] every action, if recorded
    gradients: Array | None = None  # [..., length, d] what was met there, if observed


def _actions(learner: Learner, game: Any, domain: Domain, phi: Array, eta: Array) -> Actions:
    """The learner's actions. Those that are not written in this module are checked: an action in
    the domain for every round.
    """
    actions = learner.actions(game, domain, phi, eta)
    if type(learner).actions.__module__ == __name__:
        return actions
    if not (hasattr(actions, "send") and hasattr(actions, "__next__")):
        what = f"{learner!r} gave {actions!r}, which is not a generator of actions"
        raise FMRLError(what, fix="yield them from actions()")
    return _checked(learner, actions, domain, phi)


def _checked(learner: Learner, actions: Actions, domain: Domain, phi: Array) -> Actions:
    xp, i, gradient = namespace(phi), 0, None
    while True:
        try:
            theta = next(actions) if i == 0 else actions.send(gradient)
        except StopIteration:
            fix = "yield an action for every gradient, and one after the last"
            raise FMRLError(f"{learner!r} stopped", round=i, fix=fix) from None
        if getattr(theta, "shape", None) != phi.shape:
            what = f"{learner!r} played {theta!r}, which is not an array of phi's shape"
            raise FMRLError(what, round=i)
        if not bool(xp.all(domain.contains(theta))):
            fix = "end with domain.project or domain.argmin"
            raise FMRLError(f"{learner!r} left {domain!r}", round=i, fix=fix)
        gradient = yield theta
        i += 1


def play(
    learner: Learner, game: Any, domain: Domain, phi: Array, eta: Array | Metric,
    record: bool = False, observe: bool = False,
) -> Play:  # fmt: skip
    """Play all rounds of a game.

    Args:
        learner: Who plays.
        game: A Task, or an opened one, or a stack of these.
        domain: The action set.
        phi: Where to start, [..., d].
        eta: The step, a number or [...], or a metric.
        record: Whether to keep every action.
        observe: Whether to keep every gradient.

    >>> import numpy as np
    >>> from fmrl.core.losses import Linear
    >>> from fmrl.core.domains import Simplex
    >>> from fmrl.core.tasks import Task
    >>> game = Task([[1.0, 0.0], [1.0, 0.0]], loss=Linear()).open()
    >>> play(OMD(), game, Simplex(), np.array([0.5, 0.5]), np.array(np.log(3.0))).losses
    array([0.5 , 0.25])
    """
    game = game.open() if hasattr(game, "open") else game
    phi, shaped = as_float(phi, "phi"), isinstance(eta, Metric)
    step: Any = eta if shaped else as_float(eta, "eta")
    kinds = (learner, "actions"), (game, "reveal"), (domain, "divergence")
    good = all(hasattr(v, name) and not isinstance(v, type) for v, name in kinds) and phi.ndim > 0
    good = good and getattr(game, "dim", phi.shape[-1]) == phi.shape[-1]
    if not (good and (shaped or step.shape in ((), phi.shape[:-1]))):
        what = f"{learner!r}, {game!r:.60}, {domain!r}, phi and eta do not go together"
        raise FMRLError(what, fix="give play(learner, task, domain, phi, eta)")
    step = step if shaped else step + full(phi.shape[:-1], 0.0, phi)
    return play_opened(learner, game, domain, phi, step, record, observe)


def play_opened(
    learner: Learner, game: Any, domain: Domain, phi: Array, eta: Array | Metric,
    record: bool = False, observe: bool = False,
) -> Play:  # fmt: skip
    """`play` of an opened game from arrays that are known to fit, with the same arguments."""
    xp = namespace(phi)
    actions = _actions(learner, game, domain, phi, eta)
    theta, losses, played, met = next(actions), [], [], []
    ragged = bool(xp.any(game.rounds != game.length))
    total, last = xp.zeros_like(phi), theta
    for i in range(game.length):
        loss, gradient = game.reveal(i, theta)
        counts = (i < game.rounds)[..., None]
        losses.append(loss)
        total += xp.where(counts, theta, xp.zeros_like(theta)) if ragged else theta
        if record:
            played.append(theta)
        if observe:
            met.append(gradient)
        theta = actions.send(gradient)
        last = xp.where(counts, theta, last) if ragged else theta
    recorded, gradients = (xp.stack(kept, axis=-2) if kept else None for kept in (played, met))
    average = total / game.rounds[..., None]
    return Play(xp.stack(losses, axis=-1), last, average, recorded, gradients)


def ran_away(game: Any, domain: Domain, phi: Array, losses: Array) -> float:
    """How many times what staying at phi costs was suffered, where that is past all use; else 0.

    A step that is too long for the rows makes actions grow from round to round, and only a bounded
    domain stops them.

    Args:
        game: What was played.
        domain: The action set.
        phi: Where it began, [..., d].
        losses: What was suffered, [..., length].
    """
    xp, total = namespace(phi), namespace(phi).sum(losses, axis=-1)
    if not isinstance(domain, Euclidean) or not isinstance(game, Samples):
        return 0.0
    if game.loss.lowest != 0 or not anywhere(~(total <= RUNAWAY * losses[..., 0])):
        return 0.0
    still = xp.sum(game.losses(phi), axis=-1)
    # Where phi is perfect only rounding is left of its losses, in units of those at zero.
    still = still + 1e-12 * xp.sum(game.losses(xp.zeros_like(phi)), axis=-1)
    away = ~(total <= RUNAWAY * still)
    if not anywhere(away):
        return 0.0
    worst = xp.max(
        xp.where(away, total / xp.where(still > 0, still, xp.ones_like(still)), 0 * total)
    )
    return float(worst) if math.isfinite(float(worst)) else math.inf
