"""What comes in: arrays and frames of any kind as NumPy, labels as positions, weights and task ids
checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight, validate_data

from fmrl.errors import FMRLError


def as_numpy(x: Any) -> Any:
    """Tensors as NumPy arrays; everything else as it is."""
    return x.detach().cpu().numpy() if hasattr(x, "detach") else x


def back(values: np.ndarray, like: Any) -> Any:
    """Numbers go back as the kind of array that came in; labels that are not numbers stay NumPy."""
    if not hasattr(like, "detach") or values.dtype.kind not in "fiub":
        return values
    import torch

    return torch.as_tensor(np.ascontiguousarray(values), device=like.device)


def read(model: Any, X: Any) -> np.ndarray:
    """Rows to predict, checked against what the model was fitted on."""
    return validate_data(model, as_numpy(X), dtype=np.float64, reset=False)


def positions(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The position of every label among the sorted ``classes``."""
    found = np.searchsorted(classes, y)
    wrong = np.asarray(classes[np.minimum(found, len(classes) - 1)] != y)
    if wrong.any():
        label, row = y[wrong.argmax()], int(wrong.argmax())
        raise FMRLError(
            f"row {row}: the label {label!r} is not one of the classes {classes.tolist()[:10]}",
            fix="name all classes in the first call: partial_fit(X, y, classes=…)",
        )
    return found


def weights(given: Any, X: np.ndarray) -> np.ndarray | None:
    """Sample weights [n], or None where there are none."""
    if given is None:
        return None
    weight = _check_sample_weight(given, X, dtype=np.float64, ensure_non_negative=True)
    return weight


def weighed(weight: np.ndarray | None, *columns: np.ndarray | None) -> tuple[Any, ...]:
    """Weights and columns without the rows of weight 0, which are not there."""
    if weight is None or weight.all():
        return (weight, *columns)
    kept = weight > 0
    return (weight[kept], *(None if c is None else c[kept] for c in columns))


def task_ids(task: Any, rows: int) -> np.ndarray | None:
    """Task ids [n] of any kind that can be sorted: numbers, text, dates."""
    if task is None:
        return None
    if isinstance(task, (list, tuple)) and len({isinstance(v, str) for v in task}) > 1:
        raise FMRLError("task ids are of different kinds", fix="convert them to text")
    ids = np.asarray(as_numpy(task))
    if ids.ndim != 1:
        raise FMRLError(
            f"task must hold one id for every row, not be of shape {ids.shape}",
            fix="give a vector of ids",
        )
    if len(ids) != rows:
        raise FMRLError(
            f"task has {len(ids)} ids but X has {rows} rows", fix="give the id of every row's task"
        )
    if ids.dtype.kind == "f" and np.isnan(ids).any():
        raise FMRLError(
            f"row {int(np.isnan(ids).argmax())} has no task id (NaN)",
            fix="drop it or name its task",
        )
    if ids.dtype == object:
        missing = [i for i, v in enumerate(ids) if v is None or v != v]
        if missing:
            raise FMRLError(f"row {missing[0]} has no task id", fix="drop it or name its task")
        if len({type(v) for v in ids}) > 1:
            raise FMRLError("task ids are of different kinds", fix="convert them to text")
    return ids
