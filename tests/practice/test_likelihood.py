"""The judge of benchmarks/likelihood.py: densities of whole vectors, and statsmodels' numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import linalg, stats

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import likelihood

OMEGA = np.array([[0.5, 0.2], [0.2, 0.4]])


def drawn(correlated: bool = True, groups: int = 30) -> likelihood.Model:
    """A column, an intercept, and groups of 3 to 7 rows that differ in both."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(groups), rng.integers(3, 8, groups))
    F = np.column_stack([rng.normal(size=len(group)), np.ones(len(group))])
    own = np.array([1.0, -0.5]) + rng.multivariate_normal(np.zeros(2), OMEGA, size=groups)
    y = (F * own[group]).sum(axis=1) + 0.6 * rng.normal(size=len(group))
    return likelihood.Model(F, y, group, [0, 1], correlated)


def test_the_judge_is_the_density_of_all_rows_or_of_contrasts():
    """At the best mean; REML is the density of Kᵀy for K orthonormal and KᵀF = 0, but for a term
    that no covariance changes."""
    model, noise = drawn(groups=6), 0.4
    F, y, group, Z = model.F, model.y, model.group, model.F[:, model.random]
    V = (group[:, None] == group) * (Z @ OMEGA @ Z.T) + noise * np.eye(len(y))
    mean = linalg.lstsq(linalg.sqrtm(linalg.inv(V)).real @ F, linalg.sqrtm(linalg.inv(V)).real @ y)
    right = stats.multivariate_normal.logpdf(y, F @ mean[0], V)
    assert abs(likelihood.log_likelihood(model, OMEGA, noise, False) - right) < 1e-8
    K = linalg.null_space(F.T)
    right = stats.multivariate_normal.logpdf(K.T @ y, None, K.T @ V @ K)
    right -= np.linalg.slogdet(F.T @ F)[1] / 2
    assert abs(likelihood.log_likelihood(model, OMEGA, noise, True) - right) < 1e-8


def test_statsmodels_reports_what_the_judge_says():
    mixed = pytest.importorskip("statsmodels.regression.mixed_linear_model")
    model = drawn()
    found = mixed.MixedLM(model.y, model.F, model.group, exog_re=model.F).fit(reml=False)
    omega, noise = np.asarray(found.cov_re), float(found.scale)
    assert abs(likelihood.log_likelihood(model, omega, noise, False) - found.llf) < 1e-5


@pytest.mark.parametrize("correlated", [True, False])
@pytest.mark.parametrize("reml", [False, True])
def test_statsmodels_is_not_likelier(correlated, reml):
    pytest.importorskip("statsmodels")
    model = drawn(correlated)
    omega, noise = likelihood.statsmodels(model, reml, "lbfgs")
    assert correlated or omega[0, 1] == 0
    theirs = likelihood.log_likelihood(model, omega, noise, reml)
    mine = likelihood.log_likelihood(model, *likelihood.ours(model, reml), reml)
    assert mine > theirs - likelihood.ALLOWED
    # and the judge sees what is worse
    worse = likelihood.log_likelihood(model, 2 * omega, noise, reml)
    assert worse < theirs - 0.1


def test_the_peers_of_a_line_have_its_structure():
    pytest.importorskip("statsmodels")
    pytest.importorskip("gpboost")
    found = likelihood.peers(drawn(correlated=False), reml=False)
    assert "gpboost" in found and max(found.values()) - min(found.values()) < 0.01
    assert "gpboost" not in likelihood.peers(drawn(), reml=False)
