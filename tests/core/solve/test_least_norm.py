"""The shortest of many minimisers, against closed forms."""

import numpy as np
import pytest

import fmrl
from fmrl.core.solve.gap import Method, Objective
from fmrl.core.solve.interior import interior, shortest


def solved(X, y, loss, domain):
    problem = Objective(fmrl.stack([fmrl.Task(X, y, loss=loss)]), domain)
    plain = interior(problem)
    return plain, shortest(problem, plain)


def test_what_no_sample_sees_goes_to_zero_as_far_as_the_box_allows():
    """θ₁ is 0.5 by the sample; θ₂ and θ₃ are free, and 0 is only in the first one's range."""
    domain = fmrl.Box((-1.0, -1.0, 0.25), (1.0, 3.0, 2.0))
    plain, found = solved([[1.0, 0.0, 0.0]], [0.5], fmrl.Squared(), domain)
    np.testing.assert_allclose(found.theta[0], [0.5, 0.0, 0.25], atol=1e-6)
    assert np.linalg.norm(found.theta) < np.linalg.norm(plain.theta)
    assert found.method[0] == Method.LEAST_DIVERGENCE and found.gap[0] <= 1e-13


@pytest.mark.parametrize("loss", [fmrl.Logistic(), fmrl.Hinge()], ids=repr)
def test_equal_columns_share_equally(loss):
    X = np.array([[1.0, 1.0], [2.0, 2.0], [-1.5, -1.5], [0.5, 0.5]])
    plain, found = solved(X, [1, 0, 1, 1], loss, fmrl.Box(-1.0, 4.0))
    assert found.theta[0, 0] == pytest.approx(found.theta[0, 1], abs=1e-6)
    assert found.value[0] <= plain.value[0] + 1e-10 * plain.value[0]


def test_on_the_simplex_the_nearest_to_uniform():
    """Equal experts 1 and 2 share what expert 3 leaves."""
    _, found = solved([[1.0, 1.0, 0.0]], [0.4], fmrl.Squared(), fmrl.Simplex())
    np.testing.assert_allclose(found.theta[0], [0.2, 0.2, 0.6], atol=1e-6)


def test_a_unique_minimiser_is_left_alone():
    plain, found = solved(np.eye(2), [0.3, -0.2], fmrl.Squared(), fmrl.Box(-1.0, 1.0))
    np.testing.assert_array_equal(found.theta, plain.theta)
    assert found.method[0] == Method.INTERIOR


def test_softmax_without_bounds_has_no_common_part():
    """Mirrored labels, so that there is an optimum: its classes sum to zero."""
    X = np.random.default_rng(0).normal(size=(9, 2))
    task = fmrl.Task(np.concatenate([X] * 3), np.repeat([0, 1, 2], 9), loss=fmrl.Softmax(3))
    theta = fmrl.minimise(task.open(), fmrl.Euclidean()).theta.reshape(3, 2)
    np.testing.assert_allclose(theta.sum(axis=0), 0, atol=1e-12)


def test_the_hinge_without_bounds_finds_the_widest_margin():
    """Separable samples ±(3, 4): of all actions without loss the shortest is (3, 4)/25."""
    task = fmrl.Task([[3.0, 4.0], [-3.0, -4.0], [9.0, 5.0]], [1, 0, 1], loss=fmrl.Hinge())
    found = fmrl.minimise(task.open(), fmrl.Euclidean())
    np.testing.assert_allclose(found.theta, [0.12, 0.16], atol=1e-6)
    assert found.gap <= 1e-12


def test_least_divergence_on_the_simplex_is_not_least_norm():
    """⟨(1, ½, 0), θ⟩ = 0.7: on that segment the norm is least at (0.508, 0.383, 0.108), KL to
    uniform elsewhere.
    """
    x = np.array([1.0, 0.5, 0.0])
    found = fmrl.minimise(fmrl.Task([x], [0.7], loss=fmrl.Squared()), fmrl.Simplex()).theta
    s = np.linspace(0.4, 0.7, 300_001)
    line = np.stack([s, 1.4 - 2 * s, s - 0.4], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = np.nansum(line * np.log(line), axis=1)
    np.testing.assert_allclose(found, line[np.argmin(divergence)], atol=1e-5)
    assert np.linalg.norm(found - line[np.argmin(np.sum(line**2, axis=1))]) > 0.02
