"""MAML against its derivative, the released FTRL against its objective."""

import numpy as np
import pytest

from fmrl import FTRL, Ball, Euclidean, OneVsAll, Task, play
from fmrl.reproduce.convex.batch import RADIUS, Sample, adapt, meta_gradient, project, train_maml
from fmrl.reproduce.convex.compositions import SummedFTRL, leader


def made(seed, *lead):
    rng = np.random.default_rng(seed)
    return Sample(rng.standard_normal((*lead, 6, 5)), np.eye(3)[rng.integers(3, size=(*lead, 6))])


def risk(phi, support, query, rate):
    z = query.X @ adapt(phi, support, rate).T
    return float(np.mean((np.logaddexp(0, z) - query.target * z).sum(1)))


# The second step ends outside the ball, so the projection counts.
@pytest.mark.parametrize("rate", [0.1, 5.0])
def test_full_gradient_is_the_derivative(rate):
    support, query, rng = made(0), made(1), np.random.default_rng(2)
    phi, h = 0.2 * rng.standard_normal((3, 5)), 1e-6
    outside = np.linalg.norm(phi - rate * (phi - adapt(phi, support, 1.0))) > RADIUS
    assert outside == (rate > 1)
    exact = meta_gradient(phi, support, query, np.array(rate), full=True)
    for i in range(3):
        for j in range(5):
            step = np.zeros((3, 5))
            step[i, j] = h
            numeric = (
                risk(phi + step, support, query, rate) - risk(phi - step, support, query, rate)
            ) / (2 * h)
            assert abs(numeric - exact[i, j]) < 1e-7


def test_first_order_is_full_without_an_inner_step():
    support, query, phi = made(0), made(1), np.full((3, 5), 0.1)
    a, b = (meta_gradient(phi, support, query, np.array(0.0), full) for full in (False, True))
    np.testing.assert_allclose(a, b)


@pytest.mark.parametrize("full", [False, True])
def test_side_by_side_is_one_by_one(full):
    tasks, rng = made(3, 7), np.random.default_rng(4)
    order = np.stack([rng.permutation(7) for _ in range(4)])
    inner, meta = rng.random(4), rng.random(4)
    together = train_maml(np.zeros((4, 3, 5)), tasks, order, (inner, meta), full)
    for r in range(4):
        alone = train_maml(
            np.zeros((1, 3, 5)), tasks, order[r], (inner[r : r + 1], meta[r : r + 1]), full
        )
        np.testing.assert_allclose(together[r], alone[0], atol=1e-12)


def test_learns_what_tasks_share():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((200, 8, 4))
    tasks = Sample(X, np.eye(2)[(X[..., 0] > 0).astype(int)])
    phi = train_maml(
        np.zeros((1, 2, 4)), tasks, np.arange(200), (np.array([0.1]), np.array([0.3])), full=False
    )[0]
    assert np.mean(np.argmax(X @ phi.T, axis=-1) == (X[..., 0] > 0)) > 0.9


def test_project():
    theta = np.full((2, 2), 2.0)
    assert np.linalg.norm(project(theta)) == pytest.approx(1.0)
    np.testing.assert_allclose(project(theta / 8), theta / 8)


def objective(theta, phi, v, eta):
    return 0.5 * ((theta - phi) ** 2).sum() + eta * np.logaddexp(0, -(theta * v).sum(-1)).sum()


@pytest.mark.parametrize("size", [0.3, 3.0, 30.0])
@pytest.mark.parametrize("eta", [0.01, 1.0, 10.0])
def test_leader_is_optimal(size, eta):
    rng = np.random.default_rng(1)
    phi = rng.standard_normal((6, 4, 5))
    phi *= rng.random((6, 1, 1)) / np.linalg.norm(phi, axis=(1, 2), keepdims=True)
    v = size * rng.standard_normal((6, 4, 5))
    found = leader(phi, v, np.full(6, eta), 1.0)
    assert (np.linalg.norm(found, axis=(1, 2)) <= 1 + 1e-9).all()
    for b in range(6):
        here = objective(found[b], phi[b], v[b], eta)
        for _ in range(200):
            other = found[b] + 1e-3 * rng.standard_normal((4, 5))
            other /= max(1.0, np.linalg.norm(other))
            assert here <= objective(other, phi[b], v[b], eta) + 1e-9


def test_right_for_one_sample_only():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6, 5))
    task = Task(
        X / np.linalg.norm(X, axis=1, keepdims=True), rng.integers(4, size=6), loss=OneVsAll(4)
    )
    phi, eta = np.zeros(20), np.array(0.7)
    a, b = (
        play(learner, task.open(), Ball(1.0), phi, eta, record=True).actions
        for learner in (SummedFTRL(), FTRL())
    )
    np.testing.assert_allclose(a[:2], b[:2], atol=1e-7)
    assert np.abs(a[2:] - b[2:]).max() > 1e-2


def test_only_on_a_ball():
    task = Task(np.ones((1, 2)), [0], loss=OneVsAll(2))
    with pytest.raises(TypeError, match="ball"):
        play(SummedFTRL(), task.open(), Euclidean(), np.zeros(4), np.array(1.0))
