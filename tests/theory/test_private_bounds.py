"""What privacy costs, on more than a thousand random instances: the price of the noise is what the
theorem says, and certificates say it.
"""

import dataclasses
import math

import numpy as np
import pytest

import fmrl
from fmrl.core.arrays import stacked
from fmrl.core.rules.meta import End
from fmrl.theory.bounds import noise_price, noisy, private, with_guess

pytest.importorskip("dp_accounting", reason="not installed: pip install 'fmrl[private]'")
RUNS, STACK, STACKS = 8, 25, 42  # runs of an instance, instances of a size, sizes


def instances(rng):
    """Update vectors [STACK, T, d] in a ball around 0, and its radius."""
    T, d, radius = int(rng.integers(2, 17)), int(rng.integers(1, 6)), float(rng.uniform(0.2, 3))
    way = rng.normal(size=(STACK, T, d)) + 2 * rng.normal(size=(STACK, 1, d))
    way /= np.linalg.norm(way, axis=-1, keepdims=True)
    return way * radius * rng.uniform(size=(STACK, T, 1)), radius


def spent(tree, domain, theta, seed=0):
    """Σ B(θ_t‖phi_t) [instances, RUNS], as `Tree` moves phi, and the deviation of a node."""
    count, T, d = theta.shape
    theta = np.repeat(theta, RUNS, axis=0)  # [instances·RUNS, T, d]
    phi, total = np.zeros((len(theta), d)), np.zeros(len(theta))
    trees = (dataclasses.replace(tree, seed=10**6 * seed + run) for run in range(len(phi)))
    memory = stacked([tree.init(domain, phi[0])[1] for tree in trees])
    tree = dataclasses.replace(tree, seed=0)  # the same noise for other vectors is meant here
    for t in range(T):
        total += domain.divergence(theta[:, t], phi)
        phi, memory = tree.update(domain, phi, memory, End(theta[:, t], None, total))
    return total.reshape(count, RUNS), float(memory[4][0])


def nodes_of(T):
    """Which nodes the mean after t tasks is made of, over t: a matrix [T − 1, nodes]."""
    nodes = [(level, end) for level in range(6) for end in range(1, T) if end % 2**level == 0]
    use = np.zeros((T - 1, len(nodes)))
    for t in range(1, T):
        end = t
        while end:
            low = end & -end
            use[t - 1, nodes.index((low.bit_length() - 1, end))] = 1 / t
            end -= low
    return use


def deviation(theta, scale):
    """The standard deviation of Σ B(θ_t‖phi_t) without a border."""
    T, d = theta.shape
    row = nodes_of(T)
    moves = theta[1:] - (np.cumsum(theta, axis=0) / np.arange(1, T + 1)[:, None])[:-1]
    square = d * scale**4 * np.sum((row.T @ row) ** 2) / 2
    return math.sqrt(square + scale**2 * np.sum((row.T @ moves) ** 2))


def test_the_price_of_the_noise_on_a_thousand_instances():
    """Without a border the expected price is the formula itself, which the mean over instances
    meets. In a ball it is a bound, for the mean of every instance; and the bound that may fail once
    in 20 runs fails no more often than that.
    """
    rng, ratios, tight, failed, runs = np.random.default_rng(0), [], [], 0, 0
    for number in range(STACKS):
        thetas, radius = instances(rng)
        epsilon, ball = (3.0, 30.0, 300.0)[number % 3], fmrl.Ball(radius)
        tree = fmrl.Tree(epsilon, 1e-5, thetas.shape[1], radius=radius)
        (free, scale), (inside, same) = (
            spent(tree, domain, thetas, number) for domain in (fmrl.Euclidean(), ball)
        )
        assert same == pytest.approx(scale)
        most = ball.diameter(thetas.shape[2]) ** 2
        for theta, total, within in zip(thetas, free, inside, strict=True):
            given = {"scale": scale, "first": float(np.sum(theta[0] ** 2)) / 2}
            bound = private(theta, **given)
            if epsilon == 3.0:  # where there is more noise than movement
                without = bound.total - bound.terms["privacy"]
                ratios.append((total.mean() - without) / bound.terms["privacy"])
            error = deviation(theta, scale) / math.sqrt(RUNS)
            assert abs(total.mean() - bound.total) < 6 * error
            assert within.mean() <= private(theta, **given, most=most).total + 6 * error
            sure = private(theta, **given, most=most, failure=0.05).total
            failed += int(np.sum(within > sure))
            failed += int(np.sum(total > private(theta, **given, failure=0.05).total))
            runs += 2 * RUNS
            tight.append(sure / within.mean())
    assert len(tight) >= 1000 and failed <= 0.05 * runs and np.median(tight) < 6
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.08)


