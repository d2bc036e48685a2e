"""Columns into numbers: categories, missing values and scaling, learned from training tasks and stored with the model."""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import polars as pl

from fmrl.data.errors import TableError

_CHOICES = {
    "categorical": ("onehot", "error"),
    "missing": ("error", "indicator", "mean", "drop"),
    "unknown": ("zero", "error"),
    "scale": ("none", "standard", "range"),
}


@dataclass(frozen=True)
class Policy:
    """What to do with values that are not numbers.

    categorical: 'onehot' one column per level | 'error'.
    missing (null or NaN): 'error' | 'indicator' the training mean plus a column that is 1 where the value was missing | 'mean' the
    training mean alone | 'drop' the row. A column without any value is always an error.
    unknown (a level no training task had): 'zero' no column is 1 | 'error'.
    scale: 'none' | 'standard' (x - mean) / deviation | 'range' (x - min) / (max - min); always of the training tasks.
    """

    categorical: str = "onehot"
    missing: str = "error"
    unknown: str = "zero"
    scale: str = "none"
    levels: int = 256

    def __post_init__(self):
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise TableError(f"{name}={getattr(self, name)!r} is unknown", fix=f"use one of {', '.join(allowed)}")


@dataclass(frozen=True)
class Column:
    """One input column: a number (levels None) or a category; ``indicator`` when training tasks had missing values."""

    name: str
    levels: tuple[str, ...] | None = None
    fill: float = 0.0
    centre: float = 0.0
    spread: float = 1.0
    indicator: bool = False

    @property
    def outputs(self) -> list[str]:
        """Names of the columns this one becomes."""
        own = [self.name] if self.levels is None else [f"{self.name}={level}" for level in self.levels]
        return own + ([f"{self.name} is missing"] if self.indicator else [])


