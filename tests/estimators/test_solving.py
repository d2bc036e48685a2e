"""All members of a prior at once say what each says by itself."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import multivariate_normal

import fmrl
from fmrl.core.prior import posterior
from fmrl.core.prior.mixture import (
    Mixture,
    Posterior,
    adapt_members,
    log_evidence,
    predict_margins,
)
from fmrl.core.prior.mixture_fit import FamilySums, fit_family
from fmrl.core.prior.posterior import root_of
from fmrl.estimators.averaging import margins, moderated
from fmrl.tables.targets import group_by_task

from .data import classification, regression


def fitted(kind):
    if kind == "regression":
        X, y, task = regression(tasks=90)
        return fmrl.MetaRegressor().fit(X, y, task=task), X, y, task
    X, y, task = classification(tasks=90, classes=2 if kind == "binary" else 3, size=1.0)
    return fmrl.MetaClassifier().fit(X, y, task=task), X, y.astype(float), task


def mode(X, y, weight, gaussian, squared):
    """u of θ = mean + R·u at the mode, R, and the rows' weights there: Newton's method, halved."""
    R, A = root_of(gaussian), X @ root_of(gaussian)
    under, u = X @ gaussian.mean, np.zeros(R.shape[1])

    def value(u):
        z = under + A @ u
        return weight @ ((y - z) ** 2 / 2 if squared else np.logaddexp(0, z) - y * z) + u @ u / 2

    for _ in range(100):
        z = under + A @ u
        p = z if squared else expit(z)
        W = weight if squared else np.maximum(weight * p * (1 - p), 1e-13)
        root = np.sqrt(W)
        U, s, V = np.linalg.svd(root[:, None] * A, full_matrices=False)
        r = root * (z - under) - weight * (p - y) / root
        step = V.T @ (s / (1 + s**2) * (U.T @ r)) - u
        length = 1.0
        while value(u + length * step) > value(u) and length > 1e-9:
            length /= 2
        u = u + length * step
        if np.abs(A @ step).max(initial=0.0) < 1e-9:
            break
    return u, R, W, value(u)


def one_by_one(member, tasks):
    """The same from the mode of each task, a centre and an output at a time."""
    shape = (*member.mean.shape[:1], len(tasks), *member.mean.shape[1:])
    theta, likely = np.empty(shape), np.zeros(shape[:2])
    wide, squared = np.empty((*shape, shape[-1])), isinstance(tasks.loss, fmrl.Squared)
    for c, t, k in np.ndindex(shape[:3]):
        own, gaussian = slice(*tasks.starts[t : t + 2]), member.gaussian(c, k)
        X, y = tasks.X[own], tasks.target[own, k]
        weight = np.ones(len(X)) if tasks.weight is None else tasks.weight[own]
        u, R, W, value = mode(X, y, weight, gaussian, squared)
        theta[c, t, k] = gaussian.mean + R @ u
        _, s, V = np.linalg.svd(np.sqrt(W)[:, None] * (X @ R), full_matrices=False)
        told = (V.T * (s**2 / (1 + s**2))) @ V
        wide[c, t, k] = member.noise * (R @ (np.eye(R.shape[1]) - told) @ R.T)
        likely[c, t] -= value / member.noise + np.log1p(s**2).sum() / 2
    share = member.shares[:, None] * np.exp(likely - likely.max(axis=0))
    share = (share / share.sum(axis=0))[..., None, None]
    mean = (share * theta).sum(axis=0)
    off = theta - mean
    wide = wide + off[..., :, None] * off[..., None, :]
    return Posterior(mean, (share[..., None] * wide).sum(axis=0))


@pytest.fixture
def at_the_mode(monkeypatch):
    """Laplace's approximation, and near to it."""
    monkeypatch.setattr(posterior, "REFINE", 0)
    monkeypatch.setattr(posterior, "CLOSE", 1e-5)


def near(found, right):
    size = max(1.0, float(np.abs(right.theta).max()))
    np.testing.assert_allclose(found.theta, right.theta, atol=1e-7 * size)
    top = max(float(np.abs(right.spread).max()), 1e-9)
    np.testing.assert_allclose(found.spread, right.spread, atol=1e-5 * top)


