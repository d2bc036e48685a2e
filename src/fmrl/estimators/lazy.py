"""What lazy OMD suffers on a ball, by inner products of rows alone.

Its actions are s·(phi − eta·Σ_j g_j ⊗ x_j), s what keeps them in the ball, so all that a round asks
for is

    ⟨θ_i, x_i⟩ = s·(⟨phi, x_i⟩ − eta·Σ_{j<i} g_j·⟨x_j, x_i⟩)

and ‖θ_i‖, which follows from the same products. Tasks have fewer rows than coordinates, so this is
less work than the actions are."""

from __future__ import annotations

import numpy as np

from fmrl.core.domains import Ball, Domain
from fmrl.core.rules.within import OMD, Learner
from fmrl.core.tasks import Rounds


def applies(learner: Learner, domain: Domain, game: Rounds) -> bool:
    """Whether `suffered` says what this learner suffers, and is the cheaper way to know."""
    centred = type(domain) is Ball and domain.centre == 0.0
    return (
        type(learner) is OMD and centred and game.offset is None and game.length <= game.X.shape[-1]
    )


def suffered(game: Rounds, domain: Ball, phi: np.ndarray, eta: np.ndarray) -> np.ndarray:
    """Losses [B, length] of lazy OMD from phi [B, d] with steps eta [B].

    >>> from fmrl.core.losses import Squared
    >>> game = Rounds(Squared(), np.ones((1, 2, 1)), np.ones((1, 2, 1)), np.ones((1, 2)), np.array([2.0]))
    >>> suffered(game, Ball(9.0), np.zeros((1, 1)), np.array([0.5]))
    array([[0.5  , 0.125]])
    """
    products = game.X @ np.swapaxes(game.X, 1, 2)  # [B, n, n]
    under_phi = game.margins(phi)  # [B, n, outputs]
    slopes, margins = np.zeros_like(under_phi), np.zeros_like(under_phi)
    step = eta[:, None]
    # ‖phi − eta·total‖² = start − 2·eta·cross + eta²·total
    start, cross, total = (phi * phi).sum(axis=1), np.zeros(len(phi)), np.zeros(len(phi))
    for i in range(game.length):
        along = (products[:, i : i + 1, :i] @ slopes[:, :i])[:, 0]  # ⟨total, x_i⟩, [B, outputs]
        length = np.sqrt(np.maximum(start - 2 * eta * cross + eta**2 * total, 0.0))
        shrink = domain.radius / np.maximum(length, domain.radius)
        margins[:, i] = z = (under_phi[:, i] - step * along) * shrink[:, None]
        slopes[:, i] = g = game.loss.slope(z, game.target[:, i])
        cross += (g * under_phi[:, i]).sum(axis=1)
        total += 2 * (g * along).sum(axis=1) + (g * g).sum(axis=1) * products[:, i, i]
    return game.loss.value(margins, game.target) * game.weight
