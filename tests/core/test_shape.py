"""Metrics and the rules that learn them: projections, plays, updates, and every way to run them."""

import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from instances import every_way, loop, make_loss, resumes, same

import fmrl
from fmrl.core import projection
from fmrl.core.matrices import geometric_mean
from fmrl.core.metric import Diagonal, Full, Metric, Spiked, descend
from fmrl.core.solve import MetricLeaders

RULES = [
    fmrl.Isotropic(0.3),
    fmrl.PerCoordinate(0.3, 0.5, 0.4),
    fmrl.FullMatrix(0.3, 0.5),
    fmrl.LowRank(2, 0.3),
    fmrl.Covariance(),
    fmrl.EWOO(0.1, 1.0),
    fmrl.KnownStep(0.1),
    fmrl.KnownStep((0.1, 0.2, 0.3, 0.4)),
    fmrl.Observed(fmrl.Doubling(0.1, 1.2), 0.5),
    fmrl.Observed(fmrl.AverageDeviation(), 0.5),
    fmrl.MetaSGD(0.1, 0.05),
]
DOMAINS = [fmrl.Euclidean(), fmrl.Ball(0.8), fmrl.Ball(0.5, 0.2), fmrl.Box(-0.3, 0.6)]
WITHIN = [fmrl.OMD(), fmrl.OGD(), fmrl.FTRL()]


def compose(rule, within=None, domain=None, update=None):
    """A composition with the rule; Covariance is played by FTRL alone."""
    within = fmrl.FTRL() if isinstance(rule, fmrl.Covariance) else within or fmrl.OGD()
    domain, update = domain or fmrl.Ball(0.9), update or fmrl.FAL()
    return fmrl.FMRL(domain, within, update, similarity=rule, lipschitz=2.0)


def random_metrics(rng, d):
    A = rng.normal(size=(d, d))
    yield Full(A @ A.T + 10 ** rng.uniform(-3, 0) * np.eye(d))
    yield Diagonal(rng.uniform(0.1, 2, d))
    yield Spiked(rng.uniform(0.1, 2, d), rng.normal(size=(d, 2)))


def make_tasks(count=7, d=4, seed=0, loss="squared", ragged=True):
    rng, tasks = np.random.default_rng(seed), []
    for t in range(count):
        m = 2 + (t % 4 if ragged else 3)
        X = rng.normal(size=(m, d)) / 2
        z = X @ (0.3 + [1.0, 0.1, 0.0, 0.3] * rng.normal(size=d)) + 0.1 * rng.normal(size=m)
        if loss == "squared":
            tasks.append(fmrl.Task(X, z, loss=fmrl.Squared()))
        elif loss == "logistic":
            tasks.append(fmrl.Task(X, z > 0, loss=fmrl.Logistic()))
        else:
            tasks.append(fmrl.Task(X[:, :2], (z > 0) * 1, loss=fmrl.Softmax(2)))
    return tasks


def test_metrics_are_what_their_matrix_is():
    rng = np.random.default_rng(0)
    for _ in range(50):
        d = int(rng.integers(2, 6))
        for metric in random_metrics(rng, d):
            H, v, w = metric.dense(), rng.normal(size=(3, d)), rng.uniform(0, 3, 3)
            np.testing.assert_allclose(metric.times(v), v @ H, rtol=1e-9)
            np.testing.assert_allclose(metric.solve(v), np.linalg.solve(H, v.T).T, rtol=1e-7)
            shrunk = [np.linalg.solve(np.eye(d) + s * H, x) for s, x in zip(w, v, strict=True)]
            at, back = metric.path(v)
            near, fall = at(w)
            np.testing.assert_allclose(back(near), shrunk, rtol=1e-8)
            again = [np.linalg.solve(np.eye(d) + s * H, x) for s, x in zip(w, shrunk, strict=True)]
            falls = np.einsum("ij,jk,ik->i", np.array(shrunk), H, np.array(again))
            np.testing.assert_allclose(fall(), falls, rtol=1e-8)
            np.testing.assert_allclose(metric.mean, np.trace(H) / d)
            inverse = np.einsum("ij,jk,ik->i", v, np.linalg.inv(H), v) / 2
            np.testing.assert_allclose(metric.distance(v), inverse, rtol=1e-6)


@pytest.mark.parametrize("domain", DOMAINS[1:], ids=repr)
def test_projections_are_exact(domain):
    """At the nearest point θ no point x of the domain has ⟨H⁻¹(θ − u), x − θ⟩ < 0."""
    rng, outside = np.random.default_rng(1), 0
    for _ in range(150):
        d = int(rng.integers(2, 9))
        for metric in random_metrics(rng, d):
            u = 3 * rng.normal(size=(2, d))
            theta = metric.project(domain, u)
            outside += int((~domain.contains(u)).sum())
            slope = metric.solve(theta - u)
            gap = np.sum(slope * (theta - domain.lowest(slope)), axis=-1)
            assert np.all(gap <= 1e-9 * (1 + np.abs(slope).sum(-1)))
            assert np.all(domain.contains(theta, slack=1e-12))
    assert outside > 500


