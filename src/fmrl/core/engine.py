"""Engines: where a run is carried out. The core knows them by name alone and loads one when it is
asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from fmrl.core.algorithm import FMRL, State
from fmrl.core.arrays import Array
from fmrl.core.history import History
from fmrl.errors import FMRLError

ENGINES = {
    "ray": "fmrl.cluster:Ray"
}  # name → module:value, so that nothing is imported before it is used


class Engine(Protocol):
    """Something that plays tasks as `run` does, elsewhere, with the same numbers."""

    def run(
        self, algo: FMRL, tasks: Any, phi: Array | None = None, *, state: State | None = None, meta_batch: int = 1,
        keep: str = "all", progress: Callable[[int], None] | None = None,
    ) -> History:  # fmt: skip
        """The history of ``tasks``: an iterable of Task, or whatever else the engine reads."""
        ...


def find_engine(engine: str | Engine) -> Engine:
    """The engine of that name, or the one given.

    >>> find_engine("abacus")
    Traceback (most recent call last):
        ...
    fmrl.errors.FMRLError: there is no engine called 'abacus'; use one of 'local', 'ray'
    """
    if not isinstance(engine, str):
        if isinstance(engine, type) or not hasattr(engine, "run"):
            raise FMRLError(
                f"{engine!r} is not an engine",
                fix="give 'local', 'ray' or a value such as fmrl.cluster.Ray()",
            )
        return engine
    if engine not in ENGINES:
        raise FMRLError(
            f"there is no engine called {engine!r}",
            fix=f"use one of 'local', {', '.join(map(repr, ENGINES))}",
        )
    module, _, name = ENGINES[engine].partition(":")
    return getattr(import_module(module), name)()
