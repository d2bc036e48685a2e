"""All members of a prior at once say what each says by itself."""

from dataclasses import replace

import numpy as np
import pytest

import fmrl
from fmrl.estimators.inputs import grouped
from fmrl.estimators.solving import solved

from .data import classification, regression


def fitted(kind):
    if kind == "regression":
        X, y, task = regression(tasks=90)
        return fmrl.MetaRegressor().fit(X, y, task=task), X, y, task
    X, y, task = classification(tasks=90, classes=2 if kind == "binary" else 3, size=1.0)
    return fmrl.MetaClassifier().fit(X, y, task=task), X, y.astype(float), task


@pytest.mark.parametrize("centres", [1, 2])
@pytest.mark.parametrize("kind", ["regression", "binary", "classes"])
def test_together_is_one_after_another(kind, centres):
    """With more and fewer rows than columns, ragged, weighted, one task or many, around one centre
    or two, and where a full Newton step would go too far.
    """
    est, X, y, task = fitted(kind)
    prior, rng = est.prior_, np.random.default_rng(0)
    members = list(prior.members)
    if centres == 2:
        for i, m in enumerate(members):
            mean = np.concatenate([m.mean - 0.5, m.mean + 1.0])
            members[i] = replace(m, mean=mean, shares=np.array([0.3, 0.7]))
    members.append(replace(members[-1], covariance=100 * members[-1].covariance))
    weights = [1.0, 0.0, *[1.0] * (len(members) - 2)]
    for tasks, most in ((1, 12), (1, 2), (90, 3), (90, 12)):
        kept = (task < tasks) & (rng.random(len(y)) < rng.random(90)[task] + 0.3)
        kept &= (np.arange(len(y)) % 12 < most) | (np.arange(len(y)) % 12 == 0)
        for weight in (None, rng.choice([0.5, 1.0, 3.0], kept.sum())):
            some = grouped(prior.loss, X[kept], y[kept], weight, task[kept])
            here = prior.coordinates.tasks(some)
            found = solved(members, weights, here, True)
            quick = solved(members, weights, here, False)
            assert found[1] is None
            for m, one, less, w in zip(members, found, quick, weights, strict=True):
                if not w:
                    continue
                alone = m.adapt(here, spread=True)
                size = max(1.0, float(np.abs(alone.theta).max()))
                np.testing.assert_allclose(one.theta, alone.theta, atol=1e-7 * size)
                np.testing.assert_allclose(less.theta, one.theta, atol=1e-12 * size)
                top = float(np.abs(alone.spread).max())
                np.testing.assert_allclose(one.spread, alone.spread, atol=1e-5 * max(top, 1e-9))
