"""Similarity rules on update vectors at all distances, small ones included, against the
definitions written out.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import BOUNDED, make_domain, points, seeds

import fmrl
from fmrl.core.rules.meta import End


def instance(kind, seed, count):
    """Update vectors at distances from 1e-3 of the domain's size up, with their optima and
    weights.
    """
    rng = np.random.default_rng(seed)
    domain = make_domain(kind, 3, rng)
    phi = points(domain, 3, rng)[0]
    share = 10 ** rng.uniform(-3, 0, size=(count, 1))
    thetas, optima = (phi + share * (points(domain, 3, rng, count) - phi) for _ in range(2))
    return domain, phi, thetas, optima, rng.uniform(0, 3, size=count)


def guesses(rule, domain, phi, thetas, optima, sigmas):
    guess, memory = rule.init(domain, phi)
    found = [float(guess)]
    for theta, optimum, sigma in zip(thetas, optima, sigmas, strict=True):
        guess, memory = rule.update(
            domain, phi, guess, memory, End(theta, optimum, np.asarray(sigma))
        )
        found.append(float(guess))
    return found


rates = {"epsilon": st.sampled_from([0.01, 0.1, 0.5]), "gamma": st.sampled_from([1.0, 1.1, 2.0])}


@pytest.mark.parametrize("kind", BOUNDED)
@given(seed=seeds, **rates)
def test_doubling(kind, seed, epsilon, gamma):
    domain, phi, thetas, optima, sigmas = instance(kind, seed, 25)
    D, k, expected = float(domain.reach(phi)) + epsilon, 0, []
    for theta in thetas:
        expected.append(D)
        if math.sqrt(domain.divergence(theta, phi)) > D:
            k += 1
        D = gamma**k * epsilon
    np.testing.assert_allclose(
        guesses(fmrl.Doubling(epsilon, gamma), domain, phi, thetas, optima, sigmas), [*expected, D]
    )


@pytest.mark.parametrize("kind", BOUNDED)
@given(seed=seeds, **rates)
def test_released_doubling(kind, seed, epsilon, gamma):
    """No ½, the exact optimum, and no test at the first task."""
    domain, phi, thetas, optima, sigmas = instance(kind, seed, 25)
    D, expected = epsilon, []
    for t, optimum in enumerate(optima):
        expected.append(D)
        if t > 0 and np.linalg.norm(optimum - phi) > D:
            D = gamma * D
    found = guesses(fmrl.ReleasedDoubling(epsilon, gamma), domain, phi, thetas, optima, sigmas)
    np.testing.assert_allclose(found, [*expected, D])


@pytest.mark.parametrize("kind", BOUNDED)
@given(seed=seeds)
def test_average_deviation_and_known(kind, seed):
    domain, phi, thetas, optima, sigmas = instance(kind, seed, 10)
    found = guesses(fmrl.AverageDeviation(), domain, phi, thetas, optima, sigmas)
    assert found[0] == domain.reach(phi)
    for t in range(1, 11):
        mean = np.average(domain.divergence(thetas[:t], phi), weights=sigmas[:t])
        assert found[t] == pytest.approx(math.sqrt(mean), rel=1e-9)
    assert set(guesses(fmrl.Known(0.7), domain, phi, thetas, optima, sigmas)) == {0.7}
    assert guesses(fmrl.AverageDeviation(0.3), domain, phi, thetas, optima, sigmas)[0] == 0.3


def test_first_replaces_the_reach_where_there_is_none():
    assert float(
        fmrl.Doubling(0.1, 1.1, first=2.0).init(fmrl.Euclidean(), np.zeros(2))[0]
    ) == pytest.approx(2.1)
    with pytest.raises(fmrl.FMRLError, match="first"):
        fmrl.Doubling(0.1, 1.1).init(fmrl.Simplex(), np.array([1.0, 0.0]))
