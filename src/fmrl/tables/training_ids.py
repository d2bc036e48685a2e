"""Which tasks an encoding may learn from: ids that are named, or a share of them that does not
depend on the rest of the table.
"""

import hashlib
from collections.abc import Collection
from typing import Any

import polars as pl

from fmrl.errors import TableError


def training_ids(ids: Collection, share: float, seed: int = 0) -> list:
    """The ids of training tasks: those whose hash falls below ``share``; an id stays on its side
    whatever else is in the table.

    The hash is of the id as text, so 1, 1.0 and "1" fall on the same side, whichever kind of file
    they come from.

    >>> len(training_ids(range(1000), 0.8))
    801
    """
    cut = share * 2.0**64
    return [
        i
        for i in ids
        if int.from_bytes(hashlib.sha256(f"{seed}:{_text(i)}".encode()).digest()[:8]) < cut
    ]


def _text(i: Any) -> str:
    return str(int(i)) if isinstance(i, float) and i.is_integer() else str(i)


def choose_training(
    rows: pl.LazyFrame, task: str, train: Collection | float | None
) -> tuple | None:
    """The ids of the training tasks in this table, or None for all: those given, or a share of
    them.
    """
    if train is None:
        return None
    if isinstance(train, str | bytes) or not isinstance(train, Collection | float | int):
        raise TableError(
            f"train={train!r} is neither ids nor a share",
            fix="give a list of ids, or a number in (0, 1]",
        )
    if isinstance(train, float | int):
        if not 0 < train <= 1:
            raise TableError(
                f"train={train} is no share of the tasks",
                fix="give a number above 0 and at most 1, or the ids",
            )
        ids = rows.select(pl.col(task).unique().sort()).collect(engine="streaming").to_series()
        return tuple(training_ids(ids.drop_nulls().to_list(), float(train)))
    dtype, given = rows.collect_schema()[task], list(train)
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        # The ids of a CSV file are text, as they are written there.
        return tuple(map(_text, given))
    try:
        pl.Series(given, dtype=dtype, strict=True)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        what = f"train={given[:3]} are no ids of the column {task!r}, which is {dtype}"
        raise TableError(what, fix="give ids of the same kind") from None
    return tuple(given)


def training_rows(rows: pl.LazyFrame, task: str, ids: tuple | None) -> pl.LazyFrame:
    """The rows of the training tasks."""
    return rows if ids is None else rows.filter(pl.col(task).is_in(list(ids)))
