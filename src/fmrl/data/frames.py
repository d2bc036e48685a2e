"""Any table into tasks: data frames of every kind, and CSV, Parquet or Arrow files larger than memory."""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from fmrl.core.errors import FMRLError
from fmrl.core.losses import Logistic, Loss, OneVsAll, Squared
from fmrl.core.tasks import Task
from fmrl.data.encode import Encoder, Policy, clean, fit_encoder, training_rows
from fmrl.data.errors import TableError
from fmrl.data.gather import batches, gathered

_LOOK = 100_000  # lines of a CSV file that decide what is a number
_SCANS = {
    ".parquet": pl.scan_parquet,
    ".pq": pl.scan_parquet,
    ".arrow": pl.scan_ipc,
    ".ipc": pl.scan_ipc,
    ".feather": pl.scan_ipc,
    ".csv": lambda p: pl.scan_csv(p, infer_schema_length=_LOOK),
    ".tsv": lambda p: pl.scan_csv(p, separator="\t", infer_schema_length=_LOOK),
}
_MOST_CLASSES = 50  # a whole-number target with more values is as likely a quantity as a class
_ORDER = "__fmrl_run"


@dataclass(frozen=True, repr=False)
class TaskStream:
    """Tasks from a table, made as they are asked for; can be iterated again. Each `Task` carries its id as ``name``.

    ``encoder`` turns later rows into the same columns and belongs with the model; ``loss`` holds the classes.
    """

    frame: pl.LazyFrame | pl.DataFrame
    task: str
    target: str | None
    order: tuple[str, ...]
    loss: Loss
    encoder: Encoder
    apart: str = "error"
    one_class: str = "error"
    rows: int = 1_000_000
    scratch: str | None = None
    seekable: bool = False

    def __repr__(self) -> str:
        target = "" if self.target is None else f", target={self.target!r}"
        return f"TaskStream(task={self.task!r}{target}, {len(self.encoder.names)} features, loss={self.loss!r})"

    def __iter__(self) -> Iterator[Task]:
        if self.apart == "gather":
            blocks = gathered(self.frame, self.task, self.rows, self.scratch, self.seekable)
        else:
            blocks = batches(self.frame, min(self.rows, 100_000), self.seekable)
        seen: set | None = set() if self.apart == "error" else None
        open_task: pl.DataFrame | None = None
        done = 0
        try:
            for block in blocks:
                block = block if open_task is None else pl.concat([open_task, block])
                last = _starts(block[self.task])[-1]
                yield from self._tasks(block[:last], done, seen)
                open_task, done = block[last:], done + last
            if open_task is not None:
                yield from self._tasks(open_task, done, seen)
        except pl.exceptions.PolarsError as e:
            raise TableError(
                f"the table cannot be read: {str(e).splitlines()[0]}", fix="check the file and its encoding"
            ) from e

    def _tasks(self, block: pl.DataFrame, done: int, seen: set | None) -> Iterator[Task]:
        """The tasks of whole runs of rows."""
        if not len(block):
            return
        ids = block[self.task]
        if ids.null_count():
            raise TableError(f"row {done + int(ids.is_null().arg_max() or 0)} has no task id", fix="drop it or name its task")
        starts = np.append(_starts(ids), len(block))
        names = ids.gather(starts[:-1]).to_list()
        if self.order:
            run = pl.Series(_ORDER, np.repeat(np.arange(len(names)), np.diff(starts)))
            block = block.with_columns(run).sort(_ORDER, *self.order, maintain_order=True)
        present = None
        if self.encoder.policy.missing == "drop":
            # Tasks keep their place while rows go, so that one that loses them all is noticed.
            present = _complete(block, self.encoder.inputs)
        X = self.encoder.transform(block if present is None else block.filter(pl.Series(present)), done)
        y = self._labels(block, done)
        if present is not None:
            y = None if y is None else y[present]
            starts = np.concatenate([[0], np.cumsum(present)])[starts]
        for i, name in enumerate(names):
            self._once(name, seen, done + int(starts[i]))
            rows = slice(starts[i], starts[i + 1])
            if rows.start == rows.stop:
                raise TableError(
                    f"the task {name!r} is empty: every row misses a value", fix="use missing='indicator' or 'mean'"
                )
            labels = None if y is None else y[rows]
            if isinstance(self.loss, OneVsAll | Logistic) and labels is not None and (labels == labels[0]).all():
                if self.one_class == "drop":
                    continue
                if self.one_class == "error":
                    what = f"the task {name!r} has only the class {labels[0]!r}"
                    raise TableError(what, fix="use one_class='keep' to play it all the same, or one_class='drop'")
            yield Task(X[rows], labels, loss=self.loss, name=name)

    def _labels(self, block: pl.DataFrame, done: int) -> np.ndarray | None:
        if self.target is None:
            return None
        y = clean(block[self.target])
        if y.null_count():
            row = done + int(y.is_null().arg_max() or 0)
            raise TableError(
                f"the target {self.target!r} has no value in row {row}", fix="drop the row: a label cannot be filled in"
            )
        return np.array(y.cast(pl.String).to_list()) if y.dtype in (pl.String, pl.Categorical, pl.Enum) else y.to_numpy()

    def _once(self, name: Any, seen: set | None, row: int) -> None:
        if seen is None:
            return
        if name in seen:
            fix = "use apart='gather' to bring its rows together, or apart='split' if they are different tasks"
            raise TableError(f"the task {name!r} appears again at row {row}, apart from its other rows", fix=fix)
        seen.add(name)


