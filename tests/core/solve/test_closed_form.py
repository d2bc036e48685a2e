"""Linear losses: the domain knows the answer, and the gap is 0."""

import numpy as np
import pytest
from instances import BOUNDED, make_domain, points

import fmrl
from fmrl.core.solve import minimise


def costs(seed: int, dim: int = 4):
    rng = np.random.default_rng(seed)
    return rng, rng.normal(size=(5, dim))


@pytest.mark.parametrize("domain_kind", BOUNDED)
@pytest.mark.parametrize("seed", range(3))
def test_no_point_of_the_domain_is_lower(domain_kind, seed):
    rng, C = costs(seed)
    domain = make_domain(domain_kind, 4, rng)
    found = minimise(fmrl.Task(C, loss=fmrl.Linear()).open(), domain)
    assert found.why == "closed form: proved" and found.gap == 0
    assert found.value == pytest.approx(float(C.sum(axis=0) @ found.theta), rel=1e-12)
    assert np.all(points(domain, 4, rng, 500, edge=True) @ C.sum(axis=0) >= found.value - 1e-12)


def test_experts_are_weighted_by_the_exponential_of_their_costs():
    """FTRL on the simplex is Hedge: θ ∝ phi·exp(−eta·costs)."""
    rng, C = costs(0)
    phi = rng.dirichlet(np.ones(4))
    found = minimise(fmrl.Task(C, loss=fmrl.Linear()).open(), fmrl.Simplex(), phi, np.asarray(0.3))
    hedge = phi * np.exp(-0.3 * C.sum(axis=0))
    np.testing.assert_allclose(found.theta, hedge / hedge.sum(), rtol=1e-13)


def test_a_linear_function_has_no_minimum_without_bounds():
    with pytest.raises(fmrl.FMRLError, match="no minimum on Euclidean"):
        minimise(fmrl.Task(np.eye(2), loss=fmrl.Linear()).open(), fmrl.Euclidean())
