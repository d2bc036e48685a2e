"""Numbers whose squares are no numbers: costs, constants and domains of any size."""

import numpy as np
import pytest

import fmrl
from fmrl.core.arrays import scaled_norm
from fmrl.theory.certificate import certify

DOMAINS = [fmrl.Ball(1.0), fmrl.Box(-1.0, 1.0), fmrl.Simplex(0.01)]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_norm_has_all_its_digits(dtype):
    rng = np.random.default_rng(0)
    small, large = np.finfo(dtype).smallest_normal * 1e10, np.sqrt(np.finfo(dtype).max) / 1e3
    for size in (small, 1e-20, 1.0, large):
        a = rng.normal(size=(5, 4)).astype(dtype)
        np.testing.assert_allclose(
            scaled_norm(dtype(size) * a), size * np.linalg.norm(a, axis=1), rtol=1e-5
        )
    assert scaled_norm(np.zeros(3, dtype)) == 0 and scaled_norm(
        np.zeros((2, 3), dtype)
    ).tolist() == [0, 0]


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
@pytest.mark.parametrize("scale", [1e-100, 1e-165, 1e-200, 1e-290, 1e-310])
def test_tiny_costs_have_a_lipschitz_constant_and_bounds_that_hold(domain, scale):
    """G = 0 "from the data" gave a bound of 0 on a regret of 6e-165."""
    rng = np.random.default_rng(0)
    tasks = [fmrl.Task(scale * rng.normal(size=(6, 3)), loss=fmrl.Linear()) for _ in range(5)]
    tasks.append(fmrl.Task(np.zeros((2, 3)), loss=fmrl.Linear()))
    dual = np.inf if domain.norm == "l1" else None
    for rule in (fmrl.Known(0.3), fmrl.AverageDeviation(), fmrl.Doubling(0.1, 1.1)):
        history = fmrl.run(fmrl.FMRL(domain, similarity=rule), tasks)
        assert history.lipschitz[-1] == 0 and np.all(np.isfinite(history.eta))
        for task, G in zip(tasks[:-1], history.lipschitz, strict=False):
            rows = np.linalg.norm(task.X / scale, ord=dual, axis=1)
            assert scale * np.sqrt(np.mean(rows**2)) * (1 - 1e-12) <= G < 1e-90
        certificate = certify(history, tasks)
        assert all(0 < float(history.tar) <= bound.total for bound in certificate.bounds)


def test_sizes_that_cannot_be_squared_are_refused():
    for make in (
        lambda: fmrl.Ball(1e-160), lambda: fmrl.Box(0.0, 1e-160), lambda: fmrl.Ball(1e160),
        lambda: fmrl.FMRL(lipschitz=1e-160),
    ):  # fmt: skip
        with pytest.raises(fmrl.FMRLError, match="squared"):
            make()
    fmrl.Box([0.0, 0.0], [1e-160, 1.0])  # one side is long enough