def tasks_from_frame(
    frame: Any,
    *,
    task: str,
    target: str | None = None,
    features: Sequence[str] | None = None,
    order: str | Sequence[str] | None = None,
    loss: Loss | None = None,
    policy: Policy | None = None,
    encoder: Encoder | None = None,
    train: Collection | float | None = None,
    apart: str = "error",
    one_class: str = "error",
    rows: int = 1_000_000,
    scratch: str | os.PathLike | None = None,
) -> TaskStream:
    """Tasks from a table: one task per value of column ``task``, its rows as rounds.

    frame: any data frame narwhals accepts, a polars LazyFrame, or the path (or glob) of CSV, TSV, Parquet or Arrow files; they stream.
    features: columns to use (default: all others). order: sorts the rounds inside a task (default: as they lie).
    loss: by default Squared for a real target, Logistic for two classes, OneVsAll for more.
    policy: categories, missing values, scaling (`Policy`). train: ids of the training tasks, or the share of tasks (chosen by a
    hash of the id) that levels and scales are learned from; default all. encoder: one learned before, used as it is.
    apart: a task whose rows do not lie together is an 'error'; 'gather' collects them (out of core for files, two passes and
    scratch space); 'split' makes each run of rows its own task. one_class: 'error', 'keep' or 'drop'. rows: how many are held
    in memory at a time when gathering.

    >>> frame = pl.DataFrame({"shop": [1, 1, 2, 2], "size": [1.0, 2.0, 3.0, 4.0], "price": [2.0, 4.0, 6.0, 8.0]})
    >>> first, second = tasks_from_frame(frame, task="shop", target="price")
    >>> first.name, float(first.X[1, 0])
    (1, 2.0)
    """
    if apart not in ("error", "gather", "split") or one_class not in ("error", "keep", "drop"):
        fix = "apart is 'error', 'gather' or 'split'; one_class is 'error', 'keep' or 'drop'"
        raise TableError(f"apart={apart!r}, one_class={one_class!r} is unknown", fix=fix)
    table = as_polars(frame)
    lazy = table.lazy()
    sort = (order,) if isinstance(order, str) else tuple(order or ())
    try:
        schema = lazy.collect_schema()
        inputs = list(features) if features is not None else encoder.inputs if encoder else None
        inputs = inputs if inputs is not None else [c for c in schema if c not in (task, target, *sort)]
        if absent := [c for c in (task, target, *sort, *inputs) if c is not None and c not in schema]:
            raise TableError(f"there is no column {absent[0]!r}", fix=f"the columns are {', '.join(map(repr, schema))}")
        if not inputs:
            raise TableError("no column is left for features", fix="name them in features")
        if encoder is None:
            encoder = fit_encoder(training_rows(lazy, task, train), inputs, policy)
        if loss is None:
            loss = _loss(lazy, target)
    except pl.exceptions.PolarsError as e:
        raise TableError(f"the table cannot be read: {str(e).splitlines()[0]}", fix="check the file and its encoding") from e
    kept = table.select(list(dict.fromkeys([task, *([target] if target else []), *sort, *encoder.inputs])))
    seekable = isinstance(frame, str | os.PathLike) and Path(frame).suffix.lower() not in (".csv", ".tsv")
    where = None if scratch is None else str(scratch)
    return TaskStream(kept, task, target, sort, loss, encoder, apart, one_class, rows, where, seekable)


