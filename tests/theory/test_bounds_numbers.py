"""Theorems that need no run: the meta-regret identity and bound, the adversary's lower bound,
online-to-batch, and Bound itself.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fmrl
from fmrl import bounds
from fmrl.theory.certificate import certify

seeds = st.integers(0, 2**32 - 1)
quiet = {"derandomize": True, "deadline": None, "database": None}
thousand = settings(max_examples=1000, **quiet)
hundred = settings(max_examples=100, **quiet)  # each looks at ten instances


def ten(seed):
    return np.random.default_rng(seed).spawn(10)


def points_in(rng, kind, T, d):
    """Points of a domain, clustered by a random amount."""
    tight = 10 ** rng.uniform(-3, 0)
    if kind == "simplex":
        floor = 10 ** rng.uniform(-4, -1) / d
        raw = rng.dirichlet(np.full(d, 10 ** rng.uniform(-1, 1)), T)
        raw = (1 - tight) * raw[:1] + tight * raw
        return fmrl.Simplex(floor=float(floor)), (1 - d * floor) * raw + floor
    return fmrl.Ball(20.0), 10 ** rng.uniform(-1, 1) * (
        rng.normal(size=d) + tight * rng.normal(size=(T, d))
    )


def follow(domain, points, sigma, phi):
    """phi_1, …, phi_{T+1} of FTL, and the divergences suffered."""
    path, memory = [phi], np.array(0.0)
    rule = fmrl.FollowLeader()
    for theta, weight in zip(points, sigma, strict=True):
        end = type("End", (), {"theta": theta, "optimum": theta, "sigma": np.array(weight)})
        phi, memory = rule.update(domain, phi, memory, end)
        path.append(phi)
    path = np.array(path)
    return path, domain.divergence(points, path[:-1])


@hundred
@given(seeds, st.sampled_from(["ball", "simplex"]), st.integers(2, 12), st.integers(2, 4))
def test_meta_regret(seed, kind, T, d):
    for rng in ten(seed):
        domain, points = points_in(rng, kind, T, d)
        sigma = 10 ** rng.uniform(-2, 2, T)
        path, suffered = follow(domain, points, sigma, domain.middle(points[0]))
        regret = np.sum(sigma * suffered) - np.sum(sigma * domain.divergence(points, path[-1]))
        identity = np.sum(np.cumsum(sigma) * domain.divergence(path[1:], path[:-1]))
        room = 1e-9 * np.sum(sigma * suffered) + 1e-12
        assert abs(regret - identity) <= room  # docs/theory.md, the exact identity
        s = bounds.spread(domain, points, sigma)
        width = None if s.nice else s.width
        bound = bounds.meta_regret(sigma, s.lipschitz, width, first=float(suffered[0]))
        assert regret <= bound.total + room
        # What the theorem charges is no less.
        assert bound.terms["moving"] <= s.C * bounds.drift(sigma) * (1 + 1e-12)


def test_meta_regret_is_tight():
    """Two tasks on a line: any smaller constant than G'²/2 fails."""
    sigma, points = np.array([1.0, 1.0]), np.array([[0.0], [1.0]])
    path, suffered = follow(fmrl.Ball(2.0), points, sigma, points[0])
    regret = np.sum(sigma * suffered) - np.sum(sigma * fmrl.Ball(2.0).divergence(points, path[-1]))
    assert regret == pytest.approx(0.25) == bounds.meta_regret(sigma, 1.0).total


def test_adaptive_ogd_is_follow_leader():
    rng = np.random.default_rng(0)
    domain, points, sigma = fmrl.Ball(1.0), 0.3 * rng.normal(size=(20, 3)), rng.uniform(0.1, 5, 20)
    a, b = (rule.init(domain, np.ones(3) / 2) for rule in (fmrl.FollowLeader(), fmrl.AdaptiveOGD()))
    for theta, weight in zip(points, sigma, strict=True):
        end = type("End", (), {"theta": theta, "optimum": theta, "sigma": np.array(weight)})
        a = fmrl.FollowLeader().update(domain, *a, end)
        b = fmrl.AdaptiveOGD().update(domain, *b, end)
        np.testing.assert_allclose(a[0], b[0], atol=1e-12)


