"""Any table as a polars frame: files are scanned; data frames, arrays and rows as mappings are
converted, once and column by column.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from fmrl.errors import FMRLError, TableError
from fmrl.tables.kinds import GAPS, is_gap, without_gaps

_ROWS_FOR_TYPES = 100_000  # lines of a CSV file that decide what is a number
_SCANS = dict.fromkeys((".parquet", ".pq"), pl.scan_parquet)
_SCANS |= dict.fromkeys((".arrow", ".ipc", ".feather"), pl.scan_ipc)
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_read_by: int | None = None  # the process that has used polars' threads, which no fork survives
_POLARS_CONTEXT = "This error occurred in the following"  # what polars says below an error of ours
_BASIC_TYPES = {str, int, bool, type(None)}  # of Python, which are what they are
_DUPLICATED = re.compile(r"(.*)_duplicated_\d+")  # polars' name of a second column of one name


def as_polars(frame: Any, kinds: Mapping[str, Any] | None = None) -> pl.LazyFrame | pl.DataFrame:
    """A polars frame over the same data: lazy for files and lazy frames, eager for data in memory.

    Args:
        frame: A data frame that narwhals accepts, or the path (or glob) of files.
        kinds: polars types of columns of a CSV file, where they are known; the rest is inferred.
    """
    if isinstance(frame, pl.LazyFrame | pl.DataFrame):
        return frame
    if isinstance(frame, str | os.PathLike):
        return _scan(Path(frame), kinds or {})
    held = in_memory(frame)
    if held is None:
        fix = "give a data frame, or the path of a file"
        raise TableError(f"a {type(frame).__name__} is not a table", fix=fix)
    if isinstance(held, pl.DataFrame):
        return held
    if odd := [name for name in held.columns if not isinstance(name, str)]:
        raise TableError(f"the column name {odd[0]!r} is not text", fix="rename the columns")
    # By its own columns: polars would need pyarrow for all at once.
    return pl.DataFrame([_pandas_series(name, held[name]) for name in held.columns])


def in_memory(frame: Any) -> Any:
    """A data frame of any library as a frame of polars or of pandas, whichever takes no conversion;
    None for anything else. No two columns have one name.
    """
    if isinstance(frame, pl.DataFrame):
        return frame
    if type(frame).__module__.split(".")[0] == "pandas" and hasattr(frame, "columns"):
        if not frame.columns.is_unique:
            raise same_name_error(frame.columns[frame.columns.duplicated()][0])
        return frame
    try:
        held: Any = nw.from_native(frame, pass_through=True)
        held = held.collect() if isinstance(held, nw.LazyFrame) else held
        if isinstance(held, nw.DataFrame):
            pandas = held.implementation.is_pandas_like()
            return in_memory(held.to_pandas()) if pandas else held.to_polars()
        arrow = hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "__arrow_c_array__")
        return pl.DataFrame(frame) if arrow else None
    except (nw.exceptions.NarwhalsError, pl.exceptions.PolarsError, ValueError) as e:
        if isinstance(e, TableError):
            raise
        what = f"the table cannot be used: {str(e).splitlines()[0]}"
        raise TableError(what, fix="give every column its own name") from None


@contextmanager
def readable() -> Iterator[None]:
    """Errors of polars while a table is read, as a TableError."""
    if _read_by not in (None, os.getpid()):
        what = "this process was forked from one that had read a table, and polars would wait here"
        fix = "start processes with multiprocessing.get_context('spawn') or 'forkserver'"
        raise TableError(f"{what} for ever", fix=fix)
    globals()["_read_by"] = os.getpid()
    try:
        yield
    except TableError as e:
        if _POLARS_CONTEXT not in str(e):
            raise
        raise TableError(str(e).partition(_POLARS_CONTEXT)[0].strip()) from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as e:
        if isinstance(e, FMRLError):
            raise
        first = (str(e).splitlines() or [type(e).__name__])[0]
        what = f"the table cannot be read: {first}"
        raise TableError(what, fix="check the file and its encoding") from e


def same_name_error(name: Any) -> TableError:
    """The error for two columns of one name."""
    return TableError(f"two columns are called {name!r}", fix="give every column its own name")


def no_column_error(name: str, columns: Iterable[str], where: str = "there is") -> TableError:
    """The error for a column that the table (or a row) does not have."""
    columns = list(columns)
    fix = f"the columns are {', '.join(map(repr, columns))}"
    if "," in name and {part.strip() for part in name.split(",")} <= {*columns}:
        fix = "these are several columns: give each by itself"
    if len(columns) == 1 and (apart := next((c for c in ";\t|" if c in columns[0]), "")):
        fix = f"there is one column, {columns[0]!r}: are values separated by {apart!r}? Use commas"
    return TableError(f"{where} no column {name!r}", fix=fix)


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


def clean(values: pl.Series) -> pl.Series:
    """The same values, NaN as null: both count as missing."""
    return values.fill_nan(None) if values.dtype.is_float() else values


def is_complete(columns: Iterable[str], schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """True where no value of ``columns`` is null or NaN."""
    given = ((pl.col(c), schema[c].is_float()) for c in columns)
    return pl.all_horizontal([(c.fill_nan(None) if f else c).is_not_null() for c, f in given])


def _scan(path: Path, kinds: Mapping[str, Any]) -> pl.LazyFrame:
    suffix = path.suffix.lower()
    if suffix not in _SCANS and suffix not in _SEPARATORS:
        fix = f"give one of {', '.join([*_SCANS, *_SEPARATORS])}"
        raise TableError(f"{path.name} is not a kind of file that can be read", fix=fix)
    if not path.exists() and not set("*?[") & set(str(path)):
        raise TableError(f"{path} does not exist", fix="check the path")
    if suffix in _SCANS:
        return _SCANS[suffix](path)
    separator = _SEPARATORS[suffix]
    header = pl.scan_csv(path, separator=separator, infer_schema=False).collect_schema()
    if twice := [m[1] for name in header if (m := _DUPLICATED.fullmatch(name)) and m[1] in header]:
        raise same_name_error(twice[0])
    # A quoted name keeps its doubled quotes in polars; they stand for one.
    names = {name: name.replace('""', '"') for name in header}
    if len({*names.values()}) < len(names):
        raise same_name_error(next(n for n in names.values() if n not in names))
    known = {name: kinds[own] for name, own in names.items() if own in kinds}
    given = {"separator": separator, "infer_schema_length": _ROWS_FOR_TYPES}
    asis = pl.scan_csv(path, **given).collect_schema()
    text = [n for n in header if asis[n] == pl.String and known.get(n) != pl.String]
    gaps = pl.scan_csv(path, **given, null_values=GAPS).collect_schema() if text else {}
    odd = {n: known.get(n, gaps[n]) for n in text if known.get(n, gaps[n]) != pl.String}
    # What was a number so far may have R's mark below: polars takes one for each column.
    more = {n: "NA" for n in header if known.get(n, asis[n]) != pl.String and n not in odd}
    known = known | dict.fromkeys(odd, pl.String)
    given |= {"schema_overrides": known, "null_values": more or None}
    if not odd:
        frame = pl.scan_csv(path, **given)
    else:
        (row,) = free_names([*header, *names.values()], "row")
        frame = pl.scan_csv(path, **given, row_index_name=row)
        frame = frame.with_columns(_parse_number(n, kind, row) for n, kind in odd.items()).drop(row)
    return frame.rename({n: own for n, own in names.items() if n != own})


def _parse_number(name: str, kind: Any, row: str) -> pl.Expr:
    """A column of text as numbers (or truth values), marks of gaps as nothing; anything else is
    refused by its row, which polars would not name.
    """

    def read(columns: Sequence[pl.Series]) -> pl.Series:
        text, rows = without_gaps(columns[0]), columns[1]
        if kind == pl.Boolean:
            truth = {"true": True, "false": False}
            found = text.str.to_lowercase().replace_strict(truth, default=None, return_dtype=kind)
        else:
            found = text.cast(kind, strict=False)
        if (odd := found.is_null() & text.is_not_null()).any():
            at = int(odd.arg_max() or 0)
            what = f"column {name!r} holds {text[at]!r} in row {rows[at]}"
            no = "truth value" if kind == pl.Boolean else "number"
            raise TableError(f"{what}, which is no {no}", fix="correct it, or leave it empty")
        return found

    return pl.map_batches([name, row], read, return_dtype=kind, is_elementwise=True).alias(name)


def _pandas_series(name: str, values: Any) -> pl.Series:
    """A column of pandas; numbers that were declared categories are categories."""
    if hasattr(values, "cat"):
        levels = _object_series(name, values.cat.categories.tolist()).cast(pl.String)
        places = pl.Series(values.cat.codes.to_numpy())
        return levels.gather(places.set(places < 0, None))
    if getattr(values.dtype, "tz", None) is not None:
        values = values.dt.tz_convert("UTC").dt.tz_localize(None)
    if isinstance(values.dtype, np.dtype):
        return _array_series(name, values.to_numpy(), text=True)
    return _object_series(name, values.to_numpy(dtype=object, na_value=None).tolist())


def from_array(X: np.ndarray, names: Iterable[str], text: Collection[str] = ()) -> pl.DataFrame:
    """The columns of a NumPy array of numbers, texts, dates or any objects.

    An array of text has nothing but text: its columns that are all numbers become numbers.

    Args:
        X: The array [n, f].
        names: Of its columns.
        text: Columns that are text even where they look like numbers.

    >>> from_array(np.array([["1.5", "a"], ["2", "b"]]), ["x0", "x1"]).dtypes
    [Float64, String]
    """
    return pl.DataFrame([_array_series(n, X[:, i], n in text) for i, n in enumerate(names)])


def _array_series(name: str, x: np.ndarray, text: bool) -> pl.Series:
    if x.dtype.kind in "Mm":
        return pl.Series(name, x.astype(f"{x.dtype.kind}8[us]"))
    if x.dtype.kind in "US":
        with suppress(ValueError):
            x = x if text else x.astype(np.float64)
        return pl.Series(name, x.astype(str) if x.dtype.kind == "S" else x)
    if x.dtype.kind != "O":
        return pl.Series(name, x)
    return _object_series(name, x.tolist())


def from_objects(frame: pl.DataFrame) -> pl.DataFrame:
    """The same frame, its columns of Python objects as columns of one kind each."""
    odd = [n for n, kind in frame.schema.items() if kind == pl.Object]
    return frame.with_columns(_object_series(n, frame[n].to_list()) for n in odd) if odd else frame


def from_records(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> pl.DataFrame:
    """Rows that are mappings from names to values as a frame with the columns ``names``.

    >>> from_records([{"size": 1, "new": True}, {"new": None, "size": 2.5}], ["size", "new"]).rows()
    [(1.0, True), (2.5, None)]
    """
    for i, row in enumerate(rows):
        if absent := [n for n in names if n not in row]:
            raise no_column_error(absent[0], map(str, row), f"row {i} has")
    return pl.DataFrame([_object_series(n, [row[n] for row in rows]) for n in names])


def _object_series(name: str, values: list[Any]) -> pl.Series:
    """Python values, gaps of any library among them, as a column of one kind."""
    held = set(map(type, values))
    if not held <= _BASIC_TYPES:
        values = [None if is_gap(v) else _python_value(v) for v in values]
        held = set(map(type, values))
    held -= {type(None)}
    if held <= {int, float, Decimal} and float in held:
        return pl.Series(name, [None if v is None else float(v) for v in values], dtype=pl.Float64)
    if len(held) > 1:
        a, b = sorted(t.__name__ for t in held)[:2]
        fix = "convert it to one kind: '1' and 1 are not the same value"
        raise TableError(f"column {name!r} mixes {a} and {b}", fix=fix)
    try:
        return pl.Series(name, values, strict=True)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as e:
        kind = next(iter(held)).__name__ if held else "value"
        fix = "convert it to a number or a string, or leave it out of the table"
        raise TableError(f"column {name!r} holds a {kind} that a table cannot hold", fix=fix) from e


def _python_value(value: Any) -> Any:
    if isinstance(value, np.datetime64 | np.timedelta64):
        kind = "M" if isinstance(value, np.datetime64) else "m"
        return value.astype(f"{kind}8[us]").item()  # nanoseconds would become a whole number
    return value.item() if isinstance(value, np.generic) else value
