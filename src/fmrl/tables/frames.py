"""Any table as tasks: which columns, which training tasks, and which loss."""

import hashlib
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from fmrl.core.losses import Logistic, Loss, OneVsAll, Squared
from fmrl.errors import FMRLError, TableError, warn
from fmrl.tables.any_table import (
    as_polars,
    free_names,
    is_complete,
    is_seekable,
    no_column_error,
    readable,
)  # fmt: skip
from fmrl.tables.encoder import Encoder, Policy, check_choices, fit_encoder, same_kind
from fmrl.tables.kinds import (
    TEXT,
    dates_as_text,
    like_numbers,
    looks_like_id,
    warn_of_classes,
    word_among,
)
from fmrl.tables.stream import TaskStream

KINDS = ("auto", "classification", "regression")
ROWS_FOR_IDS = 100_000  # first rows in which ids are looked for
_MAX_GUESSED_CLASSES, _MAX_CLASSES = 50, 1000  # most classes of a number: guessed, and asked for
_CHOICES = {"apart": ("error", "gather", "split"), "one_class": ("error", "keep", "drop")}


def tasks_from_frame(
    frame: Any, *, task: str, target: str | None = None,
    features: str | Sequence[str] | None = None, ignore: str | Sequence[str] | None = None,
    order: str | Sequence[str] | None = None,
    loss: Loss | str | None = None, policy: Policy | None = None,
    encoder: Encoder | str | os.PathLike | None = None, train: Collection | float | None = None,
    apart: str = "error", one_class: str = "error", rows: int = 1_000_000,
    scratch: str | os.PathLike | None = None,
) -> TaskStream:  # fmt: skip
    """Tasks from a table: one task for each value of column ``task``, its rows as rounds.

    Args:
        frame: A data frame that narwhals accepts, a polars LazyFrame, or the path (or glob) of CSV,
            TSV, Parquet or Arrow files, which are streamed. Ids of a CSV file are text, as written.
        task: The column that names the task of a row.
        target: The column of labels or numbers to predict; None for cost vectors (loss=Linear()).
        features: The columns to use (default: all others).
        ignore: Columns to leave out of all others.
        order: The columns that sort the rounds of a task (default: the order of the table).
        loss: A loss, or 'classification' or 'regression' (default: as `infer_loss` says).
        policy: Categories, missing values and scaling (default: `Policy()`).
        encoder: An encoding learned before, or the path of its JSON. It takes the place of
            features, policy and train; use it with ``loss=`` of the stream it was learned in.
        train: What the encoding is learned from: ids of tasks, or a share of the tasks, chosen by a
            hash of the id (default: all).
        apart: A task whose rows do not lie together: 'error', 'gather' (collect them; for files out
            of core, in two passes with scratch space) or 'split' (each run of rows is a task).
        one_class: A classification task with one class: 'error', 'keep' or 'drop'.
        rows: How many rows are held in memory at a time when gathering.
        scratch: A folder for temporary files when gathering.

    Returns:
        A stream of tasks that can be iterated again. Rows in messages count from 0.

    >>> sizes, prices = [1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0]
    >>> frame = pl.DataFrame({"shop": [1, 1, 2, 2], "size": sizes, "price": prices})
    >>> first, second = tasks_from_frame(frame, task="shop", target="price")
    >>> first.name, float(first.X[1, 0])
    (1, 2.0)
    """
    features, sort = _column_names("features", features), _column_names("order", order) or ()
    left_out = _column_names("ignore", ignore) or ()
    if left_out and features is not None:
        raise TableError("both features and ignore are given", fix="leave one of them out")
    encoder = _load_encoder(encoder)
    check_choices(_CHOICES, {"apart": apart, "one_class": one_class})
    _check_kind("task", task, str)
    for name, value, kind in (("target", target, str), ("policy", policy, Policy)):
        _check_kind(name, value, kind, type(None))
    if loss not in KINDS:
        _check_kind("loss", loss, Loss, type(None))
    if not isinstance(rows, int) or rows < 1:
        what = f"rows={rows!r} is not a number of rows"
        raise TableError(what, fix="give a whole number of at least 1")
    if encoder is not None:
        _check_encoder(encoder, features, policy, train)
    names = [n for n in (task, target) if n is not None]
    with readable():
        table = as_polars(frame, _known_types(task, target, loss, encoder))
        lazy, trained = table.lazy(), None
        schema = lazy.collect_schema()
        if features is None:
            others = (c for c in schema if c not in (*names, *sort, *left_out))
            if absent := [c for c in left_out if c not in schema]:
                raise no_column_error(absent[0], schema)
            features = tuple(encoder.inputs if encoder else others)
        _check_columns(schema, names, sort, features)
        if encoder is None:
            trained = _training_tasks(lazy, task, train)
            known = lazy if trained is None else lazy.filter(pl.col(task).is_in(trained.implode()))
            if target and policy is not None and policy.missing == "drop":
                known = known.filter(is_complete([target], schema))
            encoder = _without_left_out(fit_encoder(known, features, policy))
            whole = [f for f in features if schema[f].is_integer()]
            for values in (
                known.select(whole).head(ROWS_FOR_IDS).drop_nulls().collect() if whole else ()
            ):
                if why := looks_like_id(values):
                    warn(f"{why}; leave it out of features if so")
        for c in encoder.columns:
            if schema[c.name] != pl.Null:
                same_kind(c, schema[c.name])
        kept = table.select(list(dict.fromkeys([*names, *sort, *encoder.inputs])))
        if not isinstance(loss, Loss):
            drop = encoder.policy.missing == "drop"
            used = kept.lazy().filter(is_complete(encoder.inputs, schema)) if drop else kept.lazy()
            loss = infer_loss(used, target, loss or "auto")
    (row,) = free_names(kept.collect_schema().names(), "row")
    where = None if scratch is None else str(scratch)
    given = (kept, task, target, sort, loss, encoder, apart, one_class, rows, where)
    return TaskStream(*given, is_seekable(frame), row=row, trained=trained)


