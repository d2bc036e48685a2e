"""Meta-updates that forget or mix, and ensembles of compositions."""

import numpy as np
import pytest
from instances import every_way, resumes

import fmrl
from fmrl.core.adahedge import Weights
from fmrl.core.ensemble import kmeans
from fmrl.core.rules.meta import End
from fmrl.theory.certificate import certify

METAS = [
    fmrl.Discounted(0.2),
    fmrl.Window(3),
    fmrl.Restart(3),
    fmrl.Mixture([fmrl.FollowLeader(), fmrl.Discounted(0.3), fmrl.Window(2)]),
    fmrl.Mixture([fmrl.FollowLeader(), fmrl.Restart(2)], share=0.1),
    fmrl.Conditional([1, 2], 0.5),
]
STILL = fmrl.FMRL(fmrl.Ball(2.0), similarity=fmrl.KnownStep(0.0))
ENSEMBLES = [
    fmrl.Hedge([fmrl.FMRL(fmrl.Ball(2.0)), STILL]),
    fmrl.Hedge([fmrl.FMRL(fmrl.Ball(2.0), similarity=fmrl.PerCoordinate(0.3)), STILL], rate=0.5),
    fmrl.Centres(2, fmrl.FMRL(fmrl.Ball(2.0), fmrl.OGD(), similarity=fmrl.AverageDeviation())),
    fmrl.Hedge([fmrl.FMRL(fmrl.Ball(2.0), meta=fmrl.Conditional([1])), STILL]),
]


def make_tasks(count=20, d=3, seed=0, centres=((0.5, 0.5, 0.5),), rows=5):
    rng, tasks = np.random.default_rng(seed), []
    for t in range(count):
        theta = np.array(centres[t % len(centres)]) + 0.1 * rng.normal(size=d)
        X = rng.normal(size=(rows + t % 2, d)) / 2
        y = X @ theta + 0.05 * rng.normal(size=len(X))
        tasks.append(fmrl.Task(X, y, loss=fmrl.Squared()))
    return tasks


def ends(count=12, d=2, seed=0, equal=False):
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(count, d)) / 4
    sigma = np.ones(count) if equal else rng.uniform(0.5, 2, count)
    return [End(t, t, s) for t, s in zip(theta, sigma, strict=True)]


def phis(meta, tasks, domain=None, phi=None):
    domain, phi = domain or fmrl.Ball(2.0), np.zeros(2) if phi is None else phi
    phi, memory = meta.init(domain, phi)
    found = [phi]
    for end in tasks:
        phi, memory = meta.update(domain, phi, memory, end)
        found.append(phi)
    return np.array(found)


def mean(tasks):
    return np.average([e.theta for e in tasks], axis=0, weights=[e.sigma for e in tasks])


