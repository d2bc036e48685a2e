"""Rows of a table predicted by the models of their tasks, as the estimators in Python predict them:
classes with probabilities that are drawn to the middle as far as a task's model is uncertain,
numbers with an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fmrl.datasets import TableError
from fmrl.errors import FMRLError
from fmrl.estimators.prior import Margins
from fmrl.files import atomic, scratch
from fmrl.runs.evaluate import INTERVAL
from fmrl.runs.folder import MODEL, Run
from fmrl.runs.models import Models, encoded, packed
from fmrl.runs.source import files
from fmrl.tables.any_table import (
    as_polars,
    clean,
    free_names,
    is_seekable,
    no_column_error,
    readable,
)
from fmrl.tables.encoder import same_kind
from fmrl.tables.frames import id_text
from fmrl.tables.stream import batches

BLOCK = 1 << 22  # numbers of a block of rows and of the models gathered for them
TEXT = {".csv": ",", ".tsv": "\t"}
BINARY: dict[str, Callable[..., Any]] = {
    ".parquet": pl.LazyFrame.sink_parquet,
    ".arrow": pl.LazyFrame.sink_ipc,
}


def predict(
    run: Run,
    table: str,
    out: Path,
    adapted: Models | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, int]:
    """Predict every row of a table, in its order, into a file.

    A row is predicted by the model of its task: one that was ``adapted``, or one ``seen`` in
    training; where there is neither, by the common ``start``, what is known before any row of a
    task. The column ``model`` says which.

    Args:
        run: What was learned.
        table: File or quoted glob; the target column need not be there.
        out: Table of predictions; its suffix chooses the kind of file.
        adapted: What `adapt` gave for the same run.
        progress: Called with the number of rows predicted so far.

    Returns:
        How many rows each kind of model predicted.
    """
    kinds = [*TEXT, *BINARY]
    if out.suffix not in kinds:
        raise FMRLError(
            f"{out.name} is not a kind of file that can be written",
            fix=f"name it {', '.join(kinds)}",
        )
    if any(out.resolve() == path.resolve() for path in files(table)):
        raise FMRLError(f"{out} is the table itself", fix="name another file for the predictions")
    if adapted is not None and adapted.run != run.record["files"][MODEL]:
        fix = "adapt again: fmrl adapt RUN TABLE"
        raise FMRLError("these models were adapted from another run", fix=fix)
    models = _AllModels(run, {"seen": run.models, "adapted": adapted})
    counts = {"seen": 0, "adapted": 0, "start": 0}

    def blocks() -> Iterator[pl.DataFrame]:
        for block in _rows(run, table, models.size):
            said = models.predict(block)
            for name, n in said[said.columns[-1]].value_counts().iter_rows():
                counts[name] += n
            yield said
            progress(sum(counts.values()))

    with atomic(out) as partial:
        try:
            (_write_text if out.suffix in TEXT else _write_binary)(blocks(), partial)
        except pl.exceptions.PolarsError as error:
            what = f"the predictions cannot be written: {str(error).splitlines()[0]}"
            raise FMRLError(what, fix="check the disk") from None
        if not sum(counts.values()):
            raise TableError("the table has no row", fix="give a table with rows")
    return counts


def _write_text(blocks: Iterator[pl.DataFrame], path: Path) -> None:
    with path.open("wb") as file:
        for i, block in enumerate(blocks):
            block.write_csv(file, separator=TEXT[path.suffix], include_header=i == 0)


def _write_binary(blocks: Iterator[pl.DataFrame], path: Path) -> None:
    """Block by block to files of their own, which are then streamed into one."""
    with scratch(".fmrl-predict-", path.parent) as folder:
        parts = []
        for i, block in enumerate(blocks):
            parts.append(folder / f"{i:06d}.arrow")
            block.write_ipc(parts[-1], compression="lz4")
        if parts:
            BINARY[path.suffix](pl.scan_ipc(parts), path)


def _rows(run: Run, table: str, size: int) -> Iterator[pl.DataFrame]:
    """Blocks of the columns that predicting needs."""
    task, encoder = run.settings.options.task, run.encoder
    kinds: dict[str, Any] = {task: pl.String} | {c.name: c.read_as for c in encoder.columns}
    with readable():
        frame = as_polars(table, kinds).lazy()
        schema = frame.collect_schema()
        needed = list(dict.fromkeys([task, *encoder.inputs]))
        if absent := [c for c in needed if c not in schema]:
            raise no_column_error(absent[0], schema)
        for c in encoder.columns:
            if schema[c.name] != pl.Null:
                same_kind(c, schema[c.name])
        (row,) = free_names(needed, "row")
        yield from batches(frame.select(needed), size, row, is_seekable(table))


class _AllModels:
    """All models of a run side by side: the start first, then those of tasks."""

    def __init__(self, run: Run, known: dict[str, Models | None]):
        self.task, self.prior, self.encoder = run.settings.options.task, run.prior, run.encoder
        start, here = self.prior.middle(), self.prior.coordinates
        first, level = here.model(start.theta.reshape(1, -1), self.prior.loss.outputs)
        parts = [np.concatenate([first, level[..., None]], axis=-1)]
        rows, kinds = [np.zeros(1)], ["start"]
        self.spread = [packed(start.spread)]  # [T, outputs, w(w + 1)/2] of each kind
        self.place: dict[str, int] = {}
        for kind, models in known.items():  # the later ones, which were adapted, take precedence
            if models is not None:
                self.place |= {name: len(kinds) + i for i, name in enumerate(models.ids)}
                parts.append(encoded(self.encoder, models))
                rows.append(models.rows)
                self.spread.append(models.spread)
                kinds += [kind] * len(models.ids)
        self.models, self.kinds = np.concatenate(parts), np.array(kinds)  # [T, outputs, …]
        self.first = np.cumsum([0, *map(len, self.spread)])  # of each kind
        self.choice = self.prior.rule.places(np.concatenate(rows))
        self.size = max(1, BLOCK // self.models[0].size)

    def predict(self, block: pl.DataFrame) -> pl.DataFrame:
        (row,) = free_names([self.task, *self.encoder.inputs], "row")
        numbers, ids = block[row].to_numpy(), clean(block[self.task])
        if ids.null_count():
            what = f"row {numbers[ids.is_null().arg_max()]} has no task id"
            raise TableError(what, fix="drop it or name its task")
        at = np.array([self.place.get(id_text(i), 0) for i in ids.to_list()])
        X, prior = self.encoder.transform(block, numbers), self.prior
        if prior.common is not None:
            X = np.hstack([X, prior.common(X)])
        z = np.einsum("nf,nof->no", X, self.models[at, :, :-1]) + self.models[at, :, -1]
        if not np.isfinite(z).all():
            what = f"the prediction of row {numbers[np.argmin(np.isfinite(z).all(axis=1))]}"
            raise TableError(f"{what} is not finite", fix="look for absurd values in it")
        said, kind = free_names([self.task], "prediction", "model")
        columns: dict[str, Any] = {self.task: ids}
        variance = self._variance(prior.coordinates.rows(X), at)
        if prior.classes is None:
            half = prior.half_width(variance[:, 0], self.choice[at], INTERVAL)
            columns[said] = middle = z[:, 0]
            names = free_names([*columns, kind], "low", "high")
            ends = (pl.Series(e).fill_nan(None) for e in (middle - half, middle + half))
            columns |= dict(zip(names, ends, strict=True))
        else:
            found = Margins(z, np.nan_to_num(variance), self.choice[at])
            columns[said] = prior.labels(found)
            names = (f"p_{label}" for label in prior.classes.tolist())
            names = free_names([*columns, kind], *names)
            columns |= dict(zip(names, prior.chances(found).T, strict=True))
        return pl.DataFrame(columns | {kind: self.kinds[at]})

    def _variance(self, X: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Variances [n, outputs] of the margins of rows X [n, w] under the models ``at`` [n]; NaN
        where the spread of a model is not known.
        """
        found = np.full((len(X), self.models.shape[1]), np.nan)
        i, j = np.triu_indices(X.shape[1])
        twice = np.where(i == j, 1.0, 2.0)
        most = max(1, BLOCK // (len(i) * found.shape[1]))
        for first, spread in zip(self.first, self.spread, strict=False):
            mine = np.flatnonzero((at >= first) & (at < first + len(spread)))
            for start in range(0, len(mine) if spread.shape[-1] else 0, most):
                some = mine[start : start + most]
                with np.errstate(over="ignore", invalid="ignore"):  # of absurd values
                    pairs = X[some][:, i] * X[some][:, j] * twice
                    v = np.einsum("np,nop->no", pairs, spread[at[some] - first])
                found[some] = np.where(np.isfinite(pairs).all(axis=1)[:, None], v, np.inf)
        return found
