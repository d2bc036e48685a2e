"""run gives the numbers of step in a loop, batched or not, in one order or in many."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import (
    BOUNDED,
    LOSSES,
    METAS,
    SCALARS,
    SIMILARITIES,
    UPDATES,
    WITHIN,
    every_way,
    loop,
    make_domain,
    make_task,
    make_tasks,
    same,
    seeds,
    similarity,
    width,
)

import fmrl


# Without linear losses on the simplex: optima at corners are infinitely far apart there, see
# test_experts_with_a_floor.
@pytest.mark.parametrize(
    ("domain_kind", "kind"),
    [(d, k) for d in BOUNDED for k in LOSSES if (d, k) != ("simplex", "linear")],
)
@pytest.mark.parametrize("within", WITHIN, ids=repr)
def test_run_is_step_in_a_loop(domain_kind, kind, within):
    rng = np.random.default_rng([BOUNDED.index(domain_kind), LOSSES.index(kind)])
    tasks = make_tasks(kind, 3, 2, rng, most=5)
    domain, phi = make_domain(domain_kind, width(kind, 2), rng), np.zeros(width(kind, 2))
    algo = fmrl.FMRL(domain, within, fmrl.FAL(), similarity=similarity(domain_kind))
    same(fmrl.run(algo, tasks), loop(algo, tasks, domain.middle(phi)))


@pytest.mark.parametrize("update", UPDATES, ids=repr)
@pytest.mark.parametrize("within", WITHIN, ids=repr)
@pytest.mark.parametrize("meta", METAS, ids=repr)
def test_every_update_and_meta_update(update, within, meta):
    rng = np.random.default_rng(3)
    tasks = make_tasks("one-vs-all", 6, 3, rng)
    algo = fmrl.FMRL(fmrl.Ball(1.0), within, update, meta, fmrl.Doubling(0.1, 1.5))
    phi = 0.1 * rng.normal(size=9)
    every_way(algo, tasks, phi)


@pytest.mark.parametrize("rule", SIMILARITIES, ids=repr)
def test_every_similarity_rule(rule):
    rng = np.random.default_rng(4)
    tasks = make_tasks("softmax", 9, 2, rng)
    every_way(fmrl.FMRL(fmrl.Ball(1.0), similarity=rule), tasks, np.zeros(6))


def test_many_blocks(monkeypatch):
    """Blocks of two tasks at most give what one block gives."""
    from fmrl.core import run as module

    rng = np.random.default_rng(5)
    tasks = make_tasks("one-vs-all", 15, 3, rng, most=40)
    whole = fmrl.run(fmrl.FMRL(), tasks)
    for elements, most in ((240, 1024), (1 << 19, 2), (1, 1024)):
        monkeypatch.setattr(module, "ELEMENTS", elements)
        monkeypatch.setattr(module, "MOST", most)
        cut = fmrl.run(fmrl.FMRL(), tasks)
        np.testing.assert_allclose(cut.regret, whole.regret, atol=1e-10)
        np.testing.assert_allclose(cut.theta, whole.theta, atol=1e-10)


def test_mixed_losses_and_lengths_in_one_run():
    rng = np.random.default_rng(6)
    kinds = [("logistic", 3, 6), ("softmax", 40, 2), ("one-vs-all", 2, 2), ("hinge", 5, 6)]
    tasks, algo = [make_task(kind, m, f, rng) for kind, m, f in kinds], fmrl.FMRL()
    same(fmrl.run(algo, tasks), loop(algo, tasks, np.zeros(6)))


@pytest.mark.parametrize("update", UPDATES, ids=repr)
@pytest.mark.parametrize("within", WITHIN, ids=repr)
@pytest.mark.parametrize("domain_kind", ["ball", "box", "floored simplex"])
def test_orders_are_separate_runs(update, within, domain_kind):
    rng = np.random.default_rng(10)
    tasks = make_tasks("one-vs-all", 5, 2, rng, most=4)
    algo = fmrl.FMRL(make_domain(domain_kind, 6, rng), within, update)
    orders = np.array([[2, 0, 4, 1, 3], [3, 1, 3, 4, 0]])  # and tasks may come twice
    together = fmrl.run(algo, tasks, orders=orders)
    shapes = together.regret.shape, together.theta.shape, together.tar.shape
    assert shapes == ((2, 5), (2, 5, 6), (2,))
    for run, order in enumerate(orders):
        alone = fmrl.run(algo, [tasks[i] for i in order])
        for name in SCALARS:
            one, other = getattr(together, name)[run], getattr(alone, name)
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10, err_msg=name)
        np.testing.assert_allclose(together.theta[run], alone.theta, atol=1e-10)
        np.testing.assert_allclose(together.state.phi[run], alone.state.phi, atol=1e-10)
        for t, losses in enumerate(alone.losses):
            padded = together.losses[t][run]
            np.testing.assert_allclose(padded[: len(losses)], losses, atol=1e-10)
            assert np.all(padded[len(losses) :] == 0)


def test_several_starts_side_by_side():
    """phi of shape [runs, d] steps several runs at once."""
    rng = np.random.default_rng(7)
    tasks, phi = make_tasks("logistic", 4, 3, rng), 0.3 * rng.normal(size=(5, 3))
    for update in UPDATES:
        algo = fmrl.FMRL(update=update)
        state = algo.init(phi)
        singles = [algo.init(p) for p in phi]
        for task in tasks:
            state, together = algo.step(state, fmrl_wide(task, 5))
            for i in range(5):
                singles[i], alone = algo.step(singles[i], task)
                assert together.regret[i] == pytest.approx(float(alone.regret), abs=1e-10)
        np.testing.assert_allclose(state.phi, [s.phi for s in singles], atol=1e-10)


class fmrl_wide:
    """One task against several runs."""

    def __init__(self, task, runs):
        self.game = fmrl.stack([task] * runs)

    def open(self):
        return self.game


@given(seed=seeds, scale=st.sampled_from([1e-4, 1.0, 1e3]))
@settings(max_examples=10)
def test_history_says_what_the_rounds_said(seed, scale):
    rng = np.random.default_rng(seed)
    tasks = [
        fmrl.Task(scale * rng.normal(size=(m, 2)), rng.integers(0, 2, m), loss=fmrl.Logistic())
        for m in (3, 1, 4, 4)
    ]
    history = fmrl.run(fmrl.FMRL(), tasks)
    assert len(history) == 4 and history.state.tasks == 4
    best = [fmrl.minimise(t.open(), fmrl.Ball(1.0)).value for t in tasks]
    regret = [sum(losses) - b for losses, b in zip(history.losses, best, strict=True)]
    np.testing.assert_allclose(history.regret, regret, atol=1e-10 * scale)
    assert history.tar == pytest.approx(history.regret.mean())
    np.testing.assert_allclose(history.running_tar()[-1], history.tar)
    assert np.all(history.regret <= history.bound + 1e-9) and np.all(history.gap >= 0)
    low, high = history.interval
    assert low == history.tar and high == pytest.approx(float(history.tar + history.gap.mean()))
    np.testing.assert_array_equal(history.violations, history.guess < np.sqrt(history.deviation))
    assert "tasks=4" in repr(history)


def test_experts_with_a_floor():
    """Costs on the simplex: batched = loop where the floor keeps the divergence finite."""
    rng = np.random.default_rng(9)
    tasks = make_tasks("linear", 8, 4, rng)
    algo = fmrl.FMRL(fmrl.Simplex(0.01), similarity=fmrl.Doubling(0.2, 1.3))
    history = fmrl.run(algo, tasks)
    same(history, loop(algo, tasks, np.full(4, 0.25)))
    assert np.all(np.isfinite(history.divergence))
    assert np.all(history.regret <= history.bound + 1e-9)
