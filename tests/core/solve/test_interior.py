"""The interior-point method by itself: closed forms, corners, and problems of a stack at once."""

import math

import cvxpy as cp
import numpy as np
import pytest
from instances import make_data, make_loss

import fmrl
from fmrl.core.solve.gap import Method, Objective
from fmrl.core.solve.interior import interior
from fmrl.core.tasks import Tasks


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


def hinge_by_cvxpy(X, y, w, domain, phi=None, eta=None):
    theta = cp.Variable(X.shape[1])
    total = w @ cp.pos(1 - cp.multiply(2.0 * y - 1, X @ theta))
    held = {fmrl.Ball: [cp.norm(theta) <= 1], fmrl.Simplex: [theta >= 0, cp.sum(theta) == 1]}
    if phi is not None:
        far = (
            cp.sum(cp.kl_div(theta, phi))
            if domain.norm == "l1"
            else cp.sum_squares(theta - phi) / 2
        )
        total = total + far / eta
    problem = cp.Problem(cp.Minimize(total), held.get(type(domain), []))
    return problem.solve(solver="CLARABEL")


@pytest.mark.parametrize("domain", [fmrl.Ball(1.0), fmrl.Simplex(), fmrl.Euclidean()], ids=repr)
@pytest.mark.parametrize("seed", range(6))
def test_hinges_of_different_weights(domain, seed):
    """Also of weight 0, with and without a regulariser."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 8)), int(rng.integers(2, 5))
    X, y = rng.normal(size=(n, d)), rng.integers(0, 2, n)
    w = rng.uniform(0, 3, n) * (rng.random(n) < 0.8)
    tasks = Tasks(fmrl.Hinge(), X, 2.0 * y[:, None] - 1, np.array([0, n]), [0], w, 3.0)
    phi = domain.middle(np.zeros(d))
    for given in ((), (phi, np.asarray(0.7))):
        found = fmrl.minimise(tasks.task(0), domain, *given)
        exact = hinge_by_cvxpy(X, y, w, domain, *given)
        assert found.value == pytest.approx(exact, rel=1e-6, abs=1e-7)
        assert found.gap <= 1e-9 * (1 + found.value)


def test_costs_of_different_weights():
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(5, 3)), rng.uniform(0, 3, 5)
    task = Tasks(fmrl.Linear(), X, np.zeros((5, 1)), np.array([0, 5]), [0], w, 3.0).task(0)
    assert fmrl.minimise(task, fmrl.Ball(1.0)).value == pytest.approx(-np.linalg.norm(w @ X))
    found = fmrl.minimise(task, fmrl.Euclidean(), np.zeros(3), np.asarray(0.5)).theta
    np.testing.assert_allclose(found, -0.5 * w @ X)


@pytest.mark.parametrize("kind", ["hinge", "squared", "logistic"])
def test_a_leader_from_a_face_of_the_simplex_is_proved(kind):
    """Where phi gives an expert no mass, and another hardly any, steps are as on the whole."""
    for seed in range(20):
        rng, loss = np.random.default_rng(seed), make_loss(kind)
        X, y = make_data(loss, int(rng.integers(1, 8)), 4, rng)
        phi = rng.dirichlet(np.ones(4)) * [0, 1, 10.0 ** rng.uniform(-16, -3), 1]
        phi = phi / phi.sum()
        task = fmrl.Task(10 ** rng.uniform(-1, 1) * X, y, loss=loss)
        found = fmrl.minimise(task, fmrl.Simplex(), phi, np.asarray(10 ** rng.uniform(-1, 3)))
        start = float(task.open().losses(np.ones(4) / 4).sum())
        assert found.gap <= 1e-9 * (start + found.value) and found.theta[0] == 0, seed


def test_corners_that_are_not_the_hinge_s_are_refused():
    class Absolute(fmrl.Squared):
        bend = math.inf

        def steep(self, norm):
            return 1.0

    with pytest.raises(fmrl.FMRLError, match="corners that the solver does not know"):
        fmrl.minimise(fmrl.Task(np.eye(2), [1.0, 2.0], loss=Absolute()), fmrl.Ball(1.0))