@dataclass(frozen=True)
class Encoder:
    """A fitted encoding: a plain value, stored as JSON.

    >>> frame = pl.DataFrame({"size": [1.0, 3.0], "colour": ["red", "blue"]})
    >>> encoder = fit_encoder(frame.lazy(), ["size", "colour"], Policy(scale="standard"))
    >>> encoder.transform(frame).tolist()
    [[-1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    >>> Encoder.from_json(encoder.to_json()) == encoder
    True
    """

    columns: tuple[Column, ...]
    policy: Policy = field(default_factory=Policy)

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns, in order."""
        return [name for c in self.columns for name in c.outputs]

    @property
    def inputs(self) -> list[str]:
        """Names of the columns it needs."""
        return [c.name for c in self.columns]

    def to_json(self) -> str:
        """The encoding as text."""
        return json.dumps({"columns": [asdict(c) for c in self.columns], "policy": asdict(self.policy)}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Encoder":
        """The encoding `to_json` wrote."""
        held = json.loads(text)
        columns = (Column(**(c | {"levels": None if c["levels"] is None else tuple(c["levels"])})) for c in held["columns"])
        return cls(tuple(columns), Policy(**held["policy"]))

    def transform(self, frame: pl.DataFrame, first_row: int = 0) -> np.ndarray:
        """Rows as float64 [n, d]; ``first_row`` only serves error messages."""
        parts = [p for c in self.columns for p in self._encode(c, frame[c.name], first_row)]
        return np.column_stack(parts) if parts else np.empty((len(frame), 0))

    def _encode(self, c: Column, values: pl.Series, first_row: int) -> list[np.ndarray]:
        values = clean(values)
        missing = values.is_null()
        if missing.any() and not c.indicator and self.policy.missing in ("error", "indicator"):
            row = first_row + int(missing.arg_max() or 0)
            what = f"column {c.name!r} has no value in row {row}"
            if self.policy.missing == "indicator":
                raise TableError(
                    what + ", and no training task had one missing there", fix="use missing='mean', or train on such rows"
                )
            raise TableError(what, fix="use missing='indicator', 'mean' or 'drop', or fill it in")
        flag = [missing.to_numpy().astype(np.float64)] if c.indicator else []
        if c.levels is None:
            x = values.cast(pl.Float64).fill_null(c.fill).to_numpy()
            if not np.isfinite(x).all():
                raise TableError(
                    f"column {c.name!r} is infinite in row {first_row + int(np.argmin(np.isfinite(x)))}", fix="replace it"
                )
            return [(x - c.centre) / c.spread, *flag]
        text = values.cast(pl.String)
        unknown = text.is_not_null() & ~text.is_in(list(c.levels))
        if self.policy.unknown == "error" and unknown.any():
            row = int(unknown.arg_max() or 0)
            raise TableError(
                f"column {c.name!r} has the level {text[row]!r} in row {first_row + row}, which no training task had"
            )
        return [(text == level).fill_null(False).to_numpy().astype(np.float64) for level in c.levels] + flag


def clean(values: pl.Series) -> pl.Series:
    """NaN counts as missing, like null."""
    return values.fill_nan(None) if values.dtype.is_float() else values


def kind_of(name: str, dtype: pl.DataType) -> str:
    """'number' or 'category', or an error that says what to convert."""
    if dtype.is_numeric() or dtype == pl.Boolean:
        return "number"
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        return "category"
    if dtype == pl.Null:
        raise TableError(f"column {name!r} has no value at all", fix="leave it out of features")
    raise TableError(
        f"column {name!r} is of type {dtype}", fix="convert it to a number or a string, or leave it out of features"
    )


def fit_encoder(rows: pl.LazyFrame, features: Sequence[str], policy: Policy | None = None) -> Encoder:
    """Learn levels, means and scales from ``rows`` (those of the training tasks) in one pass, streaming."""
    policy = policy or Policy()
    schema = rows.collect_schema()
    kinds = {f: kind_of(f, schema[f]) for f in features}
    if policy.categorical == "error" and (bad := [f for f in features if kinds[f] == "category"]):
        raise TableError(f"column {bad[0]!r} holds text", fix="use categorical='onehot', or leave it out of features")
    wanted: list[pl.Expr] = [pl.len().alias("rows")]
    for i, f in enumerate(features):
        c = pl.col(f)
        if kinds[f] == "category":
            wanted += [
                c.cast(pl.String).drop_nulls().unique().sort().implode().alias(f"levels{i}"),
                c.null_count().alias(f"missing{i}"),
            ]
            continue
        c = c.cast(pl.Float64).fill_nan(None)
        stats = {"mean": c.mean(), "std": c.std(ddof=0), "min": c.min(), "max": c.max(), "missing": c.null_count()}
        wanted += [e.alias(f"{name}{i}") for name, e in stats.items()]
    got = rows.select(wanted).collect(engine="streaming").row(0, named=True)
    if not got["rows"]:
        raise TableError("there is no row to learn the encoding from", fix="name training tasks that are in the table")
    return Encoder(tuple(_column(i, f, kinds[f], got, policy) for i, f in enumerate(features)), policy)


def _column(i: int, name: str, kind: str, got: dict, policy: Policy) -> Column:
    indicator = policy.missing == "indicator" and got[f"missing{i}"] > 0
    if got[f"missing{i}"] == got["rows"]:
        raise TableError(f"column {name!r} has no value at all (only NaN or nothing)", fix="leave it out of features")
    if kind == "category":
        levels = tuple(got[f"levels{i}"])
        if len(levels) > policy.levels:
            what = f"column {name!r} has {len(levels):,} levels"
            raise TableError(what, fix=f"leave it out of features, or raise Policy(levels=…) above {policy.levels}")
        numbers = [level for level in levels if _is_number(level)]
        if len(levels) > len(numbers) >= len(levels) / 2 and len(numbers) > 1:
            odd = next(level for level in levels if level not in numbers)
            what = f"column {name!r} looks like numbers but holds {odd!r}"
            raise TableError(what, fix="leave missing values empty, or convert the column, or leave it out of features")
        return Column(name, levels, indicator=indicator)
    mean, low, high = got[f"mean{i}"], got[f"min{i}"], got[f"max{i}"]
    if not np.isfinite([low, high]).all():
        raise TableError(f"column {name!r} has an infinite value", fix="replace it")
    if policy.scale == "none":
        return Column(name, None, mean, indicator=indicator)
    centre, spread = (mean, got[f"std{i}"]) if policy.scale == "standard" else (low, high - low)
    return Column(name, None, mean, centre, spread if spread > 0 else 1.0, indicator)  # a constant column becomes zero


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def training_ids(ids: Collection, share: float, seed: int = 0) -> list:
    """The ids of training tasks: those whose hash falls below ``share``; an id stays on its side whatever else is in the table.

    >>> len(training_ids(range(1000), 0.8))
    801
    """
    cut = share * 2.0**64
    return [i for i in ids if int.from_bytes(hashlib.sha256(f"{seed}:{i!r}".encode()).digest()[:8]) < cut]


def training_rows(rows: pl.LazyFrame, task: str, train: Collection | float | None) -> pl.LazyFrame:
    """The rows of the training tasks: all of them, those of the ids given, or of a share of the ids."""
    if train is None:
        return rows
    if isinstance(train, float):
        if not 0 < train <= 1:
            raise TableError(f"train={train} is no share of the tasks", fix="give a number above 0 and at most 1, or the ids")
        ids = rows.select(pl.col(task).unique()).collect(engine="streaming").to_series()
        train = training_ids(ids.drop_nulls().to_list(), train)
    return rows.filter(pl.col(task).is_in(list(train)))
