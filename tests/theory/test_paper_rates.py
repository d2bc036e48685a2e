"""Theorem 3.1 and Corollaries B.2 to B.4: the rates follow from the propositions, have the printed
order, and no run exceeds them; and what of the print does not follow."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter
from scipy.stats import binom
from test_bounds_runs import STREAMS, examples, growing, sampled, seeds

import fmrl
from fmrl import bounds
from fmrl.theory.certificate import certify

thousand = settings(max_examples=300, derandomize=True, deadline=None, database=None)
DELTA = 0.05


def sizes(seed):
    """Ten instances, tiny to huge: T, m, α, G, D, D*, β, dimensions, radius."""
    for rng in np.random.default_rng(seed).spawn(10):
        T = int(10 ** rng.uniform(math.log10(2), 4))
        m = float(np.ceil(10 ** rng.uniform(0, 16)))
        alpha, G, D = 10 ** rng.uniform(-3, 2, 3)
        star = D * 10 ** rng.uniform(-6, 0)
        beta = 1.0 if rng.random() < 0.5 else float(10 ** rng.uniform(0, 3))
        dim = ["linear", None, int(10 ** rng.uniform(0, 4))][int(rng.integers(3))]
        yield T, m, alpha, G, D, star, beta, dim, D * float(rng.uniform(0.5, 3))


def whole(choice, parameters, T, m, G, D, star, C=None):
    """Theorem B.1 with these parameters, all tasks alike, all violations that can happen."""
    reach = 2 * math.sqrt(parameters.beta) * star
    reach += 2 * math.sqrt(2 * parameters.beta * parameters.delta_max)
    given = {"diameter": D, "task_diameter": star, "deviation": star}
    given["C"] = reach**2 / 2 if C is None else C
    return bounds.upper(np.full(T, G * math.sqrt(m)), **choice, **given, **parameters.values())


def cases(seed):
    """For each instance and variant: the rate, and the theorem with the corollary's choice."""
    for T, m, alpha, G, D, star, beta, dim, radius in sizes(seed):
        numbers, same = (star, D, G, m, T, alpha), {"beta": beta, "tasks": T}
        C = None if beta == 1 else 3 * star**2 + 1e-3 * D**2
        chance = {"dim": dim, "radius": radius}
        choice = bounds.tuned_fli(fmrl.FLIOnline(), D, T, alpha, G, m, beta=beta)
        p = bounds.fli_online(alpha, choice["epsilon"], D, G, m, **same)
        rate = bounds.fli_online_rate(*numbers, C=C, beta=beta)
        yield rate, whole(choice, p, T, m, G, D, star, C)
        p = bounds.fal_stochastic(alpha, G, m, DELTA, **same, **chance)
        rate = bounds.fal_stochastic_rate(*numbers, DELTA, **chance, C=C, beta=beta)
        yield rate, whole(bounds.tuned(D, T), p, T, m, G, D, star, C)
        choice = bounds.tuned_fli(fmrl.FLIBatch(), D, T, alpha, G, m, beta=beta)
        given = alpha, *choice.values(), D, G, m, DELTA
        p = bounds.fli_batch(*given, **same, **chance, task_diameter=star)
        rate = bounds.fli_batch_rate(*numbers, DELTA, **chance, C=C, beta=beta)
        yield rate, whole(choice, p, T, m, G, D, star, C)


@thousand
@given(seeds)
def test_rates_follow_from_the_propositions(seed):
    """3,000 instances of each corollary: the rate is no less than the theorem it simplifies."""
    for rate, exact in cases(seed):
        assert rate.holds and exact.holds, (rate, exact)
        assert rate.total >= exact.total * (1 - 1e-9), (rate, exact)


def test_rates_are_not_idle():
    """Where everything but D* has faded, rate and theorem are multiples of D* near each other."""
    near = []
    for rate, exact in (pair for seed in range(60) for pair in cases(seed)):
        if rate.dominant == "task diameter" and rate.share > 0.99:
            near.append(rate.total / exact.total)
    assert len(near) > 20 and max(near) < 40, max(near)