def answering(tree, optima, kind, seed):
    """A run in a ball whose update vectors depend on phi, and so on its noise: the vectors, Σ
    B(θ*_t‖phi_t), Σ B(θ_t‖phi_t), and the deviation of a node.

    "near": between phi and the optimum, as after a few inner steps; "against": on the other side of
    the exact mean than phi, the worst that vectors of this length can do.
    """
    domain, (T, d) = fmrl.Ball(1.0), optima.shape
    tree, phi, sent = dataclasses.replace(tree, seed=seed), np.zeros(d), []
    memory, total = tree.init(domain, phi)[1], np.zeros(2)
    for t in range(T):
        mean = np.mean(sent, axis=0) if sent else phi
        theta = 0.6 * optima[t] + 0.4 * phi
        if kind == "against":
            way = mean - phi
            theta = domain.project(mean + 2 * way / max(np.linalg.norm(way), 1e-9))
        total += [domain.divergence(optima[t], phi), domain.divergence(theta, phi)]
        phi, memory = tree.update(domain, phi, memory, End(theta, None, 1.0))
        sent.append(theta)
    return np.array(sent), total, float(memory[4])


def test_the_price_where_vectors_depend_on_the_noise_on_a_thousand_instances():
    """Bounds that may fail once in 20 runs. The one for vectors that do not depend on the noise
    fails more often than that against vectors that do.
    """
    rng, failed, wrong, tight, worst = np.random.default_rng(1), np.zeros(2), 0, [], []
    for seed in range(1100):
        T, d, kind = (
            int(rng.integers(2, 17)),
            int(rng.integers(1, 6)),
            ("near", "against")[seed % 2],
        )
        tree = fmrl.Tree((30.0, 300.0, 3000.0)[seed % 3], 1e-5, 16, radius=1.0)
        way = rng.normal(size=(T, d)) + 2 * rng.normal(size=d)
        optima = way / np.linalg.norm(way, axis=1, keepdims=True) * rng.uniform(size=(T, 1))
        sent, total, scale = answering(tree, optima, kind, seed)
        first = float(np.sum(sent[0] ** 2)) / 2
        given = {"scale": scale, "first": first, "failure": 0.05, "most": 2.0}
        bounds = [private(sent, optimum=o, **given).total for o in (optima, sent)]
        failed += total > bounds
        wrong += kind == "against" and total[1] > private(sent, **given).total
        tight.append(bounds[0] / total[0])
        worst += [bounds[1] / total[1]] if kind == "against" else []
    assert len(tight) >= 1000 and (failed <= 0.05 * len(tight)).all() and np.median(tight) < 8
    assert np.median(worst) < 2 and np.min(worst) < 1.2  # near what can happen
    assert wrong > 0.05 * len(tight)


def test_the_price_of_vectors_that_depend_on_the_noise_by_hand():
    """T = 2, d = 1, s = 0.1: q = 0.01·(1 + 2√x + 2x), one move of 1: q/2 + √q; and the optima lie
    0.3 from the vectors: A + 2√(A·E) + E with E = 0.045."""
    x = math.log(2 / 0.1)
    q = 0.01 * (1 + 2 * math.sqrt(x) + 2 * x)
    price = noise_price(2, 1, 0.1, failure=0.1, moves=[[1.0]], adaptive=True)
    assert price == pytest.approx(q / 2 + math.sqrt(q))
    found = private([[0.0], [1.0]], 0.1, first=0.0, failure=0.1, optimum=[[0.0], [1.3]])
    A, E = 0.5 + price, 0.045
    assert found.total == pytest.approx((math.sqrt(A) + math.sqrt(E)) ** 2)
    assert found.terms["privacy"] == pytest.approx(
        found.total - (math.sqrt(0.5) + math.sqrt(E)) ** 2
    )
    with pytest.raises(fmrl.FMRLError, match="depend on the noise"):
        private([[0.0], [1.0]], 0.1, first=0.0, optimum=[[0.0], [1.3]])


def test_without_moves_the_price_is_exact():
    """Tasks alike, so only noise is left: within 2 %, where 1.1 times the noise is 21 %."""
    tree, theta = fmrl.Tree(3.0, 1e-5, 24, radius=1.0), np.zeros((20, 24, 40))
    found = spent(tree, fmrl.Euclidean(), theta)[0]
    price = noise_price(24, 40, 2.0 * tree.noise)
    assert np.mean(found) == pytest.approx(price, rel=0.02)


