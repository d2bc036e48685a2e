"""Fewer rounds than features and a phi inside their span: what rounding leaves of phi outside the
span must not count.
"""

import numpy as np
import pytest

from fmrl import Ball, Euclidean, Logistic, OneVsAll, Squared, Task
from fmrl.core.solve import minimise


@pytest.mark.parametrize("loss", [Logistic((0, 1)), OneVsAll(3), Squared()])
@pytest.mark.parametrize("domain", [Euclidean(), Ball(20.0)])
def test_a_phi_inside_the_span_is_no_remainder(loss, domain):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 5, 6))
    y = rng.integers(0, 3 if isinstance(loss, OneVsAll) else 2, size=(12, 5))
    y[:, :2] = 0, 1
    for rows, labels in zip(X, y, strict=True):
        game = Task(rows, labels, loss=loss).open()
        phi = (rng.normal(size=(loss.outputs, 5)) @ rows).ravel()
        found = minimise(game, domain, phi, np.asarray(3.0))
        assert found.gap < 1e-8
        near = phi * (1 + 1e-13 * rng.normal(size=phi.shape))
        moved = minimise(game, domain, near, np.asarray(3.0))
        # An action is solved until its loss is, not to the last digit.
        np.testing.assert_allclose(moved.theta, found.theta, atol=1e-6)
