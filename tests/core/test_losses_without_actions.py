"""Losses by inner products are those of the actions themselves."""

import numpy as np
import pytest

from fmrl.core.domains import Ball, Box
from fmrl.core.losses import Logistic, OneVsAll, Squared, Weighted
from fmrl.core.rules import within
from fmrl.core.rules.within import OGD, OMD, play
from fmrl.core.tasks import Rounds


def game_of(loss, weighted=False, tasks=7, rounds=9, width=12, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, rounds + 1, tasks)
    there = np.arange(rounds) < sizes[:, None]
    X = rng.normal(size=(tasks, rounds, width)) * there[..., None]
    if isinstance(loss, Squared):
        target = rng.normal(size=(tasks, rounds, 1))
    else:
        target = (
            rng.integers(0, max(loss.outputs, 2), (tasks, rounds, 1)) == np.arange(loss.outputs)
        ).astype(float)
    target = target * there[..., None]
    if weighted:
        loss, target = (
            Weighted(loss, 3.0),
            np.concatenate([target, rng.uniform(0, 3, (tasks, rounds, 1))], axis=-1),
        )
    return Rounds(loss, X, target, there.astype(float), sizes.astype(float))


@pytest.mark.parametrize(
    "eta", [0.01, 0.3, 30.0]
)  # the last is held back by the ball in every round
@pytest.mark.parametrize(
    ("loss", "weighted"),
    [
        (Logistic(), False),
        (OneVsAll(4), False),
        (Squared(), False),
        (OneVsAll(3), True),
        (Logistic(), True),
    ],
)
def test_losses_are_those_of_play(loss, weighted, eta, monkeypatch):
    game, domain = game_of(loss, weighted), Ball(1.5)
    rng = np.random.default_rng(1)
    phi = domain.project(rng.normal(size=(7, game.dim)))
    steps = eta * rng.uniform(0.5, 2, 7)
    expected = play(OMD(), game, domain, phi, steps).losses
    monkeypatch.setattr(within, "play", None)  # the actions are not asked for
    np.testing.assert_allclose(
        OMD().losses(game, domain, phi, steps), expected, rtol=1e-9, atol=1e-12
    )


def test_losses_of_other_domains_and_learners_are_those_of_play():
    game, long = game_of(Logistic()), game_of(Logistic(), rounds=20)
    phi, eta = np.zeros((7, 12)), np.full(7, 0.3)
    for learner, domain, one in (
        (OGD(), Ball(1.0), game),
        (OMD(), Ball(1.0, (0.1,) * game.dim), game),
        (OMD(), Box(-1.0, 1.0), game),
        (OMD(), Ball(1.0), long),  # more rows than coordinates
    ):
        expected = play(learner, one, domain, phi, eta).losses
        np.testing.assert_array_equal(learner.losses(one, domain, phi, eta), expected)
