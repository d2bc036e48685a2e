"""Quadratic growth: the closed forms are optimal, the interval holds the truth, and α is what it
should be.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fmrl
from fmrl.theory.growth import estimate
from fmrl.theory.growth.enclosure import stiffened
from fmrl.theory.growth.frank_wolfe import Cut, Function, frank_wolfe


def unit(v):
    return v / np.linalg.norm(v)


@given(
    seed=st.integers(0, 2**16),
    dim=st.integers(1, 6),
    offset=st.floats(-0.999, 1.5),
    radius=st.floats(0.1, 5),
)
@settings(max_examples=150, deadline=None)
def test_linear_minimiser_and_projection_are_optimal(seed, dim, offset, radius):
    rng = np.random.default_rng(seed)
    a, g = unit(rng.standard_normal(dim)), rng.standard_normal(dim)
    cut = Cut(radius, a, np.array([offset * radius]))
    low, y = cut.lowest(g[None])[0], 2 * radius * rng.standard_normal(dim)
    near = cut.project(y[None])[0]
    for x in (low, near):
        assert np.linalg.norm(x) <= radius * (1 + 1e-9) and a @ x <= offset * radius + 1e-9
    points = rng.standard_normal((300, dim))
    points = cut.project(
        points * (radius * rng.random((300, 1)) / np.linalg.norm(points, axis=1, keepdims=True))
    )
    assert (points @ a <= offset * radius + 1e-9).all()
    assert (points @ g >= g @ low - 1e-9).all()
    assert (
        (points - near) @ (y - near) <= 1e-7
    ).all()  # the variational inequality of a projection


def test_frank_wolfe_agrees_with_a_generic_solver():
    cp = pytest.importorskip("cvxpy")
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((30, 8)), rng.integers(0, 2, 30)
    growth = estimate(
        fmrl.Task(X, y, loss=fmrl.Logistic()), distances=[0.2, 0.7, 1.1], tolerance=1e-6
    )
    star = growth.optimum
    base = np.sum(np.logaddexp(0, X @ star) - y * (X @ star))
    for k, delta in enumerate(growth.distances):
        theta = cp.Variable(8)
        objective = cp.sum(cp.logistic(X @ theta) - cp.multiply(y, X @ theta))
        limits = [2 * star @ theta <= 1 - delta**2 + star @ star, cp.norm(theta) <= 1]
        value = cp.Problem(cp.Minimize(objective), limits).solve(solver="CLARABEL") - base
        assert growth.relaxed[k] - growth.relaxed_gap[k] <= value + 1e-7
        assert growth.relaxed[k] == pytest.approx(value, abs=2e-6)


def test_the_gap_is_about_the_minimum_even_when_steps_run_out(monkeypatch):
    import fmrl.theory.growth.frank_wolfe as program

    monkeypatch.setattr(program, "OUTER", 2)
    monkeypatch.setattr(program, "INNER", 1)
    bend = np.array([1.0, 1e-3])
    value = lambda x: (np.sum(bend * x**2, -1) / 2, bend * x, np.zeros(1))  # noqa: E731
    f = Function(value, 1.0, lambda value, gap: gap < 1e-12)
    _, value, gap = frank_wolfe(
        f, Cut(1.0, np.array([0.0, 1.0]), np.array([-0.5])), np.array([[0.8, -0.6]])
    )
    assert gap[0] > 1e-9 and value[0] - gap[0] <= 1e-3 * 0.25 / 2 <= value[0]


@given(
    seed=st.integers(0, 2**16),
    dim=st.integers(1, 12),
    spread=st.floats(1, 100),
    where=st.floats(0, 0.8),
)
@settings(max_examples=40, deadline=None)
def test_alpha_of_a_strongly_convex_quadratic_is_its_smallest_eigenvalue(seed, dim, spread, where):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    X = np.sqrt(np.geomspace(1, spread, dim))[:, None] * basis.T
    task = fmrl.Task(X, X @ (where * unit(rng.standard_normal(dim))), loss=fmrl.Squared())
    growth = estimate(task, fmrl.Ball(1.0))
    assert growth.alpha_min == pytest.approx(1.0, rel=0.01)
    assert growth.alpha_proved == pytest.approx(1.0, rel=0.01)
    assert growth.alpha_fit == pytest.approx(1.0, rel=0.01)
    assert growth.alpha_most == pytest.approx(1.0, rel=0.01)
    assert (
        estimate(task, distances=[0.1, 0.5, 1.0]).alpha_fit >= 0.99
    )  # where the ball cuts flat directions off, ε_δ is larger


def test_a_quadratic_held_back_by_the_ball_grows_by_the_multiplier_too():
    task = fmrl.Task(
        np.eye(3), np.array([3.0, 0.0, 0.0]), loss=fmrl.Squared()
    )  # λ = 2 at (1, 0, 0), Hessian 1
    growth = estimate(task)
    assert growth.multiplier == pytest.approx(2.0)
    assert growth.alpha_min == pytest.approx(3.0, rel=1e-6) == growth.alpha_most


@given(
    seed=st.integers(0, 2**16), dim=st.integers(1, 10), tau=st.floats(0, 100), equal=st.booleans()
)
@settings(max_examples=100, deadline=None)
def test_stiffened_is_the_smallest_eigenvalue_from_below(seed, dim, tau, equal):
    rng = np.random.default_rng(seed)
    h = np.full(dim, 2.0) if equal else np.sort(rng.random(dim))
    b = rng.standard_normal(dim) * rng.integers(0, 2, dim)
    exact = np.linalg.eigvalsh(np.diag(h) + 2 * tau * np.outer(b, b))[0]
    assert stiffened(h, b, np.array(tau)) == pytest.approx(exact, abs=1e-9 * (1 + tau))


def held_back(seed):
    rng = np.random.default_rng(seed)
    dim, spread, beyond = int(rng.integers(2, 7)), rng.uniform(1, 30), rng.uniform(1.3, 4)
    turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0].T
    X = np.sqrt(np.geomspace(1, spread, dim))[:, None] * turn
    task = fmrl.Task(X, X @ (beyond * unit(rng.standard_normal(dim))), loss=fmrl.Squared())
    return rng, task, estimate(task, distances=[0.05, 0.3, 1.0], tolerance=1e-6)


@given(seed=st.integers(0, 2**16))
@settings(max_examples=30, deadline=None)
def test_a_quadratic_held_back_by_the_ball_obeys_its_proof(seed):
    rng, task, growth = held_back(seed)
    assert growth.alpha_proved >= growth.multiplier * (1 - 1e-6) + 0.99
    samples, star = task.open(), growth.optimum
    for delta, low in zip(growth.distances, growth.lower, strict=True):
        points = rng.standard_normal((3000, star.size))
        points = star + delta * points / np.linalg.norm(points, axis=1, keepdims=True)
        points = points[np.linalg.norm(points, axis=1) <= 1]
        rise = np.sum(samples.losses(points), axis=-1) - np.sum(samples.losses(star))
        assert (rise >= low * (1 - 1e-9) - 1e-9).all()


def test_a_quadratic_held_back_by_the_ball_is_mostly_enclosed_tightly():
    shares = [growth.gap / growth.difference for _, _, growth in map(held_back, range(40))]
    assert (np.quantile(shares, 0.9, axis=0) < [0.01, 0.05, 0.1]).all()


def test_arrays_of_the_standard_go_through():
    xp = pytest.importorskip("array_api_strict")
    rng = np.random.default_rng(11)
    X, y = rng.standard_normal((12, 3)), rng.integers(0, 2, 12)
    for loss in (fmrl.Logistic(), fmrl.Squared()):
        growth = estimate(fmrl.Task(xp.asarray(X), xp.asarray(y), loss=loss), distances=[0.3, 0.6])
        plain = estimate(fmrl.Task(X, y, loss=loss), distances=[0.3, 0.6])
        np.testing.assert_allclose(growth.difference, plain.difference, rtol=1e-6)


CASES = {
    "logistic": (fmrl.Logistic(), 2),
    "onevsall": (fmrl.OneVsAll(3), 3),
    "softmax": (fmrl.Softmax(3), 3),
    "squared": (fmrl.Squared(), 0),
    "hinge": (fmrl.Hinge(), 2),
    "linear": (fmrl.Linear(), None),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("radius", [0.5, 3.0])
def test_no_action_beats_the_proof_and_the_attained_is_an_action(name, radius):
    loss, classes = CASES[name]
    rng = np.random.default_rng(5)
    X = rng.standard_normal((25, 3))
    y = rng.integers(0, classes, 25) if classes else rng.standard_normal(25)
    y = None if classes is None else y
    centre = tuple(np.full(3 * max(loss.outputs, 1), 0.1))
    task, domain = fmrl.Task(X, y, loss=loss), fmrl.Ball(radius, centre)
    growth = estimate(task, domain, np.linspace(0.1, 1.0, 5) * radius)
    samples, best = task.open(), growth.optimum
    f = lambda theta: np.sum(samples.losses(theta), axis=-1)  # noqa: E731
    base = f(best)
    assert (growth.gap >= 0).all() and (growth.relaxed_gap >= 0).all()
    np.testing.assert_allclose(
        np.linalg.norm(growth.theta - best, axis=1), growth.distances, rtol=1e-8
    )
    assert domain.contains(growth.theta, 1e-8).all()
    np.testing.assert_allclose(
        f(growth.theta) - base, growth.difference, atol=1e-9 * (1 + abs(base))
    )
    points = domain.project(
        best + radius * rng.standard_normal((4000, best.size)) * rng.random((4000, 1))
    )
    away, rise = np.linalg.norm(points - best, axis=1), f(points) - base
    for delta, low in zip(growth.distances, growth.lower, strict=True):
        assert (rise[away >= delta] >= low - 1e-7 * (1 + abs(base))).all()
    within = away <= growth.distances.max()
    assert (
        rise[within] >= growth.alpha_proved / 2 * away[within] ** 2 - 1e-7 * (1 + abs(base))
    ).all()


def mixture(m, seed, dim=50):
    """m samples of four Gaussians about random unit vectors."""
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((4, dim))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    y = np.arange(m) % 4
    return fmrl.Task(
        means[y] + rng.standard_normal((m, dim)) / np.sqrt(dim), y, loss=fmrl.OneVsAll(4)
    )


def test_alpha_scales_linearly_with_the_samples_of_a_four_gaussian_mixture():
    sizes = [16, 64, 256, 512]
    growths = [
        [estimate(mixture(m, seed), distances=np.linspace(0.1, 1, 6)) for m in sizes]
        for seed in range(2)
    ]
    for name in ("alpha_fit", "alpha_min", "alpha_most", "alpha_proved"):
        for runs in growths:
            slope = np.polyfit(np.log(sizes), np.log([getattr(g, name) for g in runs]), 1)[0]
            assert abs(slope - 1) < 0.15
    assert max(np.max(g.gap / g.difference) for runs in growths for g in runs) < 0.01


def test_torch_and_numpy_agree_and_the_figure_draws():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((20, 4)), rng.integers(0, 2, 20)
    a = estimate(fmrl.Task(X, y, loss=fmrl.Logistic()))
    b = estimate(fmrl.Task(torch.tensor(X), torch.tensor(y), loss=fmrl.Logistic()))
    assert isinstance(b.theta, torch.Tensor)
    np.testing.assert_allclose(a.difference, b.difference, rtol=1e-4)
    assert len(a.figure().axes[0].lines) == 2 and "alpha_min" in repr(a)


def test_says_what_is_wrong():
    task = fmrl.Task(np.eye(3), np.zeros(3), loss=fmrl.Squared())
    with pytest.raises(fmrl.FMRLError, match="on a ball"):
        estimate(task, fmrl.Box(-1, 1))
    with pytest.raises(fmrl.FMRLError, match="at most 1"):
        estimate(task, distances=[0.5, 1.5])
    with pytest.raises(fmrl.FMRLError, match="not a task"):
        estimate(np.eye(3))