def test_what_they_remember():
    """Each against its own definition, written out."""
    tasks = ends()
    found = {type(m): phis(m, tasks) for m in METAS[:3]}
    for t in range(1, len(tasks) + 1):
        np.testing.assert_allclose(found[fmrl.Window][t], mean(tasks[max(0, t - 3) : t]))
        first = 3 * ((t - 1) // 3)
        np.testing.assert_allclose(found[fmrl.Restart][t], mean(tasks[first:t]))
    phi, total = np.zeros(2), 0.0
    for t, end in enumerate(tasks):
        total += end.sigma
        phi = phi + max(0.2, end.sigma / total) * (end.theta - phi)
        np.testing.assert_allclose(found[fmrl.Discounted][t + 1], phi)
    np.testing.assert_allclose(phis(fmrl.Window(99), tasks), phis(fmrl.FollowLeader(), tasks))
    np.testing.assert_allclose(phis(fmrl.Restart(99), tasks), phis(fmrl.FollowLeader(), tasks))
    np.testing.assert_allclose(phis(fmrl.Restart(1), tasks), phis(fmrl.LastUpdate(), tasks))


def test_a_mixture_written_out():
    tasks, metas = ends(equal=True), (fmrl.FollowLeader(), fmrl.LastUpdate())
    found = phis(fmrl.Mixture(metas), tasks)
    paths = np.stack([phis(meta, tasks) for meta in metas])
    wide = (2 * 2.0) ** 2  # a ball of radius 2 is 4 across
    cost = np.zeros(2)
    for t, end in enumerate(tasks):
        w = np.exp(-cost)
        np.testing.assert_allclose(found[t], (w / w.sum()) @ paths[:, t], atol=1e-12)
        cost += np.sum((end.theta - paths[:, t]) ** 2, axis=-1) / 2 / wide
    shared = phis(fmrl.Mixture(metas, share=0.5), tasks)
    np.testing.assert_allclose(shared, paths.mean(0), atol=1e-12)  # half to the other: always even


def test_conditional_is_ridge_regression_on_what_is_known():
    """phi_t = M·s_t, M the forward ridge regression of the optima on the side information."""
    tasks, ridge = make_tasks(8), 0.5
    algo = fmrl.FMRL(fmrl.Ball(9.0), meta=fmrl.Conditional([2], ridge), similarity=fmrl.Known(1.0))
    history = fmrl.run(algo, tasks)
    sides = np.array([[1.0, task.X[0, 2]] for task in tasks])
    for t, s in enumerate(sides):
        A = ridge * np.eye(2) + sides[: t + 1].T @ sides[: t + 1]
        phi = history.optimum[:t].T @ sides[:t] @ np.linalg.solve(A, s)
        far = np.sum((history.optimum[t] - phi) ** 2) / 2
        np.testing.assert_allclose(history.divergence[t], far, rtol=1e-9)
    with pytest.raises(fmrl.FMRLError, match="3 columns"):
        fmrl.run(fmrl.FMRL(meta=fmrl.Conditional([3])), tasks)


def test_conditional_starts_where_the_run_starts():
    """phi_t − phi_1 is fitted to θ − phi_1: moving all tasks and phi_1 moves every phi."""
    tasks, shift = make_tasks(8), np.array([0.7, -0.2, 0.4])
    algo = fmrl.FMRL(fmrl.Ball(9.0), meta=fmrl.Conditional([2], 0.5), similarity=fmrl.Known(1.0))
    moved = [
        fmrl.Task(t.X, t.open().target[:, 0] + t.X @ shift, loss=fmrl.Squared()) for t in tasks
    ]
    plain, other = fmrl.run(algo, tasks, np.zeros(3)), fmrl.run(algo, moved, shift)
    np.testing.assert_allclose(other.divergence, plain.divergence, atol=1e-9)
    np.testing.assert_allclose(other.state.phi, plain.state.phi + shift, atol=1e-9)
    first = np.sum((other.optimum[0] - shift) ** 2) / 2
    assert other.divergence[0] == pytest.approx(first) and certify(other, moved).bounds
    bounds = [{b.name: b.total for b in certify(h, t).bounds}["known similarity, conditional"]
              for h, t in ((plain, tasks), (other, moved))]  # fmt: skip
    assert bounds[0] * np.mean(other.lipschitz) == pytest.approx(
        bounds[1] * np.mean(plain.lipschitz), rel=0.5
    )
    with pytest.raises(fmrl.FMRLError, match="needs the regulariser"):
        fmrl.FMRL(fmrl.Simplex(), meta=fmrl.Conditional([0])).init(np.ones(2) / 2)


def test_a_mixture_on_the_simplex_where_a_task_weighs_nothing():
    """0·∞: constant losses, while a member is infinitely far from their optimum."""
    costs = [[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 0.0]], [[1.0, 0.0]]]
    tasks = [fmrl.Task(c, loss=fmrl.Linear()) for c in costs]
    meta = fmrl.Mixture([fmrl.FollowLeader(), fmrl.LastUpdate()])
    algo = fmrl.FMRL(fmrl.Simplex(), meta=meta, similarity=fmrl.Known(1.0))
    history = fmrl.run(algo, tasks, np.array([0.5, 0.5]))
    assert np.all(fmrl.Simplex().contains(history.state.phi)) and np.isfinite(history.tar)
    assert all(np.isfinite(a).all() for a in history.state.meta[:3])
    certify(history, tasks)


@pytest.mark.parametrize("meta", METAS, ids=repr)
@pytest.mark.parametrize("update", [fmrl.FAL(), fmrl.FLIOnline()], ids=repr)
def test_run_is_step_in_a_loop(meta, update, tmp_path):
    tasks = make_tasks(9)
    algo = fmrl.FMRL(fmrl.Ball(2.0), fmrl.OGD(), update, meta, fmrl.AverageDeviation())
    every_way(algo, tasks, np.zeros(3))
    resumes(algo, tasks, 4, tmp_path)


