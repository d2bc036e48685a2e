"""Environments that move: no sequence and no run exceeds a bound, and each term is needed."""

import math
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from test_certificate import names, regression

import fmrl
from fmrl import bounds, certify
from fmrl.core.adahedge import Weights
from fmrl.core.ensemble import kmeans
from fmrl.core.rules.meta import End

METAS = {
    "path": fmrl.Discounted(0.2),
    "best member": fmrl.Mixture([fmrl.FollowLeader(), fmrl.Window(2), fmrl.Restart(3)]),
    "switching members": fmrl.Mixture([fmrl.FollowLeader(), fmrl.LastUpdate()], share=0.1),
    "conditional": fmrl.Conditional([1], 0.5),
}
GUESSES = {"known similarity": fmrl.Known(0.3), "average deviation": fmrl.AverageDeviation()}
KNOWN = fmrl.FMRL(similarity=fmrl.Known(1.0))


class Search:
    """Whether a bound ever failed, and whether it would with half of each of its terms."""

    def __init__(self):
        self.short = {}

    def __call__(self, paid, bound):
        assert bound.holds and paid <= bound.total + 1e-9 * (1 + abs(paid)), (paid, bound)
        for name, value in bound.terms.items():
            above = paid > bound.total - value / 2 + 1e-9 * (1 + abs(paid))
            self.short[name] = self.short.get(name, False) or above


def weighed(rng, T):
    """Equal weights, or weights over two orders of magnitude, some of them 0."""
    if rng.random() < 0.4:
        return np.full(T, 10 ** rng.uniform(-1, 1))
    return 10 ** rng.uniform(-1, 1, T) * (rng.random(T) < 0.9)


def starts(meta, domain, phi, theta, sigma):
    phi, memory = meta.init(domain, phi)
    return fmrl.MetaUpdate.scan(meta, domain, phi, memory, End(theta, theta, sigma))[0]


def test_identity_of_a_step():
    """‖phi_{t+1} − ψ‖² = (1 − a)‖phi − ψ‖² + a‖θ − ψ‖² − a(1 − a)‖θ − phi‖² for the steps a_t =
    max(alpha, sigma_t/sigma_{1:t}) that `Discounted` takes, and with equal sigma 1/a grows by at
    most 1 from a task to the next."""
    rng, square = np.random.default_rng(0), lambda x: np.sum(x**2)
    for alpha in (0.03, 0.3, 0.7):
        rule, sigma = fmrl.Discounted(alpha), rng.uniform(0.1, 3, 200)
        phi, memory = rule.init(fmrl.Euclidean(), rng.normal(size=3))
        for t, theta in enumerate(rng.normal(size=(200, 3))):
            before, psi = phi, rng.normal(size=3)
            end = End(theta, theta, np.array(sigma[t]))
            phi, memory = rule.update(fmrl.Euclidean(), phi, memory, end)
            a = max(alpha, sigma[t] / sigma[: t + 1].sum())
            right = (1 - a) * square(before - psi) + a * square(theta - psi)
            right -= a * (1 - a) * square(theta - before)
            assert square(phi - psi) == pytest.approx(right, rel=1e-9, abs=1e-12)
        far = np.concatenate([[[0.0]], np.ones((99, 1))])  # after the first all at 1
        left = 1 - starts(rule, fmrl.Euclidean(), np.zeros(1), far, np.ones(100))[1:, 0]
        left = left[left > 1e-9]
        back = 1 / (1 - left[1:] / left[:-1])
        assert np.all(np.diff(back) <= 1 + 1e-6) and back[-1] <= 1 / alpha + 1e-6


def test_against_any_path():
    rng, search = np.random.default_rng(0), Search()
    for _ in range(1500):
        T, d = int(rng.integers(1, 15)), int(rng.integers(1, 4))
        theta, sigma = rng.normal(size=(T, d)), weighed(rng, T)
        if rng.random() < 0.5:  # a walk, or a drift
            theta = np.cumsum(0.3 * theta + rng.normal(size=d) * rng.integers(0, 2), axis=0)
        mix = rng.dirichlet(np.ones(T), T)
        path = [theta, mix @ theta, mix[:1].repeat(T, 0) @ theta][rng.integers(3)]
        alpha = float(rng.uniform(0.01, 0.9)) * rng.integers(0, 2)
        meta = fmrl.Discounted(alpha) if alpha else fmrl.FollowLeader()
        phi = starts(meta, fmrl.Euclidean(), rng.normal(size=d), theta, sigma)
        B = np.sum((theta - phi) ** 2, axis=1) / 2
        wide = np.max(np.linalg.norm(theta[:, None] - path, axis=-1))
        given = {"width": wide, "first": B[np.argmax(sigma > 0)], "sigma": sigma}
        search(float(sigma @ B), bounds.dynamic(theta, path, alpha, **given))
    assert all(search.short.values()) and len(search.short) == 4


