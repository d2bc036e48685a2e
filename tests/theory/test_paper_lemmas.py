"""Lemmas B.1, B.3, B.5 and B.6 and Claim A.2 of the paper on random instances, in plain numpy; the
library plays the same instances where it has the algorithm."""

import math

import numpy as np
import pytest
from scipy import optimize

import fmrl

DELTA = 0.1


def means(points, weights, first):
    """phi_0 = first, phi_t the weighted mean of the first t points."""
    sums = np.cumsum(weights[:, None] * points, axis=0)
    return np.vstack([first, sums / np.cumsum(weights)[:, None]])


@pytest.mark.parametrize("seed", range(50))
def test_following_quadratics_is_no_better_than_their_mean(seed):
    """Lemma B.1, 1,000 sequences, any first point; it is Σ alpha_{1:t}·‖phi_t − phi_{t−1}‖²."""
    for rng in np.random.default_rng(seed).spawn(20):
        T, d = int(rng.integers(1, 15)), int(rng.integers(1, 5))
        points, weights = rng.normal(size=(T, d)), 10 ** rng.uniform(-3, 3, T)
        phi = means(points, weights, 10 ** rng.uniform(-1, 1) * rng.normal(size=d))
        before = weights @ np.sum((points - phi[:-1]) ** 2, axis=1)
        after = weights @ np.sum((points - phi[-1]) ** 2, axis=1)
        assert before - after >= -1e-12 * before
        moved = np.sum((phi[1:] - phi[:-1]) ** 2, axis=1)  # docs/theory.md, the identity
        np.testing.assert_allclose(before - after, np.cumsum(weights) @ moved, rtol=1e-6)


def test_the_printed_mean_of_lemma_b1_is_a_misprint():
    """Printed: phi_t = Σ_{s≤t} alpha_t·θ_t/alpha_{1:t} = t·alpha_t·θ_t/alpha_{1:t}. Then two equal
    points of weights 1 and 3 give −1."""
    points, weights, t = np.array([1.0, 1.0]), np.array([1.0, 3.0]), np.arange(1, 3)
    phi = np.concatenate([[1.0], t * weights * points / np.cumsum(weights)])
    before, after = weights @ (points - phi[:-1]) ** 2, weights @ (points - phi[-1]) ** 2
    assert before - after == pytest.approx(-1.0)


@pytest.mark.parametrize("seed", range(50))
def test_last_action_is_near_the_nearest_optimum(seed):
    """Lemma B.3, 1,000 quadratics, some with a line or a plane of optima: FTRL's last action and
    the optimum nearest to it in closed form; α is the least positive eigenvalue."""
    nearest = 0.0
    for rng in np.random.default_rng(seed).spawn(20):
        d, m = int(rng.integers(1, 5)), int(rng.integers(1, 9))
        rank, eta = int(rng.integers(1, d + 1)), 10 ** rng.uniform(-2, 2)
        X = rng.normal(size=(m, rank)) @ np.linalg.qr(rng.normal(size=(d, d)))[0][:rank]
        A, c, phi = X.T @ X / m, rng.normal(size=d), rng.normal(size=d)
        values, vectors = np.linalg.eigh(A)
        some = values > 1e-9 * values.max()
        alpha = values[some].min()
        last = np.linalg.solve(np.eye(d) + eta * m * A, phi + eta * m * A @ c)
        flat = vectors[:, ~some] @ vectors[:, ~some].T
        optimum = c + flat @ (last - c)
        apart = np.sum((optimum - last) ** 2) / 2
        started = (np.sum((optimum - phi) ** 2) - np.sum((last - phi) ** 2)) / 2
        limit = started / (alpha * eta * m)
        assert apart <= limit * (1 + 1e-6) + 1e-12
        nearest = max(nearest, apart / limit)
        task = fmrl.Task(X, X @ c, loss=fmrl.Squared())
        played = fmrl.play(fmrl.FTRL(), task.open(), fmrl.Euclidean(), phi, np.array(eta))
        np.testing.assert_allclose(played.last, last, atol=1e-6 * (1 + np.abs(last).max()))
    assert nearest > 0.2  # the lemma says something about these instances


def extremes(rng, runs, m, most):
    """Q_t [runs, T] as large as the assumption of Lemma B.5 allows: √(8/m·log(2/U)), U uniform."""
    return np.minimum(most, np.sqrt(8 / m * np.log(2 / rng.random((runs, m.size)))))