ORDER = {
    "FLI-Online, B.2": lambda m, T: bounds.fli_online_rate(0.1, 1.0, 1.0, m, T, 1.0),
    "FAL, B.3": lambda m, T: bounds.fal_stochastic_rate(
        0.1, 1.0, 1.0, m, T, 1.0, DELTA, dim=20, radius=1.0
    ),
    "FLI-Batch, B.4": lambda m, T: bounds.fli_batch_rate(
        0.1, 1.0, 1.0, m, T, 1.0, DELTA, dim=20, radius=1.0
    ),
    "FLI-Batch, B.4, linear": lambda m, T: bounds.fli_batch_rate(
        0.1, 1.0, 1.0, m, T, 1.0, DELTA, dim="linear", radius=1.0
    ),
}


@pytest.mark.parametrize("rate", ORDER.values(), ids=ORDER)
def test_rates_have_the_printed_order(rate):
    """o_m(1) is O(m^(−1/6)·√log(Tm/δ)), the rest O(D* + log T/T), at every size up to 10^30."""
    for T in (10, 10**4, 10**8):
        for name, order in (
            ("updates not exact", lambda m, T: m ** (-1 / 6) * math.sqrt(math.log(T * m / DELTA))),
            ("task diameter", lambda m, T: 1.0),
            ("first task and guess", lambda m, T: math.log(T) / T),
            ("moving", lambda m, T: math.log(T) / T),
        ):
            m = 10.0 ** np.arange(2, 31, 2)
            share = np.array([rate(x, T).terms[name] / x**0.5 / order(x, T) for x in m])
            # The printed order, with a constant: the largest is where m is small.
            assert share.max() <= share[0] * 1.3 and share[0] < 2e4, (name, T, share)


def test_the_printed_epsilon_of_corollary_b4_is_enough():
    """With ε = 24βG/(α√m) + D(1 + log T)/T the theorem falls to a multiple of D*.

    A proposition that bounds every task's first distance by D stays at 8 here: Δ_max → D²/24."""
    T, star = 10**6, 0.01
    found = {}
    for m in (1e4, 1e8, 1e12, 1e14):
        choice = bounds.tuned_fli(fmrl.FLIBatch(), 1.0, T, 1.0, 1.0, m)
        p = bounds.fli_batch(
            1.0, *choice.values(), 1.0, 1.0, m, DELTA,
            tasks=T, dim=2, radius=1.0, task_diameter=star,
        )  # fmt: skip
        found[m] = whole(choice, p, T, m, 1.0, 1.0, star).total / m**0.5
    assert found[1e4] > found[1e8] > found[1e12] > found[1e14]
    assert found[1e14] < 25 * star, found


def test_without_dimensions_it_does_not_follow():
    """With the printed Lemma B.4 the last term of Corollary B.4 stays: u/ε has no limit 0."""
    given = 1e-6, 1.0, 1.0, 1e20, 10**8, 1.0, DELTA
    printed = bounds.fli_batch_rate(*given, radius=1.0)
    linear = bounds.fli_batch_rate(*given, dim="linear", radius=1.0)
    assert printed.total / 1e10 > 1 > 2e-3 > linear.total / 1e10
    names = [a.name for a in printed.assumptions]
    assert "the optimum in hindsight generalises at the printed rate" in names


