"""Training runs as folders: from a table to a model with its history, held-out scores and record,
and on to new tasks.
"""

from importlib import import_module
from typing import Any

from fmrl.runs.options import Options

__all__ = ["Options", "Run", "Stopped", "train"]


def __getattr__(name: str) -> Any:
    # The estimators take a second to import, which `fmrl --help` need not wait for.
    homes = {"Run": "folder", "Stopped": "training", "train": "training"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{homes[name]}"), name)
