"""Statements of the paper that are false as printed: each test is an instance that breaks the
print and not our form.
"""

import math

import numpy as np
import pytest

import fmrl
from fmrl import bounds
from fmrl.theory.certificate import certify


def line(points, sigma, curvature, phi):
    """FTL on sigma_t·B_R(θ_t‖·) on the line with R'' = curvature, by quadrature: meta-regret
    after phi_1 = phi.
    """
    x = np.linspace(0, max(points), 20001)
    first = np.concatenate(
        [[0], np.cumsum((curvature(x[1:]) + curvature(x[:-1])) / 2 * np.diff(x))]
    )
    second = np.concatenate([[0], np.cumsum((first[1:] + first[:-1]) / 2 * np.diff(x))])

    def divergence(a, b):
        R, slope = (lambda v: np.interp(v, x, second)), (lambda v: np.interp(v, x, first))
        return R(a) - R(b) - slope(b) * (a - b)

    suffered, weight, total = 0.0, 0.0, 0.0
    for theta, s in zip(points, sigma, strict=True):
        suffered += s * divergence(theta, phi)
        total, weight = total + s * theta, weight + s
        phi = total / weight
    return suffered - sum(
        s * divergence(theta, phi) for theta, s in zip(points, sigma, strict=True)
    )


def test_lemma_b2_is_not_homogeneous():
    """Printed: (G² + 1)/2·Σ α_t/α_{1:t}. Weights of 100 make the regret 100 times larger and
    leave the print where it was.
    """
    points, sigma = [0.0, 1.0], np.array([100.0, 100.0])
    regret = line(points, sigma, np.ones_like, 0.0)
    printed = (1 + 1) / 2 * np.sum(sigma / np.cumsum(sigma))
    assert regret == pytest.approx(25, rel=1e-3) and regret > printed == 1.5
    assert regret <= bounds.meta_regret(sigma, 1.0).total * (1 + 1e-3)


def test_lemma_b2_with_squares_is_still_false():
    """(G² + 1)/2·Σ α_t²/α_{1:t} with R = x²/8, which is 1-strongly convex in the norm |x|/2: G =
    d/4 on an interval of length d.
    """
    d, sigma = 4.0, np.array([1.0, 100.0])
    regret = line([0.0, d], sigma, lambda x: np.full_like(x, 0.25), 0.0)
    printed = ((d / 4) ** 2 + 1) / 2 * (sigma[1] ** 2 / sigma.sum() + sigma[0])
    assert regret > 1.9 * printed
    G = d / 4 / 0.5  # in the norm |x|/2, in which B_R(θ‖·) is 1-strongly convex
    assert regret <= bounds.meta_regret(sigma, G).total * (1 + 1e-3)


def test_constant_of_the_general_case_is_too_small():
    """C = C'D'(G' + 1)/2 with R'' = G'/max(x, 1 − x) on [0, 1]: the regret comes near log 2·G',
    above (G' + 1)/2.
    """
    G, sigma = 100.0, np.array([1.0, 1000.0])
    curvature = lambda x: G / np.maximum(x, 1 - x)  # noqa: E731
    regret = line([0.0, 1.0], sigma, curvature, 0.0)
    printed = (G + 1) / 2 * bounds.drift(sigma)
    ours = bounds.meta_regret(sigma, G, 1.0)
    assert regret > 1.3 * printed
    assert 0.65 * ours.total < regret <= ours.total


def far_apart(scale, m):
    """Two tasks with optima at opposite ends of a ball, linear losses, a guess far too small."""
    tasks = [
        fmrl.Task(np.tile([[sign, 0.0, 0.0]], (m, 1)), loss=fmrl.Linear()) for sign in (1.0, -1.0)
    ]
    return tasks, fmrl.FMRL(fmrl.Ball(scale), similarity=fmrl.Doubling(0.01 * scale, 1.1))


def test_violation_sum_must_be_squared():
    """Theorem B.1 prints κ(ρD* + E)/(γ^k·ε): with lengths in the hundreds the measured TAR is
    above it.
    """
    tasks, algo = far_apart(1000.0, 400)
    h = fmrl.run(algo, tasks, np.array([1.0, 0.0, 0.0]))
    c = certify(h, tasks)
    true = c.theorem
    star, epsilon, sigma = c.similarity["D*"], algo.similarity.epsilon, 20.0
    squared = (star**2 / epsilon + epsilon) * sigma / 2
    printed = true.total - squared + (star / epsilon + epsilon) * sigma / 2
    assert c.violations == (1,) and true.terms["violations"] == pytest.approx(squared)
    assert printed < c.interval[0] < true.total


