"""render: weights and a user's tasks in, one HTML file out that needs nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import fmrl
from fmrl import files
from fmrl.playground.table import Table
from fmrl.playground.weights import Weights, read_weights
from fmrl.report.html import escape
from fmrl.report.page import assemble, asset, embed

SHARED = ("axes.js", "theme.js")  # of the report
# One scope, in this order; the worker has a scope of its own.
SCRIPTS = (
    "random.js", "strokes.js", "examples.js", "pad.js", "lines.js", "draw.js", "algorithm.js",
    "stream.js", "arena.js", "watch.js", "main.js",
)  # fmt: skip
WORKER = ("random.js", "network.js", "worker.js")


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
