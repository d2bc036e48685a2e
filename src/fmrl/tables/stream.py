"""Tasks from a table as they are asked for: blocks of rows in, whole tasks out, every mistake named
with its row.

Rows of a task that do not lie together are gathered in memory, or for files out of core: two passes
and a scratch folder about as large as the columns used. The first pass counts each task's rows and
notes where it first appears (memory: one entry a task). Tasks are then dealt, in order of first
appearance, into bins of about ``rows`` rows; the second pass copies every row to its bin's files;
then one bin at a time is read and sorted. Memory holds about two bins, whatever the size of the
file. Every row carries its number in the table, for the order and for messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fmrl.core.losses import Logistic, Loss, OneVsAll, Squared
from fmrl.core.tasks import Task, Tasks
from fmrl.errors import FMRLError, TableError
from fmrl.files import scratch
from fmrl.tables.any_table import clean, free_names, is_complete, readable
from fmrl.tables.encoder import Encoder
from fmrl.tables.kinds import TEXT, without_gaps


@dataclass(frozen=True, repr=False)
class TaskStream:
    """Tasks from a table, made as they are asked for by `tasks_from_frame`; can be iterated again.
    Each `Task` carries its id as ``name``.

    Args:
        frame: The columns that are used.
        task: The column of task ids.
        target: The column of labels or numbers; None for cost vectors.
        order: Columns that sort the rounds of a task.
        loss: Of every task; it holds the classes.
        encoder: Turns later rows into the same columns; it belongs with the model.
        apart: A task whose rows do not lie together: 'error', 'gather' or 'split'.
        one_class: A classification task with one class: 'error', 'keep' or 'drop'.
        rows: Rows held in memory at a time when gathering.
        scratch: Folder for temporary files when gathering.
        seekable: Blocks of the frame can be read by their position.
        row: A name that no column has, for the number of a row.
        trained: Ids of the tasks the encoding was learned from; None for all.
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
    trained: pl.Series | None = None

    def __repr__(self) -> str:
        target = "" if self.target is None else f", target={self.target!r}"
        features = f"{len(self.encoder.names)} features"
        return f"TaskStream(task={self.task!r}{target}, {features}, loss={self.loss!r})"

    def __iter__(self) -> Iterator[Task]:
        for tasks in self.blocks():
            yield from map(tasks.task, range(len(tasks)))

    def blocks(self) -> Iterator[Tasks]:
        """The same tasks, many at a time, without a Python object for each."""
        seen = _SeenIds() if self.apart == "error" else None
        open_task: pl.DataFrame | None = None
        left = False  # whether any task is
        with readable():
            for block in self._blocks():
                block = block if open_task is None else pl.concat([open_task, block])
                last = run_edges(block[self.task])[-2]
                for tasks in self.read(block[:last], seen):
                    left = True
                    yield tasks
                open_task = block[last:]
            if open_task is None:
                raise TableError("the table has no row", fix="give a table with rows")
            for tasks in self.read(open_task, seen):
                left = True
                yield tasks
        if not left:
            what = "every task has only one class: one_class='drop' leaves no task"
            raise TableError(what, fix="use one_class='keep', or group rows by another column")

    def read(self, block: pl.DataFrame, seen: _SeenIds | None = None) -> Iterator[Tasks]:
        """The tasks of whole runs of rows; the first mistake raises.

        Args:
            block: Rows with their numbers.
            seen: Ids of earlier blocks, which must not come back.
        """
        if not len(block):
            return
        ids = clean(block[self.task])
        if ids.null_count():
            what = f"row {block[self.row][ids.is_null().arg_max()]} has no task id"
            raise TableError(what, fix="drop it or name its task")
        starts = run_edges(ids)
        ids, first = ids.gather(starts[:-1]), block[self.row].gather(starts[:-1])
        if self.order:
            block = self._sorted(block, starts)
        if self.encoder.policy.missing == "drop":
            # Tasks keep their place while rows go, so that one that loses them all is noticed.
            needed = [*self.encoder.inputs, *filter(None, [self.target])]
            present = block.select(is_complete(needed, block.schema)).to_series()
            starts = np.concatenate([[0], np.cumsum(present.to_numpy())])[starts]
            block = block.filter(present)
        X, y = self.encoder.transform(block, block[self.row].to_numpy()), self._labels(block)
        lengths, alone = np.diff(starts), self._one_class_tasks(y, starts)
        again = np.zeros(len(ids), bool) if seen is None else seen.add(ids)
        for t in np.flatnonzero(again | (lengths == 0) | alone).tolist():
            if again[t] and (row := self._second_run(ids[t])) is not None:
                raise scattered_task(ids[t], row)
            if not lengths[t]:
                fix = "use policy=Policy(missing=...) with 'indicator' or 'mean'"
                raise TableError(f"the task {ids[t]!r} is empty: every row misses a value", fix=fix)
            if alone[t] and self.one_class == "error":
                raise self._one_class_error(ids[t], y[starts[t]], first[t])  # type: ignore[index]
        try:
            target = Task(X, y, loss=self.loss).open().target
        except FMRLError:  # again, to count the rounds of the task in which it is
            for rows in map(slice, starts[:-1], starts[1:]):
                Task(X[rows], None if y is None else y[rows], loss=self.loss)
            raise
        whole = Tasks(self.loss, X, target, starts, ids.to_list())
        if self.one_class != "drop" or not alone.any():
            yield whole
        elif not alone.all():
            yield whole.take(np.flatnonzero(~alone))

    def _one_class_tasks(self, y: np.ndarray | None, starts: np.ndarray) -> np.ndarray:
        """Which classification tasks have one class, [n], unless that does not matter."""
        found, full = np.zeros(len(starts) - 1, bool), np.diff(starts) > 0
        classes = y is not None and isinstance(self.loss, OneVsAll | Logistic)
        if classes and self.one_class != "keep" and full.any():
            same = y == np.repeat(y[starts[:-1][full]], np.diff(starts)[full])
            found[full] = np.logical_and.reduceat(same, starts[:-1][full])
        return found

    def _sorted(self, block: pl.DataFrame, starts: np.ndarray) -> pl.DataFrame:
        for c in self.order:
            if (missing := clean(block[c]).is_null()).any():
                what = f"the order {c!r} has no value in row {block[self.row][missing.arg_max()]}"
                raise TableError(what, fix="fill it in, or drop the row")
        (run,) = free_names(block.columns, "run")
        runs = pl.Series(run, np.repeat(np.arange(len(starts) - 1), np.diff(starts)))
        # Rows that tie keep the order of the table.
        return block.with_columns(runs).sort(run, *self.order, self.row).drop(run)

    def _labels(self, block: pl.DataFrame) -> np.ndarray | None:
        if self.target is None:
            return None
        y, where = clean(block[self.target]), f"the target {self.target!r}"
        if y.null_count():
            row, name = block[y.is_null().arg_max()].select(self.row, self.task).row(0)
            what = f"{where} has no value in row {row} (task {name!r})"
            fix = "drop the row: a label cannot be filled in (policy=Policy(missing='drop') in "
            fix += "training drops them all)"
            raise TableError(what, fix=fix)
        if y.dtype in TEXT and isinstance(self.loss, Squared):
            found = without_gaps(y).cast(pl.Float64, strict=False)
            if (odd := found.is_null()).any():
                at = int(odd.arg_max() or 0)
                what = f"{where} holds {y[at]!r} in row {block[self.row][at]}"
                raise TableError(f"{what}, which is no number", fix="correct it, or drop the row")
            return found.to_numpy()
        if y.dtype in TEXT:
            return np.array(y.cast(pl.String).to_list())
        if not (y.dtype.is_numeric() or y.dtype == pl.Boolean):
            fix = "convert it to numbers or class names"
            raise TableError(f"{where} is of type {y.dtype}", fix=fix)
        return (y.cast(pl.Float64) if y.dtype.is_decimal() else y).to_numpy()

    def _one_class_error(self, name: Any, label: Any, first: int) -> TableError:
        """Where a table is not sorted by task, a run of one class is only a symptom of that."""
        if self.apart == "error" and (row := self._second_run(name)) is not None:
            return scattered_task(name, row)
        label = label.item() if isinstance(label, np.generic) else label
        what = f"the task {name!r} (from row {first}) has only the class {label!r}"
        fix = "use one_class='keep' to play it all the same, or one_class='drop'"
        return TableError(what, fix=fix)

    def _second_run(self, name: Any) -> int | None:
        """The row at which a task's rows go on after others."""
        rows = self.frame.lazy().select(self.task).with_row_index(self.row)
        mine = rows.filter(pl.col(self.task) == name).select(self.row)
        held = mine.collect(engine="streaming").to_series().sort().to_numpy()
        gaps = np.flatnonzero(np.diff(held) > 1)
        return int(held[gaps[0] + 1]) if gaps.size else None

    def _blocks(self) -> Iterator[pl.DataFrame]:
        """Numbered blocks of rows; for 'gather' with every task's rows together in one block."""
        frame, task, row = self.frame, self.task, self.row
        if self.apart != "gather":
            yield from batches(frame, min(self.rows, 100_000), row, self.seekable)
        elif isinstance(frame, pl.DataFrame):
            (rank,) = free_names([*frame.columns, row], "rank")
            first = frame.with_row_index(row).with_columns(pl.col(row).min().over(task).alias(rank))
            yield first.sort(rank, row).drop(rank)
        else:
            if self.scratch is not None and not Path(self.scratch).is_dir():
                what = f"the scratch folder {self.scratch} does not exist"
                raise TableError(what, fix="create it, or leave scratch out")
            with scratch("fmrl-gather-", self.scratch) as folder:
                yield from self._gathered(frame, folder)

    def _gathered(self, frame: pl.LazyFrame, folder: Path) -> Iterator[pl.DataFrame]:
        """Every task's rows together, by way of files in ``folder``."""
        task, row = self.task, self.row
        names = [*frame.collect_schema().names(), row]
        rank, number, size = free_names(names, "rank", "bin", "size")
        rows = frame.select(task).with_row_index(row).group_by(task)
        counted = rows.agg(pl.col(row).min(), pl.len().alias(size)).collect(engine="streaming")
        ranked = counted.sort(row).drop(row).with_row_index(rank)
        # Ranked again, because a task larger than a bin would leave a number unused.
        bin_of = ((pl.col(size).cum_sum() - 1) // self.rows).rank("dense") - 1
        bins = ranked.select(task, rank, bin_of.alias(number))
        waiting: dict[int, list[pl.DataFrame]] = {}
        held = written = 0

        def flush() -> None:
            nonlocal held, written
            for bin_, parts in waiting.items():
                (folder / str(bin_)).mkdir(exist_ok=True)
                path = folder / str(bin_) / f"{written:06d}.arrow"
                pl.concat(parts).write_ipc(path, compression="lz4")
            waiting.clear()
            held, written = 0, written + 1

        for block in batches(frame, min(self.rows, 200_000), row, self.seekable):
            # A row without a task id has a bin too: it is reported when its bin is read.
            known = block.join(bins, on=task, how="left", nulls_equal=True)
            for (bin_,), part in known.partition_by(
                number, as_dict=True, include_key=False
            ).items():
                waiting.setdefault(int(bin_), []).append(part)
            held += len(block)
            if held >= self.rows:
                flush()
        flush()
        for bin_ in range(int(bins[number].max()) + 1 if len(bins) else 0):
            files = sorted((folder / str(bin_)).glob("*.arrow"))
            yield pl.concat([pl.read_ipc(f) for f in files]).sort(rank, row).drop(rank)
            for file in files:
                file.unlink()


def batches(
    frame: pl.LazyFrame | pl.DataFrame, size: int, row: str, seekable: bool = False
) -> Iterator[pl.DataFrame]:
    """Blocks of about ``size`` rows in file order, with their numbers in column ``row``; a frame in
    memory is one block.

    seekable (Parquet and Arrow files): blocks are read by their position, which holds one block in
    memory; a single query would read ahead by as much as the file."""
    if isinstance(frame, pl.DataFrame):
        blocks: Any = [frame]
    elif seekable:
        total = frame.select(pl.len()).collect(engine="streaming").item()
        starts = range(0, total, size)
        blocks = (frame.slice(start, size).collect(engine="streaming") for start in starts)
    else:
        blocks = frame.collect_batches(chunk_size=size, maintain_order=True, lazy=True)
    done = 0
    for block in blocks:
        if len(block):
            yield block.with_row_index(row, offset=done)
            done += len(block)


def run_edges(ids: pl.Series) -> np.ndarray:
    """Where runs of equal ids begin, and the end."""
    change = ids.ne_missing(ids.shift(1)).to_numpy().copy()
    change[:1] = True
    return np.append(np.flatnonzero(change), len(ids))


class _SeenIds:
    """Ids met so far, eight bytes each: a hash that was met is looked up in the table."""

    def __init__(self):
        self.hashes = np.empty(0, np.uint64)

    def add(self, ids: pl.Series) -> np.ndarray:
        """Which of these ids [n] may have been met before, among themselves too."""
        found = (ids.cast(pl.String) if ids.dtype in TEXT else ids).hash().to_numpy()
        order = np.argsort(found, kind="stable")
        found = found[order]
        known = np.searchsorted(self.hashes, found, "right") > np.searchsorted(self.hashes, found)
        known[1:] |= found[1:] == found[:-1]
        self.hashes = np.sort(np.concatenate([self.hashes, found]), kind="stable")
        again = np.empty(len(ids), bool)
        again[order] = known
        return again


def scattered_task(name: Any, row: int) -> TableError:
    """The error for a task whose rows do not lie together.

    Args:
        name: Of the task.
        row: At which its rows go on after others.
    """
    what = f"the task {name!r} appears again at row {row}, apart from its other rows"
    fix = "use apart='gather' to bring its rows together"
    return TableError(what, fix=f"{fix}, or apart='split' if they are different tasks")
