"""The boundary of the estimators: rows of any kind become numbers here, and nowhere behind.

A frame of any library, an array, a list of rows or of mappings, a tensor: all are turned into one
array of numbers or one polars frame, checked once, and encoded as the command line does. Numbers
without gaps stay as they are, bit for bit. Text becomes a column a level, a gap the mean of the
training rows (and a column that says so, where training rows had gaps), a date a number.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from scipy.sparse import issparse
from sklearn.utils import check_array, check_X_y
from sklearn.utils.validation import _num_samples, validate_data

from fmrl.errors import FMRLError, warn
from fmrl.tables.any_table import (
    as_polars,
    from_array,
    from_objects,
    from_records,
    in_memory,
    no_column_error,
)
from fmrl.tables.encoder import Column, Encoder, Policy, fit_encoder
from fmrl.tables.features import add_features
from fmrl.tables.kinds import MIN_ID_ROWS, TEXT, is_gap, looks_like_id, warn_of_classes
from fmrl.tables.targets import (
    as_numpy,
    check_targets,
    single_column,
    task_ids,
    warn_of_few_tasks,
)

POLICY = Policy(missing="impute")
_NO_TARGETS = object()  # where rows are predicted
_NOT_NUMBERS = (str, datetime.date, datetime.time, datetime.timedelta)
_NOT_NUMBERS += (np.datetime64, np.timedelta64)


def split_task(X: Any, task: Any, known: str | None = None, *, one: bool = False) -> Any:
    """Separate the column that names the tasks of rows from the rows.

    Args:
        X: Rows of any kind.
        task: Ids, or the name of a column of X.
        known: The column that names tasks where ``task`` does not: that of `fit`, or of the
            estimator's ``task=``.
        one: All rows are of one task, and ``task`` may also be its name.

    Returns:
        X without the column, the ids (for ``one``: the id), and the name of the column or None.

    >>> rows = pl.DataFrame({"shop": ["a", "b"], "price": [1.0, 2.0]})
    >>> X, ids, name = split_task(rows, "shop")
    >>> X.columns, ids.tolist(), name
    (['price'], ['a', 'b'], 'shop')
    """
    X, task = _normalise_rows(X), single_column(task)
    if known is None and not isinstance(task, str):
        return X, task, None
    columns = column_names(X)
    named = isinstance(task, str) and (task in columns or not one)
    if named and not columns:
        what = f"task={task!r} names a column, and X has no names"
        raise FMRLError(what, fix="give a data frame, or the id of every row's task")
    if named and task not in columns:
        raise no_column_error(task, map(str, columns))
    name = task if named else known
    if name not in columns:
        return X, task, None
    if _is_records(X):
        ids, X = [row.get(name) for row in X], [{k: row[k] for k in row if k != name} for row in X]
    else:
        pandas = not isinstance(X, pl.DataFrame)
        ids, X = X[name].to_numpy(), X.drop(columns=[name]) if pandas else X.drop(name)
    if not named and task is not None:
        return X, task, name
    if not one:
        return X, ids, name
    found = dict.fromkeys(task_ids(ids, _num_samples(X)).tolist())  # type: ignore[union-attr]
    if len(found) > 1:
        what = f"these are rows of several tasks: column {name!r} names {len(found)} tasks"
        raise FMRLError(what, fix="give the rows of one, or all to adapt_many, update or fit")
    return X, next(iter(found), None), name


def validate_fit(
    model: Any, X: Any, y: Any, task: Any = None, *, reset: bool, learn: bool | None = None,
    one: bool = False, **options: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Rows as numbers [n, f], targets [n] and task ids [n], all checked.

    Args:
        model: Whose features they must have.
        X: Rows of any kind.
        y: Their targets.
        task: Ids, or the name of a column of X (default: that of the model's parameter ``task``).
        reset: Whether the model begins here, so that its features are these.
        learn: Whether to learn the encoding from these rows, into ``encoder_`` (default: reset).
        one: All rows are of one task, and ``task`` may also be its name.
        options: For scikit-learn's check of X and y.
    """
    learn = reset if learn is None else learn
    numeric = options.get("y_numeric", False)
    named = isinstance(task, str) and not one
    if not learn and not named and is_plain_array(model, X):
        found = check_targets(y, numeric, task)
        if getattr(found, "shape", None) == (len(X),):
            return X, found, task
    encoder = None if learn else getattr(model, "encoder_", None)
    if learn and task is None and isinstance(default := getattr(model, "task", None), str):
        task = default
    X, task, column = split_task(X, task, encoder.task if encoder else None, one=one)
    if learn and not one and task is None:
        warn("fit without task= takes all rows as one task and learns nothing across tasks")
    if learn and column is not None and not column_names(X):
        fix = "give another column; one of zeros makes models of an intercept alone"
        raise FMRLError(f"there is no feature beside the task {column!r}", fix=fix)
    if options.get("ensure_min_samples") and getattr(X, "shape", ())[:1] == (0,):
        raise FMRLError("there are no rows", fix="give at least one")
    y = check_targets(y, numeric, task)
    table, y = _table(model, X, y, reset, encoder, options)
    if isinstance(table, np.ndarray):
        rows, found = table, _plain_encoder(model, table, column) if learn else encoder
    else:
        found = _learn_encoder(table, column) if learn else encoder
        found = found or Encoder(tuple(map(Column, table.columns)))
        rows, y = check_X_y(found.encode(table), y, estimator=model, **options)
    if learn:
        ids = None if one else task_ids(task, len(rows))
        model.encoder_ = found = add_features(found, model.features, rows, y)
        if ids is not None:
            warn_of_few_tasks(ids)
        if not (one or numeric):
            warn_of_classes(list(dict.fromkeys(y.tolist())))
        if not one and isinstance(table, pl.DataFrame):
            _warn_of_columns(table, ids, y)
    return found.expand(rows) if found else rows, y, task


