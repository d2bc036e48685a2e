"""Tasks from a table as they are asked for: blocks of rows in, whole tasks out, every mistake named
with its row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from fmrl.core.losses import Logistic, Loss, OneVsAll
from fmrl.core.tasks import Task
from fmrl.errors import TableError
from fmrl.tables.encoder import Encoder, clean
from fmrl.tables.grouping import batches, gathered
from fmrl.tables.reading import free_names

_APART = (
    "use apart='gather' to bring its rows together, or apart='split' if they are different tasks"
)


@dataclass(frozen=True, repr=False)
class TaskStream:
    """Tasks from a table, made as they are asked for; can be iterated again. Each `Task` carries
    its id as ``name``.

    ``encoder`` turns later rows into the same columns and belongs with the model; ``loss`` holds
    the classes; ``trained`` are the ids of the tasks the encoding was learned from, None for all.
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
    row: str = "row"
    trained: tuple | None = None

    def __repr__(self) -> str:
        target = "" if self.target is None else f", target={self.target!r}"
        return f"TaskStream(task={self.task!r}{target}, {len(self.encoder.names)} features, loss={self.loss!r})"

    def __iter__(self) -> Iterator[Task]:
        if self.apart == "gather":
            args = {"scratch": self.scratch, "seekable": self.seekable}
            blocks = gathered(self.frame, self.task, self.rows, self.row, **args)
        else:
            blocks = batches(self.frame, min(self.rows, 100_000), self.row, self.seekable)
        seen: set | None = set() if self.apart == "error" else None
        open_task: pl.DataFrame | None = None
        try:
            for block in blocks:
                block = block if open_task is None else pl.concat([open_task, block])
                last = _starts(block[self.task])[-1]
                yield from self._tasks(block[:last], seen)
                open_task = block[last:]
            if open_task is None:
                raise TableError("the table has no row", fix="give a table with rows")
            yield from self._tasks(open_task, seen)
        except pl.exceptions.PolarsError as e:
            raise TableError(
                f"the table cannot be read: {str(e).splitlines()[0]}",
                fix="check the file and its encoding",
            ) from e

    def _tasks(self, block: pl.DataFrame, seen: set | None) -> Iterator[Task]:
        """The tasks of whole runs of rows."""
        if not len(block):
            return
        ids = clean(block[self.task])
        if ids.null_count():
            raise TableError(
                f"row {block[self.row][ids.is_null().arg_max()]} has no task id",
                fix="drop it or name its task",
            )
        starts = np.append(_starts(ids), len(block))
        names = ids.gather(starts[:-1]).to_list()
        first = block[self.row].gather(starts[:-1]).to_list()
        if self.order:
            block = self._sorted(block, starts)
        if self.encoder.policy.missing == "drop":
            # Tasks keep their place while rows go, so that one that loses them all is noticed.
            present = _complete(block, self.encoder.inputs)
            block, starts = (
                block.filter(pl.Series(present)),
                np.concatenate([[0], np.cumsum(present)])[starts],
            )
        X, y = self.encoder.transform(block, block[self.row].to_numpy()), self._labels(block)
        for i, name in enumerate(names):
            self._once(name, seen, first[i])
            rows = slice(starts[i], starts[i + 1])
            if rows.start == rows.stop:
                fix = "use policy=Policy(missing=...) with 'indicator' or 'mean'"
                raise TableError(f"the task {name!r} is empty: every row misses a value", fix=fix)
            labels = None if y is None else y[rows]
            if (
                isinstance(self.loss, OneVsAll | Logistic)
                and labels is not None
                and (labels == labels[0]).all()
            ):
                if self.one_class == "drop":
                    continue
                if self.one_class == "error":
                    raise self._one_class(name, labels[0], first[i])
            yield Task(X[rows], labels, loss=self.loss, name=name)

    def _sorted(self, block: pl.DataFrame, starts: np.ndarray) -> pl.DataFrame:
        for c in self.order:
            if (missing := clean(block[c]).is_null()).any():
                row = block[self.row][missing.arg_max()]
                raise TableError(
                    f"the order {c!r} has no value in row {row}", fix="fill it in, or drop the row"
                )
        (run,) = free_names(block.columns, "run")
        runs = pl.Series(run, np.repeat(np.arange(len(starts) - 1), np.diff(starts)))
        # Rows that tie keep the order of the table.
        return block.with_columns(runs).sort(run, *self.order, self.row).drop(run)

    def _labels(self, block: pl.DataFrame) -> np.ndarray | None:
        if self.target is None:
            return None
        y = clean(block[self.target])
        if y.null_count():
            row = block[self.row][y.is_null().arg_max()]
            raise TableError(
                f"the target {self.target!r} has no value in row {row}",
                fix="drop the row: a label cannot be filled in",
            )
        if y.dtype in (pl.String, pl.Categorical, pl.Enum):
            return np.array(y.cast(pl.String).to_list())
        if not (y.dtype.is_numeric() or y.dtype == pl.Boolean):
            raise TableError(
                f"the target {self.target!r} is of type {y.dtype}",
                fix="convert it to numbers or class names",
            )
        return (y.cast(pl.Float64) if y.dtype.is_decimal() else y).to_numpy()

    def _once(self, name: Any, seen: set | None, row: int) -> None:
        if seen is None:
            return
        if name in seen:
            raise TableError(
                f"the task {name!r} appears again at row {row}, apart from its other rows",
                fix=_APART,
            )
        seen.add(name)

    def _one_class(self, name: Any, label: Any, first: int) -> TableError:
        """In a table that is not sorted by task a run of one class is a symptom; a second look
        finds the cause.
        """
        if self.apart == "error":
            rows = (
                self.frame.lazy()
                .select(self.task)
                .with_row_index(self.row)
                .filter(pl.col(self.task) == name)
            )
            held = rows.select(self.row).collect(engine="streaming").to_series().sort().to_numpy()
            gaps = np.flatnonzero(np.diff(held) > 1)
            if gaps.size:
                row = held[gaps[0] + 1]
                return TableError(
                    f"the task {name!r} appears again at row {row}, apart from its other rows",
                    fix=_APART,
                )
        label = label.item() if isinstance(label, np.generic) else label
        what = f"the task {name!r} (from row {first}) has only the class {label!r}"
        return TableError(
            what, fix="use one_class='keep' to play it all the same, or one_class='drop'"
        )


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