def test_theorem_31_needs_the_other_half_of_epsilon():
    """Theorem 3.1 prints ε = Ω(m^(−1/6)). With ε = 4βG/(α·m^(1/6)) and nothing more, two tasks with
    optima at both ends of a line have TAR/(G√m) ∝ m^(1/6); D(1 + log T)/T mends it.

    Linear losses G·θ on [−r, r]: actions walk at speed ηG from one end to the other."""
    r, G, T = 1.0, 1.0, 2
    star = D = math.sqrt(2) * r
    alpha = G / r  # G·(θ + r) ≥ G/(2r)·(θ + r)²
    ratio = {}
    for m in (1e12, 1e18, 1e24):
        tuned = bounds.tuned_fli(fmrl.FLIOnline(), D, T, alpha, G, m)["epsilon"]
        for which, epsilon in (("printed", tuned - bounds.tuned(D, T)["epsilon"]), ("B.2", tuned)):
            walked = epsilon / math.sqrt(m)  # η·G, a round; far less than 2r
            second = (2 * r) ** 2 * G / (2 * walked)  # regret of the walk from one end to the other
            ratio[which, m] = second / T / (G * math.sqrt(m))
        rate = bounds.fli_online_rate(star, D, G, m, T, alpha)
        assert ratio["B.2", m] <= rate.total / (G * math.sqrt(m))
    assert ratio["printed", 1e18] == pytest.approx(10 * ratio["printed", 1e12], rel=1e-3)
    assert ratio["printed", 1e24] == pytest.approx(100 * ratio["printed", 1e12], rel=1e-3)
    assert ratio["B.2", 1e24] < 1.1 * ratio["B.2", 1e18]


def test_the_walk_is_what_runs_do():
    """The closed form above against a run: m small enough to play."""
    m, epsilon = 4000, 0.05
    costs = np.full((m, 1), 1.0)
    tasks = [fmrl.Task(sign * costs, loss=fmrl.Linear()) for sign in (-1.0, 1.0)]
    algo = fmrl.FMRL(
        fmrl.Ball(1.0), fmrl.FTRL(), fmrl.FLIOnline(), similarity=fmrl.Doubling(epsilon, 1.5)
    )
    history = fmrl.run(algo, tasks, np.array([1.0]))
    assert float(history.regret[1]) == pytest.approx(4 / 2 / (epsilon / m**0.5), rel=1e-2)


@examples
@given(seeds)
def test_fli_online_runs_stay_below_their_rate(seed):
    rng = np.random.default_rng(seed)
    dim, m, T = int(rng.integers(1, 3)), int(rng.integers(4, 40)), int(rng.integers(2, 6))
    tasks, alpha = growing(rng, dim, m)
    domain = fmrl.Ball(float(10 ** rng.uniform(-0.5, 0.5)))
    G, D = max(float(t.open().lipschitz(domain)) for t in tasks), domain.diameter(dim)
    choice = bounds.tuned_fli(fmrl.FLIOnline(), D, T, alpha, G, m)
    algo = fmrl.FMRL(
        domain, fmrl.FTRL(), fmrl.FLIOnline(), similarity=fmrl.Doubling(**choice), lipschitz=G
    )
    history = fmrl.run(algo, tasks, orders=rng.integers(0, len(tasks), (STREAMS, T)))
    for s in range(STREAMS):
        star = bounds.spread(domain, history.optimum[s]).diameter
        if star > 0:
            rate = bounds.fli_online_rate(star, D, G, m, T, alpha)
            assert float(history.tar[s]) <= rate.total


@pytest.mark.parametrize("update", [fmrl.FAL(), fmrl.FLIBatch()], ids=["fal", "fli-batch"])
@examples
@given(seeds, st.sampled_from(["omd", "ftrl"]))
def test_stochastic_runs_stay_below_their_rate(update, seed, within):
    rng = np.random.default_rng(seed)
    dim, m, radius, T = int(rng.integers(1, 3)), int(2 ** rng.integers(2, 9)), 0.7, 6
    m = min(m, 16) if within == "ftrl" else m
    tasks, risk, alpha = sampled(rng, dim, m, radius)
    domain, G = fmrl.Ball(radius), 2 * radius
    D = domain.diameter(dim)
    choice = bounds.tuned(D, T)
    if isinstance(update, fmrl.FLIBatch):
        choice = bounds.tuned_fli(update, D, T, alpha, G, m)
    learner = fmrl.OMD() if within == "omd" else fmrl.FTRL()
    algo = fmrl.FMRL(domain, learner, update, similarity=fmrl.Doubling(**choice), lipschitz=G)
    orders = rng.integers(0, len(tasks), (STREAMS, T))
    history = fmrl.run(algo, tasks, orders=orders)
    for s, order in enumerate(orders):
        star = bounds.spread(domain, risk[order]).diameter
        if star == 0:
            continue
        given = star, D, G, m, T, alpha, DELTA
        for kind in (dim, "linear"):
            make = bounds.fal_stochastic_rate
            make = bounds.fli_batch_rate if isinstance(update, fmrl.FLIBatch) else make
            assert float(history.tar[s]) <= make(*given, dim=kind, radius=radius).total


