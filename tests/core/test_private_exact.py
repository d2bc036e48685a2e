"""Privacy by linear algebra: all phi of a run are a linear map of its vectors plus a linear map of
its noises, both read off the code itself, so its privacy is that of two normal distributions whose
distance is exact. And: vectors are clipped, and tasks counted, in every way in.
"""

import dataclasses
import math
from statistics import NormalDist

import numpy as np
import pytest

import fmrl
from fmrl.core.rules import private
from fmrl.core.rules.meta import End

pytest.importorskip("dp_accounting", reason="not installed: pip install 'fmrl[private]'")
RADIUS = 0.05  # shorter than nearly every update vector below


def spent(mu, epsilon):
    """The exact delta of two normal distributions mu standard deviations apart."""
    below = NormalDist().cdf
    return below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(-mu / 2 - epsilon / mu)


def released(tree, theta, noises, monkeypatch):
    """All phi of a run in one dimension, where the noise of the node that ends at t is given."""
    monkeypatch.setattr(private, "drawn", lambda keys, t, like: noises[t - 1] + 0 * like)
    domain, start, found = fmrl.Euclidean(), np.zeros(1), []
    phi, memory = tree.init(domain, start)
    for vector in theta:
        phi, memory = tree.update(domain, phi, memory, End(vector + start, None, np.ones(())))
        found.append(float(phi[0]))
    return np.array(found)


@pytest.mark.parametrize("tasks", [1, 2, 3, 6, 8, 13, 17, 32])
def test_the_exact_privacy_of_all_phi_together(tasks, monkeypatch):
    """A swap at any place is hidden as promised, and the first task uses up nearly all of it: a
    factor 1.1 in noise, clipping or accountant, or a node that is missed, does not fit in between.
    """
    radius, rows, nothing = 0.7, np.eye(tasks), np.zeros(tasks)
    for epsilon, delta in ((0.5, 1e-6), (2.0, 1e-6), (8.0, 1e-8)):
        tree = fmrl.Tree(epsilon, delta, tasks, radius=radius)

        def phi(theta=nothing, noises=nothing, tree=tree):
            return released(tree, theta, noises, monkeypatch)

        noise = np.stack([phi(noises=row) for row in rows], axis=1)
        # As far as tasks can be swapped: from one side of the clipping ball to the other.
        moved = np.stack([phi(99 * row) - phi(-99 * row) for row in rows], axis=1)
        mu = np.linalg.norm(np.linalg.solve(noise, moved), axis=0)
        assert max(spent(m, epsilon) for m in mu) <= delta
        assert mu.argmax() == 0 and spent((1 + 1e-5) * mu[0], epsilon) > delta


def tasks_of(count=14, dim=3, size=1.0):
    rng = np.random.default_rng(0)
    rows = [size * rng.normal(size=(int(rng.integers(2, 7)), dim)) for _ in range(count)]
    return [fmrl.Task(X, X @ rng.normal(size=dim), loss=fmrl.Squared()) for X in rows]


@pytest.mark.parametrize("update", [fmrl.FAL(), fmrl.FLIOnline(), fmrl.FLIBatch()], ids=repr)
@pytest.mark.parametrize("similarity", [fmrl.Known(0.4), fmrl.KnownStep(0.05)], ids=repr)
def test_vectors_are_clipped_in_every_way_in(update, similarity, tmp_path):
    """The sums of a state against those of the update vectors, clipped here, off the centre."""
    pytest.importorskip("pyarrow")
    from fmrl.cluster import Ray
    from fmrl.cluster.workers import Here

    start, tasks = np.array([0.4, 0.1, 0.0]), tasks_of()
    tree = fmrl.Tree(500.0, 1e-5, 16, radius=RADIUS, runs=2, seed=1)
    ball = fmrl.Ball(2.0, (0.5, 0.0, -0.3))
    algo = fmrl.FMRL(ball, update=update, similarity=similarity, meta=tree)

    def same(total, theta):
        way = theta - start
        length = np.linalg.norm(way, axis=1, keepdims=True)
        assert (length > RADIUS).mean() > 0.5
        expected = (way * np.minimum(1, RADIUS / length)).sum(axis=0)
        np.testing.assert_allclose(total, expected, atol=1e-12)

    begun = algo.init(start)
    for batch in (1, 4, 20):
        history = fmrl.run(algo, tasks, state=begun, meta_batch=batch)
        same(history.state.meta[1], history.theta)
        engine = Ray(out=tmp_path / str(batch), block=4)
        played = engine.play(algo, tasks, state=begun, meta_batch=batch, mapper=Here()).history()
        same(played.state.meta[1], played.theta)
    state, rounds = begun, []
    for task in tasks:
        state, round = algo.step(state, task)
        rounds.append(round.theta)
    same(state.meta[1], np.stack(rounds))
    first = fmrl.run(algo, tasks[:5], state=begun)
    later = fmrl.run(algo, tasks[5:], state=first.state)
    same(later.state.meta[1], np.concatenate([first.theta, later.theta]))
    both = fmrl.run(algo, tasks, start, orders=[range(14), range(13, -1, -1)])
    for total, theta in zip(both.state.meta[1], both.theta, strict=True):
        same(total, theta)