def infer_loss(rows: pl.LazyFrame, target: str | None, kind: str = "auto") -> Loss:
    """The loss that fits a target column: the only place where it is guessed.

    Regression is `Squared`; classification is `Logistic` for two classes and `OneVsAll` for more,
    the classes sorted. With 'auto' text, truth values and whole numbers are classes (a warning says
    so of more than two whole numbers, which may be counts) and real numbers are a quantity. What
    could be either is an error: real numbers that are only 0 and 1 (classes become real when a
    table has holes), whole numbers of more than 50 values, and dates as text.

    Args:
        rows: The rows that are used.
        target: The column of labels or numbers.
        kind: 'auto', 'classification' (any column of at least two values; numbers of at most 1,000)
            or 'regression' (numbers).

    >>> infer_loss(pl.LazyFrame({"sold": ["no", "yes", "no"]}), "sold")
    Logistic(classes=('no', 'yes'))
    >>> infer_loss(pl.LazyFrame({"sold": [3, 1, 2]}), "sold", "regression")
    Squared()
    """
    if target is None:
        fix = "name the target column, or pass loss=Linear() for cost vectors"
        raise FMRLError("neither target nor loss is given", fix=fix)
    dtype, y, where = rows.collect_schema()[target], pl.col(target), f"the target {target!r}"
    y = (y.fill_nan(None) if dtype.is_float() else y).drop_nulls()
    number = dtype.is_numeric() or dtype == pl.Boolean
    if not number and (kind == "regression" or dtype not in TEXT):
        fix = "convert it to numbers" + " or to class names" * (kind != "regression")
        raise TableError(f"{where} is of type {dtype}", fix=fix)
    if kind == "regression":
        return Squared()
    if kind == "auto" and (dtype.is_float() or dtype.is_decimal()):
        binary = (y.min() == 0) & (y.max() == 1) & y.is_in([0.0, 1.0]).all()
        if dtype.is_float() and rows.select(binary).collect(engine="streaming").item():
            fix = "pass loss=fmrl.Squared() for a quantity, or loss=fmrl.Logistic() for two classes"
            raise TableError(f"{where} is a real number but holds only 0 and 1", fix=fix)
        return Squared()
    found = rows.select(y.unique().sort()).collect(engine="streaming").to_series()
    labels = tuple(sorted((found if number else found.cast(pl.String)).to_list()))
    fix = "pass loss=fmrl.Squared() for a quantity, or loss=fmrl.OneVsAll(classes) for classes"
    if number and len(labels) > (_MAX_GUESSED_CLASSES if kind == "auto" else _MAX_CLASSES):
        what = f"{where} has {len(labels):,} {'whole-number ' * dtype.is_integer()}values"
        if kind != "auto":
            what += f", and at most {_MAX_CLASSES:,} numbers can be classes"
            fix = "use loss='regression', or make fewer classes of them, or text"
        raise TableError(what, fix=fix)
    if kind == "auto" and not number and len(labels) > _MAX_GUESSED_CLASSES:
        if (word := word_among(labels)) is not None:
            fix = "correct it, or drop the row; for classes use loss='classification'"
            raise TableError(f"{where} looks like numbers but holds {word!r}", fix=fix)
        if numbers := like_numbers(labels):
            warn(f"{where} has {len(labels):,} classes{numbers}")
    if kind == "auto" and not number and dates_as_text(target, labels):
        fix = "make it a number, as days since some day; for classes pass loss='classification'"
        raise TableError(f"{where} holds dates as text ({labels[0]!r})", fix=fix)
    if kind == "auto" and dtype.is_integer() and len(labels) > 2:
        seen = f"{len(labels)} whole numbers from {labels[0]} to {labels[-1]}"
        warn(f"{where} holds {seen}, which are taken for classes and not for counts; {fix}")
    if len(labels) < 2:
        fix = "classification needs at least two classes"
        raise TableError(f"{where} has only the class {list(labels)}", fix=fix)
    if not number:
        warn_of_classes(labels, where)
    return Logistic(labels) if len(labels) == 2 else OneVsAll(labels)