@pytest.mark.parametrize("algo", ENSEMBLES, ids=lambda a: repr(a)[:40])
def test_ensembles_resume_and_print(algo, tmp_path):
    tasks = make_tasks(22, centres=((0.6, 0.6, 0.0), (-0.6, 0.0, 0.6)))
    every_way(algo, tasks, np.zeros(3))
    resumes(algo, tasks, 9, tmp_path)
    with pytest.raises(fmrl.FMRLError, match="task after task"):
        fmrl.run(algo, tasks, meta_batch=2)
    with pytest.raises(fmrl.FMRLError, match="made by another composition"):
        fmrl.run(algo, tasks, state=fmrl.run(fmrl.FMRL(), tasks).state)


@pytest.mark.parametrize("algo", ENSEMBLES, ids=lambda a: repr(a)[:40])
def test_orders_of_ensembles_are_separate_runs(algo):
    tasks = make_tasks(20, centres=((0.6, 0.6, 0.0), (-0.6, 0.0, 0.6)))
    rng = np.random.default_rng(0)
    orders, seen = np.array([rng.permutation(20)[:18] for _ in range(3)]), []
    found = fmrl.run(algo, tasks, orders=orders, progress=seen.append)
    assert found.regret.shape == (3, 18) and sum(seen) == 18 and found.theta.shape == (3, 18, 3)
    for k, order in enumerate(orders):
        alone = fmrl.run(algo, [tasks[i] for i in order])
        np.testing.assert_allclose(found.regret[k], alone.regret, atol=1e-10)
        np.testing.assert_allclose(found.state.phi[k], alone.state.phi, atol=1e-10)
        one, other = found.state.similarity[0][k], alone.state.similarity[0]
        np.testing.assert_allclose(one, other, atol=1e-10)
        certificates = fmrl.certify(found, order=k), fmrl.certify(alone)
        bounds = [[b.total for b in c.bounds] for c in certificates]
        np.testing.assert_allclose(*bounds, rtol=1e-9)
        assert len(bounds[0]) == (type(algo) is fmrl.Hedge)


