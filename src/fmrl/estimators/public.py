"""MetaClassifier and MetaRegressor: a prior over tasks' models, with scikit-learn's manners."""

from __future__ import annotations

from typing import Any, ClassVar

from sklearn.base import ClassifierMixin, RegressorMixin

from fmrl.estimators.averaging import logarithms
from fmrl.estimators.meta import Meta
from fmrl.estimators.task_model import TaskClassifier, TaskRegressor
from fmrl.tables.targets import as_numpy, to_input_kind


class MetaClassifier(ClassifierMixin, Meta):
    """A classifier for many small related tasks, which share their labels.

    `fit` learns from all tasks how their models differ: a Gaussian prior (or a mixture of several)
    over the coefficients of a logistic model, beside what boosted trees find that all tasks share.
    `adapt` turns the prior and a few rows of a new task into a fitted classifier, `update` gives
    rows to tasks known by name, and `predict` uses the model of each row's task.

    Args:
        task: The column of X that names the task of each row, for tools that call ``fit(X, y)``
            only, such as `cross_val_score`. ``fit(X, y, task=…)`` overrides it. Default: None.
        common: What all tasks share beside a linear model: "linear" for nothing, a scikit-learn
            classifier, or "auto" (default): boosted trees, where they help on held-out tasks.
        environment: Where tasks come from: "stationary", "drift" of tasks given in the order in
            which they came, `Window(size)` for the latest so many, a number of centres, or "auto"
            (default): one place or several centres, whichever is better on held-out tasks.
        features: A scikit-learn transformer that makes columns of the rows (`SplineTransformer()`,
            `Nystroem()`), fitted to the rows of `fit`; models are linear in them. Default: None.
        fit_intercept: Whether models have an intercept. Default: True.
        scoring: By what members of the prior are weighed on held-out tasks: "neg_log_loss" (the
            default) or "accuracy".
        random_state: Seed of folds and of the order in which held-out rows are shown: a whole
            number, a NumPy generator, or None (default) for the same draw each time. NumPy's
            global generator is not used.
        store: A file (SQLite) that holds the rows of tasks instead of memory, for millions of
            tasks or several processes. It belongs to one estimator: ``sklearn.clone`` leaves it
            out, with a warning. Default: None.
        verbose: Whether `fit` says on standard error what it is doing. Default: False.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> task, X = np.repeat(np.arange(40), 10), rng.normal(size=(400, 5))
    >>> y = np.where(X[:, 0] + 0.3 * rng.normal(size=40)[task] > 0, "yes", "no")
    >>> clf = MetaClassifier().fit(X, y, task=task)
    >>> clf.prior_.tasks, clf.classes_.tolist()
    (40, ['no', 'yes'])
    >>> model = clf.adapt(X[:2], y[:2])  # two rows of a new task
    >>> model.coef_.shape, bool(model.score(X[:10], y[:10]) >= 0.8)
    ((1, 5), True)
    """

    _task_model, _numeric = TaskClassifier, False
    score = Meta.score
    __metadata_request__predict_proba: ClassVar = {"task": True}
    __metadata_request__predict_log_proba: ClassVar = {"task": True}
    __metadata_request__decision_function: ClassVar = {"task": True}

    def decision_function(self, X: Any, task: Any = None) -> Any:
        """Margins: [n] for two classes, [n, classes] for more.

        Args:
            X: Rows [n, f].
            task: The task of every row [n]; None, or a task that was not seen: one of which
                nothing is known.
        """
        z = self._margins(X, task, spread=False)[0].z
        return to_input_kind(z[:, 0] if z.shape[1] == 1 else z, X)

    def predict_proba(self, X: Any, task: Any = None) -> Any:
        """Class probabilities [n, classes] under the model of each row's task.

        Args:
            X: Rows [n, f].
            task: The task of every row [n]; None, or a task that was not seen: one of which
                nothing is known.
        """
        found, prior = self._margins(X, task, spread=True)
        return to_input_kind(prior.chances(found), X)

    def predict_log_proba(self, X: Any, task: Any = None) -> Any:
        """Logarithms of the class probabilities, [n, classes].

        Args:
            X: Rows [n, f].
            task: The task of every row [n]; None, or a task that was not seen: one of which
                nothing is known.
        """
        return to_input_kind(logarithms(as_numpy(self.predict_proba(X, task))), X)

    def predict(self, X: Any, task: Any = None) -> Any:
        """The most probable class [n] under the model of each row's task.

        Args:
            X: Rows [n, f].
            task: The task of every row [n]; None, or a task that was not seen: one of which
                nothing is known.
        """
        found, prior = self._margins(X, task, spread=False)
        return to_input_kind(prior.labels(found), X)