@hundred
@given(seeds, st.sampled_from(["ball", "simplex"]), st.integers(1, 9), st.integers(2, 4))
def test_spread_against_brute_force(seed, kind, T, d):
    """D* and G' hold over the hull, not only at the points; D̄ is a mean."""
    for rng in ten(seed):
        domain, points = points_in(rng, kind, T, d)
        s = bounds.spread(domain, points)
        mixed = rng.dirichlet(np.ones(T), 60) @ points
        divergence = domain.divergence(mixed[:, None], mixed[None])
        assert math.sqrt(divergence.max()) <= s.diameter * (1 + 1e-9) + 1e-7
        assert s.deviation <= s.diameter
        pairs = domain.divergence(points[:, None], mixed[None])
        step = mixed[1:] - mixed[:-1]
        length = np.abs(step).sum(-1) if kind == "simplex" else np.linalg.norm(step, axis=-1)
        change = np.abs(pairs[:, 1:] - pairs[:, :-1])
        assert np.all(change <= s.lipschitz * length * (1 + 1e-6) + 1e-10)
        if math.isfinite(s.beta):
            most = s.beta / 2 * length**2 * (1 + 1e-6) + 1e-10
            assert np.all(domain.divergence(mixed[1:], mixed[:-1]) <= most)


def adversary(agent, rng, d, m, G, diameter, centre):
    """The paper's adversary with its cone at half the diameter; regret of the agent, and the
    optimum's distance from the centre.
    """
    total, loss = np.zeros(d), 0.0
    for i in range(m):
        theta = agent(i, total)
        basis = np.linalg.qr(np.stack([theta - centre, total], axis=1))[0]
        free = rng.normal(size=d)
        free -= basis @ (basis.T @ free)
        gradient = G / 2 * free / np.linalg.norm(free)
        loss += gradient @ (theta - centre) + G / 2 * max(
            0.0, np.linalg.norm(theta - centre) - diameter / 2
        )
        total = total + gradient
    return loss + diameter / 2 * np.linalg.norm(total)


def agent_of(kind, rng, d, diameter, centre):
    if kind == "random":
        return lambda i, total: centre + diameter * rng.normal(size=d)
    if kind == "still":
        return lambda i, total: centre + 0.01 * np.arange(1, d + 1)

    def follow(i, total):
        best = diameter / 2 * total / max(np.linalg.norm(total), 1e-12)
        return centre + 1e-3 * rng.normal(size=d) - best

    return follow


@hundred
@given(seeds, st.integers(3, 8), st.integers(1, 12), st.sampled_from(["random", "follow", "still"]))
def test_lower_bound_is_forced(seed, d, m, kind):
    for rng in ten(seed):
        G, diameter, centre = *(10 ** rng.uniform(-1, 1, 2)), rng.normal(size=d)
        agent = agent_of(kind, rng, d, diameter, centre)
        suffered = adversary(agent, rng, d, m, G, diameter, centre)
        assert suffered >= bounds.lower(diameter, G, m).total * (1 - 1e-9)


def transfer(history, tasks, means, kinds, m):
    """Expected risk on new tasks of the mean action, exact: over all samples of all kinds of task
    and the states before each task played; of every order. Then the least possible risk.
    """
    sigma = history.lipschitz * np.sqrt(history.rounds)
    phi = np.full((*sigma.shape, 2), 0.5)  # [orders, T, d], before each task
    moved = np.cumsum(sigma[..., None] * history.optimum, axis=1) / np.cumsum(sigma, 1)[..., None]
    phi[:, 1:] = moved[:, :-1]
    shape = (*sigma.shape, len(tasks))
    game = fmrl.stack(tasks * sigma.size)
    phi = np.broadcast_to(phi[:, :, None], (*shape, 2)).reshape(-1, 2)
    guess = np.broadcast_to(history.guess[..., None], shape).ravel()
    eta = guess / (game.lipschitz(history.algo.domain) * math.sqrt(m))
    average = fmrl.play(history.algo.within, game, history.algo.domain, phi, eta).average
    risk = np.sum(average.reshape(*shape, 2) * means, axis=-1)
    return risk.mean(axis=(1, 2)), np.mean([pair.mean(axis=0).min() for pair in kinds])