@pytest.mark.parametrize("centres", [1, 2])
@pytest.mark.parametrize("kind", ["regression", "binary", "classes"])
def test_together_is_one_after_another(kind, centres, at_the_mode):
    """With more and fewer rows than columns, ragged, weighted, one task or many, around one centre
    or two beside a member with one, and where a full Newton step would go too far.
    """
    est, X, y, task = fitted(kind)
    prior, rng = est.prior_, np.random.default_rng(0)
    members = list(prior.members)
    if centres == 2:
        for i, m in enumerate(members[1:], 1):
            mean = np.concatenate([m.mean - 0.5, m.mean + 1.0])
            members[i] = replace(m, mean=mean, shares=np.array([0.3, 0.7]))
    members.append(replace(members[-1], covariance=100 * members[-1].covariance))
    weights = np.array([0.3, 0.0, *[1.0] * (len(members) - 2)])
    weights /= weights.sum()
    for tasks, most in ((1, 12), (1, 2), (90, 3), (90, 12)):
        kept = (task < tasks) & (rng.random(len(y)) < rng.random(90)[task] + 0.3)
        kept &= (np.arange(len(y)) % 12 < most) | (np.arange(len(y)) % 12 == 0)
        for weight in (None, rng.choice([0.5, 1.0, 3.0], kept.sum())):
            some = group_by_task(prior.loss, X[kept], y[kept], weight, task[kept])
            here = prior.coordinates.tasks(some)
            alone = {m: one_by_one(m, here) for m, w in zip(members, weights, strict=True) if w}
            share = weights[weights > 0]
            theta = np.tensordot(share, np.stack([a.theta for a in alone.values()]), 1)
            wide = np.zeros((*theta.shape, theta.shape[-1]))
            for w, a in zip(share, alone.values(), strict=True):
                off = a.theta - theta
                wide += w * (a.spread + off[..., :, None] * off[..., None, :])
            near(adapt_members(members, weights, here, True), Posterior(theta, wide))
            quick = adapt_members(members, weights, here, False)
            assert quick.spread is None
            size = max(1.0, float(np.abs(theta).max()))
            np.testing.assert_allclose(quick.theta, theta, atol=1e-7 * size)
            for m, its in alone.items():
                one = adapt_members([m], [1.0], here, True)
                near(one, its)
                rows = here.X[None, :5] + np.zeros((len(here), 1, 1))
                z, v = (a[0] for a in predict_margins([m], here, rows))
                said, wide = margins(rows, one)
                np.testing.assert_allclose(z, said, atol=1e-9 * max(1.0, np.abs(said).max()))
                np.testing.assert_allclose(v, wide, atol=1e-6 * max(1e-6, np.abs(wide).max()))


@pytest.mark.parametrize("kind", ["regression", "classes"])
@pytest.mark.parametrize("rows", [3, 12])
def test_what_tasks_say_about_a_prior_is_the_same_for_all_outputs_at_once(kind, rows, at_the_mode):
    """Sums by their definition, a task and an output at a time, with weights and with more and
    fewer rows than columns.
    """
    est, X, y, task = fitted(kind)
    kept, rng = np.arange(len(y)) % 12 < rows, np.random.default_rng(0)
    weight, squared = rng.choice([0.5, 1.0, 3.0], kept.sum()), kind == "regression"
    for heavy in (None, weight):
        some = est.prior_.coordinates.tasks(
            group_by_task(est.prior_.loss, X[kept], y[kept], heavy, task[kept])
        )
        for member in est.prior_.members:
            each = [member.gaussian(0, k) for k in range(some.loss.outputs)]
            for k, found in enumerate(FamilySums(some)(each)):
                told = defined(some, k, each[k], squared)
                for name in ("pull", "information", "scatter", "gain", "squares"):
                    a, b = getattr(found, name), told[name]
                    if np.size(b) and (squared or name != "squares"):
                        most = np.abs(b).max()
                        np.testing.assert_allclose(a, b, atol=1e-5 * most, err_msg=name)
                assert found.tasks == len(some)
                np.testing.assert_allclose(found.rounds, some.mass.sum())


