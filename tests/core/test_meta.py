"""Meta-updates: the mean claim, FTL = AOGD, the convex hull, and the simple rules by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import DOMAINS, L2, METAS, make_domain, points, seeds

import fmrl
from fmrl.core.rules.meta import End


def follow(rule, domain, phi, thetas, sigmas):
    """All initialisations the rule plays, phi_1 first."""
    phi, memory = rule.init(domain, phi)
    played = [phi]
    for theta, sigma in zip(thetas, sigmas, strict=True):
        phi, memory = rule.update(domain, phi, memory, End(theta, theta, np.asarray(sigma)))
        played.append(phi)
    return np.array(played)


def instance(kind, seed, count, dim=3):
    rng = np.random.default_rng(seed)
    domain = make_domain(kind, dim, rng)
    edge = kind not in ("euclidean", "simplex")
    phi, thetas = points(domain, dim, rng)[0], points(domain, dim, rng, count, edge=edge)
    return rng, domain, phi, thetas, rng.uniform(0.01, 5, count)


@pytest.mark.parametrize("kind", DOMAINS)
@given(seed=seeds, count=st.integers(1, 8))
def test_mean_claim(kind, seed, count):
    """FollowLeader plays the weighted mean, and no point of the domain has a smaller Σ
    sigma·B_R(θ‖·) (Claim A.1).
    """
    rng, domain, phi, thetas, sigmas = instance(kind, seed, count)
    found = follow(fmrl.FollowLeader(), domain, phi, thetas, sigmas)[-1]
    np.testing.assert_allclose(found, sigmas @ thetas / sigmas.sum(), atol=1e-12)

    def total(point):
        return sum(
            s * domain.divergence(theta, point) for s, theta in zip(sigmas, thetas, strict=True)
        )

    least = total(found)
    for other in points(domain, 3, rng, 60):
        near = found + 0.02 * (other - found)
        excess = sigmas.sum() * domain.divergence(found, other)  # the proof's identity
        assert total(other) - least == pytest.approx(float(excess), rel=1e-8, abs=1e-9)
        assert total(near) >= least - 1e-10 and total(other) >= least - 1e-10


@pytest.mark.parametrize("kind", L2)
@given(seed=seeds, count=st.integers(1, 12))
def test_ftl_is_adaptive_ogd_in_the_euclidean_case(kind, seed, count):
    _, domain, phi, thetas, sigmas = instance(kind, seed, count)
    rules = fmrl.FollowLeader(), fmrl.AdaptiveOGD()
    ftl, aogd = (follow(rule, domain, phi, thetas, sigmas) for rule in rules)
    np.testing.assert_allclose(ftl, aogd, atol=1e-12)


@pytest.mark.parametrize("kind", L2)
@given(seed=seeds, count=st.integers(1, 12))
def test_adaptive_ogd_is_its_definition(kind, seed, count):
    """phi − (1/sigma_{1:t})·∇(sigma_t·½‖θ_t − phi‖²), projected."""
    _, domain, phi, thetas, sigmas = instance(kind, seed, count)
    played = follow(fmrl.AdaptiveOGD(), domain, phi, thetas, sigmas)
    for t in range(count):
        gradient = sigmas[t] * (played[t] - thetas[t])
        np.testing.assert_allclose(
            played[t + 1], domain.project(played[t] - gradient / sigmas[: t + 1].sum()), atol=1e-12
        )


@pytest.mark.parametrize("kind", DOMAINS)
@given(seed=seeds, count=st.integers(1, 10))
def test_stay_in_the_convex_hull(kind, seed, count):
    """Claim A.2: every phi_t lies on the right side of every hyperplane that all θ_t (and phi_1)
    lie on.
    """
    rng, domain, phi, thetas, sigmas = instance(kind, seed, count)
    rules = [fmrl.FollowLeader()] + ([fmrl.AdaptiveOGD()] if kind in L2 else [])
    for rule in rules:
        played = follow(rule, domain, phi, thetas, sigmas)
        normals = rng.normal(size=(100, 3))
        support = (np.concatenate([thetas, phi[None]]) @ normals.T).max(axis=0)
        assert np.all(played @ normals.T <= support + 1e-12)
        after_one = (thetas @ normals.T).max(
            axis=0
        )  # from the second task on phi_1 no longer matters
        assert np.all(played[1:] @ normals.T <= after_one + 1e-12)
        assert np.all(domain.contains(played))


@given(seed=seeds, count=st.integers(2, 40))
def test_logarithmic_meta_regret(seed, count):
    """Theorem A.2 with G_t = sigma_t·(diameter): Σ sigma_t(B(θ_t‖phi_t) − B(θ_t‖mean)) ≤ ½Σ
    G_t²/sigma_{1:t}.
    """
    _, domain, phi, thetas, sigmas = instance("ball", seed, count)
    played = follow(fmrl.FollowLeader(), domain, phi, thetas, sigmas)
    regret = sigmas @ (
        domain.divergence(thetas, played[:-1]) - domain.divergence(thetas, played[-1])
    )
    G = sigmas * 2 * domain.radius
    assert regret <= np.sum(G**2 / np.cumsum(sigmas)) / 2 + 1e-9


def test_weightless_tasks_move_nothing():
    for rule in (fmrl.FollowLeader(), fmrl.AdaptiveOGD()):
        played = follow(
            rule, fmrl.Ball(1.0), np.array([0.3]), np.array([[0.9], [0.5], [0.1]]), [0.0, 2.0, 0.0]
        )
        np.testing.assert_allclose(played[:, 0], [0.3, 0.3, 0.5, 0.5])


def test_simple_rules_by_hand():
    thetas, phi, domain = np.array([[1.0], [3.0], [5.0]]), np.array([0.0]), fmrl.Euclidean()
    expected = {fmrl.LastUpdate(): [0, 1, 3, 5], fmrl.Fixed(): [0] * 4, fmrl.Fixed([7.0]): [7] * 4}
    # Reptile's steps 1, ½, 0, 0: 0 → 1 → 1 + ½(3 − 1) = 2 → 2
    expected[fmrl.Interpolate(1.0, 0.0, 2)] = [0, 1, 2, 2]
    for rule, played in expected.items():
        assert follow(rule, domain, phi, thetas, [1, 9, 1])[:, 0].tolist() == played


@pytest.mark.parametrize("rule", METAS, ids=repr)
def test_runs_side_by_side(rule):
    rng, domain, _, _, _ = instance("ball", 0, 1)
    phi, thetas = points(domain, 3, rng, 4), points(domain, 3, rng, 20).reshape(5, 4, 3)
    sigmas = rng.uniform(0, 2, (5, 4))
    together = follow(rule, domain, phi, thetas, sigmas)
    for run in range(4):
        alone = follow(rule, domain, phi[run], thetas[:, run], sigmas[:, run])
        np.testing.assert_allclose(together[:, run], alone, atol=1e-15)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: fmrl.AdaptiveOGD().init(fmrl.Simplex(), np.array([0.5, 0.5])),
        lambda: fmrl.Interpolate(1.5, 0.0, 3),
        lambda: fmrl.Interpolate(1.0, 0.0, 0),
        lambda: fmrl.Fixed([[1.0]]),
        lambda: fmrl.Fixed([float("nan")]),
        lambda: fmrl.Fixed([1.0]).init(fmrl.Ball(1.0), np.zeros(2)),
    ],
)
def test_impossible_rules(bad):
    with pytest.raises(fmrl.FMRLError):
        bad()
