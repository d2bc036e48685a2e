"""What a new task gets: an ordinary fitted linear model, which can be refitted, cloned, pickled
and put into a pipeline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.extmath import softmax
from sklearn.utils.validation import check_is_fitted

from fmrl.core.losses import Logistic, Loss, OneVsAll, Squared
from fmrl.core.tasks import Tasks
from fmrl.estimators.calibration import Rule, leader, optima
from fmrl.estimators.coordinates import Coordinates
from fmrl.estimators.encoding import as_numpy, checked, read
from fmrl.estimators.inputs import back, grouped, positions, weighed, weights
from fmrl.tables.encoder import Encoder


@dataclass(frozen=True, eq=False, repr=False)
class Prior:
    """What was learned across tasks, and all that adapting to a new one needs."""

    coordinates: Coordinates
    rule: Rule
    phi: np.ndarray  # [d]
    guess: float  # D
    classes: np.ndarray | None  # None: a regression
    pooled: np.ndarray | None = None  # [d], where some task may start there
    tasks: int = 1  # seen so far
    encoder: Encoder | None = None  # how rows become numbers

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{len(self.classes)} classes"
        return f"Prior({self.coordinates.centre.size} features, {kind}, guess {self.guess:.3g})"

    @property
    def loss(self) -> Loss:
        """What models are fitted by."""
        return loss_of(self.classes)

    def start(self, rounds: float) -> np.ndarray:
        """Where a task with this many rows starts, [d]."""
        choice = self.rule.at(rounds).start if self.rule.choices else "phi"
        starts = {"phi": self.phi, "origin": np.zeros_like(self.phi), "pooled": self.pooled}
        return starts[choice]  # type: ignore[return-value]

    def eta(self, rounds: float) -> float:
        """The step for this many rows; the theory's where there was no pilot to choose it by."""
        if self.rule.choices:
            return self.rule.eta(rounds)
        return self.guess / (self.rule.lipschitz * math.sqrt(rounds))

    def adapt(self, tasks: Tasks) -> np.ndarray:
        """The models of some tasks, [T, d]: FTRL's action after their rows, or their optima where
        one task is all that was seen. The tasks are in the user's units.
        """
        domain, tasks = self.coordinates.domain, self.coordinates.tasks(tasks)
        if not self.rule.choices and self.tasks < 2:
            return optima(tasks, domain)
        out = np.empty((len(tasks), self.phi.size))
        for n in np.unique(tasks.lengths):
            (alike,) = np.nonzero(tasks.lengths == n)
            start, eta = self.start(float(n)), self.eta(float(n))
            for part, game in tasks.stacks(alike):
                phi, step = np.tile(start, (len(part), 1)), np.full(len(part), eta)
                out[alike[part]] = leader(game, domain, phi, step)
        return out

    def models(self, tasks: Tasks) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients [T, outputs, f] and intercepts [T, outputs] of some tasks, in the user's
        units.
        """
        return self.coordinates.model(self.adapt(tasks), self.loss.outputs)


def loss_of(classes: np.ndarray | None) -> Loss:
    """Squared for regressions, logistic for two classes, one-vs-all for more."""
    if classes is None:
        return Squared()
    return Logistic() if len(classes) == 2 else OneVsAll(max(len(classes), 1))


class _Linear(BaseEstimator):
    """A linear model with a prior learned across tasks; ``fit`` adapts it to one task."""

    def __init__(self, prior: Prior):
        self.prior = prior

    def fit(self, X: Any, y: Any, sample_weight: Any = None):
        """Adapt to the rows of one task, X [n, f] and y [n]."""
        classes = self.prior.classes
        options = {"reset": True, "learn": False, "y_numeric": classes is None}
        X, y, _ = checked(self, X, y, **options)
        weight, X, y = weighed(weights(sample_weight, X), X, y)
        y = y.astype(float) if classes is None else positions(y, classes)
        self._set(self.prior.adapt(grouped(self.prior.loss, X, y, weight, None))[0])
        return self

    def _set(self, theta: np.ndarray) -> None:
        coef, intercept = self.prior.coordinates.model(theta, self.prior.loss.outputs)
        self.coef_, self.intercept_ = coef, intercept
        encoder = self.encoder_
        self.n_features_in_ = len(encoder.columns) if encoder else coef.shape[1]
        if self.prior.classes is None:
            self.coef_, self.intercept_ = coef[0], float(intercept[0])

    @property
    def encoder_(self) -> Encoder | None:
        """How rows become numbers: as in the `fit` this model comes from."""
        return self.prior.encoder

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

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
    """Class probabilities [n, classes] from margins: the sigmoid, normalised over the classes
    where there are more than two.
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