def defined(tasks, k, gaussian, squared):
    """`Moments` of one output by their definition."""
    told = {}
    for t in range(len(tasks)):
        own = slice(*tasks.starts[t : t + 2])
        X, y = tasks.X[own], tasks.target[own, k]
        weight = np.ones(len(X)) if tasks.weight is None else tasks.weight[own]
        u, R, W, _ = mode(X, y, weight, gaussian, squared)
        z, under = X @ (gaussian.mean + R @ u), X @ gaussian.mean
        root = np.sqrt(W)
        r = root * (z - under) - (weight * ((z if squared else expit(z)) - y)) / root
        J = root[:, None] * X
        K = np.eye(len(X)) + (J @ R) @ (J @ R).T
        q, Q = np.linalg.solve(K, r), np.linalg.solve(K, J)
        place = R.T @ J.T @ q
        parts = {
            "pull": J.T @ q, "information": J.T @ Q, "scatter": np.outer(place, place),
            "gain": R.T @ J.T @ Q @ R, "squares": r @ q,
        }  # fmt: skip
        told = {name: told.get(name, 0.0) + part for name, part in parts.items()}
    return told


def test_rows_far_away_are_fitted_as_others_are():
    """Fewer rows than columns, so far from all others that 1 is little beside what they say."""
    reg, X, y, _ = fitted("regression")
    prior = reg.prior_
    for far, rows in itertools.product((1e2, 1e4, 1e6, 1e8), (1, 3)):
        some = far * X[:rows], y[:rows]
        model = reg.adapt(*some)
        np.testing.assert_allclose(model.predict(some[0]), some[1], atol=1e-2)
        here = prior.coordinates.tasks(group_by_task(prior.loss, *some, None, None))
        for member in prior.members[2:]:
            near(adapt_members([member], [1.0], here, True), one_by_one(member, here))


@pytest.mark.parametrize("far", [1e8, 1e10])
def test_a_far_row_that_comes_three_times_is_fitted_by_the_mean(far):
    """Fewer rows than columns, alike, beside which 1 would be lost in rounding."""
    reg, X, y, _ = fitted("regression")
    model = reg.adapt(far * X[[0, 0, 0]], y[:3])
    np.testing.assert_allclose(model.predict(far * X[:1]), y[:3].mean(), atol=1e-2)


def quadrature(deviation, y, weight):
    """Mean of the posterior and chance of class 1 for tasks that differ by a constant."""
    grid = np.linspace(-12 * deviation, 12 * deviation, 20_001)
    log = -0.5 * (grid / deviation) ** 2
    log += weight * sum(t * grid - np.logaddexp(0, grid) for t in y)
    share = np.exp(log - log.max())
    share /= share.sum()
    return share @ grid, share @ (1 / (1 + np.exp(-grid)))


@pytest.mark.parametrize("deviation", [0.5, 1.5, 3.0])
@pytest.mark.parametrize("right", [(1,), (1, 1), (1, 1, 1, 0), (1,) * 8, (1, 0) * 4])
@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_few_rows_of_two_classes_give_the_mean_of_the_posterior(deviation, right, weight):
    """The mode is up to 2 away from it. Rows of weight 2 are rows that come twice. Columns without
    variance ask for the other way to solve.
    """
    mean, chance = quadrature(deviation, right, weight)
    for width in (1, 12):  # more rows than directions, and fewer
        X = np.zeros((len(right), width))
        X[:, -1] = 1.0
        covariance = np.diag([1e-12] * (width - 1) + [deviation**2])
        prior = Mixture("full", np.zeros((1, 1, width)), covariance, 1.0, np.ones(1), 9)
        heavy = np.full(len(right), weight)
        some = group_by_task(fmrl.Logistic(), X, np.array(right, float), heavy, None)
        z, v = (a[0, 0, :1] for a in predict_margins([prior], some, X[None, :1]))
        assert abs(z[0, 0] - mean) < 0.02 + 0.05 * abs(mean)
        assert abs(1 / (1 + np.exp(-moderated(z, v, 1.0)[0, 0])) - chance) < 0.015
        np.testing.assert_allclose(prior.adapt(some).theta[0, 0, -1], z[0, 0], rtol=1e-9)


