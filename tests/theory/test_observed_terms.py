"""The two terms of Theorem A.1 where a step is 0, nothing is met, or squares underflow.

Found by the adversary of the soak: "energy 0" was read as "no gradient was met".
"""

import numpy as np
import pytest

import fmrl

STILL = fmrl.KnownStep(0.0)


@pytest.mark.parametrize("domain", [fmrl.Ball(1.0), fmrl.Box(-1.0, 1.0), fmrl.Simplex()], ids=repr)
@pytest.mark.parametrize("within", [fmrl.OMD(), fmrl.OGD(), fmrl.FTRL()], ids=repr)
def test_who_never_moves_has_no_bound_of_zero(domain, within):
    """A step of 0 meets gradients and learns nothing: its regret is what phi costs."""
    task = fmrl.Task(np.tile([1.0, 0.5], (4, 1)), loss=fmrl.Linear())
    history = fmrl.run(fmrl.FMRL(domain, within, similarity=STILL), [task])
    assert history.regret[0] > 0.9 and history.bound[0] == np.inf
    assert fmrl.certify(history, [task]).bounds == ()


def test_who_never_moves_and_starts_at_the_optimum_is_certified():
    task = fmrl.Task(np.tile([1.0, 0.0], (4, 1)), loss=fmrl.Linear())
    history = fmrl.run(fmrl.FMRL(fmrl.Ball(1.0), similarity=STILL), [task], np.array([-1.0, 0.0]))
    assert history.regret[0] == history.bound[0] == 0
    assert fmrl.certify(history, [task]).tightest.total == 0


@pytest.mark.parametrize("rule", [STILL, fmrl.Isotropic(1.0), fmrl.PerCoordinate(1.0)], ids=repr)
def test_a_task_that_meets_no_gradient_has_no_regret_and_that_bound(rule):
    task = fmrl.Task(np.zeros((3, 2)), loss=fmrl.Linear())
    history = fmrl.run(fmrl.FMRL(fmrl.Ball(1.0), similarity=rule), [task], np.array([0.5, 0.0]))
    assert history.regret[0] == history.bound[0] == 0


def test_a_faint_constant_is_no_bound_of_zero():
    """G = 1e-165 and a step of 1e165: the steps cost 1e-165 a round, though G² is no number."""
    for bound, share in ((fmrl.bounds.per_task, 1.0), (fmrl.bounds.sharp, 0.5)):
        found = bound([0.0, 0.0], 1e165, 1e-165, 3)
        assert found.terms["steps"] == pytest.approx(3e-165 * share, rel=1e-9)
