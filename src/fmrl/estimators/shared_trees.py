"""What all tasks share, where it is not linear: boosted trees, or any scikit-learn model, whose
answer is one more column.

A model is fitted to the rows of all tasks together; its answer g(x), a number or the log-odds of
each class, becomes a column beside the user's, and tasks then differ linearly around it. So that
the column is honest, the rows of a task get the answer of a model that was fitted without that
task's fold.

The models without each fold and the one of all rows are grown side by side, split by split: their
histograms are one sparse product. They stop together, where tasks that were held out lose least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit
from sklearn.base import clone, is_classifier, is_regressor

from fmrl.core.losses import Squared
from fmrl.core.prior.mixture_fit import fit_family
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError, warn
from fmrl.estimators.averaging import loss_and_slope
from fmrl.estimators.coordinates import Coordinates
from fmrl.estimators.sampling import evenly_spaced, fold_of_tasks

FOLDS = 6  # of tasks, each answered by trees of the others
MIN_ROWS, MIN_TASKS = 60, 6  # below, "auto" does not try trees
MAX_ROWS = 20_000  # that trees are grown from, evenly spaced
MIN_GAIN = 0.005  # share of a linear model's loss that its average with trees must save
# With so many rows, so many steps from a linear model must save this share of its loss; else trees,
# which take seconds to grow, are not grown.
GLANCE_ROWS, GLANCE_STEPS, GLANCE_GAIN = 4000, 4, 0.001
HOPELESS_GAIN = -0.02  # of that average, below which no deeper trees are tried
MAX_LOG_ODDS = 8.0  # answers beyond are cut: a leaf of one class is not certain of it
BINS = 64  # of a column, at most, between which trees split
DEPTHS = (2, 3, 4)  # questions from root to leaf; deeper ones are tried as long as they are better
STEPS, PATIENCE = 150, 10  # trees of an output, at most; so many that are no better end the growth
LEARNING_RATE, RIDGE = 0.2, 1.0  # how much of a leaf's step is taken; rows' worth of no step

Answer = Any  # `Trees` or `Column`: called, they give rows [n, f] their columns [n, k]


@dataclass(frozen=True, eq=False)
class Trees:
    """A sum of regression trees of one depth for every output.

    Args:
        feature: Which column a node asks about, [steps, outputs, 2^depth − 1], level by level.
        threshold: Rows above this go right; as ``feature``.
        value: What a leaf adds, [steps, outputs, 2^depth].
        base: What every output begins with, [outputs].
        limit: Answers beyond ± this are cut.
    """

    feature: np.ndarray
    threshold: np.ndarray
    value: np.ndarray
    base: np.ndarray
    limit: float = math.inf

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Their answers [n, outputs] to rows X [n, f]."""
        steps, outputs, leaves = self.value.shape
        out, trees, nodes = np.empty((len(X), outputs)), steps * outputs, leaves - 1
        # All nodes in one row, where `take` finds them several times as fast as two indices do.
        feature, threshold, value = (a.ravel() for a in (self.feature, self.threshold, self.value))
        roots, most = np.arange(trees) * nodes, max(1, (1 << 17) // max(trees, 1))
        for first in range(0, len(X), most):  # so many rows that their places stay in cache
            rows = X[first : first + most]
            numbers, row = rows.ravel(), (np.arange(len(rows)) * X.shape[1])[:, None]
            at = np.tile(roots, (len(rows), 1))
            for _ in range(leaves.bit_length() - 1):
                high = numbers.take(feature.take(at) + row) > threshold.take(at)
                at = 2 * at - roots + 1 + high
            said = value.take(at + np.arange(trees) - nodes)  # a tree has one leaf more than nodes
            out[first : first + most] = said.reshape(len(rows), steps, outputs).sum(axis=1)
        return np.clip(self.base + out, -self.limit, self.limit)


@dataclass(frozen=True, eq=False)
class Column:
    """A fitted scikit-learn model as a column: predictions, or log-odds of each class."""

    model: Any

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Its answers [n, k] to rows X [n, f]."""
        if not is_classifier(self.model):
            return np.asarray(self.model.predict(X), dtype=float).reshape(len(X), 1)
        p = np.clip(self.model.predict_proba(X), 1e-12, 1 - 1e-12)
        odds = np.clip(np.log(p) - np.log1p(-p), -MAX_LOG_ODDS, MAX_LOG_ODDS)
        return odds[:, 1:] if odds.shape[1] == 2 else odds


class _Binned:
    """Rows by the bins of their columns, from which trees are grown.

    Args:
        X: Rows [n, f].
        weight: How much each row counts for each of M models, [n, M]; the last sees all rows.
    """

    def __init__(self, X: np.ndarray, weight: np.ndarray):
        cuts = [_cuts(column) for column in X.T]
        ends = np.cumsum([len(cut) + 1 for cut in cuts])  # bins of all columns stand in a row
        self.edges = np.concatenate([np.append(cut, np.inf) for cut in cuts])
        self.feature = np.repeat(np.arange(len(cuts)), np.diff(ends, prepend=0))
        self.is_last = np.isinf(self.edges)[:, None, None]
        bins = [np.searchsorted(cut, x) for cut, x in zip(cuts, X.T, strict=True)]
        self.bins = np.stack(bins, axis=1) + np.append(0, ends[:-1])
        n, M = weight.shape
        pointers = np.arange(0, self.bins.size + 1, len(cuts))
        ones = np.ones(self.bins.size)
        holds = csr_array((ones, self.bins.ravel(), pointers), shape=(n, len(self.edges)))
        self.holds = holds.T.tocsr()  # [bins, n] whether a row is in a bin
        self.weight, self.least = weight, float(np.clip(weight[:, -1].sum() // 40, 3, 20))
        self.rows, self.models = np.arange(n)[:, None] * len(cuts), np.arange(M)

    def split(self, pull: np.ndarray, depth: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """One tree for each model: in which leaf each row ends [n, M], and at the end of which bin
        each node splits, [M, nodes] for every level.

        Args:
            pull: Minus the slopes of the losses, weighted, [n, M].
            depth: Of the trees.
        """
        told, node = np.stack([pull, self.weight], axis=-1), np.zeros(pull.shape, dtype=np.intp)
        found: list[np.ndarray] = []
        sums = self._sums(told[:, :, None])  # [bins, M, nodes, 2]
        for level in range(depth):
            if level:
                even = node[..., None] == np.arange(0, 2**level, 2)
                left = self._sums(np.where(even[..., None], told[:, :, None], 0.0))
                sums = np.stack([left, sums - left], axis=3).reshape(
                    len(sums), *left.shape[1:2], -1, 2
                )
            total = sums[self.feature == 0].sum(axis=0)
            left = sums.cumsum(axis=0) - self.feature[:, None, None, None] * total
            right = total - left
            gain = sum(s[..., 0] ** 2 / (s[..., 1] + RIDGE) for s in (left, right))
            few = np.minimum(left[..., 1], right[..., 1]) < self.least
            # The last bin of a column ends no split: all rows go left, the gain is what it was.
            gain = np.where(self.is_last, gain * (1 + 1e-9), np.where(few, 0.0, gain))
            end = gain.argmax(axis=0)
            found.append(end)
            at = end[self.models, node]
            node = 2 * node + (self.bins.take(self.rows + self.feature[at]) > at)
        return node, found

    def _sums(self, told: np.ndarray) -> np.ndarray:
        return (self.holds @ told.reshape(len(told), -1)).reshape(-1, *told.shape[1:])


def _cuts(column: np.ndarray) -> np.ndarray:
    """Between which values of a column trees may split."""
    values = np.unique(column)
    if len(values) <= BINS:
        return values[:-1] / 2 + values[1:] / 2
    shares = np.linspace(0, 100, BINS + 1)[1:-1]
    return np.unique(np.percentile(column, shares, method="averaged_inverted_cdf"))


def grow(
    X: np.ndarray, target: np.ndarray, weight: np.ndarray, fold: np.ndarray, depth: int,
    squared: bool, start: np.ndarray | None = None, most: int = STEPS,
) -> tuple[float, np.ndarray, list[Trees]]:  # fmt: skip
    """Boosted trees without each fold, and of all rows: the loss of rows under the trees without
    their fold, what these say of them [n, outputs], and the trees, those of all rows last.

    Args:
        X: Rows [n, f].
        target: [n, outputs].
        weight: How much each row counts, [n].
        fold: Of each row, [n].
        depth: Of the trees.
        squared: Whether the loss is; else targets are 1 or 0.
        start: Margins [n, outputs] to begin with (default: the mean of the target).
        most: Steps.
    """
    M, outputs, own = int(fold.max()) + 2, target.shape[1], (np.arange(len(X)), fold)
    counts = weight[:, None] * (fold[:, None] != np.arange(M))
    base = (counts.T @ target) / counts.sum(axis=0)[:, None]  # [M, outputs]
    limit = math.inf if squared else MAX_LOG_ODDS
    if not squared:
        with np.errstate(divide="ignore"):
            base = np.clip(np.log(base) - np.log1p(-base), -limit, limit)
    F, binned, grown = np.tile(base, (len(X), 1, 1)), _Binned(X, counts), []
    if start is not None:
        F[:] = start[:, None]
    best, steps, said = math.inf, 0, F[own]
    for step in range(most + 1):
        held = np.clip(F[own], -limit, limit)
        loss = float(weight @ loss_and_slope(held, target, squared)[0])
        if loss < best:
            best, steps, said = loss, step, held
        if step == most or step - steps >= PATIENCE:
            break
        p = F if squared else expit(F)
        pull = counts[..., None] * (target[:, None] - p)
        bend = counts[..., None] * (np.ones_like(p) if squared else p * (1 - p))
        for k in range(outputs):
            leaf, ends = binned.split(pull[..., k], depth)
            key = (leaf + 2**depth * np.arange(M)).ravel()
            up, down = (
                np.bincount(key, a[..., k].ravel(), M * 2**depth).reshape(M, -1)
                for a in (pull, bend)
            )
            value = LEARNING_RATE * up / (down + RIDGE)
            F[..., k] += value[np.arange(M), leaf]
            grown.append((np.concatenate(ends, axis=1), value))
    ends, values = (
        np.stack(a).reshape(-1, outputs, *a[0].shape)[:steps] for a in zip(*grown, strict=True)
    )
    trees = [
        Trees(binned.feature[e], binned.edges[e], v, b, limit)
        for e, v, b in zip(*(np.moveaxis(a, 2, 0) for a in (ends, values)), base, strict=True)
    ]
    return best, said, trees


def cross_fit_trees(
    tasks: Tasks, fold: np.ndarray, linear: np.ndarray
) -> tuple[np.ndarray, Trees] | None:
    """What trees without a task's fold say of its rows, [n, outputs], and the trees of all rows;
    None where a linear model gains nothing from them. Deeper ones are tried as long as they are
    better.

    Args:
        tasks: Rows in the user's units, numbers to be predicted of deviation 1.
        fold: Of every row.
        linear: What linear models of the other folds say of the rows, [n, outputs].
    """
    squared, some = isinstance(tasks.loss, Squared), evenly_spaced(len(fold), MAX_ROWS)
    weight = np.ones(len(some)) if tasks.weight is None else np.asarray(tasks.weight)[some]
    X, target, fold_of_some, linear = tasks.X[some], tasks.target[some], fold[some], linear[some]

    def loss_of(margins: np.ndarray) -> float:
        return float(weight @ loss_and_slope(margins, target, squared)[0])

    best, alone, gain = math.inf, loss_of(linear), 0.0
    if len(X) >= GLANCE_ROWS:
        given = X, target, weight, fold_of_some, DEPTHS[-1], squared
        if 1 - grow(*given, start=linear, most=GLANCE_STEPS)[0] / alone < GLANCE_GAIN:
            return None
    said, trees = linear, list[Trees]()
    for depth in DEPTHS:
        loss, *found = grow(X, target, weight, fold_of_some, depth, squared)
        if loss >= best:
            break
        best, (said, trees) = loss, found
        gain = 1 - loss_of((linear + said) / 2) / alone
        if gain < HOPELESS_GAIN:
            break
    if gain < MIN_GAIN or not len(trees[-1].value):
        return None
    if len(some) < len(fold):
        said = np.empty((len(fold), said.shape[1]))
        for f, one in enumerate(trees[:-1]):
            said[fold == f] = one(tasks.X[fold == f])
    return said, trees[-1]


def cross_fit_model(
    model: Any, tasks: Tasks, fold: np.ndarray, classes: int
) -> tuple[np.ndarray, Column] | None:
    """The same of a scikit-learn model; None where some fold leaves a class out."""
    y = tasks.target.argmax(axis=1) if tasks.target.shape[1] > 1 else tasks.target[:, 0]
    y = y.astype(int) if classes else y

    def fitted(rows: np.ndarray) -> Column:
        more = {} if tasks.weight is None else {"sample_weight": tasks.weight[rows]}
        return Column(clone(model).fit(tasks.X[rows], y[rows], **more))

    said = np.empty(tasks.target.shape)
    for f in range(int(fold.max()) + 1):
        if classes and len(np.unique(y[fold != f])) < classes:
            return None
        said[fold == f] = fitted(fold != f)(tasks.X[fold == f])
    return said, fitted(fold >= 0)


def cross_fit_linear(tasks: Tasks, fold: np.ndarray, intercept: bool) -> np.ndarray:
    """What one linear model of the other folds says of each row, [n, outputs].

    Args:
        tasks: In coordinates of deviation 1.
        fold: Of every task.
        intercept: Whether the last column is one.
    """
    # Newton's method ends in the same place from anywhere, so all begin where all tasks end.
    whole = None if isinstance(tasks.loss, Squared) else fit_family(tasks, "none", intercept)
    said, by_row = np.empty(tasks.target.shape), np.repeat(fold, tasks.lengths)
    for f in range(int(fold.max()) + 1):
        model = fit_family(tasks.take(np.flatnonzero(fold != f)), "none", intercept, whole)
        said[by_row == f] = tasks.X[by_row == f] @ model.middle().theta[0].T
    return said


def add_shared_column(
    tasks: Tasks, here: Coordinates, common: Any, classes: np.ndarray | None, seed: int
) -> tuple[Tasks, Coordinates, Answer | None]:
    """Tasks with the columns of a model that all share, coordinates for them, and that model; as
    they are, where there is none or trees see nothing to explain.

    Args:
        tasks: In the user's units.
        here: Coordinates of their columns.
        common: "auto", "linear" or an estimator.
        classes: The labels; None for a regression.
        seed: Of the folds.
    """
    auto, count = isinstance(common, str), 0 if classes is None else len(classes)
    if auto and common == "linear":
        return tasks, here, None
    fits = hasattr(common, "fit") and hasattr(common, "__sklearn_tags__")
    if (
        common != "auto"
        if auto
        else not (fits and (is_classifier if count else is_regressor)(common))
    ):
        kind = "classifier" if count else "regressor"
        what = f"common must be 'auto', 'linear' or a scikit-learn {kind}, not {common!r}"
        raise FMRLError(what)
    least = MIN_TASKS if auto else FOLDS
    if count == 1 or len(tasks) < least or here.basis is not None:
        return tasks, here, None
    if auto and tasks.mass.sum() < MIN_ROWS:
        return tasks, here, None
    by_task = fold_of_tasks(len(tasks), FOLDS, seed)
    fold = np.repeat(by_task, tasks.lengths)
    if auto:
        even = here.tasks(tasks)
        linear = cross_fit_linear(even, by_task, here.constant > 0)
        found = cross_fit_trees(replace(even, X=tasks.X), fold, linear)
    else:
        found = cross_fit_model(common, tasks, fold, count)
    if found is None:
        return tasks, here, None
    g, answer = found
    if hasattr(getattr(answer, "model", None), "coef_"):
        warn(
            "common= is linear itself, and coef_ shows only the rest: common='linear' does without"
        )
    weight = tasks.weight
    centre = np.average(g, axis=0, weights=weight) if here.constant else np.zeros(g.shape[1])
    spread = np.sqrt(np.average((g - centre) ** 2, axis=0, weights=weight))
    scale = np.where(spread > 0, spread, 1.0)
    wide = replace(here, centre=np.append(here.centre, centre), scale=np.append(here.scale, scale))
    return replace(tasks, X=np.hstack([tasks.X, g])), wide, answer