@pytest.mark.parametrize("rows", [3, 12])
@pytest.mark.parametrize(("deviation", "off"), [(1.0, 0.01), (2.0, 0.1), (4.0, 1.5)])
def test_a_task_is_the_gaussian_nearest_to_its_posterior(rows, deviation, off, monkeypatch):
    """Where E[Σ loss] + KL to the prior is least: by quadrature, no small change of mean or root
    lowers it once v has come to rest, and a few steps are near that, the less the farther tasks lie
    apart.
    """
    rng, width = np.random.default_rng(0), 5
    A = deviation * rng.normal(size=(width, width))
    H, mean = A @ A.T / 2, rng.normal(size=width)
    X, y = rng.normal(size=(rows, width)), (rng.random(rows) < 0.5).astype(float)
    prior = Mixture("full", mean[None, None], H, 1.0, np.ones(1), 9)
    some = group_by_task(fmrl.Logistic(), X, y, None, None)
    quick = prior.adapt(some, spread=True)
    monkeypatch.setattr(posterior, "REFINE", 50)
    found = prior.adapt(some, spread=True)
    nodes, shares = np.polynomial.hermite_e.hermegauss(60)

    def cost(m, S):
        z = (X @ m)[:, None] + np.sqrt(np.einsum("ni,ij,nj->n", X, S, X))[:, None] * nodes
        loss = ((np.logaddexp(0, z) - y[:, None] * z) @ shares).sum() / shares.sum()
        far = np.linalg.solve(H, np.outer(m - mean, m - mean) + S)
        return loss + (np.trace(far) - np.linalg.slogdet(S)[1]) / 2

    m, S = found.theta[0, 0], found.spread[0, 0]
    least = cost(m, S)
    for _ in range(50):
        B = np.eye(width) + 0.05 * rng.normal(size=(width, width))
        assert cost(m + 0.05 * np.sqrt(np.diag(S)) * rng.normal(size=width), S) > least - 1e-4
        assert cost(m, B @ S @ B.T) > least - 1e-4
    assert cost(quick.theta[0, 0], quick.spread[0, 0]) < least + off


@pytest.mark.parametrize("deviation", [0.5, 2.0])
@pytest.mark.parametrize("right", [(1,), (1, 1, 1, 0), (1,) * 8])
def test_how_likely_rows_are_is_bounded_from_below(deviation, right):
    """Which a centre's share is made of. Twelve columns are the other way to solve."""
    grid = np.linspace(-12 * deviation, 12 * deviation, 20_001)
    log = sum(t * grid - np.logaddexp(0, grid) for t in right) - 0.5 * (grid / deviation) ** 2
    exact = np.log(np.exp(log).sum() * (grid[1] - grid[0]) / deviation / np.sqrt(2 * np.pi))
    for width in (1, 12):
        X = np.zeros((len(right), width))
        X[:, -1] = 1.0
        covariance = np.diag([1e-12] * (width - 1) + [deviation**2])
        one = Mixture("full", np.zeros((1, 1, width)), covariance, 1.0, np.ones(1), 9)
        some = group_by_task(fmrl.Logistic(), X, np.array(right, float), None, None)
        assert exact - 0.1 < log_evidence(one, some)[0, 0] < exact + 2e-3 * len(right)


