"""Any table into tasks: data frames of every kind, and CSV, Parquet or Arrow files larger than
memory.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from fmrl.core.losses import Logistic, Loss, OneVsAll, Squared
from fmrl.errors import FMRLError, TableError
from fmrl.tables.encoder import Encoder, Policy, same_kind
from fmrl.tables.encoder_fit import complete, fit_encoder
from fmrl.tables.reading import as_polars, free_names, is_seekable
from fmrl.tables.stream import TaskStream
from fmrl.tables.training_ids import choose_training, training_rows

_MOST_CLASSES = 50  # a whole-number target with more values is as likely a quantity as a class


def tasks_from_frame(
    frame: Any,
    *,
    task: str,
    target: str | None = None,
    features: str | Sequence[str] | None = None,
    order: str | Sequence[str] | None = None,
    loss: Loss | None = None,
    policy: Policy | None = None,
    encoder: Encoder | str | os.PathLike | None = None,
    train: Collection | float | None = None,
    apart: str = "error",
    one_class: str = "error",
    rows: int = 1_000_000,
    scratch: str | os.PathLike | None = None,
) -> TaskStream:
    """Tasks from a table: one task per value of column ``task``, its rows as rounds.

    frame: any data frame narwhals accepts, a polars LazyFrame, or the path (or glob) of CSV, TSV,
    Parquet or Arrow files; they stream. Task ids of a CSV file are text, as written there.
    features: columns to use (default: all others). order: sorts the rounds inside a task (default:
    as they lie). loss: by default Squared for a real target, Logistic for two classes, OneVsAll for
    more.
    policy: categories, missing values, scaling (`Policy`). train: ids of the training tasks, or the
    share of tasks (chosen by a hash of the id) that levels and scales are learned from; default
    all. encoder: one learned before (or the path of its JSON), used as it is; it takes the place of
    features, policy and train, and goes with ``loss=`` of the stream it was learned in.
    apart: a task whose rows do not lie together is an 'error'; 'gather' collects them (out of core
    for files, two passes and scratch space); 'split' makes each run of rows its own task.
    one_class: 'error', 'keep' or 'drop'. rows: how many are held in memory at a time when
    gathering. Rows in messages count from 0, in the order of the table.

    >>> frame = pl.DataFrame({"shop": [1, 1, 2, 2], "size": [1.0, 2.0, 3.0, 4.0], "price": [2.0, 4.0, 6.0, 8.0]})
    >>> first, second = tasks_from_frame(frame, task="shop", target="price")
    >>> first.name, float(first.X[1, 0])
    (1, 2.0)
    """
    features, sort = _names("features", features), _names("order", order) or ()
    encoder = _stored(encoder)
    _check_arguments(locals())
    names = [n for n in (task, target) if n is not None]
    try:
        table = as_polars(frame, _kinds(task, target, loss, encoder))
        lazy = table.lazy()
        schema = lazy.collect_schema()
        inputs = features if features is not None else tuple(encoder.inputs) if encoder else None
        inputs = (
            inputs if inputs is not None else tuple(c for c in schema if c not in (*names, *sort))
        )
        _check_columns(schema, names, sort, inputs)
        trained = None
        if encoder is None:
            policy = policy or Policy()
            trained = choose_training(lazy, task, train)
            encoder = fit_encoder(training_rows(lazy, task, trained), inputs, policy)
        for c in encoder.columns:
            if schema[c.name] != pl.Null:
                same_kind(c, schema[c.name])
        kept = table.select(list(dict.fromkeys([*names, *sort, *encoder.inputs])))
        used = (
            complete(kept.lazy(), encoder.inputs)
            if encoder.policy.missing == "drop"
            else kept.lazy()
        )
        loss = loss if loss is not None else _loss(used, target)
    except pl.exceptions.PolarsError as e:
        raise TableError(
            f"the table cannot be read: {str(e).splitlines()[0]}",
            fix="check the file and its encoding",
        ) from e
    (row,) = free_names(kept.collect_schema().names(), "row")
    where = None if scratch is None else str(scratch)
    return TaskStream(
        kept,
        task,
        target,
        sort,
        loss,
        encoder,
        apart,
        one_class,
        rows,
        where,
        is_seekable(frame),
        row=row,
        trained=trained,
    )


def _names(what: str, given: Any) -> tuple[str, ...] | None:
    if given is None or isinstance(given, str):
        return None if given is None else (given,)
    if not isinstance(given, Sequence) and not hasattr(given, "__iter__"):
        raise TableError(f"{what}={given!r} names no columns", fix="give a list of column names")
    names = tuple(given)
    if wrong := [n for n in names if not isinstance(n, str)]:
        raise TableError(
            f"{what} names {wrong[0]!r}, which is not text", fix="give a list of column names"
        )
    if len(set(names)) < len(names):
        raise TableError(
            f"{what} names a column twice: {', '.join(map(repr, names))}", fix="name each once"
        )
    return names


def _stored(encoder: Any) -> Encoder | None:
    if encoder is None or isinstance(encoder, Encoder):
        return encoder
    if not isinstance(encoder, str | os.PathLike):
        raise TableError(
            f"encoder={encoder!r} is no Encoder", fix="give stream.encoder, or the path of its JSON"
        )
    try:
        return Encoder.from_json(Path(encoder).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as e:
        raise TableError(
            f"the encoder {encoder} cannot be read ({e})", fix="give the path of what to_json wrote"
        ) from None


def _check_arguments(given: dict[str, Any]) -> None:
    for name, allowed in (
        ("apart", ("error", "gather", "split")),
        ("one_class", ("error", "keep", "drop")),
    ):
        if given[name] not in allowed:
            raise TableError(
                f"{name}={given[name]!r} is unknown",
                fix=f"use one of {', '.join(map(repr, allowed))}",
            )
    for name, kind in (("task", str), ("target", str), ("loss", Loss), ("policy", Policy)):
        if not isinstance(given[name], kind) and (given[name] is not None or name == "task"):
            fix = f"give a {kind.__name__}" if kind is not str else "give the name of a column"
            raise TableError(
                f"{name}={given[name]!r} is no {'column name' if kind is str else kind.__name__}",
                fix=fix,
            )
    if not isinstance(given["rows"], int) or given["rows"] < 1:
        raise TableError(
            f"rows={given['rows']!r} is no number of rows", fix="give a whole number of at least 1"
        )
    encoder = given["encoder"]
    if encoder is None:
        return
    for name in ("policy", "train"):
        if given[name] is not None:
            raise TableError(
                f"{name}= is given beside encoder=, which was learned already",
                fix=f"leave {name} or encoder out",
            )
    if given["features"] is not None and list(given["features"]) != encoder.inputs:
        what = f"features={list(given['features'])} are not those of the encoder, {encoder.inputs}"
        raise TableError(what, fix="leave features or encoder out")


def _check_columns(
    schema: Any, names: list[str], sort: tuple[str, ...], inputs: tuple[str, ...]
) -> None:
    if absent := [c for c in (*names, *sort, *inputs) if c not in schema]:
        raise TableError(
            f"there is no column {absent[0]!r}",
            fix=f"the columns are {', '.join(map(repr, schema))}",
        )
    if not inputs:
        raise TableError("no column is left for features", fix="name them in features")
    if len(names) == 2 and names[1] in inputs:
        raise TableError(
            f"features include the target {names[1]!r}",
            fix="a label cannot be a feature: leave it out",
        )
    if len(names) == 2 and names[0] == names[1]:
        raise TableError(f"{names[0]!r} is both the task and the target", fix="name two columns")
    for c in (names[0], *sort):
        if schema[c].is_nested() or schema[c] in (pl.Binary, pl.Object):
            raise TableError(
                f"column {c!r} is of type {schema[c]}", fix="tasks and order need plain values"
            )


def _kinds(
    task: str, target: str | None, loss: Loss | None, encoder: Encoder | None
) -> dict[str, Any]:
    """What is known of a CSV file's columns: ids "01" and "1" are two tasks, and stored levels are
    text.
    """
    out: dict[str, Any] = {}
    for c in encoder.columns if encoder else ():
        out[c.name] = (
            pl.String
            if c.levels is not None
            else pl.Boolean
            if c.dtype == "Boolean"
            else pl.Float64
        )
    classes = getattr(loss, "classes", None)
    if (
        target is not None
        and isinstance(classes, tuple)
        and all(isinstance(c, str) for c in classes)
    ):
        out[target] = pl.String
    return out | {task: pl.String}


def _loss(rows: pl.LazyFrame, target: str | None) -> Loss:
    if target is None:
        raise FMRLError(
            "neither target nor loss is given",
            fix="name the target column, or pass loss=Linear() for cost vectors",
        )
    dtype, c = rows.collect_schema()[target], pl.col(target)
    if dtype.is_decimal():
        return Squared()
    if dtype.is_float():
        # Classes become floats when a table had holes: a quantity of noughts and ones must be asked
        # for.
        y = c.fill_nan(None)
        looks = rows.select(
            (y.min() == 0) & (y.max() == 1) & y.drop_nulls().is_in([0.0, 1.0]).all()
        )
        if looks.collect(engine="streaming").item():
            fix = "pass loss=fmrl.Squared() for a quantity, or loss=fmrl.Logistic() for two classes"
            raise TableError(
                f"the target {target!r} is a real number but holds only 0 and 1", fix=fix
            )
        return Squared()
    if not (dtype.is_integer() or dtype in (pl.Boolean, pl.String, pl.Categorical, pl.Enum)):
        raise TableError(
            f"the target {target!r} is of type {dtype}",
            fix="convert it to numbers or to class names",
        )
    classes = rows.select(c.drop_nulls().unique().sort()).collect(engine="streaming").to_series()
    labels = (
        classes.to_list()
        if dtype.is_integer() or dtype == pl.Boolean
        else classes.cast(pl.String).to_list()
    )
    if dtype.is_integer() and len(labels) > _MOST_CLASSES:
        what = f"the target {target!r} has {len(labels):,} whole-number values"
        raise TableError(
            what,
            fix="pass loss=fmrl.Squared() for a quantity, or loss=fmrl.OneVsAll(classes) for classes",
        )
    if len(labels) < 2:
        raise TableError(
            f"the target {target!r} has only the class {labels}",
            fix="classification needs at least two classes",
        )
    return Logistic(tuple(sorted(labels))) if len(labels) == 2 else OneVsAll(tuple(sorted(labels)))
