"""Models of many tasks, in one file: coefficients and intercepts under the user's names and in the
user's units. They are made by adapting to the tasks of a table, and predict the rows of one.

``.json`` is for reading, ``.safetensors`` for many tasks. Either way the margin of a row x is
intercept + Σ coef·x, where x has one entry a feature: a number as it stands in the table (its
training mean where it is missing), 1 or 0 for ``column=level`` and for ``column is missing``. A
regression predicts the margin; two classes the second if it is positive; more the class of the
largest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

from fmrl.datasets import TableError, tasks_from_frame
from fmrl.errors import FMRLError
from fmrl.estimators.task_models import Prior, probabilities
from fmrl.files import atomic, write
from fmrl.records import write_json
from fmrl.runs.folder import FORMAT, MODEL, Run, seal, unseal
from fmrl.runs.source import Window, files, windows
from fmrl.tables.any_table import as_polars, clean, free_names, is_seekable, no_column, readable
from fmrl.tables.encoder import Encoder, same_kind
from fmrl.tables.frames import id_text
from fmrl.tables.stream import batches

ARRAYS = ("coef", "intercept")
BLOCK = 1 << 22  # numbers of a block of rows and of the models gathered for them
TEXT = {".csv": ",", ".tsv": "\t"}
BINARY: dict[str, Callable[..., Any]] = {
    ".parquet": pl.LazyFrame.sink_parquet,
    ".arrow": pl.LazyFrame.sink_ipc,
}


@dataclass(frozen=True, eq=False)
class Models:
    """Models of tasks, by id."""

    ids: list[str]
    coef: np.ndarray  # [T, outputs, f]
    intercept: np.ndarray  # [T, outputs]
    features: list[str]
    classes: list | None  # None: a regression
    run: str  # sha256 of the model file they start from

    def save(self, path: Path) -> None:
        """Write to ``path``, completely or not at all; its suffix chooses the kind of file."""
        head = {"format": FORMAT, "kind": "fmrl models"}
        head |= {name: getattr(self, name) for name in ("features", "classes", "run")}
        if path.suffix == ".json":
            pairs = zip(self.ids, self.coef, self.intercept, strict=True)
            tasks = {name: {"coef": c, "intercept": b} for name, c, b in pairs}
            write_json(path, seal(head | {"tasks": tasks}))
        elif path.suffix == ".safetensors":
            from safetensors.numpy import save

            arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in ARRAYS}
            head |= {"tasks": self.ids, "arrays": _digest(arrays)}
            write(path, save(arrays, {"fmrl": json.dumps(seal(head))}))
        else:
            what = f"{path.name} is not a file of models"
            raise FMRLError(what, fix="name it .json or .safetensors")

    def over(self, old: Models) -> Models:
        """These models, and those of ``old`` whose tasks are not among them."""
        ours = set(self.ids)
        kept = [i for i, name in enumerate(old.ids) if name not in ours]
        both = {
            name: np.concatenate([getattr(old, name)[kept], getattr(self, name)]) for name in ARRAYS
        }
        return replace(self, ids=[old.ids[i] for i in kept] + self.ids, **both)

    @classmethod
    def load(cls, path: Path) -> Models:
        """Read what `save` wrote; anything else is refused."""
        if not path.is_file():
            raise FMRLError(f"there is no file {path}", fix="write it with fmrl adapt")
        try:
            head, arrays = _read(path)
            about = {name: head[name] for name in ("features", "classes", "run")}
            found = cls(ids=head["tasks"], **arrays, **about)
            outputs = len(found.classes) if found.classes and len(found.classes) > 2 else 1
            shape = (len(found.ids), outputs, len(found.features))
            good = found.coef.shape == shape and found.intercept.shape == shape[:2]
            good = good and len(set(found.ids)) == len(found.ids)
        except Exception:  # damage can show in any way
            good = False
        if not good:
            what = f"{path} is not a file of models, or is damaged"
            raise FMRLError(what, fix="write it again with fmrl adapt")
        return found


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    if path.suffix == ".json":
        head = unseal(json.loads(path.read_bytes())) or {}
        tasks = head["tasks"]
        arrays = {name: np.array([t[name] for t in tasks.values()], dtype=float) for name in ARRAYS}
        head = head | {"tasks": list(tasks)}
    else:
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            head = unseal(json.loads(file.metadata()["fmrl"])) or {}
            arrays = {name: file.get_tensor(name) for name in ARRAYS}
        if head["arrays"] != _digest(arrays):
            raise ValueError
    if head["kind"] != "fmrl models" or head["format"] != FORMAT:
        raise ValueError
    return head, arrays


def _digest(arrays: dict[str, np.ndarray]) -> str:
    return hashlib.sha256(b"".join(arrays[name].tobytes() for name in ARRAYS)).hexdigest()


def adapt_all(prior: Prior, encoder: Encoder, windows: Iterable[Window], run: str) -> Models:
    """Adapt to every task of some windows."""
    ids, parts = [], []
    for window in windows:
        if window.tasks is not None:
            ids += window.names
            model = prior.models(window.tasks)
            parts.append(in_user_units(encoder, *model))
    if not parts:
        raise FMRLError("there is no task to adapt to", fix="give a table with labelled rows")
    coef, intercept = (np.concatenate(column) for column in zip(*parts, strict=True))
    classes = None if prior.classes is None else prior.classes.tolist()
    return Models(ids, coef, intercept, encoder.names, classes, run)


def unscaled(encoder: Encoder) -> Encoder:
    """The same columns, numbers left as they are in the table."""
    columns = tuple(replace(c, centre=0.0, spread=1.0) for c in encoder.columns)
    return Encoder(columns, encoder.policy)


def in_user_units(
    encoder: Encoder, coef: np.ndarray, intercept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Models [..., outputs, f] and [..., outputs] of encoded rows as models of rows as they stand
    in the table, which `unscaled` encodes.

    >>> from fmrl.tables.encoder import Column
    >>> encoder = Encoder((Column("age", centre=40.0, spread=10.0),))
    >>> in_user_units(encoder, np.array([[2.0]]), np.array([1.0]))
    (array([[0.2]]), array([-7.]))
    """
    centre, spread = [], []
    for c in encoder.columns:
        own = 1 if c.levels is None else len(c.levels)
        centre += [c.centre] * own + [0.0] * c.indicator
        spread += [c.spread] * own + [1.0] * c.indicator
    # Levels and flags are noughts and ones; only numbers are scaled.
    coef = coef / np.array(spread)
    return coef, intercept - coef @ np.array(centre)


