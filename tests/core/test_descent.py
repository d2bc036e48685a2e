"""Steps from observed gradients, and Meta-SGD, against loops written out."""

import numpy as np
import pytest

import fmrl
from fmrl.core.rules.within import play


def tasks(count=6, rows=7, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        X = rng.normal(size=(rows, 3))
        yield fmrl.Task(X, X @ rng.normal(size=3), loss=fmrl.Squared())


def descent(task, phi, eta):
    """Gradients of online gradient descent on ½(⟨θ, x⟩ − y)², and where it ends."""
    theta, met = phi, []
    for x, y in zip(task.open().X, np.ravel(task.open().target), strict=True):
        met.append((theta @ x - y) * x)
        theta = theta - eta * met[-1]
    return np.array(met), theta


def composed(rule):
    parts = fmrl.OGD(), fmrl.FLIOnline(), fmrl.FollowLeader(), rule
    return fmrl.FMRL(fmrl.Euclidean(), *parts, lipschitz=1.0)


def test_meta_sgd_written_out():
    rule, seen = fmrl.MetaSGD(0.05, rate=0.1, decay=0.8), list(tasks())
    phi, log, v, ends = np.zeros(3), np.full(3, np.log(0.05)), np.zeros(3), []
    for t, task in enumerate(seen, 1):
        met, end = descent(task, phi, np.exp(log))
        pairs = [met[s] * met[i] for i in range(len(met)) for s in range(i)]
        u = np.exp(log) * sum(pairs)
        v = 0.8 * v + 0.2 * u**2
        log = log + 0.1 * u / np.sqrt(v / (1 - 0.8**t))
        ends.append(end)
        phi = np.mean(ends, 0)
    state = fmrl.run(composed(rule), seen, np.zeros(3)).state
    np.testing.assert_allclose(state.guess.steps, np.exp(log), rtol=1e-12)


def test_meta_sgd_moves_steps_to_where_the_losses_met_fall():
    """The sign of its first move is that of the derivative of the summed losses, where steps are
    short.
    """
    for task in tasks(10):
        start, state = np.zeros(3), composed(fmrl.MetaSGD(1e-4, rate=0.1)).init(np.zeros(3))
        moved, _ = composed(fmrl.MetaSGD(1e-4, rate=0.1)).step(state, task)
        for j in range(3):
            sums = []
            for change in (0.9, 1.1):
                steps = np.full(3, 1e-4)
                steps[j] *= change
                metric = fmrl.KnownStep(steps).init(fmrl.Euclidean(), start)[0]
                losses = play(fmrl.OGD(), task, fmrl.Euclidean(), start, metric).losses
                sums.append(float(np.sum(losses)))
            assert (moved.guess.steps[j] > 1e-4) == (sums[1] < sums[0])


@pytest.mark.parametrize("inner", [fmrl.Doubling(0.1, 1.5, first=0.2), fmrl.Known(0.3)], ids=repr)
def test_observed_gradients_stand_for_the_worst_case(inner):
    seen, phi, ends, squares = list(tasks()), np.zeros(3), [], []
    D, memory = inner.init(fmrl.Euclidean(), phi)
    eta = D / 2.0
    for task in seen:
        met, end = descent(task, phi, eta)
        squares.append((met**2).sum())
        facts = fmrl.core.rules.meta.End(end, end, np.array(7**0.5))
        D, memory = inner.update(fmrl.Euclidean(), phi, D, memory, facts)
        eta = D / np.sqrt(np.mean(squares))
        ends.append(end)
        phi = np.mean(ends, 0)
    history = fmrl.run(composed(fmrl.Observed(inner, 2.0)), seen, np.zeros(3))
    assert float(history.state.guess) == pytest.approx(float(eta), rel=1e-12)


def test_what_is_refused():
    for make, says in (
        (lambda: fmrl.Observed(fmrl.Isotropic(0.1)), "sets the step by itself"),
        (lambda: fmrl.Observed(3), "is not a similarity rule"),
        (lambda: fmrl.Observed(fmrl.Known(1.0), 0.0), "zeta"),
        (lambda: fmrl.MetaSGD(0.0), "step"),
        (lambda: fmrl.MetaSGD(0.1, decay=1.0), "decay"),
        (lambda: fmrl.FMRL(fmrl.Simplex(), similarity=fmrl.MetaSGD(0.1)).init(np.ones(2) / 2),
         "geometry of its own"),
    ):  # fmt: skip
        with pytest.raises(fmrl.FMRLError, match=says):
            make()