def test_bounds_that_hold_are_tried_before_a_barrier(monkeypatch):
    """The bounds of the round before are right at once; where trying goes in circles (about one
    in a hundred hard problems) a barrier tells them apart, and the answer is as exact.
    """
    rng, box, hard, found = np.random.default_rng(0), fmrl.Box(-0.3, 0.6), 0, []
    barrier = projection._barrier
    monkeypatch.setattr(projection, "_barrier", lambda *given: found.append(1) or barrier(*given))
    for k in range(600):
        d = int(rng.integers(2, 40))
        A = rng.normal(size=(d, d if k % 2 else 3))
        metric, u = Full(A @ A.T + 10 ** rng.uniform(-4, 0) * np.eye(d)), 10 * rng.normal(size=d)
        theta = metric.project(box, u)
        hard, slope = hard + bool(found), metric.solve(theta - u)
        assert slope @ (theta - box.lowest(slope)) <= 1e-9 * (1 + abs(slope).sum())
        found.clear()
        with monkeypatch.context() as patch:
            patch.setattr(projection, "TRIED", 1)
            again = metric.project(box, u, near=theta)
        assert not found
        np.testing.assert_allclose(again, theta, atol=1e-9)
    assert 1 <= hard <= 30


def test_a_simplex_refuses_a_metric():
    with pytest.raises(fmrl.FMRLError, match="no projection in a metric"):
        Diagonal(np.ones(3)).project(fmrl.Simplex(), np.ones(3))
    for rule in (fmrl.PerCoordinate(0.1), fmrl.FullMatrix(0.1), fmrl.LowRank(1, 0.1)):
        with pytest.raises(fmrl.FMRLError, match=rf"^{type(rule).__name__}.*geometry of its own"):
            fmrl.FMRL(fmrl.Simplex(), similarity=rule).init(np.full(3, 1 / 3))


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
@pytest.mark.parametrize("kind", ["squared", "logistic", "softmax", "one-vs-all"])
def test_leaders_in_a_metric_minimise(domain, kind):
    """FTRL's action: no point of the domain has less than F − gap, and the gap is tiny."""
    rng = np.random.default_rng(2)
    loss = make_loss(kind) if kind != "logistic" else fmrl.Logistic()
    for _ in range(8):
        f, m = 3, 5
        d = f * loss.outputs
        y = rng.normal(size=m) if kind == "squared" else rng.integers(0, 2, m)
        y = np.asarray(loss.labels, dtype=object)[y] if loss.outputs > 1 else y
        game = fmrl.Task(rng.normal(size=(m, f)), y, loss=loss).open()
        for metric in random_metrics(rng, d):
            phi = domain.project(rng.normal(size=d) / 4)
            leaders = MetricLeaders(game, domain, phi, metric)
            for i in (1, m):
                theta = leaders(i)
                gap = float(leaders.gap(i))
                assert domain.contains(theta, slack=1e-9)
                first = game.first(i)

                def total(x, first=first, phi=phi, metric=metric):
                    return first.losses(x).sum() + metric.distance(x - phi)

                assert gap <= 1e-8 * (1 + total(theta))
                for size in (1e-4, 1e-2, 1.0):
                    other = domain.project(theta + size * rng.normal(size=(50, d)))
                    assert min(map(total, other)) >= total(theta) - gap - 1e-12


def test_a_metric_of_equal_steps_is_a_number():
    for task in make_tasks(4):
        game = task.open()
        for within in WITHIN:
            for domain in DOMAINS:
                phi = domain.middle(np.zeros(4))
                plain = fmrl.play(within, game, domain, phi, np.array(0.3))
                same = np.full(4, 0.3)
                for metric in Diagonal(same), Full(np.diag(same)), Spiked(same, np.zeros((4, 1))):
                    shaped = fmrl.play(within, game, domain, phi, metric)
                    np.testing.assert_allclose(shaped.losses, plain.losses, atol=1e-8)
                    np.testing.assert_allclose(shaped.last, plain.last, atol=1e-7)


