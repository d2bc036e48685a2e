"""render: weights and a user's tasks in, one HTML file out that needs nothing else. Of the tasks it
shows the optima, along the two directions in which they differ most.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fmrl
from fmrl import files
from fmrl.errors import FMRLError
from fmrl.playground.weights import Weights, read_weights
from fmrl.report.html import clean, escape
from fmrl.report.make_facts import two_directions
from fmrl.report.page import assemble, asset, embed
from fmrl.theory.bounds.bound import numbers

SHARED = ("axes.js", "theme.js")  # of the report
# One scope, in this order; the worker has a scope of its own.
SCRIPTS = (
    "random.js", "strokes.js", "examples.js", "pad.js", "lines.js", "draw.js", "algorithm.js",
    "stream.js", "arena.js", "watch.js", "main.js",
)  # fmt: skip
WORKER = ("random.js", "network.js", "worker.js")
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


def render(weights: Weights | None = None, table: Table | None = None) -> str:
    """The page as a string. It opens offline and its own content policy forbids it every request.

    Args:
        weights: The network that learns drawings; None is the one that comes with the package.
        table: A run's tasks, as `table_of` makes them; without one the page says how to get it.

    >>> page = render()
    >>> len(page) < 1_500_000, page.count("<script")
    (True, 3)
    """
    weights = read_weights() if weights is None else weights
    shown = {"weights": weights.data(), "table": None if table is None else table.data()}
    own = "fmrl.playground"
    script = [asset(n) for n in SHARED] + [asset(n, own) for n in SCRIPTS]
    parts = {
        "style": asset("page.css") + asset("playground.css", own),
        "worker": "".join(['"use strict";\n', *(asset(n, own) for n in WORKER)]),
        "data": embed(shown),
        "version": escape(fmrl.__version__),
    }
    return assemble(asset("page.html", own), "".join(script), parts, "; worker-src blob:")


def write(
    path: str | os.PathLike, weights: Weights | None = None, table: Table | None = None
) -> Path:
    """Render to a file; a write that fails leaves the file that was there.

    Args:
        path: The HTML file; folders above it are made.
        weights: As in `render`.
        table: As in `render`.

    Returns:
        The path.
    """
    return files.write(path, render(weights, table))


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
