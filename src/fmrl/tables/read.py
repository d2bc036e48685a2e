"""Tables: rows of any kind as numbers, by the encoder the command line has.

Numbers without gaps stay as they are, bit for bit. Text becomes a column a level, a gap the mean
of the training rows (and a column that says so, where training rows had gaps), a date a number.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from scipy.sparse import issparse
from sklearn.utils import check_array, check_X_y
from sklearn.utils.validation import validate_data

from fmrl.errors import FMRLError, warn
from fmrl.tables.any_table import as_polars, check_names, from_array, no_column
from fmrl.tables.encoder import Column, Encoder, Policy, fit_encoder
from fmrl.tables.features import add_features, expanded, table_of
from fmrl.tables.kinds import FEWEST, looks_like_id
from fmrl.tables.targets import as_numpy, check_targets, single_column

POLICY = Policy(missing="impute", dates="number")
_OTHERS = (str, datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)
_NOTHING = object()


def split_task(X: Any, task: Any, known: str | None = None, *, one: bool = False) -> Any:
    """Rows without the column that names their tasks, and the ids in it.

    Args:
        X: Rows of any kind.
        task: Ids, or the name of a column of X.
        known: The column that named tasks in `fit`.
        one: All rows are of one task, and ``task`` may also be its name.

    Returns:
        X, the ids (for ``one``: the id), and the name of the column or None.

    >>> rows = pl.DataFrame({"shop": ["a", "b"], "price": [1.0, 2.0]})
    >>> X, ids, name = split_task(rows, "shop")
    >>> X.columns, ids.tolist(), name
    (['price'], ['a', 'b'], 'shop')
    """
    X, task = _table(X), single_column(task)
    if known is None and not isinstance(task, str):
        return X, task, None
    frame = frame_of(X)
    there = [] if frame is None else frame.columns
    named = isinstance(task, str) and (task in there or not one)
    if named and frame is None:
        what = f"task={task!r} names a column, and X has no names"
        raise FMRLError(what, fix="give a data frame, or the id of every row's task")
    if named and task not in there:
        raise no_column(task, map(str, there))
    name = task if named else known
    if frame is None or name not in there:
        return X, task, None
    ids = frame[name].to_numpy() if named or task is None else task
    if one and (named or task is None):
        found = frame[name].unique().to_list()
        if len(found) > 1:
            fix = "give the rows of one task, or all of them to update or fit"
            raise FMRLError(f"column {name!r} names {len(found)} tasks", fix=fix)
        ids = found[0] if found else None
    return frame.drop(name).to_native(), ids, name


def validate_fit(
    model: Any, X: Any, y: Any, task: Any = None, *, reset: bool, learn: bool | None = None,
    one: bool = False, **options: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Rows as numbers [n, f], targets [n] and task ids, all checked.

    Args:
        model: Whose features they must have.
        X: Rows of any kind.
        y: Their targets.
        task: Ids, or the name of a column of X.
        reset: Whether the model begins here, so that its features are these.
        learn: Whether to learn the encoding from these rows, into ``encoder_`` (default: reset).
        one: All rows are of one task, and ``task`` may also be its name.
        options: For scikit-learn's check of X and y.
    """
    learn = reset if learn is None else learn
    numeric = options.get("y_numeric", False)
    named = isinstance(task, str) and not one
    if not learn and not named and is_plain_array(model, X) and _plain_target(y, len(X), numeric):
        return X, y, task
    encoder = None if learn else getattr(model, "encoder_", None)
    X, task, column = split_task(X, task, encoder.task if encoder else None, one=one)
    if learn and not one and task is None:
        warn("fit without task= takes all rows as one task and learns nothing across tasks")
    if learn and column is not None and not column_names(X):
        fix = "give another column; one of zeros makes models of an intercept alone"
        raise FMRLError(f"there is no feature beside the task {column!r}", fix=fix)
    if options.get("ensure_min_samples") and getattr(X, "shape", ())[:1] == (0,):
        raise FMRLError("there are no rows", fix="give at least one")
    y = check_targets(y, numeric, task)
    given = X, y, reset, table_of(encoder), learn, options
    rows, y, found = _numbers(model, *given)
    if learn:
        found = replace(found, task=column)
        model.encoder_ = encoder = add_features(found, model.features, rows, y)
        if not one:
            _warn_of_ids(X, task, y)
    return expanded(encoder, rows), y, task