class MetaRegressor(RegressorMixin, Meta):
    """A regressor for many small related tasks.

    `fit` learns from all tasks how their models differ: a Gaussian prior (or a mixture of several)
    over the coefficients of a linear model, beside what boosted trees find that all tasks share.
    `adapt` turns the prior and a few rows of a new task into a fitted regressor, `update` gives
    rows to tasks known by name, and `predict` uses the model of each row's task.

    Args:
        task: The column of X that names the task of each row, for tools that call ``fit(X, y)``
            only, such as `cross_val_score`. ``fit(X, y, task=…)`` overrides it. Default: None.
        common: What all tasks share beside a linear model: "linear" for nothing, a scikit-learn
            regressor, or "auto" (default): boosted trees, where they help on held-out tasks.
        environment: Where tasks come from: "stationary", "drift" of tasks given in the order in
            which they came, `Window(size)` for the latest so many, a number of centres, or "auto"
            (default): one place or several centres, whichever is better on held-out tasks.
        features: A scikit-learn transformer that makes columns of the rows (`SplineTransformer()`,
            `Nystroem()`), fitted to the rows of `fit`; models are linear in them. Default: None.
        fit_intercept: Whether models have an intercept. Default: True.
        scoring: By what members of the prior are weighed on held-out tasks:
            "neg_mean_squared_error" (the default) or "neg_mean_absolute_error".
        random_state: Seed of folds and of the order in which held-out rows are shown: a whole
            number, a NumPy generator, or None (default) for the same draw each time. NumPy's
            global generator is not used.
        store: A file (SQLite) that holds the rows of tasks instead of memory, for millions of
            tasks or several processes. It belongs to one estimator: ``sklearn.clone`` leaves it
            out, with a warning. Default: None.
        verbose: Whether `fit` says on standard error what it is doing. Default: False.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> task, X = np.repeat(np.arange(40), 10), rng.normal(size=(400, 5))
    >>> y = X @ [1.0, 2.0, 3.0, 0.0, 0.0] + 0.2 * rng.normal(size=40)[task]
    >>> y += 0.1 * rng.normal(size=400)
    >>> reg = MetaRegressor().fit(X, y, task=task)
    >>> reg.coef_.round(1) + 0.0, bool(reg.adapt(X[:3], y[:3]).score(X[:10], y[:10]) > 0.95)
    (array([1., 2., 3., 0., 0.]), True)
    """

    _task_model, _numeric = TaskRegressor, True
    score = Meta.score

    def predict(self, X: Any, task: Any = None) -> Any:
        """The prediction of every row [n] under the model of its task.

        Args:
            X: Rows [n, f].
            task: The task of every row [n]; None, or a task that was not seen: one of which
                nothing is known.
        """
        found, prior = self._margins(X, task, spread=False)
        return to_input_kind(prior.numbers(found), X)

    def predict_interval(self, X: Any, task: Any = None, level: float = 0.9) -> Any:
        """Intervals that hold y of each row with probability ``level``: lower and upper ends,
        [n, 2].

        Args:
            X: Rows [n, f].
            task: The task of every row [n]; None, or a task that was not seen: one of which
                nothing is known.
            level: The share of rows to be covered, over tasks like those of `fit`. Rows count by
                their weights there, if they had any: with 1/variance as weights light rows are
                covered less.
        """
        found, prior = self._margins(X, task, spread=True)
        return to_input_kind(prior.intervals(found, level), X)
