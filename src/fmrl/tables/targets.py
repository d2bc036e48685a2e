"""What belongs to rows: their targets, tasks and weights, checked; and rows grouped by task."""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from sklearn.utils.validation import _check_sample_weight

from fmrl.core.losses import Loss
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError, warn
from fmrl.tables.kinds import gaps_in, is_gap

_NUMBER = (Real, Decimal, np.bool_)
ROUNDING_RANGE = 1e12  # of weights, rows and gradients: beyond, rounding loses what small ones say
USUAL_MEAN_WEIGHT = 0.8, 100.0  # outside, rows seem alike in all tasks, or drown what tasks share
MAX_SQUARED = 1e100  # larger numbers cannot be squared and summed
FEW_TASKS = 5  # fewer say next to nothing about how tasks differ


def as_numpy(x: Any) -> Any:
    """Tensors as NumPy arrays, masked values as gaps; everything else as it is.

    Args:
        x: Anything.

    >>> as_numpy(np.ma.array([1, 2], mask=[False, True]))
    array([ 1., nan])
    """
    if not isinstance(x, np.ma.MaskedArray):
        return x.detach().cpu().numpy() if hasattr(x, "detach") else x
    hidden, kind = np.ma.getmaskarray(x), x.dtype.kind
    if not hidden.any():
        return x.data
    found = x.data.astype(float if kind in "biuf" else x.dtype if kind in "Mmc" else object)
    found[hidden] = "NaT" if kind in "Mm" else np.nan
    return found


def single_column(task: Any) -> Any:
    """Ids of tasks as a vector [n], where they are the one column of a frame or an array.

    Args:
        task: Ids of any kind; what has no single column stays as it is.

    >>> single_column(np.array([["a"], ["b"]])).tolist()
    ['a', 'b']
    """
    shape = getattr(task, "shape", ())
    return np.asarray(as_numpy(task))[:, 0] if len(shape) == 2 and shape[1] == 1 else task


def refuse_overflow(z: np.ndarray, variance: np.ndarray | None) -> tuple[np.ndarray, Any]:
    """Margins and their variances, as given; an error that names the row where they overflow.

    Args:
        z: Margins [n, outputs].
        variance: Their variances [n, outputs], or None.

    >>> refuse_overflow(np.array([[1.0], [np.inf]]), None)
    Traceback (most recent call last):
        ...
    fmrl.errors.FMRLError: row 1 has numbers too large for an answer; scale X as in fit
    """
    good = np.isfinite(z if variance is None else z + variance)
    if not good.all():
        what = f"row {int(good.all(axis=-1).argmin())} has numbers too large for an answer"
        raise FMRLError(what, fix="scale X as in fit")
    return z, variance


def check_targets(y: Any, numeric: bool, task: Any = None) -> Any:
    """Targets as NumPy has them, checked: none is missing, and those of a regression are finite
    numbers. The first that is not is named, by its row and its task.

    Args:
        y: Labels or numbers [n].
        numeric: Whether they must be numbers.
        task: The ids of their tasks [n], or the name of the one task they are of.
    """
    if isinstance(y, str):
        what = f"y is the text {y!r}, and not the target of every row"
        raise FMRLError(what, fix=f"give the column: y=table[{y!r}], and leave it out of X")
    y = as_numpy(y)
    found = np.asarray(y)
    shape = found.shape
    found = found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found
    kind = found.dtype.kind
    if found.ndim != 1 or kind in ("biuc" if numeric else "biucUS"):
        return found.reshape(shape) if found.ndim == 1 else y
    if kind == "f":
        wrong = ~np.isfinite(found)
    elif numeric:
        wrong = np.array([kind != "O" or not _is_number(v) for v in found.tolist()], dtype=bool)
    else:
        wrong = gaps_in(found)
    if not wrong.any():
        return _of_one_kind(found).reshape(shape)
    row = int(wrong.argmax())
    value = found[row].item() if kind in "US" else found[row]
    ids = np.asarray(as_numpy(single_column(task)))
    name = ids[row : row + 1].tolist()[0] if ids.shape == found.shape else task
    where = f"y of row {row}" + ("" if task is None else f" (task {name!r})")
    if is_gap(value):
        raise FMRLError(f"{where} is missing", fix="drop the row, or fill it in")
    if isinstance(value, _NUMBER):
        raise FMRLError(f"{where} is {value}", fix="give finite numbers")
    what = f"{where} is {str(value)!r} ({type(value).__name__}), and a regressor predicts numbers"
    raise FMRLError(what, fix="convert y to numbers, or use MetaClassifier for classes")


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBER) and not is_gap(value) and math.isfinite(value)


