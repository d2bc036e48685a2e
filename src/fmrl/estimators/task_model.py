"""The model of one task: an ordinary fitted linear model, which can be refitted, cloned, pickled,
saved and put into a pipeline."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from fmrl.core.prior.mixture import Posterior
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators import storage
from fmrl.estimators.averaging import logarithms, margins
from fmrl.estimators.prior import Margins, Prior, deviations
from fmrl.tables.encoder import Encoder
from fmrl.tables.read import read_rows, validate_fit
from fmrl.tables.targets import (
    as_numpy,
    check_weights,
    class_positions,
    drop_zero_weight,
    group_by_task,
    refuse_overflow,
    to_input_kind,
)


class TaskModel(BaseEstimator):
    """A linear model whose prior was learned across tasks; `fit` adapts it to the rows of one task.

    Args:
        prior: What an estimator learned, its ``prior_``.
    """

    def __init__(self, prior: Prior):
        self.prior = prior

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Adapt to the rows of one task; without rows the model is that of an unknown task.

        Args:
            X: Rows [n, f] with the features of the estimator's `fit`.
            y: Their labels or numbers [n].
            sample_weight: How much each row counts [n] (default: 1).
        """
        return self._read_and_adapt(X, y, sample_weight, reset=True)

    def _read_and_adapt(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> Self:
        """`fit`; without ``reset`` the features must be those that this model has already."""
        classes = self.prior.classes
        options = {"reset": reset, "learn": False, "one": True, "y_numeric": classes is None}
        X, y, self._name = validate_fit(self, X, y, **options, ensure_min_samples=0)
        weight, X, y = drop_zero_weight(check_weights(sample_weight, X), X, y)
        y = y.astype(float) if classes is None else class_positions(y, classes)
        if not len(y):
            return self._without_rows()
        return self._adapt(group_by_task(self.prior.loss, X, y, weight, None))

    def save(self, path: str | os.PathLike) -> None:
        """Write this model to one file (safetensors), whole or not at all.

        Args:
            path: The file.
        """
        check_is_fitted(self, "coef_")
        storage.save_task_model(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Read a model written by `save`; a damaged or foreign file is refused.

        Args:
            path: The file.
        """
        return storage.load_task_model(path, cls)

    def describe(self) -> str:
        """The coefficients with their uncertainty, in the user's units, one line a column."""
        check_is_fitted(self, "coef_")
        encoder = self.encoder_
        width = self.prior.features
        names = encoder.names if encoder else [f"x{i}" for i in range(width)]
        head = "estimate ± standard deviation"
        if self.prior.classes is not None:
            shown = self.prior.classes.tolist()
            head += f" (log-odds of {shown[-1]!r})" if len(shown) == 2 else f" by class {shown}"
        rows = [("intercept", np.atleast_1d(self.intercept_), self._intercept_std())]
        coef, std = np.atleast_2d(self.coef_), np.atleast_2d(self.coef_std_)
        rows += list(zip(names, coef.T, std.T, strict=True))
        lines = [
            f"  {name}: " + ", ".join(f"{a:.3g} ± {b:.2g}" for a, b in zip(found, off, strict=True))
            for name, found, off in rows
        ]
        if self.prior.common is not None:
            lines.append("  beside these, the model holds a part from trees that all tasks share")
        return "\n".join([head, *lines])

    @property
    def coef_std_(self) -> np.ndarray:
        """The posterior standard deviation of each of ``coef_``, in the same units."""
        check_is_fitted(self, "coef_")
        slopes = deviations(self.prior.coordinates, self._spread)[0]
        return slopes[:, : self.prior.features].reshape(self.coef_.shape)

    @property
    def encoder_(self) -> Encoder | None:
        """How rows become numbers: as in the `fit` this model comes from."""
        return self.prior.encoder

    def to_torch(self) -> Any:
        """The same model as a torch.nn.Linear, in float64."""
        if self.prior.common is not None or getattr(self.encoder_, "transformer", None):
            what = "this model is not linear: it stands on a common part, or on features="
            raise FMRLError(what, fix="fit with common='linear' and without features")
        import torch

        weight = torch.as_tensor(np.atleast_2d(self.coef_).copy())
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(weight)
            layer.bias.copy_(torch.as_tensor(np.atleast_1d(self.intercept_).copy()))
        return layer

    def _without_rows(self) -> Self:
        """Take what is known of a task without rows."""
        found = self.prior.middle()
        return self._set(Posterior(found.theta[0], found.spread[0]), 0.0)  # type: ignore[index]

    def _adapt(self, rows: Tasks) -> Self:
        """Take the posterior of one task, given in the user's units."""
        found = self.prior.adapt(rows, spread=True)
        return self._set(Posterior(found.theta[0], found.spread[0]), float(rows.mass[0]))  # type: ignore[index]

    def _set(self, model: Posterior, mass: float) -> Self:
        """Take the posterior, theta [outputs, width], of a task whose rows weigh ``mass``."""
        here, outputs = self.prior.coordinates, self.prior.loss.outputs
        coef, intercept = here.model(model.theta.ravel(), outputs)
        own = self.prior.features
        coef, self.common_coef_ = coef[:, :own], coef[:, own:]
        self.coef_, self.intercept_, self._theta = coef, intercept, model.theta
        encoder = self.encoder_
        self.n_features_in_ = len(encoder.columns) if encoder else coef.shape[1]
        self._spread, self._mass = model.spread, mass
        self._place = int(self.prior.rule.places(np.array([mass]))[0])
        if self.prior.classes is None:
            self.coef_, self.intercept_ = coef[0], float(intercept[0])
        else:
            self.classes_ = self.prior.classes
        return self

    def _intercept_std(self) -> np.ndarray:
        return deviations(self.prior.coordinates, self._spread)[1]

    def _margins(self, X: Any) -> Margins:
        check_is_fitted(self, "coef_")
        return self._margins_of(self.prior.rows(read_rows(self, X)))

    def _margins_of(self, rows: np.ndarray) -> Margins:
        """Margins of rows in the prior's coordinates, with their variances."""
        with np.errstate(over="ignore", invalid="ignore"):
            z, v = margins(rows[None], Posterior(self._theta[None], self._spread[None]))
            return Margins(*refuse_overflow(z[0], v[0]), self._place)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class TaskClassifier(ClassifierMixin, TaskModel):
    """The classifier of one task: ``coef_`` [classes or 1, f], ``intercept_``, ``classes_``."""

    def decision_function(self, X: Any) -> np.ndarray:
        """Margins: [n] for two classes, [n, classes] for more.

        Args:
            X: Rows [n, f].
        """
        z = self._margins(X).z
        return to_input_kind(z[:, 0] if z.shape[1] == 1 else z, X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities [n, classes]; the less is known of the task, the nearer to equal.

        Args:
            X: Rows [n, f].
        """
        return to_input_kind(self.prior.chances(self._margins(X)), X)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of the class probabilities, [n, classes].

        Args:
            X: Rows [n, f].
        """
        return to_input_kind(logarithms(as_numpy(self.predict_proba(X))), X)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, [n].

        Args:
            X: Rows [n, f].
        """
        return to_input_kind(self.prior.labels(self._margins(X)), X)


class TaskRegressor(RegressorMixin, TaskModel):
    """The regressor of one task: ``coef_`` [f] and ``intercept_``."""

    def predict(self, X: Any) -> np.ndarray:
        """The prediction of each row, [n].

        Args:
            X: Rows [n, f].
        """
        return to_input_kind(self.prior.numbers(self._margins(X)), X)

    def predict_interval(self, X: Any, level: float = 0.9) -> np.ndarray:
        """Intervals that hold y with probability ``level``: lower and upper ends, [n, 2].

        Their width comes from what is uncertain about the task and from the noise, and is scaled to
        cover on the tasks that `fit` held out.

        Args:
            X: Rows [n, f].
            level: The share of rows to be covered, over tasks like those of `fit`.
        """
        return to_input_kind(self.prior.intervals(self._margins(X), level), X)
