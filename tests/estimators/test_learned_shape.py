"""Rules that learn a step or a metric, in the estimators: fit, adapt, save, streams."""

import numpy as np
import pytest

import fmrl

RULES = [
    fmrl.Isotropic(0.3),
    fmrl.PerCoordinate(0.3),
    fmrl.FullMatrix(0.3),
    fmrl.LowRank(1, 0.3),
    fmrl.Covariance(),
    fmrl.EWOO(0.1),
    fmrl.KnownStep(0.1),
    fmrl.Observed(fmrl.AverageDeviation()),
    fmrl.MetaSGD(0.1),
]


def table(kind):
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(20), 6)
    X = rng.normal(size=(120, 3))
    z = (X * (1 + rng.normal(size=(20, 3)) * [1.0, 0.1, 0.1])[task]).sum(1)
    return X, z if kind is fmrl.MetaRegressor else z > 0, task


@pytest.mark.parametrize("kind", [fmrl.MetaRegressor, fmrl.MetaClassifier])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_every_way_in(kind, rule, tmp_path):
    X, y, task = table(kind)
    within = fmrl.FTRL() if isinstance(rule, fmrl.Covariance) else None
    model = kind(similarity=rule, within=within, common="linear").fit(X, y, task=task)
    history = model.history_
    alone = fmrl.run(history.algo, _tasks(model, X, y, task))
    np.testing.assert_allclose(history.regret, alone.regret, atol=1e-9)
    model.save(tmp_path / "model")
    loaded = kind.load(tmp_path / "model")
    one, other = (m.adapt(X[:4], y[:4]).coef_ for m in (model, loaded))
    assert np.array_equal(one, other)
    for m in (model, loaded):
        m.partial_fit(X[:6], y[:6], task="one more")
    one, other = (fmrl.prior(m.state_).covariance for m in (model, loaded))
    assert np.array_equal(one, other)
    assert model.certificate_.applicable
    if rule.observes not in (None, "norms", "squares"):
        with pytest.raises(fmrl.FMRLError, match="stream"):
            model.task()
        return
    before = fmrl.prior(model.state_).covariance
    with model.task() as stream:
        for x, label in zip(X[:6], y[:6], strict=True):
            stream.play(x, label)
    after = fmrl.prior(model.state_).covariance
    moved = np.abs(after - before).max()
    assert np.isfinite(moved)
    assert (moved > 0) == (not isinstance(rule, fmrl.KnownStep))


def _tasks(model, X, y, task):
    from fmrl.tables.targets import group_by_task

    y = model._target(np.asarray(y), None, first=False) if hasattr(model, "classes_") else y
    tasks = model.coordinates_.tasks(group_by_task(model._loss(), X, np.asarray(y), None, task))
    return [tasks.task(i) for i in range(len(tasks))]


def test_a_stream_adds_up_squared_gradients():
    X, y, task = table(fmrl.MetaRegressor)
    model = fmrl.MetaRegressor(similarity=fmrl.PerCoordinate(0.3)).fit(X, y, task=task)
    before, here, rule = model.state_, model.coordinates_, model.history_.algo.similarity
    squares = 0.0
    with model.task() as stream:
        for x, value in zip(X[:6], y[:6], strict=True):
            row = here.rows(x[None])[0]
            squares = squares + ((stream.theta @ row - here.target(value)) * row) ** 2
            stream.play(x, value)
        theta = stream.theta
    steep = before.similarity[2] + squares + rule.zeta**2 * (before.tasks + 2) ** -rule.p
    np.testing.assert_allclose(model.state_.similarity[2], steep, rtol=1e-9)
    near = before.similarity[1] + (theta - before.phi) ** 2 / 2
    near = near + rule.epsilon**2 * (before.tasks + 2) ** -rule.p
    np.testing.assert_allclose(model.state_.similarity[1], near, rtol=1e-9)
