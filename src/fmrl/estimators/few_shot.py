"""Few-shot model selection: hold out whole tasks, reveal k rows of each, score the rest.

`FewShotSplit` says which tasks are held out, `FewShotScorer` adapts to k rows of each of them and
scores the others; both go into `cross_val_score`, `cross_validate` and `GridSearchCV`.
`few_shot_score` is the two together. What is drawn depends on the seed and on the values of the
rows, never on their order or on the names of tasks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from sklearn import config_context
from sklearn.base import BaseEstimator, is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.metrics import get_scorer, log_loss, make_scorer
from sklearn.model_selection import BaseCrossValidator, cross_validate
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.metadata_routing import UNUSED

from fmrl.errors import FMRLError, warn
from fmrl.estimators.reveal import Groups
from fmrl.tables.read import split_task
from fmrl.tables.targets import as_numpy, check_targets, task_ids

_HOW_TO_ROUTE = (
    "in cross_val_score and GridSearchCV only sklearn.set_config(enable_metadata_routing=True) "
    "and params={'task': task} give the tasks to FewShotScorer, too; groups= does not"
)


def adapt(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> Any:
    """The model of a new task, also from what scikit-learn puts around an estimator that can adapt.

    Args:
        estimator: A fitted `MetaClassifier` or `MetaRegressor`, a fitted `Pipeline` that ends in
            one, a `TransformedTargetRegressor` or a search (`GridSearchCV`) over one of them.
        X: A few rows of the new task, as they were given to the estimator's `fit`.
        y: Their labels or numbers [n].
        sample_weight: How much each row counts [n].

    Returns:
        The task's model; for a pipeline, a pipeline of the same fitted steps and the task's model,
        and likewise for a transformed target.
    """
    estimator = getattr(estimator, "best_estimator_", estimator)
    if isinstance(estimator, Pipeline):
        *steps, (name, last) = estimator.steps
        rows = estimator[:-1].transform(X) if steps else X
        return Pipeline([*steps, (name, adapt(last, rows, y, sample_weight))])
    if isinstance(estimator, TransformedTargetRegressor):
        column = np.asarray(as_numpy(y)).reshape(-1, 1)
        adapted = copy.copy(estimator)
        z = estimator.transformer_.transform(column)[:, 0] if len(column) else column[:, 0]
        adapted.regressor_ = adapt(estimator.regressor_, X, z, sample_weight)
        return adapted
    if not hasattr(estimator, "adapt"):
        what = f"a {type(estimator).__name__} cannot adapt to a task"
        raise FMRLError(what, fix="use MetaClassifier or MetaRegressor, last in a pipeline")
    return estimator.adapt(X, y, sample_weight)


class FewShotSplit(BaseCrossValidator):
    """Folds of whole tasks: every task that has rows enough is held out once.

    It only holds tasks out: a plain ``scoring=`` then predicts them as tasks of which nothing is
    known. `FewShotScorer` reveals ``shots`` of their rows and scores the others; `few_shot_score`
    does both. Loops of scikit-learn give the scorer its tasks as ``params={"task": task}``, with
    ``sklearn.set_config(enable_metadata_routing=True)``; ``groups=`` reaches the split alone.

    Tasks with too few rows to reveal ``shots`` and score another are always learned from and never
    scored; a warning counts them.

    Args:
        shots: How many rows will be revealed; of several numbers the largest counts.
        n_splits: How many folds.
        random_state: Which tasks fall together; None: by turns, in order of appearance.

    >>> task = np.repeat(["a", "b", "c", "d"], 3)
    >>> split = FewShotSplit(shots=2, n_splits=2)
    >>> [len(test) for _, test in split.split(np.arange(12.0)[:, None], groups=task)]
    [6, 6]
    """

    __metadata_request__split: ClassVar = {"groups": "task"}  # what is passed as task=

    def __init__(
        self, shots: int | Sequence[int] = (1, 2, 4, 8), n_splits: int = 5,
        random_state: int | None = 0,
    ):  # fmt: skip
        self.shots = shots
        self.n_splits = n_splits
        self.random_state = random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """How many folds there are."""
        return self.n_splits

    def split(
        self, X: Any, y: Any = None, groups: Any = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Positions of the rows to learn from, and of the rows of held-out tasks.

        Args:
            X: Rows [n, f].
            y: Their targets [n].
            groups: The task of every row [n], or the name of a column of X.
        """
        most = max(_check_shots(self.shots))
        X, groups, _ = split_task(X, groups)
        if groups is None:
            fix = f"give split(X, y, groups) a third argument; {_HOW_TO_ROUTE}"
            raise FMRLError("FewShotSplit needs the task of every row", fix=fix)
        tasks = Groups(X, y, groups, self.random_state)
        enough = [t for t in tasks.order if len(tasks.rows[t]) > most]
        _warn_left_out(len(tasks.rows) - len(enough), len(tasks.rows), most)
        if not isinstance(self.n_splits, int) or not 2 <= self.n_splits <= len(enough):
            what = f"{len(enough)} tasks with more than {most} rows make no {self.n_splits} folds"
            raise FMRLError(what, fix="use fewer shots or other n_splits")
        for fold in range(self.n_splits):
            test = np.sort(np.concatenate([tasks.rows[t] for t in enough[fold :: self.n_splits]]))
            yield np.setdiff1d(np.arange(len(tasks.ids)), test), test


