"""Training on a Ray cluster: the pilot decides here, all training tasks are played there, and
everything after is the local code.

The tables are Parquet files whose tasks lie together. This machine reads them, too: once for their
checksums, once for the encoding, and once more for the rows that the evaluation needs (and for the
models of tasks seen, where they are kept). Solving and playing, which take the time, are Ray's.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fmrl.cluster.columns import read_block
from fmrl.cluster.engine import Played, Ray
from fmrl.cluster.groups import FIX, Block, Group, cut, index_file, join, open_file
from fmrl.cluster.tables import Tables
from fmrl.cluster.workers import OnRay
from fmrl.core.losses import Loss
from fmrl.core.tasks import Tasks
from fmrl.datasets import Encoder, TableError
from fmrl.errors import FMRLError
from fmrl.runs import folder
from fmrl.runs.options import Options
from fmrl.runs.source import Source, not_empty, open_source
from fmrl.runs.training import Session, Stopped
from fmrl.tables.frames import id_text

KINDS = (".parquet", ".pq")


def parquet_files(table: str) -> list[Path]:
    """The Parquet files of a folder, a glob or a path, in the order they are read; anything else
    cannot be shared out.
    """
    if find_spec("ray") is None or find_spec("pyarrow") is None:
        what = "the engine 'ray' needs Ray, which is not installed"
        raise FMRLError(what, fix='pip install "fmrl[ray]"')
    found = [Path(f).absolute() for f in Tables(table).files()]  # workers may run in another folder
    if wrong := [f for f in found if f.suffix.lower() not in KINDS or not f.is_file()]:
        what = f"the engine 'ray' reads Parquet files only, and {wrong[0]} is not one"
        fix = "convert it, give a folder of Parquet files or a quoted glob, "
        raise TableError(what, fix=fix + "or leave out --engine ray")
    return found


@dataclass
class Blocks:
    """Tasks of Parquet files read here, block after block, as the workers read them; what they skip
    is not among them.
    """

    tables: Tables
    parts: list[Block]
    skip: bool
    left_out: frozenset[str] = frozenset()  # tasks that could be read, but not solved

    def blocks(self) -> Iterator[Tasks]:
        """The tasks of one part after another."""
        for part in self.parts:
            tasks, _, _ = self.tables.tasks(part.spans, self.skip)
            names = [] if tasks is None else tasks.names.tolist()
            kept = np.flatnonzero([id_text(name) not in self.left_out for name in names])
            if len(kept):
                yield tasks.take(kept)  # type: ignore[union-attr]


def open_tables(
    options: Options, encoder: Encoder | None, loss: Loss | None, expected: int | None
) -> Source:
    """Open the Parquet files of a run; encoder, loss, expected as in `open_source`."""
    files, skip = [str(f) for f in parquet_files(options.table)], options.skip_bad_tasks
    groups, bad = join([g for f in files for g in index_file(f, options.task)], skip)
    if not groups:
        fix = "; ".join(g.error or "" for g in bad[:3]) or "check the path"
        raise TableError("no file of the table can be read", fix=fix)
    if encoder is None:
        columns = [options.task, options.target, *options.features] if options.features else None
        frame = _readable(groups, columns) if skip else pl.scan_parquet(files)
        try:
            found = open_source(options, frame=frame)
            ids = frame.select(pl.col(options.task).n_unique()).collect(engine="streaming").item()
        except (TableError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
            for g in groups:  # polars does not say where: look for a place that cannot be read
                _try(g, columns)
            raise
        if not skip and ids != (runs := sum(g.runs - g.joined for g in groups)):
            what = f"the rows of {ids:,} tasks lie in {runs:,} places"
            fix = "on Ray the rows of a task lie together: sort the table by task, "
            raise TableError(what, fix=fix + "or use --engine local")
        encoder, loss, expected = found.encoder, found.loss, found.expected
    readable = list(dict.fromkeys(g.file for g in groups))
    opened = _tables(options, loss, encoder).opened(open_file(readable[0]).schema_arrow, readable)
    stream, share = Blocks(opened, cut(groups, None, 1), skip), 1.0 - options.holdout
    return Source(stream, opened.encoder, opened.loss, share, expected)  # type: ignore[arg-type]


def _tables(options: Options, loss: Loss | None, encoder: Encoder | None, **more: Any) -> Tables:
    files = [str(f) for f in parquet_files(options.table)]
    given = (options.task, options.target, None, loss, encoder, options.one_class)
    return Tables(files, *given, **more)


def _try(g: Group, columns: list[str] | None) -> None:
    """Read a row group, or say that it cannot be read."""
    import pyarrow as pa

    try:
        open_file(g.file).read_row_group(g.group, columns=columns)
    except (pa.ArrowException, OSError) as error:
        what = f"{g.place} cannot be read: {str(error).splitlines()[0]}"
        raise TableError(what, fix=FIX) from None


def _readable(groups: list[Group], columns: list[str] | None) -> pl.LazyFrame:
    """The row groups that can be read, as one table: what encoding and loss are learned from."""
    parts = []
    for g in groups:
        try:
            _try(g, columns)
        except TableError:
            continue
        rows = open_file(g.file).metadata.row_group(g.group).num_rows
        parts.append(pl.scan_parquet(g.file).slice(g.offset, rows))
    if not parts:
        raise TableError("no row group of the table can be read", fix="write the files again")
    return pl.concat(parts, how="vertical_relaxed")


class RaySession(Session):
    """A run whose tasks are played on Ray; rounds and optima lie in its folder, block by block."""

    played: Played
    size: dict[str, int]

    def __init__(self, *given: Any):
        *given, self.address, self.view = given
        super().__init__(*given)

    def play(self, every: int, stop: Callable[[], bool]) -> None:
        """Play the blocks that no session before has finished."""
        self.progress("playing", 0, self.source.expected)
        self.before = self.saved = self._finished()
        try:
            first = next((w.tasks for w in self.source.windows() if w.tasks is not None), None)
            not_empty(0 if first is None else len(first))
            self.begin(first)
            self._on_ray(stop)
            self._look()
        except KeyboardInterrupt:
            raise self.stopped() from None
        self.done = self.saved = len(self.names)

    def _on_ray(self, stop: Callable[[], bool]) -> None:
        options, run, done = self.settings.options, self.run, 0

        def check() -> None:
            if stop():
                raise KeyboardInterrupt

        def view(ledger: Any) -> None:
            self.view(ledger)
            check()

        def progress(tasks: int) -> None:
            nonlocal done
            done += tasks
            self.progress("playing", done, self.source.expected)
            check()  # the last blocks may end together, with nothing left to view

        more = {"share": self.source.share, "coordinates": run.coordinates}
        tables = _tables(options, self.source.loss, self.source.encoder, **more)
        engine = Ray(out=self.out, skip_bad_tasks=options.skip_bad_tasks, alone=False)
        begun, mapper = run.history, OnRay(self.address, view=view)
        given = {"state": begun.start, "meta_batch": options.meta_batch, "keep": begun.keep}
        try:
            self.played = engine.play(begun.algo, tables, **given, progress=progress, mapper=mapper)
            self.size = mapper.size() | {"workers": len(self.played.ledger.workers)}
        finally:
            mapper.close()
        run.history = self.played.history(begun.keep)

    def _look(self) -> None:
        """What the evaluation needs of the rows; names in the order they were played."""
        played: list[str] = []
        for block in self.played.blocks:
            found = read_block(self.out / "rounds" / f"{block.number:08d}.parquet", ["task"])
            played += [id_text(name) for name in (found["task"].tolist() if found else ())]
        self._read_windows()
        if skipped := frozenset(self.names) - set(played):
            self.source.stream.left_out = skipped
            self._read_windows()
        if len(set(played)) < len(played):
            fix = "sort the table by task, and train anew"
            raise TableError("the rows of a task do not lie together", fix=fix)
        if self.names.to_list() != played:
            what = "the table is not what it was when its tasks were played"
            raise FMRLError(what, fix="train anew in another folder")

    def _read_windows(self) -> None:
        self.set_aside()
        for _ in self.windows():
            self.progress("reading for the evaluation", len(self.names), self.source.expected)

    def _finished(self) -> int:
        files = sorted((self.out / "rounds").glob("[0-9]*.parquet"))
        found = (read_block(path, ["regret"]) for path in files)
        return sum(len(columns["regret"]) for columns in found if columns is not None)

    def give_up(self) -> None:
        """Optima take the time: a run that has some of them has begun."""
        if not any((self.out / "optima").glob("[0-9]*.parquet")):
            for name in (folder.SETTINGS, folder.CHECKPOINT, "run.json"):
                (self.out / name).unlink(missing_ok=True)
            for name in ("optima", "rounds"):
                shutil.rmtree(self.out / name, ignore_errors=True)

    def stopped(self) -> Stopped:
        """As of a local run; blocks are saved as they end."""
        self.saved = self._finished()
        return super().stopped()

    def about(self) -> dict[str, Any]:
        """The cluster, the meta-batch, and what was skipped."""
        ledger = self.played.ledger.to_dict()
        engine = {"name": "ray", **self.size, "meta_batch": self.played.meta_batch}
        skipped = [vars(s) for s in self.played.skipped]
        return {"engine": engine | {"progress": ledger}, "skipped": skipped}