def test_a_steady_drift_costs_the_lag():
    """p²/(2·alpha²) for each task, which is what the run pays."""
    theta, alpha = 0.01 * np.arange(2000.0)[:, None], 0.1
    phi = starts(fmrl.Discounted(alpha), fmrl.Euclidean(), theta[0], theta, np.ones(2000))
    paid = float(np.sum((theta - phi) ** 2) / 2)
    bound = bounds.dynamic(theta, theta, alpha, width=20.0, first=0.0)
    assert bound.terms["path"] == pytest.approx(2000 * 0.01**2 / (2 * alpha**2), rel=0.02)
    assert 1 <= bound.total / paid < 1.02 and "length 19.98" in bound.note
    assert bounds.dynamic(theta, theta, 1.0, width=20.0, first=0.0).total == math.inf


def test_against_members():
    """Any members, in the plane and on the simplex; costs are theirs as they were played."""
    rng, search = np.random.default_rng(0), Search()
    for seed in range(1500):
        T, K, d = int(rng.integers(1, 25)), int(rng.integers(2, 5)), int(rng.integers(2, 4))
        flat = seed % 2
        sigma = np.sort(weighed(rng, T)) if seed % 3 else weighed(rng, T)
        domain = fmrl.Ball(1.0) if flat else fmrl.Simplex()
        points = rng.normal(size=(K, d)) if flat else rng.dirichlet(np.full(d, 0.3), K) + 1e-9
        points /= np.linalg.norm(points, axis=1, keepdims=True) if flat else points.sum(1)[:, None]
        close = points[np.sort(rng.integers(0, K, T))]  # tasks that move from one to another
        theta = domain.project(close + 0.1 * rng.normal(size=(T, d))) if flat else close
        metas = [fmrl.Fixed(p) for p in points] + [fmrl.FollowLeader()] * int(rng.integers(0, 2))
        share = float(rng.choice([0.0, 0.05, 0.5]))
        meta, phi = fmrl.Mixture(metas, share=share), domain.middle(points[0])
        far = domain.divergence
        costs = np.stack([far(theta, starts(m, domain, phi, theta, sigma)) for m in metas], 1)
        paid = float(sigma @ far(theta, starts(meta, domain, phi, theta, sigma)))
        search(paid, bounds.mixture(costs, sigma, 2.0 if flat else None, share=share))
    assert search.short.pop("rate") is False  # needs an instance of its own, below
    assert search.short == dict.fromkeys(("members", "weights", "switches"), True)


def test_weights_set_for_lighter_tasks():
    """Light tasks at one point, then heavy ones at the other: half of the rate is not enough."""
    ends = np.array([[1.0], [-1.0]]).repeat(20, axis=0)
    sigma, domain = np.array([1.0, 100.0]).repeat(20), fmrl.Ball(1.0)
    metas = [fmrl.Fixed([1.0]), fmrl.Fixed([-1.0])]
    phi = starts(fmrl.Mixture(metas), domain, np.zeros(1), ends, sigma)
    paid = float(sigma @ domain.divergence(ends, phi))
    costs = np.stack([domain.divergence(ends, np.array(m.phi)) for m in metas], axis=1)
    bound = bounds.mixture(costs, sigma, 2.0)
    assert paid <= bound.total
    wrong = costs[:, 1]  # of the member that is best in the end
    assert paid > sigma @ wrong + (100 - 1) * sigma[:20] @ wrong[:20] / 2 + bound.terms["weights"]


def test_best_sequence_of_members():
    """The sequence found is the cheapest of all; a share above (K − 1)/K makes staying dear."""
    rng = np.random.default_rng(0)
    for share in (0.1, 0.5, 0.9):
        costs, (T, K) = rng.random((5, 3)) / 2, (5, 3)
        totals = []
        for who in product(range(K), repeat=T):
            n = sum(a != b for a, b in pairwise(who))
            prior = math.log(K) + n * math.log((K - 1) / share) - (T - 1 - n) * math.log(1 - share)
            totals.append(sum(costs[t, k] for t, k in enumerate(who)) + prior)
        assert bounds.mixture(costs, 1.0, 1.0, share=share).total == pytest.approx(min(totals))


