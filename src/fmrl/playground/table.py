"""A user's tasks for the playground: their optima along the two directions in which they differ
most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fmrl.errors import FMRLError
from fmrl.report.html import clean
from fmrl.report.make_facts import two_directions
from fmrl.theory.bounds.bound import numbers

MOST = 200  # tasks that the page plays
ROOM = 0.95  # of the ball's radius, where the farthest optimum is put


@dataclass(frozen=True)
class Table:
    """Tasks as points in the plane, in the order they were played.

    Args:
        title: Of the run.
        names: Of the tasks shown.
        points: Their optima in the plane, scaled into the unit ball around θ = 0.
        explained: Which shares of the tasks' differences the two directions hold.
        of: How many tasks the run had.
    """

    title: str
    names: tuple[str, ...]
    points: tuple[tuple[float, float], ...]
    explained: tuple[float, float]
    of: int

    def data(self) -> dict[str, Any]:
        """What the page reads."""
        return asdict(self)


def table_of(optima: Any, names: Sequence[Any] | None = None, title: str = "your table") -> Table:
    """The tasks of a run for the page.

    Args:
        optima: Of the tasks in the order they were played, [T, d]; those that are not finite are
            left out.
        names: Of the tasks, T of them.
        title: Of the run.

    >>> found = table_of([[1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.5, 0.5, 0.0]], ["a", "b", "c"])
    >>> found.of, found.names, round(max(x * x + y * y for x, y in found.points), 4)
    (3, ('a', 'b', 'c'), 0.9025)
    """
    optima = np.atleast_2d(numbers(optima))
    if names is not None and len(names) != len(optima):
        raise FMRLError(f"{len(names)} names were given for {len(optima)} tasks")
    good = np.flatnonzero(np.isfinite(optima).all(axis=1))
    if not good.size:
        raise FMRLError("no task has a finite optimum")
    _, directions, explained = two_directions(optima[good])
    kept = good[np.unique(np.linspace(0, good.size - 1, MOST).astype(int))]
    xy = optima[kept] @ directions.T  # seen from θ = 0, where the first task starts
    longest = float(np.linalg.norm(xy, axis=1).max())
    xy = xy * (ROOM / longest if longest > 0 else 1.0)
    shown = tuple(clean(f"task {i}" if names is None else names[i]) for i in kept)
    points = tuple((float(x), float(y)) for x, y in xy)
    return Table(clean(title), shown, points, (explained[0], explained[1]), len(optima))
