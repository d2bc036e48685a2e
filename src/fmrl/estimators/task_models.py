"""What a new task gets: an ordinary fitted linear model, which can be refitted, cloned, pickled
and put into a pipeline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from fmrl.core.losses import Logistic, Loss, OneVsAll, Squared
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.averaging import LEVELS, logarithms, margins, moderated, probabilities
from fmrl.estimators.calibration import Choice, Rule
from fmrl.estimators.common import Answer
from fmrl.estimators.coordinates import Coordinates
from fmrl.estimators.environment import STILL, Environment
from fmrl.estimators.population import Population, Posterior
from fmrl.estimators.solving import averaged, solved
from fmrl.tables.encoder import Encoder
from fmrl.tables.features import Expanded
from fmrl.tables.read import read_rows, validate_fit
from fmrl.tables.targets import (
    as_numpy,
    check_weights,
    class_positions,
    drop_zero_weight,
    group_by_task,
    refuse_huge,
    refuse_overflow,
    to_input_kind,
)


@dataclass(frozen=True, eq=False, repr=False)
class Prior:
    """What was learned across tasks, and all that adapting to a new one needs.

    Args:
        coordinates: In which columns have deviation 1.
        members: Ways in which tasks may differ, each estimated across tasks.
        rule: How they are averaged, by the number of rows.
        classes: The labels; None for a regression.
        encoder: How rows of a table become numbers.
        common: What all tasks share beside a linear model; None where that is all.
        environment: Whether tasks stay, drift or lie around several centres.
    """

    coordinates: Coordinates
    members: tuple[Population, ...]
    rule: Rule
    classes: np.ndarray | None
    encoder: Encoder | None = None
    common: Answer | None = None
    environment: Environment = STILL

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{len(self.classes)} classes"
        return f"Prior({self.features} features, {kind}, {self.members[0].tasks} tasks)"

    @property
    def features(self) -> int:
        """Columns of the user's rows, as numbers."""
        extra = 0 if self.common is None else max(self.loss.outputs, 1)
        return self.coordinates.centre.size - extra

    def rows(self, X: np.ndarray) -> np.ndarray:
        """Rows [n, f] in the prior's coordinates, [n, width]."""
        return self.coordinates.rows(self._wide(X))

    def _wide(self, X: np.ndarray) -> np.ndarray:
        return X if self.common is None else np.hstack([X, self.common(X)])

    @property
    def loss(self) -> Loss:
        """What models are fitted by."""
        return loss_of(self.classes)

    @property
    def noise(self) -> float:
        """Variance of a row of a regression around its task's model, in the user's units."""
        return self._noise(self.rule.choices[-1]) * self.coordinates.unit**2

    def _noise(self, choice: Choice) -> float:
        return sum(w * m.noise for w, m in zip(choice.weights, self.members, strict=True))

    def half(self, variance: np.ndarray, place: Any, level: float) -> np.ndarray:
        """Half the width of intervals in the user's units, [n].

        Args:
            variance: Of the margins, [n].
            place: Which choice of the rule each row is by, [n] or one number.
            level: The share of rows to be covered.
        """
        choices = self.rule.choices
        wide = np.array([width(c, level) for c in choices])[place]
        noise = np.array([self._noise(c) for c in choices])[place]
        return wide * self.coordinates.unit * np.sqrt(variance + noise)

    def chances(self, z: np.ndarray, variance: np.ndarray, place: Any) -> np.ndarray:
        """Class probabilities [n, classes]; what draws margins to the middle changes no class.

        Args:
            z: Margins, [n, outputs].
            variance: Theirs; 0 where it is not known.
            place: Which choice of the rule each row is by, [n] or one number.
        """
        both = [(c.moderation, c.sharpness) for c in self.rule.choices]
        moderation, sharpness = np.moveaxis(np.array(both)[place], -1, 0)[..., None]
        told = moderated(z, variance, moderation)
        return probabilities(told, len(self.classes), sharpness)  # type: ignore[arg-type]

    @property
    def coef_std(self) -> tuple[np.ndarray, np.ndarray]:
        """How far tasks' coefficients [outputs, f] and intercepts [outputs] lie apart: standard
        deviations in the user's units, as adapting to many rows takes them.
        """
        spread = self._average(self.rule.choices[-1]).spread
        slopes, levels = deviations(self.coordinates, spread[0])  # type: ignore[index]
        return slopes[..., : self.features], levels

    @property
    def level_std(self) -> np.ndarray:
        """How far tasks' answers for a typical row lie apart, [outputs]: as ``coef_std``."""
        here, known = self.coordinates, self._average(self.rule.choices[-1])
        return here.unit * here.constant * np.sqrt(known.spread[0, :, -1, -1])  # type: ignore[index]

    def middle(self) -> Posterior:
        """What is known of a task without rows."""
        return self._average(self.rule.at(0))

    def adapt(self, tasks: Tasks, spread: bool = False) -> Posterior:
        """The models of some tasks in the user's units, as `Posterior` in the prior's coordinates.

        Args:
            tasks: With at least one row each.
            spread: Whether their covariances are wanted too.
        """
        refuse_huge(tasks.X, tasks.target)
        wider = tasks if self.common is None else replace(tasks, X=self._wide(tasks.X))
        here = self.coordinates.tasks(wider)
        if len(here) == 1:
            choice = self.rule.at(float(tasks.mass[0]))
            return solved(self.members, choice.weights, here, spread)
        places = self.rule.places(tasks.mass)
        shape = (len(here), here.loss.outputs, here.X.shape[1])
        theta = np.empty(shape)
        wide = np.empty((*shape, shape[-1])) if spread else None
        for place in np.unique(places):
            choice, alike = self.rule.choices[place], np.flatnonzero(places == place)
            some = here if len(alike) == len(here) else here.take(alike)
            found = solved(self.members, choice.weights, some, spread)
            theta[alike] = found.theta
            if wide is not None:
                wide[alike] = found.spread
        return Posterior(theta, wide)

    def _average(self, choice: Choice) -> Posterior:
        """What a choice takes a task without rows for."""
        said = [m.middle() for m in self.members]
        theta, wide = (np.stack(a) for a in zip(*said, strict=True))
        return averaged(np.array(choice.weights), theta, wide)

    def models(self, tasks: Tasks) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients [T, outputs, f] and intercepts [T, outputs] of some tasks, in the user's
        units; those of the common part come after the user's columns.
        """
        theta = self.adapt(tasks).theta
        flat = theta.reshape(len(theta), math.prod(theta.shape[1:]))  # also of no task
        return self.coordinates.model(flat, self.loss.outputs)


def deviations(here: Coordinates, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations of coefficients and intercepts in the user's units, of covariances
    [..., width, width].
    """
    wide = spread[..., : here.width - (here.constant > 0), : here.width - (here.constant > 0)]
    if here.basis is None:
        squares = np.diagonal(wide, axis1=-2, axis2=-1)
    else:
        squares = ((here.basis @ wide) * here.basis).sum(axis=-1)
    slopes = np.sqrt(np.maximum(squares, 0.0))
    level = np.zeros(slopes.shape[:-1])
    if here.constant:
        # The intercept is the prediction where all columns are 0.
        at = here.rows(np.zeros(here.centre.size))
        level = np.sqrt(np.maximum(((spread @ at) * at).sum(axis=-1), 0.0))
    return here.unit * slopes / here.scale, here.unit * level


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
        """Adapt to the rows of one task, X [n, f] and y [n]; without rows it is the population's
        model.
        """
        return self._read_and_adapt(X, y, sample_weight, reset=True)

    def _read_and_adapt(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> Any:
        """`fit`; without ``reset`` the features must be those that this model has already."""
        classes = self.prior.classes
        options = {"reset": reset, "learn": False, "one": True, "y_numeric": classes is None}
        X, y, self._name = validate_fit(self, X, y, **options, ensure_min_samples=0)
        weight, X, y = drop_zero_weight(check_weights(sample_weight, X), X, y)
        y = y.astype(float) if classes is None else class_positions(y, classes)
        if len(y):
            self._adapt(group_by_task(self.prior.loss, X, y, weight, None))
        else:
            found = self.prior.middle()
            self._set(Posterior(found.theta[0], found.spread[0]), 0.0)  # type: ignore[index]
        return self

    def _adapt(self, rows: Tasks) -> None:
        """Take the model of one task in the user's units."""
        found = self.prior.adapt(rows, spread=True)
        self._set(Posterior(found.theta[0], found.spread[0]), float(rows.mass[0]))  # type: ignore[index]

    def _set(self, model: Posterior, rounds: float) -> None:
        """Take the model of one task, theta [outputs, width], which saw so many rows."""
        here, outputs = self.prior.coordinates, self.prior.loss.outputs
        coef, intercept = here.model(model.theta.ravel(), outputs)
        own = self.prior.features
        coef, self.common_coef_ = coef[:, :own], coef[:, own:]
        self.coef_, self.intercept_, self._theta = coef, intercept, model.theta
        encoder = self.encoder_
        self.n_features_in_ = len(encoder.columns) if encoder else coef.shape[1]
        self._spread, self._choice = model.spread, self.prior.rule.at(rounds)
        if self.prior.classes is None:
            self.coef_, self.intercept_ = coef[0], float(intercept[0])

    @property
    def coef_std_(self) -> np.ndarray:
        """How uncertain each of ``coef_`` still is: its standard deviation, in the same units."""
        check_is_fitted(self, "coef_")
        slopes = deviations(self.prior.coordinates, self._spread)[0]
        return slopes[:, : self.prior.features].reshape(self.coef_.shape)

    def _said(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Margins of rows [n, outputs] in the prior's coordinates, and their variances."""
        check_is_fitted(self, "coef_")
        rows = self.prior.rows(read_rows(self, X))
        with np.errstate(over="ignore", invalid="ignore"):
            z, v = margins(rows[None], Posterior(self._theta[None], self._spread[None]))
            return refuse_overflow(z[0], v[0])

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
        if self.prior.common is not None or isinstance(self.encoder_, Expanded):
            what = "this model is not linear: it stands on a common part, or on features="
            raise FMRLError(what, fix="fit with common='linear' and without features")
        import torch

        weight = torch.as_tensor(np.atleast_2d(self.coef_).copy())
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(weight)
            layer.bias.copy_(torch.as_tensor(np.atleast_1d(self.intercept_).copy()))
        return layer


class TaskClassifier(ClassifierMixin, _Linear):
    """The classifier of one task: ``coef_`` [classes or 1, f], ``intercept_``, ``classes_``."""

    def _set(self, model, rounds):
        super()._set(model, rounds)
        self.classes_ = self.prior.classes

    def decision_function(self, X: Any) -> np.ndarray:
        """Margins: [n] for two classes, [n, classes] for more."""
        z, _ = self._said(X)
        return to_input_kind(z[:, 0] if z.shape[1] == 1 else z, X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities, [n, classes]; the less is known of the task, the nearer to the
        middle.
        """
        z, variance = self._said(X)
        return to_input_kind(
            self.prior.chances(z, variance, self.prior.rule.choices.index(self._choice)), X
        )

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Their logarithms."""
        return to_input_kind(logarithms(as_numpy(self.predict_proba(X))), X)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, [n]."""
        return to_input_kind(self.classes_[as_numpy(self.predict_proba(X)).argmax(axis=1)], X)


class TaskRegressor(RegressorMixin, _Linear):
    """The regressor of one task: ``coef_`` [f] and ``intercept_``."""

    def predict(self, X: Any) -> np.ndarray:
        """The prediction of each row, [n]."""
        return to_input_kind(self.prior.coordinates.prediction(self._said(X)[0][:, 0]), X)

    def predict_interval(self, X: Any, level: float = 0.9) -> np.ndarray:
        """Where y of each row lies with probability ``level``: lower and upper ends, [n, 2].

        Their width comes from what is uncertain about the task and from the noise, made to cover on
        tasks held out in `fit`.

        Args:
            X: Rows [n, f].
            level: The share of rows to be covered, over tasks like those of `fit`, as there.
        """
        z, variance = self._said(X)
        place = self.prior.rule.choices.index(self._choice)
        half = self.prior.half(variance[:, 0], place, level)
        middle = self.prior.coordinates.prediction(z[:, 0])
        return to_input_kind(np.stack([middle - half, middle + half], axis=1), X)


def width(choice: Choice, level: float) -> float:
    """Half an interval's width in predicted deviations: the quantile of errors on tasks held out,
    or a Gaussian's where there were none.

    A conformal quantile would be 1/tasks higher. Errors on tasks held out are larger by about that
    much already, because they are those of models that were learned from fewer tasks.
    """
    if not (isinstance(level, (int, float, np.floating)) and 0 < level < 1):
        raise FMRLError(f"level must lie between 0 and 1, not {level!r}", fix="0.9 is usual")
    if not choice.errors:
        from statistics import NormalDist

        return NormalDist().inv_cdf((1 + level) / 2)
    found = float(np.interp(level, LEVELS, choice.errors))
    return found if math.isfinite(found) else 0.0