def test_kl_is_mixable_by_the_mean():
    """exp(−KL(θ‖·)) = Π (phi_j/θ_j)^θ_j is concave: the mean costs at most the mixed loss. With a
    rate of 1.1 it is not."""
    rng = np.random.default_rng(0)
    theta, w = rng.dirichlet(np.ones(3), 1000), rng.dirichlet(np.ones(4), 1000)
    phi = rng.dirichlet(np.full(3, 0.3), (1000, 4)) + 1e-9
    phi /= phi.sum(axis=-1, keepdims=True)
    far = fmrl.Simplex().divergence
    own, mean = far(theta[:, None, :], phi), far(theta, np.sum(w[..., None] * phi, axis=1))
    assert np.all(mean <= -np.log(np.sum(w * np.exp(-own), axis=1)) + 1e-12)
    edge = np.array([1.0, 0.0])  # all mass on one: −log phi is mixable at 1 and at no more
    phi = np.array([[0.1, 0.9], [0.9, 0.1]])
    mixed = -math.log(np.mean(np.exp(-1.1 * far(edge, phi)))) / 1.1
    assert far(edge, phi.mean(0)) > mixed


def test_against_a_linear_map():
    rng, search = np.random.default_rng(0), Search()
    for _ in range(1000):
        T, d, k = (int(rng.integers(1, n)) for n in (20, 4, 3))
        side = np.column_stack([np.ones(T), rng.normal(size=(T, k))])
        theta = side @ rng.normal(size=(k + 1, d)) + rng.normal(size=(T, d)) * rng.integers(0, 2)
        ridge, sigma = 10 ** rng.uniform(-2, 2), weighed(rng, T)
        reach = np.linalg.norm(theta, axis=1).max() * rng.uniform(1, 3)
        domain, meta = fmrl.Ball(reach), fmrl.Conditional(range(k), ridge)
        phi, memory = meta.init(domain, np.zeros(d))
        ends = End(theta, theta, sigma, None, side)
        phi, _, memory = meta.scan(domain, phi, memory, ends)
        paid = float(sigma @ np.sum((theta - phi) ** 2, axis=1) / 2)
        search(paid, bounds.conditional(theta, side, ridge, sigma=sigma))
        exact = np.linalg.solve(ridge * np.eye(k + 1) + side.T @ side, side.T @ theta)
        least = np.sum((theta - side @ exact) ** 2) / 2 + ridge / 2 * np.sum(exact**2)
        found = bounds.conditional(theta, side, ridge).terms["comparator"]
        assert found == pytest.approx(least, rel=1e-6, abs=1e-9)
    assert search.short == {"comparator": True, "fitting": True}


def play(losses, rate=None, first=None):
    """What the weights suffer on losses [T, K], and their gap."""
    weights, suffered = Weights.begin(losses.shape[1], losses), 0.0
    for lost in losses:
        suffered += float(weights.shares(rate, first) @ lost)
        weights = weights.after(lost, rate, first)
    return suffered, float(weights.gap)


def test_against_the_best_composition():
    rng, search = np.random.default_rng(0), Search()
    for seed in range(1500):
        T, K = int(rng.integers(1, 40)), int(rng.integers(2, 6))
        losses = rng.random((T, K)) * 10 ** rng.uniform(-2, 2) + rng.normal(size=K)
        if seed % 3 == 0:  # losses that follow the leader into a trap
            losses = np.tile(np.eye(K), (T, 1))[:T]
        rate = float(10 ** rng.uniform(-1, 1)) if seed % 4 == 1 else None
        first = rng.dirichlet(np.ones(K)) if seed % 5 == 0 else None
        suffered, gap = play(losses, rate, first)
        given = {"rate": rate, "first": first}
        search(suffered / T, bounds.hedge(losses.sum(0) / T, gap, T, **given))
    assert search.short == {"members": True, "weights": True}


