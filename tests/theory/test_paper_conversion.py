"""Propositions A.1 and A.2 and Corollary A.1 on i.i.d. rounds; learners are plain numpy."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

import fmrl
from fmrl import bounds


def gradient_descent(costs, phi, eta, radius=1.0):
    """Actions [..., m] of lazy gradient descent on the line, losses costs·θ."""
    earlier = np.cumsum(costs, axis=-1) - costs
    return np.clip(phi - eta * earlier, -radius, radius)


@pytest.mark.parametrize("seed", range(40))
def test_expected_risk_of_the_mean_action(seed):
    """Proposition A.1 over all samples of two kinds of round, 25 problems each: for linear losses
    the excess risk is the expected regret against θ* over m, and so at most any bound over m."""
    for rng in np.random.default_rng(seed).spawn(25):
        m, chance, eta, phi = int(rng.integers(1, 8)), rng.uniform(), 10 ** rng.uniform(-2, 1), 0.3
        kinds = rng.uniform(-1, 1, 2)
        codes = np.array(list(product([0, 1], repeat=m)))
        weight = np.prod(np.where(codes, chance, 1 - chance), axis=1)
        costs = kinds[codes]
        theta = gradient_descent(costs, phi, eta)
        mean = (1 - chance) * kinds[0] + chance * kinds[1]
        best = -math.copysign(1, mean)
        risk = weight @ theta.mean(axis=1) * mean - best * mean
        regret = weight @ np.sum(costs * (theta - best), axis=1)
        assert risk == pytest.approx(regret / m, abs=1e-12)
        always = bounds.regret((best - phi) ** 2 / 2, eta, np.abs(kinds).max(), m).total
        assert risk <= bounds.mean_action_risk(always, m).total
        assert regret <= always


def coins(rng, runs, m, chance):
    """Losses in {0, 1} of two experts, one a fair coin against the other, [runs, m, 2]; and the
    losses of the expert that was better so far."""
    losses = (rng.random((runs, m, 2)) < chance).astype(float)
    earlier = np.cumsum(losses, axis=1) - losses
    pick = np.argmin(earlier, axis=2)
    played = np.take_along_axis(losses, pick[..., None], axis=2)[..., 0]
    return losses, played, chance[pick]


@pytest.mark.parametrize("delta", [0.3, 0.05, 1e-3])
def test_mean_loss_is_near_mean_risk(delta):
    """Proposition A.2, both sides, for actions that follow the leader: fails at most so often."""
    rng, runs = np.random.default_rng(0), 20_000
    for m in (5, 50):
        _, played, risk = coins(rng, runs, m, np.array([0.5, 0.6]))
        apart = risk.mean(axis=1) - played.mean(axis=1)
        limit = bounds.loss_to_risk(m, delta).total
        for side in (apart, -apart):
            assert np.mean(side > limit) <= delta
            assert np.mean(side > limit / 2) <= delta + 3 * math.sqrt(delta / runs)


def test_half_of_proposition_a2_is_enough_and_less_is_not():
    """Exactly, for fair coins: half of the printed width fails with at most delta, 0.45 of it with
    more where delta is small."""
    m = 10**6
    for delta in (0.2, 1e-3, 1e-9):
        width = bounds.loss_to_risk(m, delta).total
        fails = lambda share, w=width: binom.cdf(math.ceil(m / 2 - m * share * w) - 1, m, 0.5)  # noqa: E731
        assert fails(0.5) <= delta
    assert fails(0.45) > delta


@pytest.mark.parametrize("delta", [0.3, 0.05])
def test_risk_of_a_random_action(delta):
    """Corollary A.1 with the regret that was measured: fails at most so often; without its second
    term it fails in more than a tenth of the runs."""
    rng, runs, m, chance = np.random.default_rng(1), 20_000, 60, np.array([0.5, 0.55])
    losses, played, risk = coins(rng, runs, m, chance)
    regret = played.sum(axis=1) - losses.sum(axis=1).min(axis=1)
    excess = risk.mean(axis=1) - chance.min()
    limits = bounds.random_action_risk(0.0, m, delta).total + regret / m
    one = bounds.random_action_risk(float(regret[0]), m, delta)
    assert one.total == pytest.approx(limits[0]) and one.holds
    assert np.mean(excess > limits) <= delta
    assert np.mean(excess > regret / m) > 0.1


def test_transfer_uses_the_same_width():
    """Theorem B.3 applies Proposition A.2 to regret/(2m) + ½, so its width is twice the other."""
    transfer = bounds.online_to_batch(2.0, 16, 800, 0.05)
    width = 2 * bounds.loss_to_risk(800, 0.05).total
    assert transfer.terms["confidence"] == pytest.approx(width)
    assert transfer.note == bounds.loss_to_risk(800, 0.05).note


def test_says_what_is_wrong():
    with pytest.raises(fmrl.FMRLError, match="delta"):
        bounds.loss_to_risk(10, 1.0)
    with pytest.raises(fmrl.FMRLError, match="rounds"):
        bounds.mean_action_risk(1.0, 0)
    assert not bounds.mean_action_risk(math.inf, 3).holds
    assert not bounds.random_action_risk(math.inf, 3, 0.1).holds
