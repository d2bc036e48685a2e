"""Presets against deliberately naive re-implementations: Algorithm 2 as printed, and the
arithmetic of the released code.
"""

import math

import numpy as np
import pytest
from instances import make_tasks

import fmrl


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def to_ball(theta):
    return theta / max(1.0, np.linalg.norm(theta))


def data_of(task):
    game = task.open()
    return game.X, game.target


def one_vs_all(W, x, target):
    """Loss and gradient of a round at W [classes, f]."""
    z = W @ x
    return np.sum(np.logaddexp(0, z) - target * z), np.outer(sigmoid(z) - target, x)


def released(tasks, classes, epsilon, gamma, update):
    """G = 1; the guess starts at epsilon, is not tested at the first task, and grows by gamma
    when the optimum was further than D in plain l2; OGD projects each step; the mean is weighted
    by √m.
    """
    d = classes * tasks[0].X.shape[1]
    phi, D, weight = np.zeros(d), epsilon, 0.0
    record = []
    for t, task in enumerate(tasks):
        X, target = data_of(task)
        m = len(X)
        eta = D / math.sqrt(m)
        theta, losses, iterates = phi.copy(), [], []
        for x, y in zip(X, target, strict=True):
            iterates.append(theta)
            loss, gradient = one_vs_all(theta.reshape(classes, -1), x, y)
            losses.append(loss)
            theta = to_ball(theta - eta * gradient.ravel())
        optimum = fmrl.minimise(task.open(), fmrl.Ball(1.0))
        record.append((sum(losses) - optimum.value, D, eta, phi))
        mean = np.mean(iterates, axis=0)
        vector = {"fal": optimum.theta, "fli-online": theta, "fli-batch": mean}[update]
        if t > 0 and np.linalg.norm(optimum.theta - phi) > D:
            D = gamma * D
        phi = (weight * phi + math.sqrt(m) * vector) / (weight + math.sqrt(m))
        weight += math.sqrt(m)
    return [np.array(column) for column in zip(*record, strict=True)], phi


@pytest.mark.parametrize("update", ["fal", "fli-online", "fli-batch"])
@pytest.mark.parametrize("seed", range(3))
def test_released_is_the_released_arithmetic(update, seed):
    tasks = make_tasks("one-vs-all", 12, 3, np.random.default_rng(seed))
    (regret, guess, eta, _), phi = released(tasks, 3, 0.1, 1.1, update)
    history = fmrl.run(fmrl.presets.released(update=update), tasks)
    np.testing.assert_allclose(history.regret, regret, atol=1e-9)
    np.testing.assert_allclose(history.guess, guess, rtol=1e-12)
    np.testing.assert_allclose(history.eta, eta, rtol=1e-12)
    np.testing.assert_allclose(history.state.phi, phi, atol=1e-9)
    assert history.guess[0] == history.guess[1] == 0.1 and history.guess[-1] > 0.1


def algorithm_2(tasks, classes, epsilon, gamma, update):
    """As printed: D_1 = max sqrt(B) + epsilon, D_{t+1} = gamma^k·epsilon, lazy OGD, sigma = "
    "G·√m."""
    d = classes * tasks[0].X.shape[1]
    phi, k = np.zeros(d), 0
    D = (np.linalg.norm(phi) + 1) / math.sqrt(2) + epsilon
    thetas, sigmas, record = [], [], []
    for task in tasks:
        X, target = data_of(task)
        m = len(X)
        G = math.sqrt(np.mean([classes * x @ x for x in X]))
        eta = D / (G * math.sqrt(m))
        total, losses, iterates = np.zeros(d), [], []
        for x, y in zip(X, target, strict=True):
            theta = to_ball(phi - eta * total)
            iterates.append(theta)
            loss, gradient = one_vs_all(theta.reshape(classes, -1), x, y)
            losses.append(loss)
            total = total + gradient.ravel()
        optimum = fmrl.minimise(task.open(), fmrl.Ball(1.0))
        record.append((sum(losses) - optimum.value, D, eta))
        last, mean = to_ball(phi - eta * total), np.mean(iterates, axis=0)
        vector = {"fal": optimum.theta, "fli-online": last, "fli-batch": mean}[update]
        if math.sqrt(np.sum((vector - phi) ** 2) / 2) > D:
            k += 1
        D = gamma**k * epsilon
        thetas.append(vector)
        sigmas.append(G * math.sqrt(m))
        phi = np.average(thetas, axis=0, weights=sigmas)
    return [np.array(column) for column in zip(*record, strict=True)], phi


