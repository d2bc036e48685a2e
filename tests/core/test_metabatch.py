"""Meta-batches: B = 1 is Algorithm 2, and B > 1 is what a plain loop over the formula gives."""

import numpy as np
import pytest
from instances import METAS, UPDATES, make_tasks

import fmrl
from fmrl.core.rules.meta import End


def by_hand(algo, tasks, size):
    """The definition, one task at a time."""
    state, regret = algo.init(np.zeros(tasks[0].dim)), []
    for first in range(0, len(tasks), size):
        batch = tasks[first : first + size]
        rounds = [algo.step(state, task)[1] for task in batch]
        regret += [r.regret for r in rounds]
        sigma = np.array([r.lipschitz * np.sqrt(r.rounds) for r in rounds])
        guess, memory = state.guess, state.similarity
        for r, s in zip(rounds, sigma, strict=True):
            end = End(r.theta, r.optimum, s)
            guess, memory = algo.similarity.update(algo.domain, state.phi, guess, memory, end)
        mean = sum(s * r.theta for r, s in zip(rounds, sigma, strict=True)) / sigma.sum()
        end = End(mean, mean, sigma.sum())
        phi, meta = algo.meta.update(algo.domain, state.phi, state.meta, end)
        state = fmrl.State(state.tasks + len(batch), phi, guess, meta, memory)
    return np.array(regret), state


@pytest.mark.parametrize("update", UPDATES, ids=repr)
@pytest.mark.parametrize("meta", METAS, ids=repr)
def test_equals_the_definition(update, meta):
    tasks = make_tasks("one-vs-all", 17, 3, np.random.default_rng(0))
    algo = fmrl.FMRL(fmrl.Ball(1.0), fmrl.OMD(), update, meta, fmrl.Doubling(0.05, 1.5))
    regret, state = by_hand(algo, tasks, 5)
    history = fmrl.run(algo, tasks, meta_batch=5)
    np.testing.assert_allclose(history.regret, regret, atol=1e-10)
    np.testing.assert_allclose(history.state.phi, state.phi, atol=1e-10)
    np.testing.assert_allclose(history.state.guess, state.guess, atol=1e-12)
    assert history.meta_batch == 5 and "meta_batch=5" in repr(history) and len(history) == 17


def test_the_mean_is_weighted():
    """The strawman would show a plain mean: tasks of very different weight."""
    tasks = [
        fmrl.Task(scale * np.eye(2), scale * np.array([0.3, b]), loss=fmrl.Squared())
        for scale, b in ((1, 0.1), (3, 0.5))
    ]
    algo = fmrl.FMRL(meta=fmrl.LastUpdate())
    history = fmrl.run(algo, tasks, meta_batch=2)
    sigma = history.lipschitz * np.sqrt(history.rounds)
    assert sigma[1] > 3 * sigma[0]
    np.testing.assert_allclose(history.state.phi, sigma @ history.theta / sigma.sum(), atol=1e-12)


@pytest.mark.parametrize("update", UPDATES, ids=repr)
def test_one_task_a_batch_is_the_sequential_algorithm(update):
    tasks = make_tasks("logistic", 9, 4, np.random.default_rng(1))
    algo = fmrl.presets.paper(update=update)
    one, plain = fmrl.run(algo, tasks, meta_batch=1), fmrl.run(algo, tasks)
    np.testing.assert_array_equal(one.regret, plain.regret)
    np.testing.assert_array_equal(one.state.phi, plain.state.phi)
    assert "meta_batch" not in repr(one)


def test_batches_do_not_depend_on_blocks_and_resume(tmp_path, monkeypatch):
    from fmrl.core import run as module

    tasks = make_tasks("logistic", 20, 3, np.random.default_rng(2), most=30)
    algo = fmrl.FMRL(update=fmrl.FLIBatch())
    whole = fmrl.run(algo, iter(tasks), meta_batch=8)
    half = fmrl.run(algo, tasks[:8], meta_batch=8)
    rest = fmrl.run(algo, tasks[8:], state=half.state, meta_batch=8)
    np.testing.assert_allclose(rest.state.phi, whole.state.phi, atol=1e-12)
    monkeypatch.setattr(module, "MOST", 3)
    cut = fmrl.run(algo, tasks, meta_batch=8)
    np.testing.assert_allclose(cut.regret, whole.regret, atol=1e-10)
    fmrl.save_history(whole, tmp_path / "run.npz")
    assert fmrl.load_history(tmp_path / "run.npz").meta_batch == 8


def test_no_theorem_is_claimed_for_meta_batches():
    tasks = make_tasks("logistic", 8, 3, np.random.default_rng(3))
    algo = fmrl.presets.paper()
    assert any("theorem" in b.name for b in fmrl.certify(fmrl.run(algo, tasks), tasks).bounds)
    certificate = fmrl.certify(fmrl.run(algo, tasks, meta_batch=4), tasks)
    assert [b.name for b in certificate.bounds if "per-task" not in b.name] == []
    assert any("meta_batch" in why for _, why in certificate.refused)


def test_the_bad_task_is_named_and_nothing_before_it_is_lost():
    tasks = make_tasks("logistic", 6, 3, np.random.default_rng(4))
    tasks[4] = fmrl.Task(np.eye(2), [0, 1], loss=fmrl.Logistic())
    with pytest.raises(fmrl.FMRLError, match="length") as caught:
        fmrl.run(fmrl.FMRL(), tasks, meta_batch=3)
    assert caught.value.task == 4 and len(caught.value.history) == 3


@pytest.mark.parametrize("bad", [0, 1.5, "all"])
def test_what_is_no_meta_batch(bad):
    tasks = make_tasks("logistic", 2, 3, np.random.default_rng(4))
    with pytest.raises(fmrl.FMRLError, match="meta_batch"):
        fmrl.run(fmrl.FMRL(), tasks, meta_batch=bad)


def test_unknown_engines():
    tasks = make_tasks("logistic", 2, 3, np.random.default_rng(4))
    for engine in ("abacus", 3):
        with pytest.raises(fmrl.FMRLError, match="engine"):
            fmrl.run(fmrl.FMRL(), tasks, engine=engine)
    with pytest.raises(fmrl.FMRLError, match="orders"):
        fmrl.run(fmrl.FMRL(), tasks, orders=[[0, 1]], engine="ray")


def test_a_mixed_meta_batch_is_kept_whole_or_not_at_all():
    """Tasks of two losses in one meta-batch, and a progress that is interrupted."""
    rows = np.eye(2)
    one = [
        fmrl.Task(rows, [0.5, 0.1], loss=fmrl.Squared()),
        fmrl.Task(rows, [0, 1], loss=fmrl.Logistic()),
    ]

    def stop(count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        fmrl.run(fmrl.FMRL(), one * 2, meta_batch=2, progress=stop)
    history = caught.value.history
    assert len(history) == history.regret.shape[0] == history.state.tasks == 2
    whole = fmrl.run(fmrl.FMRL(), one * 2, meta_batch=2)
    rest = fmrl.run(fmrl.FMRL(), one, state=history.state, meta_batch=2)
    np.testing.assert_allclose(whole.regret[2:], rest.regret, atol=1e-12)
