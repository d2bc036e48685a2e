"""What comes in: arrays and frames of any kind as NumPy, labels as positions, rows grouped by
task.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from fmrl.core.losses import Loss
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError
from fmrl.estimators.encoding import as_numpy

LARGE = 1e100  # of a weight: what is multiplied by more could overflow


def back(values: np.ndarray, like: Any) -> Any:
    """Numbers go back as the kind of array that came in; labels that are not numbers stay NumPy."""
    if not hasattr(like, "detach") or values.dtype.kind not in "fiub":
        return values
    import torch

    return torch.as_tensor(np.ascontiguousarray(values), device=like.device)


def positions(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The position of every label among the sorted ``classes``."""
    found = np.searchsorted(classes, y)
    wrong = np.asarray(classes[np.minimum(found, len(classes) - 1)] != y)
    if wrong.any():
        row = int(wrong.argmax())
        label = y[row].item() if hasattr(y[row], "item") else y[row]
        raise FMRLError(
            f"row {row}: the label {label!r} is not one of the classes {classes.tolist()[:10]}",
            fix="learn from rows that have it, or name it in classes= of the first partial_fit",
        )
    return found


def weights(given: Any, X: np.ndarray) -> np.ndarray | None:
    """Sample weights [n], or None where there are none."""
    if given is None:
        return None
    found = _check_sample_weight(given, X, dtype=np.float64, ensure_non_negative=True)
    if not found.any():  # newer versions of scikit-learn say so themselves
        raise FMRLError("sample weights must contain at least one non-zero number")
    if found.max() > LARGE:
        raise FMRLError(
            f"a sample weight is above {LARGE:g}", fix="divide all of them by the largest"
        )
    return found


def weighed(weight: np.ndarray | None, *columns: np.ndarray | None) -> tuple[Any, ...]:
    """Weights and columns without the rows of weight 0, which do not count."""
    if weight is None or weight.all():
        return (weight, *columns)
    kept = weight > 0
    return (weight[kept], *(None if c is None else c[kept] for c in columns))


def encode(y: np.ndarray, loss: Loss) -> np.ndarray:
    """Targets [n, outputs] of class positions, or of numbers."""
    y = y[:, None]
    return (y == np.arange(loss.outputs)).astype(float) if loss.outputs > 1 else y.astype(float)


def grouped(
    loss: Loss, X: np.ndarray, y: np.ndarray, weight: np.ndarray | None, ids: np.ndarray | None
) -> Tasks:
    """Rows grouped by task; tasks in the order in which they first appear, rows of a task in
    theirs.

    >>> from fmrl.core.losses import Squared
    >>> ids = np.array(["b", "a", "b", "a"])
    >>> tasks = grouped(Squared(), np.arange(4.0)[:, None], np.zeros(4), None, ids)
    >>> tasks.names, tasks.X.ravel().tolist(), tasks.starts.tolist()
    (['b', 'a'], [0.0, 2.0, 1.0, 3.0], [0, 2, 4])
    """
    names, starts = [None], np.array([0, len(y)])
    if ids is not None:
        found, first, which, sizes = np.unique(
            ids, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first, kind="stable")  # tasks by first appearance
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        which, sizes, names = place[which.ravel()], sizes[order], found[order].tolist()
        if (np.diff(which) < 0).any():
            rows = np.argsort(which, kind="stable")
            X, y, weight = X[rows], y[rows], None if weight is None else weight[rows]
        starts = np.concatenate([[0], np.cumsum(sizes)])
    heaviest = 1.0 if weight is None else float(weight.max())
    return Tasks(loss, X, encode(y, loss), starts, names, weight, heaviest)


def task_ids(task: Any, rows: int) -> np.ndarray | None:
    """Task ids [n] of any kind that can be sorted: numbers, text, dates."""
    if task is None:
        return None
    if isinstance(task, (list, tuple)) and len({isinstance(v, str) for v in task}) > 1:
        raise FMRLError("task ids are of different kinds", fix="convert them to text")
    ids = np.asarray(as_numpy(task))
    if ids.ndim != 1:
        what = f"task must hold one id for every row, not be of shape {ids.shape}"
        raise FMRLError(what, fix="give a vector of ids")
    if len(ids) != rows:
        what = f"task has {len(ids)} ids but X has {rows} rows"
        raise FMRLError(what, fix="give the id of every row's task")
    plain = ids.dtype != object
    missing = np.isnan(ids) if ids.dtype.kind == "f" else np.zeros(len(ids), bool)
    missing = missing if plain else np.array([v is None or v != v for v in ids])
    if missing.any():
        what = f"row {int(missing.argmax())} has no task id"
        raise FMRLError(what, fix="drop it or name its task")
    if not plain and len({type(v) for v in ids}) > 1:
        raise FMRLError("task ids are of different kinds", fix="convert them to text")
    return ids
