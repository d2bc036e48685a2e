"""Similarity rules on update vectors at all distances, small ones included, against the
definitions written out.
"""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import BOUNDED, make_domain, points, seeds

import fmrl
from fmrl.core.rules.meta import End
from fmrl.errors import InputWarning
from fmrl.theory.certificate import certify


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


def near_zero(count=400, noise=0.1):
    rng = np.random.default_rng(0)
    tasks = []
    for _ in range(count):
        X, theta = rng.normal(size=(5, 3)), np.array([0.5, 0.2, -0.3]) + 0.3 * rng.normal(size=3)
        y = X @ theta + noise * rng.normal(size=5)
        tasks.append(fmrl.Task(X, y, loss=fmrl.Squared()))
    return tasks


@pytest.mark.parametrize("update", [fmrl.FLIOnline(), fmrl.FLIBatch()], ids=repr)
def test_a_deviation_measured_by_its_own_guess_shrinks_and_is_said(update):
    """With FLI the average deviation falls like T^(−1/2): not in silence, and not with epsilon."""
    tasks = near_zero()
    with pytest.warns(InputWarning, match=r"shrinks with every task; give AverageDeviation\(eps"):
        shrinks = fmrl.FMRL(fmrl.Ball(2.0), update=update, similarity=fmrl.AverageDeviation())
    guess = fmrl.run(shrinks, tasks).guess
    assert guess[-1] < 0.7 * guess[100] < 0.05
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        held = replace(shrinks, similarity=fmrl.AverageDeviation(epsilon=0.3))
        exact = fmrl.FMRL(fmrl.Ball(2.0), similarity=fmrl.AverageDeviation())
    assert np.all(fmrl.run(held, tasks).guess >= 0.3)
    assert np.all(fmrl.run(exact, tasks).guess > 0.3)


def test_epsilon_adds_to_the_mean_and_its_certificate_holds():
    tasks, rule = near_zero(60), fmrl.AverageDeviation(epsilon=0.3)
    algo = fmrl.FMRL(fmrl.Ball(2.0), similarity=rule)
    history = fmrl.run(algo, tasks)
    sigma = history.lipschitz * np.sqrt(history.rounds)
    mean = np.cumsum(sigma * history.deviation) / np.cumsum(sigma)
    np.testing.assert_allclose(history.guess[1:] ** 2, 0.3**2 + mean[:-1], rtol=1e-12)
    bound = {b.name: b for b in certify(history, tasks).bounds}["average deviation"]
    plain = fmrl.run(replace(algo, similarity=fmrl.AverageDeviation()), tasks)
    other = {b.name: b for b in certify(plain, tasks).bounds}["average deviation"]
    assert bound.terms["epsilon"] == pytest.approx(0.3 * sigma.mean())
    assert bound.total == pytest.approx(other.total + bound.terms["epsilon"])
    for bad in (-0.1, math.inf, math.nan, "a"):
        with pytest.raises(fmrl.FMRLError, match="epsilon must be positive"):
            fmrl.AverageDeviation(epsilon=bad)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("off", [0.0, 1e-16, 1e-13])
def test_a_first_task_that_begins_at_its_optimum_up_to_rounding(off, dtype):
    """It says nothing about how far tasks lie from phi: the first guess stands."""
    tasks = [
        fmrl.Task(np.ones((3, 1), dtype), np.full(3, y, dtype), loss=fmrl.Squared())
        for y in (0.3, 0.3, 0.7, 0.5)
    ]
    algo = fmrl.FMRL(similarity=fmrl.AverageDeviation(), meta=fmrl.Fixed())
    phi = np.array([0.3 * (1 + off)], dtype)
    history, state = fmrl.run(algo, tasks, phi), algo.init(phi)
    first = float(history.guess[0])
    assert history.guess[:3].tolist() == [first] * 3 and 0.1 < history.guess[3] < first
    steps = []
    for task in tasks:
        steps.append(float(state.guess))
        state, _ = algo.step(state, task)
    np.testing.assert_array_equal(history.guess, steps)
    assert float(history.state.guess) == float(state.guess)
    certificate = certify(history, tasks)
    assert all(float(history.tar) <= bound.total for bound in certificate.bounds)


def test_tasks_that_all_begin_at_their_optimum_get_no_bound_from_rounding():
    """The guess stands, so a bound that takes 1e-32 for a deviation would be exceeded."""
    rng = np.random.default_rng(0)
    X = rng.choice([-1.0, 1.0], size=(40, 200, 1))
    tasks = [fmrl.Task(x, (0.3 * x + rng.normal(size=x.shape))[:, 0], loss=fmrl.Squared())
             for x in X]  # fmt: skip
    best = [float(np.mean(t.X * t.open().target)) for t in tasks]
    tasks = [fmrl.Task(t.X, t.open().target[:, 0] - b * t.X[:, 0], loss=fmrl.Squared())
             for t, b in zip(tasks, best, strict=True)]  # fmt: skip
    history = fmrl.run(fmrl.FMRL(fmrl.Ball(9.0), similarity=fmrl.AverageDeviation()), tasks)
    assert history.guess[-1] == history.guess[0] and 0 < history.deviation.max() < 1e-24
    for bound in certify(history, tasks).bounds:
        assert float(history.tar) <= bound.total