def adapt(run: Run, table: str, progress: Callable[[int], None] = lambda done: None) -> Models:
    """Models of the tasks in a table of labelled rows, which has the columns that were trained on.

    Args:
        run: What was learned.
        table: File or quoted glob.
        progress: Called with the number of tasks adapted to so far.
    """
    files(table)
    options = run.settings.options
    given: dict[str, Any] = {"task": options.task, "target": options.target, "rows": options.rows}
    given |= {"order": options.order or None, "apart": options.apart, "one_class": "keep"}
    stream = tasks_from_frame(table, **given, encoder=run.encoder, loss=run.settings.loss)

    def counted() -> Iterator[Window]:
        done = 0
        for window in windows(stream):
            yield window
            done += len(window.names)
            progress(done)

    return adapt_all(run.prior, run.encoder, counted(), run.record["files"][MODEL])


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
    with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch:
        parts = []
        for i, block in enumerate(blocks):
            parts.append(Path(scratch) / f"{i:06d}.arrow")
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
            raise no_column(absent[0], schema)
        for c in encoder.columns:
            if schema[c.name] != pl.Null:
                same_kind(c, schema[c.name])
        (row,) = free_names(needed, "row")
        yield from batches(frame.select(needed), size, row, is_seekable(table))


class _AllModels:
    """All models of a run side by side: phi first, then those of tasks."""

    def __init__(self, run: Run, known: dict[str, Models | None]):
        self.task, self.classes = run.settings.options.task, run.prior.classes
        self.encoder = unscaled(run.encoder)
        coef, intercept = in_user_units(run.encoder, *run.start)
        coefs, intercepts, kinds = [coef[None]], [intercept[None]], ["start"]
        self.place: dict[str, int] = {}
        for kind, models in known.items():  # the later ones, which were adapted, take precedence
            if models is not None:
                self.place |= {name: len(kinds) + i for i, name in enumerate(models.ids)}
                coefs.append(models.coef)
                intercepts.append(models.intercept)
                kinds += [kind] * len(models.ids)
        self.coef, self.intercept = np.concatenate(coefs), np.concatenate(intercepts)
        self.kinds = np.array(kinds)
        self.size = max(1, BLOCK // (coef.size + 1))

    def predict(self, block: pl.DataFrame) -> pl.DataFrame:
        """Predictions of some rows."""
        (row,) = free_names([self.task, *self.encoder.inputs], "row")
        numbers, ids = block[row].to_numpy(), clean(block[self.task])
        if ids.null_count():
            what = f"row {numbers[ids.is_null().arg_max()]} has no task id"
            raise TableError(what, fix="drop it or name its task")
        at = np.array([self.place.get(id_text(i), 0) for i in ids.to_list()])
        X = self.encoder.transform(block, numbers)
        z = np.einsum("nf,nof->no", X, self.coef[at]) + self.intercept[at]
        if not np.isfinite(z).all():
            what = f"the prediction of row {numbers[np.argmin(np.isfinite(z).all(axis=1))]}"
            raise TableError(f"{what} is not finite", fix="look for absurd values in it")
        said, kind = free_names([self.task], "prediction", "model")
        if self.classes is None:
            return pl.DataFrame({self.task: ids, said: z[:, 0], kind: self.kinds[at]})
        p = probabilities(z, len(self.classes))
        columns = {self.task: ids, said: self.classes[p.argmax(axis=1)]}
        names = free_names([*columns, kind], *(f"p_{label}" for label in self.classes.tolist()))
        return pl.DataFrame(columns | dict(zip(names, p.T, strict=True)) | {kind: self.kinds[at]})
