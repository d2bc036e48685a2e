"""Anything tabular as a polars frame: files are scanned, never read whole; what is in memory is
converted column by column.
"""

import os
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from fmrl.errors import TableError

_LOOK = 100_000  # lines of a CSV file that decide what is a number
_SCANS = {
    ".parquet": pl.scan_parquet,
    ".pq": pl.scan_parquet,
    ".arrow": pl.scan_ipc,
    ".ipc": pl.scan_ipc,
    ".feather": pl.scan_ipc,
}
_TWICE = re.compile(
    r"(.*)_duplicated_\d+"
)  # how polars calls the second of two columns of one name
_SEPARATORS = {".csv": ",", ".tsv": "\t"}


def as_polars(frame: Any, kinds: Mapping[str, Any] | None = None) -> pl.LazyFrame | pl.DataFrame:
    """A polars frame over the same data: lazy for files and lazy frames, eager for what is in
    memory already.

    kinds: what columns of a CSV file hold, where it is known; the rest is inferred. Other tables
    know their own kinds."""
    if isinstance(frame, pl.LazyFrame | pl.DataFrame):
        return frame
    if isinstance(frame, str | os.PathLike):
        return _scan(Path(frame), kinds or {})
    try:
        held = nw.from_native(frame)
        held = held.collect() if isinstance(held, nw.LazyFrame) else held
        names = list(held.columns)
    except TypeError:
        raise TableError(
            f"a {type(frame).__name__} is no table", fix="give a data frame, or the path of a file"
        ) from None
    except (nw.exceptions.NarwhalsError, ValueError) as e:
        raise TableError(
            f"the table cannot be used: {str(e).splitlines()[0]}",
            fix="give every column its own name",
        ) from None
    for name in names:
        if not isinstance(name, str):
            raise TableError(f"the column name {name!r} is not text", fix="rename the columns")
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise TableError(f"two columns are called {twice!r}", fix="give every column its own name")
    # Column by column: whole-frame conversion would need pyarrow for pandas.
    return pl.DataFrame([_series(c, held[c]) for c in names])


def free_names(taken: Iterable[str], *wanted: str) -> tuple[str, ...]:
    """Names for columns of our own that no column of the user's has.

    >>> free_names(["row", "x"], "row", "bin")
    ('row_', 'bin')
    """
    taken = set(taken)
    out = []
    for name in wanted:
        while name in taken:
            name += "_"
        out.append(name)
    return tuple(out)


def is_seekable(frame: Any) -> bool:
    """Whether blocks can be read by their position: Parquet and Arrow files."""
    return isinstance(frame, str | os.PathLike) and Path(frame).suffix.lower() in _SCANS


def _scan(path: Path, kinds: Mapping[str, Any]) -> pl.LazyFrame:
    suffix = path.suffix.lower()
    if suffix not in _SCANS and suffix not in _SEPARATORS:
        raise TableError(
            f"{path.name} is of no known kind",
            fix=f"give one of {', '.join([*_SCANS, *_SEPARATORS])}",
        )
    if not path.exists() and not set("*?[") & set(str(path)):
        raise TableError(f"{path} does not exist", fix="check the path")
    if suffix in _SCANS:
        return _SCANS[suffix](path)
    separator = _SEPARATORS[suffix]
    header = pl.scan_csv(path, separator=separator, infer_schema=False).collect_schema()
    if twice := [m[1] for name in header if (m := _TWICE.fullmatch(name)) and m[1] in header]:
        raise TableError(
            f"two columns are called {twice[0]!r}", fix="give every column its own name"
        )
    known = {name: kind for name, kind in kinds.items() if name in header}
    return pl.scan_csv(path, separator=separator, infer_schema_length=_LOOK, schema_overrides=known)


def _series(name: str, values: Any) -> pl.Series:
    if values.dtype.is_numeric() and not values.is_null().any():
        array = values.to_numpy()
        if array.dtype != object:
            return pl.Series(name, array)
    # Each library has its own missing value (None, NaN, NA, NaT); only the library itself can tell
    # which ones they are.
    missing = values.is_null().to_list()
    items = [
        None if m else v.item() if isinstance(v, np.generic) else v
        for v, m in zip(values.to_list(), missing, strict=True)
    ]
    held = {type(v) for v in items} - {type(None)}
    if held <= {int, float, Decimal} and float in held:
        return pl.Series(name, [None if v is None else float(v) for v in items], dtype=pl.Float64)
    if len(held) > 1:
        a, b = sorted(t.__name__ for t in held)[:2]
        raise TableError(
            f"column {name!r} mixes {a} and {b}",
            fix="convert it to one kind: '1' and 1 are not the same value",
        )
    try:
        return pl.Series(name, items, strict=True)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as e:
        what = f"column {name!r} holds a {next(iter(held)).__name__ if held else 'value'} that is no table value"
        raise TableError(
            what, fix="convert it to a number or a string, or leave it out of the table"
        ) from e