def play_on_the_line(rng, m, best, noise, epsilon, gamma, G, D):
    """FLI-Batch on losses ½(θ − y)², y = best_t ± noise, in plain numpy: no code of the library.
    Lazy and eager steps agree, as the actions stay inside. Columns by task: mean action, start,
    guess, optimum in hindsight, regret, and whether the guess was violated."""
    phi, count, rows = 0.0, 0, []
    for t, centre in enumerate(best):
        guess = epsilon * gamma**count if t else D + epsilon
        y, eta = centre + noise * rng.choice([-1.0, 1.0], m), guess / (G * math.sqrt(m))
        later = lfilter([eta], [1, eta - 1], y, zi=[(1 - eta) * phi])[0]
        theta = np.concatenate([[phi], later[:-1]])
        mean, optimum = theta.mean(), y.mean()
        regret = np.sum((theta - y) ** 2 - (optimum - y) ** 2) / 2
        violated = bool(guess < abs(mean - phi) / math.sqrt(2))
        rows.append((mean, phi, guess, optimum, regret, violated))
        count += violated
        phi = phi + (mean - phi) / (t + 1) if t else mean
    return [np.array(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("m", [600, 6000, 300_000])
def test_mean_actions_end_near_the_minimum(m):
    """What Corollary B.4 rests on, streams of 12 tasks: where the guess is not
    violated, ½(θ' − θ̂)² ≤ 6/5·((4β+1)·D_t·G/√m + n)/α, whatever D; and κ, Δ*, ν, Δ', Δ_max of
    `fli_batch`, and TAR below the theorem. Some guesses must be violated."""
    rng, T, alpha, G, D, gamma = np.random.default_rng(m), 12, 1.0, 1.5, math.sqrt(2), 1.2
    epsilon, violations = 24 * G / (alpha * math.sqrt(m)), 0
    for _ in range(30 if m < 10**5 else 10):
        best = np.clip(10 ** rng.uniform(-3, 0) * rng.normal(size=T), -0.5, 0.5)
        noise = 10 ** rng.uniform(-2, -0.4)
        played = play_on_the_line(rng, m, best, noise, epsilon, gamma, G, D)
        mean, start, guess, optimum, regret, violated = played
        violations += violated.sum()
        star, near = np.ptp(best) / math.sqrt(2), (best - mean) ** 2 / 2
        n = float(bounds.sampling_error(alpha, G, m, DELTA / (2 * T)))
        limit = 1.2 * (5 * guess * G / math.sqrt(m) + n) / alpha
        assert np.all(near[violated == 0] <= limit[violated == 0])
        given, chance = (alpha, epsilon, gamma, D, G, m, DELTA), {"dim": 1, "radius": 1.0}
        p = bounds.fli_batch(*given, tasks=T, **chance, task_diameter=star)
        sigma, moved = G * math.sqrt(m), (mean - start) ** 2 / 2
        assert near.max() <= p.delta_max and 6 * sigma * near.sum() <= p.delta_prime
        far = (optimum - start) ** 2 / 2
        excused = sum(p.delta_star) / epsilon + p.kappa * np.sum(moved / guess)
        assert np.sum(far / guess) <= excused
        assert np.var(mean) / 2 * T * sigma <= p.delta_prime + p.nu * np.var(best) / 2 * T * sigma
        spread = {"deviation": np.std(best) / math.sqrt(2), "C": np.ptp(mean) ** 2 / 2}
        times = {"violations": np.flatnonzero(violated), "epsilon": epsilon, "gamma": gamma}
        bound = bounds.upper(
            np.full(T, sigma), diameter=D, task_diameter=star, **spread, **times, **p.values()
        )
        assert bound.holds and regret.mean() <= bound.total
    assert violations > 10 or m < 10**5


@pytest.mark.parametrize("delta", [0.2, 1e-2, 1e-4, 1e-8])
def test_sampling_error_fails_as_rarely_as_it_says(delta):
    """Actions at the distance r where chance hurts most, losses α/2·r² ± G·r: m·e > 2·R + m·n has
    probability at most delta, exactly by the binomial; with half of n more, where delta is small.
    """
    m, G, alpha = 10**6, 1.0, 1.0
    apart = 2 * G * math.sqrt(2 * math.log(1 / delta)) / (alpha * math.sqrt(m))
    excess = alpha / 2 * apart**2
    n = float(bounds.sampling_error(alpha, G, m, delta))

    def fails(n):  # 2·(m·e + signs·G·r) + m·n < m·e
        signs = -(m * excess + m * n) / (2 * G * apart)
        return binom.cdf(math.ceil((m + signs) / 2) - 1, m, 0.5)

    assert fails(n) <= delta
    assert delta > 1e-3 or fails(n / 2) > delta


@pytest.mark.parametrize("kind", ["dimensions", "linear"])
def test_optima_in_hindsight_generalise(kind):
    """Lemma B.4, corrected: ½·Σ(θ_j − y_j)² over random coordinates in d dimensions; the optimum is
    the mean of what each coordinate saw. The rate fails in at most delta of the tasks, and falls
    like 1/m: a hundredth of it would not hold."""
    rng, delta, runs, d, noise = np.random.default_rng(1), 0.1, 2000, 3, 0.5
    radius = math.sqrt(d)
    dim = d if kind == "dimensions" else "linear"
    for m in (30, 300, 3000):
        seen = np.maximum(1, rng.multinomial(m, [1 / d] * d, runs))
        error = noise * (2.0 * rng.binomial(seen, 0.5) - seen) / seen
        risk = np.sum(error**2, axis=1) / (2 * d)
        u = float(bounds.excess(1.5, m, delta, dim, radius, 1 / d)[0])
        assert np.mean(risk > u) <= delta
        if m == 3000:
            assert u < 1 and np.mean(risk > u / 2000) > delta


def test_excess_takes_the_better_of_its_rates():
    slow = bounds.excess(1.0, [10.0, 1e6], 0.05, 2, 1.0)
    fast = bounds.excess(1.0, [10.0, 1e6], 0.05, 2, 1.0, 1.0)
    assert fast[0] == slow[0] == 1 and fast[1] < slow[1] / 10
    assert bounds.excess(0.0, 100, 0.05, 2, 1.0, 1.0)[0] == 0
    with pytest.raises(fmrl.FMRLError, match="linear"):
        bounds.excess(1.0, 10, 0.05, "many", 1.0)


def test_what_no_rate_speaks_of_is_refused():
    b, update = fmrl.bounds, fmrl.FLIBatch
    for wrong in (
        lambda: b.tuned_fli(update, 1.0, 100, 1.0, 1.0, 57_600),
        lambda: b.tuned_fli(fmrl.FAL(), 1.0, 100, 1.0, 1.0, 57_600),
        lambda: b.fli_online_rate(0.1, 1.0, 1.0, 64, 100, 0.0),
        lambda: b.fli_online_rate(0.1, 1.0, 1.0, 64, 100, 1.0, C=-1.0),
        lambda: b.fli_online_rate(0.1, 1.0, 1.0, 64, 2.5, 1.0),
        lambda: b.fli_online_rate(0.1, 1.0, 1.0, 0.01, 100, 1.0),
        lambda: b.fli_online_rate(0.1, 1.0, 1.0, 64, 100, 1.0, beta=0.5),
        lambda: b.fal_stochastic_rate(0.1, 1.0, 1.0, 64, 100, 1.0, 2.0),
        lambda: b.fal_stochastic_rate(0.1, 1.0, 1.0, 64, 100, 1.0, 0),
        lambda: b.fli_batch_rate(0.1, 1.0, 1.0, 64, 100, 1.0, 0),
        lambda: b.sampling_error(1.0, 1.0, 100, 0.0),
        lambda: b.sampling_error(-1.0, 1.0, 100, 0.1),
        lambda: b.excess(1.0, 100, 3, 2, 1.0),
        lambda: b.excess(1.0, 100, 0.05, -2, 1.0),
        lambda: b.excess(1.0, 100, 0.05, True, 1.0),
        lambda: b.excess(1.0, 100, 0.05, 2, 1.0, alpha=-1.0),
        lambda: b.fli_online(1.0, 2.0, -1.0, 1.0, 16, tasks=10),
    ):
        with pytest.raises(fmrl.FMRLError):
            wrong()
    np.testing.assert_allclose(
        b.excess(1.0, 100, 0.05, np.int64(2), 1.0), b.excess(1.0, 100, 0.05, 2, 1.0)
    )


def test_numbers_of_fli_batch_by_hand():
    """Each term once more, written out: what no search above comes near."""
    alpha, epsilon, gamma, D, star, G, m, delta, T = 1.0, 1.0, 1.5, 1.0, 0.3, 1.0, 10_000, 0.05, 100
    found = bounds.fli_batch(
        alpha, epsilon, gamma, D, G, m, delta, tasks=T, dim=2, radius=1.0, task_diameter=star
    )
    root = math.sqrt(m)
    n = float(bounds.sampling_error(alpha, G, m, delta / (2 * T)))
    q = 2 * G / (alpha * epsilon * root)
    c = (max(3 * D + epsilon, gamma * D) * G / root + n) / alpha
    x = (q * star + math.sqrt(q * star**2 + (1 - q) * c)) / (1 - q)
    assert x**2 < q * D**2 + c
    assert found.delta_max == pytest.approx(x**2, rel=1e-12)

    rate = bounds.fli_batch_rate(star, D, G, m, T, alpha, delta, dim=2, radius=1.0)
    choice = bounds.tuned_fli(fmrl.FLIBatch(), D, T, alpha, G, m)
    u = float(bounds.excess(G, m, delta / (2 * T), 2, 1.0, alpha)[0])
    c = (max(3 * D + choice["epsilon"], choice["gamma"] * D) * G / root + n) / alpha
    e, extra = 2 * math.sqrt(24 / 11 * c), 24 * G / (alpha * root)
    error = 3.6 * (choice["gamma"] * e + 2 * e**2 / D + extra) + extra / T
    error += 3.6 * 3.6 / math.sqrt(2) * math.sqrt(c) * 5
    error += 3.6 * G / (alpha * root) + (u + 1.2 * n) * root / (8 * G)
    assert rate.terms["updates not exact"] == pytest.approx(error * G * root, rel=1e-12)


def test_the_certificate_of_several_compositions_pays_the_solver_gap():
    rng = np.random.default_rng(0)
    tasks = [
        fmrl.Task(rng.normal(size=(9, 2)), rng.integers(0, 2, 9), loss=fmrl.Logistic())
        for _ in range(6)
    ]
    still = fmrl.FMRL(similarity=fmrl.KnownStep(0.0))
    history = fmrl.run(fmrl.Hedge([fmrl.FMRL(), still]), tasks)
    (found,) = certify(history).bounds
    gap = float(history.gap.mean())
    assert gap > 0 and found.terms["solver gap"] == pytest.approx(gap)
