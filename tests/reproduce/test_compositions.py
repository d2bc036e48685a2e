"""Compositions of the table. The released preset against the released arithmetic, written out
again: slowly, sample by sample, with other solvers.
"""

import numpy as np
import pytest
from scipy.optimize import brentq, minimize
from sklearn.linear_model import LogisticRegression

from fmrl import presets, run
from fmrl.core.tasks import stack
from fmrl.datasets.synthetic import gaussian_mixtures
from fmrl.reproduce.convex.compositions import PRESETS, SUMMED, curves, find

CLASSES, DIM, SHOTS, TASKS = 4, 5, 3, 12


@pytest.fixture(scope="module")
def data():
    made = gaussian_mixtures(TASKS, SHOTS, dim=DIM, spread=2.0, noise=4.0, seed=3)
    pairs = [(np.array(task.X), np.argmax(np.array(task.open().target), axis=1)) for task in made]
    return pairs, list(made), [constrained(X, y) for X, y in pairs]


def loss(W, x, label):
    total = 0.0
    for c in range(CLASSES):
        z = float(np.dot(W[c], x))
        total += np.logaddexp(0.0, -z if c == label else z)
    return total


def loss_gradient(W, x, label):
    g = np.zeros_like(W)
    for c in range(CLASSES):
        z = float(np.dot(W[c], x))
        g[c] = (1 / (1 + np.exp(-z)) - (1.0 if c == label else 0.0)) * x
    return g


def constrained(X, y):
    """Logistic regression on the unit sphere: root-finding on the penalty, as the authors did."""

    def fit(logC):
        W = np.zeros((CLASSES, DIM))
        for c in range(CLASSES):
            model = LogisticRegression(C=10**logC, fit_intercept=False, tol=1e-10, max_iter=5000)
            W[c] = model.fit(X, y == c).coef_[0]
        return W

    return fit(brentq(lambda logC: np.linalg.norm(fit(logC)) - 1.0, -4, 4, xtol=1e-9))


def ogd(X, y, phi, D):
    W, eta, losses, actions = phi.copy(), D / np.sqrt(len(y)), [], []
    for x, label in zip(X, y, strict=True):
        losses.append(loss(W, x, label))
        actions.append(W.copy())
        W = W - eta * loss_gradient(W, x, label)
        size = np.linalg.norm(W)
        if size > 1.0:
            W = W * (1.0 / size)
    return losses, W, np.mean(actions, axis=0)


def summed_ftrl(X, y, phi, D):
    """The released FTRL: one logistic of the summed signed rows of each class."""
    W, eta, losses, actions = phi.copy(), D / np.sqrt(len(y)), [], []
    for i in range(len(y)):
        losses.append(loss(W, X[i], y[i]))
        actions.append(W.copy())
        M = np.stack([np.dot(1.0 - 2.0 * (y[: i + 1] == c), X[: i + 1]) for c in range(CLASSES)])

        def objective(flat, M=M):
            theta = flat.reshape(CLASSES, DIM)
            z = (M * theta).sum(1)
            slope = (theta - phi) / eta + M / (1 + np.exp(-z))[:, None]
            return 0.5 / eta * ((theta - phi) ** 2).sum() + np.logaddexp(0, z).sum(), slope.reshape(
                -1
            )

        inside = {"type": "ineq", "fun": lambda t: 1.0 - t @ t, "jac": lambda t: -2.0 * t}
        options = {"ftol": 1e-14, "maxiter": 800}
        found = minimize(
            objective,
            W.reshape(-1),
            jac=True,
            constraints=[inside],
            method="SLSQP",
            options=options,
        )
        W = found.x.reshape(CLASSES, DIM)
    return losses, W, np.mean(actions, axis=0)


def released(pairs, optima, within, method, epsilon=0.1, gamma=1.1):
    """Regrets and the path of D."""
    phi, D, regrets, path = np.zeros((CLASSES, DIM)), epsilon, [], []
    if method == "single-task":
        D = 1.0
    if method == "omniscient":
        phi = np.mean(optima, axis=0)
        D = max(np.linalg.norm(W - phi) for W in optima)
    for t, ((X, y), best) in enumerate(zip(pairs, optima, strict=True), 1):
        path.append(D)
        losses, last, average = within(X, y, phi, D)
        regrets.append(
            sum(losses) - sum(loss(best, x, label) for x, label in zip(X, y, strict=True))
        )
        if method in ("single-task", "omniscient"):
            continue
        if t > 1 and np.linalg.norm(best - phi) > D:
            D = gamma * D
        step = {"FAL": best, "strawman": best, "FLI-Online": last, "FLI-Batch": average}[method]
        phi = best.copy() if method == "strawman" else (1 - 1 / t) * phi + step / t
    return np.array(regrets), np.array(path)


@pytest.mark.parametrize(
    "method", ["FAL", "strawman", "FLI-Online", "FLI-Batch", "single-task", "omniscient"]
)
def test_ogd(data, method):
    pairs, tasks, optima = data
    regret, path = released(pairs, optima, ogd, method)
    history = run(_composition(tasks, "OGD", method), tasks)
    np.testing.assert_allclose(history.guess, path, rtol=1e-4)
    np.testing.assert_allclose(history.regret, regret, atol=1e-4)
    assert abs(float(history.tar) - regret.mean()) < 1e-4


@pytest.mark.parametrize("method", ["FAL", "strawman"])
def test_ftrl_with_the_released_objective(data, method):
    pairs, tasks, optima = (part[:6] for part in data)
    regret, path = released(pairs, optima, summed_ftrl, method)
    history = run(_composition(tasks, SUMMED, method), tasks)
    np.testing.assert_allclose(history.guess, path, rtol=1e-4)
    np.testing.assert_allclose(history.regret, regret, atol=1e-4)


def _composition(tasks, panel, method):
    preset = PRESETS["released"]
    return find(panel, method).build(preset, preset.within(panel), preset.facts(stack(tasks)))


def test_the_preset_is_the_table_s(data):
    tasks = data[1]
    assert run(presets.released(), tasks).tar == run(_composition(tasks, "OGD", "FAL"), tasks).tar


def test_the_guess_did_grow(data):
    """Or the path of D would not be tested."""
    assert released(data[0], data[2], ogd, "strawman")[1][-1] > 0.1


@pytest.mark.parametrize("preset", PRESETS)
def test_every_composition_is_played_as_step_by_step(data, preset):
    """The experiments' own rules too (the guess tested with the optimum, the released FTRL)."""
    tasks, reading = data[1], PRESETS[preset]
    facts = reading.facts(stack(tasks))
    for c in curves(preset):
        algo = c.build(reading, reading.within(c.panel), facts)
        state, found = algo.init(np.zeros(CLASSES * DIM)), []
        for task in tasks:
            state, played = algo.step(state, task)
            found.append((played.regret, played.guess))
        history = run(algo, tasks)
        both, found = np.stack([history.regret, history.guess], axis=-1), np.array(found, float)
        np.testing.assert_allclose(both, found, atol=1e-7, err_msg=f"{c.within}, {c.method}")
