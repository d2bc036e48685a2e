"""What a column holds: numbers, categories, or dates and times."""

from typing import Any

import polars as pl

from fmrl.errors import TableError

TEXT = (pl.String, pl.Categorical, pl.Enum)
TIMES = {pl.Date: "date", pl.Datetime: "date", pl.Duration: "duration", pl.Time: "time of day"}
_A_DAY = {"ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def kind_of(name: str, dtype: Any) -> str:
    """'number', 'category', 'date', 'duration' or 'time of day', or an error that says what to
    convert.
    """
    if dtype.is_numeric() or dtype == pl.Boolean:
        return "number"
    if dtype in TEXT:
        return "category"
    if dtype.is_temporal():
        return TIMES[dtype.base_type()]
    if dtype == pl.Null:
        raise TableError(f"column {name!r} has no value at all", fix="leave it out of features")
    fix = "convert it to a number or a string, or leave it out of features"
    raise TableError(f"column {name!r} is of type {dtype}", fix=fix)


def as_number(values: Any, dtype: Any) -> Any:
    """Values (a series or an expression) as float64: dates and times in days, NaN as null.

    >>> from datetime import date, timedelta
    >>> for value in (date(1970, 1, 3), timedelta(hours=12)):
    ...     held = pl.Series([value])
    ...     print(as_number(held, held.dtype).to_list())
    [2.0]
    [0.5]
    """
    if dtype in (pl.Datetime, pl.Duration, pl.Time):
        unit = _A_DAY[getattr(dtype, "time_unit", None) or "ns"]
        return values.cast(pl.Int64).cast(pl.Float64) / unit
    return values.cast(pl.Float64).fill_nan(None)
