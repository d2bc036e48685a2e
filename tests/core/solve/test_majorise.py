"""Majorise–minimise by itself: where it converges it is exact, and where it does not it says so."""

import math

import numpy as np
import pytest
from instances import make_data, make_loss

import fmrl
from fmrl.core.solve import minimise
from fmrl.core.solve.gap import Method, Objective
from fmrl.core.solve.majorise import Rotation, descend, majorise


def stacked(kind: str, shape, seed: int, count: int = 3):
    rng, loss = np.random.default_rng(seed), make_loss(kind)
    return fmrl.stack([fmrl.Task(*make_data(loss, *shape, rng), loss=loss) for _ in range(count)])


@pytest.mark.parametrize("shape", [(3, 6), (9, 4)])
@pytest.mark.parametrize(
    "domain", [fmrl.Ball(1.0), fmrl.Ball(2.0, 0.3), fmrl.Euclidean()], ids=repr
)
@pytest.mark.parametrize("kind", ["one-vs-all", "softmax", "squared"])
def test_rotated_coordinates_have_the_same_values(kind, domain, shape):
    """Up and down again is the identity, and margins and divergences do not change."""
    game, rng = stacked(kind, shape, 0), np.random.default_rng(1)
    phi = 0.1 * rng.normal(size=(3, game.dim))
    rotation = Rotation(game, domain, phi)
    problem, curvature = rotation.objective(game.length, np.ones(3))
    theta = rotation.up(rotation.down(phi))
    np.testing.assert_allclose(theta, phi, atol=1e-12)
    np.testing.assert_allclose(problem.samples.margins(rotation.down(phi)), game.margins(phi))
    assert curvature.shape[-1] == problem.samples.X.shape[-1] and np.all(curvature >= 0)


@pytest.mark.parametrize("kind", ["one-vs-all", "softmax", "logistic", "squared"])
@pytest.mark.parametrize("domain", [fmrl.Ball(0.5), fmrl.Euclidean()], ids=repr)
def test_ftrl_satisfies_its_optimality_condition(kind, domain):
    """θ = argmin B_R(·‖phi) + eta·⟨∇F(θ), ·⟩, in the user's coordinates."""
    game, rng, eta = stacked(kind, (12, 4), 0), np.random.default_rng(2), np.full(3, 0.4)
    phi = domain.project(0.3 * rng.normal(size=(3, game.dim)))
    rotation = Rotation(game, domain, phi)
    problem, curvature = rotation.objective(game.length, eta)
    found = majorise(problem, curvature, rotation.phi, 1e-12)
    theta = rotation.up(found.theta)
    gradient = game.gather(game.loss.slope(game.margins(theta), game.target))
    np.testing.assert_allclose(theta, domain.argmin(phi, eta[:, None] * gradient), atol=1e-9)
    assert np.all(found.gap <= 1e-12) and np.all(found.method == Method.MAJORISE)


def test_least_squares_takes_one_step_to_the_normal_equations():
    game = stacked("squared", (20, 4), 3)
    problem, curvature = Rotation(game, fmrl.Ball(1e3)).objective(game.length, None)
    rotation = Rotation(game, fmrl.Ball(1e3))
    theta = rotation.up(majorise(problem, curvature, np.zeros((3, 4)), 1e-12).theta)
    for t in range(3):
        exact = np.linalg.lstsq(game.X[t], game.target[t, :, 0], rcond=None)[0]
        np.testing.assert_allclose(theta[t], exact, atol=1e-10)


def test_descent_gives_up_where_it_is_slow():
    """On a small ball it converges; on a large one the gap is infinite, and others go on."""
    game = stacked("one-vs-all", (40, 3), 4)
    small = descend(Objective(game, fmrl.Ball(0.05)), 1e-12)
    assert np.all(small.gap <= 1e-10 * small.value) and np.all(small.method == Method.DESCENT)
    assert np.all(descend(Objective(game, fmrl.Ball(50.0)), 1e-12).gap == math.inf)


@pytest.mark.parametrize("loss", [fmrl.Logistic(), fmrl.OneVsAll(3), fmrl.Squared()], ids=repr)
@pytest.mark.parametrize("domain", [fmrl.Euclidean(), fmrl.Ball(20.0)], ids=repr)
def test_a_phi_inside_the_span_is_no_remainder(loss, domain):
    """Fewer rounds than features: what rounding leaves of phi outside their span does not count."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 5, 6))
    y = rng.integers(0, 3 if isinstance(loss, fmrl.OneVsAll) else 2, size=(12, 5))
    y[:, :2] = 0, 1
    for rows, labels in zip(X, y, strict=True):
        game = fmrl.Task(rows, labels, loss=loss).open()
        phi = (rng.normal(size=(loss.outputs, 5)) @ rows).ravel()
        found = minimise(game, domain, phi, np.asarray(3.0))
        assert found.gap < 1e-8
        near = phi * (1 + 1e-13 * rng.normal(size=phi.shape))
        moved = minimise(game, domain, near, np.asarray(3.0))
        # An action is solved until its loss is, not to the last digit.
        np.testing.assert_allclose(moved.theta, found.theta, atol=1e-6)
