"""Separable tasks on large domains, where losses fall to e^−100 and below: the promised gap,
honest, and batched = alone.
"""

import math

import numpy as np
import pytest
import reference
from instances import loop, same

import fmrl

LOSSES = {
    "softmax": fmrl.Softmax(2),
    "one-vs-all": fmrl.OneVsAll(2),
    "logistic": fmrl.Logistic(),
    "hinge": fmrl.Hinge(),
}
DOMAINS = [fmrl.Ball(r) for r in (10.0, 30.0, 100.0)] + [
    fmrl.Box(-r, r) for r in (10.0, 30.0, 100.0)
]


def separable(kind, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rng.integers(2, 9), 3))
    return fmrl.Task(X, (X[:, 0] > 0).astype(int), loss=LOSSES[kind])


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
@pytest.mark.parametrize("kind", LOSSES)
def test_gap_is_promised_and_true(domain, kind):
    """The promised gap, and no action near the one found, at any scale, beats value − gap."""
    rng = np.random.default_rng(1)
    for seed in range(5):
        game = separable(kind, seed).open()
        found = fmrl.minimise(game, domain)
        assert domain.contains(found.theta, slack=1e-12)
        assert found.value == pytest.approx(
            float(np.sum(game.losses(found.theta))), rel=1e-12, abs=0
        )
        if kind == "hinge":
            assert found.value == found.gap == 0
            continue
        start = float(np.sum(game.losses(np.zeros(game.dim))))
        assert found.value > 0 and found.gap <= max(1e-10 * found.value, 1e-13 * start), seed
        for scale in (1e-1, 1e-3, 1e-6):
            near = domain.project(found.theta + scale * rng.normal(size=(20, game.dim)))
            others = [float(np.sum(game.losses(theta))) for theta in near]
            assert min(others) >= (found.value - found.gap) * (1 - 1e-11)


@pytest.mark.parametrize("radius", [10.0, 100.0])
def test_two_samples_have_a_closed_form(radius):
    """Mirrored samples ±a pull the same way: the optimum is radius·a/‖a‖ and its losses are
    2·log(1 + e^(−radius·‖a‖)).
    """
    a = np.array([3.0, 4.0]) / 5
    found = fmrl.minimise(
        fmrl.Task([a, -a], [1, 0], loss=fmrl.Logistic()).open(), fmrl.Ball(radius)
    )
    exact = 2 * math.log1p(math.exp(-radius))
    assert abs(found.value - exact) <= 1e-12 * exact and found.gap <= 1e-10 * exact + 1e-13
    np.testing.assert_allclose(found.theta, radius * a, rtol=1e-9)


@pytest.mark.parametrize("kind", ["softmax", "one-vs-all", "logistic"])
@pytest.mark.parametrize("domain", [fmrl.Ball(10.0), fmrl.Box(-10.0, 10.0)], ids=repr)
def test_agrees_with_cvxpy_where_that_resolves_it(domain, kind):
    for seed in range(4):
        task = separable(kind, seed)
        y = (np.asarray(task.X)[:, 0] > 0).astype(int)
        _, value = reference.minimise(task.loss, np.asarray(task.X), y, domain)
        assert fmrl.minimise(task.open(), domain).value == pytest.approx(value, abs=1e-7)


@pytest.mark.parametrize("within", [fmrl.OMD(), fmrl.OGD(), fmrl.FTRL()], ids=repr)
@pytest.mark.parametrize("kind", ["softmax", "one-vs-all", "logistic"])
@pytest.mark.parametrize("domain", DOMAINS[:3], ids=repr)
def test_run_is_step_in_a_loop(domain, kind, within):
    # Sorted, so that blocks hold several.
    tasks = sorted((separable(kind, seed) for seed in range(4)), key=lambda task: task.rounds)
    algo = fmrl.FMRL(domain, within, fmrl.FAL())
    same(fmrl.run(algo, tasks), loop(algo, tasks, np.zeros(tasks[0].dim)))


@pytest.mark.parametrize("loss", [fmrl.Softmax(3), fmrl.OneVsAll(3), fmrl.Logistic()], ids=repr)
def test_losses_far_on_the_right_side_keep_their_digits(loss):
    """A margin of 50 costs e^−50 a class, with slope and curvature to match, not 0."""
    if loss.outputs == 1:
        z, target, small = np.array([50.0]), np.array([1.0]), math.exp(-50)
    else:
        z, target, small = np.array([50.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0]), math.exp(-50)
        z = z if isinstance(loss, fmrl.Softmax) else np.array([50.0, -50.0, -50.0])
    count = {"Softmax": 2, "OneVsAll": 3, "Logistic": 1}[type(loss).__name__]
    assert float(loss.value(z, target)) == pytest.approx(count * small, rel=1e-13)
    own = 2 * small if isinstance(loss, fmrl.Softmax) else small
    assert loss.slope(z, target)[0] == pytest.approx(-own, rel=1e-13)
    assert loss.curvature(z, target).ravel()[0] == pytest.approx(own, rel=1e-13)
