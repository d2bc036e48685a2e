"""The peers, each tuned as its users would: `PEERS[name](X, y, group, binary)` gives a fitted value
with ``base(X)``, the part that does not depend on the group (evaluated once for all rows), and
``adapt(X, y, base)``, the model of a new group.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegressionCV, Ridge, RidgeCV
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from groups.random_effects import Common, Design, intercept_variance

ALPHAS = np.logspace(-4, 4, 17)
SLOPES_CORRELATED = 5  # at most; with more, independent ones, as users of lmer do


def folds_by_group(group: np.ndarray, folds: int = 5) -> list[tuple[np.ndarray, np.ndarray]]:
    """Whole groups held out."""
    return list(GroupKFold(folds).split(group, groups=group))


def linear(y: np.ndarray, binary: bool, cv: Any) -> Any:
    """A cross-validated linear model of standardised features."""
    if not binary:
        return make_pipeline(StandardScaler(), RidgeCV(ALPHAS))
    model = LogisticRegressionCV(
        Cs=np.logspace(-4, 4, 9), cv=cv, max_iter=1000, scoring="neg_log_loss",
        l1_ratios=(0.0,), use_legacy_attributes=False,
    )  # fmt: skip
    return make_pipeline(StandardScaler(), model)


@dataclass(frozen=True, eq=False)
class Same:
    """The same model for every group."""

    binary: bool

    def predict(self, X: np.ndarray, base: np.ndarray) -> np.ndarray:
        return expit(base) if self.binary else base


@dataclass(frozen=True, eq=False)
class Unadapted:
    """A fitted model that ignores a group's rows."""

    base: Callable[[np.ndarray], np.ndarray]
    binary: bool

    def adapt(self, X: np.ndarray, y: np.ndarray, base: np.ndarray) -> Same:
        return Same(self.binary)


class PerTask:
    """One cross-validated linear model for each group, from its rows alone."""

    def __init__(self, X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool):
        self.binary = binary

    def base(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X))

    def adapt(self, X: np.ndarray, y: np.ndarray, base: np.ndarray) -> Any:
        """Where cross-validation is impossible: ridge with penalty 1, or the smoothed rate."""
        if not self.binary:
            return _Alone((RidgeCV(ALPHAS) if len(y) > 1 else Ridge()).fit(X, y))
        least = min(int(y.sum()), int((1 - y).sum()))
        if least < 2:
            return _Constant((y.sum() + 1) / (len(y) + 2))
        return _Alone(linear(y, True, StratifiedKFold(min(5, least))).fit(X, y))


@dataclass(frozen=True, eq=False)
class _Alone:
    model: Any

    def predict(self, X: np.ndarray, base: np.ndarray) -> np.ndarray:
        model = self.model
        return model.predict_proba(X)[:, 1] if hasattr(model, "predict_proba") else model.predict(X)


@dataclass(frozen=True, eq=False)
class _Constant:
    value: float

    def predict(self, X: np.ndarray, base: np.ndarray) -> np.ndarray:
        return np.full(len(X), self.value)


def _margin(model: Any, binary: bool) -> Callable[[np.ndarray], np.ndarray]:
    return model.decision_function if binary else model.predict


def pooled(X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool) -> Unadapted:
    """One linear model for all rows."""
    model = linear(y, binary, folds_by_group(group)).fit(X, y)
    return Unadapted(_margin(model, binary), binary)


def pooled_shrunken(X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool) -> Common:
    """Pooled, and a group's mean residual (log-odds offset), shrunken by empirical Bayes."""
    model = linear(y, binary, folds_by_group(group)).fit(X, y)
    base = _margin(model, binary)
    spread, noise = intercept_variance(y, base(X), group, binary)
    return Common(base, Design.of(X), np.array([[spread]]), noise)


