"""Whether a table is in the order of its columns or of y, where nothing tells drift from these."""

from __future__ import annotations

import numpy as np

from fmrl.core.losses import Squared
from fmrl.core.tasks import Tasks

FOLDS = 5  # of tasks, where a sum of columns is asked for their order
SORTED = 0.9  # of pairs of tasks: then a table is in the order of a column …
JOINT = 0.99  # … and of several columns, such as indicators of a season
EACH = 0.975  # of neighbours: then a table was sorted by y


def is_sorted(tasks: Tasks, cut: int, others: int = 0) -> bool:
    """Whether tasks are in the order of some column, so that drift could as well be that column:
    in nine of ten pairs of an earlier and a later task, the later one has more of it, or less; or
    in the order of a sum of columns, in 99 %, as one finds it from other tasks; or sorted by what
    is to be predicted, which neighbours tell from a trend. The last ``others`` columns are not the
    user's. Tasks from ``cut`` on are the later ones.
    """
    own = tasks.X[:, : tasks.X.shape[1] - others]
    mean = np.add.reduceat(own, tasks.starts[:-1], axis=0) / tasks.lengths[:, None]

    def later(values: np.ndarray) -> np.ndarray:
        """In how many pairs the later task has more, of values [T, columns]."""
        pairs = ((np.sort(column[:cut]), column[cut:]) for column in values.T)
        less = [[early.searchsorted(late, s) for s in ("left", "right")] for early, late in pairs]
        return np.mean(less, axis=(1, 2)) / cut

    when, fold = np.linspace(-1.0, 1.0, len(tasks)), np.arange(len(tasks)) % FOLDS
    off, joint = mean - mean.mean(axis=0), np.empty((len(tasks), 1))
    for f in range(FOLDS):
        some = off[fold != f]
        slopes = np.linalg.solve(some.T @ some + np.eye(off.shape[1]), some.T @ when[fold != f])
        joint[fold == f, 0] = off[fold == f] @ slopes
    by_one = (np.abs(later(mean) - 0.5) > SORTED - 0.5).any()
    return bool(by_one or later(joint)[0] > JOINT or _by_target(tasks))


def _by_target(tasks: Tasks) -> bool:
    """Whether tasks of a regression were sorted by their mean, or their rows by y, so that tasks
    are in the order of their least or greatest.
    """
    if not isinstance(tasks.loss, Squared):
        return False
    y, starts = tasks.target[:, 0], tasks.starts[:-1]
    levels = (
        np.add.reduceat(y, starts) / tasks.lengths,
        *(f.reduceat(y, starts) for f in (np.minimum, np.maximum)),
    )
    steps = np.sign(np.diff(levels, axis=1))
    told = (steps != 0).sum(axis=1)  # the least of counts or ratings is nearly always the same
    return bool((abs(steps.sum(axis=1)) > (2 * EACH - 1) * np.maximum(told, len(tasks) / 2)).any())
