"""Measured regret never exceeds a bound: runs over random streams, domains, losses and learners.

Every hypothesis example is a pool of tasks played as STREAMS streams at once; each stream is an
instance, so a test with n examples looks at STREAMS·n of them, more than a thousand
everywhere."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import LOSSES, domain_of, stream

import fmrl
from fmrl import bounds
from fmrl.theory.certificate import certify

STREAMS, POOL = 56, 10
LEARNERS = {"omd": fmrl.OMD(), "ogd": fmrl.OGD(), "ftrl": fmrl.FTRL()}
seeds = st.integers(0, 2**32 - 1)
domains = st.sampled_from(["ball", "box", "simplex"])
losses = st.sampled_from(LOSSES)
# FTRL solves a problem a round: it is drawn less often, and for the losses whose problems are
# cheap.
learners = st.sampled_from(["omd", "omd", "ogd", "ogd", "ftrl"])
guesses = st.tuples(
    st.floats(-3, 1), st.sampled_from([1.0, 1.05, 1.5, 3.0])
)  # log10 of epsilon over the diameter, gamma
examples = settings(max_examples=18, derandomize=True, deadline=None, database=None)


def play(seed, where, loss, learner, rule, update=None, *, ragged=True, level=False, length=None):
    """A pool of tasks and the history of STREAMS streams drawn from it with repetition."""
    rng = np.random.default_rng(seed)
    dim = int(rng.choice([2, 4]))
    domain = domain_of(where, rng, dim)
    if learner == "ftrl" and not (loss == "linear" or (where == "ball" and loss != "hinge")):
        learner = "omd"
    tasks = stream(rng, loss, POOL, dim, ragged=ragged)
    lipschitz = max(float(t.open().lipschitz(domain)) for t in tasks) if level else None
    rules = update or fmrl.FAL(), fmrl.FollowLeader(), rule(domain.diameter(dim))
    algo = fmrl.FMRL(domain, LEARNERS[learner], *rules, lipschitz)
    orders = rng.integers(0, POOL, (STREAMS, length or int(rng.integers(2, 9))))
    return tasks, orders, fmrl.run(algo, tasks, orders=orders)


def certificates(tasks, history, **given):
    for s in range(STREAMS):
        yield certify(history, order=s, **given)


def beyond(certificate, bound):
    """By how much the measured TAR exceeds a bound, beyond rounding."""
    measured = certificate.interval[1]
    return measured - bound.total > 1e-7 * max(1.0, abs(measured))


def hold(certificate, *names):
    given = {b.name: b for b in certificate.bounds}
    for name in names:
        assert name in given, (name, certificate.refused)
    for bound in certificate.bounds:
        shown = bound, certificate.interval, certificate.composition
        assert not beyond(certificate, bound), shown


@examples
@given(seeds, domains, losses, learners, st.floats(-3, 2))
def test_regret_inside_a_task(seed, where, loss, learner, size):
    """Theorem A.1, printed and with the constant ½, for steps far too small to far too large."""
    _, _, h = play(seed, where, loss, learner, lambda D: fmrl.Known(D * 10**size))
    columns = (h.divergence.ravel(), h.eta.ravel(), h.lipschitz.ravel(), h.rounds.ravel())
    slack = 1e-7 * np.maximum(1, np.abs(h.regret.ravel()))
    rows = list(zip(*columns, strict=True))
    start, steps = np.array([list(bounds.regret(*row).terms.values()) for row in rows]).T
    printed, sharp = start + steps, start + steps / 2
    some = [bounds.sharp(*row).total for row in rows[:STREAMS]]
    np.testing.assert_allclose(printed, h.bound.ravel(), rtol=1e-12)
    np.testing.assert_allclose(some, sharp[:STREAMS], rtol=1e-12)
    assert np.all(h.regret.ravel() <= printed + slack)
    assert np.all(h.regret.ravel() <= sharp + slack)


@examples
@given(seeds, domains, losses, learners, guesses)
def test_fal_theorem(seed, where, loss, learner, guess):
    """Theorem B.1, exact case, with the violations that happened and with the worst that could."""
    tasks, _, h = play(
        seed, where, loss, learner, lambda D: fmrl.Doubling(D * 10 ** guess[0], guess[1])
    )
    for s, certificate in enumerate(certificates(tasks, h)):
        hold(certificate, "FAL theorem", "per-task sum", "per-task sum, sharp")
        sigma = h.lipschitz[s] * np.sqrt(h.rounds[s])
        spread = bounds.spread(h.algo.domain, h.optimum[s], sigma)
        rule = h.algo.similarity
        D = max(float(h.guess[s, 0]) - rule.epsilon, spread.diameter)
        given = {"diameter": D, "task_diameter": spread.diameter, "deviation": spread.deviation}
        choice = {"epsilon": rule.epsilon, "gamma": rule.gamma}
        worst = bounds.upper(sigma, **choice, **given, C=spread.C)
        assert worst.total >= certificate.theorem.total * (1 - 1e-9)


@examples
@given(seeds, domains, losses, learners, guesses)
def test_fal_corollary(seed, where, loss, learner, guess):
    """Corollary B.1 with given epsilon and gamma: one G (the largest of the pool) and one m for
    all tasks.
    """
    rule = lambda D: fmrl.Doubling(D * 10 ** guess[0], guess[1])  # noqa: E731
    tasks, orders, h = play(seed, where, loss, learner, rule, ragged=False, level=True)
    for s, order in enumerate(orders):
        certificate = certify(h, [tasks[i] for i in order], order=s)  # the sum has the true G_t
        hold(certificate, "FAL theorem", "FAL corollary")


@examples
@given(seeds, domains, losses, learners)
def test_fal_corollary_tuned(seed, where, loss, learner):
    """Theorem 2.1: D is the diameter of the domain here, which is at least what the corollary
    needs.
    """
    rng = np.random.default_rng(seed)
    T = int(rng.integers(2, 9))
    rule = lambda D: fmrl.Doubling(**bounds.tuned(D, T))  # noqa: E731
    tasks, _, h = play(seed, where, loss, learner, rule, ragged=False, level=True, length=T)
    D = h.algo.domain.diameter(tasks[0].dim)
    for s in range(STREAMS):
        spread = bounds.spread(h.algo.domain, h.optimum[s])
        b = bounds.exact(
            spread.diameter, D, float(h.lipschitz[s, 0]), float(h.rounds[s, 0]), T, C=spread.C
        )
        assert b.holds and float(h.tar[s]) <= b.total * (1 + 1e-9)


@examples
@given(seeds, domains, losses, learners, st.floats(-3, 1))
def test_known_similarity(seed, where, loss, learner, size):
    """Remark 2.1 for any D, right or wrong."""
    tasks, _, h = play(seed, where, loss, learner, lambda D: fmrl.Known(D * 10**size))
    for certificate in certificates(tasks, h):
        hold(certificate, "known similarity")


@examples
@given(seeds, domains, losses, learners)
def test_average_deviation(seed, where, loss, learner):
    """Remark 2.1 made causal."""
    tasks, _, h = play(seed, where, loss, learner, lambda D: fmrl.AverageDeviation())
    given = 0
    for certificate in certificates(tasks, h):
        hold(certificate)
        given += any(b.name == "average deviation" for b in certificate.bounds)
    assert (
        given or np.all(h.divergence[:, 0] * h.lipschitz[:, 0] == 0) or np.isinf(h.divergence).any()
    )


@examples
@given(
    seeds,
    domains,
    losses,
    st.sampled_from(["omd", "ogd"]),
    guesses,
    st.sampled_from([fmrl.FLIOnline(), fmrl.FLIBatch()]),
)
def test_general_theorem_measured(seed, where, loss, learner, guess, update):
    """Theorem B.1, approximate case, with the parameters the run had; nothing is assumed of the
    losses.
    """
    tasks, _, h = play(
        seed, where, loss, learner, lambda D: fmrl.Doubling(D * 10 ** guess[0], guess[1]), update
    )
    for certificate in certificates(tasks, h):
        hold(certificate, "general theorem, measured")


def growing(rng, dim, m):
    """Tasks of squared losses whose mean losses grow quadratically, and α: the least eigenvalue
    over the pool.
    """
    tasks, alpha = [], math.inf
    for _ in range(POOL):
        X = rng.normal(size=(m, dim))
        y = X @ rng.normal(size=dim) * rng.uniform(0, 1) + 0.1 * rng.normal(size=m)
        tasks.append(fmrl.Task(X, y, loss=fmrl.Squared()))
        alpha = min(alpha, float(np.linalg.eigvalsh(X.T @ X)[0]) / m)
    return tasks, alpha


@examples
@given(seeds, st.floats(0, 1), st.sampled_from([1.0, 1.5]))
def test_fli_online_proposition(seed, size, gamma):
    """Proposition B.1 with FTRL on strongly convex tasks: its parameters satisfy Setting B.1, and
    the theorem holds.
    """
    rng = np.random.default_rng(seed)
    dim, m = int(rng.integers(1, 3)), int(rng.integers(4, 7))
    tasks, alpha = growing(rng, dim, m)
    domain = fmrl.Ball(float(10 ** rng.uniform(-0.5, 0.5)))
    G = max(float(t.open().lipschitz(domain)) for t in tasks)
    epsilon = 4 * G / (alpha * math.sqrt(m)) * 10**size
    algo = fmrl.FMRL(
        domain, fmrl.FTRL(), fmrl.FLIOnline(), fmrl.FollowLeader(), fmrl.Doubling(epsilon, gamma)
    )
    orders = rng.integers(0, POOL, (STREAMS, int(rng.integers(2, 5))))
    h = fmrl.run(algo, tasks, orders=orders)
    for s, certificate in enumerate(certificates(tasks, h, growth=alpha)):
        hold(certificate, "general theorem, measured", "general theorem, by growth")
        D = domain.diameter(dim)
        p = bounds.fli_online(alpha, epsilon, D, h.lipschitz[s], h.rounds[s])
        setting(domain, h, s, h.optimum[s], p)


def setting(domain, h, s, reference, p):
    """The inequalities of Setting B.1 that a proposition promises."""
    sigma = h.lipschitz[s] * np.sqrt(h.rounds[s])
    alpha, least = sigma / h.guess[s], h.algo.similarity.epsilon
    room = 1e-9 * sigma.sum()
    excused = np.sum(sigma * np.array(p.delta_star)) / least
    assert (
        np.sum(alpha * h.divergence[s]) <= excused + p.kappa * np.sum(alpha * h.deviation[s]) + room
    )
    hat = bounds.spread(domain, h.theta[s], sigma).deviation ** 2 * sigma.sum()
    true = bounds.spread(domain, reference, sigma).deviation ** 2 * sigma.sum()
    assert hat <= p.delta_prime + p.nu * true + room
    assert np.all(bounds.distance(domain, reference, h.theta[s]) <= p.delta_max + room)


def sampled(rng, dim, m, radius):
    """Tasks with i.i.d. rounds, losses in [0, 1], risk ½·Σ(θ − θ')²/dim + const: x is a unit
    vector at random, y = θ'_x ± noise.
    """
    centre = rng.uniform(-0.3, 0.3, dim) * radius
    tasks, risk = [], []
    for _ in range(POOL):
        best = np.clip(centre + 0.2 * radius * rng.normal(size=dim), -0.5 * radius, 0.5 * radius)
        j = rng.integers(0, dim, m)
        y = best[j] + rng.choice([-0.5, 0.5], m) * radius
        tasks.append(fmrl.Task(np.eye(dim)[j], y, loss=fmrl.Squared()))
        risk.append(best)
    return tasks, np.array(risk), 1 / dim


@pytest.mark.parametrize("update", [fmrl.FAL(), fmrl.FLIBatch()], ids=["fal", "fli-batch"])
@pytest.mark.parametrize("dimension", ["proved", "printed"])
@examples
@given(seeds, st.floats(0, 1), st.sampled_from([1.0, 1.5]))
def test_stochastic_propositions(dimension, update, seed, size, gamma):
    """Propositions B.2 and B.3 (corrected): parameters satisfy Setting B.1 with risk minimisers,
    and the theorem holds.
    """
    rng = np.random.default_rng(seed)
    dim, m, radius = int(rng.integers(1, 3)), int(2 ** rng.integers(2, 7)), 0.7
    tasks, risk, alpha = sampled(rng, dim, m, radius)
    domain = fmrl.Ball(radius)
    G, D = 2 * radius, domain.diameter(dim)  # |⟨θ, x⟩ − y| ≤ radius + radius
    epsilon = 24 * G / (alpha * math.sqrt(m)) * 10**size
    algo = fmrl.FMRL(
        domain, fmrl.OMD(), update, fmrl.FollowLeader(), fmrl.Doubling(epsilon, gamma), G
    )
    orders = rng.integers(0, POOL, (STREAMS, 4))
    h = fmrl.run(algo, tasks, orders=orders)
    extra = {"dim": dim, "radius": radius} if dimension == "proved" else {}
    for s, order in enumerate(orders):
        sigma = h.lipschitz[s] * np.sqrt(h.rounds[s])
        true = bounds.spread(domain, risk[order], sigma)
        if isinstance(update, fmrl.FAL):
            p = bounds.fal_stochastic(alpha, h.lipschitz[s], h.rounds[s], 0.05, **extra)
        else:
            given = alpha, epsilon, gamma, D, h.lipschitz[s], h.rounds[s], 0.05
            p = bounds.fli_batch(*given, **extra, task_diameter=true.diameter)
        setting(domain, h, s, risk[order], p)
        if true.diameter == 0:
            continue
        hull = bounds.spread(domain, h.theta[s], sigma)
        known = {"epsilon": epsilon, "gamma": gamma, "violations": np.flatnonzero(h.violations[s])}
        known |= {"diameter": D, "task_diameter": true.diameter, "deviation": true.deviation}
        b = bounds.upper(sigma, **known, C=hull.C, **p.values())
        assert b.holds, b
        assert float(h.tar[s]) <= b.total