def is_plain_array(model: Any, X: Any) -> bool:
    """Whether rows are what reading them would give: finite numbers without names, as in fit.

    A service asks for one row at a time, and scikit-learn's checks cost more than the answer.
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


def _plain_target(y: Any, rows: int, numeric: bool) -> bool:
    """Whether targets are what checking them would give."""
    if type(y) is not np.ndarray or y.shape != (rows,):
        return False
    if numeric:
        return y.dtype == np.float64 and bool(np.isfinite(y).all())
    return y.dtype.kind in "iubU"


def read_rows(model: Any, X: Any) -> np.ndarray:
    """Rows to predict as numbers [n, f], checked against what the model was fitted on."""
    if is_plain_array(model, X):
        return X
    encoder = getattr(model, "encoder_", None)
    X, ids, column = split_task(X, None, encoder.task if encoder else None)
    own = vars(model).get("_name")  # of a model of one task
    others = [] if column is None or own is None else [n for n in ids.tolist() if n != own]
    if others:
        warn(f"rows of {column} {others[0]!r} are predicted by the model of {column} {own!r}")
    options = {"ensure_min_samples": 0}
    rows = _numbers(model, X, _NOTHING, False, table_of(encoder), False, options)[0]
    return expanded(encoder, rows)


def read_row(model: Any, x: Any) -> Any:
    """One row as numbers [f]; rows that need no encoding stay as they are.

    Args:
        model: Whose features it must have.
        x: The values in the order of the features, or a mapping from their names.
    """
    encoder = getattr(model, "encoder_", None)
    if encoder is None or (encoder.plain and not isinstance(x, Mapping)):
        return x
    names = encoder.inputs
    if isinstance(x, Mapping):
        x = dict.fromkeys(left_out(encoder), "") | dict(x)
        if absent := [n for n in names if n not in x]:
            raise no_column(absent[0], map(str, x))
    values = [x[n] for n in names] if isinstance(x, Mapping) else list(x)
    if len(values) != len(names):
        raise FMRLError(f"a row has {len(values)} values", fix=f"give {len(names)}, as in fit")
    row = np.empty((1, len(names)), dtype=object)
    row[0] = values
    return encoder.transform(from_array(row, names))[0]


def _numbers(
    model: Any, X: Any, y: Any, reset: bool, encoder: Encoder | None, learn: bool, options: dict
) -> tuple[np.ndarray, Any, Encoder]:
    """Rows as numbers, the targets, and the encoder they were encoded with."""
    if issparse(X):
        fix = "give X.toarray(), or OneHotEncoder(sparse_output=False) before it in a pipeline"
        raise FMRLError("X is sparse, and rows must be dense", fix=fix)
    X = with_ids(X, encoder)
    frame = frame_of(X)
    options = {"dtype": np.float64} | options
    if _numeric(X, frame) and (encoder is None or encoder.plain):
        # What is infinite in a frame is refused below, by the name of its column.
        options["ensure_all_finite"] = "allow-nan" if frame is None else False
        given = (X,) if y is _NOTHING else (X, y)
        with np.errstate(over="ignore", invalid="ignore"):  # of a sum that is only looked at
            found = validate_data(model, *given, reset=reset, **options)
        rows, target = (found, None) if y is _NOTHING else found
        if np.isfinite(rows).all():
            return rows, target, _plain(_names(model, rows), rows) if learn else encoder
        X = rows if frame is None else X
    else:
        validate_data(model, X, reset=reset, skip_check_array=True)
    options.pop("ensure_all_finite", None)
    names = _names(model, X)
    if encoder is None and not learn:
        encoder = Encoder(tuple(map(Column, names)))
    table = _polars(X, frame, encoder, names)
    if encoder is None:
        encoder = fit_encoder(table.lazy(), table.columns, POLICY)
        if not encoder.names:
            raise FMRLError("no feature is left: all are ids", fix="give another column")
    rows = encoder.transform(table)
    if y is _NOTHING:
        return check_array(rows, **options), None, encoder
    return *check_X_y(rows, y, estimator=model, **options), encoder


def left_out(encoder: Encoder) -> list[str]:
    """The columns that `fit` left out as ids: later rows need not have them."""
    return [c.name for c in encoder.columns if c.levels == ()]


def with_ids(X: Any, encoder: Encoder | None) -> Any:
    """Rows with empty texts in the columns that `fit` left out as ids, where they are not there."""
    frame = frame_of(X) if encoder else None
    names: list[Any] = [] if frame is None else list(frame.columns)
    if encoder is None or frame is None or not all(isinstance(n, str) for n in names):
        return X
    if not (absent := [n for n in left_out(encoder) if n not in names]):
        return X
    for name in absent:
        names.insert(encoder.inputs.index(name), name)
    empty = (nw.lit("").alias(name) for name in absent)
    return frame.with_columns(*empty).select(names).to_native()


def _table(X: Any) -> Any:
    """Tensors as NumPy, Arrow as polars, lists that hold text as arrays of objects."""
    X = as_numpy(X)
    if hasattr(X, "to_numpy") and len(getattr(X, "shape", ())) == 1:
        fix = "give a table, also of one row or column: frame.iloc[[0]], frame[['price']]"
        raise FMRLError(f"X is a {type(X).__name__}, one row or column", fix=fix)
    if isinstance(X, (list, tuple)):
        if not X:
            raise FMRLError("X is an empty list", fix="no rows are X[:0] of a table with columns")
        try:
            kind, dimensions = (found := np.asarray(X)).dtype.kind, found.ndim
        except ValueError:  # rows of different lengths, which scikit-learn refuses
            return X
        return np.array(X, dtype=object) if kind in "USO" and dimensions == 2 else X
    if isinstance(X, (np.ndarray, pl.DataFrame)) or type(X).__module__.split(".")[0] == "pandas":
        return X
    held = nw.from_native(X, pass_through=True)
    X = held.collect().to_native() if isinstance(held, nw.LazyFrame) else X
    arrow = hasattr(X, "__arrow_c_stream__") or hasattr(X, "__arrow_c_array__")
    return pl.DataFrame(X) if arrow else X


def frame_of(X: Any) -> nw.DataFrame | None:
    """A data frame of any library, or None for arrays."""
    if isinstance(X, np.ndarray):
        return None
    check_names(X)
    held = nw.from_native(X, eager_only=True, pass_through=True)
    return held if isinstance(held, nw.DataFrame) else None


def column_names(X: Any) -> list[Any]:
    """The names of a table's columns; none for arrays."""
    frame = frame_of(_table(X))
    return [] if frame is None else frame.columns


