"""The interior-point method by itself: closed forms, corners, and problems of a stack at once."""

import math

import numpy as np
import pytest

import fmrl
from fmrl.core.solve.gap import Method, Objective
from fmrl.core.solve.interior import interior


def problem(X, y, loss, domain, phi=None, eta=None) -> Objective:
    lead = None if phi is None else np.asarray(phi)[None]
    step = None if eta is None else np.asarray([eta])
    return Objective(fmrl.stack([fmrl.Task(X, y, loss=loss)]), domain, lead, step)


def test_a_box_cuts_each_coordinate_of_a_separable_parabola():
    found = interior(problem(np.eye(3), [3.0, -0.5, 0.2], fmrl.Squared(), fmrl.Box(-1.0, 1.0)))
    np.testing.assert_allclose(found.theta[0], [1.0, -0.5, 0.2], atol=1e-7)
    assert found.value[0] - found.gap[0] <= 2.0 <= found.value[0] + 1e-12
    assert np.all(found.method == Method.INTERIOR)


def test_the_hinge_ends_in_its_corner():
    """Three samples want θ ≥ 1 and one wants θ ≤ −1: the corner at 1 has the least loss, 2."""
    X, y = np.ones((4, 1)), [1, 1, 1, 0]
    found = interior(problem(X, y, fmrl.Hinge(), fmrl.Ball(5.0)))
    assert found.theta[0, 0] == pytest.approx(1.0, abs=1e-9)
    assert found.value[0] == pytest.approx(2.0, abs=1e-11) and found.gap[0] <= 2e-10


def test_hinge_ftrl_is_clipped_at_the_corner():
    """One sample: θ = phi + s·x with s = min(eta, what reaches the margin 1)."""
    for eta, expected in ((0.1, [0.06, 0.08]), (10.0, [0.6, 0.8])):
        found = interior(
            problem([[0.6, 0.8]], [1], fmrl.Hinge(), fmrl.Box(-9.0, 9.0), [0.0, 0.0], eta)
        )
        np.testing.assert_allclose(found.theta[0], expected, atol=1e-8)


@pytest.mark.parametrize("radius", [1.0, 20.0, 300.0])
def test_margins_of_any_size_on_a_ball(radius):
    """±a with their labels: θ = radius·a/‖a‖, and the losses are 2·log(1 + e^(−radius·‖a‖))."""
    a = np.array([3.0, 4.0])
    found = interior(problem([a, -a], [1, 0], fmrl.Logistic(), fmrl.Ball(radius)))
    exact = 2 * math.log1p(math.exp(-5 * radius))
    assert found.value[0] - found.gap[0] <= exact <= found.value[0] * (1 + 1e-12)
    assert found.gap[0] <= max(1e-10 * exact, 1e-13 * 2 * math.log(2))


def test_problems_of_a_stack_do_not_touch_each_other():
    rng = np.random.default_rng(0)
    tasks = [
        fmrl.Task(10.0**k * rng.normal(size=(m, 3)), rng.integers(0, 2, m), loss=fmrl.Logistic())
        for k, m in ((-2, 4), (0, 9), (2, 6))
    ]
    domain = fmrl.Box(-2.0, 3.0)
    whole = interior(Objective(fmrl.stack(tasks), domain))
    for t, task in enumerate(tasks):
        alone = interior(Objective(fmrl.stack([task]), domain))
        np.testing.assert_allclose(whole.theta[t], alone.theta[0], atol=1e-8)
        assert whole.value[t] == pytest.approx(alone.value[0], rel=1e-11)


def test_a_prior_without_mass_keeps_its_experts_out():
    X, y, phi = np.array([[1.0, -2.0, 3.0]]), [1], [0.25, 0.75, 0.0]
    found = interior(problem(X, y, fmrl.Logistic(), fmrl.Simplex(), phi, 2.0))
    assert found.theta[0, 2] == 0 and found.theta[0].sum() == pytest.approx(1.0)
    assert found.gap[0] <= 1e-10 * found.value[0]