def is_plain_array(model: Any, X: Any) -> bool:
    """Whether rows are what reading them would give: finite numbers without names, as in fit.

    A service asks for one row at a time, and scikit-learn's checks cost more than the answer.

    Args:
        model: Whose features they must have.
        X: Rows of any kind.
    """
    encoder = getattr(model, "encoder_", None)
    return (
        type(X) is np.ndarray
        and X.dtype == np.float64
        and X.ndim == 2
        and len(X) > 0
        and encoder is not None
        and encoder.plain
        and X.shape[1] == len(encoder.columns)
        and not hasattr(model, "feature_names_in_")
        and bool(np.isfinite(X).all())
    )


def read_rows(model: Any, X: Any) -> np.ndarray:
    """Rows to predict as numbers [n, f], checked against what the model was fitted on.

    Args:
        model: A fitted estimator, or the model of a task.
        X: Rows of any kind.
    """
    if is_plain_array(model, X):
        return X
    encoder = getattr(model, "encoder_", None)
    X, ids, column = split_task(X, None, encoder.task if encoder else None)
    own = vars(model).get("_name")  # of a model of one task
    others = (
        [] if column is None or own is None else [n for n in np.asarray(ids).tolist() if n != own]
    )
    if others:
        warn(f"rows of {column} {others[0]!r} are predicted by the model of {column} {own!r}")
    table, _ = _table(model, X, _NO_TARGETS, False, encoder, {"ensure_min_samples": 0})
    if isinstance(table, pl.DataFrame):
        encoder = encoder or Encoder(tuple(map(Column, table.columns)))
        table = check_array(encoder.encode(table), ensure_min_samples=0)
    return encoder.expand(table) if encoder else table


def read_row(model: Any, x: Any) -> np.ndarray:
    """One row as numbers [f], read as `read_rows` reads many.

    Args:
        model: Whose features it must have.
        x: The values in the order of the features, or a mapping from their names.
    """
    x, names = as_numpy(x), getattr(model, "feature_names_in_", None)
    if hasattr(x, "columns"):
        fix = "give frame.iloc[0] or frame.row(0, named=True); update takes many rows"
        raise FMRLError("a stream takes a row, not a table", fix=fix)
    if not isinstance(x, Mapping):
        x, own = list(x), getattr(x, "index", None) if hasattr(x, "iloc") else names
        if len(x) != model.n_features_in_ and own is names:
            raise FMRLError(
                f"a row has {len(x)} values", fix=f"give {model.n_features_in_}, as in fit"
            )
        x = x if names is None else dict(zip(own, x, strict=True))
    return read_rows(model, [x])[0]