def test_online_to_batch():
    """1,000 draws of training tasks: the excess risk, computed exactly, is below the theorem's
    bound, and not below its first term.

    A kind of task is a pair of cost vectors in [0, 1]^2, each with chance ½, so that all 2^m
    samples of it can be listed."""
    rng = np.random.default_rng(7)
    m, T, delta, orders = 2, 6, 0.2, 20
    algo = fmrl.FMRL(fmrl.Simplex(floor=0.02), similarity=fmrl.Doubling(0.1, 1.5))
    codes = [[(code >> i) & 1 for i in range(m)] for code in range(2**m)]
    beyond, without = 0, 0
    for _ in range(50):
        kinds = rng.uniform(0, 1, (2, 2, 2))
        tasks = [fmrl.Task(pair[code], loss=fmrl.Linear()) for pair in kinds for code in codes]
        means = np.repeat(kinds.mean(axis=1), len(codes), axis=0)
        history = fmrl.run(algo, tasks, orders=rng.integers(0, len(tasks), (orders, T)))
        risk, best = transfer(history, tasks, means, kinds, m)
        for s in range(orders):
            bound = bounds.online_to_batch(float(history.interval[1][s]), m, T, delta)
            beyond += risk[s] - best > bound.total
            without += risk[s] - best > bound.terms["regret"]
    assert beyond == 0
    assert without > 0  # the confidence term is needed: this test can fail


def test_sharp_is_sharp():
    """Alternating linear losses on a line: a constant below ½ would fail, so the test of Theorem
    A.1 can.
    """
    eta, m = 0.01, 100
    costs = np.ones((m, 1))
    task = fmrl.Task(costs, loss=fmrl.Linear())
    played = fmrl.play(fmrl.OMD(), task.open(), fmrl.Euclidean(), np.zeros(1), np.array(eta))
    comparator = -eta * m  # where the bound is least for this gradient
    regret = float(played.losses.sum()) - m * comparator
    at = bounds.sharp(comparator**2 / 2, eta, 1.0, m)
    assert regret <= at.total * (1 + 1e-12)
    assert regret > 0.99 * at.total


def test_known_similarity_needs_its_deviation_term():
    """Optima at both ends of a ball and a D ten times too small: without D̄²/D the bound would be
    below the measured TAR.
    """
    tasks = [fmrl.Task(np.full((16, 1), sign), loss=fmrl.Linear()) for sign in (1.0, -1.0) * 20]
    history = fmrl.run(fmrl.FMRL(fmrl.Ball(1.0), similarity=fmrl.Known(0.07)), tasks)
    s = bounds.spread(fmrl.Ball(1.0), history.optimum)
    bound = bounds.known(np.full(40, 4.0), 0.07, deviation=s.deviation, C=s.C, first=0.5)
    assert bound.total - bound.terms["deviation"] < float(history.tar) <= bound.total


def test_theorem_needs_its_guess_term():
    """Alternating costs, all optima at 0, a guess that is too large: every task costs half of
    what the guess term charges.
    """
    costs = np.tile([[1.0], [-1.0]], (8, 1))
    tasks = [fmrl.Task(costs, loss=fmrl.Linear()) for _ in range(60)]
    history = fmrl.run(fmrl.FMRL(fmrl.Ball(1.0), similarity=fmrl.Doubling(0.5, 1.5)), tasks)
    bound = certify(history, tasks).theorem
    assert bound.total - bound.terms["guess"] < float(history.tar) <= bound.total
    assert float(history.regret[-1]) == pytest.approx(bound.terms["guess"] / 2)


