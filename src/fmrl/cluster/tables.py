"""Tables: a folder of Parquet files (or a Ray Dataset) as tasks, and how its rows become the
Tasks of one block.

Files are taken in the order of their names, row groups and rows as they lie. The rows of a task
lie together; a task may go on in the next row group or file. What cannot be read names the file
and the row group."""

from __future__ import annotations

import glob
import itertools
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fmrl.cluster.groups import Group, read_span
from fmrl.core.losses import Loss
from fmrl.core.tasks import Tasks
from fmrl.errors import FMRLError, TableError
from fmrl.estimators.rows import joined
from fmrl.tables.any_table import no_column_error
from fmrl.tables.encoder import Column, Encoder, Policy, kind_of
from fmrl.tables.frames import tasks_from_frame, training_ids
from fmrl.tables.stream import TaskStream, run_edges, scattered_task


@dataclass(frozen=True)
class Skipped:
    """A task, or all tasks of a row group, left out because it cannot be used. ``tasks`` is −1
    where nobody can count them.
    """

    where: str
    what: str
    tasks: int = 1


@dataclass(frozen=True)
class Tables:
    """Where tasks lie and which columns they are made of: the same words as
    `fmrl.tasks_from_frame`.

    Args:
        source: A folder, a glob, a file, a list of files, or a ray.data.Dataset.
        task: The column of task ids.
        target: The column of labels or numbers.
        features: The other columns (default: all but task and target).
        loss: Found as `tasks_from_frame` finds it if left out, which may take a pass over the data
            on this machine.
        encoder: The same; number columns need none.
        one_class: What to do with tasks of one class: 'error', 'keep' or 'drop'.
        share: Of the tasks, to play: those `fmrl.data.training_ids` chooses.
        coordinates: A change of coordinates after the encoder, such as that of an estimator: any
            value with ``width`` and ``tasks(tasks)`` that can be sent to a worker.
        reader: Made by `opened`.
    """

    source: Any
    task: str = "task"
    target: str | None = "target"
    features: tuple[str, ...] | None = None
    loss: Loss | None = None
    encoder: Encoder | None = None
    one_class: str = "error"
    share: float = 1.0
    coordinates: Any = None
    reader: TaskStream | None = field(default=None, repr=False)  # made by `opened`

    def files(self) -> list[str]:
        """The Parquet files, in the order they are read."""
        if isinstance(self.source, (list, tuple)):
            return [str(f) for f in self.source]
        if not isinstance(self.source, (str, os.PathLike)):
            what = f"a {type(self.source).__name__} is not a folder of Parquet files"
            raise TableError(what, fix="give its path")
        path = Path(self.source)
        if path.is_dir():
            # Names that begin with a dot are files still being written.
            found = [f for ending in ("parquet", "pq") for f in path.rglob(f"[!.]*.{ending}")]
            found = sorted(map(str, found))
        else:
            found = [str(path)] if path.exists() else sorted(glob.glob(str(path)))
        if not found:
            raise TableError(f"there is no Parquet file in {path}", fix="check the path")
        return found

    def opened(self, sample: Any, files: list[str] | None) -> Tables:
        """With loss and encoder decided. sample: the Arrow schema of the first readable file;
        files: None for a Ray Dataset.
        """
        schema = pl.from_arrow(sample.empty_table()).schema  # type: ignore[union-attr]
        names = [n for n in (self.task, self.target) if n is not None]
        others = self.encoder.inputs if self.encoder else (c for c in schema if c not in names)
        features = self.features or tuple(others)
        if absent := [c for c in (*names, *features) if c not in schema]:
            raise no_column_error(absent[0], schema)
        encoder, loss = self.encoder, self.loss
        if encoder is None and all(kind_of(f, schema[f]) == "number" for f in features):
            encoder = Encoder(tuple(Column(f, dtype=str(schema[f])) for f in features), Policy())
        if encoder is None or loss is None:
            if files is None:
                what = "a Ray Dataset does not say its loss or its encoder"
                raise TableError(what, fix="give loss= and encoder=")
            given: Any = {"encoder": encoder} if encoder else {"features": features}
            given |= {"task": self.task, "target": self.target, "loss": loss}
            stream = tasks_from_frame(pl.scan_parquet(files), **given)
            encoder, loss = stream.encoder, stream.loss
        columns = self.task, self.target, ()
        rest = loss, encoder, "split", self.one_class
        reader = TaskStream(pl.DataFrame(), *columns, *rest, row="fmrl row")
        decided = {"features": features, "loss": loss, "encoder": encoder, "reader": reader}
        return replace(self, source=None, **decided)

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        assert self.encoder is not None
        target = [self.target] if self.target else []
        return list(dict.fromkeys([self.task, *target, *self.encoder.inputs]))

    @property
    def width(self) -> int:
        """Columns of a row as it is played."""
        assert self.encoder is not None
        return len(self.encoder.names) if self.coordinates is None else self.coordinates.width

    def tasks(
        self, spans: tuple[Group, ...], skip: bool, held: Any = None
    ) -> tuple[Tasks | None, list[Skipped], int]:
        """The tasks of a block, what was left out of it, and the bytes read. held: tables in
        memory, by the name of their file.
        """
        frames: list[pl.DataFrame | None] = []
        skipped, size = [], 0
        for span in spans:
            try:
                table, first = read_span(span, self.columns, self.task, held)
            except TableError as error:
                if not skip:
                    raise
                skipped.append(Skipped(span.place, error.what, span.used))
                frames.append(None)
                continue
            size += table.nbytes
            rows = pl.Series("fmrl row", np.arange(first, first + len(table)))
            place = pl.Series("fmrl place", np.full(len(table), len(frames)))
            frames.append(pl.from_arrow(table).with_columns(rows, place))  # type: ignore[union-attr,arg-type]
        readable = [f for f in frames if f is not None]
        if torn := _torn(frames, spans, self.task):
            said = (f"the task {name!r} has rows that cannot be read" for name in torn)
            skipped += [Skipped(spans[0].place, what) for what in said]
            readable = [f.filter(~pl.col(self.task).is_in(torn)) for f in readable]
        if not sum(map(len, readable)):
            return None, skipped, size
        table = pl.concat(readable, how="vertical_relaxed")
        tasks, bad = self._read(table, spans, skip)
        return self._played(tasks), skipped + bad, size

    def _played(self, tasks: Tasks | None) -> Tasks | None:
        """The share of the tasks that is played, in the coordinates they are played in."""
        if tasks is not None and self.share < 1:
            chosen = [bool(training_ids([name], self.share)) for name in tasks.names.tolist()]
            tasks = tasks.take(np.flatnonzero(chosen)) if any(chosen) else None
        if tasks is None or self.coordinates is None:
            return tasks
        return self.coordinates.tasks(tasks)

    def _read(
        self, block: pl.DataFrame, spans: tuple[Group, ...], skip: bool
    ) -> tuple[Tasks | None, list[Skipped]]:
        reader = self.reader
        assert reader is not None
        starts = run_edges(block[self.task])
        names = block[self.task].gather(starts[:-1])
        if names.n_unique() == len(names):
            try:
                return next(map(named, reader.read(block)), None), []
            except FMRLError:
                pass  # one by one, to say which task it was
        good, bad, seen = [], [], set()
        for begin, end in itertools.pairwise(starts):
            rows = block[int(begin) : int(end)]
            name = rows[self.task][0]
            try:
                if name in seen:
                    raise scattered_task(name, rows["fmrl row"][0])
                seen.add(name)
                good += reader.read(rows)
            except FMRLError as error:
                where = f"{spans[rows['fmrl place'][0]].place}, task {name!r}"
                if not skip:
                    fix = "sort the table by task" if "appears again" in error.what else error.fix
                    raise TableError(f"{where}: {error.what}", round=error.round, fix=fix) from None
                bad.append(Skipped(where, error.what))
        return (named(joined(good)) if good else None), bad


def named(tasks: Tasks) -> Tasks:
    """With names as an array of one kind, as files hold them."""
    names = list(tasks.names)
    plain = len({type(name) for name in names}) == 1
    return replace(tasks, names=np.array(names if plain else [str(name) for name in names]))


def _torn(frames: list[pl.DataFrame | None], spans: tuple[Group, ...], task: str) -> list:
    """Ids of tasks that reach into a span which could not be read."""
    ids = []
    for i, frame in enumerate(frames):
        if frame is not None:
            continue
        before, after = (frames[j] if 0 <= j < len(frames) else None for j in (i - 1, i + 1))
        if spans[i].joined and before is not None:
            ids.append(before[task][-1])
        if after is not None and spans[i + 1].joined:
            ids.append(after[task][0])
    return ids