def test_the_price_does_not_grow_with_the_number_of_tasks():
    prices = [noise_price(T, 3, 0.5) for T in (2, 10, 100, 10_000, 1_000_000)]
    assert prices == sorted(prices) and prices[-1] < 1.0423 * 3 * 0.25
    assert prices[-1] - prices[-2] < 2e-3 * prices[-1]
    assert noise_price(1, 3, 0.5) == 0
    assert noise_price(100, 3, 5.0, most=0.5) < 99 * 0.5
    rng = np.random.default_rng(0)
    moves = rng.normal(size=(9, 3))
    a, b = (noise_price(10, 3, 0.5, failure=p, moves=moves) for p in (0.1, 1e-3))
    assert noise_price(10, 3, 0.5) < a < b


def test_the_sums_of_the_nodes_against_the_matrix_of_the_tree():
    """c and ‖a‖ from a matrix with a row for every t and a column for every node."""
    rng = np.random.default_rng(2)
    for T in (2, 3, 8, 13, 32, 45):
        moves, x, scale = rng.normal(size=(T - 1, 2)), math.log(2 / 0.1), 0.3
        row = nodes_of(T)
        c, a = np.sum(row**2), np.linalg.norm(row.T @ moves)
        expected = scale**2 * c / 2 * (2 + 2 * math.sqrt(2 * x) + 2 * x)
        expected += scale * a * math.sqrt(2 * x)
        assert noise_price(T, 2, scale, failure=0.1, moves=moves) == pytest.approx(expected)


def four_tasks(epsilon, radius):
    """The private bound on TAR of four tasks with optima at 0.1, −0.2, 0.3 and 0.2, clipped at
    ``radius`` in a ball of radius 1, and the noise. The third has four rounds: it weighs 2.
    """
    rows = ((0.1, 1), (-0.2, 1), (0.3, 4), (0.2, 1))
    tasks = [fmrl.Task([[1.0]] * m, [y] * m, loss=fmrl.Squared()) for y, m in rows]
    tree = fmrl.Tree(epsilon, 1e-3, 4, radius=radius)
    algo = fmrl.FMRL(fmrl.Ball(1.0), similarity=fmrl.Known(0.5), meta=tree, lipschitz=1.0)
    (found,) = (b for b in fmrl.certify(fmrl.run(algo, tasks)).bounds if "private" in b.name)
    return found, 2 * radius * tree.noise


def test_the_price_of_four_tasks_by_hand():
    """phi moves by −0.3, 0.35 and 2/15. With this noise it is best to give one task up to the
    largest B there is, M = 2. The second mean uses the node of tasks 1 and 2, the third that node
    and the one of task 3.
    """
    found, s = four_tasks(9.0, 0.4)
    x = math.log(200)  # fails once in 100 runs
    q, line = s**2 * (1 + 2 * math.sqrt(x) + 2 * x), s * math.sqrt(2 * x)
    none = line * math.sqrt(0.3**2 + (0.35 / 2 + 2 / 45) ** 2 + (2 / 45) ** 2)
    none += q * (1 + 1 / 4 + 2 / 9) / 2
    one = 2 + q * (1 / 4 + 2 / 9) / 2 + line * math.hypot(0.35 / 2 + 2 / 45, 2 / 45)
    two = 4 + q * (2 / 9) / 2 + line * math.hypot(2 / 45, 2 / 45)
    assert one < 0.95 * min(none, two)
    assert found.terms["privacy"] == pytest.approx(2 * one / (0.5 * 4), rel=1e-9)


def test_the_price_of_four_clipped_tasks_by_hand():
    """0.3 is clipped to 0.25, so phi moves by −0.3, 0.3 and 0.15; three values of k share the
    failure, and one task is given up again."""
    found, s = four_tasks(7.0, 0.25)
    x = math.log(600)
    q, c, slow = s**2 * (1 + 2 * math.sqrt(x) + 2 * x), 1 / 4 + 2 / 9, 1 / 2 + 2 / 3
    far = min(c * (0.3**2 + 0.15**2), slow * (0.3**2 / 2 + 0.15**2 / 3))
    price = 2 + q * c / 2 + math.sqrt(q * far)
    comparator = (0.0125**2 + 0.2875**2 + 0.1625**2 + 0.1125**2) / 2
    plain = 0.1**2 / 2 + comparator + (0.3**2 / 2 + 0.3**2 / 3 + 0.15**2 / 4) / 2
    apart = math.sqrt(0.05**2 / 2)
    with_noise, without = ((math.sqrt(A) + apart) ** 2 for A in (plain + price, plain))
    assert found.terms["privacy"] == pytest.approx(with_noise - without, rel=1e-6)