def test_update_errors_must_be_weighted():
    """Theorem B.1 prints Δ*_{1:T}/ε without sigma_t: steep losses and steps too small to get
    anywhere break it.
    """
    G, m, T = 1000.0, 8, 60
    tasks = [fmrl.Task(np.tile([[-G, 0.0, 0.0]], (m, 1)), loss=fmrl.Linear()) for _ in range(T)]
    algo = fmrl.FMRL(fmrl.Ball(1.0), update=fmrl.FLIBatch(), similarity=fmrl.Doubling(1e-2, 1.0))
    h = fmrl.run(algo, tasks, np.array([-1.0, 0.0, 0.0]))
    c = certify(h, tasks)
    true = c.theorem
    sigma = G * math.sqrt(m)
    printed = true.total - true.terms["optima not exact"] * (1 - 1 / sigma)
    assert true.name == "general theorem, measured" and not c.violations
    assert printed < c.interval[0] < true.total


def test_caption_step_of_adaptive_ogd():
    """Step 1/Σ_{s<t} instead of 1/Σ_{s≤t}: a heavy task throws phi out of the hull, and the
    meta-regret above its bound.
    """
    points, sigma = np.array([0.0, 1.0, 0.0]), np.array([1.0, 10.0, 10.0])
    phi, suffered, path = points[0], 0.0, []
    for t in range(3):
        path.append(phi)
        suffered += sigma[t] * (points[t] - phi) ** 2 / 2
        if t:
            phi += sigma[t] / sigma[:t].sum() * (points[t] - phi)
    assert path == [0.0, 0.0, 10.0]
    best = np.sum(sigma * (points - sigma @ points / sigma.sum()) ** 2) / 2
    assert suffered - best > bounds.meta_regret(sigma, 1.0).total * 10


def test_hindsight_optimum_need_not_generalise():
    """Lemma B.4: losses Σ z_j·θ_j² on the unit ball, z_j fair coins, d = 2^65 coordinates, m = 64
    rounds. Some coordinate was never charged, so its unit vector is an optimum in hindsight at
    distance 1 from the risk minimiser 0.
    """
    m, d, delta = 64, 2.0**65, 0.5
    never = -math.expm1(
        d * math.log1p(-(0.5**m))
    )  # chance that some coordinate is free in all rounds
    alpha = 1.0  # the risk is ½‖θ‖²
    printed = math.sqrt(8 / (alpha**2 * m) * math.log(2 / delta))
    assert never > 0.86 > 1 - delta and printed < 0.5
    ours = bounds.excess(2.0, m, delta, dim=2**65, radius=1.0)[0]
    assert ours >= 0.5


def test_mean_action_is_further_than_printed():
    """Proposition B.3 prints Δ_max = (1/α)·√(8/m·log(6T/δ)): the rounds ½(θ − 1)² played from 0
    with the least ε it allows.

    Lazy and eager steps agree and stay inside, so θ_i = 1 − (1 − η)^i and the mean action is
    known in closed form."""
    m, T, delta, alpha, G = 10**8, 2, 0.5, 1.0, 1.0
    epsilon = 24 * G / (alpha * math.sqrt(m))
    eta = epsilon / (G * math.sqrt(m))
    average_error = -math.expm1(m * math.log1p(-eta)) / (eta * m)
    measured = average_error**2 / 2
    printed = math.sqrt(8 / m * math.log(6 * T / delta)) / alpha
    assert measured > 1.3 * printed
    p = bounds.fli_batch(alpha, epsilon, 1.1, 1.0, G, m, delta, tasks=T, dim=1, radius=1.0)
    assert measured <= p.delta_max


def test_guess_exceeds_diameter_plus_epsilon():
    """Proposition B.3 bounds every guess by D + ε; after a violation it may be γD."""
    tasks, algo = far_apart(1.0, 4)
    D = algo.domain.diameter(3)
    algo = fmrl.FMRL(algo.domain, similarity=fmrl.Doubling(0.9 * D, 3.0))
    h = fmrl.run(algo, [*tasks, tasks[0]], np.array([1.0, 0.0, 0.0]))
    assert (
        float(h.guess[2]) == pytest.approx(2.7 * D)
        and float(h.guess[2]) > D + algo.similarity.epsilon
    )
