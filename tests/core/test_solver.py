"""The solver: certified gaps, agreement with cvxpy, the minimiser of least norm."""

import math

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import BOUNDED, DOMAINS, LOSSES, make_data, make_domain, make_loss, points, seeds

import fmrl

shapes = st.sampled_from([(1, 3), (3, 6), (4, 4), (12, 3), (40, 2)])


def problem(domain_kind, kind, shape, seed, separable=False):
    rng, loss = np.random.default_rng(seed), make_loss(kind)
    X, y = make_data(loss, *shape, rng, separable)
    domain = make_domain(domain_kind, loss.outputs * shape[1], rng)
    return rng, loss, X, y, domain, fmrl.Task(X, y, loss=loss).open()


def certified(found, game):
    """The relative gap asked for, or the rounding of the losses where the minimum is 0 itself."""
    return found.gap <= np.maximum(1e-10 * np.abs(found.value), 1e-13 * (1 + game.length))


@pytest.mark.parametrize("domain_kind", BOUNDED)
@pytest.mark.parametrize("kind", LOSSES)
@given(shape=shapes, seed=seeds, separable=st.booleans())
@settings(max_examples=3)
def test_optimum_agrees_with_cvxpy(domain_kind, kind, shape, seed, separable):
    _, loss, X, y, domain, game = problem(domain_kind, kind, shape, seed, separable)
    found = fmrl.minimise(game, domain)
    assert certified(found, game)
    assert domain.contains(found.theta, slack=1e-9)
    assert found.value == pytest.approx(
        float(np.sum(game.losses(found.theta))), rel=1e-12, abs=1e-12
    )
    theta, value = reference.minimise(loss, X, y, domain)
    size = 1 + abs(value)
    assert abs(found.value - value) <= 1e-6 * size
    assert found.value - found.gap <= value + 1e-8 * size  # the interval holds the true minimum
    np.testing.assert_allclose(np.sum(game.losses(theta)), found.value, atol=1e-6 * size)


