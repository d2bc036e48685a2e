"""Where tasks come from: the files of a table, opened as a stream of windows of whole tasks, some
of them held out.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from fmrl.core.losses import Loss, Squared
from fmrl.core.tasks import Task
from fmrl.datasets import Encoder, TableError, TaskStream, tasks_from_frame, training_ids
from fmrl.errors import FMRLError
from fmrl.estimators.pack import Table
from fmrl.estimators.playing import WINDOW
from fmrl.runs.options import Options
from fmrl.tables.frames import id_text


class Window(NamedTuple):
    """The next tasks of a stream."""

    names: list[str]  # of the training tasks
    tasks: Table | None  # their rows; None if there are none
    held: list[Task]  # held-out tasks met on the way


@dataclass(frozen=True)
class Source:
    """A table opened for training; reading it again gives the same windows."""

    stream: TaskStream | Any  # or anything else that has a loss and an encoder, and gives the same tasks again
    share: float  # of the tasks, to train on
    expected: int  # training tasks, before any are dropped

    @property
    def loss(self) -> Loss:
        """Squared, Logistic or OneVsAll, with the labels."""
        return self.stream.loss

    @property
    def encoder(self) -> Encoder:
        """How columns become numbers."""
        return self.stream.encoder

    def windows(self) -> Iterator[Window]:
        """Windows of `WINDOW` training tasks each, the last one perhaps smaller."""
        held: list[Task] = []
        train: list[Task] = []
        for task in self.stream:
            (train if self.share >= 1 or training_ids([task.name], self.share) else held).append(task)
            if len(train) == WINDOW:
                yield _window(train, held)
                train, held = [], []
            elif len(held) == WINDOW:
                yield _window([], held)
                held = []
        if train or held:
            yield _window(train, held)


def _window(train: list[Task], held: list[Task]) -> Window:
    return Window([id_text(t.name) for t in train], rows_of(train) if train else None, held)


def rows_of(tasks: list[Task]) -> Table:
    """Tasks as one table of rows, labels as positions among the classes."""
    sizes = np.array([t.rounds for t in tasks])
    X = np.concatenate([t.X for t in tasks])
    return Table(X, np.concatenate([targets(t) for t in tasks]), None, np.cumsum(sizes) - sizes, sizes)


def targets(task: Task) -> np.ndarray:
    """Positions of the labels of a task, or its numbers, [n]."""
    target = task.open().target
    return target.argmax(axis=1) if target.shape[1] > 1 else target[:, 0].astype(float if _quantity(task.loss) else int)


def _quantity(loss: Loss) -> bool:
    return isinstance(loss, Squared)


def classes_of(loss: Loss) -> list | None:
    """The labels, in the order of the model's outputs; None for a regression."""
    return None if _quantity(loss) else list(loss.classes)  # type: ignore[attr-defined]


def files(table: str, engine: str = "local") -> list[Path]:
    """The files a path or glob names, sorted."""
    if engine == "ray":
        from fmrl.runs.cluster import parquet_files

        return parquet_files(table)
    found = [Path(table)] if Path(table).exists() else [Path(p) for p in sorted(glob.glob(table))]
    if not found:
        raise TableError(f"{table} does not exist", fix="check the path")
    if wrong := [p for p in found if not p.is_file()]:
        raise TableError(f"{wrong[0]} is not a file", fix="give a file, or a quoted glob such as 'part-*.parquet'")
    return found


def open_source(
    options: Options,
    encoder: Encoder | None = None,
    loss: Loss | None = None,
    expected: int | None = None,
    scratch: Path | None = None,
    frame: pl.LazyFrame | None = None,
) -> Source:
    """Open the table of a run. encoder, loss, expected: what an earlier session found out, so as
    not to look again.

    scratch: where rows that lie apart are gathered. frame: what to read in place of the table's
    files. """
    if frame is None and options.engine == "ray":
        from fmrl.runs.cluster import open_tables

        return open_tables(options, encoder, loss, expected)
    if frame is None:
        files(options.table)
    table: Any = options.table if frame is None else frame
    share = 1.0 - options.holdout
    given: dict[str, Any] = {"task": options.task, "target": options.target, "order": options.order or None}
    given |= {"apart": options.apart, "one_class": options.one_class, "rows": options.rows, "scratch": scratch}
    if encoder is None:
        given |= {"features": options.features or None, "policy": options.policy, "train": None if share >= 1 else share}
    try:
        stream = tasks_from_frame(table, loss=loss or options.kind, encoder=encoder, **given)
        stream = stream if encoder is not None else replace(stream, encoder=_rounded(stream.encoder))
        if expected is None:
            ids = stream.frame.lazy().select(pl.col(options.task).n_unique())
            expected = len(stream.trained) if stream.trained is not None else ids.collect(engine="streaming").item()
    except pl.exceptions.PolarsError as e:
        raise TableError(f"the table cannot be read: {str(e).splitlines()[0]}", fix="check the file and its encoding") from e
    return Source(stream, share, expected)


def _rounded(encoder: Encoder) -> Encoder:
    """Means and deviations to nine digits: the last bits of a stream's sums depend on how it was
    cut into blocks.
    """

    def nine(x: float) -> float:
        return float(f"{x:.9g}")

    columns = (replace(c, fill=nine(c.fill), centre=nine(c.centre), spread=nine(c.spread)) for c in encoder.columns)
    return Encoder(tuple(columns), encoder.policy)


def not_empty(source: Source, played: int) -> None:
    """Refuse a run that had nothing to learn from."""
    if not played:
        raise FMRLError(
            "no task is left to train on", fix="hold out fewer (holdout), or keep tasks of one class (one_class='keep')"
        )