def as_polars(frame: Any) -> pl.LazyFrame | pl.DataFrame:
    """A polars frame over the same data: lazy for files and lazy frames, eager for what is in memory already."""
    if isinstance(frame, pl.LazyFrame | pl.DataFrame):
        return frame
    if isinstance(frame, str | os.PathLike):
        path = Path(frame)
        scan = _SCANS.get(path.suffix.lower())
        if scan is None:
            raise TableError(f"{path.name} is of no known kind", fix=f"give one of {', '.join(_SCANS)}")
        if not path.exists() and not set("*?[") & set(str(path)):
            raise TableError(f"{path} does not exist", fix="check the path")
        return scan(path)
    try:
        held = nw.from_native(frame)
    except TypeError:
        raise TableError(f"a {type(frame).__name__} is no table", fix="give a data frame, or the path of a file") from None
    held = held.collect() if isinstance(held, nw.LazyFrame) else held
    # Column by column: whole-frame conversion would need pyarrow for pandas.
    return pl.DataFrame({c: _series(held[c]) for c in held.columns})


def _series(values: Any) -> pl.Series:
    if values.dtype.is_numeric() and not values.is_null().any():
        return pl.Series(values.to_numpy())
    return pl.Series(values.to_list(), strict=False)


def _loss(rows: pl.LazyFrame, target: str | None) -> Loss:
    if target is None:
        raise FMRLError(
            "neither target nor loss is given", fix="name the target column, or pass loss=Linear() for cost vectors"
        )
    dtype = rows.collect_schema()[target]
    if dtype.is_float() or dtype.is_decimal():
        return Squared()
    classes = rows.select(pl.col(target).drop_nulls().unique().sort()).collect(engine="streaming").to_series()
    labels = classes.cast(pl.String).to_list() if not (dtype.is_integer() or dtype == pl.Boolean) else classes.to_list()
    if dtype.is_integer() and len(labels) > _MOST_CLASSES:
        what = f"the target {target!r} has {len(labels):,} whole-number values"
        raise TableError(what, fix="pass loss=fmrl.Squared() for a quantity, or loss=fmrl.OneVsAll(classes) for classes")
    if len(labels) < 2:
        raise TableError(f"the target {target!r} has only the class {labels}", fix="classification needs at least two classes")
    return Logistic(tuple(sorted(labels))) if len(labels) == 2 else OneVsAll(tuple(sorted(labels)))


def _starts(ids: pl.Series) -> np.ndarray:
    """Where runs of equal ids begin."""
    change = ids.ne_missing(ids.shift(1)).to_numpy().copy()
    change[0] = True
    return np.flatnonzero(change)


def _complete(block: pl.DataFrame, columns: Sequence[str]) -> np.ndarray:
    out = np.ones(len(block), dtype=bool)
    for c in columns:
        out &= ~clean(block[c]).is_null().to_numpy()
    return out
