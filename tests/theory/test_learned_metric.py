"""Steps that are learned: no run and no sequence exceeds a bound, and each term is needed.

Every pool of tasks is played as STREAMS streams at once; each stream is an instance."""

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from streams import domain_of, stream
from test_certificate import benign, names, regression

import fmrl
from fmrl import bounds
from fmrl.theory.certificate import certify

STREAMS, POOL, POOLS = 56, 10, 18
LEARNERS = (fmrl.OMD(), fmrl.OGD(), fmrl.FTRL())
OBSERVED, METRIC, GUESS = "per-task sum, observed", "learned metric", "exponentially weighted guess"
LEARNED = {
    "isotropic": fmrl.Isotropic,
    "per coordinate": fmrl.PerCoordinate,
    "full matrix": fmrl.FullMatrix,
}
RULES = LEARNED | {
    "low rank": lambda *given: fmrl.LowRank(1, *given),
    "covariance": lambda epsilon, zeta, p: fmrl.Covariance(epsilon),
    "ewoo": lambda epsilon, zeta, p: fmrl.EWOO(epsilon),
}
OWN = dict.fromkeys(LEARNED, METRIC) | {"ewoo": GUESS}  # the theorem of each rule that has one


def drawn(seed, make):
    """A pool of tasks and the history of STREAMS streams from it: any step, learner and domain."""
    rng = np.random.default_rng(seed)
    rule = make(*10 ** rng.uniform(-2, 1, 2), float(rng.choice([0.4, 1.0])))
    where = str(rng.choice(["ball", "box", "simplex", "euclidean"]))
    if where == "simplex" and not isinstance(rule, (fmrl.Isotropic, fmrl.EWOO)):
        where = "box"
    if where == "euclidean" and isinstance(rule, fmrl.EWOO):
        where = "ball"
    losses = ["squared", "logistic", "linear", "hinge"]
    few = {"euclidean": 1}.get(where, 3 if isinstance(rule, fmrl.Covariance) else 4)
    loss, dim = str(rng.choice(losses[:few])), int(rng.integers(2, 4))
    domain = fmrl.Euclidean() if where == "euclidean" else domain_of(where, rng, dim)
    tasks = stream(rng, loss, POOL, dim)
    if isinstance(rule, fmrl.EWOO):
        sigma = [float(t.open().lipschitz(domain)) * math.sqrt(t.rounds) for t in tasks]
        rule = fmrl.EWOO(domain.diameter(dim) * rule.epsilon / 10, sigma=max(sigma))
    # FTRL solves a problem a round: it plays where those are cheap.
    cheap = loss == "linear" or (where in ("ball", "euclidean") and loss != "hinge")
    within = LEARNERS[int(rng.integers(0, 3 if cheap else 2))]
    within = fmrl.FTRL() if isinstance(rule, fmrl.Covariance) else within
    G = 1.0 if where == "euclidean" else None  # squared losses have no constant there
    algo = fmrl.FMRL(domain, within, similarity=rule, lipschitz=G)
    orders = rng.integers(0, POOL, (STREAMS, int(rng.integers(1, 7))))
    try:
        return tasks, fmrl.run(algo, tasks, orders=orders)
    except fmrl.FMRLError as error:  # a step so long that it is refused: a shorter one, then
        assert "ran away" in str(error) and where == "euclidean" and within != fmrl.FTRL()
        algo = replace(algo, similarity=replace(rule, epsilon=rule.epsilon / 1000))
        return tasks, fmrl.run(algo, tasks, orders=orders)


@cache
def certificates(name):
    """Of every stream drawn for a rule."""
    return [
        certify(history, order=s)
        for tasks, history in (drawn(seed, RULES[name]) for seed in range(POOLS))
        for s in range(STREAMS)
    ]


def exceeds(certificate, total):
    """Whether the measured TAR is above a number, beyond rounding."""
    measured = certificate.interval[1]
    return measured - total > 1e-7 * max(1.0, abs(measured))


