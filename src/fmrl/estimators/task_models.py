"""What a new task gets: an ordinary fitted linear model, which can be refitted, cloned, pickled and
put into a pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.extmath import softmax
from sklearn.utils.validation import check_is_fitted, validate_data

from fmrl.core.losses import Logistic, Loss, OneVsAll, Squared
from fmrl.estimators.calibration import Rule, leader, optima
from fmrl.estimators.coordinates import Chart
from fmrl.estimators.inputs import as_numpy, back, positions, read, weighed, weights
from fmrl.estimators.pack import Table, stack


@dataclass(frozen=True, eq=False)
class Prior:
    """What was learned across tasks: the chart, where a task starts, how far it may go, and what is
    predicted.
    """

    chart: Chart
    rule: Rule
    phi: np.ndarray  # [d]
    guess: float  # D
    classes: np.ndarray | None  # None: a regression
    pooled: np.ndarray | None = None  # [d], where some task may start there

    @property
    def loss(self) -> Loss:
        """Squared for regressions, logistic for two classes, one-vs-all for more."""
        if self.classes is None:
            return Squared()
        return Logistic() if len(self.classes) == 2 else OneVsAll(max(len(self.classes), 1))

    def start(self, rounds: float) -> np.ndarray:
        """Where a task with this many rows starts, [d]."""
        choice = self.rule.at(rounds).start if self.rule.choices else "phi"
        return {"phi": self.phi, "origin": np.zeros_like(self.phi), "pooled": self.pooled}[choice]  # type: ignore[return-value]

    def adapt(self, tasks: Table) -> np.ndarray:
        """The models of some tasks, [T, d]: FTRL's action after their rows; the optimum where
        nothing is known of the step.
        """
        regression = self.classes is None
        if not self.rule.choices:
            return optima(tasks, self.chart, self.loss, regression)
        out = np.empty((len(tasks), self.phi.size))
        for n in np.unique(tasks.sizes):
            (index,) = np.nonzero(tasks.sizes == n)
            start, eta = self.start(float(n)), self.rule.eta(float(n))
            most = max(1, (1 << 19) // (int(n) * self.chart.width))
            for first in range(0, len(index), most):
                part = index[first : first + most]
                game = stack(tasks.select(part), self.chart, self.loss, regression)
                out[part] = leader(
                    game, self.chart.domain, np.tile(start, (len(part), 1)), np.full(len(part), eta)
                )
        return out


class _Linear(BaseEstimator):
    """A linear model with a prior learned across tasks; ``fit`` adapts it to one task."""

    def __init__(self, prior: Prior):
        self.prior = prior

    def fit(self, X: Any, y: Any, sample_weight: Any = None):
        """Adapt to the rows of one task, X [n, f] and y [n]."""
        classes = self.prior.classes
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=classes is None)
        weight, X, y = weighed(weights(sample_weight, X), X, y)
        target = y.astype(float) if classes is None else positions(y, classes)
        task = Table(X, target, weight, np.array([0]), np.array([len(y)]))
        self._set(self.prior.adapt(task)[0])
        return self

    def _set(self, theta: np.ndarray) -> None:
        coef, intercept = self.prior.chart.model(theta, self.prior.loss.outputs)
        self.coef_, self.intercept_ = coef, intercept
        self.n_features_in_ = coef.shape[1]
        if self.prior.classes is None:
            self.coef_, self.intercept_ = coef[0], float(intercept[0])

    def to_torch(self) -> Any:
        """The same model as a torch.nn.Linear, in float64."""
        import torch

        weight = torch.as_tensor(np.atleast_2d(self.coef_).copy())
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(weight)
            layer.bias.copy_(torch.as_tensor(np.atleast_1d(self.intercept_).copy()))
        return layer


def probabilities(z: np.ndarray, classes: int) -> np.ndarray:
    """Class probabilities [n, classes] from margins: the sigmoid, normalised over the classes where
    there are more than two.
    """
    if classes == 1:
        return np.ones((len(z), 1))
    p = 1 / (1 + np.exp(-np.clip(z, -500, 500)))
    if classes == 2:
        return np.concatenate([1 - p, p], axis=1)
    total = p.sum(axis=1, keepdims=True)
    # Where every class is all but excluded the sigmoids are their margins' exponentials.
    return np.where(total > 1e-100, p / np.maximum(total, 1e-100), softmax(z))


class TaskClassifier(ClassifierMixin, _Linear):
    """The classifier of one task: ``coef_`` [classes or 1, f], ``intercept_``, ``classes_``."""

    def _set(self, theta):
        super()._set(theta)
        self.classes_ = self.prior.classes

    def decision_function(self, X: Any) -> np.ndarray:
        """Margins: [n] for two classes, [n, classes] for more."""
        check_is_fitted(self, "coef_")
        z = read(self, X) @ self.coef_.T + self.intercept_
        return back(z[:, 0] if z.shape[1] == 1 else z, X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities, [n, classes]."""
        z = as_numpy(self.decision_function(X))
        return back(probabilities(z.reshape(len(z), -1), len(self.classes_)), X)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Their logarithms."""
        return back(np.log(np.maximum(as_numpy(self.predict_proba(X)), 1e-300)), X)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, [n]."""
        return back(self.classes_[as_numpy(self.predict_proba(X)).argmax(axis=1)], X)


class TaskRegressor(RegressorMixin, _Linear):
    """The regressor of one task: ``coef_`` [f] and ``intercept_``."""

    def predict(self, X: Any) -> np.ndarray:
        """The prediction of each row, [n]."""
        check_is_fitted(self, "coef_")
        return back(read(self, X) @ self.coef_ + self.intercept_, X)