def column_names(X: Any) -> list[Any]:
    """The names of a table's columns; none for arrays.

    Args:
        X: Rows of any kind.

    >>> column_names([{"size": 1.0, "new": True}]), column_names(np.zeros((1, 2)))
    (['size', 'new'], [])
    """
    if _is_records(X):
        return list(X[0])
    return list(X.columns) if hasattr(X := _normalise_rows(X), "columns") else []


def columns_of(X: Any) -> list[np.ndarray]:
    """The columns of rows as arrays [n], to look at their values.

    Args:
        X: Rows of any kind.

    >>> [c.tolist() for c in columns_of([{"size": 1.0, "new": True}])]
    [[1.0], [True]]
    """
    X = _normalise_rows(X)
    X = from_records(X, list(X[0])) if _is_records(X) else X
    if hasattr(X, "columns"):
        return [X[name].to_numpy() for name in X.columns]
    return list(np.asarray(X).reshape(len(X), -1).T)


def _is_records(X: Any) -> bool:
    return isinstance(X, list | tuple) and len(X) > 0 and isinstance(X[0], Mapping)


def _normalise_rows(X: Any) -> Any:
    """Rows as an array, a data frame in memory, a list of mappings, or what scikit-learn refuses:
    tensors and lists are arrays then, what only Arrow can read a polars frame.
    """
    X = as_numpy(X)
    if issparse(X):
        fix = "give X.toarray(), or OneHotEncoder(sparse_output=False) before it in a pipeline"
        raise FMRLError("X is sparse, and rows must be dense", fix=fix)
    if isinstance(X, Mapping):
        raise FMRLError("X is one row, a mapping", fix="give a list of rows: [row]")
    if hasattr(X, "to_numpy") and len(getattr(X, "shape", ())) == 1:
        fix = "give a table, also of one row or column: frame.iloc[[0]], frame[['price']]"
        raise FMRLError(f"X is a {type(X).__name__}, one row or column", fix=fix)
    if isinstance(X, list | tuple):
        if not X:
            raise FMRLError("X is an empty list", fix="no rows are X[:0] of a table with columns")
        if _is_records(X):
            return list(X)
        try:
            kind, dimensions = (found := np.asarray(X)).dtype.kind, found.ndim
        except ValueError:  # rows of different lengths, which scikit-learn refuses
            return X
        return np.array(X, dtype=object) if kind in "USO" and dimensions == 2 else X
    held = None if isinstance(X, np.ndarray) else in_memory(X)
    return X if held is None else held


def _table(
    model: Any, X: Any, y: Any, reset: bool, encoder: Encoder | None, options: dict[str, Any]
) -> tuple[Any, Any]:
    """Rows with the features of the model: an array where numbers stay as they are, a polars frame
    where they are to be encoded; and their targets, where there are any.
    """
    left_out, named = encoder.left_out if encoder else [], True
    if _is_records(X):
        names = [n for n in encoder.inputs if n not in left_out] if encoder else list(X[0])
        extra = {} if encoder else {n: i for i, row in enumerate(X) for n in row if n not in X[0]}
        if extra:
            raise no_column_error(next(iter(extra)), map(str, names), "row 0 has")
        table = from_records(X, names)
    elif not hasattr(X, "columns"):
        return _array(model, X, y, reset, encoder, options)
    else:
        named = any(isinstance(n, str) for n in X.columns)
        if not named:  # pandas numbers columns that have no names
            X = X.set_axis([f"x{i}" for i in range(X.shape[1])], axis=1)
        table = from_objects(as_polars(X))  # type: ignore[arg-type]
    names = list(table.columns)
    for name in left_out:
        if name not in names:
            names.insert(encoder.inputs.index(name), name)  # type: ignore[union-attr]
    known = getattr(model, "feature_names_in_", None)
    if reset or known is None or names != known.tolist():
        # Names alone: no value is looked at, whatever the library.
        probe = pl.DataFrame(schema=names) if named else np.empty((1, len(names)))
        validate_data(model, probe, reset=reset, skip_check_array=True)
    if encoder is not None and names != encoder.inputs:  # it was fitted to an array
        table = table.rename(dict(zip(names, encoder.inputs, strict=True)), strict=False)
    return table, y