@pytest.mark.parametrize(("moves", "steady"), [((0.3, 0.1, 0.6), False), ((0.3, 0.6, 0.1), True)])
def test_two_ways_to_sum_moves_that_depend_on_the_noise(moves, steady):
    """By c·Σ‖move‖² or by c'·Σ‖move‖²/t, whichever is less; k = 1 is best."""
    x, m = math.log(60), [a**2 for a in moves]
    q = 0.25 * (1 + 2 * math.sqrt(x) + 2 * x)
    ways = (1 / 4 + 2 / 9) * (m[1] + m[2]), (1 / 2 + 2 / 3) * (m[1] / 2 + m[2] / 3)
    assert (ways[0] < ways[1]) == steady
    given = {"most": 1.3, "failure": 0.1, "moves": moves, "adaptive": True}
    expected = 1.3 + q * (1 / 4 + 2 / 9) / 2 + math.sqrt(q * min(ways))
    assert noise_price(4, 1, 0.5, **given) == pytest.approx(expected, rel=1e-12)


def tasks_of(rng, count, rounds=5, dim=3):
    truth = rng.normal(size=dim) / 3
    made = []
    for _ in range(count):
        X = rng.normal(size=(rounds, dim)) / 2
        own = truth + rng.normal(size=dim) / 6
        made.append(fmrl.Task(X, X @ own, loss=fmrl.Squared()))
    return made


def test_tar_of_private_runs_is_below_its_bound_and_the_certificate_says_it():
    rng = np.random.default_rng(3)
    for number in range(30):
        tasks = tasks_of(rng, 25)
        tree = fmrl.Tree(float(rng.choice([2.0, 20.0])), 1e-5, 30)
        algo = fmrl.FMRL(similarity=fmrl.Known(0.3), meta=tree)
        trees = [dataclasses.replace(tree, seed=10 * number + run) for run in range(6)]
        runs = [fmrl.run(dataclasses.replace(algo, meta=t), tasks) for t in trees]
        one, scale = runs[0], float(runs[0].state.meta[4])
        sigma = one.lipschitz * np.sqrt(one.rounds)
        summed = private(
            one.optimum, scale, first=float(one.divergence[0]), sigma=sigma,
            most=algo.domain.diameter(3) ** 2,
        )  # fmt: skip
        found = with_guess(summed, sigma, 0.3)
        assert np.mean([r.tar for r in runs]) <= found.total
        sums = [(sigma * r.divergence).sum() for r in runs]
        assert np.mean(sums) <= summed.total
    one = fmrl.run(algo, tasks)
    certificate = fmrl.certify(one, tasks)
    names = [b.name for b in certificate.bounds]
    assert "known similarity, private mean" in names and one.tar <= certificate.theorem.total
    said = certificate.reading
    for words in (
        f"({tree.epsilon:g}, 1e-05)-differential privacy", "after 25 of 30 tasks", "played once",
        "sees every phi",
        f"Its price is at most {found.terms['privacy']:.4g} in the bound on TAR", "are not private",
    ):  # fmt: skip
        assert words in said, said
    assert fmrl.Certificate.from_json(certificate.json()) == certificate
    assert certificate.privacy and "a seed was given" not in said


@pytest.mark.parametrize("update", [fmrl.FLIOnline(), fmrl.FLIBatch()], ids=repr)
def test_the_certificate_of_a_private_fli_run(update):
    rng = np.random.default_rng(6)
    for number in range(10):
        tasks = tasks_of(rng, 25)
        tree = fmrl.Tree((2.0, 200.0)[number % 2], 1e-5, 25, radius=0.7, seed=number)
        algo = fmrl.FMRL(update=update, similarity=fmrl.Known(0.3), meta=tree)
        history = fmrl.run(algo, tasks)
        certificate = fmrl.certify(history, tasks)
        (bound,) = (b for b in certificate.bounds if b.name == "known similarity, private mean")
        assert history.tar <= bound.total
        sums = (history.lipschitz * np.sqrt(history.rounds) * history.divergence).sum()
        guess = bound.terms["guess"] + bound.terms.get("solver gap", 0.0)
        assert sums <= (bound.total - guess) * 0.3 * len(tasks) * (1 + 1e-9)
        price = f"Its price is at most {bound.terms['privacy']:.4g} in the bound on TAR, but for"
        for words in (price, "one run in 100", "no theorem compares", "-differential privacy"):
            assert words in certificate.reading
    assert "vectors were kept" in fmrl.certify(fmrl.run(algo, tasks, keep="scalars")).reading


