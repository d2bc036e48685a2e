"""The solver's promise for any task: margins from 1e-6 to 1e6, every domain, optimum and FTRL.

A gap is at most 1e-10 of the value or 1e-13 of the losses at the domain's middle, whichever is
larger, and it is true. The instances are drawn over many decades on purpose.
"""

import math

import numpy as np
import pytest

import fmrl


def instance(seed: int):
    """Game, domain, phi and eta (None for an optimum) of one random task: any loss, any domain, any
    size, odd samples included.
    """
    rng = np.random.default_rng(seed)
    m, f = int(rng.choice([1, 2, 5, 12, 40, 100])), int(rng.choice([1, 2, 3, 8, 15]))
    classes = int(rng.integers(2, 6))
    size = 10.0 ** rng.uniform(-3, 3)
    X = size * rng.normal(size=(m, f))
    kinds = ["", "duplicated", "zero rows", "one class", "rows of all sizes"]
    odd = rng.choice(kinds, p=[0.6, 0.1, 0.1, 0.1, 0.1])
    if odd == "duplicated":
        X = X[rng.integers(0, max(1, m // 2), m)]
    elif odd == "zero rows":
        X = X * (rng.random((m, 1)) < 0.7)
    elif odd == "rows of all sizes":
        X = X * 10.0 ** rng.uniform(-3, 0, (m, 1))
    truth, separable = rng.normal(size=(f, classes)), rng.random() < 0.5
    labels = (X @ truth).argmax(axis=1) if separable else rng.integers(0, classes, m)
    binary = (X @ truth[:, 0] > 0).astype(int) if separable else rng.integers(0, 2, m)
    if odd == "one class":
        labels, binary = labels * 0, binary * 0 + 1
    targets = 10.0 ** rng.uniform(-2, 2) * (X @ truth[:, 0] if separable else rng.normal(size=m))
    losses = [(fmrl.OneVsAll(classes), labels), (fmrl.Softmax(classes), labels)]
    losses.append((fmrl.Logistic(), binary))
    loss, y = [*losses, (fmrl.Hinge(), binary), (fmrl.Squared(), targets)][rng.integers(5)]
    game = fmrl.Task(X, y, loss=loss).open()
    ball = game.dim == 1
    domain = fmrl.Ball(10.0 ** rng.uniform(-1, 2)) if ball else make_domain(rng, game.dim)
    if rng.random() < 0.5 and not isinstance(domain, fmrl.Euclidean):
        return game, domain, None, None
    phi = domain.middle(np.zeros(game.dim))
    if rng.random() < 0.5:
        push = rng.normal(size=game.dim) * getattr(domain, "radius", 1.0) / 2
        phi = domain.project(
            rng.dirichlet(np.ones(game.dim)) if isinstance(domain, fmrl.Simplex) else phi + push
        )
    return game, domain, phi, np.asarray(10.0 ** rng.uniform(-4, 4))


def make_domain(rng, dim: int):
    radius = 10.0 ** rng.uniform(-1, 2)
    low = rng.choice([-1, 1], p=[0.7, 0.3]) * 10.0 ** rng.uniform(-2, 1.5, dim)
    return [
        fmrl.Ball(radius),
        fmrl.Ball(radius, radius * rng.normal(size=dim)),
        fmrl.Box(-radius, radius),
        fmrl.Box(low, low + 10.0 ** rng.uniform(-2, 2, dim)),
        fmrl.Simplex(),
        fmrl.Simplex(10.0 ** rng.uniform(-6, -0.3) / dim),
        fmrl.Euclidean(),
    ][rng.integers(7)]


def promise(game, domain, value: float) -> float:
    """The largest gap that is allowed."""
    start = np.sum(game.losses(domain.middle(np.zeros(game.dim))))
    return max(1e-10 * abs(float(value)), 1e-13 * float(start))


def check(game, domain, phi=None, eta=None) -> fmrl.Solution:
    """Solve, and hold the answer to the promise."""
    found = fmrl.minimise(game, domain) if phi is None else fmrl.minimise(game, domain, phi, eta)
    again = np.sum(game.losses(found.theta)) + (
        0 if phi is None else domain.divergence(found.theta, phi) / eta
    )
    assert domain.contains(found.theta, slack=1e-9)
    assert found.value == pytest.approx(float(again), rel=1e-9, abs=1e-300)
    assert 0 <= found.gap <= promise(game, domain, found.value), (found.value, found.gap)
    assert found.why.endswith(": proved")
    return found


@pytest.mark.parametrize("block", range(5))
def test_any_task_is_solved_to_its_gap(block):
    """And no action near the one found, at any distance, is below value − gap."""
    rng = np.random.default_rng(block)
    for seed in range(50 * block, 50 * (block + 1)):
        game, domain, phi, eta = instance(seed)
        found = check(game, domain, phi, eta)
        for scale in (1.0, 1e-3, 1e-6):
            step = scale * np.abs(found.theta).max() * rng.normal(size=game.dim)
            near = found.theta + step
            near = domain.project(abs(near) if isinstance(domain, fmrl.Simplex) else near)
            value = np.sum(game.losses(near)) + (
                0 if phi is None else domain.divergence(near, phi) / eta
            )
            assert value >= (found.value - found.gap) * (1 - 1e-12) - 1e-300, seed


def separable(loss, m, f, size, seed):
    rng = np.random.default_rng(seed)
    X = size * rng.normal(size=(m, f))
    y = (X @ rng.normal(size=(f, max(loss.outputs, 2)))).argmax(axis=1)
    return fmrl.Task(X, y, loss=loss).open()


@pytest.mark.parametrize(
    ("loss", "domain", "shape", "size"),
    [
        (fmrl.OneVsAll(3), fmrl.Ball(30.0), (10, 8), 87.4),
        (fmrl.Softmax(5), fmrl.Box(-100.0, 100.0), (12, 8), 1.0),
        (fmrl.Logistic(), fmrl.Ball(50.0, 3.0), (100, 15), 20.0),
        (fmrl.Logistic(), fmrl.Simplex(), (5, 12), 1e5),
        (fmrl.Softmax(3), fmrl.Simplex(0.01), (5, 8), 300.0),
    ],
    ids=str,
)
def test_separable_tasks_with_large_margins(loss, domain, shape, size):
    for seed in range(4):
        check(separable(loss, *shape, size, seed), domain)


@pytest.mark.parametrize(
    "domain",
    [fmrl.Ball(50.0, 3.0), fmrl.Box(-30.0, 100.0), fmrl.Simplex(), fmrl.Simplex(0.01)],
    ids=repr,
)
@pytest.mark.parametrize("loss", [fmrl.Logistic(), fmrl.Softmax(3)], ids=repr)
def test_other_tasks_with_large_margins(domain, loss):
    """Labels at random and margins in the thousands: the losses are corners to a Newton step."""
    rng = np.random.default_rng(3)
    for size in (30.0, 1e3, 1e5 if isinstance(domain, fmrl.Simplex) else 1e-3):
        X, y = size * rng.normal(size=(40, 8)), rng.integers(0, max(loss.outputs, 2), 40)
        check(fmrl.Task(X, y, loss=loss).open(), domain)


def root(slope, low=-800.0, high=800.0) -> float:
    """Where an increasing function is 0, by bisection."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return (low + high) / 2


@pytest.mark.parametrize("size", [1.0, 30.0, 1e3])
@pytest.mark.parametrize("eta", [0.1, 30.0, 1e4])
def test_ftrl_with_two_experts_is_a_root(size, eta):
    """θ = (p, 1 − p), p = 1/(1 + e^(−s)): one unknown s, found by bisection."""
    rng = np.random.default_rng(0)
    for _ in range(4):
        X, y, phi = size * rng.normal(size=(6, 2)), rng.integers(0, 2, 6), rng.dirichlet([1.0, 1.0])
        sign, across = 1 - 2 * y, X[:, 0] - X[:, 1]

        def slope(s, sign=sign, across=across, X=X, phi=phi):
            p = 1 / (1 + math.exp(-s)) if s > -700 else 0.0
            pull = 0.5 * (1 + np.tanh(sign * (X[:, 1] + p * across) / 2)) @ (sign * across)
            return eta * pull + s - math.log(phi[0] / phi[1])

        s = root(slope, -1e8, 1e8)
        theta = np.array([math.exp(-np.logaddexp(0, -s)), math.exp(-np.logaddexp(0, s))])
        game, domain = fmrl.Task(X, y, loss=fmrl.Logistic()).open(), fmrl.Simplex()
        best = np.sum(game.losses(theta)) + domain.divergence(theta, phi) / eta
        found = check(game, domain, phi, np.asarray(eta))
        assert found.value - found.gap <= best * (1 + 1e-12)
        assert found.value <= best * (1 + 1e-12) + promise(game, domain, best)


@pytest.mark.parametrize("size", [1.0, 1e3])
@pytest.mark.parametrize("eta", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize(
    "domain", [fmrl.Euclidean(), fmrl.Ball(1e4), fmrl.Box(-1e4, 1e4)], ids=repr
)
def test_ftrl_after_one_round_is_a_root(domain, size, eta):
    """One sample moves theta along itself: θ = phi + s·x/‖x‖², and s is a root."""
    rng = np.random.default_rng(1)
    for label in (0, 1):
        x, phi, sign = size * rng.normal(size=5), rng.normal(size=5), 1 - 2 * label
        square = x @ x

        def slope(s, sign=sign, x=x, phi=phi, square=square):
            return eta * sign * 0.5 * (1 + math.tanh(sign * (x @ phi + s) / 2)) + s / square

        s = root(slope, -1e9, 1e9)
        best = np.logaddexp(0, sign * (x @ phi + s)) + s * s / square / 2 / eta
        game = fmrl.Task([x], [label], loss=fmrl.Logistic()).open()
        found = check(game, domain, phi, np.asarray(eta))
        assert found.value - found.gap <= best * (1 + 1e-12)
        assert found.value <= best * (1 + 1e-12) + promise(game, domain, best)


@pytest.mark.parametrize("seed", [27, 38, 40])
def test_steep_parabolas_among_experts(seed):
    """eta·X² in the millions: multiplicative steps would crawl, straight ones do not."""
    rng = np.random.default_rng(seed)
    X = 129 * rng.normal(size=(8, 15))
    y = X @ rng.normal(size=15) * 10 ** rng.uniform(-2, 0)
    game = fmrl.Task(X, y, loss=fmrl.Squared()).open()
    check(game, fmrl.Simplex(), np.full(15, 1 / 15), np.asarray(2185.0))


@pytest.mark.parametrize(
    ("domain", "shape", "size"),
    [(fmrl.Simplex(), (5, 30), 352.0), (fmrl.Ball(30.0), (20, 8), 35.0)],
    ids=str,
)
def test_corners_in_one_place(domain, shape, size):
    """The same rows with both labels: their hinges cancel, and what is left is flat."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X = size * rng.normal(size=shape)[rng.integers(0, shape[0] // 2, shape[0])]
        check(fmrl.Task(X, rng.integers(0, 2, shape[0]), loss=fmrl.Hinge()).open(), domain)


def test_a_phi_that_loses_nothing_is_the_answer():
    """Losses far below the rounding of phi: FTRL stays there, even on the edge of the domain."""
    for domain in (fmrl.Ball(30.0), fmrl.Box(-30.0, 30.0), fmrl.Euclidean()):
        phi = np.array([18.0, 24.0])
        for loss in (fmrl.Logistic(), fmrl.Hinge()):
            found = check(
                fmrl.Task([[2.0, 3.0]], [1], loss=loss).open(), domain, phi, np.asarray(1e-3)
            )
            np.testing.assert_allclose(found.theta, phi, rtol=1e-12)
