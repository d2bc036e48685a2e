"""Columns into numbers: categories, missing values and scaling, learned from training tasks and
stored with the model.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import polars as pl

from fmrl.errors import TableError

_CHOICES = {
    "categorical": ("onehot", "error"),
    "missing": ("error", "indicator", "mean", "drop"),
    "unknown": ("zero", "error"),
    "scale": ("none", "standard", "range"),
}


@dataclass(frozen=True)
class Policy:
    """What to do with values that are not numbers.

    categorical: 'onehot' one column per level | 'error'. missing (null or NaN): 'error' |
    'indicator' the training mean plus a column that is 1 where the value was missing | 'mean' the
    training mean alone | 'drop' the row. A column without any value is always an error. unknown (a
    level no training task had): 'zero' no column is 1 | 'error'.
    scale: 'none' | 'standard' (x - mean) / deviation | 'range' (x - min) / (max - min); always of
    the training tasks."""

    categorical: str = "onehot"
    missing: str = "error"
    unknown: str = "zero"
    scale: str = "none"
    levels: int = 256

    def __post_init__(self):
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise TableError(
                    f"{name}={getattr(self, name)!r} is unknown",
                    fix=f"use one of {', '.join(allowed)}",
                )
        if not isinstance(self.levels, int) or self.levels < 1:
            raise TableError(
                f"levels={self.levels!r} is no number of levels",
                fix="give a whole number of at least 1",
            )


@dataclass(frozen=True)
class Column:
    """One input column: a number (levels None) or a category; ``indicator`` when training tasks had
    missing values.

    ``dtype`` is what the training tasks held: later rows must be of the same kind, or "01" would be
    read as the number 1."""

    name: str
    levels: tuple[str, ...] | None = None
    fill: float = 0.0
    centre: float = 0.0
    spread: float = 1.0
    indicator: bool = False
    dtype: str = "Float64"

    @property
    def outputs(self) -> list[str]:
        """Names of the columns this one becomes."""
        own = (
            [self.name]
            if self.levels is None
            else [f"{self.name}={level}" for level in self.levels]
        )
        return own + ([f"{self.name} is missing"] if self.indicator else [])


@dataclass(frozen=True)
class Encoder:
    """A fitted encoding: a plain value, stored as JSON.

    >>> from fmrl.datasets import fit_encoder
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
        return json.dumps(
            {"columns": [asdict(c) for c in self.columns], "policy": asdict(self.policy)},
            ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, text: str) -> "Encoder":
        """The encoding `to_json` wrote."""
        try:
            held = json.loads(text)
            columns = (
                Column(**(c | {"levels": None if c["levels"] is None else tuple(c["levels"])}))
                for c in held["columns"]
            )
            return cls(tuple(columns), Policy(**held["policy"]))
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as e:
            raise TableError(
                f"this is no stored encoder ({type(e).__name__}: {e})",
                fix="give what to_json wrote",
            ) from None

    def transform(self, frame: pl.DataFrame, rows: np.ndarray | None = None) -> np.ndarray:
        """Rows as float64 [n, d]; ``rows`` [n] are their numbers in the table, for messages."""
        rows = np.arange(len(frame)) if rows is None else rows
        parts = [p for c in self.columns for p in self._encode(c, frame[c.name], rows)]
        return np.column_stack(parts) if parts else np.empty((len(frame), 0))

    def _encode(self, c: Column, values: pl.Series, rows: np.ndarray) -> list[np.ndarray]:
        values = clean(values)
        missing = values.is_null()
        if not missing.all():
            same_kind(c, values.dtype)
        if missing.any() and not c.indicator and self.policy.missing != "mean":
            what = f"column {c.name!r} has no value in row {rows[missing.arg_max()]}"
            if self.policy.missing == "indicator":
                what += ", and no training task had one missing there"
                raise TableError(
                    what, fix="use policy=Policy(missing='mean'), or train on such rows"
                )
            fix = "fill it in, or use policy=Policy(missing=...) with 'indicator', 'mean' or 'drop'"
            raise TableError(what, fix=fix)
        flag = [missing.to_numpy().astype(np.float64)] if c.indicator else []
        if c.levels is None:
            x = values.cast(pl.Float64).fill_null(c.fill).to_numpy()
            x = (x - c.centre) / c.spread
            if not np.isfinite(x).all():
                raise TableError(
                    f"column {c.name!r} is infinite in row {rows[np.argmin(np.isfinite(x))]}",
                    fix="replace it",
                )
            return [x, *flag]
        text = values.cast(pl.String)
        unknown = text.is_not_null() & ~text.is_in(list(c.levels))
        if self.policy.unknown == "error" and unknown.any():
            at = int(unknown.arg_max() or 0)
            what = f"column {c.name!r} has the level {text[at]!r} in row {rows[at]}, which no training task had"
            raise TableError(what, fix="train on it, or use policy=Policy(unknown='zero')")
        return [
            (text == level).fill_null(False).to_numpy().astype(np.float64) for level in c.levels
        ] + flag


def clean(values: pl.Series) -> pl.Series:
    """NaN counts as missing, like null."""
    return values.fill_nan(None) if values.dtype.is_float() else values


def kind_of(name: str, dtype: Any) -> str:
    """'number' or 'category', or an error that says what to convert."""
    if dtype.is_numeric() or dtype == pl.Boolean:
        return "number"
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        return "category"
    if dtype == pl.Null:
        raise TableError(f"column {name!r} has no value at all", fix="leave it out of features")
    if dtype.is_temporal():
        fix = "name it in order= to sort by it, leave it out of features, or turn it into numbers yourself"
        raise TableError(f"column {name!r} holds dates or times ({dtype})", fix=fix)
    fix = "convert it to a number or a string, or leave it out of features"
    raise TableError(f"column {name!r} is of type {dtype}", fix=fix)


def same_kind(c: Column, dtype: Any) -> None:
    """Raise TableError unless a column of this dtype is of the kind the encoding was learned from."""
    learned, given = ("number" if c.levels is None else "category"), kind_of(c.name, dtype)
    if given != learned:
        what = f"column {c.name!r} is {dtype} here, the encoding was learned from {c.dtype}"
        raise TableError(
            what, fix="convert it: the same text and the same number are different values"
        )