@pytest.mark.parametrize("update", ["fal", "fli-online", "fli-batch"])
@pytest.mark.parametrize("seed", range(3))
def test_paper_is_algorithm_2(update, seed):
    tasks = make_tasks("one-vs-all", 12, 3, np.random.default_rng(seed))
    (regret, guess, eta), phi = algorithm_2(tasks, 3, 0.1, 1.1, update)
    history = fmrl.run(fmrl.presets.paper(update=update), tasks)
    np.testing.assert_allclose(history.regret, regret, atol=1e-9)
    np.testing.assert_allclose(history.guess, guess, rtol=1e-12)
    np.testing.assert_allclose(history.eta, eta, rtol=1e-12)
    np.testing.assert_allclose(history.state.phi, phi, atol=1e-9)
    if update == "fal":
        assert (
            len(set(history.guess)) > 2
        )  # the test was violated, so that the growth is tested too


def test_first_guess_of_the_unit_ball():
    assert float(fmrl.presets.paper().init(np.zeros(200)).guess) == pytest.approx(
        1 / math.sqrt(2) + 0.1
    )
    assert round(float(fmrl.presets.paper().init(np.zeros(200)).guess), 3) == 0.807
    assert float(fmrl.presets.released().init(np.zeros(200)).guess) == 0.1
    off = np.array([0.6, 0.8])
    assert float(fmrl.presets.paper().init(off).guess) == pytest.approx(math.sqrt(2) + 0.1)


def test_second_guess_is_epsilon_when_the_first_was_wide_enough():
    tasks = make_tasks("one-vs-all", 3, 2, np.random.default_rng(0))
    history = fmrl.run(fmrl.presets.paper(), tasks)
    assert history.guess[1] == 0.1 and not history.violations[0]


def test_average_deviation_is_the_best_constant_for_the_tasks_seen():
    tasks = make_tasks("one-vs-all", 8, 2, np.random.default_rng(1))
    history = fmrl.run(fmrl.FMRL(similarity=fmrl.AverageDeviation()), tasks)
    sigma = history.lipschitz * np.sqrt(history.rounds)
    for t in range(1, 8):
        exact = math.sqrt(sigma[:t] @ history.deviation[:t] / sigma[:t].sum())
        assert history.guess[t] == pytest.approx(exact)

        def summed(D, t=t):
            return np.sum(sigma[:t] * (history.deviation[:t] / D + D))

        assert all(summed(exact) <= summed(exact * c) + 1e-12 for c in (0.5, 0.9, 1.1, 2.0))


def test_average_deviation_cannot_get_stuck():
    """One round leaves FLI-Batch where it started; a guess of 0 would then stop every later task
    from moving.
    """
    tasks = [make_tasks("one-vs-all", 1, 2, np.random.default_rng(s), most=1)[0] for s in range(3)]
    tasks += make_tasks("one-vs-all", 4, 2, np.random.default_rng(9))
    history = fmrl.run(fmrl.FMRL(update=fmrl.FLIBatch(), similarity=fmrl.AverageDeviation()), tasks)
    assert np.all(history.eta > 0) and np.any(history.deviation[3:] > 0)


def test_single_task_strawman_omniscient():
    tasks = make_tasks("one-vs-all", 6, 2, np.random.default_rng(2))
    single = fmrl.run(fmrl.presets.single_task(), tasks)
    np.testing.assert_allclose(single.guess, math.sqrt(2))
    assert np.all(single.state.phi == 0)
    straw = fmrl.run(fmrl.presets.strawman(), tasks)
    np.testing.assert_array_equal(straw.state.phi, straw.optimum[-1])
    np.testing.assert_allclose(
        straw.divergence[1:], np.sum(np.diff(straw.optimum, axis=0) ** 2, axis=1) / 2, atol=1e-12
    )
    centre = single.optimum.mean(axis=0)
    oracle = fmrl.run(fmrl.presets.omniscient(centre, 0.3), tasks)
    np.testing.assert_array_equal(oracle.state.phi, centre)
    assert np.all(oracle.guess == 0.3)


@pytest.mark.parametrize("within", ["omd", "OGD", "ftrl", fmrl.OMD()])
def test_names_or_values(within):
    value = fmrl.presets.paper(within=within).within
    assert value == (
        within
        if not isinstance(within, str)
        else {"omd": fmrl.OMD(), "ogd": fmrl.OGD(), "ftrl": fmrl.FTRL()}[within.lower()]
    )


def test_meta_learning_pays_where_tasks_are_alike():
    """Theorem 3.1 at work: similar tasks, FAL's TAR well below the single-task one, and below its
    bound.
    """
    rng = np.random.default_rng(3)
    truth, tasks = rng.normal(size=(2, 5)), []
    for _ in range(60):
        X = rng.normal(size=(10, 5))
        y = (X @ (truth + 0.05 * rng.normal(size=(2, 5))).T).argmax(axis=1)
        tasks.append(fmrl.Task(X, y, loss=fmrl.OneVsAll(2)))
    presets = fmrl.presets.paper(), fmrl.presets.single_task()
    meta, single = (fmrl.run(algo, tasks) for algo in presets)
    assert meta.tar < 0.5 * single.tar
    assert meta.tar <= meta.bound.mean()