class FewShotScorer(BaseEstimator):
    """A scorer that adapts to ``shots`` rows of each task and scores all the other rows together.

    An estimator that cannot adapt (any of scikit-learn's) is scored on the same rows as it is.

    Args:
        shots: How many rows of each task are revealed (0: the common start predicts); of several
            numbers the mean score is taken.
        scoring: A scorer of scikit-learn or its name (default: the proper scores 'neg_log_loss' of
            classifiers and 'neg_mean_squared_error' of regressors).
        random_state: Which rows are revealed; None: the first ones, as when tasks unfold in time.
    """

    __metadata_request__score: ClassVar = {"estimator": UNUSED, "task": True}

    def __init__(
        self, shots: int | Sequence[int] = 4, scoring: Any = None, random_state: int | None = 0
    ):
        self.shots = shots
        self.scoring = scoring
        self.random_state = random_state

    def __call__(self, estimator: Any, X: Any, y: Any, task: Any = None) -> float:
        """`score`."""
        return self.score(estimator, X, y, task)

    def score(self, estimator: Any, X: Any, y: Any, task: Any = None) -> float:
        """The score, larger is better.

        Args:
            estimator: Fitted on other tasks.
            X: Rows of the tasks to score [n, f].
            y: Their targets [n].
            task: The task of every row [n], or the name of a column of X.
        """
        known = getattr(getattr(estimator, "encoder_", None), "task", None)
        X, task, _ = split_task(X, task, known)
        if task is None:
            raise FMRLError("FewShotScorer needs the task of every row", fix=_HOW_TO_ROUTE)
        y = np.asarray(check_targets(y, not is_classifier(estimator), task))
        tasks, every = Groups(X, y, task, self.random_state), _check_shots(self.shots)
        if len(every) > 1:
            warn(f"FewShotScorer(shots={every}) gives the mean score over all of them; "
                 "few_shot_score gives one for each")  # fmt: skip
        found = [self._score_shots(estimator, X, y, tasks, shots) for shots in every]
        return float(np.mean(found))

    def _score_shots(
        self, estimator: Any, X: Any, y: np.ndarray, tasks: Groups, shots: int
    ) -> float:
        scored = [rows for rows in tasks.rows if len(rows) > shots]
        if not scored:
            what = f"no task has more than {shots} rows"
            raise FMRLError(what, fix="use fewer shots, or tasks with more rows")
        _warn_left_out(len(tasks.rows) - len(scored), len(tasks.rows), shots)
        last = getattr(estimator, "best_estimator_", estimator)
        last = last[-1] if isinstance(last, Pipeline) else last
        models = [estimator] * len(scored)
        if (shots and hasattr(last, "adapt")) or hasattr(estimator, "adapt_many"):
            few = (rows[:shots] for rows in scored)
            models = [adapt(estimator, _safe_indexing(X, rows), y[rows]) for rows in few]
        parts = [_safe_indexing(X, rows[shots:]) for rows in scored]
        rest = np.concatenate([rows[shots:] for rows in scored])
        together = _TaskByTask(models, parts)
        return float(_scorer(self.scoring, estimator)(together, X, y[rest]))


