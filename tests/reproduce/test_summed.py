import numpy as np
import pytest

from fmrl import FTRL, Ball, Euclidean, OneVsAll, Task, play
from fmrl.reproduce.convex.summed import SummedFTRL, leader


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
