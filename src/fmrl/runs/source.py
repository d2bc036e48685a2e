"""Where tasks come from: the files of a table, opened as a stream of windows of whole tasks, some
of them held out.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from fmrl.core.losses import Loss, Squared
from fmrl.core.tasks import Tasks
from fmrl.datasets import Encoder, TableError, tasks_from_frame, training_ids
from fmrl.errors import FMRLError
from fmrl.estimators.rows import joined
from fmrl.runs.algorithm_run import WINDOW
from fmrl.runs.options import Options
from fmrl.tables.any_table import readable
from fmrl.tables.frames import id_text


class Window(NamedTuple):
    """The next tasks of a stream; None for none."""

    tasks: Tasks | None  # to train on
    held: Tasks | None  # held-out tasks met on the way

    @property
    def names(self) -> list[str]:
        return [] if self.tasks is None else list(self.tasks.names)


@dataclass(frozen=True)
class Source:
    """A table opened for training; reading it again gives the same windows."""

    stream: Any  # of tasks, the same each time
    encoder: Encoder
    loss: Loss  # Squared, Logistic or OneVsAll, with the labels
    share: float  # of the tasks, to train on
    expected: int  # training tasks, before any are dropped

    def windows(self) -> Iterator[Window]:
        return windows(self.stream.blocks(), self.share)


def windows(blocks: Iterable[Tasks], share: float = 1.0) -> Iterator[Window]:
    """Windows of `WINDOW` training tasks each, the last one perhaps smaller; all but a ``share`` of
    the tasks, chosen by their names, are held out.
    """
    pieces: list[list[Tasks]] = [[], []]  # to train on, and held out
    for tasks in blocks:
        names = [id_text(name) for name in tasks.names]
        tasks, first = replace(tasks, names=names), 0
        chosen = None if share >= 1 else set(training_ids(names, share))
        held = np.array([chosen is not None and name not in chosen for name in names])
        counts = np.cumsum(~held), np.cumsum(held)
        while first < len(held):
            # Up to where one of the two is full.
            room = [WINDOW - sum(map(len, some)) for some in pieces]
            before = [int(c[first - 1]) if first else 0 for c in counts]
            ends = [np.searchsorted(c, b + r) for c, b, r in zip(counts, before, room, strict=True)]
            last = min(int(min(ends)) + 1, len(held))
            for out, some in enumerate(pieces):
                (like,) = np.nonzero(held[first:last] == out)
                if len(like):
                    some.append(tasks.take(first + like))
            first = last
            if sum(map(len, pieces[0])) == WINDOW:
                yield _window(*pieces)
                pieces = [[], []]
            elif sum(map(len, pieces[1])) == WINDOW:
                yield _window([], pieces[1])
                pieces[1] = []
    if any(pieces):
        yield _window(*pieces)


def _window(train: list[Tasks], held: list[Tasks]) -> Window:
    return Window(*(joined(some) if some else None for some in (train, held)))


def classes_of(loss: Loss) -> list | None:
    """The labels, in the order of the model's outputs; None for a regression."""
    return None if isinstance(loss, Squared) else list(loss.classes)  # type: ignore[attr-defined]


def files(table: str, engine: str = "local") -> list[Path]:
    """The files a path or glob names, sorted."""
    if engine == "ray":
        from fmrl.runs.cluster import parquet_files

        return parquet_files(table)
    found = [Path(table)] if Path(table).exists() else [Path(p) for p in sorted(glob.glob(table))]
    if not found:
        raise TableError(f"{table} does not exist", fix="check the path")
    if wrong := [p for p in found if not p.is_file()]:
        fix = "give a file, or a quoted glob such as 'part-*.parquet'"
        raise TableError(f"{wrong[0]} is not a file", fix=fix)
    return found


def open_source(
    options: Options,
    encoder: Encoder | None = None,
    loss: Loss | None = None,
    expected: int | None = None,
    scratch: Path | None = None,
    frame: pl.LazyFrame | None = None,
) -> Source:
    """Open the table of a run.

    Args:
        options: What was asked for.
        encoder: Found out by an earlier session, like ``loss`` and ``expected``.
        loss: With the labels.
        expected: Training tasks.
        scratch: Where rows that lie apart are gathered.
        frame: What to read in place of the table's files.
    """
    if frame is None and options.engine == "ray":
        from fmrl.runs.cluster import open_tables

        return open_tables(options, encoder, loss, expected)
    if frame is None:
        files(options.table)
    table: Any = options.table if frame is None else frame
    share = 1.0 - options.holdout
    given: dict[str, Any] = {"task": options.task, "target": options.target}
    given |= {"order": options.order or None, "apart": options.apart, "scratch": scratch}
    given |= {"one_class": options.one_class, "rows": options.rows, "encoder": encoder}
    if encoder is None:
        given |= {"features": options.features or None, "policy": options.policy}
        given |= {"ignore": options.ignore or None}
        given |= {"train": None if share >= 1 else share}
    with readable():
        stream = tasks_from_frame(table, loss=loss or options.kind, **given)
        if encoder is None:
            stream = replace(stream, encoder=_rounded(stream.encoder))
        if expected is None and stream.trained is not None:
            expected = len(stream.trained)
        elif expected is None:
            ids = stream.frame.lazy().select(pl.col(options.task).n_unique())
            expected = ids.collect(engine="streaming").item()
    return Source(stream, stream.encoder, stream.loss, share, expected)


def _rounded(encoder: Encoder) -> Encoder:
    """Means and deviations to nine digits: the last bits of a stream's sums depend on how it was
    cut into blocks.
    """
    numbers = ("fill", "centre", "spread")
    columns = (
        replace(c, **{name: float(f"{getattr(c, name):.9g}") for name in numbers})
        for c in encoder.columns
    )
    return Encoder(tuple(columns), encoder.policy)


def not_empty(played: int) -> None:
    """Refuse a run that had nothing to learn from."""
    if not played:
        fix = "hold out fewer (holdout), or keep tasks of one class (one_class='keep')"
        raise FMRLError("no task is left to train on", fix=fix)
