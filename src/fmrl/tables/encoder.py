"""Columns of a table as numbers: an encoding learned from training rows and stored."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from fmrl.errors import FMRLError, TableError, warn
from fmrl.files import from_json
from fmrl.tables.any_table import clean, is_complete
from fmrl.tables.kinds import (
    TEXT,
    as_number,
    dates_as_text,
    kind_of,
    levels_of,
    without_gaps,
)  # fmt: skip

_CHOICES = {
    "categorical": ("onehot", "error"),
    "missing": ("error", "indicator", "mean", "impute", "drop"),
    "unknown": ("zero", "error"),
    "scale": ("none", "standard", "range"),
}
_MOMENTS = ("mean", "std", "min", "max")
_ROUNDING = 1e-12  # relative: values closer than this differ by rounding


def check_choices(choices: Mapping[str, Sequence[str]], given: Mapping[str, Any]) -> None:
    """Raise TableError for the first argument whose value is not among its choices."""
    for name, allowed in choices.items():
        if given[name] not in allowed:
            fix = f"use one of {', '.join(allowed)}"
            raise TableError(f"{name}={given[name]!r} is unknown", fix=fix)


@dataclass(frozen=True)
class Policy:
    """What to do with values that are not numbers, and how columns are scaled.

    Args:
        categorical: Text columns: 'onehot' makes one column of each level, 'error' refuses them.
        missing: Null and NaN: 'error', 'indicator' (the training mean, and a column that is 1 where
            the value was missing), 'mean' (the training mean alone), 'impute' ('indicator' for
            columns in which training rows had gaps, 'mean' for the others, with a warning) or
            'drop' (the row is left out, also where the target is missing). A column without any
            value is always an error.
        unknown: A level that no training task had: 'zero' (none of its columns is 1) or 'error'.
        scale: 'none', 'standard' for (x - mean) / deviation, or 'range' for
            (x - min) / (max - min); always of the training tasks.
        levels: Of how many levels of a text column the most frequent count; the others are as one
            that no training task had.

    Dates and times, also as text with the year first, are days, always scaled ('standard' where
    scale is 'none'), because a day since 1970 is no unit of anybody's. A column whose texts nearly
    all differ names or describes rows, and is left out with a warning.
    """

    categorical: str = "onehot"
    missing: str = "error"
    unknown: str = "zero"
    scale: str = "none"
    levels: int = 256

    def __post_init__(self):
        check_choices(_CHOICES, vars(self))
        if not isinstance(self.levels, int) or self.levels < 1:
            what = f"levels={self.levels!r} is not a number of levels"
            raise TableError(what, fix="give a whole number of at least 1")


@dataclass(frozen=True)
class Column:
    """One input column: a number or a date (``levels`` is None), or a category.

    ``indicator``: the training tasks had missing values. ``dtype``: what they held; later rows must
    be of the same kind, or "01" would be read as the number 1."""

    name: str
    levels: tuple[str, ...] | None = None
    fill: float = 0.0
    centre: float = 0.0
    spread: float = 1.0
    indicator: bool = False
    dtype: str = "Float64"

    @cached_property
    def kind(self) -> str:
        """What it holds, in the words of `kind_of`."""
        if self.levels is not None:
            return "category"
        times = {"Date": "date", "Duration": "duration", "Time": "time of day"}
        return next((times[t] for t in times if self.dtype.startswith(t)), "number")

    @cached_property
    def outputs(self) -> list[str]:
        """Names of the columns this one becomes."""
        own = [self.name] if self.levels is None else [f"{self.name}={v}" for v in self.levels]
        return own + ([f"{self.name} is missing"] if self.indicator else [])

    @property
    def read_as(self) -> Any:
        """The polars type to read this column of a CSV file as."""
        number = pl.Boolean if self.dtype == "Boolean" else pl.Float64
        return number if self.kind == "number" else pl.String


@dataclass(frozen=True)
class Encoder:
    """A learned encoding: a plain value, stored as JSON.

    Args:
        columns: The input columns and what was learned about each.
        policy: What to do with values that are not numbers.
        task: The column that names a row's task, which is no feature, where it is known.
        transformer: What makes the features of the encoded columns, fitted; None for nothing.

    >>> from fmrl.tables import fit_encoder
    >>> frame = pl.DataFrame({"size": [1.0, 3.0], "colour": ["red", "blue"]})
    >>> columns, policy = ["size", "colour"], Policy(scale="standard")
    >>> encoder = fit_encoder(frame.lazy(), columns, policy)
    >>> encoder.transform(frame).tolist()
    [[-1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    >>> Encoder.from_json(encoder.to_json()) == encoder
    True
    """

    columns: tuple[Column, ...]
    policy: Policy = field(default_factory=Policy)
    task: str | None = None
    transformer: Any = None

    @cached_property
    def plain(self) -> bool:
        """Whether numbers without gaps stay exactly as they are."""
        return self.transformer is None and self._is_identity

    @cached_property
    def _is_identity(self) -> bool:
        """Whether `encode` leaves numbers without gaps as they are."""
        same = ((c.kind, c.indicator, c.centre, c.spread) for c in self.columns)
        return all(c == ("number", False, 0.0, 1.0) for c in same)

    @cached_property
    def names(self) -> list[str]:
        """Names of the columns it gives, in order."""
        own = [name for c in self.columns for name in c.outputs]
        if self.transformer is None:
            return own
        if hasattr(self.transformer, "get_feature_names_out"):
            return [str(name) for name in self.transformer.get_feature_names_out(own)]
        return [f"feature {i}" for i in range(self.expand(np.zeros((1, len(own)))).shape[1])]

    @cached_property
    def inputs(self) -> list[str]:
        """Names of the columns it needs."""
        return [c.name for c in self.columns]

    def to_json(self) -> str:
        """The encoding as text, without its transformer."""
        return json.dumps(asdict(replace(self, transformer=None)), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Encoder":
        """The encoding `to_json` wrote."""
        try:
            held = from_json(text)
            for c in held["columns"]:
                c["levels"] = None if c["levels"] is None else tuple(c["levels"])
            columns = tuple(Column(**c) for c in held["columns"])
            return cls(columns, Policy(**held["policy"]), held.get("task"))
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            what = f"this is not a stored encoder ({type(e).__name__}: {e})"
            raise TableError(what, fix="give what to_json wrote") from None

    def transform(self, frame: pl.DataFrame, rows: np.ndarray | None = None) -> np.ndarray:
        """Rows of a table as numbers.

        Args:
            frame: The rows; it has the columns `inputs`.
            rows: [n] their numbers in the table, for messages (default: 0, 1, …).

        Returns:
            float64 [n, d], a column for each of `names`.
        """
        return self.expand(self.encode(frame, rows))

    def encode(self, frame: pl.DataFrame, rows: np.ndarray | None = None) -> np.ndarray:
        """Rows of a table as numbers, before the transformer.

        Args:
            frame: The rows; it has the columns `inputs`.
            rows: [n] their numbers in the table, for messages (default: 0, 1, …).
        """
        used = [c for c in self.columns if c.levels != ()]
        schema = frame.schema
        read = [_as_numbers(c, frame, schema[c.name]) for c in used]
        found = frame.select_seq(read).to_numpy(order="c") if read else np.empty((len(frame), 0))
        if self._is_identity and np.isfinite(found).all():
            return found
        rows = np.arange(len(frame)) if rows is None else rows
        out, start = np.zeros((len(found), sum(len(c.outputs) for c in self.columns))), 0
        for c, x in zip(used, found.T, strict=True):
            if (gap := np.isnan(x)).any() and not c.indicator:
                self._allow_gap(c, rows[gap.argmax()])
            if c.levels is None:
                out[:, start] = (np.where(gap, c.fill, x) - c.centre) / c.spread
                if not (finite := np.isfinite(out[:, start])).all():
                    raise _no_number_error(c, frame[c.name], int(finite.argmin()), rows)
            else:
                if self.policy.unknown == "error" and (odd := x == len(c.levels)).any():
                    raise _unknown_level_error(c, frame[c.name], int(odd.argmax()), rows)
                known = np.flatnonzero(x < len(c.levels))
                out[known, start + x[known].astype(int)] = 1.0
            start += len(c.outputs)
            if c.indicator:
                out[:, start - 1] = gap
        return out

    def expand(self, rows: np.ndarray) -> np.ndarray:
        """Encoded rows [n, d] as the transformer's columns [n, g]; without one, as they are.

        Args:
            rows: What `encode` gives.
        """
        if self.transformer is None:
            return rows
        made = self.transformer.transform(rows) if len(rows) else np.empty((0, len(self.names)))
        made = made.toarray() if hasattr(made, "toarray") else made
        made = np.ascontiguousarray(made, dtype=np.float64)
        if made.ndim != 2 or len(made) != len(rows) or not np.isfinite(made).all():
            what = f"features={self.transformer!r} does not give finite numbers for every row"
            raise FMRLError(what, fix="scale the columns before it, or use another")
        return made

    @cached_property
    def left_out(self) -> list[str]:
        """The columns that were left out as they name rows: later rows need not have them."""
        return [c.name for c in self.columns if c.levels == ()]

    def _allow_gap(self, c: Column, row: int) -> None:
        """Refuse, or warn of, a gap in a column that had none in training."""
        if self.policy.missing == "impute":
            filled = "the mean" if c.levels is None else "no level"
            warn(f"column {c.name!r} has gaps, and no training row had: they count as {filled}")
        elif self.policy.missing != "mean":
            what = f"column {c.name!r} has no value in row {row}"
            fix = "fill it in, or use policy=Policy(missing=...) with 'indicator', 'mean' or 'drop'"
            if self.policy.missing == "indicator":
                what += ", and no training task had one missing there"
                fix = "use policy=Policy(missing='mean'), or train on such rows"
            raise TableError(what, fix=fix)


def _as_numbers(c: Column, frame: pl.DataFrame, dtype: Any) -> pl.Expr:
    """A column as real numbers: dates in days, a level as its position (an unknown one as the
    position after the last); null for a gap, infinite for a text that is no date.
    """
    values = pl.col(c.name)
    try:
        same_kind(c, dtype)
    except TableError:
        if clean(frame[c.name]).null_count() < len(frame):
            raise
        return pl.repeat(None, pl.len(), dtype=pl.Float64).alias(c.name)
    if c.levels is not None:
        text = values.cast(pl.String)
        place = text.cast(pl.Enum(c.levels), strict=False).to_physical().cast(pl.Float64)
        found = pl.when(text.is_not_null()).then(place.fill_null(len(c.levels)))
    elif dtype in TEXT:
        days = as_number(text := without_gaps(values), pl.String)
        found = pl.when(text.is_not_null()).then(days.fill_null(np.inf))
    else:
        found = as_number(values, dtype)
    return found.alias(c.name)


def _no_number_error(c: Column, values: pl.Series, at: int, rows: np.ndarray) -> TableError:
    if values.dtype in TEXT:
        what = f"column {c.name!r} holds {values[at]!r} in row {rows[at]}, which is no date"
        return TableError(what, fix="write it as 2024-12-31")
    return TableError(f"column {c.name!r} is infinite in row {rows[at]}", fix="replace it")


def _unknown_level_error(c: Column, values: pl.Series, at: int, rows: np.ndarray) -> TableError:
    what = f"column {c.name!r} has the level {values[at]!r} in row {rows[at]}"
    fix = "train on it, or use policy=Policy(unknown='zero')"
    return TableError(what + ", which no training task had", fix=fix)


def fit_encoder(
    rows: pl.LazyFrame, features: Sequence[str], policy: Policy | None = None
) -> Encoder:
    """Learn levels, means and scales in one streaming pass.

    Args:
        rows: The rows of the training tasks. With missing='drop' only complete rows count.
        features: The columns to encode.
        policy: What to do with values that are not numbers (default: `Policy()`).
    """
    policy = policy or Policy()
    schema = rows.collect_schema()
    kinds = {f: kind_of(f, schema[f]) for f in features}
    if policy.categorical == "error" and (bad := [f for f in features if kinds[f] == "category"]):
        fix = "use policy=Policy(categorical='onehot'), or leave it out of features"
        raise TableError(f"column {bad[0]!r} holds text", fix=fix)
    learned = rows.filter(is_complete(features, schema)) if policy.missing == "drop" else rows
    stats: list[dict[str, pl.Expr]] = []
    for f in features:
        c = pl.col(f)
        if kinds[f] == "category":
            own = {"levels": c.cast(pl.String).drop_nulls().unique().sort().implode()}
        else:
            c = as_number(c, schema[f])
            own = _moments(c)
        stats.append(own | {"missing": c.null_count()})
    wanted = [e.alias(f"{n}{i}") for i, own in enumerate(stats) for n, e in own.items()]
    got = learned.select(pl.len().alias("rows"), *wanted).collect(engine="streaming")
    got = got.row(0, named=True)
    if not got["rows"]:
        held = rows.select(is_complete([f], schema).any().alias(f) for f in features)
        held = held.collect(engine="streaming").row(0, named=True)
        if any(held.values()) and (empty := [f for f in features if not held[f]]):
            raise _no_value_error(empty[0])
        what = "there is no row to learn the encoding from"
        fix = (
            "give a table with rows, training tasks that are in it, and columns with values; where "
        )
        fix += "every row misses some use policy=Policy(missing='indicator')"
        raise TableError(what, fix=fix)
    columns, held = [], {f: str(schema[f]) for f in features}
    for i, f in enumerate(features):
        mine = {name: got[f"{name}{i}"] for name in stats[i]}
        if mine["missing"] == got["rows"]:
            raise _no_value_error(f)
        if kinds[f] == "category" and dates_as_text(f, mine["levels"]):
            days = as_number(pl.col(f), pl.String)
            asked = learned.select(missing=days.null_count(), **_moments(days))
            mine |= asked.collect(engine="streaming").row(0, named=True)
            kinds[f], held[f] = "date", "Date as text"
        if kinds[f] == "category":
            levels = levels_of(f, mine["levels"], policy.levels, learned, got["rows"])
            fitted: dict[str, Any] = {"levels": levels}
        else:
            standard = policy.scale == "none" and kinds[f] != "number"
            fitted = _scales(f, mine, "standard" if standard else policy.scale)
        gaps = mine["missing"] > 0 and fitted.get("levels") != ()
        flag = policy.missing in ("indicator", "impute") and gaps
        columns.append(Column(f, **fitted, indicator=flag, dtype=held[f]))
    return Encoder(tuple(columns), policy)


def same_kind(c: Column, dtype: Any) -> None:
    """Raise TableError unless a column is of the kind that the encoding was learned from."""
    if kind_of(c.name, dtype) != c.kind and not (c.kind == "date" and dtype in TEXT):
        what = f"column {c.name!r} is {dtype} here, the encoding was learned from {c.dtype}"
        fix = "convert it: the same text and the same number are different values"
        if c.kind not in ("number", "category"):
            fix = f"give a {c.kind}, as in training"
        raise TableError(what, fix=fix)


def _no_value_error(name: str) -> TableError:
    what = f"column {name!r} has no value at all (only NaN or nothing)"
    return TableError(what, fix="leave it out of features")


def _scales(name: str, got: Mapping[str, Any], scale: str) -> dict[str, float]:
    mean, low, high = got["mean"], got["min"], got["max"]
    if not np.isfinite([low, high]).all():
        raise TableError(f"column {name!r} has an infinite value", fix="replace it")
    scales = {"none": (0.0, 1.0), "standard": (mean, got["std"]), "range": (low, high - low)}
    centre, spread = scales[scale]
    size = max(abs(low), abs(high))
    if high - low <= _ROUNDING * size or (size < 1 and not spread):  # tiny squares vanish
        spread = 1.0  # a constant column becomes zero, up to rounding
    # A deviation of nothing where large values differ is an overflow that cancelled.
    if not np.isfinite([mean, centre, spread]).all() or not spread > 0:
        what = f"column {name!r} is too large to be scaled ({low:g} to {high:g})"
        raise TableError(what, fix="rescale it yourself")
    return {"fill": mean, "centre": centre, "spread": spread}


def _moments(c: pl.Expr) -> dict[str, pl.Expr]:
    return dict(zip(_MOMENTS, (c.mean(), c.std(ddof=0), c.min(), c.max()), strict=True))