def by_name(certificate):
    return {b.name: b for b in certificate.bounds}


@pytest.mark.parametrize("name", RULES)
def test_no_run_exceeds_a_bound(name):
    """Theorem A.1 in a metric for every rule, and the theorem of each rule that has one."""
    count = dict.fromkeys((OBSERVED, METRIC, GUESS), 0)
    for certificate in certificates(name):
        for bound in certificate.bounds:
            assert not exceeds(certificate, bound.total), (bound, certificate.composition)
            count[bound.name] = count.get(bound.name, 0) + 1
    expected = {OWN.get(name), None if name == "ewoo" else OBSERVED} - {None}
    assert {bound for bound in (OBSERVED, METRIC, GUESS) if count[bound] >= 1000} == expected


@pytest.mark.parametrize("bound, term", [(OBSERVED, "start"), (OBSERVED, "steps"),
                                         (METRIC, "best metric")])  # fmt: skip
def test_half_a_term_is_not_enough(bound, term):
    """With half of it some run is above, so the search would notice a wrong constant."""
    found = [(c, by_name(c).get(bound)) for name in RULES for c in certificates(name)]
    assert any(exceeds(c, b.total - b.terms[term] / 2) for c, b in found if b is not None)


def there_and_back(rounds=100):
    """One task on the line whose gradients are 1, −1, 1, … : the best action is to stay."""
    return [fmrl.Task(np.array([[1.0], [-1.0]] * (rounds // 2)), loss=fmrl.Linear())]


@pytest.mark.parametrize("rule", [*(make(1.0) for make in LEARNED.values()), fmrl.EWOO(0.1, D=10)])
def test_learning_costs(rule):
    """A first step that is far too large is paid for by the term of learning alone."""
    tasks = there_and_back()
    certificate = certify(fmrl.run(fmrl.FMRL(fmrl.Ball(100.0), similarity=rule), tasks), tasks)
    bound = certificate.theorem
    assert bound.name in (METRIC, GUESS) and not exceeds(certificate, bound.total)
    assert exceeds(certificate, bound.total - bound.terms["learning"])


def test_weighted_guess_needs_its_deviation():
    """Every task lies √2 from a phi that does not move; half the deviation is below the regret."""
    tasks = [fmrl.Task(np.ones((4, 1)), loss=fmrl.Linear())] * 1000
    rule = fmrl.EWOO(0.3, D=1.0)
    algo = fmrl.FMRL(fmrl.Ball(math.sqrt(2)), meta=fmrl.Fixed(), similarity=rule)
    certificate = certify(fmrl.run(algo, tasks), tasks)
    bound = by_name(certificate)[GUESS]
    assert not exceeds(certificate, bound.total)
    assert exceeds(certificate, bound.total - bound.terms["deviation"] / 2)


def best(A, B):
    """2·tr((A^½BA^½)^½) from eigenvalues."""
    return 2 * float(np.sum(np.sqrt(np.maximum(np.linalg.eigvals(A @ B).real, 0))))


def mean_of(A, B):
    """A # B⁻¹ by its textbook formula."""
    values, vectors = np.linalg.eigh(B)
    root, back = (vectors * values**p @ vectors.T for p in (0.5, -0.5))
    values, vectors = np.linalg.eigh(root @ A @ root)
    return back @ (vectors * np.sqrt(values) @ vectors.T) @ back


def value(H, A, B):
    return float(np.trace(np.linalg.solve(H, A)) + np.trace(H @ B))


def test_follow_the_leader_on_metrics():
    """Σ f_t(H_t) is at most the bound for any sequence of matrices, with the costs written down
    from the definition; an exact identity where only the leader's own part is counted."""
    rng, short = np.random.default_rng(0), 0
    for _ in range(1000):
        d, T = int(rng.integers(1, 4)), int(rng.integers(1, 6))
        epsilon, zeta = 10 ** rng.uniform(-2, 1, 2)
        A, B = epsilon**2 * np.eye(d), zeta**2 * np.eye(d)
        H, paid, cost, own = epsilon / zeta * np.eye(d), 0.0, 0.0, 0.0
        for t in range(1, T + 1):
            step, met = rng.normal(size=d), rng.normal(size=(3, d)) * 10 ** rng.uniform(-1, 1)
            far = np.outer(step, step) / 2 + epsilon**2 / (t + 1) * np.eye(d)
            met = met.T @ met + zeta**2 / (t + 1) * np.eye(d)
            A, B, before = A + far, B + met, H
            H = mean_of(A, B)
            paid += value(before, far, met)
            cost += value(before, far, met) - value(H, far, met)
            own += value(before, A, B) - value(H, A, B)
        given = {"epsilon": epsilon, "zeta": zeta, "tasks": 1}
        bound = bounds.learned_metric(A, B, cost, **given)
        assert bound.terms["best metric"] == pytest.approx(best(A, B) - 2 * d * epsilon * zeta)
        assert paid <= bound.total * (1 + 1e-9)
        assert paid == pytest.approx(bounds.learned_metric(A, B, own, **given).total, rel=1e-9)
        short += paid > bound.total - cost / 2
    assert short  # half of the cost would not do


def sequences(rng, shape):
    """far and met of T tasks after the ε² and ζ² that they begin with, [T + 1, ...]."""
    far, met = (rng.exponential(size=shape) * 10 ** rng.uniform(-2, 2, shape) for _ in range(2))
    far[0], met[0] = 10 ** rng.uniform(-2, 2, 2)
    return far, met


def test_learning_cost():
    """It bounds what learning a number, or a step by coordinate, costs; half of it does not."""
    rng, short = np.random.default_rng(0), 0
    for _ in range(1000):
        T, d = int(rng.integers(1, 12)), int(rng.integers(1, 4))
        far, met = sequences(rng, (T + 1, d))
        near, steep = np.cumsum(far, axis=0), np.cumsum(met, axis=0)
        eta = np.sqrt(near[:-1] / steep[:-1])
        paid = float(np.sum(far[1:] / eta + met[1:] * eta))
        epsilon, zeta = math.sqrt(far[0, 0]), math.sqrt(met[0, 0])
        limit = bounds.learning_cost(far, met)
        given = {"epsilon": epsilon, "zeta": zeta, "tasks": 1}
        bound = bounds.learned_metric(near[-1], steep[-1], limit, **given)
        assert paid <= bound.total * (1 + 1e-12)
        short += paid > bound.total - limit / 2
    assert short


def test_learning_cost_grows_like_the_logarithm():
    rng = np.random.default_rng(0)
    far, met = rng.uniform(0.5, 1.5, (2, 100_001))
    costs = [bounds.learning_cost(far[: n + 1], met[: n + 1]) for n in (1000, 10_000, 100_000)]
    assert costs[2] - costs[1] == pytest.approx(costs[1] - costs[0], rel=0.1)


def test_rules_remember_what_learning_cost():
    """The cost in a rule's memory is what its theorem needs, and at most `learning_cost`."""
    rng, D = np.random.default_rng(0), fmrl.Euclidean()
    for make in (fmrl.Isotropic, fmrl.PerCoordinate):
        rule, phi = make(0.3, 2.0, 0.4), np.zeros((200, 2))
        guess, memory = rule.init(D, phi)
        far, met = [memory[1]], [memory[2]]
        for _ in range(5):
            theta, seen = rng.normal(size=(200, 2)), rng.exponential(size=(200, 2))
            end = fmrl.core.rules.meta.End(theta, theta, np.ones(200), seen)
            before = memory
            guess, memory = rule.update(D, phi, guess, memory, end)
            far, met = [*far, memory[1] - before[1]], [*met, memory[2] - before[2]]
        far, met = np.array(far), np.array(met)
        near, steep = np.cumsum(far, axis=0), np.cumsum(met, axis=0)
        eta = np.sqrt(near[:-1] / steep[:-1])
        own = np.sqrt(near[1:] / eta) - np.sqrt(steep[1:] * eta)
        own = np.sum(own**2, axis=0 if own.ndim == 2 else (0, 2))
        limit = [bounds.learning_cost(far[:, s], met[:, s]) for s in range(200)]
        np.testing.assert_allclose(memory[3], own, rtol=1e-6, atol=1e-9)
        assert np.all(memory[3] <= np.array(limit) * (1 + 1e-9))


def test_weighted_guess_of_any_sequence():
    """Σ sigma·(B/v + v) is at most the bound, whatever the distances up to D and the weights up to
    the heaviest; and 1/a is the constant of exp-concavity."""
    rng, T = np.random.default_rng(0), 12
    for _ in range(20):
        epsilon, D, heaviest = 10 ** rng.uniform(-1, 0), 1.0, 10 ** rng.uniform(-1, 1)
        rule = fmrl.EWOO(epsilon, D=D, sigma=heaviest)
        first, memory = rule.init(fmrl.Ball(1.0), np.zeros((STREAMS, 1)))
        B = D**2 * rng.uniform(size=(T, STREAMS)) ** 10 ** rng.uniform(-1, 1, STREAMS)
        sigma = heaviest * rng.uniform(0, 1, (T, STREAMS)) ** 10 ** rng.uniform(-2, 0)
        v, _, _ = rule.follow(first, memory, B, sigma)
        paid = np.sum(sigma * (B / v + v), axis=0)
        for s in range(STREAMS):
            bound = bounds.ewoo(sigma[:, s], B[:, s], epsilon, D, heaviest=heaviest)
            assert bound.holds and paid[s] <= T * bound.total * (1 + 1e-9)
        M = math.hypot(D, epsilon)
        a = 2 * epsilon**2 * M / (heaviest * D**4)
        b, x = np.meshgrid(np.linspace(epsilon**2, M**2, 101), np.linspace(epsilon, M, 101))
        slope, bend = heaviest * (1 - b / x**2), 2 * heaviest * b / x**3
        assert np.all(bend >= a * slope**2 * (1 - 1e-12))
        assert np.any(bend < 1.001 * a * slope**2)


def test_the_weighted_guess_is_the_mean_it_should_be():
    """Against Gauss–Legendre on thousands of panels around the peak, also where the peak lies
    outside [epsilon, M] and after millions of tasks."""
    rng, (node, part) = np.random.default_rng(0), np.polynomial.legendre.leggauss(20)
    for _ in range(60):
        epsilon, D, sigma = 10 ** rng.uniform((-3, -1, -1), (0, 1.5, 2))
        near = D**2 * 10 ** rng.uniform(-6, 0) + epsilon**2
        total = sigma * 10 ** rng.uniform(0, 7)
        high = math.hypot(D, epsilon)
        rate = 2 * epsilon**2 * high / (sigma * D**4)
        peak = min(max(math.sqrt(near), epsilon), high)
        far = np.geomspace(1e-14, 1e5, 1500)
        edges = np.clip(peak * np.concatenate([1 - far[::-1], 1 + far]), epsilon, high)
        low, wide = edges[:-1, None], np.diff(edges)[:, None]
        v = low + wide * (node + 1) / 2
        fall = rate * total * (near * (1 / peak - 1 / v) + peak - v)
        weight = wide * part * np.exp(fall)
        given = map(np.array, (total * near, total, sigma, D, 0.5))
        found = fmrl.EWOO(epsilon, D)._mean(*given)
        np.testing.assert_allclose(found, (weight * v).sum() / weight.sum(), rtol=1e-6)


def test_what_the_weighted_guess_checks():
    far = bounds.ewoo([1.0], [1.1], 0.1, 1.0)
    heavy = bounds.ewoo([1.0, 1.5], [0.5, 0.5], 0.1, 1.0)
    assert [len(b.broken) for b in (far, heavy)] == [1, 1]
    assert bounds.ewoo([1.0, 1.5], [0.5, 0.5], 0.1, 1.0, heaviest=1.5).holds
    assert bounds.ewoo([0.0], [0.0], 0.1, 1.0).total == 0


def test_wrong_numbers_are_refused():
    given = {"epsilon": 1.0, "zeta": 1.0, "tasks": 1}
    for near, steep, cost in (([1.0], 1.0, 0.0), (np.ones((2, 3)), np.ones((2, 3)), 0.0),
                              (1.0, 1.0, -1.0)):  # fmt: skip
        with pytest.raises(fmrl.FMRLError):
            bounds.learned_metric(near, steep, cost, **given)
    assert bounds.in_metric([np.inf, 1.0], [0.0, 1.0]).total == math.inf
    assert bounds.in_metric([np.inf, 1.0], [1.0, 1.0]).total == math.inf


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("keep", ["all", "scalars"])
def test_rule_decides(name, keep):
    tasks, rule = regression(), RULES[name](0.3, 1.0, 1.0)
    if name == "ewoo":
        rule = replace(rule, sigma=1e3)
    within = fmrl.FTRL() if name == "covariance" else fmrl.OMD()
    history = fmrl.run(fmrl.FMRL(within=within, similarity=rule), tasks, keep=keep)
    certificate = certify(history, tasks)
    summed = {"per-task sum", "per-task sum, sharp"} if name == "ewoo" else {OBSERVED}
    assert set(names(certificate)) == summed | ({OWN[name]} if name in OWN else set())
    assert all(certificate.slack(b)[0] >= 0 for b in certificate.bounds)
    assert certificate.curves["bound"][-1] == pytest.approx(float(history.bound.mean()))
    status = {a.name: a.status for a in certificate.assumptions}
    assert ("Lipschitz losses" in status) == (name == "ewoo")
    if name not in OWN:
        assert ("meta-level theorems", f"none is known for {rule!r}") in certificate.refused
    assert "proved to be at most" in certificate.reading and certificate.json()


@pytest.mark.parametrize("name", OWN)
def test_where_the_theorem_is_silent(name):
    """Part of a run, tasks that share a phi, and update vectors that are not the optima."""
    tasks, rule = regression(), RULES[name](0.3, 1.0, 1.0)
    rule = replace(rule, sigma=1e3) if name == "ewoo" else rule
    algo = fmrl.FMRL(similarity=rule)
    first = fmrl.run(algo, tasks[:5])
    online = replace(algo, update=fmrl.FLIOnline())
    for history, played, reason in (
        (fmrl.run(algo, tasks[5:], state=first.state), tasks[5:], "begins after 5 tasks"),
        (fmrl.run(algo, tasks, meta_batch=3), tasks, "meta_batch"),
        (fmrl.run(online, tasks), tasks, "distance to the vectors of FLIOnline()"),
    ):
        certificate = certify(history, played)
        assert OWN[name] not in names(certificate) and certificate.applicable
        assert any(reason in why for _, why in certificate.refused)
        assert all(certificate.slack(b)[0] >= 0 for b in certificate.bounds)


def test_any_way_to_move_phi():
    """The theorems of learned steps do not ask for a running mean."""
    tasks = regression()
    algo = fmrl.FMRL(meta=fmrl.LastUpdate(), similarity=fmrl.PerCoordinate(0.3))
    assert names(certify(fmrl.run(algo, tasks), tasks)) == [OBSERVED, METRIC]


@pytest.mark.parametrize("name", OWN)
def test_one_of_several_orders(name):
    tasks, rule = regression(), RULES[name](0.3, 1.0, 1.0)
    algo = fmrl.FMRL(similarity=replace(rule, sigma=1e3) if name == "ewoo" else rule)
    orders = np.array([np.arange(12)[::-1], np.arange(12)])
    together = certify(fmrl.run(algo, tasks, orders=orders), tasks, order=1)
    alone = certify(fmrl.run(algo, tasks), tasks)
    assert together.theorem.name == OWN[name]
    assert [b.total for b in together.bounds] == pytest.approx([b.total for b in alone.bounds])


def test_infinite_distances():
    """An optimum where phi has no mass has no say in the step, and no theorem speaks of it."""
    rng = np.random.default_rng(0)
    tasks = [fmrl.Task(rng.uniform(size=(5, 3)), loss=fmrl.Linear()) for _ in range(8)]
    algo = fmrl.FMRL(fmrl.Simplex(), similarity=fmrl.Isotropic(1.0))
    certificate = certify(fmrl.run(algo, tasks), tasks)
    assert not certificate.applicable and "no mass" in certificate.reason


def test_a_known_metric_is_certified_task_by_task():
    tasks = regression()
    algo = fmrl.FMRL(similarity=fmrl.KnownStep([0.1, 0.2, 0.3]))
    certificate = certify(fmrl.run(algo, tasks), tasks)
    assert [b.name for b in certificate.bounds] == ["per-task sum, observed"]
    assert certificate.slack(certificate.bounds[0])[0] > 0


@dataclass(frozen=True)
class Blind(fmrl.SimilarityRule):
    absolute = True

    def init(self, domain, phi):
        return fmrl.Diagonal(np.full(phi.shape, 0.1)), ()

    def update(self, domain, phi, guess, memory, end):
        return guess, ()


def test_a_metric_without_gradients():
    """A metric of which nothing was observed: the mean of its steps says nothing, so no bound is
    printed."""
    tasks = regression()
    certificate = certify(fmrl.run(fmrl.FMRL(similarity=Blind()), tasks), tasks)
    assert not certificate.applicable and "the step is a metric" in certificate.reason
    assert certificate.json() and certificate.figure()


@pytest.mark.parametrize(
    "rule, tar, summed, theorem",
    [
        (fmrl.AverageDeviation(), 1.131, 1.93, 8.14),
        (fmrl.Isotropic(0.1), 1.134, 1.92, 2.63),
        (fmrl.PerCoordinate(0.1), 1.203, 1.68, 2.36),
        (fmrl.FullMatrix(0.1), 1.206, 1.71, 2.38),
        (fmrl.EWOO(0.3), 1.212, 1.89, 5.33),
    ],
)
def test_benign_ratios(rule, tar, summed, theorem):
    """What docs/theory.md reports of the benign stream."""
    tasks = benign()
    certificate = certify(fmrl.run(fmrl.FMRL(similarity=rule), tasks), tasks)
    ratios = [certificate.slack(b)[1] for b in (certificate.tightest, certificate.theorem)]
    assert certificate.interval[1] == pytest.approx(tar, abs=1e-3)
    assert ratios == [pytest.approx(summed, abs=0.01), pytest.approx(theorem, abs=0.01)]


@pytest.mark.parametrize("rule", [fmrl.KnownStep(0.02), fmrl.KnownStep(0.1), fmrl.Isotropic(0.1)])
def test_steep_losses_without_a_domain_are_bounded_by_what_was_met(rule):
    """Squared losses have no Lipschitz constant there: no bound may rest on one."""
    rng = np.random.default_rng(0)
    rows = [(3 * rng.normal(size=(10, 3)), 20 * rng.normal(size=10)) for _ in range(20)]
    tasks = [fmrl.Task(X, y, loss=fmrl.Squared()) for X, y in rows]
    history = fmrl.run(fmrl.FMRL(fmrl.Euclidean(), fmrl.OGD(), similarity=rule), tasks)
    assert np.all(history.regret <= history.bound)
    for given in ({"tasks": tasks}, {}):
        certificate = certify(history, **given)
        assert all(certificate.slack(bound)[0] >= 0 for bound in certificate.bounds)
        assert certificate.applicable


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6, 1e9])
def test_sums_that_rounding_made_singular(size):
    """Rows of 1e6 beside ζ = 1e-3: `certify` raised LinAlgError. The bound is above that of every
    task, as it must be."""
    for seed in range(20):
        X = size * np.random.default_rng(seed).normal(size=(2, 1, 5))
        tasks = [fmrl.Task(x, [1], loss=fmrl.Hinge()) for x in X]
        rule = fmrl.FullMatrix(1.0, 1e-3)
        certificate = certify(fmrl.run(fmrl.FMRL(similarity=rule), tasks), tasks)
        summed, learned = (by_name(certificate)[name].total for name in (OBSERVED, METRIC))
        assert certificate.interval[1] <= summed <= learned * (1 + 1e-12)


def test_what_rounding_took_from_a_sum_is_given_back():
    """1e12·(1, 1)ᵀ(1, 1) + 1e-6·I is not what float64 holds: the least eigenvalue is gone, and with
    it 2·√1e-6 of the best metric."""
    given = {"epsilon": 1.0, "zeta": 1e-3, "tasks": 1}
    bound = bounds.learned_metric(np.eye(2), np.full((2, 2), 1e12) + 1e-6 * np.eye(2), 0.0, **given)
    assert bound.terms["best metric"] >= 2 * (math.sqrt(2e12) + 1e-3) - 4e-3


@pytest.mark.parametrize("ridge", [1e-300, 1e-12, 1.0])
def test_side_information_that_rounding_made_singular(ridge):
    """Equal side information of every task, and a ridge that is lost beside it."""
    theta, side = np.array([[0.1], [0.2], [0.4]]), np.ones((3, 2))
    bound = bounds.conditional(theta, side, ridge)
    fitted = np.sum(theta**2) - np.sum(theta) ** 2 / 3
    assert bound.terms["comparator"] >= fitted / 2 * (1 - 1e-12)
    if ridge < 1:
        assert bound.terms["comparator"] == pytest.approx(fitted / 2, rel=1e-6)
    assert math.isfinite(bound.total)


def test_numbers_that_are_none_are_refused():
    given = {"epsilon": 1.0, "zeta": 1.0, "tasks": 1}
    for wrong in (np.nan, np.inf, "x", None):
        with pytest.raises(fmrl.FMRLError):
            bounds.learned_metric([[wrong]], [[1.0]], 0.0, **given)
    with pytest.raises(fmrl.FMRLError, match="numbers are needed"):
        bounds.lower("wide", 1.0, 4)
    with pytest.raises(fmrl.FMRLError, match="side information must be finite"):
        bounds.conditional([[1.0]], [[np.inf]], 1.0)


@pytest.mark.parametrize("rule", [*RULES, "step", "known"])
def test_a_step_guesses_no_distance_to_violate(rule):
    """`history.violations` was true in 5 of 6 tasks where the certificate said None."""
    own = {"step": lambda *_: fmrl.KnownStep(1e-3), "known": lambda *_: fmrl.Known(1e-3)}
    make = (RULES | own)[rule]
    within = fmrl.FTRL() if rule == "covariance" else fmrl.OMD()
    rule, tasks = make(1e-3, 1.0, 1.0), regression()
    history = fmrl.run(fmrl.FMRL(within=within, similarity=rule), tasks)
    assert history.violations.shape == (12,)
    assert history.violations.any() == isinstance(rule, fmrl.Known)
    assert (certify(history).violations is None) == rule.absolute
    assert certify(history).violations in (None, tuple(np.flatnonzero(history.violations)))
