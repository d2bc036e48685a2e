"""Meta-updates for moving environments in the estimators: fit, partial_fit, save, streams."""

import numpy as np
import pytest

import fmrl

METAS = [
    fmrl.Discounted(0.2),
    fmrl.Window(3),
    fmrl.Restart(5),
    fmrl.Mixture([fmrl.FollowLeader(), fmrl.Discounted(0.3)], share=0.05),
    fmrl.Conditional([1], 0.5),
]


@pytest.mark.parametrize("meta", METAS, ids=repr)
def test_every_way_in(meta, tmp_path):
    rng = np.random.default_rng(0)
    task, X = np.repeat(np.arange(20), 6), rng.normal(size=(120, 3))
    X[:, 1] = (np.arange(20) / 10 - 1)[task]  # known before a task begins
    y = X[:, 0] * (1 + X[:, 1]) + 0.1 * rng.normal(size=120)
    model = fmrl.MetaRegressor(meta=meta, common="linear").fit(X, y, task=task)
    assert model.history_.algo.meta == meta
    parts = fmrl.MetaRegressor(meta=meta, common="linear").fit(X[:60], y[:60], task=task[:60])
    for t in range(10, 20):
        parts.partial_fit(X[task == t], y[task == t], task=t)
    model.save(tmp_path / "model")
    loaded = fmrl.MetaRegressor.load(tmp_path / "model")
    for m in (model, loaded):
        m.partial_fit(X[:6], y[:6], task="more")
    assert np.array_equal(model.state_.phi, loaded.state_.phi)
    before = model.state_.phi
    with model.task() as stream:
        for x, value in zip(X[:6], y[:6], strict=True):
            stream.play(x, value)
    assert np.isfinite(model.state_.phi).all()
    assert not np.array_equal(before, model.state_.phi)