@pytest.mark.parametrize("domain_kind", DOMAINS)
@pytest.mark.parametrize("kind", LOSSES)
@given(shape=shapes, seed=seeds, eta=st.sampled_from([0.01, 0.3, 3.0, 30.0]))
@settings(max_examples=3)
def test_ftrl_objective_agrees_with_cvxpy(domain_kind, kind, shape, seed, eta):
    rng, loss, X, y, domain, game = problem(domain_kind, kind, shape, seed)
    phi = points(domain, game.dim, rng)[0]
    found = fmrl.minimise(game, domain, phi, eta)
    assert certified(found, game)
    theta, value = reference.minimise(loss, X, y, domain, phi, eta)
    exact = (
        domain.norm == "l2" and kind != "hinge"
    )  # elsewhere cvxpy's own answer cannot be polished
    np.testing.assert_allclose(found.theta, theta, atol=1e-6 if exact else 1e-5)
    if np.isfinite(value):
        assert found.value == pytest.approx(value, rel=1e-6, abs=1e-7)
    again = np.sum(game.losses(found.theta)) + domain.divergence(found.theta, phi) / eta
    assert found.value == pytest.approx(float(again), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("domain_kind", ["ball", "shifted ball", "box", "simplex"])
@pytest.mark.parametrize("kind", ["one-vs-all", "logistic", "squared"])
@pytest.mark.parametrize("seed", range(3))
def test_unique_optimum_agrees_with_cvxpy(domain_kind, kind, seed):
    """More samples than features: the losses are strictly convex and the minimiser itself can be
    compared.
    """
    _, loss, X, y, domain, game = problem(domain_kind, kind, (60, 3), seed)
    np.testing.assert_allclose(
        fmrl.minimise(game, domain).theta, reference.minimise(loss, X, y, domain)[0], atol=1e-6
    )


@pytest.mark.parametrize("kind", ["squared", "hinge", "logistic", "one-vs-all", "softmax"])
@pytest.mark.parametrize("shape", [(40, 3), (12, 2)])
@given(seed=seeds)
@settings(max_examples=6)
def test_euclidean_optimum_agrees_with_cvxpy(kind, shape, seed):
    """Mirrored data cannot be separated, so that an optimum exists without bounds."""
    rng, loss = np.random.default_rng(seed), make_loss(kind)
    X, y = make_data(loss, *shape, rng)
    if kind not in ("squared", "hinge"):
        X = np.concatenate([X] * 3)
        y = np.concatenate([y, (y + 1) % max(loss.outputs, 2), (y + 2) % max(loss.outputs, 2)])
    game = fmrl.Task(X, y, loss=loss).open()
    found = fmrl.minimise(game, fmrl.Euclidean())
    assert certified(found, game)
    theta, value = reference.minimise(loss, X, y, fmrl.Euclidean())
    assert found.value == pytest.approx(value, rel=1e-6, abs=1e-7)
    if kind in ("squared", "logistic", "one-vs-all"):
        np.testing.assert_allclose(found.theta, theta, atol=1e-6 * (1 + np.abs(theta).max()))


@given(seed=seeds, shape=st.sampled_from([(2, 5), (5, 5), (9, 4)]))
def test_euclidean_least_squares_is_the_pseudo_inverse(seed, shape):
    """With fewer samples than features the answer of least norm is pinv(X)·y."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=shape), rng.normal(size=shape[0])
    found = fmrl.minimise(fmrl.Task(X, y, loss=fmrl.Squared()).open(), fmrl.Euclidean())
    exact = np.linalg.pinv(X) @ y
    np.testing.assert_allclose(found.theta, exact, atol=1e-6 * (1 + np.linalg.norm(exact)))


@pytest.mark.parametrize("kind", ["logistic", "one-vs-all", "softmax"])
def test_no_optimum_on_euclidean_is_an_error(kind):
    game = problem("euclidean", kind, (6, 8), 0, separable=True)[-1]
    with pytest.raises(fmrl.FMRLError, match=r"no finite optimum.*Ball"):
        fmrl.minimise(game, fmrl.Euclidean())


@pytest.mark.parametrize("domain_kind", [d for d in BOUNDED if d != "shifted ball"])
@pytest.mark.parametrize("kind", ["one-vs-all", "logistic", "squared"])
@given(seed=seeds, shape=st.sampled_from([(1, 3), (2, 5), (3, 4)]))
@settings(max_examples=5)
def test_least_norm_among_minimisers(domain_kind, kind, seed, shape):
    """With fewer samples than features many actions have the optimal margins; the shortest of
    them is wanted.
    """
    _, loss, X, _, domain, game = problem(domain_kind, kind, shape, seed)
    found = fmrl.minimise(game, domain)
    shortest = reference.shortest(domain, X, game.margins(found.theta), loss.outputs)
    if "simplex" in domain_kind:  # there, nearest to the uniform distribution in KL
        middle = domain.middle(found.theta)
        assert (
            domain.divergence(found.theta, middle)
            <= domain.divergence(np.maximum(shortest, 0), middle) + 1e-6
        )
        return
    assert np.linalg.norm(found.theta) <= np.linalg.norm(shortest) + 1e-5
    np.testing.assert_allclose(found.theta, shortest, atol=2e-3)


@pytest.mark.parametrize(("radius", "away"), [(2.0, 1.0), (1.0, 3.0)])
def test_least_norm_on_a_shifted_ball(radius, away):
    """One sample sees one coordinate; the centre's part that it does not see is taken off as far
    as the ball allows.
    """
    domain = fmrl.Ball(radius, (0.0, away, 0.0))
    found = fmrl.minimise(fmrl.Task([[1.0, 0.0, 0.0]], [0.5], loss=fmrl.Squared()).open(), domain)
    expected = [0.5, max(0.0, away - math.sqrt(radius**2 - 0.25)), 0.0]
    np.testing.assert_allclose(found.theta, expected, atol=1e-9)


@pytest.mark.parametrize("domain_kind", ["ball", "shifted ball"])
@pytest.mark.parametrize("shape", [(3, 6), (30, 3)])
def test_least_norm_of_softmax_ignores_the_common_part(domain_kind, shape):
    """Adding one vector to all classes changes no loss; on a ball around 0 the least norm has
    none of it.
    """
    _, _, _, _, domain, game = problem(domain_kind, "softmax", shape, 3)
    theta = fmrl.minimise(game, domain).theta.reshape(3, -1)
    for scale in (1e-3, -1e-3):
        for way in np.eye(shape[1]):
            other = theta + scale * way
            assert np.linalg.norm(other) >= np.linalg.norm(theta) - 1e-9 or not domain.contains(
                other.ravel(), slack=0.0
            )


@pytest.mark.parametrize("domain_kind", BOUNDED)
@pytest.mark.parametrize("kind", LOSSES)
@given(seed=seeds)
@settings(max_examples=2)
def test_gap_is_an_upper_bound_anywhere(domain_kind, kind, seed):
    """The certificate of a poor action is still true: its value minus the minimum never exceeds
    the gap.
    """
    from fmrl.core.solve.gap import Objective

    rng, loss, _, _, domain, game = problem(domain_kind, kind, (7, 3), seed)
    best = fmrl.minimise(game, domain)
    stack = fmrl.stack(
        [fmrl.Task(game.X, None if kind == "linear" else _labels(game, loss), loss=loss)] * 20
    )
    theta = points(domain, game.dim, rng, 20, edge=True)
    z = stack.margins(theta)
    u = loss.slope(z, stack.target)
    for phi, eta in ((None, None), (points(domain, game.dim, rng, 20), np.full(20, 0.7))):
        objective = Objective(stack, domain, phi, eta)
        gap, value = objective.gap(theta, z, u), objective.value(theta, z)
        exact = fmrl.minimise(stack, domain, phi, eta)
        least = best.value if phi is None else 0.7 * (exact.value - exact.gap)
        assert np.all(value - least <= gap + 1e-9 * (1 + abs(value)))


def _labels(game, loss):
    if isinstance(loss, fmrl.Squared):
        return game.target[:, 0]
    return game.target.argmax(axis=1) if loss.outputs > 1 else (game.target[:, 0] > 0).astype(int)


@pytest.mark.parametrize("domain_kind", ["ball", "box", "floored simplex"])
@pytest.mark.parametrize("kind", LOSSES)
def test_a_stack_is_solved_like_its_tasks(domain_kind, kind):
    rng, loss = np.random.default_rng(11), make_loss(kind)
    domain = make_domain(domain_kind, loss.outputs * 3, rng)
    tasks = [
        fmrl.Task(*make_data(loss, m, 3, rng, separable=m % 2 == 0), loss=loss)
        for m in (1, 2, 5, 17, 8, 3)
    ]
    together = fmrl.minimise(fmrl.stack(tasks), domain)
    phi, eta = points(domain, loss.outputs * 3, rng, 6), rng.uniform(0.1, 2, size=6)
    regular = fmrl.minimise(fmrl.stack(tasks), domain, phi, eta)
    for t, task in enumerate(tasks):
        alone = fmrl.minimise(task.open(), domain)
        assert together.value[t] == pytest.approx(float(alone.value), rel=1e-10, abs=1e-12)
        np.testing.assert_allclose(together.theta[t], alone.theta, atol=1e-9)
        np.testing.assert_allclose(
            regular.theta[t], fmrl.minimise(task.open(), domain, phi[t], eta[t]).theta, atol=1e-8
        )


@pytest.mark.parametrize("domain_kind", DOMAINS)
@pytest.mark.parametrize("kind", ["one-vs-all", "squared", "hinge"])
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e5])
def test_small_and_large_scales(domain_kind, kind, scale):
    """Features of any size: the gap stays certified. (Logistic margins of 1e5 are steps to
    machine precision: honest is enough.)
    """
    rng, loss = np.random.default_rng(5), make_loss(kind)
    X, y = make_data(loss, 8, 3, rng)
    domain = make_domain(domain_kind, loss.outputs * 3, rng)
    game = fmrl.Task(scale * X, y, loss=loss).open()
    phi = points(domain, game.dim, rng)[0]
    found = [fmrl.minimise(game, domain, phi, 0.3)] + (
        [] if domain_kind == "euclidean" else [fmrl.minimise(game, domain)]
    )
    for solution in found:
        start = np.sum(game.losses(phi))
        if (scale, kind) == (1e5, "one-vs-all"):
            assert 0 <= solution.gap < math.inf
        else:
            assert solution.gap <= max(1e-10 * abs(solution.value), 1e-14 * start), (
                scale,
                solution,
            )


def test_zero_features_and_duplicates():
    for domain in (fmrl.Ball(1.0), fmrl.Box(-1, 1), fmrl.Ball(1.0, [0.1, 0.0, 0.2])):
        nothing = fmrl.minimise(
            fmrl.Task(np.zeros((4, 3)), [0, 1, 1, 0], loss=fmrl.Logistic()).open(), domain
        )
        assert nothing.value == pytest.approx(4 * math.log(2)) and nothing.gap <= 1e-12
        same = fmrl.minimise(
            fmrl.Task(np.ones((6, 3)), [0, 1, 1, 0, 1, 1], loss=fmrl.Logistic()).open(), domain
        )
        assert same.gap <= 1e-10 * same.value
        np.testing.assert_allclose(sum(same.theta), math.log(2), atol=1e-6)


def test_ftrl_from_the_edge_of_the_simplex_keeps_to_it():
    """An expert without mass in phi never gets any: B_R is infinite there."""
    X, y = np.random.default_rng(0).normal(size=(5, 3)), [0, 1, 1, 0, 1]
    phi = np.array([0.5, 0.5, 0.0])
    found = fmrl.minimise(fmrl.Task(X, y, loss=fmrl.Logistic()).open(), fmrl.Simplex(), phi, 0.5)
    inner = fmrl.minimise(
        fmrl.Task(X[:, :2], y, loss=fmrl.Logistic()).open(), fmrl.Simplex(), phi[:2], 0.5
    )
    np.testing.assert_allclose(found.theta, [*inner.theta, 0.0], atol=1e-6)
    assert found.gap <= 1e-9