def regret_of_centres(psi, D, g, best, first=None):
    """Of OMD from each of the centres [K, d] on gradients g [m, d], weighed by their losses; and
    the distances and the gap that its bound needs."""
    acts = psi - D / math.sqrt(len(g)) * (np.cumsum(g, axis=0) - g)[:, None, :]
    lost, gap = play(np.sum(acts * g[:, None], axis=-1), None, first)
    return lost - float(g.sum(0) @ best), np.sum((best - psi) ** 2, axis=1) / 2, gap


def test_centres_that_stand_still():
    rng, search = np.random.default_rng(0), Search()
    for seed in range(1000):
        T, K, m, d = (int(rng.integers(*n)) for n in ((1, 4), (2, 4), (1, 8), (1, 3)))
        psi, D = rng.normal(size=(K, d)), float(10 ** rng.uniform(-3, 0.5))
        first = rng.dirichlet(np.ones(K), T) if seed % 2 else np.full((T, K), 1 / K)
        played = []
        for t in range(T):
            g = rng.normal(size=(m, d)) + rng.normal(size=d)
            if seed % 3 == 0:
                g = np.tile([[1.0], [-1.0]], (4, d))[:m]
            g /= np.linalg.norm(g, axis=1, keepdims=True)
            best = psi[rng.integers(K)] - D / math.sqrt(m) * g.sum(0) * rng.integers(0, 2)
            played.append(regret_of_centres(psi, D, g, best, first[t]))
        regret, near, gap = (np.array(column) for column in zip(*played, strict=True))
        search(regret.mean(), bounds.centres(near, math.sqrt(m), D, gap, first=first))
    assert search.short == {"k-means": True, "guess": False, "choosing": True}


def test_half_of_the_guess_is_what_is_needed():
    """As in Theorem A.1, whose constant is twice the sharp one: there and back attains the half."""
    g = np.tile([[1.0], [-1.0]], (50, 1))
    regret, near, gap = regret_of_centres(np.zeros((2, 1)), 0.5, g, np.zeros(1))
    assert regret == pytest.approx(bounds.centres([near], 10.0, 0.5, [gap]).total / 2)


def test_k_means_is_the_similarity():
    """With the centres of the optima the first term is their k-means value, over D."""
    theta = np.random.default_rng(0).normal(size=(30, 2))
    psi, _, value = kmeans(theta, 3)
    near = np.sum((theta[:, None] - psi) ** 2, axis=-1) / 2
    bound = bounds.centres(near, 2.0, 0.5, 0.0)
    assert bound.terms["k-means"] == pytest.approx(2 * value / 2 / 0.5)


@pytest.mark.parametrize("guess", GUESSES)
@pytest.mark.parametrize("comparator", METAS)
def test_certificates_of_runs(guess, comparator):
    """Many streams at once: the bound applies, holds, and says against what."""
    tasks, rng = regression(), np.random.default_rng(0)
    algo = fmrl.FMRL(meta=METAS[comparator], similarity=GUESSES[guess])
    orders = rng.integers(0, 12, (250, 6))
    history = fmrl.run(algo, tasks, orders=orders)
    name = f"{guess}, {comparator}"
    for order in range(len(orders)):
        certificate = certify(history, order=order)
        bound = {b.name: b for b in certificate.bounds}[name]
        assert certificate.slack(bound)[0] >= 0 and "The comparator is" in certificate.reading
        per_task = {b.name: b.total for b in certificate.bounds}["per-task sum"]
        assert bound.total >= per_task * (1 - 1e-9)  # it bounds that sum
    alone = certify(fmrl.run(algo, [tasks[t] for t in orders[-1]]))
    assert {b.name: b for b in alone.bounds}[name].total == pytest.approx(bound.total)
    assert alone.json() and alone.figure() and fmrl.Certificate.from_json(alone.json()).bounds


def test_a_path_where_tasks_drift():
    """A slow drift is certified against a path, tasks around one point against that point."""
    rng, tasks = np.random.default_rng(0), []
    for t in range(200):
        X = rng.normal(size=(4, 2)) / 2
        tasks.append(fmrl.Task(X, X @ [math.cos(t / 30), math.sin(t / 30)], loss=fmrl.Squared()))
    algo = fmrl.FMRL(meta=fmrl.Discounted(0.3), similarity=fmrl.Known(0.3))
    assert "path of length" in certify(fmrl.run(algo, tasks)).theorem.note
    still = certify(fmrl.run(algo, regression(40)))
    assert still.theorem.note == "The comparator is the best fixed phi."


