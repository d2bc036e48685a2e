"""A common part that need not be linear: what any model says of a row, as one more column.

A model is fitted to the rows of all tasks together; its answer g(x), a number or the log-odds of
each class, becomes a column beside the user's, and tasks then differ linearly around it. So that
the column is honest, the rows of a task get the answer of a model that was fitted without that
task.

`Trees` are boosted trees as arrays: they can be stored with an estimator and asked for one row as
quickly as for many.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier, is_regressor

from fmrl.core.losses import Squared
from fmrl.core.prior.mixture_fit import fit_family
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError, warn
from fmrl.estimators.averaging import loss_and_slope
from fmrl.estimators.coordinates import Coordinates

FOLDS = 5  # of tasks, each answered by a model of the others
ROWS, TASKS = 60, 6  # below, "auto" does not try trees
HOPELESS = {False: (1.3, 1.0, 1.0), True: (1.08, 1.0, 1.0)}  # times it, above which none larger is
NEAR = 1.02  # times the loss of a linear model, above which trees are not worth a column
FAR = 8.0  # log-odds beyond are cut: a leaf of one class is not certain of it
BINS = 255  # of a column, between which boosted trees choose
SIZES = ((50, 4), (200, 8), (200, 24))  # steps and leaves of boosted trees …
STAGE = 10  # … of which the first are taken, so many at a time, as long as they answer better
ALL = 1 << 20  # stages

Answer = Any  # `Trees` or `Answers`: called, they give rows [n, f] their columns [n, k]
Fit = Callable[..., Answer]  # X, y, weights, number of classes, stages that are needed


@dataclass(frozen=True, eq=False)
class Trees:
    """A sum of regression trees for every output.

    Args:
        feature: Which column a node asks about, [trees, nodes].
        threshold: Rows at most this go left.
        left: The next node; a leaf leads to itself.
        right: The next node.
        value: What a leaf adds.
        output: To which output a tree adds, [trees].
        base: What every output begins with, [k].
        depth: Questions from a root to any leaf, at most.
        most: Answers beyond ± this are cut.
    """

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray
    output: np.ndarray
    base: np.ndarray
    depth: int
    most: float = math.inf

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Their answers [n, k] to rows X [n, f]."""
        return self._sums(X, np.full(1, len(self.output)))[0]

    def staged(self, X: np.ndarray) -> np.ndarray:
        """Their answers after every STAGE steps, [stages, n, k]."""
        each = STAGE * len(self.base)
        return self._sums(X, np.arange(each, len(self.output) + each, each))

    def _sums(self, X: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Answers of the trees before each of some ends, [ends, n, k]."""
        trees, nodes = self.feature.shape
        roots, width = np.arange(trees) * nodes, X.shape[1]
        # All nodes in one row, where `take` finds them several times as fast as two indices do.
        feature, threshold, value = (a.ravel() for a in (self.feature, self.threshold, self.value))
        after = (np.stack([self.left, self.right], axis=-1) + roots[:, None, None]).ravel()
        out = np.empty((len(ends), len(X), len(self.base)))
        most = max(1, (1 << 17) // trees)  # rows at a time, so that their places stay in cache
        adds = self.output[:, None] == np.arange(len(self.base))
        for first in range(0, len(X), most):
            rows = X[first : first + most]
            numbers, row = rows.ravel(), (np.arange(len(rows)) * width)[:, None]
            at = np.tile(roots, (len(rows), 1))
            for _ in range(self.depth):
                high = numbers.take(feature.take(at) + row) > threshold.take(at)
                at = after.take(2 * at + high)
            said, before, total = value.take(at), 0, self.base
            for place, end in enumerate(ends):
                total = total + said[:, before:end] @ adds[before:end].astype(float)
                out[place, first : first + most], before = total, end
        return np.clip(out, -self.most, self.most)

    @classmethod
    def of(cls, model: Any, most: float, edges: np.ndarray | None = None) -> Trees:
        """The trees of a fitted HistGradientBoosting model without categories; of one that was
        fitted to `binned` rows, in place of these.
        """
        grown = [(k, tree.nodes) for step in model._predictors for k, tree in enumerate(step)]
        size = max(len(nodes) for _, nodes in grown)
        parts = {name: np.zeros((len(grown), size)) for name in ("threshold", "value")}
        parts |= {
            name: np.zeros((len(grown), size), np.intp) for name in ("feature", "left", "right")
        }
        for t, (_, nodes) in enumerate(grown):
            n, leaf = len(nodes), nodes["is_leaf"].astype(bool)
            here = np.arange(n)
            parts["feature"][t, :n] = np.where(leaf, 0, nodes["feature_idx"])
            parts["threshold"][t, :n] = np.where(leaf, np.inf, nodes["num_threshold"])
            parts["value"][t, :n] = nodes["value"]
            for side in ("left", "right"):
                parts[side][t, :n] = np.where(leaf, here, nodes[side])
        if edges is not None:
            asks = np.isfinite(parts["threshold"])
            bins = parts["threshold"][asks].astype(np.intp)
            parts["threshold"][asks] = edges[parts["feature"][asks], bins]
        depth = max(int(nodes["depth"].max()) for _, nodes in grown)
        output = np.array([k for k, _ in grown])
        base = np.asarray(model._baseline_prediction, dtype=float).ravel()
        return cls(**parts, output=output, base=base, depth=depth, most=most)


@dataclass(frozen=True, eq=False)
class Answers:
    """A fitted scikit-learn model as a column: predictions, or log-odds of each class."""

    model: Any

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Its answers [n, k] to rows X [n, f]."""
        if not is_classifier(self.model):
            return np.asarray(self.model.predict(X), dtype=float).reshape(len(X), 1)
        p = np.clip(self.model.predict_proba(X), 1e-12, 1 - 1e-12)
        odds = np.clip(np.log(p) - np.log1p(-p), -FAR, FAR)
        return odds[:, 1:] if odds.shape[1] == 2 else odds

    def staged(self, X: np.ndarray) -> np.ndarray:
        """Its answers, of which there is one stage, [1, n, k]."""
        return self(X)[None]


def boosted(steps: int, leaves: int, seed: int) -> Fit:
    """How to fit boosted trees of one size."""

    def fit(
        X: np.ndarray, y: np.ndarray, weight: np.ndarray | None, classes: int, stages: int
    ) -> Answer:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
        model = kind(
            max_iter=min(steps, stages * STAGE), learning_rate=0.1, max_leaf_nodes=leaves,
            min_samples_leaf=_leaf(len(X)), l2_regularization=1.0, early_stopping=False,
            random_state=0,
        )  # fmt: skip
        edges, shift, unit = None, 0.0, 1.0
        if weight is not None:
            X, edges = binned(X)
        with np.errstate(over="ignore", invalid="ignore"):  # of huge numbers, refused later
            if not classes:  # scikit-learn's slopes are short floats
                shift = float(y.mean())
                unit = float(np.abs(y - shift).max()) or 1.0
                y = (y - shift) / unit
            model.fit(X, y, sample_weight=weight)
        trees = Trees.of(model, FAR if classes else math.inf, edges)
        return replace(trees, value=unit * trees.value, base=shift + unit * trees.base)

    return fit


def binned(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In which bin of its column a number lies, [n, f], and where bins end, [f, BINS]. Between
    quantiles that do not count weights: those that do take scikit-learn 50 ms a column.
    """
    codes, edges = np.empty(X.shape), np.full((X.shape[1], BINS), np.inf)
    for own, column, ends in zip(codes.T, X.T, edges, strict=True):
        values = np.unique(column)
        if len(values) > BINS:
            shares = np.linspace(0, 100, BINS + 1)[1:-1]
            found = np.unique(np.percentile(column, shares, method="averaged_inverted_cdf"))
        else:
            found = values[:-1] / 2 + values[1:] / 2
        ends[: len(found)] = found
        own[:] = np.searchsorted(found, column)
    return codes, edges


def _leaf(rows: int) -> int:
    return int(np.clip(rows // 40, 3, 20))


def makers(common: Any, classes: int, seed: int) -> list[Fit]:
    """Ways to fit the common part to rows, the smallest first, by what the user asked for."""
    if isinstance(common, str) and common == "auto":
        return [boosted(*size, seed) for size in SIZES]
    fits = hasattr(common, "fit") and hasattr(common, "__sklearn_tags__")
    if not (fits and (is_classifier if classes else is_regressor)(common)):
        kind = "classifier" if classes else "regressor"
        what = f"common must be 'auto', 'linear' or a scikit-learn {kind}, not {common!r}"
        raise FMRLError(what)

    def fit(X: np.ndarray, y: np.ndarray, weight: Any, classes: int, stages: int) -> Answer:
        more = {} if weight is None else {"sample_weight": weight}
        return Answers(clone(common).fit(X, y, **more))

    return [fit]


def cross_fitted(
    makes: list[Fit], tasks: Tasks, classes: int, plain: Plain | None = None
) -> tuple[np.ndarray, Answer] | None:
    """Columns [n, k] for the rows of some tasks, each answered without its own task, and the
    answer that all rows give; None where some fold lacks a class or losses are above those of a
    plain model. Of several ways the next is taken as long as it answers better.
    """
    y = tasks.target.argmax(axis=1) if tasks.target.shape[1] > 1 else tasks.target[:, 0]
    y = y.astype(int) if classes else y
    fold = np.repeat(np.arange(len(tasks)) % FOLDS, tasks.lengths)
    if classes and any(len(np.unique(y[fold != f])) < classes for f in range(FOLDS)):
        return None
    weight, best = tasks.weight, None
    for make, hopeless in zip(makes, HOPELESS[bool(classes)], strict=False):
        found, off, stages = None, [], ALL
        for f in range(FOLDS):
            others, own = fold != f, fold == f
            heavy = None if weight is None else weight[others]
            said = make(tasks.X[others], y[others], heavy, classes, stages).staged(tasks.X[own])
            losses = _sums(said, tasks.take(np.arange(f, len(tasks), FOLDS)))
            if found is None:  # three times the steps that the first fold needs do for the others
                stages = 3 * (1 + int(losses.sum(axis=1).argmin()))
                said, losses = said[:stages], losses[:stages]
                found = np.empty((len(said), len(y), said.shape[2]))
            found[:, own] = said
            if plain is None:
                continue
            off.append((losses - hopeless * plain(f)) / plain.unit)
            least = min(np.concatenate(off, axis=1), key=np.mean)
            if least.mean() > 2 * least.std() / math.sqrt(len(least)):
                found = None  # the other folds would not make up for it
                break
        if found is None:
            break
        losses = _sums(found, tasks).sum(axis=1)
        stage = int(losses.argmin())
        if best is not None and losses[stage] >= best[0]:
            break
        best = float(losses[stage]), found[stage], make, stage
        if plain is not None and best[0] > hopeless * plain.total:
            break
    if best is None or (plain is not None and best[0] > plain.total):
        return None
    _, column, make, stage = best
    return column, make(tasks.X, y, weight, classes, stage + 1)


def _sums(said: np.ndarray, tasks: Tasks) -> np.ndarray:
    """Summed losses of each task under some answers [..., n, k] to its rows, [..., T]."""
    losses, _ = loss_and_slope(said, tasks.target, isinstance(tasks.loss, Squared))
    losses = losses if tasks.weight is None else losses * tasks.weight
    return np.add.reduceat(losses, tasks.starts[:-1], axis=-1)


def with_common(
    tasks: Tasks, here: Coordinates, common: Any, classes: np.ndarray | None, seed: int
) -> tuple[Tasks, Coordinates, Answer | None]:
    """Tasks with the columns of a common part, coordinates for them, and the common part; as they
    are, where there is none or trees see nothing to explain.

    Args:
        tasks: In the user's units.
        here: Coordinates of their columns.
        common: "auto", "linear" or an estimator.
        classes: The labels; None for a regression.
        seed: Of the trees, where they draw rows to choose bins.
    """
    if isinstance(common, str) and common == "linear":
        return tasks, here, None
    count = 0 if classes is None else len(classes)
    makes = makers(common, count, seed)
    if count == 1 or len(tasks) < FOLDS or here.basis is not None:
        return tasks, here, None
    auto = isinstance(common, str)
    if auto and (len(tasks.X) < ROWS or len(tasks) < TASKS):
        return tasks, here, None
    found = cross_fitted(makes, tasks, count, Plain(tasks, here) if auto else None)
    if found is None:
        return tasks, here, None
    g, answer = found
    if hasattr(getattr(answer, "model", None), "coef_"):
        warn(
            "common= is linear itself, and coef_ shows only the rest: common='linear' does without"
        )
    centre = g.mean(axis=0) if here.constant else np.zeros(g.shape[1])
    spread = np.sqrt(((g - centre) ** 2).mean(axis=0))
    scale = np.where(spread > 0, spread, 1.0)
    wide = replace(here, centre=np.append(here.centre, centre), scale=np.append(here.scale, scale))
    return replace(tasks, X=np.hstack([tasks.X, g])), wide, answer


class Plain:
    """NEAR times the losses of each task under one linear model for all, fitted without its fold;
    of a fold when it is asked for.
    """

    def __init__(self, tasks: Tasks, here: Coordinates):
        self.even, self.intercept = here.tasks(tasks), here.constant > 0
        squared = isinstance(tasks.loss, Squared)
        self.level = NEAR * (here.unit**2 if squared else 1.0)
        self.fold, self.folds = np.arange(len(tasks)) % FOLDS, dict[int, np.ndarray]()
        # Newton's method ends in the same place from anywhere, so all begin where all tasks end.
        self.whole = None if squared else fit_family(self.even, "none", self.intercept)

    def __call__(self, f: int) -> np.ndarray:
        """Summed losses of the tasks of a fold."""
        if f not in self.folds:
            some = self.fold != f, self.fold == f
            others, own = (self.even.take(np.flatnonzero(a)) for a in some)
            model = fit_family(others, "none", self.intercept, self.whole)
            self.folds[f] = self.level * _sums(own.X @ model.middle().theta[0].T, own)
        return self.folds[f]

    @property
    def unit(self) -> float:
        """Of losses, whose squares could overflow."""
        return max(float(self(0).max()), 1e-290)

    @property
    def total(self) -> float:
        """Of all tasks."""
        return float(sum(self(f).sum() for f in range(FOLDS)))