@pytest.mark.parametrize("rule", [fmrl.PerCoordinate(0.3), fmrl.LowRank(2, 0.3)], ids=repr)
@pytest.mark.parametrize("loss", [fmrl.Squared(), fmrl.Logistic(), fmrl.Softmax(2)], ids=repr)
def test_memory_is_linear_in_the_features(rule, loss):
    """FTRL in a metric for 20,000 features: a matrix of d² would be 3.2 GB."""
    rng, d = np.random.default_rng(0), 20_000
    domain = fmrl.Euclidean() if loss == fmrl.Squared() else fmrl.Ball(100.0)
    X = rng.normal(size=(2, 3, d // loss.outputs)) / d**0.5
    tasks = [fmrl.Task(x, [0, 1, 0], loss=loss) for x in X]
    algo = fmrl.FMRL(domain, fmrl.FTRL(), similarity=rule, lipschitz=1.0)
    tracemalloc.start()
    history = fmrl.run(algo, tasks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 * 8 * d
    assert np.all(np.isfinite(history.regret))


@pytest.mark.parametrize("kind", ["squared", "logistic", "softmax", "one-vs-all"])
def test_a_leader_of_few_rows_is_that_of_the_whole_space(kind):
    """In the span of the rows (diagonal, low rank) or in all directions (the same as a matrix)."""
    rng, loss = np.random.default_rng(5), make_loss(kind)
    for lead in ((), (3,)):
        X = rng.normal(size=(*lead, 4, 7))
        X[..., 2, :] = X[..., 1, :]  # rows that depend on each other
        y = [0.3, -1.0, 0.2, 2.0] if kind == "squared" else [0, 1, 1, 0]
        y = [loss.labels[label] for label in y] if loss.outputs > 1 else y
        games = [fmrl.Task(x, y, loss=loss) for x in X.reshape(-1, 4, 7)]
        game = fmrl.core.tasks.Tasks.of(games).stack() if lead else games[0].open()
        d = 7 * loss.outputs
        phi = rng.normal(size=(*lead, d))
        for metric in (*random_metrics(rng, d),):
            both = metric, Full(metric.dense())
            narrow, whole = (MetricLeaders(game, fmrl.Euclidean(), phi, m) for m in both)
            for i in range(1, 5):
                np.testing.assert_allclose(narrow(i), whole(i), rtol=1e-7, atol=1e-7)
                assert np.all(narrow.gap(i) <= 1e-9)


def test_hinge_has_no_leader_in_a_metric():
    game = fmrl.Task(np.eye(2), [0, 1], loss=fmrl.Hinge()).open()
    with pytest.raises(fmrl.FMRLError, match="smooth loss"):
        fmrl.play(fmrl.FTRL(), game, fmrl.Euclidean(), np.zeros(2), Diagonal(np.ones(2)))


def test_geometric_means_solve_their_equation():
    rng = np.random.default_rng(3)
    for _ in range(100):
        d = int(rng.integers(1, 8))
        A, B = (x @ x.T + 0.1 * np.eye(d) for x in rng.normal(size=(2, d, d)))
        H = geometric_mean(A, B)
        np.testing.assert_allclose(H @ B @ H, A, rtol=1e-8, atol=1e-8)

        def cost(H, A=A, B=B):
            return np.trace(np.linalg.solve(H, A)) + np.trace(H @ B)

        for _ in range(5):
            E = rng.normal(size=(d, d))
            assert cost(H + 1e-3 * (E @ E.T)) >= cost(H) - 1e-10


@pytest.mark.parametrize(
    ("loss", "update"),
    [("squared", fmrl.FAL()), ("logistic", fmrl.FLIOnline()), ("softmax", fmrl.FAL())],
    ids=["squared-FAL", "logistic-FLIOnline", "softmax-FAL"],
)
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("within", WITHIN, ids=repr)
def test_run_is_step_in_a_loop(rule, within, update, loss):
    """Sequentially, in windows, in orders: the same numbers."""
    algo = compose(rule, within, update=update)
    history = every_way(algo, make_tasks(loss=loss), np.zeros(4))
    if not (rule.observes or rule.records):
        with pytest.raises(AttributeError, match="does not observe"):
            _ = history.energy


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_meta_batches_see_one_task_after_another(rule):
    tasks = make_tasks(8)
    algo = compose(rule)
    history = fmrl.run(algo, tasks, meta_batch=4)
    state = algo.init(np.zeros(4))
    for first in (0, 4):
        played = [algo.play(state, task.open()) for task in tasks[first : first + 4]]
        guess, memory = state.guess, state.similarity
        for _, end in played:
            guess, memory = rule.update(algo.domain, state.phi, guess, memory, end)
        sigma = np.array([end.sigma for _, end in played])
        mean = sum(s * end.theta for s, (_, end) in zip(sigma, played, strict=True)) / sigma.sum()
        end = fmrl.core.rules.meta.End(mean, mean, sigma.sum())
        phi, meta = algo.meta.update(algo.domain, state.phi, state.meta, end)
        state = fmrl.State(state.tasks + 4, phi, guess, meta, memory)
    np.testing.assert_allclose(history.state.phi, state.phi, atol=1e-12)
    found, expected = fmrl.prior(history.state), fmrl.prior(state)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-9)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_run_resumes_bit_for_bit(rule, tmp_path):
    resumes(compose(rule), make_tasks(6), 3, tmp_path)


STATES = [*RULES, fmrl.Known(0.1), fmrl.AverageDeviation(), fmrl.KnownStep(0.2)]


def test_a_state_of_another_rule_is_refused():
    """Every pair of rules."""
    states = {rule: fmrl.run(compose(rule), make_tasks(3)).state for rule in STATES}
    for rule in STATES:
        compose(rule).check(compose(rule).init(np.zeros(4)))
        for other, state in states.items():
            if rule == other:
                compose(rule).check(state)
                continue
            with pytest.raises(fmrl.FMRLError, match="made by another"):
                fmrl.run(compose(rule), make_tasks(3), state=state)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("how", ["negative", "nan", "shorter", "longer"])
def test_a_damaged_state_is_refused(rule, how, tmp_path):
    """Whatever happens to the numbers of a guess, also on disk and in a history."""
    history = fmrl.run(compose(rule), make_tasks(3))
    kept = history.state
    arrays = kept.guess.arrays if isinstance(kept.guess, Metric) else {"": kept.guess}
    change = {
        "negative": lambda a: -a, "nan": lambda a: a * np.nan,
        "longer": lambda a: np.stack([a, a]),
        "shorter": lambda a: a[..., :-1] if a.ndim else np.ones(2),
    }  # fmt: skip
    for name, a in arrays.items():
        bad = change[how](a)
        state = kept._replace(guess=replace(kept.guess, **{name: bad}) if name else bad)
        if how == "negative" and name in ("factor", "inverse_root"):  # the same metric
            compose(rule).check(state)
            continue
        with pytest.raises(fmrl.FMRLError, match="made by another"):
            fmrl.run(compose(rule), make_tasks(3), state=state)
        history.state = state
        fmrl.save_history(history, tmp_path / "h.npz")
        with pytest.raises(fmrl.FMRLError, match="made by another"):
            fmrl.load_history(tmp_path / "h.npz")


@pytest.mark.parametrize("column", ["regret", "distance", "optimum", "losses"])
def test_a_history_with_bad_columns_is_refused(column, tmp_path):
    path = tmp_path / "h.npz"
    fmrl.save_history(fmrl.run(compose(RULES[1]), make_tasks(3)), path)
    with np.load(path) as file:
        parts = {name: file[name] for name in file.files}
    whole = parts[column]
    for bad in (whole[:-1], whole[None], whole.astype(str), None):
        parts[column] = bad
        np.savez(path, **{n: a for n, a in parts.items() if a is not None})
        if bad is None and column == "distance":
            continue  # a rule that observes nothing has none
        with pytest.raises(fmrl.FMRLError, match="damaged"):
            fmrl.load_history(path)


def test_rounding_does_not_run_away():
    """Where phi is the truth the losses of staying there are 0, and those of playing 1e-30."""
    rng = np.random.default_rng(0)
    theta = rng.normal(size=4)
    tasks = [fmrl.Task(X, X @ theta, loss=fmrl.Squared()) for X in rng.normal(size=(40, 9, 4))]
    for rule in RULES[:5]:
        history = fmrl.run(compose(rule, fmrl.FTRL(), fmrl.Euclidean()), tasks)
        assert np.all(np.isfinite(history.regret))


@pytest.mark.parametrize("rule", [*RULES[:4], fmrl.KnownStep(30.0)], ids=repr)
@pytest.mark.parametrize("within", WITHIN[:2], ids=repr)
def test_a_step_that_is_too_long_is_an_error(rule, within):
    """Without bounds a first step 100 times too long made losses of 1e60, and the rule, which
    remembers them, never moved again. Now it says so, and the fix it names works."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, 30, 4))
    tasks = [fmrl.Task(X, X @ rng.normal(size=4), loss=fmrl.Squared()) for X in rows]
    if not isinstance(rule, fmrl.KnownStep):
        rule = replace(rule, epsilon=30.0, zeta=1.0)
    algo = fmrl.FMRL(fmrl.Euclidean(), within, similarity=rule)
    with pytest.raises(fmrl.FMRLError, match=r"task 0: the first step 30 of .* ran away") as caught:
        fmrl.run(algo, tasks)
    times = float(re.search(r"at least (\S+) times smaller", str(caught.value))[1])
    long = 30 * (rows[0] ** 2).sum(axis=1).max()
    assert 0.5 * long <= times <= 2 * long
    change = {"step": 30 / times} if isinstance(rule, fmrl.KnownStep) else {"epsilon": 30 / times}
    better = replace(algo, similarity=replace(rule, **change))
    if within == fmrl.OGD():  # the lazy one adds up gradients, and needs shorter steps still
        assert np.all(np.isfinite(fmrl.run(better, tasks).regret))
    bounded = fmrl.run(replace(algo, domain=fmrl.Ball(5.0)), tasks)
    assert np.all(bounded.regret <= bounded.bound)


def test_memory_is_bounded_in_the_number_of_tasks():
    for rule in RULES:
        algo = compose(rule)
        sizes = []
        for count in (2, 7):
            state = fmrl.run(algo, make_tasks(count)).state
            flat = [np.asarray(a).size for a in state.similarity]
            sizes.append(sum(flat) + fmrl.prior(state).covariance.size)
        assert sizes[0] == sizes[1]


def test_aruba_written_out():
    """The released update, coordinate by coordinate: b, g and eta = √(b/g)."""
    tasks, eps, zeta, p = make_tasks(6), 0.2, 0.5, 0.4
    rule = fmrl.PerCoordinate(eps, zeta, p)
    algo = fmrl.FMRL(fmrl.Euclidean(), fmrl.OGD(), similarity=rule, lipschitz=1.0)
    history = fmrl.run(algo, tasks)
    phi, total, b, g = np.zeros(4), 0.0, np.full(4, eps**2), np.full(4, zeta**2)
    for t, task in enumerate(tasks, 1):
        eta, theta, met = np.sqrt(b / g), phi.copy(), np.zeros(4)
        for x, y in zip(task.X, task.open().target[:, 0], strict=True):
            gradient = (x @ theta - y) * x
            met += gradient**2
            theta = theta - eta * gradient
        optimum = history.optimum[t - 1]
        b += (optimum - phi) ** 2 / 2 + eps**2 / (t + 1) ** p
        g += met + zeta**2 / (t + 1) ** p
        weight = np.sqrt(len(task.X))
        phi = (total * phi + weight * optimum) / (total + weight)
        total += weight
    np.testing.assert_allclose(history.state.guess.steps, np.sqrt(b / g), rtol=1e-12)


def test_theorem_a1_holds_in_the_metric_that_was_played():
    """Every task, whatever the rule, the learner and the domain."""
    for seed in range(2):
        for rule in RULES[:5]:
            for within in WITHIN:
                for domain in DOMAINS:
                    algo = compose(rule, within, domain)
                    history = fmrl.run(algo, make_tasks(seed=seed))
                    slack = history.bound - history.regret - history.gap
                    assert slack.min() >= -1e-9 * (1 + abs(history.bound).max())


def test_what_is_bad_is_refused():
    for make in (
        lambda: fmrl.PerCoordinate(0.0),
        lambda: fmrl.Isotropic(0.1, -1.0),
        lambda: fmrl.FullMatrix(np.nan),
        lambda: fmrl.LowRank(0, 0.1),
        lambda: fmrl.LowRank(1.5, 0.1),
        lambda: fmrl.LowRank(True, 0.1),
        lambda: fmrl.KnownStep([]),
        lambda: fmrl.FMRL(similarity=fmrl.Covariance()),
        lambda: fmrl.PerCoordinate(np.ones(2)),
        lambda: fmrl.KnownStep("a"),
        lambda: fmrl.Covariance(0.0),
        lambda: fmrl.Covariance(rate=0.2),
        lambda: fmrl.EWOO(-1.0),
        lambda: fmrl.KnownStep(-1.0),
        lambda: fmrl.KnownStep((1.0, 0.0)),
        lambda: fmrl.KnownStep(((1.0, 2.0), (2.0, 1.0))),
        lambda: fmrl.FMRL(fmrl.Euclidean(), similarity=fmrl.EWOO(0.1)).init(np.zeros(2)),
        lambda: fmrl.FMRL(similarity=fmrl.KnownStep((1.0, 1.0))).init(np.zeros(3)),
    ):
        with pytest.raises(fmrl.FMRLError):
            make()


def test_numbers_of_any_kind():
    assert repr(fmrl.LowRank(np.int64(2), 0.1)) == repr(fmrl.LowRank(2, 0.1))
    task, phi = make_tasks(1)[0], np.zeros(4)
    expected = fmrl.play(fmrl.OGD(), task.open(), fmrl.Ball(1.0), phi, np.array(0.3)).losses
    for eta in (0.3, np.float64(0.3)):
        found = fmrl.play(fmrl.OGD(), task, fmrl.Ball(1.0), phi, eta)
        np.testing.assert_array_equal(found.losses, expected)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_guess_of_a_step_is_in_units_of_distance(rule):
    """D_t = eta_t·sigma_t, sigma_t = G_t·√m_t, also where the rule learns eta_t itself."""
    history = fmrl.run(compose(rule), make_tasks())
    sigma = 2.0 * np.sqrt([2, 3, 4, 5, 2, 3, 4])
    np.testing.assert_allclose(history.guess, history.eta * sigma, rtol=1e-12)


def test_a_known_step_takes_a_metric():
    found = fmrl.estimate_prior(make_tasks(9, ragged=False))
    assert fmrl.KnownStep(found.metric) == fmrl.KnownStep(found.covariance / found.noise)


def test_a_known_step_of_zero_stays():
    algo = fmrl.FMRL(fmrl.Ball(1.0), fmrl.OGD(), similarity=fmrl.KnownStep(0.0))
    task = make_tasks(1)[0]
    _, round = algo.step(algo.init(np.zeros(4)), task)
    np.testing.assert_allclose(round.losses, task.open().losses(np.zeros(4)))


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_torch_and_float32(rule):
    torch = pytest.importorskip("torch")
    algo = compose(rule)
    plain = fmrl.run(algo, make_tasks(4))

    def as_torch(task, dtype):
        y = torch.as_tensor(np.asarray(task.open().target[:, 0]), dtype=dtype)
        return fmrl.Task(torch.as_tensor(task.X, dtype=dtype), y, loss=task.loss)

    for dtype, close in ((torch.float64, 1e-8), (torch.float32, 1e-3)):
        found = fmrl.run(algo, [as_torch(task, dtype) for task in make_tasks(4)])
        assert found.regret.dtype == dtype
        np.testing.assert_allclose(found.regret.numpy(), plain.regret, atol=close)
        np.testing.assert_allclose(found.eta.numpy(), plain.eta, rtol=10 * close)


def test_descend_is_the_mirror_step():
    phi, g = np.array([0.1, 0.2]), np.array([1.0, -1.0])
    found = descend(fmrl.Ball(1.0), phi, Diagonal(np.array([0.5, 0.1])), g)
    np.testing.assert_allclose(found, phi - [0.5, -0.1])


def test_full_matrices_of_uneven_columns():
    """Columns of 1, 100 and 10,000: the matrix stays positive definite."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        scales = np.array([1.0, 100.0, 1e4])
        rows = [(rng.normal(size=(6, 3)) * scales, rng.normal(size=6)) for _ in range(40)]
        tasks = [fmrl.Task(X, y, loss=fmrl.Squared()) for X, y in rows]
        rule = fmrl.FullMatrix(1e-3, 1e6)
        algo = fmrl.FMRL(fmrl.Ball(10.0), fmrl.OGD(), similarity=rule)
        history = fmrl.run(algo, tasks)
        assert np.linalg.eigvalsh(history.state.guess.matrix).min() > 0
        assert np.all(history.regret <= history.bound)


def ends_of(count=6, d=4, seed=0, k=4):
    rng = np.random.default_rng(seed)
    End = fmrl.core.rules.meta.End
    for _ in range(count):
        theta = rng.normal(size=d)
        yield End(theta, theta, np.array(1.0), rng.uniform(0.5, 2.0, size=k))


def test_full_matrix_written_out():
    """A, B, H with H·B·H = A, and what not knowing the best H cost, by plain traces."""
    eps, zeta, p, d, phi = 0.3, 0.5, 0.7, 4, np.full(4, 0.1)
    rule, domain, rng = fmrl.FullMatrix(eps, zeta, p), fmrl.Euclidean(), np.random.default_rng(1)
    guess, memory = rule.init(domain, phi)
    A, B, cost = eps**2 * np.eye(d), zeta**2 * np.eye(d), 0.0
    for t, end in enumerate(ends_of(8), 1):
        g = rng.normal(size=(3, d))
        H, step = guess.matrix, end.theta - phi
        A = A + np.outer(step, step) / 2 + eps**2 * (t + 1) ** -p * np.eye(d)
        B = B + g.T @ g + zeta**2 * (t + 1) ** -p * np.eye(d)
        end = end._replace(seen=(g.T @ g).ravel())
        guess, memory = rule.update(domain, phi, guess, memory, end)
        new = guess.matrix
        paid = [np.trace(np.linalg.solve(M, A)) + np.trace(M @ B) for M in (H, new)]
        cost += paid[0] - paid[1]
        np.testing.assert_allclose(new @ B @ new, A, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(memory[3], cost, rtol=1e-9)
        np.testing.assert_allclose(guess.solve(new @ step), step, rtol=1e-9)


def test_low_rank_written_out():
    """The directions are the leading ones of Σ½δδᵀ, cut after every task, and H is what the
    docstring says, by dense algebra."""
    eps, zeta, p, rank, phi = 0.3, 0.5, 0.7, 2, np.full(4, 0.1)
    rule, domain = fmrl.LowRank(rank, eps, zeta, p), fmrl.Euclidean()
    guess, memory = rule.init(domain, phi)
    near, steep, S = np.full(4, eps**2), np.full(4, zeta**2), np.zeros((4, 4))
    for t, end in enumerate(ends_of(), 1):
        guess, memory = rule.update(domain, phi, guess, memory, end)
        step = end.theta - phi
        near += step**2 / 2 + eps**2 / (t + 1) ** p
        steep += end.seen + zeta**2 / (t + 1) ** p
        values, vectors = np.linalg.eigh(S + np.outer(step, step) / 2)
        S = (vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].T
        y, rest = np.sqrt(steep), np.maximum(near - np.diag(S), 1e-12 * near)
        lam, u = np.linalg.eigh(y[:, None] * S * y)
        lam, u = np.maximum(lam[-rank:], 0), u[:, -rank:]
        rho = (u**2 * (steep * rest)[:, None]).sum(0)
        spikes = (u * (np.sqrt(lam + rho) - np.sqrt(rho))) @ u.T / np.outer(y, y)
        expected = np.diag(np.sqrt(rest / steep)) + spikes
        np.testing.assert_allclose(guess.dense(), expected, rtol=1e-7, atol=1e-9)


def log_likelihood(X, y, H, noise):
    """Of rows whose parameters are N(0, noise·H)."""
    K = noise * (np.eye(len(y)) + X @ H @ X.T)
    return -(np.linalg.slogdet(K)[1] + y @ np.linalg.solve(K, y)) / 2


def test_covariance_written_out():
    """One step of expectation–maximisation after another, and the odds of the diagonal from the
    likelihood of the rows, with plain inverses."""
    rule, domain, phi = fmrl.Covariance(2.0, rate=0.8), fmrl.Euclidean(), np.full(3, 0.1)
    guess, memory = rule.init(domain, phi)
    H = played = np.diag([2.0, 4.0, 1.0])
    left, free, odds, rng = 0.0, 0.0, 0.0, np.random.default_rng(0)
    for t in range(1, 7):
        X = rng.normal(size=(5, 3))
        y = X @ (phi + rng.normal(size=3)) + rng.normal(size=5)
        C, off = X.T @ X, y - X @ phi
        S = np.linalg.inv(np.linalg.inv(played) + C)
        theta = phi + S @ X.T @ off
        squares = np.sum((y - X @ theta) ** 2)
        seen = np.concatenate([theta, C.ravel(), [squares, 5.0], np.diag(played)])
        end = fmrl.core.rules.meta.End(theta, theta, np.array(1.0), seen)
        guess, memory = rule.update(domain, phi, guess, memory, end)
        gain = (t + 1) ** -0.8
        left += gain * (squares - left)
        free += gain * (5 - np.trace(C @ S) - free)
        noise = left / free
        likely = [log_likelihood(X, off, M, noise) for M in (np.diag(np.diag(H)), H)]
        odds += likely[0] - likely[1]
        S = np.linalg.inv(np.linalg.inv(H) + C)
        step = S @ X.T @ off
        H = H + gain * (np.outer(step, step) / noise + S - H)
        share = 1 / (1 + np.exp(odds))
        played = share * H + (1 - share) * np.diag(np.diag(H))
        np.testing.assert_allclose(guess.matrix, played, rtol=1e-9)
        np.testing.assert_allclose(memory[3], H, rtol=1e-9)
        np.testing.assert_allclose(rule.noise_of(memory), noise)
    assert abs(odds) > 0.01


def test_covariance_gives_up_correlations_that_are_not_there():
    """The log-odds stay within bounds; with correlations H is played, without them its diagonal."""
    rng = np.random.default_rng(0)
    for root, sign in ((np.eye(4), 1), (np.ones((4, 1)), -1)):
        tasks = []
        for _ in range(120):
            X = rng.normal(size=(8, 4))
            y = X @ root @ rng.normal(size=root.shape[1]) + 0.1 * rng.normal(size=8)
            tasks.append(fmrl.Task(X, y, loss=fmrl.Squared()))
        state = fmrl.run(compose(fmrl.Covariance(), domain=fmrl.Euclidean()), tasks).state
        assert 5 < sign * state.similarity[4] <= 20
        H, played = state.similarity[3], state.guess.matrix
        np.testing.assert_allclose(played, H * np.eye(4) if sign > 0 else H, atol=1e-2 * H.max())


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("update", [fmrl.FAL(), fmrl.FLIOnline()], ids=repr)
def test_covariances_do_not_depend_on_units(loss, update):
    """Columns in other units: the same regret from the first task on, and H in the new units. So
    with the target in other units, after the first task, whose noise is not known yet."""
    rng, unit = np.random.default_rng(0), np.array([1e-3, 1.0, 50.0, 1e4])
    tasks = []
    for _ in range(12):
        X = rng.normal(size=(9, 4))
        y = X @ (0.5 + 0.3 * rng.normal(size=4)) + rng.normal(size=9)
        tasks.append((X, y if loss == "squared" else 1 * (y > 0)))
    kind = fmrl.Squared() if loss == "squared" else fmrl.Logistic()
    domain = fmrl.Euclidean() if loss == "squared" else fmrl.Ball(1e9)
    rule = fmrl.Covariance() if loss == "squared" else fmrl.Covariance(0.5)
    algo = fmrl.FMRL(domain, fmrl.FTRL(), update, similarity=rule, lipschitz=1.0)
    if loss == "logistic":  # the optima of a task need not exist; FLIOnline does not ask for them
        algo = replace(algo, update=fmrl.FLIOnline())
    plain = fmrl.run(algo, [fmrl.Task(X, y, loss=kind) for X, y in tasks])
    other = fmrl.run(algo, [fmrl.Task(X * unit, y, loss=kind) for X, y in tasks])
    suffered = [np.array([row.sum() for row in h.losses]) for h in (plain, other)]
    np.testing.assert_allclose(*suffered, rtol=1e-6)
    H = other.state.guess.matrix * unit[:, None] * unit
    np.testing.assert_allclose(H, plain.state.guess.matrix, rtol=1e-5, atol=1e-8)
    if loss == "squared":
        more = fmrl.run(algo, [fmrl.Task(X, 100 * y, loss=kind) for X, y in tasks])
        np.testing.assert_allclose(more.state.guess.matrix, plain.state.guess.matrix, rtol=1e-6)


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_a_leader_that_is_not_there_yet_says_how_far(domain):
    """The gap of a perturbed answer is at least what it loses, and not 0."""
    rng = np.random.default_rng(0)
    game = fmrl.Task(rng.normal(size=(6, 3)), rng.integers(0, 2, 6), loss=fmrl.Logistic()).open()
    leaders = MetricLeaders(game, domain, domain.middle(np.zeros(3)), Diagonal(np.ones(3)))
    leaders._newton(6)
    best, u = float(leaders.value(6, leaders.u)), leaders.u
    for _ in range(20):
        theta = domain.project(leaders.phi + leaders.root @ (u + 0.2 * rng.normal(size=3)))
        leaders.u = np.linalg.solve(leaders.root, theta - leaders.phi)
        assert leaders.gap(6) >= leaders.value(6, leaders.u) - best > 0


@pytest.mark.parametrize("step", [0.1, 0.0, (0.1, 0.2, 0.3, 0.4)], ids=repr)
def test_a_known_step_is_batched(step, monkeypatch):
    """It learns from nothing, so tasks need not wait for each other; the terms of its bound are
    recorded all the same.
    """
    algo, tasks = compose(fmrl.KnownStep(step)), make_tasks(30)
    assert algo.scanned and not compose(fmrl.Isotropic(0.3)).scanned
    calls, play = [], fmrl.FMRL.play
    monkeypatch.setattr(fmrl.FMRL, "play", lambda *a, **b: calls.append(1) or play(*a, **b))
    history = fmrl.run(algo, tasks)
    assert len(calls) <= 4
    monkeypatch.undo()
    same(history, loop(algo, tasks, np.zeros(4)))
    assert np.all(history.regret <= history.distance + history.energy + 1e-9)


def test_a_weighted_guess_goes_on_where_an_optimum_is_infinitely_far():
    """As its siblings do; no finite step would help such a task."""
    tasks = [fmrl.Task(c, loss=fmrl.Linear()) for c in ([[0.0, 1.0]], [[1.0, 0.0]], [[0.3, 0.2]])]
    meta, phi = fmrl.LastUpdate(), np.array([0.5, 0.5])
    for rule in (fmrl.EWOO(0.1, 1.0), fmrl.AverageDeviation(1.0), fmrl.Doubling(0.1, 1.1)):
        history = fmrl.run(fmrl.FMRL(fmrl.Simplex(), meta=meta, similarity=rule), tasks * 2, phi)
        assert np.isinf(history.divergence).any() and np.all(np.isfinite(history.guess))
        same(history, loop(history.algo, tasks * 2, phi))


def test_a_covariance_is_played_by_ftrl_itself_or_its_own_kind():
    class Mine(fmrl.FTRL):
        pass

    class FTRL(fmrl.OMD):
        pass

    ours = fmrl.run(compose(fmrl.Covariance(), fmrl.FTRL()), make_tasks(6))
    mine = fmrl.run(compose(fmrl.Covariance(), Mine()), make_tasks(6))
    np.testing.assert_array_equal(ours.regret, mine.regret)
    for other in (FTRL(), fmrl.OMD()):
        with pytest.raises(fmrl.FMRLError, match=r"use within=FTRL\(\)"):
            fmrl.FMRL(within=other, similarity=fmrl.Covariance())


def test_a_covariance_reads_the_leader_that_was_played(monkeypatch):
    """FTRL's last action is the leader of all rounds, so no task is solved a second time."""
    made, init = [], fmrl.core.solve.MetricLeaders.__init__
    monkeypatch.setattr(
        fmrl.core.solve.newton.MetricLeaders, "__init__",
        lambda self, *a: made.append(1) or init(self, *a),
    )  # fmt: skip
    algo = fmrl.FMRL(fmrl.Euclidean(), fmrl.FTRL(), similarity=fmrl.Covariance())
    fmrl.run(algo, make_tasks(6))
    assert len(made) == 6