def test_how_likely_rows_of_a_regression_are():
    """Their normal density, with weights and with more and fewer rows than columns."""
    reg, X, y, task = fitted("regression")
    rng = np.random.default_rng(0)
    for rows in (2, 12):
        kept = np.arange(len(y)) % 12 < rows
        weight = rng.choice([0.5, 1.0, 3.0], kept.sum())
        for heavy in (None, weight):
            some = group_by_task(fmrl.Squared(), X[kept], y[kept], heavy, task[kept])
            here = reg.prior_.coordinates.tasks(some)
            for one in reg.prior_.members:
                found, w = log_evidence(one, here), here.weight
                for t in range(0, len(here), 20):
                    own = slice(*here.starts[t : t + 2])
                    noise = np.ones(own.stop - own.start) if w is None else 1 / w[own]
                    covariance = here.X[own] @ one.covariance @ here.X[own].T
                    right = multivariate_normal(
                        here.X[own] @ one.mean[0, 0], covariance + np.diag(one.noise * noise)
                    ).logpdf(here.target[own, 0])
                    # A weight is so many rows, of which each has its own constant.
                    mass = np.zeros(1) if w is None else w[own] - 1
                    level = np.log(2 * np.pi * one.noise) * mass.sum()
                    level -= 0.0 if w is None else np.log(1 / w[own]).sum()
                    np.testing.assert_allclose(found[0, t], right - (level / 2), rtol=1e-8)


def test_a_task_does_not_depend_on_those_beside_it():
    """Solved with 200 others, and alone."""
    X, y, task = classification(tasks=200, classes=2, size=3.0)
    est = fmrl.MetaClassifier().fit(X, y, task=task)
    some = est.prior_.coordinates.tasks(
        group_by_task(est.prior_.loss, X, y.astype(float), None, task)
    )
    together = est.prior_.members[-1].adapt(some).theta
    for t in (0, 7, 199):
        alone = est.prior_.members[-1].adapt(some.take(np.array([t]))).theta[0]
        np.testing.assert_allclose(together[t], alone, atol=1e-6 * np.abs(alone).max())


def test_how_far_tasks_of_two_classes_lie_apart_is_found_from_four_rows_each():
    """Estimates at the modes of tasks say 1.2 where 2 is true."""
    rng = np.random.default_rng(0)
    level, task = 2 * rng.normal(size=1500), np.repeat(np.arange(1500), 4)
    y = (rng.random(6000) < 1 / (1 + np.exp(-level[task]))).astype(float)
    some = group_by_task(fmrl.Logistic(), np.ones((6000, 1)), y, None, task)
    assert abs(float(fit_family(some, "intercept", True).covariance[0, 0]) ** 0.5 - 2) < 0.3


@pytest.mark.parametrize("rows", [1, 6, 30])
def test_the_regret_of_playing_nearest_gaussians_is_bounded(rows, monkeypatch):
    """Each row predicted from those before it, against any u: ½‖u − m‖² + Σ (⅛ + ½s²)‖x‖², all in
    the prior's metric; a fifth of that would not do.
    """
    monkeypatch.setattr(posterior, "REFINE", 25)
    rng, width, share = np.random.default_rng(rows), 3, []
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    for _ in range(30):
        A = rng.normal(size=(width, width))
        H, mean = A @ A.T * rng.choice([0.1, 1.0]), rng.normal(size=width)
        X = rng.normal(size=(rows, width))
        y = (rng.random(rows) < rng.choice([0.0, 0.5, 1.0])).astype(float)
        prior = Mixture("full", mean[None, None], H, 1.0, np.ones(1), 9)
        suffered, told = 0.0, 0.0
        for i in range(rows):
            at = prior.middle()
            if i:
                at = prior.adapt(
                    group_by_task(fmrl.Logistic(), X[:i], y[:i], None, None), spread=True
                )
            z, v = X[i] @ at.theta[0, 0], X[i] @ at.spread[0, 0] @ X[i]
            slope = 1 / (1 + np.exp(-(z + np.sqrt(v) * nodes))) - y[i]
            suffered += np.logaddexp(0, z) - y[i] * z
            told += (1 / 8 + slope**2 @ weights / weights.sum() / 2) * (X[i] @ H @ X[i])
        for scale in (0.3, 1.0, 3.0):
            u = mean + scale * A @ rng.normal(size=width)
            regret = suffered - np.sum(np.logaddexp(0, X @ u) - y * (X @ u))
            bound = (u - mean) @ np.linalg.solve(H, u - mean) / 2 + told
            assert regret <= bound + 1e-9
            share.append(regret / bound)
    assert max(share) > 0.2