def test_tar_itself_can_rise_by_more_than_the_price():
    """One hinge loss a task, and phi where it is 0: a noisy phi costs E max(0, −N), which is of the
    first order in the noise; the price is of the second. So certificates speak of the bound alone.
    """
    tasks = [fmrl.Task([[1.0]], [1.0], loss=fmrl.Hinge()) for _ in range(2)]
    tree = fmrl.Tree(2000.0, 1e-5, 2, radius=0.1, runs=400, seed=0)
    plain = fmrl.FMRL(fmrl.Ball(2.0), similarity=fmrl.Known(0.5))
    algo = dataclasses.replace(plain, meta=tree)
    runs = fmrl.run(algo, tasks, [0.9], orders=[range(2)] * 400)
    more = np.mean(runs.tar) - fmrl.run(plain, tasks, [0.9]).tar
    scale = float(runs.state.meta[4][0])
    price = noise_price(2, 1, scale) / (0.5 * 2)
    assert 0 < price < 0.5 * more
    assert more == pytest.approx(scale / math.sqrt(2 * math.pi) / 2, rel=0.2)
    assert "may have been clipped" in fmrl.certify(runs, order=0).privacy[1]


def test_certificates_where_no_theorem_speaks_of_the_price():
    tasks = tasks_of(np.random.default_rng(4), 8)
    tree = fmrl.Tree(2.0, 1e-5, 8, runs=2, seed=1)
    algo = fmrl.FMRL(similarity=fmrl.Known(0.3), meta=tree)
    for changed, options, words in (
        ({"similarity": fmrl.KnownStep(0.3)}, {}, "it needs Known"),
        ({}, {"meta_batch": 4}, "task after task"),
        ({}, {"keep": "totals"}, "task after task"),
        ({}, {}, "shared by 2 runs"),
        ({}, {}, "a seed was given"),
    ):
        history = fmrl.run(dataclasses.replace(algo, **changed), tasks, **options)
        assert words in fmrl.certify(history).reading
    both = fmrl.run(algo, tasks, orders=[range(8), range(7, -1, -1)])
    assert "Its price" in fmrl.certify(both, order=1).reading
    tight = dataclasses.replace(tree, radius=0.05)
    clipped = fmrl.certify(fmrl.run(dataclasses.replace(algo, meta=tight), tasks), tasks)
    assert "update vectors that this run sent" in clipped.reading
    assert not fmrl.certify(fmrl.run(fmrl.FMRL(), tasks)).privacy

    class Louder(fmrl.Tree):
        """A subclass may change anything."""

    louder = dataclasses.replace(algo, meta=Louder(2.0, 1e-5, 8))
    assert "Nothing is promised" in fmrl.certify(fmrl.run(louder, tasks)).reading
    rows = fmrl.NoisyGradients(fmrl.OMD(), 2.0, 1e-5, 1.0)
    own = fmrl.FMRL(within=rows, update=fmrl.FLIOnline(), lipschitz=1.0)
    said = fmrl.certify(fmrl.run(own, tasks)).reading
    assert "No guarantee on regret" in said and "in each of its rows" in said


def test_regret_with_noisy_gradients_is_below_its_bound():
    """Means over 20 draws of the noise, on 60 tasks that no gradient is clipped in."""
    rng = np.random.default_rng(5)
    for _ in range(60):
        (task,) = tasks_of(rng, 1, rounds=int(rng.integers(2, 9)))
        domain, eta = fmrl.Ball(1.0), float(rng.uniform(0.01, 0.3))
        G = float(task.open().lipschitz(domain)) * math.sqrt(task.rounds)  # of any single round
        learner = fmrl.NoisyGradients(fmrl.OMD(), 20.0, 1e-3, clip=G)
        best = task.open().hindsight(domain)
        phi = np.zeros(3)
        suffered = [fmrl.play(learner, task, domain, phi, eta).losses.sum() for _ in range(20)]
        numbers = float(domain.divergence(best.theta, phi)), eta, G, task.rounds
        bound = noisy(*numbers, dim=3, scale=2 * G * learner.noise)
        assert np.mean(suffered) - best.value <= bound.total
