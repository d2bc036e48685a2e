"""Fewer rounds than features, and a phi inside their span: there is no remainder, and what
rounding leaves of one must not count.
"""

import numpy as np
import pytest

from fmrl import Ball, Euclidean, Logistic, OneVsAll, Squared, Task
from fmrl.core.solve.minimise import minimise


@pytest.mark.parametrize("loss", [Logistic((0, 1)), OneVsAll(3), Squared()])
@pytest.mark.parametrize("domain", [Euclidean(), Ball(20.0)])
def test_a_phi_inside_the_span_is_no_remainder(loss, domain):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 5, 6))
    y = rng.integers(0, 3 if isinstance(loss, OneVsAll) else 2, size=(40, 5))
    y[:, :2] = 0, 1
    for rows, labels in zip(X, y, strict=True):
        game = Task(rows, labels, loss=loss).open()
        phi = (rng.normal(size=(loss.outputs, 5)) @ rows).ravel()
        found = minimise(game, domain, phi, np.asarray(3.0))
        assert found.gap < 1e-8
        moved = minimise(
            game, domain, phi * (1 + 1e-13 * rng.normal(size=phi.shape)), np.asarray(3.0)
        )
        np.testing.assert_allclose(
            moved.theta, found.theta, atol=1e-6
        )  # an action is solved until its loss is, not to the last digit
