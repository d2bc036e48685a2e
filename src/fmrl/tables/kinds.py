"""What a column holds: numbers, categories, ids, or dates and times."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from fmrl.errors import TableError, warn

TEXT = (pl.String, pl.Categorical, pl.Enum)
TIMES = {pl.Date: "date", pl.Datetime: "date", pl.Duration: "duration", pl.Time: "time of day"}
# What stands for no value among the numbers of a CSV file, and among dates as text.
GAPS = ("NA", "N/A", "n/a", "na", "NaN", "nan", "-nan", "NULL", "null", "None", "none", "#N/A")
GAPS += ("<NA>", "NAN", ".", "-", "?")
# A date as text, the year first, with a time of day and a zone or without.
_DAY = r"^\s*(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})"
_DATE_AND_TIME = _DAY + r"(?:[T ](\d{1,2}:\d\d)(:\d\d(?:\.\d+)?)?\s*(Z|[+-]\d\d:?\d\d)?)?\s*$"
_DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4})([T ].*)?")
_AMOUNT = re.compile(r"\s*[€$£]?\s*[-+−]?\d{1,3}([ ',.]?\d{3})*([.,]\d+)?\s*[%€$£]?\s*")
MIN_ID_ROWS = 20  # fewer rows do not tell an id from a quantity
ID_SHARE = 0.9  # different values, of the rows, above which a column names rows
MANY_CLASSES = 20  # more whole numbers are likely counts
_UNITS_PER_DAY = {"ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


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
    """Values (a series or an expression) as float64: dates and times in days, also where
    they are text (null where that is no date), NaN as null.

    >>> from datetime import date, timedelta
    >>> for value in (date(1970, 1, 3), timedelta(hours=12)):
    ...     held = pl.Series([value])
    ...     print(as_number(held, held.dtype).to_list())
    [2.0]
    [0.5]
    >>> as_number(pl.Series(["1970-01-03", "1970/1/2 06:00"]), pl.String()).to_list()
    [2.0, 1.25]
    """
    if dtype in TEXT:
        return _written_days(values.cast(pl.String))
    if dtype in (pl.Datetime, pl.Duration, pl.Time):
        unit = _UNITS_PER_DAY[getattr(dtype, "time_unit", None) or "ns"]
        return values.cast(pl.Int64).cast(pl.Float64) / unit
    return values.cast(pl.Float64).fill_nan(None)


def _written_days(values: Any) -> Any:
    """Dates as text in days since 1970, times of a zone in UTC; null where there is none."""
    part = values.str.extract_groups(_DATE_AND_TIME).struct.field
    time = part("4").fill_null("00:00") + part("5").fill_null(":00")
    zone = part("6").fill_null("Z").replace("Z", "+0000")
    whole = part("1") + "-" + part("2") + "-" + part("3") + "T" + time + zone
    moment = whole.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us", strict=False)
    return moment.cast(pl.Int64).cast(pl.Float64) / _UNITS_PER_DAY["us"]


def is_gap(value: Any) -> bool:
    """Whether a value is None, NaN, NaT or pandas' NA, which answers no question.

    >>> is_gap(None), is_gap(float("nan")), is_gap(0)
    (True, True, False)
    """
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def gaps_in(values: np.ndarray) -> np.ndarray:
    """Which values of an array [n] are gaps, [n].

    >>> gaps_in(np.array([1.0, np.nan])), gaps_in(np.array(["a", None], dtype=object))
    (array([False,  True]), array([False,  True]))
    """
    if values.dtype.kind == "O":
        return np.array([is_gap(v) for v in values.tolist()], dtype=bool)
    return np.isnan(values) if values.dtype.kind in "fcmM" else np.zeros(values.shape, dtype=bool)


def without_gaps(values: Any) -> Any:
    """Texts (a series or an expression) whose marks of gaps are nothing."""
    return values.cast(pl.String).str.strip_chars().replace(["", *GAPS], None)


def dates_as_text(name: str, levels: Sequence[str]) -> bool:
    """Whether the texts of a column are dates; an error where one is no date, or where it cannot be
    told which number is the day.

    Args:
        name: Of the column.
        levels: What it holds, each once.

    >>> dates_as_text("day", ["2024-01-31", "NA"]), dates_as_text("size", ["S", "M"])
    (True, False)
    """
    levels = [level for level in levels if level.strip() not in ("", *GAPS)]
    if not levels or not all(_DATE.fullmatch(level.strip()) for level in levels):
        return False
    texts = pl.Series(levels)
    odd = texts.filter(_written_days(texts).is_null())
    if len(odd):
        fix = "write them as 2024-12-31, or convert them to dates, or leave the column out"
        raise TableError(f"column {name!r} holds dates as text ({odd[0]!r})", fix=fix)
    return True


def looks_like_id(values: pl.Series) -> str | None:
    """Why whole numbers are more likely names than a quantity; None where they are not.

    >>> looks_like_id(pl.Series("visit", range(1000, 1050)))
    "column 'visit' looks like an id: 50 different whole numbers in 50 rows"
    >>> looks_like_id(pl.Series("age", [30, 31] * 25))
    """
    rows, kinds = len(values), values.n_unique()
    called = re.search(r"(^|[_ ])id$", values.name, re.IGNORECASE) is not None
    if rows < MIN_ID_ROWS or not (called or kinds > ID_SHARE * rows):
        return None
    seen = f"{kinds:,} different whole numbers in {rows:,} rows"
    return f"column {values.name!r} looks like an id: {seen}"


def levels_of(
    name: str, texts: list[str], most: int, rows: pl.LazyFrame, count: int
) -> tuple[str, ...]:
    """The levels of a column of text that count; none, where it names rows.

    Args:
        name: Of the column.
        texts: What it holds, each once and sorted.
        most: How many levels count.
        rows: The table.
        count: Its rows.
    """
    # Before the levels are counted: a column of numbers with one NA has as many as it has numbers.
    if (word := word_among(texts)) is not None:
        fix = "leave missing values empty, or convert the column, or leave it out of features"
        raise TableError(f"column {name!r} looks like numbers but holds {word!r}", fix=fix)
    numbers = like_numbers(texts)
    many = f"column {name!r} has {len(texts):,} levels"
    if count >= MIN_ID_ROWS and len(texts) > ID_SHARE * count:
        seen = f"{len(texts):,} texts in {count:,} rows"
        warn(f"column {name!r} holds text that differs in nearly every row, as ids and free text "
             f"do ({seen}): it is left out{numbers}")  # fmt: skip
        return ()
    if len(texts) <= most and numbers:
        warn(f"{many}, and each becomes a column{numbers}")
    if len(texts) > most:
        warn(f"{many}; the {most} most frequent count{numbers}")
        level = pl.col(name).cast(pl.String).alias("level")
        counted = rows.select(level).drop_nulls().group_by("level").len()
        first = counted.sort("len", "level", descending=[True, False]).head(most)
        texts = sorted(first.collect(engine="streaming")["level"].to_list())
    return tuple(texts)


def word_among(texts: Sequence[str]) -> str | None:
    """The first text that is no number, where most are.

    >>> word_among(["1.5", "2", "abc"]), word_among(["1", "S", "M", "L"])
    ('abc', None)
    """
    words = [text for text in texts if not _is_number(text)]
    most = 0 < len(words) <= len(texts) / 2 and len(texts) - len(words) > 1
    return words[0] if most else None


def like_numbers(texts: Sequence[str]) -> str:
    """What to do about texts that are all numbers, as they stand or with a unit or separators, and
    too many or too fine to name kinds; nothing where they are not.
    """
    if not texts or not all(_is_number(text) or _AMOUNT.fullmatch(text) for text in texts):
        return ""
    fine = [text for text in texts if not text.strip().isdigit()]
    if not fine and len(texts) < MIN_ID_ROWS:
        return ""
    how = "pandas.to_numeric, or 1234.5 in a CSV file, without separators or units"
    return f"; its texts look like numbers ({(fine or texts)[0]!r}): convert them ({how})"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def warn_of_classes(labels: Sequence[Any], where: str = "y") -> None:
    """Warn of classes that are spellings of one, of many whole numbers, and of a single class.

    Args:
        labels: The classes, each once.
        where: What holds them.
    """
    spellings: dict[str, list[str]] = {}
    for label in labels:
        if isinstance(label, str):
            spellings.setdefault(" ".join(label.split()).casefold(), []).append(label)
    for alike in spellings.values():
        if len(alike) > 1:
            warn(f"{where} holds {', '.join(map(repr, alike))}, which count as {len(alike)} "
                 "classes: write them alike if they are one")  # fmt: skip
    if len(labels) == 1:
        warn(f"{where} has only the class {labels[0]!r}: nothing can be learned, and every row is "
             "predicted as that class")  # fmt: skip
    if len(labels) > MANY_CLASSES and all(type(v) is int for v in labels):
        seen = f"{len(labels)} whole numbers from {min(labels)} to {max(labels)}"
        warn(f"{where} holds {seen}, which are taken for classes: use MetaRegressor if they "
             "are counts or ranks")  # fmt: skip
