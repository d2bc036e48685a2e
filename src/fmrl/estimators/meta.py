"""MetaClassifier and MetaRegressor: Algorithm 2 with scikit-learn's manners."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data

from fmrl.certificate import Certificate, certify
from fmrl.core.algorithm import FMRL
from fmrl.core.errors import FMRLError
from fmrl.core.history import History
from fmrl.core.meta import End, FollowLeader
from fmrl.core.similarity import AverageDeviation
from fmrl.core.update import FAL
from fmrl.core.within import OMD
from fmrl.estimators import store
from fmrl.estimators.chart import charts
from fmrl.estimators.inputs import as_numpy, back, positions, read, task_ids, weights
from fmrl.estimators.linear import Prior, TaskClassifier, TaskRegressor, probabilities
from fmrl.estimators.pack import Table, table
from fmrl.estimators.playing import play_tasks
from fmrl.estimators.rule import STEPS, Rule, learn, pool
from fmrl.estimators.stream import FirstTask, OpenTask, Streams
from fmrl.similar import SimilarityReport, similarity_report

VECTORS = 10_000_000  # numbers of optima that a history may hold; beyond, it keeps scalars only


class _Meta(BaseEstimator):
    """What the two estimators share: everything but what is predicted."""

    _task_model: type

    def __init__(
        self,
        *,
        within: Any = None,
        update: Any = None,
        meta: Any = None,
        similarity: Any = None,
        radius: float | None = None,
        fit_intercept: bool = True,
        random_state: int | None = 0,
    ):
        self.within = within
        self.update = update
        self.meta = meta
        self.similarity = similarity
        self.radius = radius
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def fit(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> Self:
        """Learn across tasks. X [n, f]; y [n]; task [n]: which task a row belongs to (none: one task); rows in play order.

        Tasks are played in the order in which they first appear.
        """
        X, y, weight = self._check(X, y, sample_weight, reset=True)
        ids = task_ids(task, len(y))
        self._reset()
        tasks, names = table(X, self._target(y, None, first=True), weight, ids)
        self._begin(tasks)
        self._play(tasks, names)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, task: Any = None, sample_weight: Any = None) -> Self:
        """Learn from one more task. task: its name (default: its number). classes: all labels, in the first call."""
        first = not hasattr(self, "history_")
        X, y, weight = self._check(X, y, sample_weight, reset=first)
        if first:
            self._reset()
        tasks = Table(X, self._target(y, classes, first=first), weight, np.array([0]), np.array([len(y)]))
        self._pilot.append(tasks) if len(self._pilot) < 64 else None
        if first:
            self._begin(tasks)
        elif len(self._pilot) in (2, 4, 8, 16, 32, 64) and len(self._pilot) > self._piloted:
            self._consider()
        self._play(tasks, [self.n_tasks_seen_ if task is None else task])
        return self

    def begin(
        self, tasks: Table, *, classes: Any = None, features: list[str] | None = None, expected: int | None = None
    ) -> Self:
        """Choose the chart and the rule from the first tasks of a run too long to be held; `play` then plays them and the rest.

        tasks: rows whose y are positions among the sorted ``classes`` (numbers, for a regression). features: their names.
        expected: how many tasks will come, which decides what the history can afford to keep.
        """
        self._reset()
        if classes is not None:
            self.classes_ = np.unique(classes)
        self.n_features_in_ = tasks.X.shape[1]
        if features is not None:
            self.feature_names_in_ = np.array(features, dtype=object)
        self._begin(tasks, expected)
        return self

    def play(self, tasks: Table, names: list, *, keep: bool = True) -> Self:
        """Play further tasks. keep=False: hold neither their rows nor their names, so that memory stays bounded.

        `model` does not know such tasks then, and the caller sees to it that none comes twice.

        Called with `WINDOW` tasks at a time (the last time with fewer), a run gives the same bits wherever it was interrupted.
        """
        self._play(tasks, names)
        if not keep:
            self._waiting.pop()
            self._known.difference_update(names)
        return self

    def adapt(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """An ordinary linear model of a new task from a few of its rows; this estimator stays as it is."""
        check_is_fitted(self, "history_")
        X = as_numpy(X)
        validate_data(self, X, reset=False, skip_check_array=True)  # the features must be those of fit
        return self._task_model(self.prior_).fit(X, as_numpy(y), sample_weight)

    def model(self, task: Any) -> Any:
        """The model of a task seen, by its id."""
        check_is_fitted(self, "history_")
        theta = self._seen(task)
        model = self._task_model(self.prior_)
        model._set(theta)
        if hasattr(self, "feature_names_in_"):
            model.feature_names_in_ = self.feature_names_in_
        return model

    def save(self, path: str | os.PathLike) -> None:
        """Write this estimator to one file (safetensors), whole or not at all."""
        store.save(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Read an estimator written by `save`; a damaged or foreign file is refused."""
        return store.load(path, cls)

    @property
    def prior_(self) -> Prior:
        """What adapting starts from."""
        state = self.state_
        classes = getattr(self, "classes_", None)
        return Prior(self.chart_, self.rule_, state.phi, float(state.guess), classes, self.pooled_)

    @property
    def n_tasks_seen_(self) -> int:
        """How many tasks were played, those of streams included."""
        return self.state_.tasks if hasattr(self, "history_") else 0

    def task(self, rounds: int | None = None, *, name: Any = None, classes: Any = None) -> OpenTask:
        """Open a task whose rows come one at a time; see `fmrl.estimators.stream`. Any number may be open at once.

        rounds: how many rows are expected. classes: all labels, for a classifier that has seen no task.
        """
        if hasattr(self, "history_"):
            return OpenTask(self, rounds, name)
        if classes is None and isinstance(self, ClassifierMixin):
            raise FMRLError("this classifier has seen no task", fix="name all labels: task(classes=[…])")
        return FirstTask(self, name, classes)

    def _close(self, task: OpenTask, end: End) -> None:
        """A stream has ended: move the meta-level, and remember what it cost."""
        low, high = task.regret
        old = self.streams_
        self.streams_ = Streams(
            old.tasks + 1, old.rounds + task.rounds, old.loss + task.loss, (old.regret[0] + low, old.regret[1] + high)
        )
        self.state_ = self.history_.algo.advance(self.state_, end)

    @property
    def certificate_(self) -> Certificate:
        """What is proved about the regret of this run."""
        check_is_fitted(self, "history_")
        return certify(self.history_, loss=self.prior_.loss)

    @property
    def similarity_(self) -> SimilarityReport:
        """How similar the tasks were, and what that is worth."""
        check_is_fitted(self, "history_")
        return similarity_report(self.history_)

    @property
    def coef_(self) -> np.ndarray:
        """Where tasks start, in the user's units: the coefficients before any row of a task is seen."""
        return self._start()[0]

    @property
    def intercept_(self) -> Any:
        """The intercept that belongs to ``coef_``."""
        return self._start()[1]

    def _start(self) -> tuple[np.ndarray, Any]:
        if not hasattr(self, "history_"):
            raise AttributeError("coef_ and intercept_ are there after fit")
        return self._shape(*self.chart_.model(self.prior_.start(0), self.prior_.loss.outputs))

    def _shape(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, Any]:
        return coef, intercept

    # ---- the run ----------------------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        for name in ("history_", "state_", "chart_", "rule_", "pooled_"):
            if hasattr(self, name):
                delattr(self, name)
        self.streams_ = Streams()
        self._pilot: list[Table] = []
        self._piloted = 1
        self._waiting: list[tuple[Table, list]] = []
        self._thetas: dict[Any, np.ndarray] = {}
        self._known: set = set()

    def _begin(self, tasks: Table, expected: int | None = None) -> None:
        """Choose the chart and the rule from these tasks, and start a run of that many tasks (default: these)."""
        regression = not hasattr(self, "classes_")
        few = tasks.select(np.unique(np.linspace(0, len(tasks) - 1, min(len(tasks), 1024)).astype(int)))
        rows = few.rows()
        weight = None if tasks.weight is None else tasks.weight[rows]
        if weight is not None and not weight.sum() > 0:
            raise FMRLError("all sample weights of the first tasks are zero", fix="leave those rows out")
        options = charts(tasks.X[rows], tasks.y[rows] if regression else None, weight, self.fit_intercept)
        if self.radius is not None:
            if not 0 < self.radius < np.inf:
                raise FMRLError(f"radius must be positive and finite, not {self.radius}")
            options = [type(c)(c.centre, c.constant, c.shift, c.unit, c.length, float(self.radius)) for c in options]
        classes = None if regression else self.classes_
        loss = Prior(options[0], Rule(1.0), np.zeros(0), 0.0, classes).loss
        self.chart_, self.rule_ = learn(tasks, options, loss, regression, self._seed())
        self._pool(tasks, loss)
        algo = FMRL(
            domain=self.chart_.domain,
            within=OMD() if self.within is None else self.within,
            update=FAL() if self.update is None else self.update,
            meta=FollowLeader() if self.meta is None else self.meta,
            similarity=AverageDeviation() if self.similarity is None else self.similarity,
        )
        width = loss.outputs * self.chart_.width
        keep = "vectors" if (expected or len(tasks)) * width <= VECTORS else "scalars"
        self.state_ = algo.init(np.zeros(width))
        self.history_ = History(algo, self.state_, keep)

    def _pool(self, tasks: Table, loss: Any) -> None:
        """The pooled start, if some task may start there."""
        self.pooled_ = None
        if any(choice.start == "pooled" for choice in self.rule_.choices):
            steps = [step for step in STEPS if step <= self.rule_.pooled]
            self.pooled_ = pool(tasks, self.chart_, loss, not hasattr(self, "classes_"), steps)[-1]

    def _seed(self) -> int:
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31))
        return 0 if self.random_state is None else int(self.random_state)

    def _consider(self) -> None:
        """Choose the rule again, now that there are more tasks to choose by; the chart stays."""
        parts, self._piloted = self._pilot, len(self._pilot)
        weight = (
            None
            if all(p.weight is None for p in parts)
            else np.concatenate([np.ones(len(p.y)) if p.weight is None else p.weight for p in parts])
        )
        sizes = np.array([len(p.y) for p in parts])
        X, y = np.concatenate([p.X for p in parts]), np.concatenate([p.y for p in parts])
        pilot = Table(X, y, weight, np.cumsum(sizes) - sizes, sizes)
        loss = self.prior_.loss
        _, self.rule_ = learn(pilot, [self.chart_], loss, not hasattr(self, "classes_"), self._seed())
        self._pool(pilot, loss)

    def _play(self, tasks: Table, names: list, progress: Callable[[int], None] | None = None) -> None:
        twice = next((name for name in names if name in self._known), None)
        if twice is not None:
            raise FMRLError(f"the task {twice!r} was seen before", fix="give it another name, or adapt to its new rows")
        if self.state_ is not self.history_.state:  # streams moved it: a new history begins
            self.history_ = History(self.history_.algo, self.state_, self.history_.keep)
        play_tasks(self.history_, tasks, self.chart_, self.prior_.loss, not hasattr(self, "classes_"), progress)
        self.state_ = self.history_.state
        self._known.update(names)
        self._waiting.append((tasks, names))

    def _settle(self) -> None:
        """Solve the models of the tasks seen, from the phi of now; until somebody asks, their rows wait."""
        waiting, self._waiting = self._waiting, []
        for tasks, names in waiting:
            self._thetas |= zip(names, self.prior_.adapt(tasks), strict=True)

    def _seen(self, task: Any) -> np.ndarray:
        task = task.item() if isinstance(task, np.generic) else task
        self._settle()
        if task not in self._thetas:
            raise FMRLError(f"the task {task!r} was not seen in fit", fix="adapt to some of its rows: adapt(X, y)")
        return self._thetas[task]

    def _margins(self, X: Any, task: Any) -> np.ndarray:
        """Margins of every row under the model of its task (phi where no task is given), [n, outputs]."""
        check_is_fitted(self, "history_")
        rows = read(self, X)
        outputs = self.prior_.loss.outputs
        if task is None:
            coef, intercept = self.chart_.model(self.prior_.start(0), outputs)
            return rows @ coef.T + intercept
        names, which = np.unique(task_ids(task, len(rows)), return_inverse=True)
        coef, intercept = self.chart_.model(np.stack([self._seen(name) for name in names]), outputs)
        out, most = np.empty((len(rows), outputs)), max(1, (1 << 20) // coef[0].size)
        for first in range(0, len(rows), most):
            part, own = slice(first, first + most), which[first : first + most]
            out[part] = (coef[own] @ rows[part, :, None])[..., 0] + intercept[own]
        return out

    def __getstate__(self) -> dict:
        if getattr(self, "_waiting", None):
            self._settle()  # rows do not belong into a stored model
        return super().__getstate__()


class MetaClassifier(ClassifierMixin, _Meta):
    """A classifier for many small related tasks, which share their labels.

    It plays the tasks one after another by Algorithm 2 of the paper, and so learns where a new task should start (phi) and how
    far it may go; `adapt` turns that and a few rows into an ordinary linear classifier.

    within, update, meta, similarity: the ingredients of Algorithm 2 (default OMD(), FAL(), FollowLeader(), AverageDeviation()).
    radius: of the ball of models, in the chart's coordinates (default: from the data, see `fmrl.estimators.chart`).
    fit_intercept: whether models have an intercept. random_state: seed of the split by which the rule is chosen.

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

    def _check(self, X, y, sample_weight, reset):
        X, y = validate_data(self, as_numpy(X), as_numpy(y), dtype=np.float64, reset=reset)
        check_classification_targets(y)
        return X, y, weights(sample_weight, X)

    def _target(self, y, classes, first):
        if first:
            self.classes_ = unique_labels(y) if classes is None else unique_labels(classes)
        elif classes is not None and not np.array_equal(unique_labels(classes), self.classes_):
            raise FMRLError(f"classes={list(classes)} differ from those of the first call, {self.classes_.tolist()}")
        return positions(y, self.classes_)

    def decision_function(self, X: Any, task: Any = None) -> Any:
        """Margins: [n] for two classes, [n, classes] for more."""
        z = self._margins(X, task)
        return back(z[:, 0] if z.shape[1] == 1 else z, X)

    def predict_proba(self, X: Any, task: Any = None) -> Any:
        """Class probabilities [n, classes] under the model of each row's task (the common start, where no task is given)."""
        return back(probabilities(self._margins(X, task), len(self.classes_)), X)

    def predict(self, X: Any, task: Any = None) -> Any:
        """The most probable class [n] under the model of each row's task (the common start, where no task is given)."""
        p = probabilities(self._margins(X, task), len(self.classes_))
        return back(self.classes_[p.argmax(axis=1)], X)

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """Accuracy."""
        return float(np.average(as_numpy(self.predict(X, task)) == as_numpy(y), weights=sample_weight))


class MetaRegressor(RegressorMixin, _Meta):
    """A linear regressor for many small related tasks. Parameters as `MetaClassifier`.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> task, X = np.repeat(np.arange(40), 10), rng.normal(size=(400, 5))
    >>> y = X @ [1.0, 2.0, 3.0, 0.0, 0.0] + 0.2 * rng.normal(size=40)[task] + 0.1 * rng.normal(size=400)
    >>> reg = MetaRegressor().fit(X, y, task=task)
    >>> reg.coef_.round(1) + 0.0, bool(reg.adapt(X[:3], y[:3]).score(X[:10], y[:10]) > 0.95)
    (array([1., 2., 3., 0., 0.]), True)
    """

    _task_model = TaskRegressor

    def _check(self, X, y, sample_weight, reset):
        X, y = validate_data(self, as_numpy(X), as_numpy(y), dtype=np.float64, y_numeric=True, reset=reset)
        return X, np.asarray(y, dtype=float), weights(sample_weight, X)

    def _target(self, y, classes, first):
        if classes is not None:
            raise FMRLError("a regressor has no classes", fix="use MetaClassifier")
        return y

    def _shape(self, coef, intercept):
        return coef[0], float(intercept[0])

    def predict(self, X: Any, task: Any = None) -> Any:
        """The prediction of every row [n] under the model of its task (the common start, where no task is given)."""
        return back(self._margins(X, task)[:, 0], X)

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """R²."""
        from sklearn.metrics import r2_score

        return float(r2_score(as_numpy(y), as_numpy(self.predict(X, task)), sample_weight=sample_weight))