def _numeric(X: Any, frame: nw.DataFrame | None) -> bool:
    """Whether scikit-learn can read it: numbers, or something that it refuses."""
    if frame is not None:
        return all(d.is_numeric() or d == nw.Boolean for d in frame.schema.values())
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype.kind in "biufc":
        return True
    if X.dtype.kind != "O":
        return X.dtype.kind not in "USMm"
    kinds = {type(v) for v in X.ravel().tolist()}
    return not any(issubclass(k, _OTHERS) or k.__name__ == "NAType" for k in kinds)


def _names(model: Any, X: Any) -> list[str]:
    """The names of the features, or x0, x1, …"""
    names = getattr(model, "feature_names_in_", None)
    return [f"x{i}" for i in range(X.shape[1])] if names is None else names.tolist()


def _plain(names: list[str], rows: np.ndarray) -> Encoder:
    """Numbers stay as they are; a gap, should one come, is filled by the mean."""
    with np.errstate(over="ignore"):
        means = np.nan_to_num(rows.mean(axis=0), posinf=0.0, neginf=0.0).tolist()
    return Encoder(tuple(Column(n, fill=m) for n, m in zip(names, means, strict=True)), POLICY)


def _polars(
    X: Any, frame: nw.DataFrame | None, encoder: Encoder | None, names: list[str]
) -> pl.DataFrame:
    """The rows as a polars frame with the columns of the encoder."""
    names = encoder.inputs if encoder else names
    if frame is None:
        text = {c.name for c in encoder.columns if c.levels is not None} if encoder else ()
        return from_array(np.asarray(X), names, text)
    native = frame.to_native()
    if not all(isinstance(c, str) for c in frame.columns):  # pandas: no names, but numbers
        native = native.set_axis(names, axis=1)
    table = as_polars(native)
    assert isinstance(table, pl.DataFrame)
    table = table.rename(dict(zip(table.columns, names, strict=True)))
    if odd := [n for n, d in table.schema.items() if d == pl.Object]:
        held = np.array([table[n].to_list() for n in odd], dtype=object).T
        table = table.with_columns(from_array(held, odd).get_columns())
    # Numbers that were declared categories are categories.
    said = zip(names, frame.schema.values(), strict=True)
    declared = [n for n, d in said if d in (nw.Categorical, nw.Enum)]
    return table.with_columns(pl.col(declared).cast(pl.String))


def _warn_of_ids(X: Any, task: Any, y: np.ndarray) -> None:
    """Name features that are ids of rows or tasks, or the target."""
    frame = frame_of(X)
    if frame is None or len(frame) < FEWEST:
        return
    ids = None if task is None else np.asarray(as_numpy(task))
    for column in frame.iter_columns():
        name, dtype = column.name, column.dtype
        if column.is_null().any():
            continue  # neither a target nor an id has gaps
        values = column.to_numpy()
        if np.array_equal(values, y):
            warn(f"column {name!r} is the target itself: leave it out of X, where it counts as a "
                 "feature; a new row has none")  # fmt: skip
        elif not (dtype.is_integer() or dtype in (nw.String, nw.Object, nw.Categorical, nw.Enum)):
            continue
        elif ids is not None and np.array_equal(ids, values):
            warn(f"column {name!r} is the task itself: leave it out of X, where it counts as a "
                 f"feature that says nothing of a new task, or give task={name!r}")  # fmt: skip
        elif dtype.is_integer() and (why := looks_like_id(pl.Series(str(name), values))):
            warn(f"{why}; it counts as a number: leave it out if so")