def _of_one_kind(y: np.ndarray) -> np.ndarray:
    """Truth values and whole numbers that came as objects, such as pandas' own kinds: scikit-learn
    would refuse them, or make real numbers of them.
    """
    kinds = {type(v) for v in y.tolist()} if y.dtype == object else set()
    plain = len(kinds) == 1 and issubclass(kinds.pop(), (bool, int, np.bool_, np.integer))
    return np.array(y.tolist()) if plain else y


def warn_of_few_tasks(ids: np.ndarray) -> None:
    """Warn where there are too few tasks to tell how tasks differ.

    Args:
        ids: The task of every row [n].
    """
    found = len(np.unique(ids))
    if found == 1:
        warn("all rows are of one task: how tasks differ cannot be learned from it")
    elif found < FEW_TASKS:
        warn(f"{found} tasks say next to nothing about how tasks differ, by which a new task is "
             "adapted: give more tasks, or trust no interval")  # fmt: skip


def to_input_kind(values: np.ndarray, like: Any) -> Any:
    """Answers as the kind of array that the rows were: a tensor for tensors, on their device.

    Args:
        values: Answers [n, …]; labels that are not numbers stay as they are.
        like: The rows that were given.

    >>> to_input_kind(np.array([1.0]), like=[[2.0]])
    array([1.])
    """
    if not hasattr(like, "detach") or values.dtype.kind not in "fiub":
        return values
    return array_namespace(like).asarray(np.ascontiguousarray(values), device=like.device)


