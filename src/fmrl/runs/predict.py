"""Using a run: adapt to the tasks of a table, and predict the rows of one, in blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

from fmrl.datasets import TableError, tasks_from_frame
from fmrl.errors import FMRLError
from fmrl.estimators.playing import WINDOW
from fmrl.estimators.task_models import probabilities
from fmrl.runs import folder
from fmrl.runs.models import Models, adapt_all
from fmrl.runs.run import Run
from fmrl.runs.source import files, rows_of
from fmrl.runs.user_units import in_user_units, unscaled
from fmrl.tables.any_table import as_polars, clean, free_names, is_seekable
from fmrl.tables.encoder import same_kind
from fmrl.tables.frames import id_text
from fmrl.tables.stream import batches

BLOCK = 1 << 22  # numbers of a block of rows and of the models gathered for them
TEXT = {".csv": ",", ".tsv": "\t"}
BINARY: dict[str, Callable[..., Any]] = {".parquet": pl.LazyFrame.sink_parquet, ".arrow": pl.LazyFrame.sink_ipc}


def adapt(run: Run, table: str, progress: Callable[[int], None] = lambda n: None) -> Models:
    """Models of the tasks in a table of labelled rows, which has the columns that were trained on.
    """
    options = run.settings.options
    given = {"task": options.task, "target": options.target, "order": options.order or None, "rows": options.rows}
    files(table)
    stream = tasks_from_frame(
        table, **given, apart=options.apart, one_class="keep", encoder=run.encoder, loss=run.settings.loss
    )

    def windows() -> Iterator[tuple[list[str], Any]]:
        held: list = []
        for task in stream:
            held.append(task)
            if len(held) == WINDOW:
                yield [id_text(t.name) for t in held], rows_of(held)
                progress(len(held))
                held = []
        if held:
            yield [id_text(t.name) for t in held], rows_of(held)
            progress(len(held))

    return adapt_all(run.prior, run.encoder, windows(), run.record["files"][folder.MODEL])


def predict(
    run: Run, table: str, out: Path, adapted: Models | None = None, progress: Callable[[int], None] = lambda n: None
) -> dict[str, int]:
    """Predict every row of a table, in its order, into a file; returns how many rows each kind of
    model predicted.

    A row is predicted by the model of its task: one that was ``adapted``, or one ``seen`` in
    training; where there is neither, by the common ``start``, what is known before any row of a
    task. The column ``model`` says which. The target column need not be there. """
    if out.suffix not in (*TEXT, *BINARY):
        raise FMRLError(f"{out.name} is of no known kind", fix=f"name it {', '.join([*TEXT, *BINARY])}")
    if any(out.resolve() == path.resolve() for path in files(table)):
        raise FMRLError(f"{out} is the table itself", fix="name another file for the predictions")
    if adapted is not None and adapted.run != run.record["files"][folder.MODEL]:
        raise FMRLError("these models were adapted from another run", fix="adapt again: fmrl adapt RUN TABLE")
    known = {"seen": run.models, "adapted": adapted}
    crowd = _Crowd(run, {name: models for name, models in known.items() if models is not None})
    counts = dict.fromkeys((*known, "start"), 0)

    def blocks() -> Iterator[pl.DataFrame]:
        for block in _rows(run, table, crowd.size):
            said = crowd.predict(block)
            for name, n in said[said.columns[-1]].value_counts().iter_rows():
                counts[name] += n
            yield said
            progress(len(block))

    with folder.atomic(out) as partial:
        try:
            (_write_text if out.suffix in TEXT else _write_binary)(blocks(), partial)
        except pl.exceptions.PolarsError as error:
            raise FMRLError(f"the predictions cannot be written: {str(error).splitlines()[0]}", fix="check the disk") from None
        if not sum(counts.values()):
            raise TableError("the table has no row", fix="give a table with rows")
    return counts


def _write_text(blocks: Iterator[pl.DataFrame], path: Path) -> None:
    with path.open("wb") as file:
        for i, block in enumerate(blocks):
            block.write_csv(file, separator=TEXT[path.suffix], include_header=i == 0)


def _write_binary(blocks: Iterator[pl.DataFrame], path: Path) -> None:
    """Block by block to files of their own, which are then streamed into one."""
    with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch:
        parts = []
        for i, block in enumerate(blocks):
            parts.append(Path(scratch) / f"{i:06d}.arrow")
            block.write_ipc(parts[-1], compression="lz4")
        if parts:
            BINARY[path.suffix](pl.scan_ipc(parts), path)


def _rows(run: Run, table: str, size: int) -> Iterator[pl.DataFrame]:
    """Blocks of the columns that predicting needs."""
    files(table)
    task, encoder = run.settings.options.task, run.encoder
    try:
        frame = as_polars(table, {task: pl.String} | {c.name: _kind(c) for c in encoder.columns}).lazy()
        schema = frame.collect_schema()
        needed = list(dict.fromkeys([task, *encoder.inputs]))
        if absent := [c for c in needed if c not in schema]:
            raise TableError(f"there is no column {absent[0]!r}", fix=f"the columns are {', '.join(map(repr, schema))}")
        for c in encoder.columns:
            if schema[c.name] != pl.Null:
                same_kind(c, schema[c.name])
        yield from batches(frame.select(needed), size, _row(needed), is_seekable(table))
    except (pl.exceptions.PolarsError, OSError) as e:
        raise TableError(f"the table cannot be read: {str(e).splitlines()[0]}", fix="check the file and its encoding") from e


def _row(columns: list[str]) -> str:
    (name,) = free_names(columns, "row")
    return name


def _kind(c: Any) -> Any:
    return pl.String if c.levels is not None else pl.Boolean if c.dtype == "Boolean" else pl.Float64


class _Crowd:
    """All models of a run side by side: phi first, then those of tasks."""

    def __init__(self, run: Run, known: dict[str, Models]):
        prior, self.encoder = run.prior, unscaled(run.encoder)
        self.task, self.classes = run.settings.options.task, prior.classes
        coef, intercept = in_user_units(run.encoder, *run.start)
        self.coef = np.concatenate([coef[None], *(m.coef for m in known.values())])
        self.intercept = np.concatenate([intercept[None], *(m.intercept for m in known.values())])
        self.kinds = np.array(["start", *(kind for kind, m in known.items() for _ in m.ids)])
        self.place: dict[str, int] = {}
        first = 1
        for models in known.values():  # the later ones, which were adapted, take precedence
            self.place |= {name: first + i for i, name in enumerate(models.ids)}
            first += len(models.ids)
        self.size = max(1, BLOCK // (coef.size + 1))

    def predict(self, block: pl.DataFrame) -> pl.DataFrame:
        """Predictions of some rows."""
        numbers = block[_row([self.task, *self.encoder.inputs])].to_numpy()
        ids = clean(block[self.task])
        if ids.null_count():
            raise TableError(f"row {numbers[ids.is_null().arg_max()]} has no task id", fix="drop it or name its task")
        at = np.array([self.place.get(id_text(i), 0) for i in ids.to_list()])
        X = self.encoder.transform(block, numbers)
        z = np.einsum("nf,nof->no", X, self.coef[at]) + self.intercept[at]
        if not np.isfinite(z).all():
            row = numbers[np.argmin(np.isfinite(z).all(axis=1))]
            raise TableError(f"the prediction of row {row} is not finite", fix="look for absurd values in it")
        task, (said, kind) = self.task, free_names([self.task], "prediction", "model")
        if self.classes is None:
            return pl.DataFrame({task: ids, said: z[:, 0], kind: self.kinds[at]})
        p = probabilities(z, len(self.classes))
        columns = {task: ids, said: self.classes[p.argmax(axis=1)]}
        names = free_names([*columns, kind], *(f"p_{label}" for label in self.classes.tolist()))
        return pl.DataFrame(columns | dict(zip(names, p.T, strict=True)) | {kind: self.kinds[at]})