def test_hedge_is_never_much_worse_than_the_best():
    """TAR ≤ min_k TAR_k + 2Δ/T on random streams."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        tasks = make_tasks(12, seed=seed, rows=int(rng.integers(1, 6)))
        members = [fmrl.FMRL(fmrl.Ball(2.0)), STILL]
        members += [fmrl.FMRL(fmrl.Ball(2.0), meta=fmrl.Fixed(), similarity=fmrl.Known(1.0))]
        hedge = fmrl.run(fmrl.Hedge(members), tasks)
        best = min(float(fmrl.run(member, tasks).tar) for member in members)
        gap = float(hedge.state.similarity[1])
        assert float(hedge.tar) <= best + 2 * gap / 12 + 1e-12


def test_adahedge_regret_is_at_most_twice_its_gap():
    """On random losses of any scale and sign, with and without a first share."""
    tight = 0.0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        K, T, scale = int(rng.integers(2, 6)), int(rng.integers(1, 60)), 10 ** rng.uniform(-3, 3)
        losses = scale * (rng.normal(size=(T, K)) + rng.normal(size=K) * rng.integers(0, 2))
        weights, suffered = Weights.begin(K, np.zeros(1)), 0.0
        for lost in losses:
            suffered += float(weights.shares() @ lost)
            weights = weights.after(lost)
        regret = suffered - losses.sum(0).min()
        assert regret <= 2 * float(weights.gap) + 1e-9 * scale * T
        tight = max(tight, regret / (2 * float(weights.gap) + 1e-300))
    assert tight > 0.5


def test_adahedge_remembers_a_member_whose_share_underflowed():
    weights, suffered = Weights.begin(2, np.zeros(1)), 0.0
    for lost in [np.array([0.0, 1e-3])] * 5000 + [np.array([1000.0, 0.0])]:
        suffered += float(weights.shares() @ lost)
        weights = weights.after(lost)
    assert suffered - 5.0 <= 2 * float(weights.gap)


def test_a_mixture_stays_where_every_start_is_infinitely_far():
    rule = fmrl.Mixture([fmrl.FollowLeader(), fmrl.LastUpdate()])
    corners = [End(c, c, np.array(1.0)) for c in (np.array([1.0, 0.0]), np.array([0.0, 1.0]))] * 3
    assert np.isfinite(phis(rule, corners, fmrl.Simplex(), np.array([0.5, 0.5]))).all()


def test_centres_find_two_clusters():
    """At least two thirds of the way from one phi to knowing the cluster."""
    centres = ((0.8, 0.8, 0.0), (-0.8, 0.0, 0.8))
    tasks = make_tasks(200, centres=centres, rows=8)
    base = fmrl.FMRL(fmrl.Ball(2.0), fmrl.OGD(), similarity=fmrl.Isotropic(0.5))
    one = fmrl.run(base, tasks).regret[40:].mean()
    found = fmrl.run(fmrl.Centres(2, base), tasks)
    known = np.mean([fmrl.run(base, tasks[k::2]).regret[20:].mean() for k in (0, 1)])
    assert (one - found.regret[40:].mean()) / (one - known) > 2 / 3
    np.testing.assert_allclose(found.state.similarity[0].sum(), 200 - 16 + 2)


def test_kmeans_beats_its_seeds_and_never_mixes_far_clusters():
    rng = np.random.default_rng(0)
    for _ in range(20):
        k = int(rng.integers(2, 5))
        truth = 20 * rng.normal(size=(k, 2))
        label = np.arange(60) % k
        centres, found, value = kmeans(truth[label] + 0.1 * rng.normal(size=(60, 2)), k)
        assert value < 0.1
        assert len({(a, b) for a, b in zip(label.tolist(), found.tolist(), strict=True)}) == k
        assert centres.shape == (k, 2)


def test_what_is_bad_is_refused():
    for make in (
        lambda: fmrl.Mixture([fmrl.FollowLeader(), fmrl.Conditional([0])]),
        lambda: fmrl.Conditional([]),
        lambda: fmrl.Conditional([-1]),
        lambda: fmrl.Conditional([0], 0.0),
        lambda: fmrl.Discounted(0.0),
        lambda: fmrl.Discounted(1.5),
        lambda: fmrl.Window(0),
        lambda: fmrl.Restart(2.5),
        lambda: fmrl.Mixture([fmrl.FollowLeader()]),
        lambda: fmrl.Mixture([fmrl.FollowLeader, fmrl.LastUpdate]),
        lambda: fmrl.Mixture([fmrl.FollowLeader(), fmrl.LastUpdate()], share=1.0),
        lambda: phis(fmrl.Mixture([fmrl.FollowLeader(), fmrl.LastUpdate()]), [], fmrl.Euclidean()),
        lambda: fmrl.Hedge([fmrl.FMRL()]),
        lambda: fmrl.Hedge([fmrl.FMRL(), fmrl.FMRL(fmrl.Ball(2.0))]),
        lambda: fmrl.Hedge([fmrl.FMRL(), 3]),
        lambda: fmrl.Centres(1, fmrl.FMRL()),
        lambda: fmrl.Centres(2, 3),
    ):
        with pytest.raises(fmrl.FMRLError):
            make()


STEP = fmrl.FMRL(fmrl.Ball(2.0), fmrl.OGD(), similarity=fmrl.KnownStep(0.3))


@pytest.mark.parametrize("algo", [STEP, fmrl.Hedge([STEP, STILL]), fmrl.Centres(2, STEP)])
def test_adapting_gives_what_the_next_round_would_play(algo):
    """With a step that does not depend on how many rows there are."""
    tasks = make_tasks(22, centres=((0.6, 0.6, 0.0), (-0.6, 0.0, 0.6)))
    state, task = fmrl.run(algo, tasks[:-1]).state, tasks[-1]
    few = fmrl.Task(task.X[:-1], task.open().target[:-1, 0], loss=task.loss)
    theta = algo.adapt(state, few)
    played = algo.step(state, task)[1].losses[-1]
    assert float(task.open().reveal(task.rounds - 1, theta)[0]) == pytest.approx(float(played))
    assert np.linalg.norm(theta - algo.adapt(state, task)) > 1e-4