def class_positions(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The position of every label among the classes, [n]; the first that is none of them is named.

    Args:
        y: Labels [n].
        classes: All labels, sorted.

    >>> class_positions(np.array(["no", "yes", "no"]), np.array(["no", "yes"])).tolist()
    [0, 1, 0]
    """
    try:
        found = np.searchsorted(classes, y)
        wrong = np.asarray(classes[np.minimum(found, len(classes) - 1)] != y)
    except TypeError:  # labels of another kind, which cannot be sorted among these
        found, known = None, set(classes.tolist())
        wrong = np.array([label not in known for label in y.tolist()])
    if wrong.any():
        row = int(wrong.argmax())
        label = y[row].item() if hasattr(y[row], "item") else y[row]
        raise FMRLError(
            f"row {row}: the label {label!r} is not one of the classes {classes.tolist()[:10]}",
            fix="learn from rows that have it, or name it in classes= of the first partial_fit",
        )
    return found


def check_weights(given: Any, X: np.ndarray) -> np.ndarray | None:
    """Sample weights [n], finite, not negative and of a range that rounding leaves whole.

    Args:
        given: The weights [n], one number for all, or None for none.
        X: The rows they belong to.

    >>> check_weights([1, 3], np.zeros((2, 1))).tolist()
    [1.0, 3.0]
    """
    if given is None or not (len(X) or np.size(as_numpy(given))):
        return None
    found = _check_sample_weight(as_numpy(given), X, dtype=np.float64, ensure_non_negative=True)
    if not found.any():  # newer versions of scikit-learn say so themselves
        raise FMRLError("sample weights must contain at least one non-zero number")
    low, high = found[found > 0].min(), found.max()
    if not high <= ROUNDING_RANGE:
        fix = "divide all of them by their mean"
        raise FMRLError(f"a sample weight is {high:g}, above {ROUNDING_RANGE:g}", fix=fix)
    if high > ROUNDING_RANGE * low:
        what = f"sample weights reach from {low:g} to {high:g}"
        raise FMRLError(what, fix=f"make 0 of those below 1/{ROUNDING_RANGE:g} of the largest")
    return found


def refuse_huge(*given: np.ndarray) -> None:
    """Refuse rows and targets whose squares would overflow.

    Args:
        given: Arrays of any shape; those that are no real numbers are not looked at.

    >>> refuse_huge(np.array([1e120]))
    Traceback (most recent call last):
        ...
    fmrl.errors.FMRLError: a number is beyond 1e+100; scale X and y as in fit
    """
    if any(a.size and a.dtype.kind == "f" and np.abs(a).max() > MAX_SQUARED for a in given):
        raise FMRLError(f"a number is beyond {MAX_SQUARED:g}", fix="scale X and y as in fit")


def warn_of_weights(weight: np.ndarray | None) -> None:
    """Warn where rows count as far fewer or far more than they are.

    Args:
        weight: Their weights [n], or None.
    """
    if weight is not None and not USUAL_MEAN_WEIGHT[0] <= weight.mean() <= USUAL_MEAN_WEIGHT[1]:
        warn(f"{len(weight):,} rows count as {weight.sum():,.3g}, the sum of their sample_weight: "
             "scale the weights to an average of 1 unless that is meant")  # fmt: skip


def drop_zero_weight(weight: np.ndarray | None, *columns: np.ndarray | None) -> tuple[Any, ...]:
    """Weights and columns without the rows of weight 0, which do not count.

    Args:
        weight: Of every row [n], or None: then nothing is left out.
        columns: What belongs to the rows [n, …]; None stays None.

    >>> [a.tolist() for a in drop_zero_weight(np.array([1.0, 0.0]), np.array([5.0, 6.0]))]
    [[1.0], [5.0]]
    """
    if weight is None or weight.all():
        return (weight, *columns)
    kept = weight > 0
    return (weight[kept], *(None if c is None else c[kept] for c in columns))


def encode_targets(y: np.ndarray, loss: Loss) -> np.ndarray:
    """Targets as the core has them, [n, outputs]: numbers, 0 or 1 for two classes, or a 1 in the
    column of the class.

    Args:
        y: Positions of classes, or numbers, [n].
        loss: Of the tasks.

    >>> from fmrl.core.losses import OneVsAll
    >>> encode_targets(np.array([2, 0]), OneVsAll(3)).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    y = y[:, None]
    return (y == np.arange(loss.outputs)).astype(float) if loss.outputs > 1 else y.astype(float)


def group_by_task(
    loss: Loss, X: np.ndarray, y: np.ndarray, weight: np.ndarray | None, ids: np.ndarray | None
) -> Tasks:
    """Rows grouped by task; tasks in the order in which they first appear, rows of a task in
    theirs.

    Args:
        loss: Of the tasks.
        X: Rows [n, f].
        y: Positions of classes, or numbers, [n].
        weight: Of every row [n], or None.
        ids: The task of every row [n]; None for a single one without a name.

    >>> from fmrl.core.losses import Squared
    >>> ids = np.array(["b", "a", "b", "a"])
    >>> tasks = group_by_task(Squared(), np.arange(4.0)[:, None], np.zeros(4), None, ids)
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
    return Tasks(loss, X, encode_targets(y, loss), starts, names, weight, heaviest)


def task_ids(task: Any, rows: int) -> np.ndarray | None:
    """Task ids [n] of any kind that can be sorted: numbers, text, dates. A gap is named by its row.

    Args:
        task: The ids, or None.
        rows: How many there must be.

    >>> task_ids(["a", "b"], 2).tolist()
    ['a', 'b']
    """
    if task is None:
        return None
    if isinstance(task, list | tuple) and 0 < sum(isinstance(v, str) for v in task) < len(task):
        task = np.fromiter(task, dtype=object, count=len(task))  # NumPy would make text of them all
    ids = np.asarray(as_numpy(single_column(task)))
    if ids.ndim != 1:
        what = f"task must hold one id for every row, not be of shape {ids.shape}"
        raise FMRLError(what, fix="join the keys into one name: [f'{a} {b}' for a, b in task]")
    if len(ids) != rows:
        what = f"task has {len(ids)} ids but X has {rows} rows"
        fix = "give the id of every row's task, or the name of one column that holds it"
        raise FMRLError(what, fix=fix)
    if ids.dtype.kind not in "biuSU" and (gaps := gaps_in(ids)).any():
        raise FMRLError(f"row {gaps.argmax()} has no task id", fix="drop it or name its task")
    if ids.dtype == object and len(set(map(type, ids))) > 1:
        what = "task ids are of different kinds"
        raise FMRLError(what, fix="give text or numbers, as in fit")
    return ids
