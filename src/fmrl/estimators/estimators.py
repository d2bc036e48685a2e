"""MetaClassifier and MetaRegressor: Algorithm 2 with scikit-learn's manners."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, unique_labels

from fmrl.errors import FMRLError
from fmrl.estimators.averaging import logarithms, probabilities
from fmrl.estimators.base import Meta
from fmrl.estimators.task_models import TaskClassifier, TaskRegressor
from fmrl.estimators.tasks_seen import Asked
from fmrl.tables.read import validate_fit
from fmrl.tables.targets import (
    as_numpy,
    check_targets,
    check_weights,
    class_positions,
    to_input_kind,
)


class MetaClassifier(ClassifierMixin, Meta):
    """A classifier for many small related tasks, which share their labels.

    It plays the tasks one after another by Algorithm 2 of the paper, and so learns where a new
    task should start (phi) and how far it may go; `adapt` turns that and a few rows into an
    fitted classifier, linear around what all tasks share.

    Args:
        within: The learner inside a task (default `OMD()`).
        update: Which vector of a finished task moves phi (default `FAL()`).
        meta: How it moves phi (default `FollowLeader()`).
        similarity: How the guess follows (default `AverageDeviation()`).
        radius: Of the ball of models, in the estimator's coordinates (default: from the data).
        fit_intercept: Whether models have an intercept.
        common: What all tasks share beside a linear model: "linear" for nothing, a scikit-learn
            classifier, or "auto": boosted trees, where they help on tasks they have not seen.
        environment: Where tasks come from: "stationary", "drift" of tasks given in the order in
            which they came, `Window(size)` for the latest so many, a number of centres, or "auto":
            one place or several centres, whichever is better on tasks held out.
        features: A scikit-learn transformer that makes columns of the rows (`SplineTransformer()`,
            `Nystroem()`), fitted to the rows of the first call; models are linear in them.
        scoring: By what families of models are chosen on tasks held out: "neg_log_loss" (the
            default) or "accuracy".
        random_state: Seed of the split by which the rule is chosen.
        store: A file in which the rows of tasks are kept (SQLite) instead of in memory, for
            millions of tasks. It is of one estimator: copies by ``sklearn.clone``, as searches
            make them, keep theirs in memory.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> task, X = np.repeat(np.arange(40), 10), rng.normal(size=(400, 5))
    >>> y = np.where(X[:, 0] + 0.3 * rng.normal(size=40)[task] > 0, "yes", "no")
    >>> clf = MetaClassifier().fit(X, y, task=task)
    >>> clf.n_tasks_seen_, clf.classes_.tolist()
    (40, ['no', 'yes'])
    >>> model = clf.adapt(X[:2], y[:2])  # two rows of a new task
    >>> model.coef_.shape, bool(model.score(X[:10], y[:10]) >= 0.8)
    ((1, 5), True)
    """

    _task_model = TaskClassifier
    __metadata_request__predict_proba: ClassVar = {"task": True}
    __metadata_request__predict_log_proba: ClassVar = {"task": True}
    __metadata_request__decision_function: ClassVar = {"task": True}

    def _check(self, X, y, sample_weight, task, reset, one=False):
        least = {"ensure_min_samples": int(reset or one)}
        X, y, task = validate_fit(self, X, y, task, reset=reset, one=one, **least)
        if reset:  # later ones must be among the first ones
            check_classification_targets(y)
        return X, y, check_weights(sample_weight, X), task

    def _target(self, y, classes, first):
        if first:
            self.classes_ = unique_labels(y) if classes is None else unique_labels(classes)
        elif classes is not None and not np.array_equal(unique_labels(classes), self.classes_):
            known = self.classes_.tolist()
            raise FMRLError(f"classes={list(classes)} differ from those of the first call, {known}")
        return class_positions(y, self.classes_)

    def decision_function(self, X: Any, task: Any = None) -> Any:
        """Margins: [n] for two classes, [n, classes] for more."""
        z = self._asked(X, task, spread=False).margins
        return to_input_kind(z[:, 0] if z.shape[1] == 1 else z, X)

    def predict_proba(self, X: Any, task: Any = None) -> Any:
        """Class probabilities [n, classes] under the model of each row's task.

        Args:
            X: Rows [n, f].
            task: The task of every row [n]; None, or a task that was not seen: one of which
                nothing is known.
        """
        z, variance, place, prior = self._asked(X, task, spread=True)
        return to_input_kind(prior.chances(z, variance, place), X)

    def predict_log_proba(self, X: Any, task: Any = None) -> Any:
        """Their logarithms; arguments as in `predict_proba`."""
        return to_input_kind(logarithms(as_numpy(self.predict_proba(X, task))), X)

    def predict(self, X: Any, task: Any = None) -> Any:
        """The most probable class [n] under the model of each row's task; arguments as in
        `predict_proba`.
        """
        return self._said(self._asked(X, task, spread=False), X)

    def _said(self, asked: Asked, X: Any) -> Any:
        classes = asked.prior.classes  # those of the estimator may be others by now
        return to_input_kind(
            classes[probabilities(asked.margins, len(classes), 1.0).argmax(axis=1)], X
        )

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """Accuracy."""
        y = np.asarray(check_targets(y, False, task))
        right = np.asarray(as_numpy(self.predict(X, task))) == y
        return float(np.average(right, weights=sample_weight))


class MetaRegressor(RegressorMixin, Meta):
    """A linear regressor for many small related tasks.

    Args:
        within: As in `MetaClassifier`.
        update: As in `MetaClassifier`.
        meta: As in `MetaClassifier`.
        similarity: As in `MetaClassifier`.
        radius: As in `MetaClassifier`.
        fit_intercept: As in `MetaClassifier`.
        common: As in `MetaClassifier`, with a scikit-learn regressor.
        environment: As in `MetaClassifier`.
        features: As in `MetaClassifier`.
        scoring: "neg_mean_squared_error" (the default) or "neg_mean_absolute_error".
        random_state: As in `MetaClassifier`.
        store: As in `MetaClassifier`.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> task, X = np.repeat(np.arange(40), 10), rng.normal(size=(400, 5))
    >>> y = X @ [1.0, 2.0, 3.0, 0.0, 0.0] + 0.2 * rng.normal(size=40)[task]
    >>> y += 0.1 * rng.normal(size=400)
    >>> reg = MetaRegressor().fit(X, y, task=task)
    >>> reg.coef_.round(1) + 0.0, bool(reg.adapt(X[:3], y[:3]).score(X[:10], y[:10]) > 0.95)
    (array([1., 2., 3., 0., 0.]), True)
    """

    _task_model = TaskRegressor

    def _check(self, X, y, sample_weight, task, reset, one=False):
        options = {"y_numeric": True, "ensure_min_samples": int(reset or one)}
        X, y, task = validate_fit(self, X, y, task, reset=reset, one=one, **options)
        return X, np.asarray(y, dtype=float), check_weights(sample_weight, X), task

    def _target(self, y, classes, first):
        if classes is not None:
            raise FMRLError("a regressor has no classes", fix="use MetaClassifier")
        return y

    def _shape(self, coef, intercept):
        return coef[0], float(intercept[0])

    def predict(self, X: Any, task: Any = None) -> Any:
        """The prediction of every row [n] under the model of its task.

        Args:
            X: Rows [n, f].
            task: The task of every row [n]; None, or a task that was not seen: one of which
                nothing is known.
        """
        return self._said(self._asked(X, task, spread=False), X)

    def _said(self, asked: Asked, X: Any) -> Any:
        return to_input_kind(asked.prior.coordinates.prediction(asked.margins[:, 0]), X)

    def predict_interval(self, X: Any, task: Any = None, level: float = 0.9) -> Any:
        """Where y of each row lies with probability ``level``: lower and upper ends, [n, 2].

        Args:
            X: Rows [n, f].
            task: As in `predict`.
            level: The share of rows to be covered, over tasks like those of `fit`. Rows count by
                their weights there, if they had any: with 1/variance as weights light rows are
                covered less.
        """
        z, variance, place, prior = self._asked(X, task, spread=True)
        half = prior.half(variance[:, 0], place, level)
        middle = prior.coordinates.prediction(z[:, 0])
        return to_input_kind(np.stack([middle - half, middle + half], axis=1), X)

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """R²."""
        from sklearn.metrics import r2_score

        y, said = check_targets(y, True, task), as_numpy(self.predict(X, task))
        return float(r2_score(y, said, sample_weight=sample_weight))