def _array(
    model: Any, X: Any, y: Any, reset: bool, encoder: Encoder | None, options: dict[str, Any]
) -> tuple[Any, Any]:
    """`_table` of an array, or of what scikit-learn refuses."""
    if _is_numeric(X):
        options = {"reset": reset, "dtype": np.float64, "ensure_all_finite": "allow-nan"} | options
        with np.errstate(over="ignore", invalid="ignore"):  # of a sum that is only looked at
            found = validate_data(model, X, *([] if y is _NO_TARGETS else [y]), **options)
        X, y = (found, y) if y is _NO_TARGETS else found
        if (encoder is None or encoder.plain) and np.isfinite(X).all():
            return X, y
    else:
        validate_data(model, X, reset=reset, skip_check_array=True)
    names = encoder.inputs if encoder else _feature_names(model, X)
    text = {c.name for c in encoder.columns if c.levels is not None} if encoder else ()
    return from_array(np.asarray(X), names, text), y


def _is_numeric(X: Any) -> bool:
    """Whether scikit-learn can read an array: numbers, or something that it refuses."""
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype.kind != "O":
        return not (isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "USMm")
    kinds = {type(v): v for v in X.ravel().tolist()}.values()
    gaps = (is_gap(v) for v in kinds if not isinstance(v, float) and not np.iterable(v))
    return not any(isinstance(v, _NOT_NUMBERS) for v in kinds) and not any(gaps)


def _feature_names(model: Any, X: np.ndarray) -> list[str]:
    """The names of the features, or x0, x1, …"""
    names = getattr(model, "feature_names_in_", None)
    return [f"x{i}" for i in range(X.shape[1])] if names is None else names.tolist()


def _plain_encoder(model: Any, rows: np.ndarray, task: str | None) -> Encoder:
    """Numbers stay as they are; a gap, should one come, is filled by the mean."""
    with np.errstate(over="ignore"):
        means = np.nan_to_num(rows.mean(axis=0), posinf=0.0, neginf=0.0).tolist()
    named = zip(_feature_names(model, rows), means, strict=True)
    return Encoder(tuple(Column(n, fill=m) for n, m in named), POLICY, task)


def _learn_encoder(table: pl.DataFrame, task: str | None) -> Encoder:
    """An encoding of rows of `fit`."""
    found = fit_encoder(table.lazy(), table.columns, POLICY)
    if not found.names:
        what = "no feature is left: every column is text that differs in nearly every row"
        raise FMRLError(what, fix="give another column")
    return replace(found, task=task)


def _warn_of_columns(table: pl.DataFrame, ids: np.ndarray | None, y: np.ndarray) -> None:
    """Name features that are ids of rows or tasks, or the target."""
    if len(table) < MIN_ID_ROWS:
        return
    for column in table:
        name, integer = column.name, column.dtype.is_integer()
        if column.null_count():
            continue  # neither a target nor an id has gaps
        values = column.to_numpy()
        if np.array_equal(values, y):
            warn(f"column {name!r} is the target itself: leave it out of X, where it counts as a "
                 "feature; a new row has none")  # fmt: skip
        elif not (integer or column.dtype in TEXT):
            continue
        elif ids is not None and np.array_equal(ids if integer else ids.astype(str), values):
            warn(f"column {name!r} is the task itself: leave it out of X, where it counts as a "
                 f"feature that says nothing of a new task, or give task={name!r}")  # fmt: skip
        elif integer and (why := looks_like_id(column)):
            warn(f"{why}; it counts as a number: leave it out if so")
