"""Estimates by marginal likelihood against dense densities, and against what others find."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import expit, ndtr
from scipy.stats import norm

import fmrl
from fmrl.core.losses import Loss
from fmrl.core.prior import marginal
from fmrl.core.prior.gaussian import members_of
from fmrl.core.prior.marginal import estimate_prior
from fmrl.core.prior.mixture_fit import FamilySums, families, fit_family, fit_mixture
from fmrl.core.prior.normal import normal_cdf_and_density
from fmrl.core.prior.padding import Rows
from fmrl.core.prior.posterior import AveragedLogistic, BatchedPosterior
from fmrl.core.prior.statistics import TaskStatistics
from fmrl.core.tasks import Tasks


def log_likelihood(groups, prior, reml=False):
    """log N(y; X·mean, X·covariance·Xᵀ + noise·I), dense; REML with a flat mean."""
    total, known = 0.0, 0.0
    for X, y in groups:
        V = X @ prior.covariance @ X.T + prior.noise * np.eye(len(X))
        r, inverse = y - X @ prior.mean, np.linalg.inv(V)
        total -= (np.linalg.slogdet(V)[1] + r @ inverse @ r + len(X) * np.log(2 * np.pi)) / 2
        known = known + X.T @ inverse @ X
    if reml:
        total -= np.linalg.slogdet(known)[1] / 2 - known.shape[0] * np.log(2 * np.pi) / 2
    return total


def tasks_of(groups):
    return [fmrl.Task(X, y, loss=fmrl.Squared()) for X, y in groups]


def groups_of(count, covariance, noise=1.0, rows=(6, 6), uneven=False, seed=0):
    """Slopes and, last, an intercept."""
    rng, d = np.random.default_rng(seed), len(covariance)
    half, mean, found = np.linalg.cholesky(covariance + 1e-14 * np.eye(d)), rng.normal(size=d), []
    for _ in range(count):
        n = rng.integers(rows[0], rows[1] + 1)
        X = rng.normal(size=(n, d)) * (5 if uneven and rng.random() < 0.2 else 1)
        X[:, -1] = 1
        y = X @ (mean + half @ rng.normal(size=d)) + noise**0.5 * rng.normal(size=n)
        found.append((X, y))
    return found


CASES = {
    "plain": (60, np.diag([1.0, 0.5, 0.3]), {}),
    "few": (12, np.diag([1.0, 0.5, 0.2]), {}),
    "no spread along one": (80, np.diag([1.0, 0.0, 0.3]), {"rows": (1, 11), "uneven": True}),
    "hardly any spread": (80, np.diag([0.02, 0.01]), {"rows": (1, 11), "uneven": True}),
    "correlation of 1": (80, np.array([[1, 0.999], [0.999, 1]]), {"rows": (1, 11), "uneven": True}),
    "wide": (80, np.diag([100.0, 30.0]), {"rows": (1, 11)}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", ["ml", "reml"])
def test_no_other_search_finds_a_likelier_prior(name, method):
    """statsmodels, and steps at random around the estimate."""
    sm = pytest.importorskip("statsmodels.api")
    count, covariance, how = CASES[name]
    groups, reml = groups_of(count, covariance, **how), method == "reml"
    found = estimate_prior(tasks_of(groups), method=method)
    best = log_likelihood(groups, found, reml)
    X, y = (np.concatenate(parts) for parts in zip(*groups, strict=True))
    ids = np.repeat(np.arange(count), [len(y) for _, y in groups])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = sm.MixedLM(y, X, ids, exog_re=X).fit(reml=reml, method=["bfgs", "powell"])
    theirs = fmrl.Gaussian(np.asarray(other.fe_params), np.asarray(other.cov_re), other.scale)
    assert best > log_likelihood(groups, theirs, reml) - 1e-4
    rng, values, d = np.random.default_rng(0), np.linalg.eigh(found.covariance), len(covariance)
    half = values[1] * np.sqrt(np.maximum(values[0], 0.0))
    for size in np.repeat([1e-1, 1e-2, 1e-3], 40):
        moved = half + size * found.noise**0.5 * rng.normal(size=(d, d))
        near = fmrl.Gaussian(found.mean, moved @ moved.T, found.noise * np.exp(size * rng.normal()))
        assert best > log_likelihood(groups, near, reml) - 1e-4


@pytest.mark.parametrize("family", ["isotropic", "diagonal", (0, 0, -1), (-1, -1, 0)])
@pytest.mark.parametrize("method", ["ml", "reml"])
def test_families_are_at_their_maximum_too(family, method):
    groups, reml = (
        groups_of(40, np.diag([1.0, 0.0, 0.3]), rows=(1, 9), uneven=True),
        method == "reml",
    )
    found = estimate_prior(tasks_of(groups), family, method=method)
    best, rng = log_likelihood(groups, found, reml), np.random.default_rng(0)
    labels = {"isotropic": (0, 0, 0), "diagonal": (0, 1, 2)}.get(family, family)
    for size in np.repeat([1e-1, 1e-2, 1e-3], 30):
        add = size * rng.normal(size=3)[list(labels)] * (np.array(labels) >= 0)
        wide = np.diag(np.maximum(np.diag(found.covariance) + add, 0.0))
        near = fmrl.Gaussian(found.mean, wide, found.noise * np.exp(size * rng.normal()))
        assert best > log_likelihood(groups, near, reml) - 1e-4


def test_a_known_noise_is_kept_and_the_rest_is_likeliest_beside_it():
    groups = groups_of(60, np.diag([1.0, 0.3]))
    found = estimate_prior(tasks_of(groups), noise=2.0)
    assert found.noise == 2.0
    rng, best = np.random.default_rng(0), log_likelihood(groups, found)
    for _ in range(50):
        half = np.linalg.cholesky(found.covariance) + 0.03 * rng.normal(size=(2, 2))
        assert best > log_likelihood(groups, fmrl.Gaussian(found.mean, half @ half.T, 2.0)) - 1e-4


@pytest.mark.parametrize("method", ["ml", "reml"])
def test_copies_of_a_column_share_its_variance(method):
    """Nothing says how they differ."""
    groups = groups_of(60, np.diag([1.0, 0.5]))
    twice = [(X[:, [0, 1, 0]], y) for X, y in groups]
    if method == "reml":
        with pytest.raises(fmrl.FMRLError, match="collinear"):
            estimate_prior(tasks_of(twice), method=method)
        return
    one, two = (estimate_prior(tasks_of(g), method=method) for g in (groups, twice))
    assert log_likelihood(twice, two) > log_likelihood(groups, one) - 1e-4
    np.testing.assert_allclose(two.mean[0], two.mean[2], rtol=1e-6)
    np.testing.assert_allclose(
        two.covariance[0], two.covariance[2][[2, 1, 0]], rtol=1e-5, atol=1e-8
    )


def test_statistics_add_up_over_rows_and_tasks():
    """Of halves of the rows, and of halves of the tasks; with weights as if rows came again."""
    groups = groups_of(30, np.diag([1.0, 0.3]), rows=(2, 9))
    whole = TaskStatistics.of(Tasks.of(tasks_of(groups)))
    parts = [[(X[i::2], y[i::2]) for X, y in groups] for i in range(2)]
    one, two = (TaskStatistics.of(Tasks.of(tasks_of(part))) for part in parts)
    first, last = (TaskStatistics.of(Tasks.of(tasks_of(part))) for part in (groups[:9], groups[9:]))
    for found in (one + two, TaskStatistics.join([first, last])):
        np.testing.assert_allclose(found.products, whole.products, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(found.rounds, whole.rounds)
    right = estimate_prior(tasks_of(groups))
    found = estimate_prior(whole)
    np.testing.assert_allclose(found.covariance, right.covariance, rtol=1e-9)
    every = Tasks.of(tasks_of(groups))
    twice = fmrl.core.tasks.Tasks(
        every.loss, every.X, every.target, every.starts, every.names, np.full(len(every.X), 2.0)
    )
    np.testing.assert_allclose(TaskStatistics.of(twice).products, 2 * whole.products, rtol=1e-12)
    with pytest.raises(fmrl.FMRLError, match="sufficient"):
        TaskStatistics.of(Tasks.of([fmrl.Task(np.eye(2), [0, 1], loss=fmrl.Logistic())]))


def test_a_mixture_of_statistics_is_that_of_rows(monkeypatch):
    """Every family, a column that is constant in tasks among them, and two centres."""
    groups = groups_of(40, np.diag([1.0, 0.3, 0.5]), rows=(2, 9))
    for t, (X, _) in enumerate(groups):
        X[:, 1] = t % 3 - 1.0
    tasks, start = Tasks.of(tasks_of(groups)), None
    told = FamilySums(tasks)
    monkeypatch.setattr(marginal, "_fewer", lambda tasks: False)
    rows = FamilySums(tasks)
    assert told.statistics is not None and rows.statistics is None
    for family in families(3, True):
        one, two = (fit_family(tasks, family, True, start, sums) for sums in (rows, told))
        for name in ("mean", "covariance", "noise"):
            a, b = getattr(one, name), getattr(two, name)
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9, err_msg=family)
        start = one
    one, two = (fit_mixture(start, tasks, True, 2, sums) for sums in (rows, told))
    np.testing.assert_allclose(one.mean, two.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(one.shares, two.shares, rtol=1e-6, atol=1e-8)


def test_no_family_of_an_estimator_is_likelier_than_the_maximum():
    """And one that draws its mean and correlations is not far below."""
    groups, start = groups_of(60, np.diag([1.0, 0.0, 0.5]), rows=(2, 9)), None
    tasks = Tasks.of(tasks_of(groups))
    for family, labels in families(3, True).items():
        right, start = estimate_prior(tasks, labels), fit_family(tasks, family, True, start)
        most, least = (log_likelihood(groups, g, False) for g in (right, *start.gaussians))
        assert most - 4 < least < most + 1e-4, family


def test_methods_are_named():
    groups = tasks_of(groups_of(9, np.eye(2)))
    with pytest.raises(fmrl.FMRLError, match="method"):
        estimate_prior(groups, method="mle")
    with pytest.raises(fmrl.FMRLError, match="reml"):
        estimate_prior(groups, 1, method="reml")


def test_the_normal_distribution_is_scipys():
    t = np.concatenate([np.linspace(-12, 12, 100_001), [-1e100, 1e100, -40.0, 40.0]])
    found = normal_cdf_and_density(t.reshape(5, -1))
    np.testing.assert_allclose(found[0].ravel(), ndtr(t), rtol=0, atol=1e-12)
    np.testing.assert_allclose(found[1].ravel(), norm.pdf(t), rtol=0, atol=1e-12)
    torch = pytest.importorskip("torch")
    np.testing.assert_allclose(normal_cdf_and_density(torch.as_tensor(t)), found.reshape(2, -1))


def test_the_averaged_logistic_loss_is_that_of_quadrature():
    """It is a sum of two Φ, to 5e-4; quadrature with 20 nodes is as far off where v is 30."""
    rng = np.random.default_rng(0)
    z, v = rng.normal(size=(2, 3, 4, 1, 5)) * 1.5
    target, weight = (rng.random((4, 1, 5)) < 0.5).astype(float), np.ones((4, 1, 5))
    found = AveragedLogistic(target, weight)
    found.spread(v**2)
    nodes, shares = np.polynomial.hermite_e.hermegauss(20)
    near = z + np.multiply.outer(nodes, np.abs(v))
    mean = lambda values: np.tensordot(shares / shares.sum(), values, 1)  # noqa: E731
    np.testing.assert_allclose(
        found.value(z), mean(np.logaddexp(0, near) - target * near), atol=2e-3
    )
    slope, curvature = found.slope_and_curvature(z)
    np.testing.assert_allclose(slope, mean(expit(near)) - target, atol=2e-3)
    np.testing.assert_allclose(curvature, mean(expit(near) * expit(-near)), atol=2e-3)


@dataclass(frozen=True)
class Counts(Loss):
    """exp(z) − y·z: a Poisson count, with nothing but what every loss has."""

    bend = 10.0

    def encode(self, y, like):
        return np.asarray(y, like.dtype)[:, None]

    def value(self, z, target):
        return (np.exp(z) - target * z)[..., 0]

    def slope(self, z, target):
        return np.exp(z) - target

    def curvature(self, z, target):
        return np.exp(z)

    def conjugate(self, u, target):
        raise NotImplementedError


def test_any_loss_with_slope_and_curvature_has_a_mode():
    """Counts: by the first-order condition."""
    counts = np.array([[0.0, 3.0, 5.0], [1.0, 0.0, 0.0]])
    rows = Rows(np.ones((2, 3, 1)), counts[..., None], np.ones((2, 3)))
    prior = members_of([fmrl.Gaussian(np.array([0.3]), np.array([[0.8]]))])
    found = BatchedPosterior(prior, rows, Counts(), close=1e-9).theta()[0, :, 0, 0]
    slope = counts.sum(axis=1) - 3 * np.exp(found) - (found - 0.3) / 0.8
    np.testing.assert_allclose(slope, 0.0, atol=1e-6)