def varying(X: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Features that vary inside at least half of the groups."""
    by = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(group[by]) > 0])
    ranges = np.maximum.reduceat(X[by], starts) - np.minimum.reduceat(X[by], starts)
    return np.flatnonzero((ranges > 0).mean(axis=0) >= 0.5)


def _every(X: np.ndarray) -> Design:
    """All features that vary in the training rows: a rare level may be missing there."""
    return Design.of(X, np.flatnonzero(X.std(axis=0) > 0))


def _mixed(X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool, slopes: bool) -> Common:
    """gpboost's GPModel: maximum likelihood, Laplace's method for two classes."""
    import gpboost

    design = Design.of(X, varying(X, group) if slopes else ())
    every = _every(X)
    F, Z, scale = every(X), design(X)[:, 1:], 1.0 if binary else y.std()
    options = {"group_rand_coef_data": Z, "ind_effect_group_rand_coef": [1] * Z.shape[1]}
    model = gpboost.GPModel(
        group_data=group, likelihood="bernoulli_logit" if binary else "gaussian",
        **(options if Z.shape[1] else {}),
    )  # fmt: skip
    model.fit(y=y / scale, X=F)
    found = np.asarray(model.get_cov_pars(), dtype=float).ravel()
    coef = np.asarray(model.get_coef(), dtype=float).ravel()[: F.shape[1]] * scale
    variances = (found if binary else found[1:]) * scale**2
    noise = None if binary else float(found[0]) * scale**2
    return Common(lambda X: every(X) @ coef, design, np.diag(variances), noise)


def mixed_intercept(X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool) -> Common:
    """A linear mixed model with a random intercept."""
    return _mixed(X, y, group, binary, False)


def mixed_slopes(X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool) -> Common:
    """… and independent random slopes for all features that vary inside groups."""
    return _mixed(X, y, group, binary, True)


def mixed_correlated(X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool) -> Common:
    """… with correlated slopes (statsmodels' MixedLM, REML) where they are few and it converges."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    index = varying(X, group)
    if not 0 < len(index) <= SLOPES_CORRELATED:
        return mixed_slopes(X, y, group, binary)
    design, every = Design.of(X, index), _every(X)
    scale = y.std()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = MixedLM(y / scale, every(X), group, exog_re=design(X)).fit(
                reml=True, method=["bfgs", "lbfgs", "cg"], maxiter=200
            )
        except (np.linalg.LinAlgError, ValueError):
            return mixed_slopes(X, y, group, binary)
    omega = np.asarray(found.cov_re) * scale**2
    if not (found.converged and np.isfinite(omega).all()):
        return mixed_slopes(X, y, group, binary)
    coef = np.asarray(found.fe_params) * scale
    return Common(lambda X: every(X) @ coef, design, omega, float(found.scale) * scale**2)


def _lightgbm(X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool) -> tuple[Any, Any]:
    """Rounds and leaves by cross-validation over whole groups, with early stopping.

    Returns:
        The base (a prediction or a log-odds), and the same for the training rows, out of fold.
    """
    import lightgbm

    folds, best = folds_by_group(group), None
    fixed = {
        "objective": "binary" if binary else "regression", "learning_rate": 0.1,
        "min_data_in_leaf": 5 if len(y) < 500 else 20, "lambda_l2": 1.0, "num_threads": 1,
        "feature_fraction": 1.0 if X.shape[1] < 5 else 0.8, "seed": 0, "verbose": -1,
        "deterministic": True, "force_row_wise": True,
    }  # fmt: skip
    for leaves in (3, 8, 24):
        found = lightgbm.cv(
            fixed | {"num_leaves": leaves}, lightgbm.Dataset(X, y), num_boost_round=400,
            folds=folds, return_cvbooster=True,
            callbacks=[lightgbm.early_stopping(30, verbose=False)],
        )  # fmt: skip
        (values,) = (v for k, v in found.items() if k.endswith("-mean"))
        if best is None or values[-1] < best[0]:
            best = (values[-1], leaves, len(values), found["cvbooster"])
    _, leaves, rounds, boosters = best
    model = lightgbm.train(fixed | {"num_leaves": leaves}, lightgbm.Dataset(X, y), rounds)
    out = np.empty(len(y))
    for (_, held), booster in zip(folds, boosters.boosters, strict=True):
        out[held] = booster.predict(X[held], num_iteration=rounds, raw_score=True)
    return (lambda X: model.predict(X, raw_score=True)), out


def lightgbm_pooled(X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool) -> Unadapted:
    """LightGBM for all rows."""
    return Unadapted(_lightgbm(X, y, group, binary)[0], binary)


def lightgbm_shrunken(X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool) -> Common:
    """LightGBM, and a shrunken offset of every group; its variance from residuals out of fold."""
    base, out = _lightgbm(X, y, group, binary)
    spread, noise = intercept_variance(y, out, group, binary)
    return Common(base, Design.of(X), np.array([[spread]]), noise)


def gpboost_trees(X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool) -> Common:
    """gpboost: trees and a random intercept together; rounds and leaves by cross-validation."""
    import gpboost

    # Rows, not groups, are held out here, as gpboost does by default: held-out rows of known groups
    # are what a group's intercept is for. Holding out groups stops far too early on growth curves.
    folds, best = list(KFold(4, shuffle=True, random_state=0).split(X)), None
    scale, likelihood = _gpboost_units(y, binary)
    for leaves in (4, 16):
        found = gpboost.cv(
            _gpboost_settings(y, leaves), gpboost.Dataset(X, y / scale),
            gp_model=gpboost.GPModel(group_data=group, likelihood=likelihood),
            num_boost_round=300, folds=folds, early_stopping_rounds=20, verbose_eval=False,
        )  # fmt: skip
        (values,) = (v for k, v in found.items() if k.endswith("-mean"))
        if best is None or np.min(values) < best[0]:
            best = (np.min(values), leaves, int(np.argmin(values)) + 1)
    return gpboost_untuned(X, y, group, binary, *best[1:])


def gpboost_untuned(
    X: np.ndarray, y: np.ndarray, group: np.ndarray, binary: bool, leaves: int = 4,
    rounds: int = 100,
) -> Common:  # fmt: skip
    """gpboost with given leaves and rounds."""
    import gpboost

    scale, likelihood = _gpboost_units(y, binary)
    effects = gpboost.GPModel(group_data=group, likelihood=likelihood)
    data = gpboost.Dataset(X, y / scale)
    model = gpboost.train(_gpboost_settings(y, leaves), data, rounds, gp_model=effects)
    found = np.asarray(effects.get_cov_pars(), dtype=float).ravel() * scale**2

    def base(X: np.ndarray) -> np.ndarray:
        new = np.full(len(X), group.max() + 1)
        said = model.predict(X, group_data_pred=new, pred_latent=True)
        return np.asarray(said["fixed_effect"]) * scale

    noise = None if binary else float(found[0])
    return Common(base, Design.of(X), found[-1:].reshape(1, 1), noise)


def _gpboost_units(y: np.ndarray, binary: bool) -> tuple[float, str]:
    return (1.0, "bernoulli_logit") if binary else (float(y.std()), "gaussian")


def _gpboost_settings(y: np.ndarray, leaves: int) -> dict[str, Any]:
    return {
        "learning_rate": 0.1, "min_data_in_leaf": 5 if len(y) < 500 else 20, "lambda_l2": 1.0,
        "num_threads": 1, "verbose": -1, "seed": 0, "num_leaves": leaves,
    }  # fmt: skip


PEERS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, bool], Any]] = {
    "per-task CV": PerTask,
    "pooled CV": pooled,
    "pooled + shrunken mean": pooled_shrunken,
    "mixed, intercept": mixed_intercept,
    "mixed, slopes": mixed_slopes,
    "mixed, correlated slopes": mixed_correlated,
    "gpboost": gpboost_trees,
    "LightGBM": lightgbm_pooled,
    "LightGBM + shrunken mean": lightgbm_shrunken,
}
REGRESSION_ONLY = ("mixed, correlated slopes",)
