"""Learning an encoding: levels, means and scales of the training rows, in one streaming pass."""

import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from fmrl.errors import TableError
from fmrl.tables.encoder import Column, Encoder, Policy, kind_of

_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}([T ].*)?")
_CONSTANT = 1e-12  # relative: values closer than this differ by rounding


def fit_encoder(
    rows: pl.LazyFrame, features: Sequence[str], policy: Policy | None = None
) -> Encoder:
    """Learn levels, means and scales from ``rows`` (those of the training tasks) in one pass,
    streaming.

    With missing='drop' only the rows that stay are learned from.
    """
    policy = policy or Policy()
    schema = rows.collect_schema()
    kinds = {f: kind_of(f, schema[f]) for f in features}
    if policy.categorical == "error" and (bad := [f for f in features if kinds[f] == "category"]):
        fix = "use policy=Policy(categorical='onehot'), or leave it out of features"
        raise TableError(f"column {bad[0]!r} holds text", fix=fix)
    learned = complete(rows, features) if policy.missing == "drop" else rows
    wanted: list[pl.Expr] = [pl.len().alias("rows")]
    for i, f in enumerate(features):
        c = pl.col(f)
        if kinds[f] == "category":
            levels = c.cast(pl.String).drop_nulls().unique().sort().implode()
            wanted += [levels.alias(f"levels{i}"), c.null_count().alias(f"missing{i}")]
            continue
        c = c.cast(pl.Float64).fill_nan(None)
        stats = {
            "mean": c.mean(),
            "std": c.std(ddof=0),
            "min": c.min(),
            "max": c.max(),
            "missing": c.null_count(),
        }
        wanted += [e.alias(f"{name}{i}") for name, e in stats.items()]
    got = learned.select(wanted).collect(engine="streaming").row(0, named=True)
    if not got["rows"]:
        raise _no_rows(rows, features)
    columns = (_column(i, f, kinds[f], got, policy, str(schema[f])) for i, f in enumerate(features))
    return Encoder(tuple(columns), policy)


def complete(rows: pl.LazyFrame, columns: Sequence[str]) -> pl.LazyFrame:
    """Only the rows without a missing value (null or NaN) in ``columns``."""
    schema = rows.collect_schema()
    return rows.filter(pl.all_horizontal([~is_missing(pl.col(c), schema[c]) for c in columns]))


def is_missing(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """True where a value is null or NaN."""
    return column.fill_nan(None).is_null() if dtype.is_float() else column.is_null()


def _no_rows(rows: pl.LazyFrame, features: Sequence[str]) -> TableError:
    schema = rows.collect_schema()
    counts = rows.select(
        pl.len().alias("0"),
        *(is_missing(pl.col(f), schema[f]).sum().alias(f"1{f}") for f in features),
    )
    n, *missing = counts.collect(engine="streaming").row(0)
    if n and n in missing:
        return _nothing(features[missing.index(n)])
    fix = (
        "every row misses some value: use policy=Policy(missing='indicator')"
        if n
        else "give a table with rows, and training tasks that are in it"
    )
    return TableError("there is no row to learn the encoding from", fix=fix)


def _nothing(name: str) -> TableError:
    return TableError(
        f"column {name!r} has no value at all (only NaN or nothing)", fix="leave it out of features"
    )


def _column(i: int, name: str, kind: str, got: dict, policy: Policy, dtype: str) -> Column:
    indicator = policy.missing == "indicator" and got[f"missing{i}"] > 0
    if got[f"missing{i}"] == got["rows"]:
        raise _nothing(name)
    if kind == "category":
        return Column(
            name, _levels(name, got[f"levels{i}"], policy.levels), indicator=indicator, dtype=dtype
        )
    mean, low, high = got[f"mean{i}"], got[f"min{i}"], got[f"max{i}"]
    if not np.isfinite([low, high]).all():
        raise TableError(f"column {name!r} has an infinite value", fix="replace it")
    centre, spread = {
        "none": (0.0, 1.0),
        "standard": (mean, got[f"std{i}"]),
        "range": (low, high - low),
    }[policy.scale]
    size = max(abs(low), abs(high))
    if high - low <= _CONSTANT * size or (size < 1 and not spread):  # squares of tiny values vanish
        spread = 1.0  # a constant column becomes zero, up to rounding
    # A deviation of nothing where large values differ is an overflow that cancelled.
    if not np.isfinite([mean, centre, spread]).all() or not spread > 0:
        raise TableError(
            f"column {name!r} is too large to be scaled ({low:g} to {high:g})",
            fix="rescale it yourself",
        )
    return Column(name, None, mean, centre, spread, indicator, dtype)


def _levels(name: str, levels: Sequence[str], most: int) -> tuple[str, ...]:
    if levels and all(_DATE.fullmatch(level) for level in levels):
        fix = "name it in order= to sort by it, leave it out of features, or turn it into numbers yourself"
        raise TableError(f"column {name!r} holds dates as text ({levels[0]!r})", fix=fix)
    if len(levels) > most:
        fix = f"leave it out of features, or use policy=Policy(levels=...) above {most}"
        raise TableError(f"column {name!r} has {len(levels):,} levels", fix=fix)
    numbers = [level for level in levels if _is_number(level)]
    if len(levels) > len(numbers) >= len(levels) / 2 and len(numbers) > 1:
        odd = next(level for level in levels if level not in numbers)
        fix = "leave missing values empty, or convert the column, or leave it out of features"
        raise TableError(f"column {name!r} looks like numbers but holds {odd!r}", fix=fix)
    return tuple(levels)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