@pytest.mark.parametrize(
    "algo, reason",
    [
        (fmrl.FMRL(meta=fmrl.Window(3)), "no bound is known for a Window"),
        (fmrl.FMRL(meta=fmrl.Restart(3)), "in a Mixture it needs none"),
        (fmrl.FMRL(meta=fmrl.Discounted(0.1)), "they need FAL and Known"),
        (replace(KNOWN, meta=fmrl.Discounted(1.0)), "infinite"),
        (
            fmrl.FMRL(fmrl.Simplex(0.01), meta=fmrl.Discounted(0.1), similarity=fmrl.Known(1.0)),
            "½‖·‖²",
        ),
    ],
    ids=lambda value: repr(value.meta) if isinstance(value, fmrl.FMRL) else "",
)
def test_where_no_theorem_speaks(algo, reason):
    tasks = regression()
    certificate = certify(fmrl.run(algo, tasks), tasks)
    assert set(names(certificate)) == {"per-task sum", "per-task sum, sharp"}
    assert any(reason in why for _, why in certificate.refused)


def test_fixed_comparators_say_so():
    tasks = regression()
    for rule in (*GUESSES.values(), fmrl.Doubling(0.1, 1.1)):
        found = certify(fmrl.run(fmrl.FMRL(similarity=rule), tasks), tasks)
        assert found.theorem.note == "The comparator is the best fixed phi."


def test_a_simplex_without_floor():
    """Infinite distances are a reason, not an error."""
    rng = np.random.default_rng(0)
    tasks = [fmrl.Task(rng.uniform(size=(5, 3)), loss=fmrl.Linear()) for _ in range(8)]
    algo = fmrl.FMRL(fmrl.Simplex(), similarity=fmrl.AverageDeviation())
    certificate = certify(fmrl.run(algo, tasks), tasks)
    assert not certificate.applicable and "no mass" in certificate.reason


def test_certificates_of_ensembles():
    """Hedge's bound is of its best member as it was played; moving centres have none."""
    still = fmrl.FMRL(similarity=fmrl.KnownStep(0.0))
    for seed in range(20):
        tasks, members = regression(seed=seed), (fmrl.FMRL(), still)
        history = fmrl.run(fmrl.Hedge(members, rate=0.5 if seed % 2 else None), tasks)
        certificate = certify(history, tasks)
        (bound,) = certificate.bounds
        best = min(float(fmrl.run(member, tasks).tar) for member in members)
        assert bound.terms["members"] == pytest.approx(best, abs=1e-9)
        assert certificate.slack(bound)[0] >= 0
    assert certificate.json() and certificate.figure() and certificate.markdown()
    first = fmrl.run(fmrl.Hedge(members), tasks[:5])
    for played, reason in (
        (fmrl.run(fmrl.Hedge(members), tasks[5:], state=first.state), "begins after 5 tasks"),
        (fmrl.run(fmrl.Hedge(members), tasks, keep="scalars"), "keep='all'"),
        (fmrl.run(fmrl.Centres(2, fmrl.FMRL()), tasks), "no guarantee is known"),
    ):
        certificate = certify(played)
        assert not certificate.applicable and reason in certificate.reading


def test_wrong_numbers_are_refused():
    for wrong in (
        lambda: bounds.dynamic([1.0], [1.0], 0.5, width=1, first=0),
        lambda: bounds.dynamic([[1.0]], [[1.0], [2.0]], 0.5, width=1, first=0),
        lambda: bounds.dynamic([[1.0]], [[1.0]], 1.5, width=1, first=0),
        lambda: bounds.mixture([[1.0]], 1.0, 1.0),
        lambda: bounds.mixture([[1.0, math.nan]], 1.0, 1.0),
        lambda: bounds.conditional([[1.0]], [[1.0]], 0.0),
        lambda: bounds.hedge([1.0], 1.0, 1),
        lambda: bounds.hedge([1.0, 2.0], 1.0, 1, first=[1.0, 0.0]),
        lambda: bounds.centres([[1.0, 1.0]], 1.0, 0.0, 1.0),
    ):
        with pytest.raises(fmrl.FMRLError):
            wrong()
    assert not bounds.mixture([[1.0, 1.0]], 1.0, 1.0).holds  # further than the width
    assert bounds.dynamic([[1.0]], [[0.0]], 0.5, width=1, first=0.5, sigma=0.0).total == 0