def test_rounds_of_a_task_and_tasks_of_a_stack_have_noise_of_their_own():
    """The noise of a round that came again would cancel in the difference of two actions."""
    learner, count = fmrl.NoisyGradients(fmrl.OMD(), 2.0, 1e-5, clip=0.5), 300
    for make in (learner, dataclasses.replace(learner, seed=1)):
        phi = np.zeros((count, 10))
        actions = make.actions(None, fmrl.Euclidean(), phi, np.ones(count))
        played = np.stack([next(actions), *(actions.send(0 * phi) for _ in range(4))])
        noise = np.diff(played, axis=0).reshape(4, -1)
        assert np.abs(np.corrcoef(noise)[np.triu_indices(4, 1)]).max() < 0.1
        assert len(np.unique(noise.round(12))) == noise.size
        assert noise.std() == pytest.approx(2 * 0.5 * learner.noise, rel=0.04)


# What is counted.


def test_a_task_that_comes_again_is_refused():
    """Epochs and repeated places are more releases than are counted."""
    tasks, tree = tasks_of(4), fmrl.Tree(1.0, 1e-5, 20, runs=2)
    learner = fmrl.NoisyGradients(fmrl.OMD(), 1.0, 1e-5, 1.0)
    plain = {"update": fmrl.FLIOnline(), "similarity": fmrl.Known(0.4), "lipschitz": 1.0}
    for private_ in ({"meta": tree}, {"within": learner}):
        algo = fmrl.FMRL(**plain, **private_)
        fmrl.run(algo, tasks, orders=[range(4)])
        for given, options in (
            (tasks * 3, {}), ((*tasks, tasks[1]), {"meta_batch": 2}),
            (tasks, {"orders": [[0, 1, 1]]}), (tasks * 2, {"orders": [[0, 1, 4]]}),
        ):  # fmt: skip
            with pytest.raises(fmrl.FMRLError, match="played again"):
                fmrl.run(algo, given, **options)
    twice = [range(4), range(3, -1, -1)]
    with pytest.raises(fmrl.FMRLError, match="played again"):
        fmrl.run(algo, tasks, orders=twice)  # every row is released in both
    fmrl.run(fmrl.FMRL(**plain, meta=tree), tasks, orders=twice)  # runs=2
    fmrl.run(fmrl.FMRL(), tasks * 3)


def test_weights_are_not_read_from_rows_that_are_private():
    """A known step needs no G, but phi weighs tasks by it."""
    learner = fmrl.NoisyGradients(fmrl.OMD(), 8.0, 1e-5, clip=1.0)
    made = {"within": learner, "update": fmrl.FLIOnline(), "similarity": fmrl.KnownStep(0.01)}
    with pytest.raises(fmrl.FMRLError, match="steps and weights"):
        fmrl.FMRL(**made)
    algo = fmrl.FMRL(**made, lipschitz=1.0)
    one, other = (fmrl.run(algo, tasks_of(size=size)).state.meta for size in (1.0, 9.0))
    assert one == other
