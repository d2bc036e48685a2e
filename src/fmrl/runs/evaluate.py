"""Does it help on new tasks? FMRL against fitting each task alone and against one pooled model, by
the number of rows of the new task that were learned from.

A training run sets aside some rows of the training tasks (`Reservoir`) and some of the held-out
tasks (`Heldout`), by keys that depend on the seed and on the place or name alone, so a resumed run
sets aside the same. The rows of every held-out task are shuffled once; a third of them is scored
on, k of the rest are learned from, k = 0, 1, 2, 4, … With 0 rows FMRL has what it knows of all
tasks, and a task alone has nothing.

Scores are proper: the log-loss of classes, the squared error of numbers as R². R² is
1 − (summed squared errors) / (summed squared deviations from the mean), of all rows scored on, as
scikit-learn has it: tasks of one or two rows have no variance of their own to compare with.
Beside them stand accuracy and calibration error, or how often a 90 % interval covers and how wide
it is.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fmrl.core.tasks import Tasks
from fmrl.estimators.environment import Environment
from fmrl.report import held_out

ROWS = 20_000  # of training tasks, for the pooled baseline
LONGEST = 1024  # rows of a held-out task
LATEST = 20  # held-out tasks, at least, where tasks drift
SHOTS = (1, 2, 4, 8, 16, 32)
STRENGTHS = np.logspace(-2, 2, 5)  # of the baselines' regularisation, chosen by cross-validation
INTERVAL = 0.9  # the share of rows that intervals are to cover
BINS = 10  # of the calibration error
METHODS = ("FMRL", "per-task", "pooled")
_ROWS = "k rows of a new task are learned from, a third of its rows are scored on"
PROTOCOL = {
    "log_loss": _ROWS,
    "r2": f"{_ROWS}; R² = 1 − summed squared errors / summed squared deviations of all rows scored",
}


@dataclass
class Reservoir:
    """A uniform sample of at most ``most`` rows of all that were added: those with the smallest
    random keys.

    >>> sample = Reservoir(most=3)
    >>> for w in range(4):
    ...     sample.add(np.full((10, 1), w), np.ones((10, 1)), w)
    >>> sample.X.shape
    (3, 1)
    """

    seed: int = 0
    most: int = ROWS
    keys: np.ndarray = field(default_factory=lambda: np.empty(0))
    X: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    target: np.ndarray = field(default_factory=lambda: np.empty((0, 1)))

    def add(self, X: np.ndarray, target: np.ndarray, window: int) -> None:
        """Rows of window number ``window``."""
        keys = np.random.default_rng([self.seed, window]).random(len(target))
        good = np.flatnonzero(keys < (self.keys.max() if len(self.keys) == self.most else 1.0))
        X, target, keys = X[good], target[good], keys[good]
        if len(self.keys):
            X, target = np.concatenate([self.X, X]), np.concatenate([self.target, target])
            keys = np.concatenate([self.keys, keys])
        kept = np.sort(np.argsort(keys, kind="stable")[: self.most])  # in the order of the table
        self.keys, self.X, self.target = keys[kept], X[kept], target[kept]


class Held(NamedTuple):
    """A held-out task, its rows in a random order."""

    name: str
    X: np.ndarray
    target: np.ndarray  # as the loss encodes it


@dataclass
class Heldout:
    """At most ``most`` of the held-out tasks that were added: those whose name hashes lowest; and
    as many of the last.
    """

    most: int = 100
    seed: int = 0
    seen: int = 0
    kept: list[tuple[int, Held]] = field(default_factory=list)
    last: list[tuple[Tasks, int]] = field(default_factory=list)

    def add(self, tasks: Tasks | None) -> None:
        if tasks is None:
            return
        self.seen += len(tasks)
        self.last = [*self.last, *((tasks, i) for i in range(len(tasks)))][-self.most :]
        for i, name in enumerate(tasks.names):
            key = self._key(name)
            if len(self.kept) < self.most or any(key < other for other, _ in self.kept[-1:]):
                self.kept.append((key, self._held(tasks, i)))
                self.kept = sorted(self.kept, key=lambda pair: pair[0])[: self.most]

    def _key(self, name: Any) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.seed}/{name}".encode()).digest()[:8])

    def _held(self, tasks: Tasks, i: int) -> Held:
        task, key = tasks.task(i), self._key(tasks.names[i])
        order = np.random.default_rng([self.seed, key]).permutation(task.rounds)[:LONGEST]
        return Held(tasks.names[i], task.X[order], task.open().target[order])

    def tasks(self, found: Environment) -> list[Held]:
        """Those to be scored on: of all times or, where tasks drift, as new as those that count,
        because a model of today is for the tasks to come.
        """
        if found.kind != "recent":
            return [held for _, held in self.kept]
        size = max(LATEST, round(found.window * self.seen))
        return [self._held(*place) for place in self.last[-size:]]


class Sheet(NamedTuple):
    """How one method did on the rows scored on; NaN where a task has too few rows."""

    score: np.ndarray  # [tasks, shots] log-loss or squared error
    right: np.ndarray  # [tasks, shots] share of labels that are right, or of intervals that cover
    sure: list[list[Any]]  # by shots: confidence and right of rows; or widths of intervals


def evaluate(
    estimator: Any, tasks: list[Held], pooled: Reservoir, progress: Callable[[int], None]
) -> dict[str, Any]:
    """Scores of the three methods on held-out tasks with 95 % intervals and paired differences, as
    the report reads them.

    Args:
        estimator: A fitted `MetaClassifier` or `MetaRegressor`.
        tasks: Held out.
        pooled: Rows of the training tasks.
        progress: Called with the number of tasks scored so far.
    """
    classes = getattr(estimator, "classes_", None)
    metric = "r2" if classes is None else "log_loss"
    tasks = [t for t in tasks if len(t.X) >= 2]
    scored = [max(1, len(t.X) // 3) for t in tasks]
    most = max((len(t.X) - n for t, n in zip(tasks, scored, strict=True)), default=0)
    shots = [0, *(k for k in SHOTS if k <= most)]
    if not tasks:
        nothing = {"metric": metric, "shots": [], "methods": [], "differences": [], "tasks": 0}
        return nothing | {"protocol": PROTOCOL[metric]}
    shape = len(tasks), len(shots)
    sheets = {
        name: Sheet(np.full(shape, np.nan), np.full(shape, np.nan), [[] for _ in shots])
        for name in METHODS
    }
    methods = _Methods(estimator, pooled, classes)
    for t, (task, n) in enumerate(zip(tasks, scored, strict=True)):
        for s, k in enumerate(shots):
            if k <= len(task.X) - n:
                y = _labels(task.target, classes)[-n:]
                for name, said in zip(METHODS, methods(task, k, n), strict=True):
                    if said is not None:
                        _mark(sheets[name], (t, s), said, y)
        progress(t + 1)
    scores, weight = {name: sheet.score for name, sheet in sheets.items()}, None
    if classes is None:
        targets = [t.target[-n:] for t, n in zip(tasks, scored, strict=True)]
        unit, weight = _variances(targets, ~np.isnan(scores["FMRL"])), scored
        scores = {name: 1 - error / unit for name, error in scores.items()}
    found = {"protocol": PROTOCOL[metric], "names": [t.name for t in tasks]}
    compared = held_out(scores, shots, metric, weight=weight)
    return compared | found | {"checks": _checks(sheets, classes)}


def _variances(targets: list[np.ndarray], there: np.ndarray) -> np.ndarray:
    """By shots, of all rows scored on together: what mean squared errors are divided by.

    Args:
        targets: Of the rows scored on, by task.
        there: Which tasks are scored, [tasks, shots].
    """
    columns = (np.concatenate([targets[t] for t in np.flatnonzero(on)]) for on in there.T)
    return np.array([float(np.var(y)) or 1.0 for y in columns])


class _Methods:
    """Numbers with intervals, or probabilities, that the three methods give to rows."""

    def __init__(self, estimator: Any, pooled: Reservoir, classes: Any):
        self.estimator, self.classes = estimator, classes
        self.centre, spread = pooled.X.mean(axis=0), pooled.X.std(axis=0)
        self.spread = np.where(spread > 0, spread, 1.0)
        self.everyone = _fit(self._scaled(pooled.X), _labels(pooled.target, classes), classes)

    def _scaled(self, X: np.ndarray) -> np.ndarray:
        return (X - self.centre) / self.spread

    def __call__(self, task: Held, k: int, n: int) -> tuple[Any, Any, Any]:
        """What each method says of the last n rows of a task from its first k."""
        y, new = _labels(task.target, self.classes), self._scaled(task.X[-n:])
        alone = None
        if k:
            alone = _fit(self._scaled(task.X[:k]), y[:k], self.classes)(new)
        return self._ours(task.X[:k], y[:k], task.X[-n:]), alone, self.everyone(new)

    def _ours(self, X: np.ndarray, y: np.ndarray, new: np.ndarray) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rows without names
            model = self.estimator
            if len(y):
                model = model.adapt(X, y if self.classes is None else self.classes[y])
            if self.classes is not None:
                return model.predict_proba(new)
            return model.predict(new), model.predict_interval(new, level=INTERVAL)


def _mark(sheet: Sheet, place: tuple[int, int], said: Any, y: np.ndarray) -> None:
    """Score what a method said of rows."""
    if isinstance(said, tuple):
        number, (low, high) = said[0], said[1].T
        sheet.score[place] = np.mean((number - y) ** 2)
        sheet.right[place] = np.mean((low <= y) & (y <= high))
        sheet.sure[place[1]].append(np.mean(high - low))
    elif said.ndim == 1:
        sheet.score[place] = np.mean((said - y) ** 2)
    else:
        right = said.argmax(axis=1) == y
        own = np.maximum(said[np.arange(len(y)), y], np.finfo(float).eps)
        sheet.score[place], sheet.right[place] = -np.mean(np.log(own)), np.mean(right)
        sheet.sure[place[1]].append(np.stack([said.max(axis=1), right]))


def _checks(sheets: dict[str, Sheet], classes: Any) -> list[dict[str, Any]]:
    """What stands beside the scores, by shots: means over tasks; the calibration error is of all
    rows together.
    """

    def means(table: np.ndarray) -> list[float | None]:
        found = [column[~np.isnan(column)] for column in table.T]
        return [float(np.mean(c)) if len(c) else None for c in found]

    if classes is None:
        ours = sheets["FMRL"]
        wide = [float(np.mean(w)) if w else None for w in ours.sure]
        both = {"coverage": means(ours.right), "width": wide}
        return [{"what": what, "method": "FMRL", "mean": mean} for what, mean in both.items()]
    found = []
    for name, sheet in sheets.items():
        found.append({"what": "accuracy", "method": name, "mean": means(sheet.right)})
    for name, sheet in sheets.items():
        error = [calibration_error(*np.concatenate(s, axis=1)) if s else None for s in sheet.sure]
        found.append({"what": "calibration", "method": name, "mean": error})
    return found


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """How far confidence is from the share of rows that are right, on average over ten bins of
    confidence (expected calibration error).

    Args:
        confidence: Probability of the predicted label of each row, [n].
        right: Whether it was the right one, [n].

    >>> calibration_error(np.array([0.9, 0.9, 0.6, 0.6]), np.array([1, 1, 1, 0])).round(3)
    np.float64(0.1)
    """
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    off = np.bincount(place, confidence - right, BINS)
    return np.abs(off).sum() / len(confidence)


def _labels(target: np.ndarray, classes: Any) -> np.ndarray:
    """Numbers, or positions of classes, as scikit-learn wants them."""
    if target.shape[1] > 1:
        return target.argmax(axis=1)
    return target[:, 0] if classes is None else target[:, 0].astype(int)


def _fit(X: np.ndarray, y: np.ndarray, classes: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Ridge, or logistic regression with probabilities [n, classes]; its strength is
    cross-validated by the same score where there are rows enough, else 1.

    If some classes are not among the rows, all get one row more (Laplace's rule), so that none is
    thought impossible.
    """
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV

    if classes is None:
        return (RidgeCV(1 / STRENGTHS) if len(y) > 2 else Ridge(1.0)).fit(X, y).predict
    labels, counts = np.unique(y, return_counts=True)
    folds = int(min(3, counts.min()))
    model = LogisticRegression(max_iter=300)
    if folds > 1:
        options = {"cv": folds, "scoring": "neg_log_loss", "max_iter": 300}
        model = LogisticRegressionCV(Cs=STRENGTHS, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of iterations that ran out, and of defaults to come
        fitted = model.fit(X, y) if len(labels) > 1 else None

    def said(A: np.ndarray) -> np.ndarray:
        p = np.zeros((len(A), len(classes)))
        p[:, labels] = 1.0 if fitted is None else fitted.predict_proba(A)
        return p if len(labels) == len(classes) else (len(y) * p + 1) / (len(y) + len(classes))

    return said
