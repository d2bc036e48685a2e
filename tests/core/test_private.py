"""Privacy: noise of the right size, clipping, one draw for every node, a budget that ends; and that
compositions which read past it are refused.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from instances import make_tasks

import fmrl
from fmrl.core import privacy
from fmrl.core.arrays import stacked, to_numpy
from fmrl.core.privacy import normals
from fmrl.core.rules.meta import End

dp = pytest.importorskip("dp_accounting", reason="not installed: pip install 'fmrl[private]'")

KNOWN = fmrl.Known(0.4)


def tasks_of(count=20, asarray=np.asarray):
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(4, 3)), rng.normal(size=4) / 3) for _ in range(count)]
    return [fmrl.Task(*map(asarray, row), loss=fmrl.Squared()) for row in rows]


def algo_of(tasks=20, update=None, **options):
    tree = fmrl.Tree(3.0, 1e-5, tasks, seed=5, **options)
    return fmrl.FMRL(update=update or fmrl.FAL(), similarity=KNOWN, meta=tree)


def released(tree, theta, runs, seed=0):
    """phi after each task [T, runs, d], of runs with keys of their own, without a border."""
    domain, phi = fmrl.Euclidean(), np.zeros((runs, theta.shape[1]))
    trees = (dataclasses.replace(tree, seed=10**6 * seed + run) for run in range(runs))
    memory = stacked([tree.init(domain, phi[0])[1] for tree in trees])
    sigma, found = np.ones(runs), []
    tree = dataclasses.replace(tree, seed=0)  # the same noise for other vectors is meant here
    for vector in theta:
        end = End(np.tile(vector, (runs, 1)), None, sigma)
        phi, memory = tree.update(domain, phi, memory, end)
        found.append(phi)
    return np.stack(found)


# The three numbers on which everything rests: noise, clipping, accountant.


@pytest.mark.parametrize("tasks", [1, 5, 8])
def test_the_noise_of_every_release_has_the_variance_of_its_nodes(tasks):
    """Against the definition: as many nodes as the binary form of t has ones, each of deviation
    noise·2·radius. 40,000 draws put the variance within 3 %; a factor 1.1 in the noise is 21 %.
    """
    dim, runs, radius = 20, 2000, 0.7
    tree = fmrl.Tree(2.0, 1e-4, tasks, radius=radius)
    found = released(tree, np.zeros((tasks, dim)), runs)
    for t, phi in enumerate(found, start=1):
        expected = t.bit_count() * (2 * radius * tree.noise) ** 2
        assert (t * phi).var() == pytest.approx(expected, rel=0.03)
        assert abs((t * phi).mean()) < 5 * math.sqrt(expected / phi.size)


def test_noise_is_normal_and_independent():
    draws = np.stack([normals(np.arange(4), place, 1001) for place in range(1, 400)])
    for power, moment, error in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((draws**power).mean() - moment) < 4 * math.sqrt(error / draws.size)
    spread = np.corrcoef(draws[:20])[np.triu_indices(20, 1)]
    assert np.abs(spread).max() < 4.5 / math.sqrt(draws.shape[1])
    assert not np.array_equal(normals(np.arange(4), 1, 8), normals(np.arange(1, 5), 1, 8))


def test_a_swap_moves_no_node_by_more_than_the_noise_is_made_for():
    """Sensitivity without the formula: the largest change of a sum over all pairs of tasks, with
    the noise taken away, is what the noise of a node is counted in, and it is reached.
    """
    rng = np.random.default_rng(1)
    for radius, domain, start in (
        (None, fmrl.Ball(2.0), np.zeros(3)),
        (0.5, fmrl.Ball(2.0), np.array([0.3, 0, 0])),
        (None, fmrl.Box(-1.0, 3.0), np.full(3, 2.5)),
        (0.8, fmrl.Euclidean(), np.ones(3)),
    ):
        tree = fmrl.Tree(1.0, 1e-5, 8, radius=radius, seed=0)
        far = rng.normal(size=(400, 3)) * 50
        corners = np.stack(np.meshgrid(*[[-99, 99]] * 3), axis=-1).reshape(-1, 3)
        far = np.concatenate([far, -far, corners, start + np.eye(3) * 99, start - np.eye(3) * 99])
        memory = tree.init(domain, start)[1]
        sums = [tree.update(domain, start, memory, End(v, None, np.ones(())))[1][1] for v in far]
        sums = np.stack(sums)
        change = np.linalg.norm(sums[:, None] - sums[None], axis=-1).max()
        in_noise = float(memory[4]) / tree.noise
        assert change <= in_noise * (1 + 1e-12)
        assert change >= in_noise * 0.97


@pytest.mark.parametrize("tasks", [1, 2, 7, 8, 100, 5000])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-6), (1.0, 1e-5), (8.0, 1e-8)])
def test_the_accountant_against_the_exact_privacy_of_the_nodes(tasks, epsilon, delta):
    """A task reaches at most so many nodes, found by counting, which dp-accounting counts in its
    event for trees as well; and their privacy by its accountant of privacy losses (PLD).
    """
    reached = [0] * (tasks + 1)
    for t in range(1, tasks + 1):  # the node that ends at t covers its last lowbit(t) tasks
        for leaf in range(t - (t & -t) + 1, t + 1):
            reached[leaf] += 1
    tree = fmrl.Tree(epsilon, delta, tasks)
    nodes = dp.SelfComposedDpEvent(dp.GaussianDpEvent(tree.noise), max(reached))
    losses = dp.pld.PLDAccountant().compose(nodes).get_epsilon(delta)
    assert losses == pytest.approx(epsilon, rel=1e-3)  # 1.1 times the noise: 8 to 12 % less
    assert tree.spent(tasks) == pytest.approx(epsilon, rel=1e-5) and tree.spent(tasks) <= epsilon
    special = dp.NeighboringRelation.REPLACE_SPECIAL  # the only one it has for trees
    events = nodes, dp.SingleEpochTreeAggregationDpEvent(tree.noise, tasks)
    counted = [dp.rdp.RdpAccountant(neighboring_relation=special).compose(e) for e in events]
    own, library = (accountant.get_epsilon(delta) for accountant in counted)
    assert own == pytest.approx(library, rel=1e-12) and epsilon < library < 1.2 * epsilon


def test_the_way_to_the_noise_and_back():
    tree = fmrl.Tree(1.0, 1e-6, 1000)
    assert tree.spent(0) == 0
    assert tree.spent(1) < tree.spent(2) == tree.spent(3) < tree.spent(4) < tree.spent(1000)
    for runs in (2, 5):
        shared = fmrl.Tree(1.0, 1e-6, 1000, runs=runs)
        assert shared.noise == pytest.approx(math.sqrt(runs) * tree.noise, rel=1e-3)
        assert privacy.tree_epsilon(tree.noise, 1e-6, 1000, runs) > 1.2
    noise = privacy.gaussian_noise(1.0, 1e-6)
    assert dp.get_epsilon_gaussian(noise, 1e-6) == pytest.approx(1.0)


def test_the_noise_of_gradients():
    """Variance and clipping of what a learner is shown, from its first step; the clipping with so
    large a budget that next to no noise is left.
    """
    clip, count = 0.5, 4000
    for epsilon, length in ((2.0, 0.2), (2.0, 3.0), (1e5, 0.2), (1e5, 3.0)):
        learner = fmrl.NoisyGradients(fmrl.OMD(), epsilon, 1e-5, clip)
        phi, gradient, mean = np.zeros((count, 10)), np.zeros((count, 10)), np.zeros(10)
        gradient[:, 0], mean[0] = length, min(length, clip)
        actions = learner.actions(None, fmrl.Euclidean(), phi, np.ones(count))
        next(actions)
        shown = -actions.send(gradient)
        deviation = 2 * clip * dp.get_sigma_gaussian(epsilon, 1e-5)
        assert (shown - mean).std() == pytest.approx(deviation, rel=0.02)
        assert np.abs(shown.mean(axis=0) - mean).max() < 5 * deviation / math.sqrt(count)


# One draw for a node, wherever and however often the run is played.


@pytest.mark.parametrize("update", [fmrl.FAL(), fmrl.FLIOnline(), fmrl.FLIBatch()], ids=repr)
def test_run_steps_resume_and_meta_batches_have_the_same_noise(update, tmp_path):
    algo, tasks = algo_of(update=update), tasks_of()
    whole, state = fmrl.run(algo, tasks), algo.init(np.zeros(3))
    for task in tasks:
        state, _ = algo.step(state, task)
    np.testing.assert_allclose(state.phi, whole.state.phi, atol=1e-12)
    first = fmrl.run(algo, tasks[:7])
    fmrl.save_state(first.state, tmp_path / "state.npz")
    later = fmrl.run(algo, tasks[7:], state=fmrl.load_state(tmp_path / "state.npz"))
    for a, b in zip(later.state.meta, whole.state.meta, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-13)
    np.testing.assert_array_equal(later.state.meta[2], whole.state.meta[2])  # noise, to the bit
    fmrl.save_history(whole, tmp_path / "history.npz")
    assert fmrl.load_history(tmp_path / "history.npz").algo.meta == algo.meta
    batched = fmrl.run(algo, tasks, meta_batch=6)
    np.testing.assert_array_equal(batched.state.meta[2], whole.state.meta[2])
    if algo.exact:
        np.testing.assert_allclose(batched.state.phi, whole.state.phi, atol=1e-12)


def test_a_key_of_the_system_is_kept_by_the_state_and_never_repeats(tmp_path):
    algo, tasks = fmrl.FMRL(similarity=KNOWN, meta=fmrl.Tree(3.0, 1e-5, 20)), tasks_of()
    start = algo.init(np.zeros(3))
    fmrl.save_state(start, tmp_path / "start.npz")
    once = fmrl.run(algo, tasks, state=start)
    again = fmrl.run(algo, tasks, state=fmrl.load_state(tmp_path / "start.npz"))
    np.testing.assert_array_equal(once.state.phi, again.state.phi)
    other = fmrl.run(algo, tasks)
    assert not np.array_equal(once.state.phi, other.state.phi)
    nodes = [once.state.meta[2], other.state.meta[2]]
    assert len({float(x) for n in nodes for x in n.ravel() if x}) == 2 * 2 * 3  # 20 = 16 + 4


def test_a_state_that_goes_on_with_two_sets_of_tasks_is_refused(tmp_path):
    """Their difference has no noise. The same tasks again, however they are played, are fine."""
    algo, tasks = fmrl.FMRL(similarity=KNOWN, meta=fmrl.Tree(3.0, 1e-5, 20)), tasks_of()
    middle = fmrl.run(algo, tasks[:7]).state
    fmrl.save_state(middle, tmp_path / "middle.npz")
    once = fmrl.run(algo, tasks[7:], state=middle)
    loaded = fmrl.load_state(tmp_path / "middle.npz")
    for again in ({}, {"meta_batch": 4}, {"keep": "totals"}):
        assert np.allclose(
            fmrl.run(algo, tasks[7:], state=loaded, **again).state.phi, once.state.phi
        )
    swapped = [*tasks[7:15], tasks_of(30)[-1], *tasks[16:]]
    with pytest.raises(fmrl.FMRLError, match=r"with other tasks before.*newest state") as stopped:
        fmrl.run(algo, swapped, state=loaded)
    assert len(stopped.value.history) == 8  # up to the task that differs nothing new is released
    assert len(fmrl.run(algo, swapped)) == 13


def test_orders_are_runs_and_each_has_noise_of_its_own():
    tasks = tasks_of()
    with pytest.raises(fmrl.FMRLError, match="runs=2"):
        fmrl.run(algo_of(), tasks, orders=[range(20), range(20)])
    algo = algo_of(runs=2)
    both = fmrl.run(algo, tasks, orders=[range(20), range(20)])
    np.testing.assert_allclose(both.state.phi[0], fmrl.run(algo, tasks).state.phi, atol=1e-12)
    assert np.abs(both.state.phi[0] - both.state.phi[1]).max() > 1e-3


def test_blocks_of_a_cluster_have_the_same_noise(tmp_path):
    pytest.importorskip("pyarrow")
    from fmrl.cluster import Ray
    from fmrl.cluster.workers import Here

    tasks = tasks_of()
    for number, (update, batch) in enumerate(((fmrl.FAL(), 1), (fmrl.FLIBatch(), 1))):
        algo, out = algo_of(update=update), tmp_path / str(number)
        algo = dataclasses.replace(algo, meta=dataclasses.replace(algo.meta, seed=None))
        start = algo.init(np.zeros(3))

        def played(state, algo=algo, out=out, batch=batch):
            engine = Ray(out=out, block=6)
            return engine.play(algo, tasks, state=state, meta_batch=batch, mapper=Here()).history()

        expected = fmrl.run(algo, tasks, state=start)
        for _ in range(2):  # the second time from what the first has left
            np.testing.assert_allclose(played(start).state.phi, expected.state.phi, atol=1e-12)
        with pytest.raises(fmrl.FMRLError, match="another run"):
            played(algo.init(np.zeros(3)))


@pytest.mark.parametrize("name", ["torch", "array_api_strict"])
def test_other_kinds_of_arrays(name):
    xp, expected = pytest.importorskip(name), fmrl.run(algo_of(), tasks_of(5))
    moved = tasks_of(5, xp.asarray)
    found = fmrl.run(algo_of(), moved, xp.zeros(3, dtype=xp.float64))
    assert type(found.state.phi) is type(moved[0].X)
    np.testing.assert_allclose(to_numpy(found.state.phi), expected.state.phi, atol=1e-9)


# A budget ends, and nothing reads past it.


def test_a_spent_budget_stops_the_run_and_restarts_count(tmp_path):
    algo, tasks = algo_of(tasks=10), tasks_of(12)
    with pytest.raises(fmrl.FMRLError, match=r"budget is spent.*10 tasks") as stopped:
        fmrl.run(algo, tasks)
    assert stopped.value.task == 10 and len(stopped.value.history) == 10
    fmrl.save_state(fmrl.run(algo, tasks[:6]).state, tmp_path / "state.npz")
    state = fmrl.load_state(tmp_path / "state.npz")
    with pytest.raises(fmrl.FMRLError, match="budget is spent") as stopped:
        fmrl.run(algo, tasks[6:], state=state)
    assert len(stopped.value.history) == 4
    with pytest.raises(fmrl.FMRLError, match="budget is spent"):
        fmrl.run(algo, tasks, meta_batch=12)
    for other in (fmrl.Tree(4.0, 1e-5, 10), fmrl.Tree(3.0, 1e-6, 10), fmrl.Tree(3.0, 1e-5, 5)):
        with pytest.raises(fmrl.FMRLError, match="made by another composition"):
            fmrl.run(dataclasses.replace(algo, meta=other), tasks[6:], state=state)


@pytest.mark.parametrize(
    "rule",
    [
        fmrl.Doubling(0.1, 1.1), fmrl.ReleasedDoubling(0.1, 1.1), fmrl.AverageDeviation(),
        fmrl.Isotropic(0.1), fmrl.PerCoordinate(0.1), fmrl.EWOO(0.1),
    ],
    ids=repr,
)  # fmt: skip
def test_a_guess_that_is_learned_has_no_budget(rule):
    with pytest.raises(fmrl.FMRLError, match=r"no budget covers.*Known\(D\) or KnownStep"):
        fmrl.FMRL(similarity=rule, meta=fmrl.Tree(1.0, 1e-5, 10))

    class Own(fmrl.Known):
        """A subclass may learn anything."""

    with pytest.raises(fmrl.FMRLError, match="no budget covers"):
        fmrl.FMRL(similarity=Own(0.1), meta=fmrl.Tree(1.0, 1e-5, 10))


def noisy(**options):
    return fmrl.NoisyGradients(fmrl.OMD(), **{"epsilon": 1.0, "delta": 1e-5, "clip": 1.0} | options)


@dataclasses.dataclass(frozen=True)
class Peeking(fmrl.LastUpdate):
    """Publishes the optimum, which was found without noise."""

    def update(self, domain, phi, memory, end):
        return end.optimum, ()


def test_a_task_that_comes_again_is_refused_in_any_iterable():
    """A generator too, when the task comes; two tasks of the same rows are two."""
    algo, tasks = algo_of(tasks=10), tasks_of(4)
    for again in (tasks + tasks[:1], iter(tasks + tasks[:1]), itertools.chain(tasks, tasks)):
        with pytest.raises(fmrl.FMRLError, match="here one is played again") as stopped:
            fmrl.run(algo, again)
        assert isinstance(again, list) or stopped.value.task == 4
    fresh = (fmrl.Task(t.X, t.open().target[:, 0], loss=t.loss) for t in tasks * 2)
    assert len(fmrl.run(algo, fresh)) == 8
    twice = fmrl.FMRL(within=noisy(), update=fmrl.FLIOnline(), similarity=KNOWN, lipschitz=1.0)
    with pytest.raises(fmrl.FMRLError, match="here one is played again"):
        fmrl.run(twice, iter([tasks[0], tasks[0]]))
    assert len(fmrl.run(fmrl.FMRL(similarity=KNOWN), iter([tasks[0], tasks[0]]))) == 2


def test_what_reads_past_privacy_is_refused():
    tree, private = fmrl.Tree(1.0, 1e-5, 10), {"similarity": KNOWN}
    good = {"within": noisy(), "update": fmrl.FLIOnline(), "similarity": KNOWN, "lipschitz": 1.0}
    fmrl.FMRL(**good)
    fmrl.FMRL(**good, meta=tree)
    algo = fmrl.FMRL(**private, meta=tree)
    refused = {
        "Mixture weighs": lambda: fmrl.Mixture([fmrl.FollowLeader(), tree]),
        "ensemble weighs": lambda: fmrl.Hedge([algo, algo]),
        "ensemble": lambda: fmrl.Centres(2, algo),
        "½": lambda: fmrl.FMRL(fmrl.Simplex(), **private, meta=tree).init(np.ones(3) / 3),
        "radius=": lambda: fmrl.FMRL(fmrl.Euclidean(), **private, meta=tree).init(np.ones(3)),
        "without noise": lambda: fmrl.FMRL(**good | {"update": fmrl.FAL()}),
        "gradients alone": lambda: fmrl.NoisyGradients(fmrl.FTRL(), 1.0, 1e-5, 1.0),
        "read from the rows": lambda: fmrl.FMRL(**good | {"lipschitz": None}),
        "may read more": lambda: fmrl.FMRL(**good | {"similarity": fmrl.Isotropic(0.1)}),
        "Conditional": lambda: fmrl.FMRL(**good, meta=fmrl.Conditional([0])),
        r"^Peeking\(\) may read more": lambda: fmrl.FMRL(
            **good, meta=fmrl.Mixture([fmrl.FollowLeader(), Peeking()])
        ),
        r"Peeking\(\) may read": lambda: fmrl.FMRL(
            **good,
            meta=fmrl.Mixture([fmrl.LastUpdate(), fmrl.Mixture([fmrl.Fixed(), Peeking()])]),
        ),
        "epsilon must": lambda: fmrl.Tree(0.0, 1e-5, 10),
        "delta must": lambda: fmrl.Tree(1.0, 0.0, 10),
        "epsilon must be pos": lambda: fmrl.Tree("1", 1e-5, 10),
        "delta must be pos": lambda: fmrl.Tree(1.0, None, 10),
        "radius must": lambda: fmrl.Tree(1.0, 1e-5, 10, radius="a"),
        "clip must": lambda: fmrl.NoisyGradients(fmrl.OMD(), 1.0, 1e-5, None),
        "decay must": lambda: fmrl.MetaSGD(0.1, decay="x"),
        "whole number": lambda: fmrl.Tree(1.0, 1e-5, 2.5),
        "whole number of at least 1, not True": lambda: fmrl.Tree(1.0, 1e-5, True),
        "delta=0.5 promises nothing.*far below 0.1": lambda: fmrl.Tree(1.0, 0.5, 1),
        "delta=0.01 promises nothing.*far below 0.01": lambda: fmrl.Tree(1.0, 0.01, 100),
        "delta=0.1 promises": lambda: fmrl.NoisyGradients(fmrl.OMD(), 1.0, 0.1, 1.0),
        "NaN": lambda: tree.update(
            fmrl.Ball(1.0), np.zeros(1), tree.init(fmrl.Ball(1.0), np.zeros(1))[1],
            End(np.array([np.nan]), None, np.ones(())),
        ),
    }  # fmt: skip
    for words, make in refused.items():
        with pytest.raises(fmrl.FMRLError, match=words):
            make()


def test_networks_refuse_a_tree():
    torch = pytest.importorskip("torch")
    with pytest.raises(fmrl.FMRLError, match="no private mean for networks"):
        fmrl.deep.MetaTrainer(torch.nn.Linear(2, 2), meta=fmrl.Tree(1.0, 1e-5, 10))


def test_rows_are_noised_alike_in_loops_and_stacks():
    algo = fmrl.FMRL(within=noisy(seed=3), update=fmrl.FLIOnline(), lipschitz=1.0)
    tasks = make_tasks("squared", 9, 3, np.random.default_rng(0))
    whole, state = fmrl.run(algo, tasks), algo.init(np.zeros(3))
    for task in tasks:
        state, _ = algo.step(state, task)
    np.testing.assert_allclose(state.phi, whole.state.phi, atol=1e-12)
    batched = fmrl.run(algo, tasks, meta_batch=3)
    np.testing.assert_allclose(batched.theta[:3], fmrl.run(algo, tasks[:3], meta_batch=3).theta)
    fresh = dataclasses.replace(algo, within=noisy())
    assert np.abs(fmrl.run(fresh, tasks).theta - fmrl.run(fresh, tasks).theta).max() > 1e-3


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(fmrl.FMRLError, match=r"fmrl\[private\]"):
        _ = fmrl.Tree(1.2345, 1e-5, 10).noise


def test_values_print_themselves():
    for value in (fmrl.Tree(1.0, 1e-5, 10, radius=2.0, runs=3, seed=1), noisy(seed=2), algo_of()):
        assert fmrl.parse(repr(value)) == value and hash(fmrl.parse(repr(value))) == hash(value)
    assert dataclasses.replace(algo_of(), update=fmrl.FLIOnline()).meta == algo_of().meta