def training_ids(ids: Collection, share: float, seed: int = 0) -> list:
    """The ids of training tasks: those whose hash falls below ``share``.

    An id stays on its side whatever else is in the table. The hash is of the id as text, so 1, 1.0
    and "1" fall on the same side, whichever kind of file they come from.

    Args:
        ids: Task ids.
        share: Of the tasks, from 0 to 1.
        seed: Another seed gives another choice.

    >>> len(training_ids(range(1000), 0.8))
    801
    """
    texts = ((i, f"{seed}:{id_text(i)}".encode()) for i in ids)
    cut = share * 2.0**64
    return [i for i, t in texts if int.from_bytes(hashlib.sha256(t).digest()[:8]) < cut]


def id_text(i: Any) -> str:
    """A task id as text, the same for 1, 1.0 and "1"."""
    return str(int(i)) if isinstance(i, float) and i.is_integer() else str(i)


def _training_tasks(
    rows: pl.LazyFrame, task: str, train: Collection | float | None
) -> pl.Series | None:
    """The ids that ``train`` names, or None for all."""
    if train is None:
        return None
    if isinstance(train, str | bytes) or not isinstance(train, Collection | float | int):
        fix = "give a list of ids, or a number in (0, 1]"
        raise TableError(f"train={train!r} is neither ids nor a share", fix=fix)
    if isinstance(train, float | int):
        if not 0 < train <= 1:
            fix = "give a number above 0 and at most 1, or the ids"
            raise TableError(f"train={train} is not a share of the tasks", fix=fix)
        ids = rows.select(pl.col(task).unique().sort()).collect(engine="streaming").to_series()
        ids = ids.drop_nulls()
        return pl.Series(task, training_ids(ids, float(train)), ids.dtype)
    dtype, given = rows.collect_schema()[task], list(train)
    if dtype in TEXT:  # the ids of a CSV file are text, as they are written there
        return pl.Series(task, list(map(id_text, given)), pl.String)
    try:
        return pl.Series(task, given, dtype=dtype, strict=True)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        what = f"train={given[:3]} are not ids of the column {task!r}, which is {dtype}"
        raise TableError(what, fix="give ids of the same kind") from None


