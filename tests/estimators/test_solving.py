"""All members of a prior at once say what each says by itself."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import fmrl
from fmrl.core import posterior
from fmrl.estimators.averaging import margins
from fmrl.estimators.inputs import grouped
from fmrl.estimators.population import Sums, by_output
from fmrl.estimators.solving import Posterior, asked, solved

from .data import classification, regression


def fitted(kind):
    if kind == "regression":
        X, y, task = regression(tasks=90)
        return fmrl.MetaRegressor().fit(X, y, task=task), X, y, task
    X, y, task = classification(tasks=90, classes=2 if kind == "binary" else 3, size=1.0)
    return fmrl.MetaClassifier().fit(X, y, task=task), X, y.astype(float), task


def one_by_one(member, tasks):
    """The same by the solver that estimates populations, a centre and an output at a time."""
    shape = (*member.mean.shape[:1], len(tasks), *member.mean.shape[1:])
    theta, likely = np.empty(shape), np.zeros(shape[:2])
    wide = np.empty((*shape, shape[-1]))
    for k, view in enumerate(by_output(tasks)):
        for c in range(len(member.mean)):
            for stack in posterior.solved(posterior.stacked(view), member.gaussian(c, k)):
                found, R = stack.fitted(), stack.R
                theta[c, stack.part, k] = member.mean[c, k] + found.u @ R.T
                wide[c, stack.part, k] = member.noise * (R @ found.spread @ R.T)
                likely[c, stack.part] += found.evidence
    share = member.shares[:, None] * np.exp(likely - likely.max(axis=0))
    share = (share / share.sum(axis=0))[..., None, None]
    mean = (share * theta).sum(axis=0)
    off = theta - mean
    wide = wide + off[..., :, None] * off[..., None, :]
    return Posterior(mean, (share[..., None] * wide).sum(axis=0))


def near(found, right):
    size = max(1.0, float(np.abs(right.theta).max()))
    np.testing.assert_allclose(found.theta, right.theta, atol=1e-7 * size)
    top = max(float(np.abs(right.spread).max()), 1e-9)
    np.testing.assert_allclose(found.spread, right.spread, atol=1e-5 * top)


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
    weights = np.array([0.3, 0.0, *[1.0] * (len(members) - 2)])
    weights /= weights.sum()
    for tasks, most in ((1, 12), (1, 2), (90, 3), (90, 12)):
        kept = (task < tasks) & (rng.random(len(y)) < rng.random(90)[task] + 0.3)
        kept &= (np.arange(len(y)) % 12 < most) | (np.arange(len(y)) % 12 == 0)
        for weight in (None, rng.choice([0.5, 1.0, 3.0], kept.sum())):
            some = grouped(prior.loss, X[kept], y[kept], weight, task[kept])
            here = prior.coordinates.tasks(some)
            alone = {m: one_by_one(m, here) for m, w in zip(members, weights, strict=True) if w}
            share = weights[weights > 0]
            theta = np.tensordot(share, np.stack([a.theta for a in alone.values()]), 1)
            wide = np.zeros((*theta.shape, theta.shape[-1]))
            for w, a in zip(share, alone.values(), strict=True):
                off = a.theta - theta
                wide += w * (a.spread + off[..., :, None] * off[..., None, :])
            near(solved(members, weights, here, True), Posterior(theta, wide))
            quick = solved(members, weights, here, False)
            assert quick.spread is None
            size = max(1.0, float(np.abs(theta).max()))
            np.testing.assert_allclose(quick.theta, theta, atol=1e-7 * size)
            for m, its in alone.items():
                one = solved([m], [1.0], here, True)
                near(one, its)
                rows = here.X[None, :5] + np.zeros((len(here), 1, 1))
                z, v = (a[0] for a in asked([m], here, rows))
                said, wide = margins(rows, one)
                np.testing.assert_allclose(z, said, atol=1e-9 * max(1.0, np.abs(said).max()))
                np.testing.assert_allclose(v, wide, atol=1e-6 * max(1e-6, np.abs(wide).max()))


@pytest.mark.parametrize("kind", ["regression", "classes"])
@pytest.mark.parametrize("rows", [3, 12])
def test_what_tasks_say_about_a_prior_is_the_same_for_all_outputs_at_once(kind, rows):
    """Sums of `core.posterior`, an output at a time, with weights and with more and fewer rows than
    columns.
    """
    est, X, y, task = fitted(kind)
    kept, rng = np.arange(len(y)) % 12 < rows, np.random.default_rng(0)
    weight = rng.choice([0.5, 1.0, 3.0], kept.sum())
    for heavy in (None, weight):
        some = est.prior_.coordinates.tasks(
            grouped(est.prior_.loss, X[kept], y[kept], heavy, task[kept])
        )
        for member in est.prior_.members:
            each = [member.gaussian(0, k) for k in range(some.loss.outputs)]
            for view, gaussian, found in zip(by_output(some), each, Sums(some)(each), strict=True):
                told = posterior.moments(posterior.stacked(view), gaussian)
                for name in ("tasks", "rounds", "pull", "information"):
                    a, b = getattr(found, name), getattr(told, name)
                    np.testing.assert_allclose(a, b, atol=1e-6 * np.abs(b).max(), err_msg=name)
                if told.gain.size:
                    for name in ("scatter", "gain"):
                        a, b = getattr(found, name), getattr(told, name)
                        np.testing.assert_allclose(a, b, atol=1e-6 * np.abs(b).max(), err_msg=name)
                if kind == "regression":
                    np.testing.assert_allclose(found.squares, told.squares, rtol=1e-9)


def test_rows_far_away_are_fitted_as_others_are():
    """Fewer rows than columns, so far from all others that 1 is little beside what they say."""
    reg, X, y, _ = fitted("regression")
    prior = reg.prior_
    for far, rows in itertools.product((1e2, 1e4, 1e6, 1e8), (1, 3)):
        some = far * X[:rows], y[:rows]
        model = reg.adapt(*some)
        np.testing.assert_allclose(model.predict(some[0]), some[1], atol=1e-2)
        here = prior.coordinates.tasks(grouped(prior.loss, *some, None, None))
        for member in prior.members[2:]:
            near(solved([member], [1.0], here, True), one_by_one(member, here))
