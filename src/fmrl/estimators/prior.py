"""The prior over tasks' models: what an estimator learned across tasks, how the rows of one task
update it, and what the updated models say of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.losses import Logistic, Loss, OneVsAll, Squared
from fmrl.core.prior.mixture import Mixture, Posterior, adapt_members, average_posteriors
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.averaging import LEVELS, moderated, probabilities
from fmrl.estimators.calibration import Choice, Rule
from fmrl.estimators.coordinates import Coordinates
from fmrl.estimators.environment import ONE_PLACE, Environment
from fmrl.estimators.shared_trees import Answer
from fmrl.tables.encoder import Encoder
from fmrl.tables.targets import refuse_huge


class Margins(NamedTuple):
    """What models say of rows, in the prior's coordinates."""

    z: np.ndarray  # [n, outputs]
    variance: np.ndarray | None  # [n, outputs] of z, where it was asked for
    place: Any  # which choice of the rule each row's model is by: [n], or one number


@dataclass(frozen=True, eq=False, repr=False)
class Prior:
    """A mixture of Gaussians over tasks' models. `adapt` gives a task's posterior from its rows.

    Args:
        coordinates: In which columns have deviation 1.
        members: Ways in which tasks may differ, each estimated across tasks.
        rule: How they are averaged, by the number of rows.
        classes: The labels; None for a regression.
        encoder: How rows of a table become numbers.
        common: A model all tasks share, whose answer is one more column; None where there is none.
        environment: Whether tasks stay, drift or lie around several centres.
        pilot: How many tasks chose members, weights, common part and environment.
    """

    coordinates: Coordinates
    members: tuple[Mixture, ...]
    rule: Rule
    classes: np.ndarray | None
    encoder: Encoder | None = None
    common: Answer | None = None
    environment: Environment = ONE_PLACE
    pilot: int = 0

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{len(self.classes)} classes"
        return f"Prior({self.features} features, {kind}, {self.tasks} tasks)"

    @property
    def tasks(self) -> int:
        """How many tasks it was learned from."""
        return self.members[0].tasks

    @property
    def features(self) -> int:
        """Columns of the user's rows, as numbers."""
        extra = 0 if self.common is None else max(self.loss.outputs, 1)
        return self.coordinates.centre.size - extra

    @property
    def loss(self) -> Loss:
        """What models are fitted by."""
        return loss_of(self.classes)

    @property
    def noise(self) -> float:
        """Variance of a row of a regression around its task's model, in the user's units."""
        return self._noise(self.rule.choices[-1]) * self.coordinates.unit**2

    @property
    def coef_std(self) -> tuple[np.ndarray, np.ndarray]:
        """Standard deviations between tasks of coefficients [outputs, f] and intercepts [outputs],
        in the user's units.
        """
        spread = self._average(self.rule.choices[-1]).spread
        slopes, levels = deviations(self.coordinates, spread[0])  # type: ignore[index]
        return slopes[..., : self.features], levels

    @property
    def level_std(self) -> np.ndarray:
        """Standard deviation between tasks of the prediction for an average row, [outputs]."""
        here, known = self.coordinates, self._average(self.rule.choices[-1])
        return here.unit * here.constant * np.sqrt(known.spread[0, :, -1, -1])  # type: ignore[index]

    def rows(self, X: np.ndarray) -> np.ndarray:
        """Rows [n, f] in the prior's coordinates, [n, width]."""
        return self.coordinates.rows(self._with_common(X))

    def middle(self) -> Posterior:
        """The model of a task without rows."""
        return self._average(self.rule.at(0))

    def adapt(self, tasks: Tasks, spread: bool = False) -> Posterior:
        """Posteriors of tasks given their rows, in the prior's coordinates.

        Args:
            tasks: In the user's units, with at least one row each.
            spread: Whether the covariances are wanted too.
        """
        refuse_huge(tasks.X, tasks.target)
        wider = tasks if self.common is None else replace(tasks, X=self._with_common(tasks.X))
        return self.solve(self.coordinates.tasks(wider), spread)

    def solve(self, here: Tasks, spread: bool = False) -> Posterior:
        """`adapt` for tasks that are in the prior's coordinates already."""
        rule = self.rule
        if len(here) == 1:
            weights = rule.at(float(here.mass[0])).weights
        else:
            weights = np.array([c.weights for c in rule.choices])[rule.places(here.mass)].T
        return adapt_members(self.members, weights, here, spread)

    def models(self, tasks: Tasks) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients [T, outputs, f] and intercepts [T, outputs] of tasks, in the user's units;
        those of the common part come after the user's columns.
        """
        theta = self.adapt(tasks).theta
        flat = theta.reshape(len(theta), math.prod(theta.shape[1:]))  # also of no task
        return self.coordinates.model(flat, self.loss.outputs)

    def numbers(self, said: Margins) -> np.ndarray:
        """Predictions of a regression in the user's units, [n]."""
        return self.coordinates.prediction(said.z[:, 0])

    def intervals(self, said: Margins, level: float) -> np.ndarray:
        """Lower and upper ends of prediction intervals of a regression, [n, 2].

        Args:
            said: Margins with their variances.
            level: The share of rows to be covered.
        """
        half = self.half_width(said.variance[:, 0], said.place, level)  # type: ignore[index]
        middle = self.numbers(said)
        return np.stack([middle - half, middle + half], axis=1)

    def half_width(self, variance: np.ndarray, place: Any, level: float) -> np.ndarray:
        """Half the width of prediction intervals in the user's units, [n].

        Args:
            variance: Of the margins, [n].
            place: Which choice of the rule each row's model is by, [n] or one number.
            level: The share of rows to be covered.
        """
        choices = self.rule.choices
        wide = np.array([interval_factor(c, level) for c in choices])[place]
        noise = np.array([self._noise(c) for c in choices])[place]
        return wide * self.coordinates.unit * np.sqrt(variance + noise)

    def chances(self, said: Margins) -> np.ndarray:
        """Class probabilities, [n, classes]. Shrinking margins to the middle changes no class."""
        both = [(c.moderation, c.sharpness) for c in self.rule.choices]
        moderation, sharpness = np.moveaxis(np.array(both)[said.place], -1, 0)[..., None]
        z = moderated(said.z, said.variance, moderation)  # type: ignore[arg-type]
        return probabilities(z, len(self.classes), sharpness)  # type: ignore[arg-type]

    def labels(self, said: Margins) -> np.ndarray:
        """The most probable class of each row, [n]."""
        p = probabilities(said.z, len(self.classes), 1.0)  # type: ignore[arg-type]
        return self.classes[p.argmax(axis=1)]  # type: ignore[index]

    def _with_common(self, X: np.ndarray) -> np.ndarray:
        return X if self.common is None else np.hstack([X, self.common(X)])

    def _noise(self, choice: Choice) -> float:
        return sum(w * m.noise for w, m in zip(choice.weights, self.members, strict=True))

    def _average(self, choice: Choice) -> Posterior:
        """The weighted average of the members' models of a task without rows."""
        found = [m.middle() for m in self.members]
        theta, wide = (np.stack(a) for a in zip(*found, strict=True))
        return average_posteriors(np.array(choice.weights)[:, None], theta, wide)


def deviations(here: Coordinates, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations of coefficients and intercepts in the user's units, of covariances
    [..., width, width] in the prior's coordinates.
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


def interval_factor(choice: Choice, level: float) -> float:
    """Half the width of an interval in predicted deviations: the quantile of the errors on
    held-out tasks, or a Gaussian's where there were none.

    A conformal quantile would be 1/tasks higher. Errors on held-out tasks are larger by about that
    much already, because their models were learned from fewer tasks.
    """
    if not (isinstance(level, (int, float, np.floating)) and 0 < level < 1):
        raise FMRLError(f"level must lie between 0 and 1, not {level!r}", fix="0.9 is usual")
    if not choice.errors:
        return NormalDist().inv_cdf((1 + level) / 2)
    found = float(np.interp(level, LEVELS, choice.errors))
    return found if math.isfinite(found) else 0.0