def _column_names(what: str, given: Any) -> tuple[str, ...] | None:
    """Names of columns, each once; None where none are given."""
    if given is None or isinstance(given, str):
        return None if given is None else (given,)
    fix = "give a list of column names"
    if not hasattr(given, "__iter__"):
        raise TableError(f"{what}={given!r} does not name columns", fix=fix)
    names = tuple(given)
    if wrong := [n for n in names if not isinstance(n, str)]:
        raise TableError(f"{what} names {wrong[0]!r}, which is not text", fix=fix)
    if len(set(names)) < len(names):
        twice = f"{what} names a column twice: {', '.join(map(repr, names))}"
        raise TableError(twice, fix="name each once")
    return names


def _load_encoder(encoder: Any) -> Encoder | None:
    if encoder is None or isinstance(encoder, Encoder):
        return encoder
    if not isinstance(encoder, str | os.PathLike):
        fix = "give stream.encoder, or the path of its JSON"
        raise TableError(f"encoder={encoder!r} is not an Encoder", fix=fix)
    with readable():
        return Encoder.from_json(Path(encoder).read_bytes())


def _check_kind(name: str, value: Any, *kinds: type) -> None:
    if not isinstance(value, kinds):
        wanted = "column name" if kinds[0] is str else kinds[0].__name__
        raise TableError(f"{name}={value!r} is not a {wanted}", fix=f"give a {wanted}")


def _check_encoder(encoder: Encoder, features: Any, policy: Any, train: Any) -> None:
    for name, value in (("policy", policy), ("train", train)):
        if value is not None:
            what = f"{name}= is given beside encoder=, which was learned already"
            raise TableError(what, fix=f"leave {name} or encoder out")
    if features is not None and list(features) != encoder.inputs:
        what = f"features={list(features)} are not those of the encoder, {encoder.inputs}"
        raise TableError(what, fix="leave features or encoder out")


def _check_columns(schema: Any, names: list[str], sort: tuple, inputs: tuple) -> None:
    task, *target = names
    if absent := [c for c in (*names, *sort, *inputs) if c not in schema]:
        raise no_column_error(absent[0], schema)
    if not inputs:
        raise _no_features_error()
    if target and target[0] in inputs:
        fix = "a label cannot be a feature: leave it out"
        raise TableError(f"features include the target {target[0]!r}", fix=fix)
    if target == [task]:
        raise TableError(f"{task!r} is both the task and the target", fix="name two columns")
    for c in (task, *sort):
        if schema[c].is_nested() or schema[c] in (pl.Binary, pl.Object):
            fix = "tasks and order need plain values"
            raise TableError(f"column {c!r} is of type {schema[c]}", fix=fix)


def _no_features_error() -> TableError:
    return TableError("no column is left for features", fix="name them in features")


def _without_left_out(encoder: Encoder) -> Encoder:
    """An encoding without the columns that are left out, which later tables need not have."""
    columns = tuple(c for c in encoder.columns if c.outputs)
    if not columns:
        raise _no_features_error()
    return replace(encoder, columns=columns)


def _known_types(task: str, target: str | None, loss: Any, encoder: Encoder | None) -> dict:
    """Types of a CSV file's columns: ids "01" and "1" are two tasks, stored levels are text."""
    known = {c.name: c.read_as for c in encoder.columns} if encoder else {}
    classes = getattr(loss, "classes", None)
    if target and isinstance(classes, tuple) and all(isinstance(c, str) for c in classes):
        known[target] = pl.String
    return known | {task: pl.String}