def test_terms_add_up_and_table():
    b = bounds.upper(
        [1.0, 2.0], epsilon=0.1, gamma=1.5, diameter=1.0, task_diameter=0.4, deviation=0.2, C=0.16
    )
    assert b.total == pytest.approx(sum(b.terms.values()))
    assert "total" in b.table() and b.dominant in b.table()
    assert bounds.Bound.from_dict(b.to_dict()).to_dict() == b.to_dict()
    with pytest.raises(TypeError):
        b.terms["first task"] = 0.0


@pytest.mark.parametrize("gamma", [1.0, 1.5])
def test_degenerate_cases(gamma):
    """gamma = 1, one task, coinciding optima, epsilon above D*: finite and sensible, never nan."""
    shared = {"gamma": gamma, "diameter": 1.0}
    same = bounds.upper([1.0] * 5, epsilon=0.1, task_diameter=0.0, deviation=0.0, C=0.0, **shared)
    assert same.total == pytest.approx(
        ((2 + 0.1) + 0.1 * 5) / 5
    )  # nothing but the first task and the guess
    above = bounds.upper([1.0] * 5, epsilon=0.5, task_diameter=0.4, deviation=0.1, C=0.16, **shared)
    assert above.terms["violations"] == 0
    assert bounds.exact(0.4, 1.0, 1.0, 4, 5, epsilon=0.5, gamma=gamma).terms["violations"] == 0
    assert math.isfinite(bounds.exact(0.4, 1.0, 1.0, 4, 5, epsilon=0.01, gamma=gamma).total)
    one = bounds.upper([1.0], epsilon=0.1, task_diameter=0.0, deviation=0.0, C=0.0, **shared)
    assert not one.holds and [a.name for a in one.broken] == ["more than one task"]
    with pytest.raises(fmrl.FMRLError):
        bounds.exact(0.4, 1.0, 1.0, 4, 1)


def test_false_assumptions_are_no_guarantees():
    p = bounds.fli_online(alpha=0.1, epsilon=0.1, diameter=1.0, lipschitz=1.0, rounds=4, tasks=3)
    given = {"diameter": 1.0, "task_diameter": 0.4, "deviation": 0.2, "C": 0.2}
    b = bounds.upper([2.0] * 3, epsilon=0.1, gamma=1.5, **given, **p.values())
    assert not b.holds and "not a guarantee" in repr(b) and "not a guarantee" in b.table()
    given["deviation"] = 0.1
    wrong = bounds.upper([1.0] * 3, epsilon=0.3, gamma=2.0, violations=[1, 2], **given)
    assert not wrong.holds  # a guess of 0.6 cannot be violated when D* = 0.4


@pytest.mark.parametrize("epsilon, gamma", [(0.05, 1.3), (0.2, 2.0), (0.4, 1.01)])
def test_corollary_is_the_theorem_at_its_worst(epsilon, gamma):
    """Corollary B.1 follows from Theorem B.1: equal weights, every violation that can happen."""
    T, D, star, bar = 400, 1.0, 0.5, 0.2
    given = {"diameter": D, "task_diameter": star, "deviation": bar, "C": star**2}
    worst = bounds.upper(np.ones(T), epsilon=epsilon, gamma=gamma, **given)
    corollary = bounds.exact(star, D, 1.0, 1.0, T, deviation=bar, epsilon=epsilon, gamma=gamma)
    assert worst.total <= corollary.total
    apart = (epsilon + 2 * gamma / (gamma - 1) * (star**2 / epsilon + star)) / T
    assert corollary.total - worst.total <= apart


@thousand
@given(st.integers(2, 10**6), st.floats(1e-6, 1), st.floats(0, 1), st.floats(1e-3, 1e3))
def test_tuned_corollary_follows(T, ratio, bar, D):
    """The second display of Corollary B.1 is no less than the first at the tuned choice."""
    star = ratio * D
    given = bounds.exact(star, D, 1.0, 1.0, T, deviation=bar * star, **bounds.tuned(D, T))
    assert given.total <= bounds.exact(star, D, 1.0, 1.0, T).total * (1 + 1e-12)