def few_shot_score(
    estimator: Any, X: Any, y: Any, *, task: Any = None, shots: int | Sequence[int] = (1, 2, 4, 8),
    scoring: Any = None, n_splits: int = 5, random_state: int | None = 0,
    n_jobs: int | None = None,
) -> dict[int, np.ndarray]:  # fmt: skip
    """How well an estimator does on tasks it has not seen, from k of their rows.

    Args:
        estimator: What to fit: ours, a pipeline that ends in one, or any of scikit-learn, which
            then does not adapt.
        X: Rows [n, f].
        y: Their labels or numbers [n].
        task: The task of every row [n], or the name of a column of X (default: the estimator's
            parameter ``task``).
        shots: How many rows of a new task are revealed.
        scoring: As in `FewShotScorer`.
        n_splits: Into how many folds tasks are split; each is held out once.
        random_state: Of the folds and of the rows revealed.
        n_jobs: As in `cross_validate`.

    Returns:
        For each number of shots the scores of the folds [n_splits], larger is better.

    >>> import fmrl
    >>> rng = np.random.default_rng(0)
    >>> task, X = np.repeat(np.arange(30), 8), rng.normal(size=(240, 3))
    >>> y = X[:, 0] + rng.normal(size=30)[task] + 0.1 * rng.normal(size=240)
    >>> found = few_shot_score(fmrl.MetaRegressor(), X, y, task=task, shots=(1, 4))
    >>> bool(found[1].mean() < found[4].mean())
    True
    """
    task = getattr(estimator, "task", None) if task is None else task
    if task is None:
        what = "few_shot_score is no scoring= (use FewShotScorer there), and needs task="
        raise FMRLError(what, fix="give the task of every row, or the name of a column of X")
    every = _check_shots(shots)
    X, task, _ = split_task(X, task)
    y = check_targets(y, not is_classifier(estimator), task)
    task = task_ids(task, len(y))
    scorers = {str(k): FewShotScorer(k, scoring, random_state) for k in every}
    split = FewShotSplit(every, n_splits, random_state)
    with config_context(enable_metadata_routing=True):
        found = cross_validate(
            estimator, X, y, cv=split, scoring=scorers, params={"task": task}, n_jobs=n_jobs,
            error_score="raise",
        )  # fmt: skip
    return {k: found[f"test_{k}"] for k in every}


def _check_shots(given: int | Sequence[int]) -> tuple[int, ...]:
    shots = (given,) if isinstance(given, (int, np.integer)) else tuple(given)
    if not shots or not all(isinstance(k, (int, np.integer)) and k >= 0 for k in shots):
        raise FMRLError(f"shots={given!r} is not a number of rows", fix="give 4 or (1, 2, 4)")
    return tuple(int(k) for k in shots)


def _warn_left_out(few: int, every: int, shots: int) -> None:
    if few:
        warn(f"{few} of {every} tasks have no more than {shots} rows: they are not scored")


def _scorer(scoring: Any, estimator: Any) -> Any:
    if not is_classifier(estimator):
        return get_scorer(scoring or "neg_mean_squared_error")
    if scoring not in (None, "neg_log_loss"):
        return get_scorer(scoring)
    # scikit-learn's own does not know classes that the scored rows lack.
    given = {"response_method": "predict_proba", "greater_is_better": False}
    return make_scorer(log_loss, labels=estimator.classes_, **given)


class _TaskByTask(BaseEstimator):
    """The models of several tasks, each with its rows, as one estimator of one kind."""

    def __init__(self, models: list[Any], parts: list[Any]):
        self.models = models
        self.parts = parts
        self.fitted_ = True

    def __sklearn_tags__(self) -> Any:
        return get_tags(self.models[0])

    @property
    def classes_(self) -> np.ndarray:
        return self.models[0].classes_

    def _concatenated(self, method: str) -> np.ndarray:
        each = zip(self.models, self.parts, strict=True)
        return np.concatenate([as_numpy(getattr(m, method)(X)) for m, X in each])

    def predict(self, X: Any) -> np.ndarray:
        return self._concatenated("predict")

    def predict_proba(self, X: Any) -> np.ndarray:
        return self._concatenated("predict_proba")

    def decision_function(self, X: Any) -> np.ndarray:
        return self._concatenated("decision_function")