@pytest.mark.parametrize("gamma", [0.3, 0.05])
def test_sums_of_deviations(gamma):
    """Lemma B.5 by the union bound that the propositions use, and with the factor (1 + √log 1/γ)
    that its proof gives in the place of √(1 + log 1/γ); over all T at once."""
    rng, runs = np.random.default_rng(0), 20_000
    for T, most in ((1, 1.0), (3, 5.0), (40, 1.0)):
        m = np.floor(10 ** rng.uniform(1, 4, T))
        weights = 10 ** rng.uniform(-1, 1, T)
        Q = extremes(rng, runs, m, most)
        union = np.sqrt(8 / m * math.log(2 * T / gamma))
        assert np.mean(np.any(union < Q, axis=1)) <= gamma
        assert np.mean(Q @ weights > weights @ union) <= gamma
        log = math.log(1 / gamma)
        each = np.sqrt((1 + 4 * np.log(most * m)) / m) * (1 + math.sqrt(log))
        proved = 2 * most * weights.max() / 3 * log + 2 * weights @ each
        assert np.mean(Q @ weights > proved) <= gamma
        single = np.sqrt(8 / m * math.log(2 / gamma))  # without a union the whole can fail
        assert T == 1 or np.mean(np.any(single < Q, axis=1)) > gamma


def mean_actions(rng, runs, m, best, noise, phi, eta):
    """The mean action of gradient descent on ½(θ − y)², y = best ± noise, [runs]."""
    theta, total = np.full(runs, phi), np.zeros(runs)
    for _ in range(m):
        total += theta
        theta = theta - eta * (theta - best - noise * rng.choice([-1.0, 1.0], runs))
    return total / m


@pytest.mark.parametrize("m", [20, 200, 2000])
def test_mean_action_is_near_the_risk_minimiser(m):
    """Lemma B.6 as printed, for steps small and large: fails in at most delta of the runs. Without
    the start's divergence, or with a tenth of all, it would fail."""
    rng, runs, alpha, G = np.random.default_rng(m), 2000, 1.0, 1.5  # |θ − y| ≤ 1 + ½
    tight = 0.0
    for eta in (0.1 / m, 1 / m, 1 / math.sqrt(m)):
        for best, noise in ((0.8, 0.05), (0.1, 0.5)):
            start = best**2 / 2
            mean = mean_actions(rng, runs, m, best, noise, 0.0, eta)
            apart = (best - mean) ** 2 / 2
            chance = eta * math.sqrt(8 * m * math.log(2 / DELTA))
            limit = (start + eta**2 * G**2 * m + chance) / (alpha * eta * m)
            assert np.mean(apart > limit) <= DELTA
            tight = max(tight, np.quantile(apart, 0.9) / limit)
            n = float(
                fmrl.bounds.sampling_error(alpha, G, m, DELTA)
            )  # and the form that fli_batch uses
            fast = 2 * start / (alpha * eta * m) + eta * G**2 / alpha + n / alpha
            assert np.mean(apart > fast) <= DELTA
    assert tight > 0.05


@pytest.mark.parametrize("seed", range(25))
def test_meta_updates_stay_in_the_hull(seed):
    """Claim A.2, 500 sequences: phi of the library is a mean of the points with weights that are
    written down here, not negative, of sum 1; with the first phi for AOGD as well."""
    for rng in np.random.default_rng(seed).spawn(20):
        T, d = int(rng.integers(1, 9)), 3
        points, weights = 0.3 * rng.normal(size=(T, d)), 10 ** rng.uniform(-2, 2, T)
        for rule in (fmrl.FollowLeader(), fmrl.AdaptiveOGD()):
            phi, memory = rule.init(fmrl.Ball(5.0), 0.3 * rng.normal(size=d))
            for t in range(T):
                end = type("End", (), {"theta": points[t], "optimum": points[t]})
                end.sigma = np.array(weights[t])
                phi, memory = rule.update(fmrl.Ball(5.0), phi, memory, end)
                share = weights[: t + 1] / weights[: t + 1].sum()
                assert np.all(share >= 0) and share.sum() == pytest.approx(1)
                np.testing.assert_allclose(phi, share @ points[: t + 1], atol=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_of_several_optima_the_simplex_takes_the_least_divergence(seed):
    """Setting 2.1 takes the optimum of least norm; on the simplex the library takes that of least
    divergence from the uniform distribution. One squared loss in four dimensions has a plane of
    optima; scipy finds both, and they differ."""
    rng, d = np.random.default_rng(seed), 4
    x = rng.normal(size=d)
    inside = rng.dirichlet(np.ones(d))
    task = fmrl.Task(x[None], np.array([x @ inside]), loss=fmrl.Squared())
    found = fmrl.minimise(task.open(), fmrl.Simplex()).theta
    rules = [
        {"type": "eq", "fun": lambda p: p.sum() - 1},
        {"type": "eq", "fun": lambda p: x @ (p - inside)},
    ]
    given = {"bounds": [(1e-9, 1.0)] * d, "constraints": rules, "tol": 1e-14}
    entropy = optimize.minimize(lambda p: p @ np.log(p), np.ones(d) / d, **given).x
    shortest = optimize.minimize(lambda p: p @ p, np.ones(d) / d, **given).x
    np.testing.assert_allclose(found, entropy, atol=1e-6)
    assert found @ found >= shortest @ shortest - 1e-6
    if seed in (0, 2, 6, 8, 10, 11):
        assert np.abs(found - shortest).max() > 0.01
